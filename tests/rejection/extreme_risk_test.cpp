#include "support/batches.hpp"

#include <turnwise/rejection/extreme_risk.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace turnwise;
using test::infinity;
using test::nan_value;
using bytes = std::vector<std::uint8_t>;

/// Turns of two tokens each.
template <typename T = double, typename P = double>
bytes masked(std::vector<T> const& advantage, std::vector<double> const& logprob, double threshold, bytes keep = {}) {
  std::vector<std::int64_t> begin, end;
  for (std::size_t s = 0; s < advantage.size(); ++s) {
    begin.push_back(static_cast<std::int64_t>(2 * s));
    end.push_back(static_cast<std::int64_t>(2 * s + 2));
  }
  std::vector<std::int64_t> const offsets{0, static_cast<std::int64_t>(advantage.size())}, id{0};
  std::vector<P> values;
  for (double const value : logprob) values.push_back(static_cast<P>(value));
  if (keep.empty()) keep.assign(logprob.size(), 1);
  rejection::extreme_risk(rollout_view{begin, end, offsets, id, id}, std::span<T const>{advantage},
                          std::span<P const>{values}, {.threshold = threshold}, keep);
  return keep;
}

}  // namespace

TEST_SUITE("rejection/extreme_risk") {
  TEST_CASE_TEMPLATE("clears improbable tokens of negative advantage, both strictly", T, float, double) {
    double const edge = std::log(0.25);
    double const below = std::nextafter(edge, -infinity);
    CHECK(masked<T>({-1, 1, 0, -T{0}}, {edge, below, below, -9, below, -9, below, -9}, 0.25) ==
          bytes{1, 0, 1, 1, 1, 1, 1, 1});
  }

  TEST_CASE("log-probs of every type are compared in double") {
    CHECK(masked<double, float>({-1}, {-2, -1}, 0.25) == bytes{0, 1});
    CHECK(masked<float, Eigen::half>({-1}, {-2, -1}, 0.25) == bytes{0, 1});
    CHECK(masked<float, Eigen::bfloat16>({-1}, {-2, -1}, 0.25) == bytes{0, 1});
  }

  TEST_CASE("NaN and infinite log-probs and advantages; bytes of 0 stay") {
    CHECK(masked({-1.0, nan_value, -infinity, infinity}, {-infinity, nan_value, -50, -50, -50, 0, -50, -infinity},
                 1e-4) == bytes{0, 1, 1, 1, 0, 1, 1, 1});
    CHECK(masked({-1.0, 1.0}, {-50, 0, -50, 0}, 1e-4, {1, 0, 0, 9}) == bytes{0, 0, 0, 9});
  }

  TEST_CASE("threshold 0 clears nothing, 1 all but certain tokens") {
    CHECK(masked({-1.0}, {-infinity, -1e300}, 0) == bytes{1, 1});
    CHECK(masked({-1.0}, {-1e-300, 0}, 1) == bytes{0, 1});
  }

  TEST_CASE("padding is not touched; no turns, no tokens") {
    test::sample_batch<> const batch{
        std::vector<test::sample_trajectory>{{.turns = {{.log_ratio = {-50}}, {.log_ratio = {}}}}},
        test::layout::padded};
    bytes keep(batch.old_logprob.size(), 1);
    std::vector<double> const advantage{-1, -1}, logprob(keep.size(), -50.0);
    rejection::extreme_risk(batch.view(), std::span<double const>{advantage}, std::span<double const>{logprob}, {},
                            keep);
    CHECK(keep == bytes{0, 1, 1, 1, 1, 1, 1, 1});
    CHECK(masked<double>({}, {}, 0.1).empty());
  }

  TEST_CASE("a bad threshold and wrong sizes throw and change nothing") {
    std::vector<std::int64_t> const begin{0}, end{2}, far{3}, offsets{0, 1}, id{0};
    rollout_view const batch{begin, end, offsets, id, id};
    std::vector<double> const advantage{-1}, two{-50, -50};
    bytes keep{1, 1};
    auto const throws = [&](rollout_view const& view, std::span<double const> advantages,
                            std::span<double const> logprobs, double threshold) {
      CHECK_THROWS_AS(rejection::extreme_risk(view, advantages, logprobs, {.threshold = threshold}, keep),
                      precondition_error);
    };
    for (double const threshold : {-0.1, 1.1, nan_value}) throws(batch, advantage, two, threshold);
    throws(batch, two, two, 0.1);
    throws(batch, advantage, std::span{two}.first(1), 0.1);
    throws({begin, far, offsets, id, id}, advantage, two, 0.1);
    CHECK(keep == bytes{1, 1});
  }

}  // TEST_SUITE

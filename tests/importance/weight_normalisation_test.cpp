#include "support/batches.hpp"

#include <turnwise/importance/weight_normalisation.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace turnwise;
using importance::sum_weights;
using importance::weight_normalisation;
using importance::weight_sums;
using test::infinity;
using test::nan_value;
using flags = std::vector<reason_flags>;
using bytes = std::vector<std::uint8_t>;

template <typename W>
weight_sums of_tokens(std::vector<W> const& weight, bytes const& keep, int threads = 0) {
  return sum_weights(std::span<W const>{weight}, std::span<std::uint8_t const>{keep}, threads);
}

template <typename W>
weight_sums of_turns(std::vector<W> const& weight, flags const& reasons) {
  return sum_weights(std::span<W const>{weight}, std::span<reason_flags const>{reasons});
}

template <typename W>
std::vector<W> normalised(std::vector<W> weight, weight_sums const& total, double floor = 1e-8) {
  weight_normalisation(total, {floor}, std::span{weight});
  return weight;
}

}  // namespace

TEST_SUITE("importance/weight_normalisation") {
  TEST_CASE_TEMPLATE("divides by the mean of what counts, and divides the rest too", W, float, double) {
    std::vector<W> const weight{1, 2, 9, 6};
    auto const tokens = of_tokens(weight, {1, 1, 0, 1});
    CHECK(tokens == weight_sums{9, 3, 0});
    CHECK(normalised(weight, tokens) == std::vector<W>{W(1) / 3, W(2) / 3, 3, 2});
    CHECK(of_tokens(weight, {}) == weight_sums{18, 4, 0});
    CHECK(of_turns(weight, {0, reason::stale, 0, 0}) == weight_sums{16, 3, 0});
  }

  TEST_CASE("micro-batches and ranks add up: exactly here, where no sum rounds") {
    test::integers random{5};
    std::vector<double> weight;
    for (int i = 0; i < 20000; ++i) weight.push_back(static_cast<double>(random.below(1 << 20)) * 0x1p-18);
    auto const whole = of_tokens(weight, {});
    for (std::size_t const cut : {1u, 100u, 4096u, 5000u}) {
      weight_sums total;
      for (std::size_t first = 0; first < weight.size(); first += cut) {
        auto const last = weight.begin() + static_cast<std::ptrdiff_t>(std::min(first + cut, weight.size()));
        total += of_tokens(std::vector<double>(weight.begin() + static_cast<std::ptrdiff_t>(first), last), {});
      }
      CHECK(total == whole);
      CHECK(normalised(weight, total) == normalised(weight, whole));
    }
    CHECK(of_tokens(normalised(weight, whole), {}).mean() == doctest::Approx(1).epsilon(1e-12));
  }

  TEST_CASE("the order of the sum is that of lane_fold, by hand; any threads") {
    // 33 elements: element 32 goes to lane 0. The small ones survive only where they meet before the large one.
    std::vector<double> weight(33, 0x1p-53);
    weight[0] = 1;
    // lane 0 holds 1 + 2^-53 = 1 (ties to even); lane 16 is added next: 1 again; the others pair up.
    // half 16: lanes 1..15 hold 2^-52; half 8: lane 0 = 1 + 2^-52, lanes 1..7 2^-51; and so on: + 2^-51, 2^-50, 2^-49.
    double const by_hand = 1 + 0x1p-52 + 0x1p-51 + 0x1p-50 + 0x1p-49;
    CHECK(of_tokens(weight, {}).weight == by_hand);
    // 64 elements: 33 goes to lane 1, which meets lane 0 last; by then 2^-60 is lost in the 1.
    std::vector<double> apart(64, 0);
    apart[0] = 1;
    apart[8] = 0x1p-60;
    apart[33] = -1;
    CHECK(of_tokens(apart, {}).weight == 0);

    test::integers random{9};
    std::vector<float> many;
    for (int i = 0; i < 70000; ++i) many.push_back(static_cast<float>(random.below(1 << 24)) * 0x1.8p-20f + 1e-3f);
    CHECK(of_tokens(many, {}, 1) == of_tokens(many, {}, 6));
  }

  TEST_CASE("nothing kept, zero weights, a mean at the floor: unchanged") {
    std::vector<double> const weight{0.5, 2};
    CHECK(normalised(weight, of_tokens(weight, {0, 0})) == weight);
    CHECK(normalised(weight, of_turns(weight, {1, 1})) == weight);
    CHECK(normalised(std::vector<double>{0, 0}, of_tokens(std::vector<double>{0, 0}, {})) == std::vector<double>{0, 0});
    CHECK(normalised(weight, {2e-8, 2, 0}) == weight);
    CHECK(normalised(weight, {4e-8, 2, 0}) == std::vector<double>{0.5 / 2e-8, 2 / 2e-8});
    CHECK(normalised(weight, {0.5, 2, 0}, 0.25) == weight);
    CHECK(normalised(std::vector<double>{}, of_tokens(std::vector<double>{}, {})).empty());
  }

  TEST_CASE("NaN and infinite weights are counted and spread to no other") {
    std::vector<double> const weight{1, nan_value, 3, infinity, -infinity};
    auto const total = of_tokens(weight, {});
    CHECK(total == weight_sums{4, 2, 3});
    CHECK(normalised(weight, total)[0] == 0.5);
    CHECK(normalised(weight, total)[2] == 1.5);
    CHECK(of_tokens(weight, {1, 0, 1, 0, 0}) == weight_sums{4, 2, 0});
  }

  TEST_CASE("bad arguments throw, and nothing is written") {
    std::vector<double> const weight(2, 1);
    CHECK_THROWS_AS(static_cast<void>(of_tokens(weight, {1})), precondition_error);
    CHECK_THROWS_AS(static_cast<void>(of_turns(weight, {1})), precondition_error);
    std::vector<double> out{7};
    for (double const bad : {-1.0, nan_value, infinity})
      CHECK_THROWS_AS(weight_normalisation({4, 2, 0}, {bad}, std::span{out}), precondition_error);
    CHECK(out[0] == 7);
  }
}

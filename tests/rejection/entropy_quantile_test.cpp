#include "support/batches.hpp"

#include <turnwise/rejection/entropy_quantile.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace turnwise;
using test::infinity;
using test::nan_value;
using bytes = std::vector<std::uint8_t>;

struct outcome {
  bytes keep;
  double threshold;
};

template <typename T = double>
outcome top(std::vector<double> const& entropy, double share, bytes keep = {}) {
  std::vector<T> values;
  for (double const value : entropy) values.push_back(static_cast<T>(value));
  if (keep.empty()) keep.assign(entropy.size(), 1);
  double const threshold = rejection::entropy_quantile(std::span<T const>{values}, {.share = share}, keep);
  return {keep, threshold};
}

}  // namespace

TEST_SUITE("rejection/entropy_quantile") {
  TEST_CASE_TEMPLATE("the top share, any order", T, float, double, Eigen::half, Eigen::bfloat16) {
    auto const two_of_ten = top<T>({5, 1, 9, 2, 7, 3, 8, 4, 6, 0}, 0.2);  // 1 + floor(0.2 * 9) = 2
    CHECK(two_of_ten.keep == bytes{0, 0, 1, 0, 0, 0, 1, 0, 0, 0});
    CHECK(two_of_ten.threshold == 8);
    auto const three_of_eleven = top<T>({5, 1, 9, 2, 7, 3, 8, 4, 6, 0, 10}, 0.2);  // 1 + 2
    CHECK(three_of_eleven.keep == bytes{0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1});
    CHECK(top<T>({5, 1, 9}, 1).keep == bytes{1, 1, 1});
    CHECK(top<T>({5, 1, 9}, 1e-9).keep == bytes{0, 0, 1});
    CHECK(top<T>({3}, 0.5).keep == bytes{1});
  }

  TEST_CASE("all ties at the threshold stay; zeros of both signs tie") {
    CHECK(top({1, 2, 2, 2, 0}, 0.2).keep == bytes{0, 1, 1, 1, 0});
    auto const zeros = top({-0.0, 0.0, -1, -0.0, -2}, 0.4);  // 1 + floor(1.6) = 2
    CHECK(zeros.keep == bytes{1, 1, 0, 1, 0});
    CHECK(std::bit_cast<std::uint64_t>(zeros.threshold) == 0);
    CHECK(top({4, 4, 4}, 0.1).keep == bytes{1, 1, 1});
  }

  TEST_CASE("tokens masked off, NaN and infinite entropies take no part") {
    CHECK(top({9, 5, 4, 3, 8}, 0.5, {0, 1, 1, 1, 0}).keep == bytes{0, 1, 1, 0, 0});  // 2 of 3
    auto const odd = top({nan_value, infinity, 5, 4, -infinity, 3}, 0.5);
    CHECK(odd.keep == bytes{0, 0, 1, 1, 0, 0});
    CHECK(odd.threshold == 4);
    CHECK(top({nan_value, 5}, 0.5, {0, 7}).keep == bytes{0, 7});  // bytes that stay are not rewritten
    for (auto const& none : {top({nan_value, infinity}, 0.5), top({5, 6}, 0.5, {0, 0}), top({}, 0.5)}) {
      CHECK(std::ranges::count(none.keep, 1) == 0);
      CHECK(std::isnan(none.threshold));
    }
  }

  TEST_CASE("the tokens that reach the linearly interpolated quantile 1 - share") {
    test::integers random{3};
    for (int n = 1; n < 60; ++n)
      for (int percent = 1; percent <= 100; percent += 3) {
        std::vector<double> entropy;
        for (int i = 0; i < n; ++i) entropy.push_back(static_cast<double>(random.below(1 << 20)) * 0x1p-18);
        auto sorted = entropy;
        std::ranges::sort(sorted);
        // Place (1 - share) (n - 1) between two elements, in hundredths.
        int const place = (100 - percent) * (n - 1);
        auto const below = static_cast<std::size_t>(place / 100);
        double const fraction = (place % 100) / 100.0;
        double const quantile =
            fraction == 0 ? sorted[below] : sorted[below] + fraction * (sorted[below + 1] - sorted[below]);
        bytes expected;
        for (double const value : entropy) expected.push_back(value >= quantile);
        CHECK(top(entropy, percent / 100.0).keep == expected);
      }
  }

  TEST_CASE("top_tokens") {
    CHECK(rejection::top_tokens(0, 0.2) == 0);
    CHECK(rejection::top_tokens(1, 0.2) == 1);
    CHECK(rejection::top_tokens(100, 0.2) == 20);
    CHECK(rejection::top_tokens(101, 0.2) == 21);
    CHECK(rejection::top_tokens(11, 0.3) == 4);
    CHECK(rejection::top_tokens(1000, 1) == 1000);
    CHECK(rejection::top_tokens(51, 0.58) == 30);  // the product of doubles is below 29
  }

  TEST_CASE("a bad share and wrong sizes throw and change nothing") {
    std::vector<double> const entropy{1, 2};
    bytes keep{1, 1};
    for (double const share : {0.0, -0.1, 1.0001, nan_value})
      CHECK_THROWS_AS(rejection::entropy_quantile(std::span<double const>{entropy}, {.share = share}, keep),
                      precondition_error);
    CHECK_THROWS_AS(rejection::entropy_quantile(std::span<double const>{entropy}, {}, std::span{keep}.first(1)),
                    precondition_error);
    CHECK(keep == bytes{1, 1});
  }

}  // TEST_SUITE

#include "support/batches.hpp"

#include <turnwise/metrics/gradient_norm.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>

#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

namespace {

using namespace turnwise;
using metrics::gradient_norm;
using metrics::gradient_norm_options;
using metrics::gradient_norm_record;
using metrics::gradient_sums;
using metrics::norm_kind;
using test::infinity;
using test::nan_value;

template <typename T>
gradient_norm_record norm_of(std::vector<std::vector<T>> const& arrays, gradient_norm_options const& options = {},
                             int threads = 0) {
  std::vector<std::span<T const>> spans(arrays.begin(), arrays.end());
  return gradient_norm<T>(spans, options, threads);
}

template <typename T>
std::vector<T> numbers(std::initializer_list<double> values) {
  std::vector<T> result;
  for (double const value : values) result.push_back(static_cast<T>(value));
  return result;
}

}  // namespace

TEST_SUITE("metrics/gradient_norm") {
  TEST_CASE_TEMPLATE("norms over a list of arrays by hand", T, float, double, Eigen::half, Eigen::bfloat16) {
    std::vector<std::vector<T>> const arrays{numbers<T>({1, -2, 4}), {}, numbers<T>({2})};
    auto const l2 = norm_of<T>(arrays);
    CHECK(l2 == gradient_norm_record{.sums = {25, 4, 0}, .norm = 5});
    auto const largest_of = norm_of<T>(arrays, {.kind = norm_kind::infinity});
    CHECK(largest_of == gradient_norm_record{.sums = {25, 4, 0}, .norm = 4});
  }

  TEST_CASE("the clip factor: 1 up to max_norm, then max_norm / (norm + epsilon)") {
    std::vector<std::vector<float>> const arrays{{3, 4}};
    auto const factor = [&](double max_norm, double epsilon, norm_kind kind = norm_kind::l2) {
      return norm_of<float>(arrays, {kind, max_norm, epsilon}).clip_factor;
    };
    CHECK(factor(5, 0) == 1);
    CHECK(factor(6, 0) == 1);
    CHECK(factor(2.5, 0) == 0.5);
    CHECK(factor(2.5, 5) == 0.25);
    CHECK(factor(1, 1e-6) == 1 / (5 + 1e-6));
    CHECK(factor(2, 0, norm_kind::infinity) == 0.5);
    CHECK(factor(infinity, 0) == 1);
    CHECK(norm_of<float>({{0, 0}}, {.max_norm = 1, .epsilon = 0}).clip_factor == 1);
  }

  TEST_CASE_TEMPLATE("NaN and infinite elements: counted, left out, no step", T, float, double, Eigen::half,
                     Eigen::bfloat16) {
    std::vector<std::vector<T>> const arrays{numbers<T>({3, nan_value}), numbers<T>({infinity, 4, -infinity})};
    for (norm_kind const kind : {norm_kind::l2, norm_kind::infinity}) {
      auto const record = norm_of<T>(arrays, {.kind = kind, .max_norm = 100});
      CHECK(record.sums == gradient_sums{25, 4, 3});
      CHECK(record.norm == (kind == norm_kind::l2 ? 5 : 4));
      CHECK_FALSE(record.finite);
      CHECK(record.clip_factor == 0);
    }
  }

  TEST_CASE("doubles whose squares overflow: not finite, no step; floats never overflow") {
    auto const record = norm_of<double>({{1e200}}, {.max_norm = 1});
    CHECK_FALSE(record.finite);
    CHECK(record.clip_factor == 0);
    CHECK(norm_of<double>({{1e200}}, {.kind = norm_kind::infinity}).norm == 1e200);
    CHECK(norm_of<float>({{largest<float>}}).norm == static_cast<double>(largest<float>));
    CHECK(norm_of<float>({{std::numeric_limits<float>::denorm_min()}}).norm == 0x1p-149);
  }

  TEST_CASE("doubles whose squares underflow count in full") {
    double const least = std::numeric_limits<double>::denorm_min();
    for (double const one : {1e-170, 1e-300, least}) {
      CHECK(norm_of<double>({{one}}).norm == one);
      CHECK(norm_of<double>({{-one, 0}}).sums.largest == one);
    }
    CHECK(norm_of<double>({{0x3p-900, 0x4p-900}}).norm == 0x5p-900);
    CHECK(norm_of<double>({{0x3p-452}, {0x4p-452}}).norm == 0x5p-452);  // on both sides of what is tiny
    CHECK(norm_of<double>({{3, 1e-170}, {4}}).norm == 5);
    CHECK(norm_of<double>({std::vector<double>(1 << 18, 0x1p-600)}).norm == 0x1p-591);  // four chunks
    std::vector<gradient_norm_record> const parts{norm_of<double>({{0x3p-900}}), norm_of<float>({{0}}),
                                                  norm_of<double>({{0x4p-900}})};
    CHECK(metrics::join_gradient_norms(parts, {}).norm == 0x5p-900);
    auto const clipped = norm_of<double>({{0x3p-900, 0x4p-900}}, {.max_norm = 0x5p-902, .epsilon = 0});
    CHECK(clipped.clip_factor == 0.25);
    CHECK(clipped.finite);
  }

  TEST_CASE("nothing: norm 0") {
    CHECK(norm_of<float>({}) == gradient_norm_record{});
    CHECK(norm_of<float>({{}, {}}) == gradient_norm_record{});
  }

  TEST_CASE("sizes at and around chunks and lanes: sums of small integers are exact") {
    for (std::size_t const size : {1u, 2047u, 2048u, 2049u, 65535u, 65536u, 65537u, 200001u}) {
      std::vector<float> one(size);
      double squares = 0;
      for (std::size_t i = 0; i < size; ++i) {
        one[i] = static_cast<float>(i % 7) - 3;
        squares += static_cast<double>(one[i]) * static_cast<double>(one[i]);
      }
      CHECK(norm_of<float>({one, one}).sums.squares == 2 * squares);
    }
  }

  TEST_CASE("the same bits for any threads; near the sum in long double") {
    test::integers random{4};
    std::vector<std::vector<float>> arrays(7);
    long double truth = 0;
    for (auto& array : arrays)
      for (std::int64_t left = random.below(300000); left > 0; --left) {
        array.push_back(std::ldexp(static_cast<float>(random.below(1 << 24)), static_cast<int>(random.below(20)) - 40));
        truth += static_cast<long double>(array.back()) * static_cast<long double>(array.back());
      }
    auto const one = norm_of<float>(arrays, {}, 1);
    CHECK(norm_of<float>(arrays, {}, 5) == one);
    CHECK(one.norm == doctest::Approx(static_cast<double>(std::sqrt(truth))).epsilon(1e-12));
    // the doubles of the same numbers: the same squares, fused or not
    std::vector<std::vector<double>> wide;
    for (auto const& array : arrays) wide.emplace_back(array.begin(), array.end());
    CHECK(norm_of<double>(wide) == one);
  }

  TEST_CASE("parts of several types or ranks join") {
    gradient_norm_options const options{.max_norm = 6.5};
    std::vector<gradient_norm_record> const parts{norm_of<float>({{3, 4}}), norm_of<double>({{12}}), {}};
    CHECK(metrics::join_gradient_norms(parts, options) ==
          gradient_norm_record{{169, 12, 0}, 13, 6.5 / (13 + 1e-6), true});
    std::vector<gradient_norm_record> const bad{norm_of<double>({{nan_value}}), norm_of<float>({{3}})};
    CHECK(metrics::join_gradient_norms(bad, options).clip_factor == 0);
    CHECK(metrics::join_gradient_norms({}, options) == gradient_norm_record{});
  }

  TEST_CASE("bad options throw") {
    for (double const bad : {0.0, -1.0, nan_value}) {
      CHECK_THROWS_AS(norm_of<float>({{1}}, {.max_norm = bad}), precondition_error);
      CHECK_THROWS_AS(static_cast<void>(metrics::join_gradient_norms({}, {.max_norm = bad})), precondition_error);
    }
    for (double const bad : {-1.0, nan_value, infinity})
      CHECK_THROWS_AS(norm_of<float>({{1}}, {.epsilon = bad}), precondition_error);
  }
}

#include <turnwise/importance/log_ratio.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace {

using namespace turnwise::importance;

/// e^d - 1 - d, without the cancellation near 0.
long double exact_k3(long double d) {
  if (std::fabs(d) > 0.01L) return std::expm1(d) - d;
  long double term = d * d / 2;
  long double sum = 0;
  for (int n = 3; term != 0 && n < 20; ++n) {
    sum += term;
    term *= d / n;
  }
  return sum;
}

template <bool Small>
void check_excess(double d) {
  auto const [k3, excess] = excess_of<Small>(d);
  long double const exact = exact_k3(d);
  long double const ratio = std::exp(static_cast<long double>(d));
  bool const good = k3 >= 0 && std::fabs(k3 - exact) <= 1e-7L * exact &&
                    std::fabs(excess - std::expm1(static_cast<long double>(d))) <= 2e-8L * std::fmax(1.0L, ratio);
  if (!good) FAIL_CHECK("d = " << d << ", k3 = " << k3 << ", excess = " << excess);
}

TEST_SUITE("importance/log_ratio") {
  TEST_CASE("the difference is one subtraction, in double when either is double") {
    CHECK(log_ratio(-1.0F, -0x1p-30F) == -1.0F);
    CHECK(log_ratio(-1.0, -0x1p-30F) == -1.0 + 0x1p-30);
    CHECK(log_ratio(-1.0F, -0x1p-30) == -1.0 + 0x1p-30);
  }

  TEST_CASE("index: nearest multiple of 2^-24, ties to even, clamped to +-64") {
    CHECK(log_ratio_index(0.0) == 0);
    CHECK(log_ratio_index(-0.0F) == 0);
    CHECK(log_ratio_index(1.0F) == 1 << 24);
    for (std::int64_t tie : {1, 3, 5, 7, 16777215}) {
      std::int64_t const even = (tie / 2 + 1) / 2 * 2;
      CHECK(log_ratio_index(static_cast<double>(tie) * 0x1p-25) == even);
      CHECK(log_ratio_index(static_cast<double>(-tie) * 0x1p-25) == -even);
    }
    CHECK(log_ratio_index(std::nextafter(64.0F, 65.0F)) == std::int64_t{1} << 30);
    CHECK(log_ratio_index(-1e30F) == -(std::int64_t{1} << 30));
    CHECK(log_ratio_index(std::numeric_limits<double>::max()) == std::int64_t{1} << 30);
    CHECK(log_ratio_index(std::numeric_limits<double>::denorm_min()) == 0);
  }

  TEST_CASE("RR-13 a log ratio is saturated beyond 64 only") {
    for (float d : {0.5F, 31.0F, -26.0F, 64.0F, -64.0F}) CHECK_FALSE(is_saturated(d));
    for (float d : {std::nextafter(64.0F, 65.0F), -65.0F, 1e30F}) CHECK(is_saturated(d));
    CHECK_FALSE(is_saturated(std::numeric_limits<float>::quiet_NaN()));
  }

  TEST_CASE("finite") {
    CHECK(is_finite(std::numeric_limits<float>::max()));
    CHECK(is_finite(std::numeric_limits<double>::lowest()));
    CHECK_FALSE(is_finite(std::numeric_limits<float>::infinity()));
    CHECK_FALSE(is_finite(-std::numeric_limits<double>::infinity()));
    CHECK_FALSE(is_finite(std::numeric_limits<double>::quiet_NaN()));
  }

  TEST_CASE("RR-07 k3 within 1e-7 and the ratio within 2e-8 max(1, ratio) over +-64") {
    CHECK(excess_of(0.0).k3 == 0.0);
    CHECK(excess_of(0.0).excess == 0.0);
    for (std::int64_t index = -(1 << 30); index <= 1 << 30; index += 1013)
      check_excess<false>(static_cast<double>(index) * log_ratio_unit);
    for (std::int64_t index = -70000; index <= 70000; ++index)
      check_excess<false>(static_cast<double>(index) * log_ratio_unit);
  }

  TEST_CASE("small log ratios: the same bits") {
    auto const last = static_cast<std::int64_t>(small_log_ratio * 0x1p24) + 1;
    for (std::int64_t index = -last; index <= last; index += index > -70000 && index < 70000 ? 1 : 7) {
      double const d = static_cast<double>(index) * log_ratio_unit;
      auto const small = excess_of<true>(d);
      auto const any = excess_of(d);
      if (small.k3 != any.k3 || small.excess != any.excess) FAIL_CHECK("d = " << d);
    }
  }
}

}  // namespace

#include <turnwise/core/exp.hpp>
#include <turnwise/importance/detail/lanes.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

using turnwise::ieee_exp;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Units in the last place of a float or double result near `exact`.
template <typename T>
long double ulp_error(T got, long double exact) {
  int const digits = std::numeric_limits<T>::digits - 1;
  long double const least = std::numeric_limits<T>::denorm_min();
  long double const unit = exact == 0 ? least : std::max(std::ldexp(1.0L, std::ilogb(exact) - digits), least);
  return std::fabs(static_cast<long double>(got) - exact) / unit;
}

}  // namespace

TEST_SUITE("core/exp") {
  TEST_CASE("float: below 1.1 ulp for every 4093rd bit pattern") {
    double worst = 0;
    for (std::uint64_t pattern = 0; pattern < (std::uint64_t{1} << 32); pattern += 4093) {
      auto const x = std::bit_cast<float>(static_cast<std::uint32_t>(pattern));
      float const got = ieee_exp(x);
      if (std::isnan(x)) {
        CHECK(std::isnan(got));
        continue;
      }
      double const exact = std::exp(static_cast<double>(x));
      if (exact > std::numeric_limits<float>::max())
        CHECK(got >= std::numeric_limits<float>::max());
      else
        worst = std::max(worst, static_cast<double>(ulp_error(got, exact)));
    }
    CHECK(worst < 1.1);
  }

  TEST_CASE("double: below 1.1 ulp on a dense grid") {
    double worst = 0;
    for (int i = -7450000; i <= 7097000; i += 3) {
      double const x = i * 1.00000007e-4;
      long double const exact = std::exp(static_cast<long double>(x));
      worst = std::max(worst, static_cast<double>(ulp_error(ieee_exp(x), exact)));
    }
    for (int i = -100000; i <= 100000; ++i) {  // and near 0
      double const x = i * 1.3e-7;
      worst = std::max(worst, static_cast<double>(ulp_error(ieee_exp(x), std::exp(static_cast<long double>(x)))));
    }
    CHECK(worst < 1.1);
  }

  TEST_CASE_TEMPLATE("ends of the range", T, float, double) {
    CHECK(ieee_exp(T{0}) == 1);
    CHECK(ieee_exp(-T{0}) == 1);
    CHECK(ieee_exp(static_cast<T>(infinity)) == infinity);
    CHECK(ieee_exp(static_cast<T>(-infinity)) == 0);
    CHECK(ieee_exp(std::numeric_limits<T>::max()) == infinity);
    CHECK(ieee_exp(std::numeric_limits<T>::lowest()) == 0);
    CHECK(std::isnan(ieee_exp(std::numeric_limits<T>::quiet_NaN())));
    CHECK(std::isnan(ieee_exp(-std::numeric_limits<T>::quiet_NaN())));
    CHECK(ieee_exp(std::numeric_limits<T>::denorm_min()) == 1);
    CHECK(ieee_exp(std::numeric_limits<T>::min_exponent * static_cast<T>(0.7)) > 0);  // subnormal
  }

  TEST_CASE_TEMPLATE("near 0 the short form has the same bits, and so has a register", T, float, double) {
    using lanes = turnwise::importance::detail::vec<T>;
    for (int i = -800000; i <= 800000; i += 7) {
      T const x = static_cast<T>(i) * static_cast<T>(1e-4);
      T const full = ieee_exp(x);
      CHECK(ieee_exp<true>(x) == full);
      lanes const all = ieee_exp(lanes{} + x);
      CHECK(all[0] == full);
      if (full != all[0]) break;
    }
  }

  TEST_CASE("usable in constant expressions") {
    static_assert(ieee_exp(0.0) == 1.0);
    static_assert(ieee_exp(1.0f) > 2.7182f && ieee_exp(1.0f) < 2.7183f);
  }

}  // TEST_SUITE

#include "support/batches.hpp"
#include "support/rational.hpp"

#include <turnwise/core/exact_sum.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using turnwise::exact_sum;
using turnwise::test::bits_of;
using turnwise::test::infinity;
using turnwise::test::integers;
using turnwise::test::nan_value;
using turnwise::test::random_order;
using turnwise::test::rational;
using numbers = std::vector<double>;

namespace {

constexpr double smallest = 5e-324;
constexpr double greatest = std::numeric_limits<double>::max();

exact_sum sum_of(numbers const& values) {
  exact_sum sum;
  for (double const value : values) sum.add(value);
  return sum;
}

exact_sum carried(exact_sum sum) {
  sum.carry();
  return sum;
}

/// Any finite double: random bits.
double any_double(integers& random) {
  for (;;)
    if (double const value = std::bit_cast<double>(random()); std::isfinite(value)) return value;
}

__extension__ using wide = __int128;

/// The double nearest to numerator / denominator, ties to even, both positive and the quotient at least 2^53.
double nearest(wide numerator, wide denominator) {
  wide quotient = numerator / denominator;
  wide rest = numerator % denominator;
  int dropped = 0;
  wide unit = 1;
  for (wide q = quotient; q >= wide{1} << 53; q >>= 1, ++dropped) unit <<= 1;
  wide kept = quotient / unit;
  wide const cut = quotient % unit;
  bool const tie = 2 * cut == unit && rest == 0;
  if (2 * cut > unit || (2 * cut == unit && rest != 0) || (tie && kept % 2 != 0)) ++kept;
  return std::ldexp(static_cast<double>(static_cast<std::int64_t>(kept)), dropped);
}

}  // namespace

TEST_SUITE("core/exact_sum") {
  TEST_CASE("nothing lost where doubles lose everything") {
    CHECK(sum_of({1e308, 1, -1e308}).value() == 1);
    CHECK(sum_of({1e308, 1e308, -1e308, -1e308, smallest}).value() == smallest);
    CHECK(sum_of({1e16, 1, 1, 1, -1e16}).value() == 3);
    CHECK(sum_of({0.1, 0.2, -0.3}).value() == 0x1p-55);  // what the three decimals' doubles really add up to
    CHECK(sum_of({greatest, greatest, -greatest}).value() == greatest);
  }

  TEST_CASE("one value, every power of two and its neighbours, comes back") {
    for (int e = -1074; e <= 1023; ++e) {
      double const power = std::ldexp(1.0, e);
      for (double const value : {power, -power, std::nextafter(power, infinity), std::nextafter(power, -infinity)})
        REQUIRE(bits_of<double>({sum_of({value}).value()}) == bits_of<double>({value + 0.0}));
    }
    CHECK(sum_of({greatest}).value() == greatest);
  }

  TEST_CASE("rounded once, to nearest, ties to even") {
    double const half = 0x1p-53;
    CHECK(sum_of({1, half}).value() == 1);                      // a tie, 1 is even
    CHECK(sum_of({1, half, smallest}).value() == 1 + 0x1p-52);  // just above it
    CHECK(sum_of({1, half, -smallest}).value() == 1);
    CHECK(sum_of({1 + 0x1p-52, half}).value() == 1 + 0x1p-51);  // the odd one of a tie goes up
    CHECK(sum_of({-1 - 0x1p-52, -half}).value() == -1 - 0x1p-51);
    CHECK(sum_of({2, -0x1p-54}).value() == 2);  // below a power of two the doubles are closer
    CHECK(sum_of({2, -0x1p-53}).value() == 2);
    CHECK(sum_of({2, -0x1p-52}).value() == 2 - 0x1p-52);
    CHECK(sum_of({0x1.fffffffffffffp0, half}).value() == 2);  // a carry through all bits
  }

  TEST_CASE("beyond the largest double: infinite, as rounding to nearest has it") {
    CHECK(sum_of({greatest, 0x1p969}).value() == greatest);
    CHECK(sum_of({greatest, 0x1p970}).value() == infinity);
    CHECK(sum_of({-greatest, -greatest}).value() == -infinity);
    CHECK(sum_of({greatest, greatest}).quotient(2) == greatest);
  }

  TEST_CASE("zeros of both signs, and what is not finite, leave the sum alone") {
    CHECK(bits_of<double>({exact_sum{}.value()}) == bits_of<double>({0.0}));
    CHECK(bits_of<double>({sum_of({-0.0, -0.0}).value()}) == bits_of<double>({0.0}));
    CHECK(bits_of<double>({sum_of({1, -1}).value()}) == bits_of<double>({0.0}));
    CHECK(sum_of({nan_value, infinity, -infinity}) == exact_sum{});
    CHECK(sum_of({2, nan_value, infinity}).value() == 2);
  }

  TEST_CASE("subnormals") {
    CHECK(sum_of({smallest, smallest, smallest}).value() == 3 * smallest);
    CHECK(sum_of({0x1p-1022, -smallest}).value() == 0x1p-1022 - smallest);
    CHECK(sum_of({smallest}).quotient(2) == 0);  // a tie, 0 is even
    CHECK(sum_of({3 * smallest}).quotient(2) == 2 * smallest);
    CHECK(sum_of({2 * smallest}).quotient(3) == smallest);
    CHECK(sum_of({smallest}).quotient(3) == 0);
    CHECK(sum_of({-2 * smallest}).quotient(3) == -smallest);
    CHECK(sum_of({0x1p-1022}).quotient(3) == 0x1p-1022 / 3);
    CHECK(sum_of({smallest}).quotient(INT64_MAX) == 0);
  }

  TEST_CASE("against fractions: halves, thirds and the like up to a common denominator") {
    integers random{1};
    for (int round = 0; round < 300; ++round) {
      numbers values;
      rational exact{0};
      for (std::int64_t i = 0, n = 1 + random.below(40); i < n; ++i) {
        std::int64_t const numerator = random.below(2'000'001) - 1'000'000;
        int const power = static_cast<int>(random.below(20));
        values.push_back(std::ldexp(static_cast<double>(numerator), -power));
        exact += rational{numerator, std::int64_t{1} << power};
      }
      std::int64_t const divisor = 1 + random.below(1000);
      double const sum = static_cast<double>(exact.numerator()) / static_cast<double>(exact.denominator());
      CHECK(sum_of(values).value() == sum);  // both parts are below 2^53
      rational const quotient = exact / rational{divisor};
      CHECK(sum_of(values).quotient(divisor) ==
            static_cast<double>(quotient.numerator()) / static_cast<double>(quotient.denominator()));
    }
  }

  TEST_CASE("against long integers: quotients of sums of 2^90 by divisors of up to 63 bits") {
    integers random{2};
    for (int round = 0; round < 2000; ++round) {
      wide exact = wide{1} << 118;  // keeps the quotient above 2^53
      exact_sum sum;
      sum.add(0x1p118);
      for (int i = 0; i < 20; ++i) {
        auto const part = static_cast<std::int64_t>(random() >> (11 + random.below(40)));
        auto const power = static_cast<int>(random.below(60));
        bool const minus = random.below(2) == 0;
        exact += minus ? -(wide{part} << power) : wide{part} << power;
        double const value = std::ldexp(static_cast<double>(part), power);
        sum.add(minus ? -value : value);
      }
      auto const divisor = static_cast<std::int64_t>(random() >> (1 + random.below(63))) | 1;
      REQUIRE(sum.quotient(divisor) == nearest(exact, divisor));
    }
  }

  TEST_CASE("n equal values have that value as mean, however many times each is added") {
    integers random{3};
    for (int round = 0; round < 2000; ++round) {
      double const value = any_double(random);
      exact_sum sum;
      std::int64_t total = 0;
      for (int i = 0; i < 7; ++i) {
        auto const times = static_cast<std::int64_t>(random() >> (4 + random.below(60)));
        sum.add_times(value, times);
        total += times;
      }
      if (total > 0) REQUIRE(sum.quotient(total) == value);
    }
  }

  TEST_CASE("adding times is adding that often") {
    integers random{4};
    for (int round = 0; round < 200; ++round) {
      double const value = any_double(random);
      std::int64_t const times = random.below(300);
      exact_sum once, often;
      once.add_times(value, times);
      for (std::int64_t i = 0; i < times; ++i) often.add(value);
      REQUIRE(carried(once) == carried(often));
      // 2^62 times by hand: twice 2^61 times, and so on down to once.
      exact_sum doubled, at_once;
      doubled.add(value);
      for (int i = 0; i < 62; ++i) {
        doubled += doubled;
        doubled.carry();
      }
      at_once.add_times(value, std::int64_t{1} << 62);
      REQUIRE(carried(at_once) == doubled);
    }
  }

  TEST_CASE("any order, any split into shards, any moment of carrying: one sum") {
    integers random{5};
    for (int round = 0; round < 20; ++round) {
      numbers values(500);
      for (double& value : values) value = any_double(random);
      auto const whole = carried(sum_of(values));
      double const result = whole.value();
      for (int order = 0; order < 5; ++order) {
        std::vector<exact_sum> shards(static_cast<std::size_t>(1 + random.below(9)));
        for (std::size_t const i : random_order(values.size(), random)) {
          auto& shard = shards[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(shards.size())))];
          shard.add(values[i]);
          if (random.below(50) == 0) shard.carry();
        }
        exact_sum joined;
        for (auto const& shard : shards) joined += shard;
        CHECK(joined.value() == result);
        CHECK(carried(joined) == whole);
      }
      numbers negated = values;
      for (double& value : negated) value = -value;
      CHECK(sum_of(negated).value() == -result);
      CHECK((sum_of(values) += sum_of(negated)).value() == 0);
    }
  }

  TEST_CASE("a digit has room for as many adds as said") {
    // The largest change of a digit by one add, as often as allowed, in the digit where the parts of a product meet.
    exact_sum one;
    double const odd = 0x1.fffffffffffffp52;
    one.add_times(-odd, INT64_MAX);
    std::int64_t most = 0;
    for (std::int64_t const digit : one.digit) most = std::max(most, digit < 0 ? -digit : digit);
    CHECK(most < std::int64_t{1} << 34);
    CHECK(most <= INT64_MAX / exact_sum::most_adds);
    exact_sum many = one;  // 2^29 times, by doubling without a carry
    for (int i = 0; i < 29; ++i) many += many;
    CHECK(many.quotient(exact_sum::most_adds) == one.value());
  }

}  // TEST_SUITE

#include <turnwise/advantage/leave_one_out.hpp>
#include <turnwise/advantage/remax.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using doctest::Contains;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::advantage::remax;
namespace reason = turnwise::reason;

namespace {

using flags = std::vector<reason_flags>;

template <typename T>
std::vector<T> advantages(std::vector<T> const& returns, std::vector<T> const& greedy, flags const& reasons = {}) {
  std::vector<T> out(returns.size(), T{-77});
  remax(returns, greedy, reasons, std::span{out});
  return out;
}

}  // namespace

TEST_SUITE("advantage/remax") {
  TEST_CASE_TEMPLATE("hand numbers", T, float, double) {
    CHECK(advantages<T>({1, 2, 6, 0}, {3, 3, 3, T{-0.5}}) == std::vector<T>{-2, -1, 3, T{0.5}});
  }

  TEST_CASE_TEMPLATE("relation: a greedy return of 0 keeps the return, as a lone member's leave-one-out does", T, float,
                     double) {
    std::vector<T> const returns{1, T{-2.5}, 6};
    std::vector<T> alone(3);
    turnwise::advantage::leave_one_out(turnwise::make_grouping(std::vector<std::int64_t>{1, 2, 3}), returns, {}, {},
                                       std::span{alone});
    CHECK(advantages<T>(returns, {0, 0, 0}) == alone);
  }

  TEST_CASE_TEMPLATE("equal returns give exactly 0", T, float, double) {
    CHECK(advantages<T>({T{0.1f}, T{-0.7f}, 0}, {T{0.1f}, T{-0.7f}, -T{0}}) == std::vector<T>{0, 0, 0});
  }

  TEST_CASE_TEMPLATE("invalid turns: 0, neither return is read; rejected turns are judged as others", T, float,
                     double) {
    for (T const bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()})
      for (auto const why : {reason::invalid, reason::unscored, reason::unscored_future}) {
        CHECK(advantages<T>({1, bad, 6}, {3, 3, 3}, {0, why, 0}) == std::vector<T>{-2, 0, 3});
        CHECK(advantages<T>({1, 5, 6}, {3, bad, 3}, {0, why, reason::stale}) == std::vector<T>{-2, 0, 3});
      }
  }

  TEST_CASE_TEMPLATE("in place, over either input", T, float, double) {
    std::vector<T> returns{1, 2, 6}, greedy{3, 3, 4};
    remax(returns, greedy, {}, std::span{returns});
    CHECK(returns == std::vector<T>{-2, -1, 2});
    remax(returns, greedy, {}, std::span{greedy});
    CHECK(greedy == std::vector<T>{-5, -4, -2});
  }

  TEST_CASE("large returns overflow nowhere") {
    double const limit = turnwise::magnitude_limit<double>;
    CHECK(advantages<double>({limit}, {-limit}) == std::vector<double>{2 * limit});
    CHECK(advantages<float>({0x1p100f}, {-0x1p100f}) == std::vector<float>{0x1p101f});
  }

  TEST_CASE("no turns") { CHECK(advantages<double>({}, {}).empty()); }

  TEST_CASE_TEMPLATE("every error names the argument and leaves the advantage alone", T, float, double) {
    std::vector<T> returns{1, 2, 3}, greedy{0, 0, 0}, out(3, T{9});
    flags reasons;
    auto const refused = [&](char const* text) {
      auto const before = out;
      CHECK_THROWS_WITH_AS(remax(returns, greedy, reasons, std::span{out}), Contains(text), precondition_error);
      CHECK(out == before);
    };
    SUBCASE("sizes") {
      greedy.pop_back();
      refused("remax: greedy_return has 2 elements, expected 3");
      greedy.push_back(0);
      reasons = {0};
      refused("remax: reasons has 1 elements, expected 3");
      reasons.clear();
      out.pop_back();
      refused("remax: advantage has 2 elements, expected 3");
    }
    SUBCASE("values of a valid turn") {
      for (T const bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                          static_cast<T>(turnwise::magnitude_limit<T>) * 2}) {
        reasons = {0, 0, reason::stale};
        returns[2] = bad;
        refused("remax: turn_return[2] = ");
        returns[2] = 3;
        greedy[2] = bad;
        refused("remax: greedy_return[2] = ");
        greedy[2] = 0;
      }
    }
  }

}  // TEST_SUITE

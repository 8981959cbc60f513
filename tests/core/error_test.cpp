#include <turnwise/core/error.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

TEST_SUITE("core/error") {
  TEST_CASE("a precondition error is an invalid argument") {
    static_assert(std::is_base_of_v<std::invalid_argument, turnwise::precondition_error>);
    CHECK_THROWS_AS(turnwise::fail("text"), std::invalid_argument);
  }

  TEST_CASE("the message joins text and numbers of any type") {
    std::string_view const name = "size";
    CHECK_THROWS_WITH_AS(turnwise::fail("call: ", name, "[", std::size_t{3}, "] = ", std::int64_t{-7}),
                         "call: size[3] = -7", turnwise::precondition_error);
    CHECK_THROWS_WITH_AS(turnwise::fail(std::numeric_limits<std::int64_t>::min(), " ", UINT64_MAX),
                         "-9223372036854775808 18446744073709551615", turnwise::precondition_error);
    CHECK_THROWS_WITH_AS(turnwise::fail(0.25, " ", -1.5f, " ", 1e300), "0.25 -1.5 1e+300",
                         turnwise::precondition_error);
    CHECK_THROWS_WITH_AS(turnwise::fail(4294967296.0, " ", -2.0f, " ", 1e12, " ", 0.1), "4294967296 -2 1e+12 0.1",
                         turnwise::precondition_error);
    CHECK_THROWS_WITH_AS(turnwise::fail(std::uint8_t{65}), "65", turnwise::precondition_error);
    CHECK_THROWS_WITH_AS(
        turnwise::fail(std::numeric_limits<double>::quiet_NaN(), " ", -std::numeric_limits<float>::infinity()),
        "nan -inf", turnwise::precondition_error);
  }

  TEST_CASE("expects throws exactly when its condition does not hold") {
    CHECK_NOTHROW(turnwise::expects(true, "not shown"));
    CHECK_THROWS_WITH_AS(turnwise::expects(false, "shown ", 1), "shown 1", turnwise::precondition_error);
  }

  TEST_CASE("MP-04: sizes that differ are an error that names both") {
    CHECK_NOTHROW(turnwise::expects_size("call", "mask", 4, 4, "token"));
    CHECK_THROWS_WITH_AS(turnwise::expects_size("call", "mask", 5, 4, "token"),
                         "call: mask has 5 elements, expected 4 (one a token)", turnwise::precondition_error);
  }

}  // TEST_SUITE

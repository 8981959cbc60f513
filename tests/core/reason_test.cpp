#include <turnwise/core/reason.hpp>

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace reason = turnwise::reason;

TEST_SUITE("core/reason") {
  TEST_CASE("the bits are frozen: users store them") {
    static_assert(std::is_same_v<turnwise::reason_flags, std::uint32_t>);
    static_assert(reason::invalid == 1);
    static_assert(reason::unscored == 2);
    static_assert(reason::unscored_future == 4);
    static_assert(reason::no_token == 8);
    static_assert(reason::non_finite == 16);
    static_assert(reason::ratio_low == 32);
    static_assert(reason::ratio_high == 64);
    static_assert(reason::token_veto == 128);
    static_assert(reason::profiling == 256);
    static_assert(reason::invalid_profile == 512);
    static_assert(reason::stale == 1024);
    static_assert(reason::token_outlier == 2048);
    static_assert(reason::divergence == 4096);
    static_assert(reason::off_policy == 8192);
    static_assert(reason::group_spread == 16384);
    static_assert(reason::group_accuracy == 32768);
    static_assert(reason::not_drawn == 65536);
    static_assert(reason::any_invalid == 7);
  }

  TEST_CASE("each bit has the name that the documents use") {
    std::array<std::string_view, 17> const expected{
        "invalid",    "unscored",   "unscored_future", "no_token",        "non_finite", "ratio_low",
        "ratio_high", "token_veto", "profiling",       "invalid_profile", "stale",      "token_outlier",
        "divergence", "off_policy", "group_spread",    "group_accuracy",  "not_drawn"};
    REQUIRE(reason::names.size() >= expected.size());
    for (std::size_t bit = 0; bit < expected.size(); ++bit) CHECK(reason::names[bit] == expected[bit]);
  }

  TEST_CASE("valid, kept and has_ratio over every combination of bits") {
    for (turnwise::reason_flags reasons = 0; reasons < 131072; ++reasons) {
      REQUIRE(turnwise::is_valid(reasons) == (reasons % 8 == 0));
      REQUIRE(turnwise::is_kept(reasons) == (reasons == 0));
      REQUIRE(turnwise::has_ratio(reasons) == (reasons % 32 == 0));
    }
  }

}  // TEST_SUITE

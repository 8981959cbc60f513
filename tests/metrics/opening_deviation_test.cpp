#include "support/batches.hpp"

#include <turnwise/metrics/opening_deviation.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace {

using namespace turnwise;
using metrics::opening;
using metrics::opening_deviation_options;
using metrics::opening_record;
using metrics::short_turn_policy;
using bytes = std::vector<std::uint8_t>;
using flags = std::vector<reason_flags>;
using ids = std::vector<std::int64_t>;
using openings = std::vector<opening>;

constexpr auto yes = opening::as_given, no = opening::deviates, out = opening::not_counted;
constexpr opening_deviation_options ignore{short_turn_policy::ignore};

/// Turns of one trajectory, given by their tokens.
template <typename Token>
struct written {
  ids begin, end, offsets{0, 0}, id{1};
  std::vector<Token> token;
  bytes valid;

  explicit written(std::vector<std::vector<Token>> const& turns) {
    for (auto const& turn : turns) {
      begin.push_back(static_cast<std::int64_t>(token.size()));
      token.insert(token.end(), turn.begin(), turn.end());
      end.push_back(static_cast<std::int64_t>(token.size()));
    }
    offsets[1] = static_cast<std::int64_t>(turns.size());
  }
  [[nodiscard]] rollout_view view() const {
    return {.turn_begin = begin,
            .turn_end = end,
            .trajectory_offsets = offsets,
            .group_id = id,
            .trajectory_id = id,
            .turn_valid = valid};
  }
};

template <typename Token>
openings compared(written<Token> const& batch, std::vector<Token> const& prefix, bytes const& mask = {},
                  flags const& reasons = {}, opening_deviation_options const& options = {}) {
  openings result(batch.begin.size(), yes);
  auto const record =
      metrics::opening_deviation<Token>(batch.view(), batch.token, mask, prefix, reasons, options, result);
  opening_record counted;
  for (auto const one : result) {
    counted.turns += one != out;
    counted.deviates += one == no;
  }
  CHECK(record == counted);
  return result;
}

}  // namespace

TEST_SUITE("metrics/opening_deviation") {
  TEST_CASE_TEMPLATE("the first tokens decide, nothing after them", Token, std::int32_t, std::int64_t) {
    written<Token> const batch{{{7, 8, 9}, {7, 8}, {7, 9, 9}, {6, 8, 9}, {7, 8, 1, 2}, {8, 7}}};
    CHECK(compared(batch, {7, 8}) == openings{yes, yes, no, no, yes, no});
    CHECK(compared(batch, {7}) == openings{yes, yes, yes, no, yes, no});
    std::vector<Token> const prefix{7, 8};
    auto const record = metrics::opening_deviation<Token>(batch.view(), batch.token, {}, prefix, {}, {});
    CHECK(record == opening_record{6, 3});
    CHECK(record.share() == 0.5);
  }

  TEST_CASE("a turn shorter than the prefix deviates, or is not counted; one that differs deviates in any case") {
    written<std::int32_t> const batch{{{7}, {7, 8}, {7, 9}, {}, {7, 8, 9}}};
    CHECK(compared<std::int32_t>(batch, {7, 8, 9}) == openings{no, no, no, out, yes});
    CHECK(compared<std::int32_t>(batch, {7, 8, 9}, {}, {}, ignore) == openings{out, out, no, out, yes});
  }

  TEST_CASE("masked tokens are passed over, before the opening and inside it") {
    written<std::int64_t> const batch{{{1, 7, 1, 8}, {1, 7, 1, 8}, {7, 8}, {7, 8, 8}}};
    bytes const mask{0, 1, 0, 1, 1, 1, 0, 1, 0, 0, 1, 0, 1};
    CHECK(compared<std::int64_t>(batch, {7, 8}, mask) == openings{yes, no, out, yes});
    CHECK(compared<std::int64_t>(batch, {7, 8, 8}, mask, {}, ignore) == openings{out, no, out, out});
  }

  TEST_CASE("tokens beyond 32 bits and of any sign") {
    std::int64_t const big = (std::int64_t{1} << 32) + 7;
    written<std::int64_t> const batch{{{big}, {7}, {-7}}};
    CHECK(compared<std::int64_t>(batch, {7}) == openings{no, yes, no});
    CHECK(compared<std::int64_t>(batch, {-7}) == openings{no, no, yes});
  }

  TEST_CASE("invalid turns do not count, rejected ones do; without reasons the flags of the batch") {
    written<std::int32_t> batch{{{7}, {8}, {7}, {8}}};
    CHECK(
        compared<std::int32_t>(batch, {7}, {}, {reason::invalid, reason::unscored, reason::stale, reason::ratio_low}) ==
        openings{out, out, yes, no});
    batch.valid = {1, 0, 0, 1};
    CHECK(compared<std::int32_t>(batch, {7}) == openings{yes, out, out, no});
    CHECK(compared<std::int32_t>(batch, {7}, {}, flags(4, 0)) == openings{yes, no, yes, no});
  }

  TEST_CASE("padded rows: what lies between turns is not read") {
    written<std::int32_t> batch{{{7, 8, 0, 0}, {7, 0, 0, 0}}};
    batch.end = {2, 5};
    CHECK(compared<std::int32_t>(batch, {7, 8}) == openings{yes, no});
    CHECK(compared<std::int32_t>(batch, {7, 0}) == openings{no, no});
  }

  TEST_CASE("no turns, nothing counted: share 0") {
    std::vector<std::int32_t> const prefix{1};
    CHECK(metrics::opening_deviation<std::int32_t>({}, {}, {}, prefix, {}, {}) == opening_record{});
    CHECK(opening_record{}.share() == 0);
    CHECK(compared<std::int32_t>(written<std::int32_t>{{{1}}}, {2}, {}, {reason::invalid}) == openings{out});
  }

  TEST_CASE("errors, with nothing written") {
    written<std::int32_t> const batch{{{7, 8}, {9}}};
    openings result(2, out);
    auto const call = [&](rollout_view const& view, std::size_t tokens, std::size_t mask, std::size_t prefix,
                          std::size_t reasons, std::size_t size) {
      std::vector<std::int32_t> const opening(prefix, 7);
      metrics::opening_deviation<std::int32_t>(view, std::span{batch.token}.first(tokens), bytes(mask, 1), opening,
                                               flags(reasons), {}, std::span{result}.first(size));
    };
    CHECK_THROWS_AS(call(batch.view(), 2, 0, 1, 2, 2), precondition_error);
    CHECK_THROWS_AS(call(batch.view(), 3, 2, 1, 2, 2), precondition_error);
    CHECK_THROWS_WITH_AS(call(batch.view(), 3, 3, 0, 2, 2),
                         "opening_deviation: prefix is empty, expected at least one token", precondition_error);
    CHECK_THROWS_AS(call(batch.view(), 3, 3, 1, 1, 2), precondition_error);
    CHECK_THROWS_AS(call(batch.view(), 3, 3, 1, 2, 1), precondition_error);
    auto view = batch.view();
    view.turn_end = {};
    CHECK_THROWS_AS(call(view, 3, 3, 1, 2, 2), precondition_error);
    CHECK(result == openings(2, out));
    CHECK_NOTHROW(call(batch.view(), 3, 3, 1, 2, 2));
  }
}

#include <turnwise/advantage/per_token.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

using doctest::Contains;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::rollout_view;
using turnwise::advantage::per_token;
namespace reason = turnwise::reason;

namespace {

using ids = std::vector<std::int64_t>;
using mask_bytes = std::vector<std::uint8_t>;
using flags = std::vector<reason_flags>;

/// Turns at the given token ranges, each a trajectory of its own.
struct turns {
  ids begin, end, offsets, id;
  turns(ids first, ids last) : begin(std::move(first)), end(std::move(last)), offsets(begin.size() + 1) {
    std::iota(offsets.begin(), offsets.end(), std::int64_t{0});
    id.assign(offsets.begin(), offsets.end() - 1);
  }
  [[nodiscard]] rollout_view view() const {
    return {.turn_begin = begin, .turn_end = end, .trajectory_offsets = offsets, .group_id = id, .trajectory_id = id};
  }
};

template <typename T>
struct outputs {
  std::vector<T> advantage;
  mask_bytes mask;
};

/// Both outputs, prefilled with what must not remain.
template <typename T, typename A>
outputs<T> spread(turns const& batch, std::size_t tokens, std::vector<A> const& advantage, flags const& reasons,
                  mask_bytes const& mask = {}, int threads = 0) {
  outputs<T> out{std::vector<T>(tokens, std::numeric_limits<T>::quiet_NaN()), mask_bytes(tokens, 99)};
  per_token(batch.view(), mask, std::span<A const>{advantage}, reasons, std::span{out.advantage}, std::span{out.mask},
            threads);
  return out;
}

}  // namespace

TEST_SUITE("advantage/per_token") {
  TEST_CASE_TEMPLATE("packed: each token gets its turn's advantage", T, float, double) {
    turns const batch{{0, 2, 5}, {2, 5, 6}};
    auto const out = spread<T>(batch, 6, std::vector<double>{1.5, -2, 4}, {0, 0, 0});
    CHECK(out.advantage == std::vector<T>{T{1.5}, T{1.5}, -2, -2, -2, 4});
    CHECK(out.mask == mask_bytes{1, 1, 1, 1, 1, 1});
  }

  TEST_CASE("padded: what lies behind a row's length is 0") {
    turns const batch{{0, 4, 8}, {3, 4, 12}};
    auto const out = spread<float>(batch, 12, std::vector<float>{1, 2, 3}, {0, 0, 0});
    CHECK(out.advantage == std::vector<float>{1, 1, 1, 0, 0, 0, 0, 0, 3, 3, 3, 3});
    CHECK(out.mask == mask_bytes{1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1});
  }

  TEST_CASE("gaps before, between and after the turns are 0") {
    turns const batch{{2, 6}, {4, 7}};
    auto const out = spread<double>(batch, 9, std::vector<double>{5, 7}, {0, 0});
    CHECK(out.advantage == std::vector<double>{0, 0, 5, 5, 0, 0, 7, 0, 0});
    CHECK(out.mask == mask_bytes{0, 0, 1, 1, 0, 0, 1, 0, 0});
  }

  TEST_CASE("turns need not stand in token order") {
    turns const batch{{6, 0, 3, 3}, {8, 2, 5, 3}};
    auto const out = spread<double>(batch, 9, std::vector<double>{1, 2, 3, 4}, {0, 0, 0, 0});
    CHECK(out.advantage == std::vector<double>{2, 2, 0, 3, 3, 0, 1, 1, 0});
    CHECK(out.mask == mask_bytes{1, 1, 0, 1, 1, 0, 1, 1, 0});
  }

  TEST_CASE("a turn that is not kept gives 0 for any reason, whatever its advantage") {
    for (std::uint32_t bit = 0; bit < 11; ++bit) {
      turns const batch{{0, 2}, {2, 4}};
      auto const out = spread<double>(batch, 4, std::vector<double>{std::numeric_limits<double>::quiet_NaN(), 1},
                                      {reason_flags{1} << bit, 0}, {1, 1, 1, 0});
      CHECK(out.advantage == std::vector<double>{0, 0, 1, 0});
      CHECK(out.mask == mask_bytes{0, 0, 1, 0});
    }
  }

  TEST_CASE("masked tokens inside a turn are 0; any value but 0 counts as on, and the output mask is 0 or 1") {
    turns const batch{{1, 4}, {4, 6}};
    auto const out = spread<double>(batch, 7, std::vector<double>{5, -1}, {0, 0}, {1, 1, 0, 255, 0, 2, 1});
    CHECK(out.advantage == std::vector<double>{0, 5, 0, 5, 0, -1, 0});
    CHECK(out.mask == mask_bytes{0, 1, 0, 1, 0, 1, 0});
  }

  TEST_CASE("either output may be left out") {
    turns const batch{{1, 3}, {2, 5}};
    mask_bytes const mask{1, 1, 1, 0, 1, 1};
    std::vector<double> const advantage{4, 8};
    flags const reasons{0, 0};
    std::vector<double> tokens(6, -1);
    per_token(batch.view(), mask, std::span{advantage}, reasons, std::span{tokens});
    CHECK(tokens == std::vector<double>{0, 4, 0, 0, 8, 0});
    mask_bytes token_mask(6, 9);
    per_token(batch.view(), mask, std::span{advantage}, reasons, std::span<double>{}, std::span{token_mask});
    CHECK(token_mask == mask_bytes{0, 1, 0, 0, 1, 0});
  }

  TEST_CASE("no turns, no tokens, or turns without tokens") {
    turns const none{{}, {}};
    CHECK(spread<float>(none, 0, std::vector<float>{}, {}).advantage.empty());
    auto const cleared = spread<float>(none, 3, std::vector<float>{}, {});
    CHECK(cleared.advantage == std::vector<float>{0, 0, 0});
    CHECK(cleared.mask == mask_bytes{0, 0, 0});
    turns const empty{{0, 3, 1}, {0, 3, 1}};
    auto const still_cleared = spread<float>(empty, 3, std::vector<float>{1, 2, 3}, {0, 0, 0});
    CHECK(still_cleared.advantage == std::vector<float>{0, 0, 0});
    CHECK(spread<float>(turns{{0}, {0}}, 0, std::vector<float>{1}, {0}).advantage.empty());
  }

  TEST_CASE("an empty turn inside another one's range is no overlap") {
    turns const batch{{0, 2}, {4, 2}};
    auto const out = spread<double>(batch, 4, std::vector<double>{3, 9}, {0, 0});
    CHECK(out.advantage == std::vector<double>{3, 3, 3, 3});
  }

  TEST_CASE("MP-01: the mask comes from lengths, not from token ids") {
    // ids {5 6 2 0 0} and {7 8 9 0 0}: the second has no end token, and padding is still no answer.
    turns const batch{{0, 5}, {3, 8}};
    CHECK(spread<float>(batch, 10, std::vector<float>{1, 1}, {0, 0}).mask == mask_bytes{1, 1, 1, 0, 0, 1, 1, 1, 0, 0});
  }

  TEST_CASE("MP-02: tool output inside a turn is masked, and only it") {
    turns const batch{{0}, {5}};
    std::vector<double> const token_loss{1, 10, 2, 20, 3};
    auto const mask = spread<double>(batch, 5, std::vector<double>{1}, {0}, {1, 0, 1, 0, 1}).mask;
    double sum = 0, count = 0;
    for (std::size_t n = 0; n < 5; ++n) {
      sum += token_loss[n] * mask[n];
      count += mask[n];
    }
    CHECK(sum / count == 2);
    CHECK(spread<double>(batch, 5, std::vector<double>{1}, {0}, {0, 1, 0, 1, 0}).mask == mask_bytes{0, 1, 0, 1, 0});
  }

  TEST_CASE("MP-03: a masked turn keeps its length") {
    turns const batch{{0, 4}, {4, 10}};
    auto const out = spread<float>(batch, 10, std::vector<float>{1, 1}, {0, reason::invalid});
    CHECK(out.mask == mask_bytes{1, 1, 1, 1, 0, 0, 0, 0, 0, 0});
    ids lengths;
    for (std::size_t s = 0; s < 2; ++s) lengths.push_back(batch.view().turn_end[s] - batch.view().turn_begin[s]);
    CHECK(lengths == ids{4, 6});
  }

  TEST_CASE("MP-04: a mask of another length is an error with both sizes, never cut or stretched") {
    turns const batch{{0}, {4}};
    for (std::size_t const size : {std::size_t{5}, std::size_t{3}, std::size_t{1}}) {
      std::vector<float> tokens(4, 9);
      mask_bytes const mask(size, 1);
      std::vector<float> const advantage{1};
      std::string const text = "mask has " + std::to_string(size) + " elements, expected 4 (one a token)";
      CHECK_THROWS_WITH_AS(per_token(batch.view(), mask, std::span{advantage}, flags{0}, std::span{tokens}),
                           Contains(text.c_str()), precondition_error);
      CHECK(tokens == std::vector<float>(4, 9));
    }
  }

  TEST_CASE("MP-05: only generated tokens: an assistant message of the prompt is none") {
    // Messages of 3, 2, 1, 3 tokens; user, assistant, user, assistant; the last is generated.
    turns const batch{{6}, {9}};
    CHECK(spread<float>(batch, 9, std::vector<float>{1}, {0}).mask == mask_bytes{0, 0, 0, 0, 0, 0, 1, 1, 1});
  }

  TEST_CASE("GB-08: the advantage of a row reaches its unmasked tokens alone") {
    turns const batch{{0, 3}, {3, 6}};
    CHECK(spread<double>(batch, 6, std::vector<double>{-1, 1}, {0, 0}, {1, 1, 0, 1, 1, 1}).advantage ==
          std::vector<double>{-1, -1, 0, 1, 1, 1});
  }

  TEST_CASE("GB-09: an empty response writes nowhere, not on the last padded column") {
    // Scores on the last token of rows of 4; the second row is empty.
    turns const batch{{2, 4, 9}, {3, 4, 10}};
    CHECK(spread<double>(batch, 12, std::vector<double>{1.5, -2, 0.5}, {0, 0, 0}).advantage ==
          std::vector<double>{0, 0, 1.5, 0, 0, 0, 0, 0, 0, 0.5, 0, 0});
    // The whole row: an empty first row must not wrap to the end, nor an empty last row to the row before it.
    turns const ends{{0, 3, 6}, {0, 6, 6}};
    CHECK(spread<double>(ends, 9, std::vector<double>{7, 1, 7}, {0, 0, 0}).advantage ==
          std::vector<double>{0, 0, 0, 1, 1, 1, 0, 0, 0});
  }

  TEST_CASE("many turns, any order of them, any number of threads: each token by definition") {
    std::vector<std::size_t> lengths;
    for (std::size_t i = 0; i < 20'000; ++i) lengths.push_back(i * 2654435761u % 37);
    ids begin, end;
    std::int64_t token = 2;
    for (std::size_t const length : lengths) {
      begin.push_back(token);
      end.push_back(token + static_cast<std::int64_t>(length));
      token = end.back() + static_cast<std::int64_t>(length % 3);
    }
    auto const tokens = static_cast<std::size_t>(token + 5);
    mask_bytes mask(tokens);
    for (std::size_t n = 0; n < tokens; ++n) mask[n] = n * 40503 % 7 != 0;
    for (bool const reversed : {false, true}) {
      if (reversed) {
        std::ranges::reverse(begin);
        std::ranges::reverse(end);
      }
      turns const batch{begin, end};
      std::vector<double> advantage;
      flags reasons;
      for (std::size_t s = 0; s < begin.size(); ++s) {
        advantage.push_back(static_cast<double>(s) - 9000.5);
        reasons.push_back(s % 5 == 0 ? reason::token_veto : 0);
      }
      std::vector<float> by_hand(tokens, 0);
      mask_bytes mask_by_hand(tokens, 0);
      for (std::size_t s = 0; s < begin.size(); ++s)
        for (auto n = static_cast<std::size_t>(begin[s]); n < static_cast<std::size_t>(end[s]); ++n)
          if (reasons[s] == 0 && mask[n] != 0) {
            by_hand[n] = static_cast<float>(advantage[s]);
            mask_by_hand[n] = 1;
          }
      for (int const threads : {0, 1, 2, 5}) {
        auto const out = spread<float>(batch, tokens, advantage, reasons, mask, threads);
        CHECK(out.advantage == by_hand);
        CHECK(out.mask == mask_by_hand);
      }
    }
  }

  TEST_CASE("every error names the argument and leaves both outputs alone") {
    ids begin{0, 2}, end{2, 4};
    std::vector<double> advantage{1, 2}, tokens(5, 9);
    flags reasons{0, 0};
    mask_bytes mask, token_mask(5, 9);
    auto const refused = [&](char const* text) {
      turns const batch{begin, end};
      auto const tokens_before = tokens;
      auto const mask_before = token_mask;
      CHECK_THROWS_WITH_AS(per_token(batch.view(), mask, std::span<double const>{advantage}, reasons, std::span{tokens},
                                     std::span{token_mask}),
                           Contains(text), precondition_error);
      CHECK(tokens == tokens_before);
      CHECK(token_mask == mask_before);
    };
    SUBCASE("advantage") {
      advantage.push_back(3);
      refused("per_token: turn_advantage has 3 elements, expected 2");
    }
    SUBCASE("reasons") {
      reasons.pop_back();
      refused("per_token: reasons has 1 elements, expected 2");
    }
    SUBCASE("mask") {
      mask.assign(4, 1);
      refused("per_token: mask has 4 elements, expected 5");
    }
    SUBCASE("outputs of two sizes") {
      token_mask.pop_back();
      refused("per_token: token_mask has 4 elements, expected 5");
      token_mask.assign(6, 9);
      refused("per_token: token_advantage has 5 elements, expected 6");
    }
    SUBCASE("a turn outside the tokens") {
      end[1] = 6;
      refused("per_token: turn 1 has tokens [2, 6)");
      begin[0] = -1;
      refused("per_token: turn 0 has tokens [-1, 2)");
    }
    SUBCASE("a turn that ends before it begins") {
      end[1] = 1;
      refused("per_token: turn 1 has tokens [2, 1)");
    }
    SUBCASE("turns that overlap") {
      end[0] = 3;
      refused("per_token: the tokens of turn 1 overlap those of turn 0");
    }
    SUBCASE("turns that overlap, not in token order") {
      begin = {2, 0};
      end = {4, 3};
      refused("per_token: the tokens of turn 1 overlap those of turn 0");
    }
    SUBCASE("one turn inside another, one turn twice") {
      begin = {0, 1};
      end = {5, 2};
      refused("per_token: the tokens of turn 1 overlap those of turn 0");
      begin = {1, 1};
      end = {2, 2};
      refused("per_token: the tokens of turn 1 overlap those of turn 0");
    }
    SUBCASE("ranges of another number of turns") {
      turns batch{begin, end};
      batch.end.pop_back();
      CHECK_THROWS_WITH_AS(
          per_token(batch.view(), mask, std::span<double const>{advantage}, reasons, std::span{tokens}),
          Contains("per_token: turn_end has 1 elements, expected 2"), precondition_error);
      CHECK(tokens == std::vector<double>(5, 9));
    }
  }

}  // TEST_SUITE

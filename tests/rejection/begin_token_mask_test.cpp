#include "support/batches.hpp"

#include <turnwise/rejection/begin_token_mask.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace turnwise;
using bytes = std::vector<std::uint8_t>;
using flags = std::vector<reason_flags>;
using test::sample_batch;
using test::sample_trajectory;

std::vector<sample_trajectory> const three_turns{
    {.turns = {{.log_ratio = {0, 0, 0}, .mask = {1, 0, 1}}, {.log_ratio = {}}, {.log_ratio = {0, 0}}}}};

bytes begun(rollout_view const& batch, std::span<std::uint8_t const> mask, flags const& reasons, std::size_t tokens) {
  bytes keep(tokens, 7);
  rejection::begin_token_mask(batch, mask, reasons, keep);
  return keep;
}

}  // namespace

TEST_SUITE("rejection/begin_token_mask") {
  TEST_CASE("generated tokens of kept turns; packed and padded") {
    sample_batch<> const packed{three_turns};
    CHECK(begun(packed.view(), packed.mask, {}, 5) == bytes{1, 0, 1, 1, 1});
    CHECK(begun(packed.view(), {}, {}, 5) == bytes{1, 1, 1, 1, 1});
    CHECK(begun(packed.view(), packed.mask, {0, 0, reason::stale}, 5) == bytes{1, 0, 1, 0, 0});
    CHECK(begun(packed.view(), packed.mask, {reason::invalid, reason::no_token, 0}, 5) == bytes{0, 0, 0, 1, 1});
    sample_batch<> const padded{three_turns, test::layout::padded};  // rows of 6, the padding's mask is on
    CHECK(begun(padded.view(), padded.mask, {}, 18) == bytes{1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0});
  }

  TEST_CASE("any byte but 0 is on; where turns overlap one kept turn is enough") {
    std::vector<std::int64_t> const begin{0, 1}, end{2, 3}, offsets{0, 2}, id{0};
    rollout_view const batch{begin, end, offsets, id, id};
    CHECK(begun(batch, bytes{255, 2, 1, 1}, {}, 4) == bytes{1, 1, 1, 0});
    CHECK(begun(batch, {}, {0, reason::stale}, 4) == bytes{1, 1, 0, 0});
    CHECK(begun(batch, {}, {reason::stale, 0}, 4) == bytes{0, 1, 1, 0});
  }

  TEST_CASE("everything rejected, no turns, no tokens") {
    sample_batch<> const batch{three_turns};
    CHECK(begun(batch.view(), {}, flags(3, reason::unscored), 5) == bytes(5, 0));
    CHECK(begun({}, {}, {}, 3) == bytes(3, 0));
    CHECK(begun({}, {}, {}, 0).empty());
  }

  TEST_CASE("wrong sizes throw and nothing is written") {
    sample_batch<> const batch{three_turns};
    bytes keep(5, 7);
    flags const reasons(2);
    CHECK_THROWS_AS(rejection::begin_token_mask(batch.view(), {}, reasons, keep), precondition_error);
    CHECK_THROWS_AS(rejection::begin_token_mask(batch.view(), std::span{batch.mask}.first(4), {}, keep),
                    precondition_error);
    CHECK_THROWS_AS(rejection::begin_token_mask(batch.view(), {}, {}, std::span{keep}.first(4)), precondition_error);
    CHECK_THROWS_AS(rejection::begin_token_mask(batch.view(), keep, {}, keep), precondition_error);
    bytes memory(10, 7);
    for (std::size_t const shift : {1u, 4u}) {
      std::span const all{memory};
      CHECK_THROWS_AS(rejection::begin_token_mask(batch.view(), all.first(5), {}, all.subspan(shift, 5)),
                      precondition_error);
      CHECK_THROWS_AS(rejection::begin_token_mask(batch.view(), all.subspan(shift, 5), {}, all.first(5)),
                      precondition_error);
    }
    CHECK(memory == bytes(10, 7));
    CHECK_NOTHROW(rejection::begin_token_mask(batch.view(), std::span{memory}.first(5), {}, std::span{memory}.last(5)));
    auto view = batch.view();
    view.group_id = {};
    CHECK_THROWS_AS(rejection::begin_token_mask(view, {}, {}, keep), precondition_error);
    CHECK(keep == bytes(5, 7));
  }

}  // TEST_SUITE

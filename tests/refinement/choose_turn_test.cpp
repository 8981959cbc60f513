#include "support/ragged.hpp"

#include <turnwise/refinement/choose_turn.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace {

using namespace turnwise;
using refinement::choose_turn_options;
using refinement::tie_policy;
using refinement::turn_choice;
using test::infinity;
using test::nan_value;
using test::ragged_batch;
using ids = std::vector<std::int64_t>;
using flags = std::vector<reason_flags>;

template <typename T>
ids chosen(ragged_batch<T> const& batch, choose_turn_options const& options, flags const& reasons = {}) {
  ids result(batch.view().trajectories(), -7);
  refinement::choose_turn<T>(batch.view(), batch.value, reasons, options, result);
  return result;
}

constexpr choose_turn_options best{};
constexpr choose_turn_options latest_best{.ties = tie_policy::latest};
constexpr choose_turn_options last{.choice = turn_choice::last};
choose_turn_options at(std::int64_t index) { return {.choice = turn_choice::at_index, .turn_index = index}; }

}  // namespace

TEST_SUITE("refinement/choose_turn") {
  TEST_CASE_TEMPLATE("best, last and by index, by hand", T, float, double) {
    // Turns 0..3 | 4 | none | 5..6
    ragged_batch<T> const batch{{{.id = 1, .turns = {1, 3, 3, 2}},
                                 {.id = 2, .turns = {-5}},
                                 {.id = 3, .turns = {}},
                                 {.id = 4, .turns = {0, -1}}}};
    CHECK(chosen(batch, best) == ids{1, 4, -1, 5});
    CHECK(chosen(batch, latest_best) == ids{2, 4, -1, 5});
    CHECK(chosen(batch, last) == ids{3, 4, -1, 6});
    CHECK(chosen(batch, at(0)) == ids{0, 4, -1, 5});
    CHECK(chosen(batch, at(1)) == ids{1, -1, -1, 6});
    CHECK(chosen(batch, at(9)) == ids{-1, -1, -1, -1});
  }

  TEST_CASE("zeros of both signs tie") {
    ragged_batch<> const batch{{{.turns = {-1, 0.0, -0.0, 0.0}}}};
    CHECK(chosen(batch, best) == ids{1});
    CHECK(chosen(batch, latest_best) == ids{3});
  }

  TEST_CASE("given indices, not positions") {
    ragged_batch<> const batch{{{.turns = {1, 2, 3}, .index = {0, 4, 9}}}};
    CHECK(chosen(batch, at(4)) == ids{1});
    CHECK(chosen(batch, at(1)) == ids{-1});
  }

  TEST_CASE("unscored and invalid turns are never chosen, rejected ones may be") {
    ragged_batch<> const batch{{{.turns = {1, nan_value, 5, 4, 9}}}};
    flags const reasons{0, 0, reason::unscored_future, reason::ratio_low | reason::not_drawn, reason::invalid};
    CHECK(chosen(batch, best, reasons) == ids{3});
    CHECK(chosen(batch, last, reasons) == ids{3});
    CHECK(chosen(batch, at(1), reasons) == ids{-1});
    CHECK(chosen(batch, at(4), reasons) == ids{-1});
    CHECK(chosen(batch, best, flags(5, reason::unscored)) == ids{-1});
    CHECK(chosen(ragged_batch<>{{{.turns = {nan_value, nan_value}}}}, last) == ids{-1});
  }

  TEST_CASE("without reasons the flags of the batch count; whatever stands in such a turn is not read") {
    ragged_batch<> const batch{{{.turns = {2, infinity, nan_value, 1}, .valid = {1, 0, 0, 1}}}};
    CHECK(chosen(batch, best) == ids{0});
    CHECK(chosen(batch, last) == ids{3});
  }

  TEST_CASE("turn_limit counts turns that were sampled: unscored ones, not those flagged off") {
    ragged_batch<> const batch{{{.turns = {7, 1, nan_value, 2, 8}, .valid = {0, 1, 1, 1, 1}}}};
    auto const within = [&](std::int64_t limit) {
      auto options = last;
      options.turn_limit = limit;
      return chosen(batch, options);
    };
    CHECK(within(1) == ids{1});
    CHECK(within(2) == ids{1});
    CHECK(within(3) == ids{3});
    CHECK(within(4) == ids{4});
    CHECK(within(99) == ids{4});
    CHECK(chosen(batch, {.turn_limit = 3}) == ids{3});
    CHECK(chosen(batch, {.choice = turn_choice::at_index, .turn_limit = 3, .turn_index = 4}) == ids{-1});
  }

  TEST_CASE("the empty batch") {
    CHECK(chosen(ragged_batch<>{{}}, best).empty());
    refinement::choose_turn<double>({}, {}, {}, {}, {});
  }

  TEST_CASE("errors, with nothing written") {
    ragged_batch<> const batch{{{.id = 1, .turns = {1, 2}}, {.id = 2, .turns = {3}}}};
    ids out(2, -7);
    auto const call = [&](std::vector<double> const& score, flags const& reasons, choose_turn_options const& options,
                          std::size_t size) {
      refinement::choose_turn<double>(batch.view(), score, reasons, options, std::span{out}.first(size));
    };
    CHECK_THROWS_AS(call({1, 2}, {}, {}, 2), precondition_error);
    CHECK_THROWS_AS(call({1, 2, 3}, {0, 0}, {}, 2), precondition_error);
    CHECK_THROWS_AS(call({1, 2, 3}, {}, {}, 1), precondition_error);
    CHECK_THROWS_AS(call({1, 2, 3}, {}, {.turn_limit = 0}, 2), precondition_error);
    for (auto const choice : {turn_choice::best, turn_choice::last})
      CHECK_THROWS_AS(call({1, 2, 3}, {}, {.choice = choice, .turn_index = 1}, 2), precondition_error);
    CHECK_THROWS_WITH_AS(call({1, 2, infinity}, {}, {}, 2),
                         "choose_turn: score[2] = inf is infinite or beyond the magnitude limit", precondition_error);
    CHECK_THROWS_AS(call({1, -1e200, 3}, {}, {}, 2), precondition_error);
    auto view = batch.view();
    ids const offsets{0, 2, 1};
    view.trajectory_offsets = offsets;
    CHECK_THROWS_AS(refinement::choose_turn<double>(view, batch.value, {}, {}, out), precondition_error);
    CHECK(out == ids{-7, -7});
    CHECK_NOTHROW(call({1, 2, infinity}, {0, 0, reason::invalid}, {}, 2));
  }
}

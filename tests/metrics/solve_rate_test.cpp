#include "support/ragged.hpp"

#include <turnwise/metrics/solve_rate.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace {

using namespace turnwise;
using metrics::group_solves;
using metrics::solve_rate_options;
using metrics::solve_record;
using refinement::turn_choice;
using test::infinity;
using test::nan_value;
using test::ragged_batch;
using test::turn_values;
using flags = std::vector<reason_flags>;

template <typename T = double>
solve_record solves(std::vector<turn_values<T>> const& trajectories, solve_rate_options const& options = {},
                    flags const& reasons = {}, std::vector<group_solves>* out = nullptr) {
  ragged_batch<T> const batch{trajectories};
  return metrics::solve_rate<T>(batch.view(), batch.value, reasons, options,
                                out != nullptr ? std::span{*out} : std::span<group_solves>{});
}

}  // namespace

TEST_SUITE("metrics/solve_rate") {
  TEST_CASE_TEMPLATE("TL-04: once per trajectory, not once per row that repeats its reward", T, float, double) {
    std::vector<turn_values<T>> const rows{{.group = 0, .id = 0, .turns = {1}},
                                           {.group = 0, .id = 1, .turns = {0, 0, 0, 0}},
                                           {.group = 0, .id = 2, .turns = {T{0.5}, T{0.5}, T{0.5}}}};
    for (auto const choice : {turn_choice::best, turn_choice::last, turn_choice::at_index}) {
      std::vector<group_solves> out(1);
      auto const record = solves<T>(rows, {.turn = {.choice = choice}}, {}, &out);
      CHECK(record.mean_score == 0.5);  // by row it would be 0.3125
      CHECK(record.mean_rate == doctest::Approx(1.0 / 3).epsilon(1e-15));
      CHECK(out[0] == group_solves{3, 1, 0.5});
    }
    // More rows of one trajectory change nothing.
    auto longer = rows;
    longer[1].turns.resize(100);
    CHECK(solves<T>(longer) == solves<T>(rows));
  }

  TEST_CASE("prompts solved once, always, never") {
    std::vector<turn_values<>> const four{
        {.group = 1, .id = 1, .turns = {0, 1}}, {.group = 1, .id = 2, .turns = {1, 0}},  // always, by the best turn
        {.group = 2, .id = 1, .turns = {1}},    {.group = 2, .id = 2, .turns = {0}},     // once
        {.group = 3, .id = 1, .turns = {0}},    {.group = 3, .id = 2, .turns = {0, 0}},  // never
        {.group = 4, .id = 1, .turns = {1}}};                                            // always, alone
    std::vector<group_solves> out(4);
    auto record = solves<>(four, {}, {}, &out);
    CHECK(record.groups == 4);
    CHECK(record.unscored == 0);
    CHECK(record.once == 3);
    CHECK(record.always == 2);
    CHECK(record.once_share() == 0.75);
    CHECK(record.always_share() == 0.5);
    CHECK(record.never_share() == 0.25);
    CHECK(record.mean_rate == 0.625);
    CHECK(record.mean_score == 0.625);
    CHECK(out == std::vector<group_solves>{{2, 2, 1}, {2, 1, 0.5}, {2, 0, 0}, {1, 1, 1}});
    record = solves<>(four, {.turn = {.choice = turn_choice::last}}, {}, &out);
    CHECK(record.always == 1);
    CHECK(out[0] == group_solves{2, 1, 0.5});
    CHECK(solves<>(four, {.turn = {.turn_limit = 1}}).always == 1);
  }

  TEST_CASE("solved_at is inclusive") {
    std::vector<turn_values<>> const three{
        {.id = 1, .turns = {0.3}}, {.id = 2, .turns = {0.5}}, {.id = 3, .turns = {2}}};
    std::vector<group_solves> out(1);
    solves<>(three, {.solved_at = 0.5}, {}, &out);
    CHECK(out[0].solved == 2);
    solves<>(three, {}, {}, &out);
    CHECK(out[0].solved == 1);
    solves<>(three, {.solved_at = -1}, {}, &out);
    CHECK(out[0].solved == 3);
  }

  TEST_CASE("what does not count: unscored and invalid turns, trajectories left without one, prompts likewise") {
    std::vector<turn_values<>> const given{{.group = 1, .id = 1, .turns = {1, nan_value}},
                                           {.group = 1, .id = 2, .turns = {nan_value}},
                                           {.group = 1, .id = 3, .turns = {}},
                                           {.group = 2, .id = 1, .turns = {infinity}, .valid = {0}},
                                           {.group = 3, .id = 1, .turns = {0}}};
    std::vector<group_solves> out(3);
    auto const record = solves<>(given, {}, {}, &out);
    CHECK(out == std::vector<group_solves>{{1, 1, 1}, {0, 0, 0}, {1, 0, 0}});
    CHECK(record.groups == 2);
    CHECK(record.unscored == 1);
    CHECK(record.mean_rate == 0.5);
    CHECK(record.always == 1);
    CHECK(out[1].rate() == 0);
    flags const reasons{reason::unscored_future, reason::unscored, reason::unscored, reason::invalid,
                        reason::ratio_low};
    CHECK(solves<>(given, {}, reasons).groups == 1);  // rejected turns count
  }

  TEST_CASE("the same bits for any order of trajectories") {
    test::integers random{3};
    std::vector<std::int64_t> const sizes{1, 5, 40, 200, 3};
    auto trajectories = test::random_values<double>(random, sizes, 5);
    auto const expected = solves<>(trajectories, {.solved_at = 0.01});
    for (int round = 0; round < 10; ++round)
      CHECK(solves<>(test::in_order(trajectories, test::random_order(trajectories.size(), random)),
                     {.solved_at = 0.01}) == expected);
  }

  TEST_CASE("nothing at all; everything invalid") {
    CHECK(metrics::solve_rate<double>({}, {}, {}, {}) == solve_record{});
    auto const record = solves<>({{.turns = {1}, .valid = {0}}});
    CHECK(record.groups == 0);
    CHECK(record.unscored == 1);
    CHECK(record.once_share() == 0);
    CHECK(record.never_share() == 0);
  }

  TEST_CASE("errors, with nothing written") {
    std::vector<turn_values<>> const two{{.group = 1, .turns = {1}}, {.group = 2, .turns = {infinity}}};
    std::vector<group_solves> out(2, {-7, -7, -7});
    CHECK_THROWS_AS(solves<>(two, {}, {}, &out), precondition_error);
    CHECK_THROWS_AS(solves<>(two, {.turn = {.turn_limit = 0}}, {0, reason::invalid}, &out), precondition_error);
    CHECK_THROWS_AS(solves<>(two, {.solved_at = nan_value}, {0, reason::invalid}, &out), precondition_error);
    CHECK_THROWS_AS(solves<>(two, {}, {0}, &out), precondition_error);
    CHECK(out == std::vector<group_solves>(2, {-7, -7, -7}));
    std::vector<group_solves> one(1);
    CHECK_THROWS_AS(solves<>(two, {}, {0, reason::invalid}, &one), precondition_error);
    CHECK_THROWS_AS(solves<>({{.id = 1, .turns = {1}}, {.id = 1, .turns = {1}}}), precondition_error);
  }
}

#include "support/batches.hpp"

#include <turnwise/metrics/length_statistics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

using namespace turnwise;
using metrics::length_record;
using metrics::length_statistics_options;
using metrics::length_summary;
using metrics::quantile_rank;
using bytes = std::vector<std::uint8_t>;
using ids = std::vector<std::int64_t>;

/// Trajectories given by the lengths of their turns, packed or padded to `width`.
struct lengths {
  ids begin, end, offsets{0}, group, id;
  bytes valid;

  explicit lengths(std::vector<ids> const& trajectories, std::int64_t width = 0) {
    std::int64_t next = 0;
    for (auto const& turns : trajectories) {
      for (auto const length : turns) {
        begin.push_back(next);
        end.push_back(next + length);
        next += width > 0 ? width : length;
      }
      offsets.push_back(static_cast<std::int64_t>(begin.size()));
      group.push_back(0);
      id.push_back(static_cast<std::int64_t>(id.size()));
    }
  }
  [[nodiscard]] rollout_view view() const {
    return {.turn_begin = begin,
            .turn_end = end,
            .trajectory_offsets = offsets,
            .group_id = group,
            .trajectory_id = id,
            .turn_valid = valid};
  }
};

length_record measured(lengths const& batch, bytes const& turn_cut = {}, bytes const& trajectory_cut = {},
                       length_statistics_options const& options = {}) {
  return metrics::length_statistics(batch.view(), turn_cut, trajectory_cut, options);
}

}  // namespace

TEST_SUITE("metrics/length_statistics") {
  TEST_CASE("three trajectories by hand, packed and padded alike") {
    std::vector<ids> const turns{{3, 5}, {10}, {1, 0, 7, 2}};
    for (std::int64_t const width : {0, 16}) {
      auto const r = measured(lengths{turns, width});
      // Sorted: 0 1 2 3 5 7 10; ranks of 1/4, 1/2, 3/4, 0.9, 0.99 among 7: 2, 4, 6, 7, 7.
      CHECK(r.turn_tokens == length_summary{7, 28, 0, 10, 4, {1, 3, 7, 10, 10}});
      // Turns: 1 2 4; tokens: 8 10 10.
      CHECK(r.trajectory_turns == length_summary{3, 7, 1, 4, 7.0 / 3, {1, 2, 4, 4, 4}});
      CHECK(r.trajectory_tokens == length_summary{3, 28, 8, 10, 28.0 / 3, {8, 10, 10, 10, 10}});
      CHECK(r.empty_trajectories == 0);
      CHECK(r.turn_truncation_rate() == 0);
    }
  }

  TEST_CASE("MP-03: lengths are the raw ones, also of what the loss masks because it was cut") {
    // Lengths 4 and 6; the second was truncated, and its loss row is 0.
    lengths const batch{{{4}, {6}}};
    auto const r = measured(batch, {0, 1});
    CHECK(r.turn_tokens.min == 4);
    CHECK(r.turn_tokens.max == 6);
    CHECK(r.turn_tokens.mean == 5);
    CHECK(r.trajectory_tokens.min == 4);
    CHECK(r.trajectory_tokens.max == 6);
    CHECK(r.turn_truncation_rate() == 0.5);
    CHECK(r.trajectory_truncation_rate() == 0.5);
  }

  TEST_CASE("LA-12: cut means at the configured cap, not as long as the longest row") {
    std::int64_t const cap = 8, width = 7;
    lengths const batch{{{5}, {7}, {3}}, width};
    bytes at_cap;
    for (std::size_t s = 0; s < batch.begin.size(); ++s) at_cap.push_back(batch.end[s] - batch.begin[s] >= cap);
    for (bytes const& cut : {at_cap, bytes{}}) {  // the row of the whole width is not taken for cut
      auto const r = measured(batch, cut);
      CHECK(r.turn_truncation_rate() == 0);
      CHECK(r.trajectory_truncation_rate() == 0);
    }
    // Who asks for the width instead gets 1/3: the flags decide.
    CHECK(measured(batch, {0, 1, 0}).turn_truncation_rate() == 1.0 / 3);
  }

  TEST_CASE("truncation by turn, by trajectory, by both") {
    lengths const batch{{{3, 5}, {10}, {1, 0, 7, 2}}};
    auto r = measured(batch, {0, 1, 0, 1, 0, 0, 1});
    CHECK(r.truncated_turns == 3);
    CHECK(r.turn_truncation_rate() == 3.0 / 7);
    CHECK(r.truncated_trajectories == 2);
    CHECK(r.trajectory_truncation_rate() == 2.0 / 3);
    r = measured(batch, {}, {1, 0, 0});
    CHECK(r.truncated_turns == 0);
    CHECK(r.truncated_trajectories == 1);
    r = measured(batch, {0, 1, 0, 1, 0, 0, 1}, {0, 1, 0});  // the trajectory's own flag decides
    CHECK(r.truncated_turns == 3);
    CHECK(r.truncated_trajectories == 1);
  }

  TEST_CASE("turns flagged off count nowhere, and a trajectory of nothing else is told apart") {
    lengths batch{{{3, 5}, {10}, {}, {1, 2}}};
    batch.valid = {1, 0, 0, 1, 1};
    auto const r = measured(batch, {0, 1, 1, 0, 1}, {});
    CHECK(r.turn_tokens == length_summary{3, 6, 1, 3, 2, {1, 2, 3, 3, 3}});
    CHECK(r.trajectory_turns == length_summary{2, 3, 1, 2, 1.5, {1, 1, 2, 2, 2}});
    CHECK(r.trajectory_tokens.quantiles == std::array<std::int64_t, 5>{3, 3, 3, 3, 3});
    CHECK(r.empty_trajectories == 2);
    CHECK(r.truncated_turns == 1);
    CHECK(r.truncated_trajectories == 1);
    CHECK(measured(batch, {}, {0, 1, 1, 0}).truncated_trajectories == 0);
  }

  TEST_CASE("quantiles: nearest rank, decided by the quotient") {
    for (std::int64_t n = 1; n <= 1000; ++n) {
      CHECK(quantile_rank(0, n) == 1);
      CHECK(quantile_rank(1, n) == n);
      for (std::int64_t r = 1; r <= n; ++r)
        REQUIRE(quantile_rank(static_cast<double>(r) / static_cast<double>(n), n) == r);
    }
    CHECK(quantile_rank(0.07, 100) == 7);  // 0.07 * 100 lies above 7
    CHECK(quantile_rank(0.5, 4) == 2);
    CHECK(quantile_rank(0.5, 5) == 3);
    CHECK(quantile_rank(0.75, 2) == 2);
    auto const r = measured(lengths{{{5, 1, 9}}}, {}, {}, {.quantiles = {0, 0.34, 1.0 / 3, 0.99, 1}});
    CHECK(r.turn_tokens.quantiles == std::array<std::int64_t, 5>{1, 5, 1, 9, 9});
  }

  TEST_CASE("long turns: sums in 64 bits; any order of trajectories") {
    std::int64_t const huge = std::int64_t{1} << 40;
    auto const r = measured(lengths{{{huge, huge}, {1}}});
    CHECK(r.turn_tokens.total == 2 * huge + 1);
    CHECK(r.trajectory_tokens.max == 2 * huge);
    CHECK(measured(lengths{{{1}, {huge, huge}}}) == r);
  }

  TEST_CASE("lengths at the end of 64 bits: counted, or refused together") {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    CHECK(quantile_rank(1, most) == most - 511);  // the first whose quotient, in doubles, is 1
    CHECK(quantile_rank(0, most) == 1);
    auto batch = lengths{{{0, 0}, {0}}};
    batch.end = {most - 1, 0, 1};
    CHECK(measured(batch).turn_tokens.total == most);
    batch.end[2] = 2;
    CHECK_THROWS_WITH_AS(measured(batch), doctest::Contains("length_statistics: turn 2 has 2 tokens"),
                         precondition_error);
    batch.valid = {1, 1, 0};
    CHECK(measured(batch).trajectory_tokens.max == most - 1);
  }

  TEST_CASE("nothing at all, and no turns") {
    CHECK(metrics::length_statistics({}, {}, {}, {}) == length_record{});
    auto const r = measured(lengths{{{}, {}}});
    CHECK(r.empty_trajectories == 2);
    CHECK(r.turn_tokens == length_summary{});
    CHECK(r.trajectory_turns == length_summary{});
    CHECK(r.trajectory_truncation_rate() == 0);
  }

  TEST_CASE("errors") {
    lengths const batch{{{3, 5}, {10}}};
    CHECK_THROWS_AS(measured(batch, {0, 1}), precondition_error);
    CHECK_THROWS_AS(measured(batch, {}, {0, 1, 0}), precondition_error);
    CHECK_THROWS_AS(measured(batch, {}, {}, {.quantiles = {0, 1, 0.5, 0.5, 1.5}}), precondition_error);
    CHECK_THROWS_AS(measured(batch, {}, {}, {.quantiles = {0, 1, test::nan_value, 0.5, 1}}), precondition_error);
    auto view = batch.view();
    view.turn_end = {};
    CHECK_THROWS_AS((void)metrics::length_statistics(view, {}, {}, {}), precondition_error);
    auto broken = batch;
    broken.end[1] = broken.begin[1] - 1;
    CHECK_THROWS_WITH_AS(measured(broken), "length_statistics: turn 1 has tokens [3, 2), expected a range",
                         precondition_error);
  }
}

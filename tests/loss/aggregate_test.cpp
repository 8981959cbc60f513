#include <turnwise/loss/aggregate.hpp>

#include "loss/loss_batch.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace turnwise;
using namespace turnwise::test;
using doctest::Approx;
using loss::aggregate_options;
using loss::loss_counts;
using loss::loss_denominator;
using loss::loss_mean;
using loss::loss_scope;
using loss::loss_unit;

namespace {

/// Rows of token losses, each a turn; `kept` says which are in the loss.
struct rows {
  loss_batch<double> batch;
  std::vector<reason_flags> reasons;
  std::vector<std::int64_t> tokens;

  explicit rows(std::vector<std::vector<double>> const& losses)
      : batch(losses, std::vector<double>(losses.size())), reasons(losses.size()) {
    for (auto const& row : losses) batch.token_advantage.insert(batch.token_advantage.end(), row.begin(), row.end());
    batch.current = batch.old;
  }
  /// All turns in one trajectory a group of `each`.
  void join(std::size_t each) {
    batch.trajectory_offsets = {0};
    batch.group.clear();
    batch.trajectory.clear();
    for (std::size_t s = each; s <= reasons.size(); s += each) {
      batch.trajectory_offsets.push_back(static_cast<std::int64_t>(s));
      batch.group.push_back(0);
      batch.trajectory.push_back(static_cast<std::int64_t>(s));
    }
  }
  [[nodiscard]] loss_counts counts(loss_unit unit) {
    tokens.resize(reasons.size());
    loss::count_tokens(batch.view(), batch.mask, tokens);
    return loss::count_for_loss(batch.view(), tokens, reasons, unit);
  }
  [[nodiscard]] double loss(aggregate_options const& options) { return loss(options, counts(options.unit)); }
  [[nodiscard]] double loss(aggregate_options const& options, loss_counts const& total) {
    static_cast<void>(counts(options.unit));
    loss::aggregate(batch.view(), tokens, reasons, options, total, batch.scale);
    return batch.run(advantage_is_loss{}).record.loss();
  }
};

constexpr aggregate_options token_mean{};
constexpr aggregate_options sequence_mean{.mean = loss_mean::sequence_mean_token_mean};

}  // namespace

TEST_SUITE("loss/aggregate") {
  TEST_CASE("LA-01, LA-02: pieces divide by the tokens of the whole, and nothing else") {
    rows first({{1, 1, 1, 1, 1, 1}}), second({{4, 4}});
    loss_counts total = first.counts(loss_unit::turn);
    total += second.counts(loss_unit::turn);
    CHECK(first.loss(token_mean, total) + second.loss(token_mean, total) == Approx(1.75));

    std::vector<double> const sums{2, 4, 6, 12};
    loss_counts const window{.kept_tokens = 12,
                             .valid_tokens = 12,
                             .kept_units = 4,
                             .valid_units = 4,
                             .kept_prompts = 4,
                             .valid_prompts = 4};
    double loss = 0;
    for (double const sum : sums) loss += rows({{sum / 3, sum / 3, sum / 3}}).loss(token_mean, window);
    CHECK(loss == Approx(2));
  }

  TEST_CASE("LA-04, LA-07, LA-08, MP-02: rows that are masked, truncated, filler or tool output count nowhere") {
    rows ghosts({{1, 1, 1}, {9, 9}, {9}, {0.2, 0.2, 0.2, 0.2, 0.2}});
    ghosts.batch.mask = {1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1};
    CHECK(ghosts.loss(token_mean) == Approx(0.5));
    ghosts.batch.mask.assign(11, 0);
    CHECK(ghosts.loss(token_mean) == 0);
    CHECK(ghosts.batch.run(advantage_is_loss{}).record.nothing_kept());

    rows truncated({{0.5, 0.5, 0.5, 0.5}, {1, 1, 1, 1, 1, 2}});
    truncated.reasons[1] = reason::not_drawn;
    CHECK(truncated.loss(token_mean) == Approx(0.5));

    rows filler({{0.5, 0.5, 0.5, 0.5, 0.5, 0.5}, {0, 0, 0, 0}});
    filler.reasons[1] = reason::invalid;
    for (auto const denominator : {loss_denominator::kept, loss_denominator::valid})
      CHECK(filler.loss({.denominator = denominator}) == Approx(0.5));

    rows tools({{1, 10, 2, 20, 3}});
    tools.batch.mask = {1, 0, 1, 0, 1};
    CHECK(tools.loss(token_mean) == Approx(2));
    CHECK(tools.loss(sequence_mean) == Approx(2));
  }

  TEST_CASE("LA-05, LA-09: means over sequences that have a token, with one count for all pieces") {
    rows rejected({{1, 3}, {5, 5}, {4, 0}});
    rejected.batch.mask = {1, 1, 0, 0, 1, 0};
    CHECK(rejected.loss(sequence_mean) == Approx(3));

    rows whole({{1}, {2}, {3}}), first({{1}, {2}}), second(std::vector<std::vector<double>>{{3}});
    loss_counts const total = whole.counts(loss_unit::turn);
    CHECK(whole.loss(sequence_mean) == Approx(2));
    CHECK(first.loss(sequence_mean, total) + second.loss(sequence_mean, total) == Approx(2));
  }

  TEST_CASE("LA-13: a token mean over the batch, or over each prompt first") {
    rows prompts({{1, 1}, {2, 2, 2, 2, 2, 2, 2, 2}});
    prompts.batch.group = {0, 1};
    CHECK(prompts.loss(token_mean) == Approx(1.8));
    CHECK(prompts.loss({.scope = loss_scope::prompt}) == Approx(1.5));
    prompts.reasons[0] = reason::ratio_low;  // a prompt with nothing kept is no prompt, unless the denominator is valid
    CHECK(prompts.loss({.scope = loss_scope::prompt}) == Approx(2));
    CHECK(prompts.loss({.scope = loss_scope::prompt, .denominator = loss_denominator::valid}) == Approx(1));
    // nominal counts the tokens of each prompt; prompts are all that have a valid token: 16 / 8 / 2
    CHECK(prompts.loss({.scope = loss_scope::prompt, .denominator = loss_denominator::nominal, .nominal = 8}) ==
          Approx(1));
  }

  TEST_CASE("GB-08: a masked token decides nothing") {
    rows one({{0, 0, 5}, {0, 2, 0}});
    one.batch.mask = {1, 1, 0, 1, 1, 1};
    CHECK(one.loss({.mean = loss_mean::token_sum}) == Approx(2));
    CHECK(one.loss(token_mean) == Approx(2.0 / 5));
  }

  TEST_CASE("every mode by hand, unit turn and unit trajectory") {
    rows two({{1, 2}, {3}, {4, 5, 6}, {7}});
    two.join(2);
    CHECK(two.loss({.mean = loss_mean::token_sum}) == Approx(28));
    CHECK(two.loss(token_mean) == Approx(4));
    CHECK(two.loss({.mean = loss_mean::sequence_mean_token_sum}) == Approx(7));
    CHECK(two.loss({.mean = loss_mean::sequence_mean_token_sum, .unit = loss_unit::trajectory}) == Approx(14));
    CHECK(two.loss(sequence_mean) == Approx((1.5 + 3 + 5 + 7) / 4));
    CHECK(two.loss({.mean = loss_mean::sequence_mean_token_mean, .unit = loss_unit::trajectory}) ==
          Approx((2 + 5.5) / 2));
    CHECK(two.loss({.mean = loss_mean::sequence_mean_token_norm, .norm = 10}) == Approx(0.7));
  }

  TEST_CASE("kept, valid and nominal denominators when a turn is rejected") {
    rows two({{1, 2}, {3}, {4, 5, 6}, {7}, {100}});
    two.reasons = {0, reason::ratio_high, 0, 0, reason::unscored};
    auto const of = [&](loss_mean mean, loss_denominator denominator, double nominal = 0,
                        loss_unit unit = loss_unit::turn) {
      return two.loss({.mean = mean, .unit = unit, .denominator = denominator, .nominal = nominal});
    };
    CHECK(of(loss_mean::token_mean, loss_denominator::kept) == Approx(25.0 / 6));
    CHECK(of(loss_mean::token_mean, loss_denominator::valid) == Approx(25.0 / 7));
    CHECK(of(loss_mean::token_mean, loss_denominator::nominal, 20) == Approx(1.25));
    CHECK(of(loss_mean::sequence_mean_token_sum, loss_denominator::kept) == Approx(25.0 / 3));
    CHECK(of(loss_mean::sequence_mean_token_sum, loss_denominator::valid) == Approx(25.0 / 4));
    CHECK(of(loss_mean::sequence_mean_token_sum, loss_denominator::nominal, 768) == Approx(25.0 / 768));
    // a trajectory of a kept and a rejected turn: its own mean is over what the denominator counts
    rows joined({{1, 2}, {3}});
    joined.reasons = {0, reason::ratio_high};
    joined.join(2);
    aggregate_options options{.mean = loss_mean::sequence_mean_token_mean, .unit = loss_unit::trajectory};
    CHECK(joined.loss(options) == Approx(1.5));
    options.denominator = loss_denominator::valid;
    CHECK(joined.loss(options) == Approx(1));
    options.denominator = loss_denominator::nominal;  // a count of trajectories; the mean in each is over valid tokens
    options.nominal = 1;
    CHECK(joined.loss(options) == Approx(1));
  }

  TEST_CASE("everything rejected, no tokens, no turns: scale 0") {
    rows none({{1, 2}, {3}});
    none.reasons = {reason::ratio_high, reason::invalid};
    for (auto const mean : {loss_mean::token_mean, loss_mean::token_sum, loss_mean::sequence_mean_token_mean,
                            loss_mean::sequence_mean_token_sum})
      for (auto const scope : {loss_scope::batch, loss_scope::prompt}) {
        CHECK(none.loss({.mean = mean, .scope = scope}) == 0);
        CHECK(none.batch.scale == std::vector<double>{0, 0});
        CHECK(rows({{}, {}}).loss({.mean = mean, .scope = scope}) == 0);
        CHECK(rows(std::vector<std::vector<double>>{}).loss({.mean = mean, .scope = scope}) == 0);
      }
  }

  TEST_CASE("the outermost given counts give factors that are finite and not 0") {
    rows one({{1, 2}});
    for (double const count : {0x1p-63, 0x1p63}) {
      static_cast<void>(one.loss({.mean = loss_mean::sequence_mean_token_norm,
                                  .denominator = loss_denominator::nominal,
                                  .nominal = count,
                                  .norm = count}));
      CHECK(one.batch.scale[0] == 1 / (count * count));
    }
    // A total that counts nothing, which only the device does not check.
    CHECK(loss::detail::scale_of(2, 0, 0, 1) == 0);
    CHECK(loss::detail::scale_of(2, 0, -4, 1) == 0);
  }

  TEST_CASE("counts of parts add up to those of the whole") {
    rows whole({{1, 2}, {3}, {4, 5, 6}, {7}}), first({{1, 2}, {3}}), second({{4, 5, 6}, {7}});
    whole.reasons[2] = first.reasons[0] = second.reasons[0] = reason::token_veto;
    whole.reasons[0] = reason::token_veto;
    whole.batch.group = {5, 5, 9, 9};
    second.batch.group = {9, 9};
    loss_counts sum = first.counts(loss_unit::turn);
    sum += second.counts(loss_unit::turn);
    CHECK(sum == whole.counts(loss_unit::turn));
    CHECK(sum == loss_counts{2, 7, 2, 4, 2, 2});
  }

  TEST_CASE("contradictory options and bad arrays throw, and nothing is written") {
    rows one({{1, 2}, {3}});
    double const nan = std::nan("");
    auto const throws = [&](aggregate_options const& options) {
      one.batch.scale.assign(2, 9);
      CHECK_THROWS_AS(static_cast<void>(one.loss(options)), precondition_error);
      CHECK(one.batch.scale == std::vector<double>{9, 9});
    };
    throws({.nominal = 3});
    throws({.denominator = loss_denominator::nominal});
    throws({.denominator = loss_denominator::nominal, .nominal = nan});
    for (double const bad : {1e-320, 1e308, -1.0, std::numeric_limits<double>::infinity()}) {
      throws({.denominator = loss_denominator::nominal, .nominal = bad});
      throws({.mean = loss_mean::sequence_mean_token_norm, .norm = bad});
    }
    throws({.norm = 3});
    throws({.mean = loss_mean::sequence_mean_token_norm});
    throws({.mean = loss_mean::sequence_mean_token_norm, .norm = -1});
    throws({.mean = loss_mean::token_sum, .denominator = loss_denominator::valid});
    CHECK_THROWS_WITH_AS(static_cast<void>(one.loss(token_mean, {.kept_tokens = 2})),
                         "aggregate: total.kept_tokens = 2, less than the 3 of this batch", precondition_error);
    for (auto const field : {&loss_counts::valid_tokens, &loss_counts::kept_units, &loss_counts::valid_units,
                             &loss_counts::kept_prompts, &loss_counts::valid_prompts}) {
      loss_counts total = one.counts(loss_unit::turn);
      --(total.*field);
      CHECK_THROWS_WITH_AS(static_cast<void>(one.loss(token_mean, total)), doctest::Contains(", less than the "),
                           precondition_error);
    }
    one.reasons.pop_back();
    std::vector<std::int64_t> tokens{2, 1}, negative{2, -1}, fewer{2};
    std::vector<reason_flags> const reasons(2);
    CHECK_THROWS_AS(static_cast<void>(one.counts(loss_unit::turn)), precondition_error);
    CHECK_THROWS_AS(static_cast<void>(loss::count_for_loss(one.batch.view(), negative, reasons, loss_unit::turn)),
                    precondition_error);
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    std::vector<double> scale(2, 9);
    CHECK_THROWS_WITH_AS(loss::aggregate(one.batch.view(), std::vector<std::int64_t>{most, 1}, reasons, {}, scale),
                         doctest::Contains("tokens[1] = 1 makes more than 2^63 - 1"), precondition_error);
    CHECK(scale == std::vector<double>{9, 9});
    CHECK(loss::count_for_loss(one.batch.view(), std::vector<std::int64_t>{most - 1, 1}, reasons, loss_unit::turn)
              .kept_tokens == most);
    CHECK_THROWS_AS(loss::count_tokens(one.batch.view(), one.batch.mask, fewer), precondition_error);
    CHECK_THROWS_AS(loss::count_tokens(one.batch.view(), std::vector<std::uint8_t>(2), tokens), precondition_error);
  }

}  // TEST_SUITE

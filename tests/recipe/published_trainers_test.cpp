/// The recorded batches against what the published trainers' own functions returned on them (tests/data/README.md).
#include "support/batches.hpp"

#include <turnwise/turnwise.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace turnwise;
using test::load_batch;
using test::recorded_batch;

std::vector<std::string> const all_batches{"kernel_rollouts_a", "kernel_rollouts_b", "stress"};

/// Checks every number, and reports the first one that is off.
void check_close(std::vector<double> const& got, std::vector<double> const& want, double tolerance = 1e-6) {
  REQUIRE(got.size() == want.size());
  std::size_t off = 0;
  std::size_t first = got.size();
  for (std::size_t s = 0; s < got.size(); ++s)
    if (!(std::abs(got[s] - want[s]) <= tolerance)) {
      if (off++ == 0) first = s;
    }
  CAPTURE(first);
  if (off > 0) CHECK(got[first] == doctest::Approx(want[first]));
  CHECK(off == 0);
}

std::vector<reason_flags> first_reasons(recorded_batch const& batch) {
  std::vector<reason_flags> reasons(batch.turns.row.size());
  begin_reasons(batch.turns.view(), reasons);
  return reasons;
}

std::vector<importance::turn_statistics> statistics_of(recorded_batch const& batch) {
  std::vector<importance::turn_statistics> statistics(batch.turns.row.size());
  importance::log_ratio_statistics(batch.turns.view(), batch.tokens(), statistics);
  return statistics;
}

}  // namespace

TEST_SUITE("recipe/published_trainers") {
  TEST_CASE("reward, return and turn-level advantage of both presets") {
    for (auto const& name : all_batches)
      for (std::string const preset : {"paper", "released"}) {
        CAPTURE(name);
        CAPTURE(preset);
        auto const batch = load_batch(name);
        std::size_t const turns = batch.turns.row.size();
        std::vector<double> reward(turns), turn_return(turns), advantage(turns);
        recipe::dr_kernel(
            batch.turns.view(), recipe::step_inputs<float, float, float>{batch.tokens(), batch.evaluation(), {}},
            preset == "paper" ? recipe::dr_kernel_options::paper() : recipe::dr_kernel_options::released(),
            {.seed = 1, .step = 2}, {.reward = reward, .turn_return = turn_return, .advantage = advantage});
        check_close(reward, batch.expected<double>("drkernel_" + preset + "_reward"));
        check_close(turn_return, batch.expected<double>("drkernel_" + preset + "_return"));
        check_close(advantage, batch.expected<double>("drkernel_" + preset + "_trloo_advantage"));
      }
  }

  TEST_CASE("keep masks of the ratio rules are identical") {
    struct published_mask {
      std::string name;
      rejection::scope level;
      rejection::ratio_kind kind;
    };
    using rejection::ratio_kind;
    using rejection::scope;
    std::vector<published_mask> const masks{{"turn_geo", scope::turn, ratio_kind::geometric},
                                            {"turn", scope::turn, ratio_kind::product},
                                            {"geometric", scope::trajectory, ratio_kind::geometric},
                                            {"sequence", scope::trajectory, ratio_kind::product}};
    for (auto const& name : all_batches) {
      auto const batch = load_batch(name);
      auto const statistics = statistics_of(batch);
      for (auto const& mask : masks) {
        CAPTURE(name);
        CAPTURE(mask.name);
        auto reasons = first_reasons(batch);
        rejection::usable_tokens(batch.turns.view(), statistics, {}, reasons);
        rejection::ratio_band(batch.turns.view(), statistics, {mask.level, mask.kind, 0.999, 1.001}, reasons);
        rejection::token_veto(batch.turns.view(), statistics, {name == "stress" ? 1e-4 : 0.9, scope::turn}, reasons);
        std::vector<int> keep;
        for (reason_flags const flags : reasons) keep.push_back(is_kept(flags));
        auto const published = batch.expected<std::uint8_t>("mrs_" + mask.name + "_keep");
        CHECK(keep == std::vector<int>(published.begin(), published.end()));

        for (std::size_t s = 0; s < keep.size(); ++s)
          if (batch.turns.view().flagged_off(s)) CHECK(reasons[s] == reason::invalid);
      }
    }
  }

  TEST_CASE("probability to survive the profiling filter: 1 where C = 0, 0 for a profile without meaning") {
    for (auto const& name : all_batches) {
      CAPTURE(name);
      auto const batch = load_batch(name);
      auto const evaluation = batch.evaluation();
      std::vector<double> probability;
      std::size_t meaningless = 0;
      for (std::size_t s = 0; s < batch.turns.row.size(); ++s) {
        double const generated = evaluation.generated_us[s];
        double const total = evaluation.total_us[s];
        bool const judged = evaluation.counts_as_correct(s);
        meaningless += judged && !reward::has_profile(generated, total);
        probability.push_back(judged ? rejection::keep_probability(reward::profiling_ratio(generated, total), 0.3, 0.1)
                                     : 1.0);
      }
      check_close(probability, batch.expected<double>("prs_probability"), 1e-12);
      CHECK(meaningless == (name == "stress" ? 9 : 0));
    }
  }

  TEST_CASE("the profiling filter keeps each turn as often as published") {
    constexpr std::uint32_t steps = 2000;
    for (auto const& name : all_batches) {
      auto const batch = load_batch(name);
      auto const published = batch.expected<double>("prs_probability");
      auto const first = first_reasons(batch);
      std::vector<std::uint32_t> kept(first.size());
      for (std::uint32_t step = 0; step < steps; ++step) {
        auto reasons = first;
        rejection::profiling_filter(batch.turns.view(), batch.evaluation(), {}, {.seed = 3, .step = step}, reasons);
        for (std::size_t s = 0; s < kept.size(); ++s) kept[s] += is_kept(reasons[s]);
      }
      std::size_t wrong = 0;
      for (std::size_t s = 0; s < kept.size(); ++s) {
        double const p = is_valid(first[s]) ? published[s] : 0.0;
        wrong += std::abs(kept[s] / double{steps} - p) > 5 * std::sqrt(p * (1 - p) / steps);
      }
      CAPTURE(name);
      CHECK(wrong == 0);
    }
  }

  TEST_CASE("RLOO, GRPO and Dr. GRPO by prompt, of the reward of each turn") {
    for (std::string const name : {"kernel_rollouts_a", "kernel_rollouts_b"}) {
      CAPTURE(name);
      auto const batch = load_batch(name);
      auto const groups = make_grouping(batch.turns.view(), group_by::group);
      std::vector<double> reward(groups.turns()), advantage(groups.turns());
      reward::kernel_reward(batch.evaluation(), {}, {}, std::span{reward});

      advantage::leave_one_out(groups, reward, {}, {.exclude = advantage::exclude_policy::member},
                               std::span{advantage});
      check_close(advantage, batch.expected<double>("verl_rloo_advantage_by_prompt"));
      advantage::group_relative(groups, reward, {}, {.ddof = 1, .epsilon = 1e-6}, std::span{advantage});
      check_close(advantage, batch.expected<double>("verl_grpo_advantage_by_prompt"));
      advantage::group_relative(groups, reward, {}, {.scale = false}, std::span{advantage});
      check_close(advantage, batch.expected<double>("verl_drgrpo_advantage_by_prompt"));
    }
  }

  // On stress the published numbers run over the tokens of valid turns; over all turns kl would be 0.0447, not 0.0458.
  TEST_CASE("token-level mismatch: kl, k3 and chi-square") {
    for (auto const& name : all_batches) {
      CAPTURE(name);
      auto const batch = load_batch(name);
      std::size_t const turns = batch.turns.row.size();
      std::vector<importance::turn_statistics> statistics(turns);
      std::vector<importance::ratio_moments> moments(turns);
      importance::log_ratio_statistics(batch.turns.view(), batch.tokens(), statistics, moments);
      auto const reasons = first_reasons(batch);
      std::vector<double> const advantage(turns);
      auto const record = metrics::mismatch(batch.turns.view(), make_grouping(batch.turns.view(), group_by::turn),
                                            std::span<importance::turn_statistics const>{statistics},
                                            std::span<importance::ratio_moments const>{moments}, reasons,
                                            std::span<double const>{advantage}, batch.evaluation(), {});
      // The grid of log ratios is 2^-24, so that a mean over tokens is off by at most 2^-25.
      auto const close = [](double got, double want) {
        return std::abs(got - want) <= 0x1p-25 + 1e-6 * std::abs(want);
      };
      CHECK(close(record.kl, batch.metric("kl")));
      CHECK(close(record.k3, batch.metric("k3_kl")));
      CHECK(close(record.chi2_token, batch.metric("chi2_token")));
    }
  }

}  // TEST_SUITE

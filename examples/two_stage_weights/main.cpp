/// @file
/// Off-policy correction in two stages: whole trajectories that drifted too far are dropped, by the geometric mean of
/// their ratio; the tokens of the others get a truncated importance weight. A filter alone leaves the bias of what it
/// keeps, and weights alone have a large variance where the policies differ much.
///
///     example_two_stage_weights FOLDER        old_logprob.npy, rollout_logprob.npy, turn_*.npy

#include "npy.hpp"

#include <turnwise/advantage/per_token.hpp>
#include <turnwise/core/rollout_builder.hpp>
#include <turnwise/importance/importance_weight.hpp>
#include <turnwise/importance/log_ratio_statistics.hpp>
#include <turnwise/importance/weight_normalisation.hpp>
#include <turnwise/rejection/ratio_band.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <span>
#include <stdexcept>
#include <variant>
#include <vector>

namespace {

namespace fs = std::filesystem;
using namespace turnwise;

template <typename T>
std::vector<T> read(fs::path const& file) {
  return std::visit([](auto const& values) { return std::vector<T>(values.begin(), values.end()); },
                    rollout_step::read_npy(file).values);
}

/// The turns of a folder in the library's order; tokens stay where they are.
rollout read_turns(fs::path const& folder) {
  auto const group = read<std::int64_t>(folder / "turn_group.npy");
  auto const trajectory = read<std::int64_t>(folder / "turn_trajectory.npy");
  auto const index = read<std::int64_t>(folder / "turn_index.npy");
  auto const offsets = read<std::int64_t>(folder / "turn_offsets.npy");
  std::span<std::int64_t const> const all{offsets};
  return make_rollout({.group_id = group,
                       .trajectory_id = trajectory,
                       .turn_index = index,
                       .turn_begin = all.first(group.size()),
                       .turn_end = all.last(group.size())},
                      trajectory_scope::batch);
}

void run(fs::path const& folder) {
  rollout const turns = read_turns(folder);
  rollout_view const batch = turns.view();
  auto const old_logprob = read<float>(folder / "old_logprob.npy");
  auto const rollout_logprob = read<float>(folder / "rollout_logprob.npy");
  token_logprobs<float, float> const tokens{old_logprob, rollout_logprob, {}};

  // One pass over the tokens leaves a small record of each turn.
  std::vector<importance::turn_statistics> statistics(batch.turns());
  importance::log_ratio_statistics(batch, tokens, statistics);

  // Stage 1, on turns: a filter.
  std::vector<reason_flags> reasons(batch.turns());
  begin_reasons(batch, reasons);
  rejection::usable_tokens(batch, statistics, {}, reasons);
  rejection::ratio_band(
      batch, statistics,
      {.level = rejection::scope::trajectory, .kind = rejection::ratio_kind::geometric, .low = 0.999, .high = 1.001},
      reasons);

  // What the loss sees: the unmasked tokens of kept turns.
  std::vector<double> const advantage(batch.turns(), 1.0);  // of whatever estimator
  std::vector<float> token_advantage(old_logprob.size());
  std::vector<std::uint8_t> keep(old_logprob.size());
  advantage::per_token(batch, {}, std::span{advantage}, reasons, std::span{token_advantage}, std::span{keep});

  // Stage 2, on the tokens that are left: min(old / rollout, 2), then to a mean of 1 over the batch. Under several ranks,
  // `total` is added up over them first.
  std::vector<float> weight(old_logprob.size());
  auto const counts = importance::importance_weight(token_logprobs<float, float>{old_logprob, rollout_logprob, keep},
                                                    {.bounds = {.high = 2.0}}, std::span{weight});
  auto const total = importance::sum_weights(std::span<float const>{weight}, std::span<std::uint8_t const>{keep});
  importance::weight_normalisation(total, {}, std::span{weight});
  // The loss now multiplies each token's policy term by its weight (loss_inputs::weight); the weight is a constant.

  auto const kept = std::ranges::count_if(reasons, is_kept);
  auto const [least, most] = std::ranges::minmax(weight);
  std::cout << "turns kept by the filter      " << kept << " of " << batch.turns() << '\n'
            << "tokens with a weight          " << counts.count << " of " << weight.size() << '\n'
            << "tokens truncated at 2         " << counts.above << '\n'
            << "mean weight before            " << total.mean() << '\n'
            << "smallest and largest weight   " << least << " (dropped tokens), " << most << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::invalid_argument("one argument expected: the folder of a batch");
    run(argv[1]);
    return 0;
  } catch (std::exception const& error) {
    std::cerr << "example_two_stage_weights: " << error.what() << '\n';
    return 1;
  }
}

/// The exactness programs' lines for whole training steps.
#pragma once

#include "exactness/batches.hpp"
#include "exactness/digest.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace digest {

using namespace turnwise;

template <typename Old, typename Rollout>
recipe::step_inputs<Old, Rollout, double> inputs_of(typed_batch<Old, Rollout> const& batch) {
  return {batch.tokens(), batch.arrays.evaluation(), {}};
}

/// Everything that call(threads, outputs) writes.
template <typename Old, typename Rollout, typename Call>
void step(std::string const& shape, typed_batch<Old, Rollout> const& batch, std::string const& name, Call call) {
  std::size_t const turns = batch.arrays.turns();
  std::size_t const tokens = batch.old_logprob.size();
  metrics::mismatch_record record;
  std::uint64_t metrics_hash = 0;
  print_threads(shape, name, [&](int threads) {
    std::vector<double> reward(turns), turn_return(turns), advantage(turns);
    std::vector<reason_flags> reasons(turns);
    std::vector<importance::turn_statistics> statistics(turns);
    std::vector<float> token_advantage(tokens);
    std::vector<std::uint8_t> token_mask(tokens);
    call(threads, recipe::step_outputs{reward, turn_return, advantage, reasons, statistics, token_advantage, token_mask,
                                       &record});
    metrics_hash = hash_of(record);
    return hash_of(reward, turn_return, advantage, reasons, statistics, token_advantage, token_mask);
  });
  print(shape, name + " metrics", metrics_hash);
}

template <typename Old, typename Rollout>
void recipes(std::string const& shape, typed_batch<Old, Rollout> const& batch) {
  auto const inputs = inputs_of(batch);
  draw_key const key{.seed = 1, .step = 2};
  for (bool const paper : {true, false})
    step(shape, batch, paper ? "dr_kernel paper" : "dr_kernel released",
         [&](int threads, recipe::step_outputs const& out) {
           auto options = paper ? recipe::dr_kernel_options::paper() : recipe::dr_kernel_options::released();
           options.threads = threads;
           recipe::dr_kernel(batch.arrays.view(), inputs, options, key, out);
         });
  for (auto const by : {group_by::group, group_by::turn})
    step(shape, batch, by == group_by::group ? "kernel_zero" : "kernel_zero by turn",
         [&](int threads, recipe::step_outputs const& out) {
           recipe::kernel_zero(batch.arrays.view(), inputs,
                               {.groups = by, .reward = {.alpha = 0.3}, .threads = threads}, key, out);
         });
}

/// The recipes that one type of log-probs is enough for, as each takes seconds to compile. The proposals are the turns,
/// and their attempts those of their group.
template <typename Old, typename Rollout>
void recipes_of_one_type(std::string const& shape, typed_batch<Old, Rollout> const& batch) {
  auto const inputs = inputs_of(batch);
  draw_key const key{.seed = 1, .step = 2};
  step(shape, batch, "kevin", [&](int threads, recipe::step_outputs const& out) {
    recipe::kevin(batch.arrays.view(), inputs, {.threads = threads}, key, out);
  });
  step(shape, batch, "kernel_zero_proposer", [&](int threads, recipe::step_outputs const& out) {
    auto const view = batch.arrays.view();
    auto const groups = make_grouping(view, group_by::group);
    std::vector<std::int64_t> proposed(view.turns());
    for (std::size_t j = 0; j < view.trajectories(); ++j)
      for (std::size_t s = view.first_turn(j); s < view.first_turn(j + 1); ++s) proposed[s] = view.group_id[j];
    recipe::kernel_zero_proposer(
        view, inputs,
        recipe::proposal_results<double>{{view, &groups, batch.arrays.evaluation()}, proposed, batch.arrays.decoy},
        {.threads = threads}, key, out);
  });
}

}  // namespace digest

/// @file
/// What the recipes share on the device: the kernels of a step and the order in which they are enqueued.
#pragma once

#include <turnwise/gpu/advantage/detail/group_driver.cuh>
#include <turnwise/gpu/advantage/per_token.cuh>
#include <turnwise/gpu/advantage/turn_return.cuh>
#include <turnwise/gpu/core/reasons.cuh>
#include <turnwise/gpu/importance/log_ratio_statistics.cuh>
#include <turnwise/gpu/recipe/step.cuh>
#include <turnwise/gpu/rejection/profiling_filter.cuh>
#include <turnwise/gpu/rejection/ratio_band.cuh>
#include <turnwise/gpu/rejection/token_veto.cuh>
#include <turnwise/gpu/reward/kernel_reward.cuh>
#include <turnwise/gpu/reward/kevin_score.cuh>
#include <turnwise/recipe/detail/turn_step.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace turnwise::gpu::recipe {
namespace detail {

/// The outputs, those that are not wanted in scratch, and what the launches hand on.
struct step_blocks {
  step_outputs out;
  device_span<reason_flags> validity;  ///< [S] reasons before the filters, which leave them be
  importance::detail::chunk_outputs<false> chunks;

  step_blocks(std::size_t turns, std::size_t tokens, step_outputs const& wanted, workspace& scratch)
      : out(wanted), validity(scratch.take<reason_flags>(turns, "step: validity")), chunks(tokens, scratch) {
    auto const fill = [&](auto& span, std::string_view name) {
      using element = typename std::decay_t<decltype(span)>::element_type;
      if (span.empty()) span = scratch.take<element>(turns, name);
    };
    fill(out.reward, "step: reward");
    fill(out.turn_return, "step: turn_return");
    fill(out.advantage, "step: advantage");
    fill(out.reasons, "step: reasons");
    fill(out.statistics, "step: statistics");
    chunks.turn = out.statistics;
  }
};

/// Rewards, returns, validity and profiling draws of a trajectory, beside the first pass over the tokens. The types of
/// the options say which reward and which return.
template <logprob_value Old, logprob_value Rollout, real E, typename RewardOptions, typename ReturnOptions>
struct judge_trajectories {
  rollout_view batch;
  grouping_counts const* groups;
  step_inputs<Old, Rollout, E> inputs;
  RewardOptions reward_options;
  ReturnOptions return_options;
  turnwise::rejection::profiling_filter_options profiling;
  bool filters_profiles;
  draw_key key;
  step_outputs out;
  device_span<reason_flags> validity;
  status_record* status;

  __device__ void operator()(std::int64_t warp, std::int64_t warps) const {
    if (groups->broken == 0)
      for (auto j = warp; j < static_cast<std::int64_t>(batch.trajectories()); j += warps) judge(j);
  }

 private:
  __device__ void judge(std::int64_t j) const {
    rejection::detail::for_each_turn(batch, j, [&](std::size_t s) {
      auto const turn = static_cast<std::int64_t>(s);
      reason_flags const flags = gpu::detail::first_reasons(batch, turn);
      validity[s] = flags;
      out.reward[s] = inputs.given_reward.empty()
                          ? reward::detail::reward_of_turn(inputs.evaluation, reward_options,
                                                           (flags & reason::invalid) != 0, turn, status)
                          : inputs.given_reward[s];
    });
    __syncwarp();
    advantage::detail::return_of_trajectory(
        batch, j, [&](std::int64_t s) { return out.reward[static_cast<std::size_t>(s)]; }, return_options, validity,
        out.turn_return, status);
    __syncwarp();
    rejection::detail::for_each_turn(batch, j, [&](std::size_t s) {
      out.reasons[s] = validity[s];
      if (filters_profiles)
        out.reasons[s] |= rejection::detail::profiling_of_turn(batch, inputs.evaluation, profiling, key, j,
                                                               static_cast<std::int64_t>(s), validity[s], status);
    });
  }
};

/// The ratio rules of a step, their logs taken.
struct ratio_rules {
  turnwise::rejection::usable_tokens_options usable_tokens;
  turnwise::rejection::log_band band{};
  turnwise::rejection::scope band_level{};
  bool has_band = false;
  turnwise::rejection::log_veto veto{};
  turnwise::rejection::scope veto_scope{};
  bool has_veto = false;

  explicit ratio_rules(turnwise::recipe::filter_options const& filters) : usable_tokens(filters.usable_tokens) {
    if (filters.ratio_band) {
      has_band = true;
      band = turnwise::rejection::make_log_band(*filters.ratio_band, "ratio_band");
      band_level = filters.ratio_band->level;
    }
    if (filters.token_veto) {
      has_veto = true;
      veto = turnwise::rejection::make_log_veto(*filters.token_veto, "token_veto");
      veto_scope = filters.token_veto->veto_scope;
    }
  }
};

/// Joins the records of a trajectory's turns and applies the ratio rules to them.
inline __device__ void filter_trajectory(rollout_view const& batch, std::int64_t j, std::int64_t tokens,
                                         step_blocks const& blocks, ratio_rules const& rules, status_record* status) {
  auto const& out = blocks.out;
  std::int64_t const first = batch.first_turn(static_cast<std::size_t>(j));
  std::int64_t const last = batch.first_turn(static_cast<std::size_t>(j) + 1);
  for (std::int64_t tile = first; tile < last; tile += gpu::detail::lanes) {
    std::int64_t const s = tile + gpu::detail::lane_id();
    bool const has_turn = s < last;
    std::int64_t const begin = has_turn ? batch.turn_begin[static_cast<std::size_t>(s)] : 0;
    std::int64_t const end = has_turn ? batch.turn_end[static_cast<std::size_t>(s)] : 0;
    bool const fits = begin >= 0 && begin < end && end <= tokens;
    auto const store = [&](turn_statistics const& total, turnwise::importance::ratio_moments const&) {
      out.statistics[static_cast<std::size_t>(s)] = total;
    };
    if (has_turn && !fits) store({}, {});
    importance::detail::join_turns(blocks.chunks, has_turn && fits, begin, end, store);
  }
  __syncwarp();
  rejection::detail::mark_usable(batch, j, out.statistics, rules.usable_tokens, out.reasons, status);
  if (rules.has_band)
    rejection::detail::band_of_trajectory(batch, j, out.statistics, rules.band, rules.band_level, out.reasons);
  if (rules.has_veto)
    rejection::detail::veto_of_trajectory(batch, j, out.statistics, rules.veto, rules.veto_scope, out.reasons);
}

/// The first `filter_blocks` blocks filter trajectories, the others form the baselines of groups; if members must be
/// kept, baselines wait for the filters and have a launch of their own.
template <typename Policy>
TURNWISE_KERNEL void __launch_bounds__(gpu::detail::warp_block_threads)
    decide_kernel(__grid_constant__ rollout_view const batch, std::int64_t tokens,
                  __grid_constant__ step_blocks const blocks, __grid_constant__ ratio_rules const rules,
                  __grid_constant__ advantage::detail::group_call<double> const call,
                  __grid_constant__ Policy const policy, unsigned filter_blocks, status_record* status) {
  bool const filters = blockIdx.x < filter_blocks;
  auto const block = std::int64_t{filters ? blockIdx.x : blockIdx.x - filter_blocks};
  auto const warp = (block * blockDim.x + threadIdx.x) / gpu::detail::lanes;
  auto const warps =
      std::int64_t{filters ? filter_blocks : gridDim.x - filter_blocks} * blockDim.x / gpu::detail::lanes;
  if (call.groups.counts->broken != 0) {  // no turn has a trajectory
    if (filters && filter_blocks != gridDim.x) return;
    for (auto s = warp * gpu::detail::lanes + gpu::detail::lane_id(); s < static_cast<std::int64_t>(batch.turns);
         s += warps * gpu::detail::lanes) {
      auto const turn = static_cast<std::size_t>(s);
      blocks.out.reward[turn] = blocks.out.turn_return[turn] = blocks.out.advantage[turn] = 0;
      blocks.out.reasons[turn] = reason::invalid;
      blocks.out.statistics[turn] = {};
    }
  } else if (filters) {
    for (auto j = warp; j < static_cast<std::int64_t>(batch.trajectories()); j += warps)
      filter_trajectory(batch, j, tokens, blocks, rules, status);
  } else {
    for (auto g = warp; g < call.groups.counts->groups; g += warps)
      advantage::detail::advantages_of_group(call, policy, g);
  }
}

inline void check_outputs(step_outputs const& out, std::size_t turns, std::size_t tokens, std::string_view function) {
  auto const check = [&](auto span, std::string_view name, std::size_t size, std::string_view unit) {
    if (!span.empty()) expects_size(function, name, span.size(), size, unit);
  };
  check(out.reward, "reward", turns, "turn");
  check(out.turn_return, "turn_return", turns, "turn");
  check(out.advantage, "advantage", turns, "turn");
  check(out.reasons, "reasons", turns, "turn");
  check(out.statistics, "statistics", turns, "turn");
  check(out.token_advantage, "token_advantage", tokens, "token");
  check(out.token_mask, "token_mask", tokens, "token");
}

/// The arguments of a step that all recipes have.
template <logprob_value Old, logprob_value Rollout, real E>
struct step_call {
  rollout_view const& batch;
  grouping const& groups;
  token_plan const& plan;
  step_inputs<Old, Rollout, E> const& inputs;
  turnwise::recipe::filter_options const& filters;
  draw_key key;
  step_outputs const& out;  ///< those that are wanted
  status_record* status;
  ::cuda::stream_ref stream;
};

/// Sizes; options are the recipe's to check. `profile`: its reward reads the two times.
template <logprob_value Old, logprob_value Rollout, real E>
void check_step(step_call<Old, Rollout, E> const& call, bool profile, std::string_view name) {
  std::size_t const turns = call.batch.turns;
  check_sizes(call.batch, name);
  expects_size(name, "groups", call.groups.turns, turns, "turn");
  expects_size(name, "turn_begin", call.batch.turn_begin.size(), turns, "turn");
  expects_size(name, "turn_end", call.batch.turn_end.size(), turns, "turn");
  importance::detail::check_call(call.plan, call.inputs.tokens, turns);
  check_outputs(call.out, turns, call.plan.tokens, name);
  if (call.inputs.given_reward.empty())
    reward::check_evaluation(call.inputs.evaluation, turns, name, profile);
  else
    expects_size(name, "given_reward", call.inputs.given_reward.size(), turns, "turn");
  if (call.filters.profiling_filter) reward::check_evaluation(call.inputs.evaluation, turns, name, true);
}

/// The first launch: rewards, returns and profiling draws beside the pass over the tokens.
///
/// @param given_reward    takes the place of the reward unless it is empty; may be blocks.out.reward.
/// @param reward_options  of kernel_reward or kevin_score.
/// @param return_options  of discounted_return or turn_return.
template <logprob_value Old, logprob_value Rollout, real E, typename RewardOptions, typename ReturnOptions>
void enqueue_judgement(step_call<Old, Rollout, E> const& call, step_blocks const& blocks,
                       device_span<double const> given_reward, RewardOptions const& reward_options,
                       ReturnOptions const& return_options) {
  auto const& profiling = call.filters.profiling_filter;
  judge_trajectories<Old, Rollout, E, RewardOptions, ReturnOptions> const judge{
      call.batch,
      call.groups.counts,
      {call.inputs.tokens, call.inputs.evaluation, given_reward},
      reward_options,
      return_options,
      profiling.value_or(turnwise::rejection::profiling_filter_options{}),
      profiling.has_value(),
      call.key,
      blocks.out,
      blocks.validity,
      call.status};
  importance::detail::enqueue_chunks(call.plan, call.inputs.tokens, blocks.chunks, call.stream, judge,
                                     call.batch.trajectories());
}

/// The launches after it: filters and baselines, then token outputs if any is wanted.
///
/// @param launch_name  what an error calls the launch of filters and baselines.
template <logprob_value Old, logprob_value Rollout, real E, typename Policy>
void enqueue_decisions(step_call<Old, Rollout, E> const& call, step_blocks const& blocks, Policy const& policy,
                       turnwise::advantage::baseline_members members, std::string_view launch_name) {
  bool const kept = members == turnwise::advantage::baseline_members::kept;
  advantage::detail::group_call<double> const group_call{
      call.groups, blocks.out.turn_return, kept ? blocks.out.reasons : blocks.validity,
      members,     blocks.out.advantage,   call.status};
  auto const decide = [&](unsigned filter_blocks, unsigned group_blocks) {
    launch(launch_name, decide_kernel<Policy>, filter_blocks + group_blocks, gpu::detail::warp_block_threads, 0,
           call.stream, call.batch, static_cast<std::int64_t>(call.plan.tokens), blocks, ratio_rules{call.filters},
           group_call, policy, filter_blocks, call.status);
  };
  unsigned const filter_blocks = gpu::detail::warp_blocks(call.batch.trajectories());
  unsigned const group_blocks = gpu::detail::warp_blocks(call.batch.turns);
  if (kept) {
    decide(filter_blocks, 0);
    decide(0, group_blocks);
  } else {
    decide(filter_blocks, group_blocks);
  }
  advantage::per_token(call.plan, call.inputs.tokens.mask, device_span<double const>{blocks.out.advantage},
                       device_span<reason_flags const>{blocks.out.reasons}, call.out.token_advantage,
                       call.out.token_mask, call.stream);
}

}  // namespace detail
}  // namespace turnwise::gpu::recipe

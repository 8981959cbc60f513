/// @file
/// Advantage over the group's mean, scaled up for the groups of the batch that teach nothing.
#pragma once

#include <turnwise/advantage/baseline_members.hpp>
#include <turnwise/advantage/detail/group_driver.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace turnwise::advantage {

/// Which samples the batch's factor alpha counts as carrying a signal.
enum class gpg_signal : std::uint8_t {
  group,   ///< those of groups whose members differ (as published)
  nonzero  ///< those whose return is not 0 (verl)
};

/// Options of `gpg`.
struct gpg_options {
  gpg_signal signal = gpg_signal::group;               ///< which samples alpha counts
  baseline_members members = baseline_members::valid;  ///< whose returns form the baseline
  int threads = 0;                                     ///< 0 = the runtime's default
};

/// The counts behind alpha. Exact: those of shards are joined by += or by an all-reduce (sum) of two 64-bit integers.
struct gpg_counts {
  unsigned long long samples = 0;  ///< baseline members of the batch
  unsigned long long signal = 0;   ///< of those, the ones that count

  TURNWISE_HOST_DEVICE constexpr gpg_counts& operator+=(gpg_counts const& other) noexcept {
    samples += other.samples;
    signal += other.signal;
    return *this;
  }
  friend constexpr bool operator==(gpg_counts const&, gpg_counts const&) = default;
};
static_assert(sizeof(gpg_counts) == 2 * 8);

/// samples / signal; 1 where nothing counts (then every advantage is 0).
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double gpg_alpha(gpg_counts const& batch) noexcept {
  return batch.signal == 0 ? 1.0 : static_cast<double>(batch.samples) / static_cast<double>(batch.signal);
}

namespace detail {

struct gpg_policy {
  gpg_counts const* batch;

  struct state {
    centre_and_divisor centred;
    double alpha;
  };

#ifdef __CUDACC__
#pragma nv_exec_check_disable  // the host's group is for the host alone
#endif
  template <typename Group>
  [[nodiscard]] TURNWISE_HOST_DEVICE state prepare(Group const& group) const {
    group_total const total = group.total();
    if (total.count < 2) return {{}, 1};
    return {{total.mean(), 1}, gpg_alpha(*batch)};
  }

  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double advantage(state const& of_group, group_member const& one) const {
    return of_group.alpha * of_group.centred.advantage(one.value);
  }

#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
  /// What one group adds to the counts.
  template <typename Group>
  [[nodiscard]] TURNWISE_HOST_DEVICE static gpg_counts counts(Group const& group, gpg_signal signal) {
    group_total const total = group.total();
    std::int64_t const counting = signal == gpg_signal::nonzero ? group.count([](double value) { return value != 0; })
                                  : total.min < total.max       ? total.count
                                                                : 0;
    return {static_cast<unsigned long long>(total.count), static_cast<unsigned long long>(counting)};
  }
};

template <real T>
void check_gpg_count(group_call<T> const& call) {
  expects_size("gpg_count", "turn_return", call.turn_return.size(), call.groups.turns(), "turn");
  if (!call.reasons.empty()) expects_size("gpg_count", "reasons", call.reasons.size(), call.groups.turns(), "turn");
  for (std::size_t s = 0; s < call.turn_return.size(); ++s)
    expects((!call.reasons.empty() && !is_valid(call.reasons[s])) || within_limit(call.turn_return[s]),
            "gpg_count: turn_return[", s, "] = ", call.turn_return[s],
            " of a valid turn is not finite or beyond the magnitude limit");
}

template <real T>
[[nodiscard]] gpg_counts count_gpg(group_call<T> const& call, gpg_signal signal) {
  std::atomic<unsigned long long> samples{0};
  std::atomic<unsigned long long> counting{0};
  for_each_group_range(call, [&](std::size_t first, std::size_t last) {
    gpg_counts range;
    for (std::size_t g = first; g < last; ++g) range += gpg_policy::counts(group_values<T>{call, g}, signal);
    samples += range.samples;
    counting += range.signal;
  });
  return {samples, counting};
}

}  // namespace detail

/// First phase of gpg over a batch in shards of whole groups: the counts of this shard. Join those of all shards.
///
/// @param[in] groups, turn_return, reasons, options  as for gpg.
/// @throws precondition_error  as gpg.
/// @par Complexity  O(S) time, no allocation.
template <real T>
[[nodiscard]] gpg_counts gpg_count(grouping const& groups, std::span<T const> turn_return,
                                   std::span<reason_flags const> reasons, gpg_options const& options) {
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, options.threads, {}};
  detail::check_gpg_count(call);
  return detail::count_gpg(call, options.signal);
}

/// Second phase: the advantages of this shard.
///
/// @param[in]  batch      the joined counts of all shards.
/// @param[out] advantage  [S]; not the same span as turn_return. 0 where the turn is invalid.
/// @throws precondition_error  as gpg; more samples with a signal than samples; nothing is written.
/// @par Complexity  O(S) time, no allocation.
template <real T>
void gpg_apply(grouping const& groups, no_deduce<std::span<T const>> turn_return,
               no_deduce<std::span<reason_flags const>> reasons, gpg_counts const& batch, gpg_options const& options,
               std::span<T> advantage) {
  expects(batch.signal <= batch.samples, "gpg_apply: batch.signal = ", batch.signal,
          ", expected at most batch.samples = ", batch.samples);
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, options.threads, advantage};
  detail::check_group_call(call, "gpg_apply");
  detail::for_each_group(call, detail::gpg_policy{&batch});
}

/// Advantage of each valid turn over the mean return of its group, times one factor for the batch.
///
///     A = alpha (G - mean),   alpha = B / (B - M)
///     B = baseline members of the batch, M = those of groups whose members are all equal (signal = group)
///
/// Also called: GPG, group policy gradient.
/// @param[in]  groups       group_by::group: all turns of a prompt; group_by::turn: turn groups.
/// @param[in]  turn_return  [S] returns (or rewards).
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[out] advantage    [S], unit of turn_return; not the same span. 0 where the turn is invalid.
/// @throws precondition_error  sizes that differ, a valid turn's return that is not finite or beyond magnitude_limit;
///         nothing is written.
/// @note  Fewer than two members: 0 for every turn of the group. Equal members: exactly 0 for them. No group with a
///        signal: alpha is 1.
/// @note  Code bases: verl divides by the number of returns other than 0 instead (signal = nonzero), failures in mixed
///        groups uncounted.
/// @note  Biased: the turn is part of its own baseline, and of alpha.
/// @note  alpha belongs to the batch given. For a batch in shards: gpg_count, and gpg_apply with the joined counts.
/// @note  Deterministic: an integer count, the same bits for any order of trajectories and any thread count.
/// @par Complexity  O(S) time, no allocation.
/// @par Reference   Chu et al. 2025, arXiv:2504.02546.
/// @see gpg_count, gpg_apply: the same over a batch in shards. turnwise::gpu::advantage::gpg
template <real T>
void gpg(grouping const& groups, no_deduce<std::span<T const>> turn_return,
         no_deduce<std::span<reason_flags const>> reasons, gpg_options const& options, std::span<T> advantage) {
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, options.threads, advantage};
  detail::check_group_call(call, "gpg");
  gpg_counts const batch = detail::count_gpg(call, options.signal);
  detail::for_each_group(call, detail::gpg_policy{&batch});
}

}  // namespace turnwise::advantage

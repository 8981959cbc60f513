/// @file
/// Rejects groups whose outcomes or returns hardly differ, on the device.
#pragma once

#include <turnwise/gpu/rejection/detail/group_rule.cuh>
#include <turnwise/rejection/group_spread.hpp>

#include <cstddef>

namespace turnwise::gpu::rejection {

using turnwise::rejection::group_spread_options;

namespace detail {

struct spread_rule {
  group_spread_options options;
  template <typename Group>
  [[nodiscard]] __device__ reason_flags operator()(Group const& group) const {
    return turnwise::rejection::detail::spread_reason(group, options);
  }
};

}  // namespace detail

inline constexpr std::size_t group_spread_workspace_bytes = 0;  ///< takes no workspace

/// Rejects each group whose values hardly differ, as a whole: the device version, with the same flags.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     groups   of make_grouping; turns in no group are passed over.
/// @param[in]     value    [S] outcome, reward or return.
/// @param[in]     options  as the host's; `threads` is not used.
/// @param[in,out] reasons  [S] in which validity is settled; every valid turn of a rejected group gains `group_spread`.
/// @param[in]     status   may be null; gains turn_return: a valid turn's value that is not finite or beyond
///                         magnitude_limit. The turn is not looked at.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S) work, a warp a group.
/// @see turnwise::rejection::group_spread
template <real T>
void group_spread(grouping const& groups, device_span<T const> value, group_spread_options const& options,
                  device_span<reason_flags> reasons, status_record* status, ::cuda::stream_ref stream) {
  turnwise::rejection::detail::check_spread_options(options, "group_spread");
  detail::apply_group_rule(detail::group_rule_call<T>{groups, value, options.level, reasons, status},
                           detail::spread_rule{options}, "group_spread", "value", stream);
}

}  // namespace turnwise::gpu::rejection

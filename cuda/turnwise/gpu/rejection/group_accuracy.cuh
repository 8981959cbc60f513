/// @file
/// Rejects groups that are solved too often or too rarely, on the device.
#pragma once

#include <turnwise/gpu/rejection/detail/group_rule.cuh>
#include <turnwise/rejection/group_accuracy.hpp>

#include <cstddef>

namespace turnwise::gpu::rejection {

using turnwise::rejection::group_accuracy_options;

namespace detail {

struct accuracy_rule {
  group_accuracy_options options;
  template <typename Group>
  [[nodiscard]] __device__ reason_flags operator()(Group const& group) const {
    return turnwise::rejection::detail::accuracy_reason(group, options);
  }
};

}  // namespace detail

inline constexpr std::size_t group_accuracy_workspace_bytes = 0;  ///< takes no workspace

/// Rejects each group whose mean outcome is outside [low, high], as a whole: the device version, with the same flags.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     groups   of make_grouping; turns in no group are passed over.
/// @param[in]     outcome  [S] 1 for a success and 0 for a failure, or any score.
/// @param[in]     options  as the host's; `threads` is not used.
/// @param[in,out] reasons  [S] in which validity is settled; every valid turn of a rejected group gains
///                         `group_accuracy`.
/// @param[in]     status   may be null; gains turn_return: a valid turn's outcome that is not finite or beyond
///                         magnitude_limit. The turn is not looked at.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S) work, a warp a group.
/// @see turnwise::rejection::group_accuracy
template <real T>
void group_accuracy(grouping const& groups, device_span<T const> outcome, group_accuracy_options const& options,
                    device_span<reason_flags> reasons, status_record* status, ::cuda::stream_ref stream) {
  turnwise::rejection::detail::check_accuracy_options(options, "group_accuracy");
  detail::apply_group_rule(detail::group_rule_call<T>{groups, outcome, options.level, reasons, status},
                           detail::accuracy_rule{options}, "group_accuracy", "outcome", stream);
}

}  // namespace turnwise::gpu::rejection

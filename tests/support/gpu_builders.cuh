/// The builders of groupings and token plans, compiled once for all GPU tests: CUB is most of what a test would take to
/// compile.
#pragma once

#include <turnwise/core/grouping.hpp>
#include <turnwise/gpu/core/grouping_view.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/token_plan_view.cuh>
#include <turnwise/gpu/core/workspace.cuh>

#include <cstddef>

#if __has_include(<cuda/stream>)
#include <cuda/stream>
#else
#include <cuda/stream_ref>
#endif

namespace support {

namespace gpu = turnwise::gpu;

[[nodiscard]] std::size_t grouping_workspace_bytes(std::size_t turns, std::size_t trajectories, turnwise::group_by by);
[[nodiscard]] gpu::grouping make_grouping(gpu::rollout_view const& batch, turnwise::group_by by,
                                          gpu::status_record* status, gpu::workspace scratch, cuda::stream_ref stream);

[[nodiscard]] std::size_t token_plan_workspace_bytes(std::size_t turns, std::size_t tokens,
                                                     gpu::turn_order known = gpu::turn_order::unknown);
[[nodiscard]] gpu::token_plan make_token_plan(gpu::rollout_view const& batch, std::size_t tokens,
                                              gpu::status_record* status, gpu::workspace scratch,
                                              cuda::stream_ref stream,
                                              gpu::turn_order known = gpu::turn_order::unknown);

}  // namespace support

#include "support/gpu_builders.cuh"

#include <turnwise/gpu/core/grouping.cuh>
#include <turnwise/gpu/core/token_plan.cuh>

namespace support {

std::size_t grouping_workspace_bytes(std::size_t turns, std::size_t trajectories, turnwise::group_by by) {
  return gpu::grouping_workspace_bytes(turns, trajectories, by);
}
gpu::grouping make_grouping(gpu::rollout_view const& batch, turnwise::group_by by, gpu::status_record* status,
                            gpu::workspace scratch, cuda::stream_ref stream) {
  return gpu::make_grouping(batch, by, status, scratch, stream);
}

std::size_t token_plan_workspace_bytes(std::size_t turns, std::size_t tokens, gpu::turn_order known) {
  return gpu::token_plan_workspace_bytes(turns, tokens, known);
}
gpu::token_plan make_token_plan(gpu::rollout_view const& batch, std::size_t tokens, gpu::status_record* status,
                                gpu::workspace scratch, cuda::stream_ref stream, gpu::turn_order known) {
  return gpu::make_token_plan(batch, tokens, status, scratch, stream, known);
}

}  // namespace support

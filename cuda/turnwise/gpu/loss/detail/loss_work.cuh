/// @file
/// What the kernels of policy_loss read and write.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/token_plan_view.cuh>
#include <turnwise/gpu/loss/detail/token_rows.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::loss::detail {

/// All that the kernels read and write.
template <typename Policy, typename Inputs, typename Outputs>
struct loss_work {
  using F = typename Inputs::number;

  token_plan plan;
  Inputs in;
  Policy policy;
  host::loss_options options;
  device_span<double const> turn_scale;
  device_span<F> turn_ratio;  ///< [S] of a turn-level policy, else empty
  Outputs out;
  device_span<host::loss_record> records;
  status_record* status;
  bool vectors;  ///< whole rows of the arrays are aligned

  /// What a turn's tokens share; bad numbers are reported, and the turn is then not in the loss.
  [[nodiscard]] __device__ turn_values<F> turn(std::int64_t place) const {
    auto const s = static_cast<std::size_t>(plan.turn_at(place));
    turn_values<F> values;
    double const scale = turn_scale[s];
    if (!(scale >= 0 && within_limit(scale))) {
      report(status, status_code::weight, static_cast<std::int64_t>(s));
      return values;
    }
    if (scale == 0) return values;
    if (!in.turn_advantage.empty()) {
      auto const advantage = in.turn_advantage[s];
      if (!within_limit(advantage)) {
        report(status, status_code::turn_return, static_cast<std::int64_t>(s));
        return values;
      }
      values.advantage = static_cast<F>(advantage);
    }
    values.scale = static_cast<F>(scale);
    if (!turn_ratio.empty()) values.ratio = turn_ratio[s];
    return values;
  }
};

}  // namespace turnwise::gpu::loss::detail

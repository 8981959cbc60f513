/// @file
/// How device code reports bad content: the first bad index of the most serious kind, without stopping.
#pragma once

#include <turnwise/core/error.hpp>
#include <turnwise/gpu/core/error.cuh>
#include <turnwise/gpu/core/launch.cuh>

#include <cstdint>
#include <string_view>

namespace turnwise::gpu {

/// What was wrong. Frozen numbers; 0 = nothing.
enum class status_code : std::uint8_t {
  ok = 0,
  trajectory_offsets = 1,   ///< an offset decreases or does not fit the number of turns
  turn_index = 2,           ///< not strictly increasing in a trajectory
  token_range = 3,          ///< a turn's tokens leave the arrays
  overlapping_turns = 4,    ///< two turns share a token, or turns said to stand in token order do not
  trajectory_id = 5,        ///< twice in a group
  draw_id = 6,              ///< a trajectory id or turn index outside [0, 2^32)
  infinite_ingredient = 7,  ///< an infinite speedup or time of a correct turn
  reward = 8,               ///< infinite, or beyond the magnitude limit
  unscored = 9,             ///< NaN under unscored_policy::error
  turn_return = 10,         ///< not finite, or beyond the magnitude limit
  non_finite = 11,          ///< a log ratio under non_finite_policy::error
  invalid_profile = 12,     ///< under invalid_profile_policy::error
  weight = 13,              ///< a weight of a turn that is negative, not finite or beyond the magnitude limit
  token_value = 14,         ///< a reward, value or log ratio of a token that is not finite or beyond its limit
  policy_version = 15,      ///< of a turn, above the current one
  logits = 16,              ///< a row holds NaN, +infinity, or nothing but -infinity
  token_id = 17             ///< outside the vocabulary
};

/// A status in device memory, all zero at the start (cudaMemsetAsync); keeps the lowest code and its lowest index.
struct status_record {
  unsigned long long complement;  ///< ~(code << 56 | index), 0 = ok; the largest is the first

  /// What went wrong first.
  TURNWISE_HOST_DEVICE constexpr status_code code() const noexcept {
    return complement == 0 ? status_code::ok : static_cast<status_code>(~complement >> 56);
  }
  /// First bad index of that kind (a turn, a trajectory, a token, or a row).
  TURNWISE_HOST_DEVICE constexpr std::int64_t index() const noexcept {
    return static_cast<std::int64_t>(~complement & ((1ull << 56) - 1));
  }
};

#ifdef __CUDACC__  // a C++ unit reads records
/// Records that element `index` is bad; the result does not depend on the order of reports. `status` may be null.
inline __device__ void report(status_record* status, status_code code, std::int64_t index) {
  if (status == nullptr) return;
  atomicMax(&status->complement,
            ~(static_cast<unsigned long long>(code) << 56 | static_cast<unsigned long long>(index)));
}
#endif

/// Throws precondition_error if the record (copied to the host by the caller) tells of bad content.
inline void check(status_record const& status) {
  constexpr std::string_view what[]{"ok",
                                    "trajectory_offsets decrease or do not fit the number of turns, at trajectory ",
                                    "turn_index is not strictly increasing, at turn ",
                                    "a token range leaves the token arrays, at turn ",
                                    "token ranges overlap or are out of order, at turn ",
                                    "trajectory_id occurs twice in a group, at trajectory ",
                                    "a trajectory id or turn index is outside [0, 2^32), at turn ",
                                    "an infinite speedup or time of a correct turn, at turn ",
                                    "a reward is infinite or beyond the magnitude limit, at turn ",
                                    "a reward is NaN, at turn ",
                                    "a return is not finite or beyond the magnitude limit, at turn ",
                                    "a log ratio is not finite, at turn ",
                                    "a profile has no meaning, at turn ",
                                    "a weight is negative, not finite or too large, at turn ",
                                    "a value is not finite or beyond its limit, at token ",
                                    "a policy version is above the current one, at turn ",
                                    "logits hold NaN, +infinity, or nothing but -infinity, at row ",
                                    "a token id is outside the vocabulary, at row "};
  if (status.code() != status_code::ok) fail("device: ", what[static_cast<int>(status.code())], status.index());
}

}  // namespace turnwise::gpu

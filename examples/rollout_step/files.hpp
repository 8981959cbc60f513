/// @file
/// The files that the tool reads and writes, each in one line: what --help shows, and what warnings go by.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace rollout_step {

/// One-dimensional arrays of S turns, N tokens, or A attempts at proposals.
struct file_note {
  std::string_view name, type, shape, meaning;
};

/// In the folder of --input; those of the attempts have the same names.
inline constexpr std::array input_files{
    file_note{"turn_group.npy", "i32|i64", "S", "the prompt, any number"},
    file_note{"turn_trajectory.npy", "i32|i64", "S", "the conversation: at least 0, unique in its prompt"},
    file_note{"turn_index.npy", "i32|i64", "S", "place in the conversation: at least 0, gaps are fine"},
    file_note{"turn_offsets.npy", "i32|i64", "S + 1", "tokens of row s: [offsets[s], offsets[s + 1])"},
    file_note{"old_logprob.npy", "f32|f64", "N", "by the trainer before the update, nats"},
    file_note{"rollout_logprob.npy", "f32|f64", "N", "by the engine that sampled, nats"},
    file_note{"token_mask.npy", "u8|bool", "N", "optional: 0 = not written by the model"},
    file_note{"turn_valid.npy", "u8|bool", "S", "optional: 0 = flagged off before it was sampled"},
    file_note{"reward.npy", "f32|f64", "S", "optional: instead of the recipe's reward; NaN = missing"},
    file_note{"compiled.npy", "u8|bool", "S", "evaluation (1): it built"},
    file_note{"correct.npy", "u8|bool", "S", "evaluation: it passed the checks"},
    file_note{"decoy.npy", "u8|bool", "S", "evaluation: none of its kernels reaches the result"},
    file_note{"speedup.npy", "f32|f64", "S", "evaluation: reference time / its time; NaN = missing"},
    file_note{"generated_us.npy", "f32|f64", "S", "evaluation: device time in its own kernels"},
    file_note{"total_us.npy", "f32|f64", "S", "evaluation: device time in all kernels"},
    file_note{"proposal_group.npy", "i32|i64", "S", "proposals (2): group of the attempts at it"},
    file_note{"invalid_module.npy", "u8|bool", "S", "proposals, optional: 1 = no valid problem"}};

/// In the folder of --output, rows and tokens in the order of the input.
inline constexpr std::array output_files{
    file_note{"reward.npy", "f64", "S", "of the turn; NaN = missing"},
    file_note{"turn_return.npy", "f64", "S", "what the turn is credited with"},
    file_note{"advantage.npy", "f64", "S", "0 for turns that are not valid"},
    file_note{"keep.npy", "u8", "S", "1 = in the loss"},
    file_note{"reason.npy", "u32", "S", "bits (3) that say why a turn is not kept; 0 = kept"},
    file_note{"geometric_ratio.npy", "f64", "S", "exp of the mean log ratio, at --ratio-level"},
    file_note{"token_advantage.npy", "f32", "N", "advantage of kept turns at unmasked tokens, else 0"},
    file_note{"metrics.json", "", "", "everything of the tables, and more"}};

/// The part of --help about files.
[[nodiscard]] std::string files_help();

/// Names of the .npy files in the folder that are none of input_files, sorted.
[[nodiscard]] std::vector<std::string> unknown_arrays(std::filesystem::path const& folder);

}  // namespace rollout_step

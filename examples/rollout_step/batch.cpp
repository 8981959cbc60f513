#include "batch.hpp"

#include "error.hpp"
#include "files.hpp"
#include "npy.hpp"

#include <turnwise/core/error.hpp>

#include <array>
#include <utility>

namespace rollout_step {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 6> evaluation_files{"compiled.npy", "correct.npy",      "decoy.npy",
                                                           "speedup.npy",  "generated_us.npy", "total_us.npy"};

/// A link that leads nowhere counts as there, so that reading it is an error and not an absent file.
bool present(fs::path const& path) { return fs::exists(fs::symlink_status(path)); }

[[noreturn]] void wrong_type(fs::path const& path, npy_array const& array, std::string_view expected) {
  fail(path.string(), ": elements of type '", array.type, "', expected ", expected);
}

std::vector<std::int64_t> read_integers(fs::path const& path) {
  npy_array array = read_npy(path);
  if (auto* const wide = std::get_if<std::vector<std::int64_t>>(&array.values)) return std::move(*wide);
  if (auto* const narrow = std::get_if<std::vector<std::int32_t>>(&array.values))
    return {narrow->begin(), narrow->end()};
  wrong_type(path, array, "i32 or i64");
}

std::vector<std::uint8_t> read_flags(fs::path const& path) {
  npy_array array = read_npy(path);
  if (auto* const flags = std::get_if<std::vector<std::uint8_t>>(&array.values)) return std::move(*flags);
  wrong_type(path, array, "u8 or bool");
}

logprob_array read_logprobs(fs::path const& path) {
  npy_array array = read_npy(path);
  if (auto* const narrow = std::get_if<std::vector<float>>(&array.values)) return std::move(*narrow);
  if (auto* const wide = std::get_if<std::vector<double>>(&array.values)) return std::move(*wide);
  wrong_type(path, array, "f32 or f64");
}

std::vector<double> read_numbers(fs::path const& path) {
  logprob_array array = read_logprobs(path);
  if (auto* const wide = std::get_if<std::vector<double>>(&array)) return std::move(*wide);
  auto const& narrow = std::get<std::vector<float>>(array);
  return {narrow.begin(), narrow.end()};
}

void expect_length(turn_files const& rows, std::string_view name, std::size_t length, std::size_t expected,
                   std::string_view reason) {
  if (length != expected) fail(rows.file(name), ": shape (", length, ",), expected (", expected, ",): ", reason);
}

void expect_turns(turn_files const& rows, std::string_view name, std::size_t length) {
  expect_length(rows, name, length, rows.turns(), "one element a turn, as turn_group.npy");
}

void expect_tokens(input_rows const& rows, std::string_view name, std::size_t length) {
  expect_length(rows, name, length, rows.tokens(), "one element a token, as old_logprob.npy");
}

void read_turns(turn_files& rows) {
  rows.unknown_arrays = unknown_arrays(rows.folder);
  rows.turn_group = read_integers(rows.folder / "turn_group.npy");
  rows.turn_trajectory = read_integers(rows.folder / "turn_trajectory.npy");
  expect_turns(rows, "turn_trajectory.npy", rows.turn_trajectory.size());
  rows.turn_index = read_integers(rows.folder / "turn_index.npy");
  expect_turns(rows, "turn_index.npy", rows.turn_index.size());
  if (!present(rows.folder / "turn_valid.npy")) return;
  rows.turn_valid = read_flags(rows.folder / "turn_valid.npy");
  expect_turns(rows, "turn_valid.npy", rows.turn_valid->size());
}

std::vector<std::uint8_t> read_turn_flags(turn_files const& rows, std::string_view name) {
  std::vector<std::uint8_t> flags = read_flags(rows.folder / name);
  expect_turns(rows, name, flags.size());
  return flags;
}

/// Reads the evaluation unless it may be absent and is: where nothing needs it, and none of its files is there.
void read_evaluation(input_rows& rows, step_options const& options) {
  bool const rewards = !rows.reward && options.recipe != recipe_name::kernel_zero_proposer;
  bool const needed = rewards || options.filters().profiling_filter;
  bool any = false;
  for (auto const name : evaluation_files) any = any || present(rows.folder / name);
  if (!needed && !any) return;
  if (!rewards && !any)
    fail(rows.file(evaluation_files.front()),
         ": no such file, and the profiling filter needs it (--no-profiling-filter)");
  evaluation_rows evaluation;
  evaluation.compiled = read_turn_flags(rows, "compiled.npy");
  evaluation.correct = read_turn_flags(rows, "correct.npy");
  evaluation.decoy = read_turn_flags(rows, "decoy.npy");
  evaluation.speedup = read_numbers(rows.folder / "speedup.npy");
  expect_turns(rows, "speedup.npy", evaluation.speedup.size());
  evaluation.generated_us = read_numbers(rows.folder / "generated_us.npy");
  expect_turns(rows, "generated_us.npy", evaluation.generated_us.size());
  evaluation.total_us = read_numbers(rows.folder / "total_us.npy");
  expect_turns(rows, "total_us.npy", evaluation.total_us.size());
  rows.evaluation = std::move(evaluation);
}

/// Reads the attempts at the proposals, which only rewards that are given can do without.
void read_proposals(input_rows& rows, step_options const& options) {
  if (options.recipe != recipe_name::kernel_zero_proposer) return;
  if (rows.reward) {
    if (options.attempts) fail("--attempts: ", rows.file("reward.npy"), " gives the rewards that they serve");
    return;
  }
  if (!options.attempts)
    fail("--attempts: needed by kernel_zero_proposer, unless ", rows.file("reward.npy"), " gives the rewards");
  proposal_rows proposals;
  proposals.group = read_integers(rows.folder / "proposal_group.npy");
  expect_turns(rows, "proposal_group.npy", proposals.group.size());
  if (present(rows.folder / "invalid_module.npy"))
    proposals.invalid_module = read_turn_flags(rows, "invalid_module.npy");
  auto& attempts = proposals.attempts;
  attempts.folder = *options.attempts;
  if (!fs::is_directory(attempts.folder)) fail("--attempts: ", attempts.folder.string(), " is not a folder");
  read_turns(attempts);
  rows.unknown_arrays.insert(rows.unknown_arrays.end(), attempts.unknown_arrays.begin(), attempts.unknown_arrays.end());
  proposals.compiled = read_turn_flags(attempts, "compiled.npy");
  proposals.correct = read_turn_flags(attempts, "correct.npy");
  proposals.decoy = read_turn_flags(attempts, "decoy.npy");
  rows.proposals = std::move(proposals);
}

void check_offsets(input_rows const& rows) {
  auto const& offsets = rows.turn_offsets;
  auto const tokens = static_cast<std::int64_t>(rows.tokens());
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    std::string const entry =
        rows.file("turn_offsets.npy") + ": entry " + std::to_string(i) + " is " + std::to_string(offsets[i]);
    if (offsets[i] < 0) fail(entry, ", expected at least 0");
    if (i > 0 && offsets[i] < offsets[i - 1]) fail(entry, ", less than the entry before it, ", offsets[i - 1]);
    if (offsets[i] > tokens) fail(entry, ", beyond the ", tokens, " tokens of old_logprob.npy");
  }
}

void expect_not_negative(turn_files const& rows, std::string_view name, std::vector<std::int64_t> const& values) {
  for (std::size_t row = 0; row < values.size(); ++row)
    if (values[row] < 0) fail(rows.file(name), ": row ", row, " is ", values[row], ", expected at least 0");
}

turnwise::rollout sort(turn_files const& rows, std::span<std::int64_t const> begin, std::span<std::int64_t const> end) {
  expect_not_negative(rows, "turn_trajectory.npy", rows.turn_trajectory);
  expect_not_negative(rows, "turn_index.npy", rows.turn_index);
  try {
    return turnwise::make_rollout({.group_id = rows.turn_group,
                                   .trajectory_id = rows.turn_trajectory,
                                   .turn_index = rows.turn_index,
                                   .turn_begin = begin,
                                   .turn_end = end,
                                   .turn_valid = rows.turn_valid ? std::span<std::uint8_t const>{*rows.turn_valid}
                                                                 : std::span<std::uint8_t const>{}});
  } catch (turnwise::precondition_error const& error) {
    // All that is left to go wrong is a repeated turn, and the message names its row.
    std::string_view message = error.what();
    constexpr std::string_view prefix = "make_rollout: ";
    if (message.starts_with(prefix)) message.remove_prefix(prefix.size());
    fail(rows.file("turn_index.npy"), ": ", message);
  }
}

}  // namespace

input_rows read_rows(step_options const& options) {
  input_rows rows;
  rows.folder = options.input;
  if (!fs::is_directory(rows.folder)) fail("--input: ", rows.folder.string(), " is not a folder");
  auto const path = [&](std::string_view name) { return rows.folder / name; };

  read_turns(rows);
  if (present(path("reward.npy"))) {
    rows.reward = read_numbers(path("reward.npy"));
    expect_turns(rows, "reward.npy", rows.reward->size());
  }
  read_evaluation(rows, options);
  read_proposals(rows, options);

  rows.old_logprob = read_logprobs(path("old_logprob.npy"));
  rows.rollout_logprob = read_logprobs(path("rollout_logprob.npy"));
  expect_tokens(rows, "rollout_logprob.npy",
                std::visit([](auto const& values) { return values.size(); }, rows.rollout_logprob));
  if (present(path("token_mask.npy"))) {
    rows.token_mask = read_flags(path("token_mask.npy"));
    expect_tokens(rows, "token_mask.npy", rows.token_mask.size());
  }
  rows.turn_offsets = read_integers(path("turn_offsets.npy"));
  expect_length(rows, "turn_offsets.npy", rows.turn_offsets.size(), rows.turns() + 1,
                "one more than the turns of turn_group.npy");
  check_offsets(rows);
  return rows;
}

turnwise::rollout sort_rows(input_rows const& rows) {
  std::span const offsets{rows.turn_offsets};
  return sort(rows, offsets.first(rows.turns()), offsets.subspan(1));
}

turnwise::rollout sort_rows(turn_files const& rows) { return sort(rows, {}, {}); }

}  // namespace rollout_step

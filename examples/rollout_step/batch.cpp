#include "batch.hpp"

#include "error.hpp"
#include "npy.hpp"

#include <turnwise/core/error.hpp>

#include <array>
#include <unordered_map>
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

void expect_length(input_rows const& rows, std::string_view name, std::size_t length, std::size_t expected,
                   std::string_view reason) {
  if (length != expected) fail(rows.file(name), ": shape (", length, ",), expected (", expected, ",): ", reason);
}

void expect_turns(input_rows const& rows, std::string_view name, std::size_t length) {
  expect_length(rows, name, length, rows.turns(), "one element a turn, as turn_group.npy");
}

void expect_tokens(input_rows const& rows, std::string_view name, std::size_t length) {
  expect_length(rows, name, length, rows.tokens(), "one element a token, as old_logprob.npy");
}

/// Reads the evaluation unless it may be absent and is: with a given reward, no filter, and none of its files there.
void read_evaluation(input_rows& rows, step_options const& options) {
  bool const needed = !rows.reward || options.filters().profiling_filter;
  bool any = false;
  for (auto const name : evaluation_files) any = any || present(rows.folder / name);
  if (!needed && !any) return;
  if (rows.reward && !any)
    fail(rows.file(evaluation_files.front()),
         ": no such file, and the profiling filter needs it (--no-profiling-filter)");
  evaluation_rows evaluation;
  evaluation.compiled = read_flags(rows.folder / "compiled.npy");
  expect_turns(rows, "compiled.npy", evaluation.compiled.size());
  evaluation.correct = read_flags(rows.folder / "correct.npy");
  expect_turns(rows, "correct.npy", evaluation.correct.size());
  evaluation.decoy = read_flags(rows.folder / "decoy.npy");
  expect_turns(rows, "decoy.npy", evaluation.decoy.size());
  evaluation.speedup = read_numbers(rows.folder / "speedup.npy");
  expect_turns(rows, "speedup.npy", evaluation.speedup.size());
  evaluation.generated_us = read_numbers(rows.folder / "generated_us.npy");
  expect_turns(rows, "generated_us.npy", evaluation.generated_us.size());
  evaluation.total_us = read_numbers(rows.folder / "total_us.npy");
  expect_turns(rows, "total_us.npy", evaluation.total_us.size());
  rows.evaluation = std::move(evaluation);
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

void expect_not_negative(input_rows const& rows, std::string_view name, std::vector<std::int64_t> const& values) {
  for (std::size_t row = 0; row < values.size(); ++row)
    if (values[row] < 0) fail(rows.file(name), ": row ", row, " is ", values[row], ", expected at least 0");
}

}  // namespace

input_rows read_rows(step_options const& options) {
  input_rows rows;
  rows.folder = options.input;
  if (!fs::is_directory(rows.folder)) fail("--input: ", rows.folder.string(), " is not a folder");
  auto const path = [&](std::string_view name) { return rows.folder / name; };

  rows.turn_group = read_integers(path("turn_group.npy"));
  rows.turn_trajectory = read_integers(path("turn_trajectory.npy"));
  expect_turns(rows, "turn_trajectory.npy", rows.turn_trajectory.size());
  rows.turn_index = read_integers(path("turn_index.npy"));
  expect_turns(rows, "turn_index.npy", rows.turn_index.size());
  if (present(path("turn_valid.npy"))) {
    rows.turn_valid = read_flags(path("turn_valid.npy"));
    expect_turns(rows, "turn_valid.npy", rows.turn_valid->size());
  }
  if (present(path("reward.npy"))) {
    rows.reward = read_numbers(path("reward.npy"));
    expect_turns(rows, "reward.npy", rows.reward->size());
  }
  read_evaluation(rows, options);

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
  expect_not_negative(rows, "turn_trajectory.npy", rows.turn_trajectory);
  expect_not_negative(rows, "turn_index.npy", rows.turn_index);
  std::unordered_map<std::int64_t, std::size_t> first_row;
  first_row.reserve(rows.turns());
  for (std::size_t row = 0; row < rows.turns(); ++row) {
    std::size_t const first = first_row.emplace(rows.turn_trajectory[row], row).first->second;
    if (rows.turn_group[first] != rows.turn_group[row])
      fail(rows.file("turn_group.npy"), ": row ", row, " puts trajectory ", rows.turn_trajectory[row], " into group ",
           rows.turn_group[row], ", but row ", first, " puts it into ", rows.turn_group[first]);
  }
  std::span const offsets{rows.turn_offsets};
  try {
    return turnwise::make_rollout({.group_id = rows.turn_group,
                                   .trajectory_id = rows.turn_trajectory,
                                   .turn_index = rows.turn_index,
                                   .turn_begin = offsets.first(rows.turns()),
                                   .turn_end = offsets.subspan(1),
                                   .turn_valid = rows.turn_valid ? std::span<std::uint8_t const>{*rows.turn_valid}
                                                                 : std::span<std::uint8_t const>{}},
                                  turnwise::trajectory_scope::batch);
  } catch (turnwise::precondition_error const& error) {
    // All that is left to go wrong is a repeated turn, and the message names its row.
    std::string_view message = error.what();
    constexpr std::string_view prefix = "make_rollout: ";
    if (message.starts_with(prefix)) message.remove_prefix(prefix.size());
    fail(rows.file("turn_index.npy"), ": ", message);
  }
}

}  // namespace rollout_step

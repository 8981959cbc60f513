/// @file
/// Runs turnwise-step on folders that a test makes.
#pragma once

#include "npy.hpp"

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace step_test {

namespace fs = std::filesystem;

inline std::string content_of(fs::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(fs::path const& path, std::string const& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

template <typename T>
void write_array(fs::path const& path, std::vector<T> const& values) {
  std::ofstream file(path, std::ios::binary);
  rollout_step::write_npy(file, std::span<T const>{values});
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

/// The same bytes as flags of NumPy's type bool.
inline void write_bool_array(fs::path const& path, std::vector<std::uint8_t> const& values) {
  write_array(path, values);
  std::string bytes = content_of(path);
  bytes.replace(bytes.find("|u1"), 3, "|b1");
  write_bytes(path, bytes);
}

/// A folder that is gone when the test ends.
class scratch_folder {
 public:
  scratch_folder() {
    std::random_device random;
    do path_ = fs::temp_directory_path() / ("turnwise-step-test-" + std::to_string(random()));
    while (!fs::create_directory(path_));
  }
  scratch_folder(scratch_folder const&) = delete;
  scratch_folder& operator=(scratch_folder const&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  [[nodiscard]] fs::path operator/(std::string_view name) const { return path_ / name; }
  [[nodiscard]] fs::path const& path() const { return path_; }
  /// Names of what is in it, sorted by nothing in particular.
  [[nodiscard]] std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

struct run_result {
  int code = -1;
  std::string out, err;
};

/// Runs the program with arguments as a shell reads them.
inline run_result run_step(std::string const& arguments) {
  scratch_folder const streams;
  std::string const command = std::string{"'" TURNWISE_STEP_BINARY "' "} + arguments + " >'" +
                              (streams / "out").string() + "' 2>'" + (streams / "err").string() + "' </dev/null";
  int const status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content_of(streams / "out"), content_of(streams / "err")};
}

inline run_result run_step(fs::path const& input, std::string const& arguments) {
  return run_step("--input '" + input.string() + "' " + arguments);
}

/// Exit 2, nothing on stdout, one line on stderr that holds every part.
inline void check_refused(run_result const& result, std::vector<std::string> const& parts) {
  INFO(result.err);
  CHECK(result.code == 2);
  CHECK(result.out.empty());
  CHECK(std::ranges::count(result.err, '\n') == 1);
  CHECK(result.err.ends_with('\n'));
  for (auto const& part : parts) {
    INFO(part);
    CHECK(result.err.find(part) != std::string::npos);
  }
}

/// Runs on a folder with an output folder that must not come to be.
inline void check_input_refused(fs::path const& input, std::string const& arguments,
                                std::vector<std::string> const& parts) {
  scratch_folder const scratch;
  check_refused(run_step(input, "--output '" + (scratch / "out").string() + "' " + arguments), parts);
  CHECK(scratch.entries() == 0);
}

/// Six turns of two tokens by four trajectories in two groups; every turn is on-policy. All counts as correct but row 1
/// (incorrect) and row 5 (a decoy).
struct small_batch {
  std::vector<std::int32_t> group{5, 5, 5, 5, -3, -3}, trajectory{0, 0, 1, 1, 7, 8}, index{0, 1, 0, 1, 0, 0};
  std::vector<std::int64_t> offsets{0, 2, 4, 6, 8, 10, 12};
  std::vector<std::uint8_t> compiled{1, 1, 1, 1, 1, 1}, correct{1, 0, 1, 1, 1, 1}, decoy{0, 0, 0, 0, 0, 1};
  std::vector<float> speedup{2, 0, 1.5, 4, 1, 9}, generated{8, 0, 9, 10, 5, 1}, total{10, 10, 10, 10, 10, 10};
  std::vector<float> old_logprob = std::vector<float>(12, -0.5f), rollout_logprob = old_logprob;
  std::optional<std::vector<std::uint8_t>> valid{}, mask{};
  std::optional<std::vector<double>> reward{};

  void write_evaluation(fs::path const& folder) const {
    write_array(folder / "compiled.npy", compiled);
    write_array(folder / "correct.npy", correct);
    write_array(folder / "decoy.npy", decoy);
    write_array(folder / "speedup.npy", speedup);
    write_array(folder / "generated_us.npy", generated);
    write_array(folder / "total_us.npy", total);
  }
  void write(fs::path const& folder, bool evaluation = true) const {
    fs::create_directory(folder);
    write_array(folder / "turn_group.npy", group);
    write_array(folder / "turn_trajectory.npy", trajectory);
    write_array(folder / "turn_index.npy", index);
    write_array(folder / "turn_offsets.npy", offsets);
    write_array(folder / "old_logprob.npy", old_logprob);
    write_array(folder / "rollout_logprob.npy", rollout_logprob);
    if (evaluation) write_evaluation(folder);
    if (valid) write_array(folder / "turn_valid.npy", *valid);
    if (mask) write_array(folder / "token_mask.npy", *mask);
    if (reward) write_array(folder / "reward.npy", *reward);
  }
};

/// The batch in `folder`/input as proposals, one a row, and attempts at them in `folder`/attempts, a group a proposal,
/// rows in no order. Correct attempts of groups 10 to 13: 1 of 2, 2 of 2, 0 of 1, 1 of 3 (a decoy, a failed build; a
/// trajectory counts by its last turn). Nobody tried group 14; the module of the proposal in row 2 is invalid.
struct proposal_batch {
  small_batch proposals;
  std::vector<std::int64_t> group{11, 10, 12, 13, 12, 14};
  std::vector<std::uint8_t> invalid_module{0, 0, 1, 0, 0, 0};
  std::vector<std::int64_t> attempt_group{13, 11, 10, 13, 10, 12, 11, 13, 13}, trajectory{6, 3, 0, 7, 1, 5, 4, 8, 6},
      index{1, 0, 0, 0, 0, 0, 0, 0, 0};
  std::vector<std::uint8_t> compiled{1, 1, 1, 1, 1, 1, 1, 0, 1}, correct{1, 1, 1, 1, 0, 0, 1, 1, 0},
      decoy{0, 0, 0, 1, 0, 0, 0, 0, 0};
  std::optional<std::vector<std::uint8_t>> attempt_valid{};

  void write(fs::path const& folder) const {
    fs::create_directory(folder);
    proposals.write(folder / "input", false);
    write_array(folder / "input" / "proposal_group.npy", group);
    if (!invalid_module.empty()) write_array(folder / "input" / "invalid_module.npy", invalid_module);
    fs::create_directory(folder / "attempts");
    write_array(folder / "attempts" / "turn_group.npy", attempt_group);
    write_array(folder / "attempts" / "turn_trajectory.npy", trajectory);
    write_array(folder / "attempts" / "turn_index.npy", index);
    write_array(folder / "attempts" / "compiled.npy", compiled);
    write_array(folder / "attempts" / "correct.npy", correct);
    write_array(folder / "attempts" / "decoy.npy", decoy);
    if (attempt_valid) write_array(folder / "attempts" / "turn_valid.npy", *attempt_valid);
  }
};

/// Arguments for a proposal_batch in `folder`.
inline std::string proposer(fs::path const& folder) {
  return "--recipe kernel_zero_proposer --attempts '" + (folder / "attempts").string() + "' ";
}

}  // namespace step_test

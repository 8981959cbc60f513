#include "step_runner.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

using namespace step_test;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

using change = std::function<void(small_batch&)>;

void check_batch_refused(change const& spoil, std::vector<std::string> const& parts,
                         std::string const& arguments = "--no-profiling-filter") {
  scratch_folder const scratch;
  small_batch batch;
  spoil(batch);
  batch.write(scratch / "batch");
  check_input_refused(scratch / "batch", arguments, parts);
}

/// The same, for changes to the files.
void check_files_refused(std::function<void(fs::path const&)> const& spoil, std::vector<std::string> const& parts,
                         std::string const& arguments = "") {
  scratch_folder const scratch;
  small_batch{}.write(scratch / "batch");
  spoil(scratch / "batch");
  check_input_refused(scratch / "batch", arguments, parts);
}

}  // namespace

TEST_SUITE("tool/step_errors") {
  TEST_CASE("a folder or a file that is not there, or is no array") {
    check_input_refused("/no/such/folder", "", {"--input", "/no/such/folder"});
    for (std::string const name : {"compiled.npy", "correct.npy", "decoy.npy", "speedup.npy", "generated_us.npy",
                                   "total_us.npy", "turn_offsets.npy", "turn_group.npy", "turn_trajectory.npy",
                                   "turn_index.npy", "old_logprob.npy", "rollout_logprob.npy"}) {
      CAPTURE(name);
      check_files_refused([&](fs::path const& batch) { fs::remove(batch / name); }, {name, "no such file"});
      check_files_refused([&](fs::path const& batch) { write_bytes(batch / name, "text"); }, {name});
      check_files_refused(
          [&](fs::path const& batch) {
            std::string const bytes = content_of(batch / name);
            write_bytes(batch / name, bytes.substr(0, bytes.size() - 1));
          },
          {name, "truncated"});
      check_files_refused([&](fs::path const& batch) { write_bytes(batch / name, content_of(batch / name) + "x"); },
                          {name, "follow"});
    }
    check_files_refused(
        [](fs::path const& batch) {
          fs::remove(batch / "speedup.npy");
          fs::create_directory(batch / "speedup.npy");
        },
        {"speedup.npy", "not a regular file"});
    check_files_refused([](fs::path const& batch) { fs::create_symlink("nowhere.npy", batch / "turn_valid.npy"); },
                        {"turn_valid.npy"});
  }

  TEST_CASE("arrays of a wrong type") {
    for (std::string const name : {"compiled.npy", "correct.npy", "decoy.npy", "turn_valid.npy", "token_mask.npy"})
      check_files_refused([&](fs::path const& batch) { write_array(batch / name, std::vector<std::int32_t>(6, 1)); },
                          {name, "'<i4'", "u8 or bool"});
    for (std::string const name : {"turn_group.npy", "turn_trajectory.npy", "turn_index.npy", "turn_offsets.npy"})
      check_files_refused([&](fs::path const& batch) { write_array(batch / name, std::vector<double>(6, 1)); },
                          {name, "'<f8'", "i32 or i64"});
    for (std::string const name :
         {"speedup.npy", "generated_us.npy", "total_us.npy", "old_logprob.npy", "rollout_logprob.npy", "reward.npy"})
      check_files_refused([&](fs::path const& batch) { write_array(batch / name, std::vector<std::uint8_t>(6, 1)); },
                          {name, "'|u1'", "f32 or f64"});
  }

  TEST_CASE("arrays of a wrong length") {
    using flags = std::vector<std::uint8_t>;
    check_batch_refused([](small_batch& batch) { batch.trajectory.pop_back(); }, {"turn_trajectory.npy", "5", "6"});
    check_batch_refused([](small_batch& batch) { batch.index.push_back(3); }, {"turn_index.npy", "7", "6"});
    check_batch_refused([](small_batch& batch) { batch.compiled.pop_back(); }, {"compiled.npy"});
    check_batch_refused([](small_batch& batch) { batch.correct.pop_back(); }, {"correct.npy"});
    check_batch_refused([](small_batch& batch) { batch.decoy.clear(); }, {"decoy.npy", "(0,)"});
    check_batch_refused([](small_batch& batch) { batch.speedup.push_back(1); }, {"speedup.npy"});
    check_batch_refused([](small_batch& batch) { batch.generated.pop_back(); }, {"generated_us.npy"});
    check_batch_refused([](small_batch& batch) { batch.total.pop_back(); }, {"total_us.npy"});
    check_batch_refused([](small_batch& batch) { batch.valid = flags{}; }, {"turn_valid.npy"});
    check_batch_refused([](small_batch& batch) { batch.reward = std::vector<double>(5); }, {"reward.npy"});
    check_batch_refused([](small_batch& batch) { batch.mask = flags(11, 1); }, {"token_mask.npy", "11", "12"});
    check_batch_refused([](small_batch& batch) { batch.mask = flags{}; }, {"token_mask.npy"});
    check_batch_refused([](small_batch& batch) { batch.rollout_logprob.pop_back(); }, {"rollout_logprob.npy"});
    check_batch_refused([](small_batch& batch) { batch.offsets.pop_back(); }, {"turn_offsets.npy", "(6,)", "(7,)"});
    check_batch_refused([](small_batch& batch) { batch.offsets.clear(); }, {"turn_offsets.npy", "(0,)"});
  }

  TEST_CASE("offsets that decrease or leave the tokens") {
    std::string const file = "turn_offsets.npy";
    check_batch_refused([](small_batch& batch) { batch.offsets[0] = -1; }, {file, "entry 0 is -1"});
    check_batch_refused([](small_batch& batch) { batch.offsets[3] = 3; }, {file, "entry 3 is 3", "4"});
    check_batch_refused([](small_batch& batch) { batch.offsets[6] = 13; }, {file, "entry 6 is 13", "12 tokens"});
    check_batch_refused([](small_batch& batch) { batch.offsets[1] = 100; }, {file, "entry 1 is 100"});
    check_batch_refused([](small_batch& batch) { batch.offsets[4] = std::int64_t{1} << 62; }, {file, "entry 4"});
  }

  TEST_CASE("rows that do not make trajectories, named by their place in the input") {
    check_batch_refused([](small_batch& batch) { batch.trajectory = {3, 3, -2, 1, -7, 8}; },
                        {"turn_trajectory.npy", "row 2 is -2"});
    check_batch_refused([](small_batch& batch) { batch.index = {1, 0, 1, -1, 0, -5}; },
                        {"turn_index.npy", "row 3 is -1"});
    check_batch_refused([](small_batch& batch) { batch.index = {1, 0, 2, 2, 0, 0}; },
                        {"turn_index.npy", "row 3", "turn 2", "trajectory 1"});
    check_files_refused(
        [](fs::path const& batch) {
          write_array(batch / "turn_trajectory.npy", std::vector<std::int64_t>{0, 0, 1, 1, std::int64_t{1} << 32, 8});
        },
        {"turn_trajectory.npy", "row 4 is 4294967296", "2^32"});
  }

  TEST_CASE("infinite ingredients of a correct turn, named by their row in any order of the rows") {
    // Group -3 sorts first, so row 4 comes before row 2 in the library.
    change const mix = [](small_batch& batch) {
      batch.speedup[1] = batch.speedup[5] = infinity;  // not correct: ignored
      batch.speedup[2] = batch.speedup[4] = infinity;
    };
    check_batch_refused(mix, {"speedup.npy", "row 2 is infinite"});
    check_batch_refused(mix, {"speedup.npy", "row 2 is infinite"}, "--recipe kernel_zero");
    check_batch_refused(mix, {"speedup.npy", "row 2 is infinite"}, "--recipe kevin");
    check_batch_refused([](small_batch& batch) { batch.generated[3] = infinity; }, {"generated_us.npy", "row 3"});
    check_batch_refused([](small_batch& batch) { batch.total[3] = -infinity; }, {"total_us.npy", "row 3"});
    check_batch_refused([](small_batch& batch) { batch.reward = std::vector<double>{0, 0, -infinity, 0, infinity, 0}; },
                        {"reward.npy", "row 2"});
  }

  TEST_CASE("what an option calls an error, named by its row") {
    auto const missing = [](small_batch& batch) { batch.speedup[2] = batch.speedup[4] = nan_value; };
    check_batch_refused(missing, {"speedup.npy", "row 2", "--unscored"}, "--unscored error");
    check_batch_refused(missing, {"speedup.npy", "row 2", "--unscored"}, "--recipe kevin --unscored error");
    check_batch_refused(
        [](small_batch& batch) { batch.reward = std::vector<double>{0, 0, 0, nan_value, nan_value, 0}; },
        {"reward.npy", "row 3", "--unscored"}, "--unscored error");
    auto const broken = [](small_batch& batch) { batch.rollout_logprob[5] = batch.old_logprob[9] = nan_value; };
    check_batch_refused(broken, {"rollout_logprob.npy", "token 5", "row 2", "--non-finite"}, "--non-finite error");
    auto const overflowing = [](small_batch& batch) {
      batch.old_logprob[7] = -3e38f;
      batch.rollout_logprob[7] = 3e38f;
    };
    check_batch_refused(overflowing, {"old_logprob.npy", "token 7", "row 3"}, "--non-finite error");
    auto const meaningless = [](small_batch& batch) { batch.total[2] = batch.total[4] = batch.total[5] = 0; };
    check_batch_refused(meaningless, {"total_us.npy", "row 2", "--invalid-profile"}, "--invalid-profile error");
    check_batch_refused(meaningless, {"total_us.npy", "row 2"},
                        "--recipe kernel_zero --profiling-threshold 0.3 --invalid-profile error");
  }

  TEST_CASE("what an option calls an error is none on turns that are not valid") {
    small_batch batch;
    batch.valid = std::vector<std::uint8_t>{1, 1, 1, 1, 0, 1};
    batch.speedup[4] = batch.old_logprob[8] = nan_value;
    batch.total[4] = 0;
    scratch_folder const scratch;
    batch.write(scratch / "batch");
    run_result const result =
        run_step(scratch / "batch", "--unscored error --non-finite error --invalid-profile error");
    CHECK(result.err.empty());
    CHECK(result.code == 0);
  }

  TEST_CASE("an evaluation that is missing or incomplete beside a given reward") {
    scratch_folder const scratch;
    small_batch batch;
    batch.reward = std::vector<double>(6, 1);
    batch.write(scratch / "batch", false);
    check_input_refused(scratch / "batch", "", {"compiled.npy", "--no-profiling-filter"});
    write_array(scratch / "batch" / "speedup.npy", batch.speedup);
    check_input_refused(scratch / "batch", "--no-profiling-filter", {"compiled.npy", "no such file"});
  }

  TEST_CASE("proposals and attempts that are missing, of a wrong shape, or not asked for") {
    scratch_folder const scratch;
    proposal_batch batch;
    batch.write(scratch / "batch");
    fs::path const input = scratch / "batch" / "input", attempts = scratch / "batch" / "attempts";
    auto const options = proposer(scratch / "batch");
    check_input_refused(input, "--recipe kernel_zero_proposer", {"--attempts", "needed", "reward.npy"});
    check_input_refused(input, "--recipe kernel_zero --attempts x", {"--attempts", "kernel_zero_proposer alone"});
    check_input_refused(input, "--recipe kernel_zero_proposer --attempts ''", {"--attempts", "empty path"});
    check_input_refused(input, "--recipe kernel_zero_proposer --attempts no/such", {"--attempts", "not a folder"});
    check_input_refused(input, options + "--gamma 1", {"--gamma", "kernel_zero_proposer"});
    check_input_refused(input, options + "--profiling-threshold 0.3", {"compiled.npy", "--no-profiling-filter"});
    check_input_refused(input, options + "--unscored error", {"proposal_group.npy", "row 5 is 14", "without attempts"});
    write_array(input / "invalid_module.npy", std::vector<std::uint8_t>(5));
    check_input_refused(input, options, {"invalid_module.npy", "(5,)", "(6,)"});
    batch.write(scratch / "batch");
    write_array(attempts / "decoy.npy", std::vector<std::uint8_t>(8));
    check_input_refused(input, options, {"attempts/decoy.npy", "(8,)", "(9,)"});
    batch.write(scratch / "batch");
    write_array(attempts / "turn_index.npy", std::vector<std::int64_t>{0, 0, 0, 0, 0, 0, 0, 0, 0});
    check_input_refused(input, options, {"attempts/turn_index.npy", "row 8", "turn 0", "trajectory 6"});
    batch.write(scratch / "batch");
    write_array(input / "reward.npy", std::vector<double>(6));
    check_input_refused(input, options, {"--attempts", "reward.npy"});
    fs::remove(input / "reward.npy");
    fs::remove(input / "proposal_group.npy");
    check_input_refused(input, options, {"proposal_group.npy", "no such file"});
  }

  TEST_CASE("an output folder that cannot be written") {
    scratch_folder const scratch;
    write_bytes(scratch / "file", "");
    auto const refused = [&](fs::path const& output, std::vector<std::string> const& parts) {
      check_refused(run_step(TURNWISE_DEMO_DATA, "--output '" + output.string() + "'"), parts);
    };
    refused(scratch / "file", {"--output", "file"});
    refused(scratch / "file" / "out", {"--output", "file"});
    refused(scratch / "no" / "such" / "parent", {"--output", "parent"});
    refused("/proc/turnwise-step-test", {"--output", "/proc/turnwise-step-test"});
    refused(TURNWISE_DEMO_DATA, {"--output", "input"});
    refused("", {"--output"});
    CHECK(scratch.entries() == 1);

    fs::create_directories(scratch / "out" / "keep.npy");
    write_bytes(scratch / "out" / "reward.npy", "old");
    refused(scratch / "out", {"--output", "keep.npy"});
    CHECK(content_of(scratch / "out" / "reward.npy") == "old");
    CHECK(std::distance(fs::directory_iterator(scratch / "out"), fs::directory_iterator()) == 2);
  }

  TEST_CASE("an output folder that exists keeps its other files") {
    scratch_folder const scratch;
    fs::create_directory(scratch / "out");
    write_bytes(scratch / "out" / "reward.npy", "old");
    write_bytes(scratch / "out" / "notes.txt", "mine");
    CHECK(run_step(TURNWISE_DEMO_DATA, "--output '" + (scratch / "out").string() + "/'").code == 0);
    CHECK(content_of(scratch / "out" / "reward.npy") != "old");
    CHECK(content_of(scratch / "out" / "notes.txt") == "mine");
    CHECK(std::distance(fs::directory_iterator(scratch / "out"), fs::directory_iterator()) == 9);
    // An error leaves it as it is.
    std::string const before = content_of(scratch / "out" / "metrics.json");
    CHECK(run_step(TURNWISE_DEMO_DATA, "--gamma 7 --output '" + (scratch / "out").string() + "'").code == 2);
    CHECK(content_of(scratch / "out" / "metrics.json") == before);
  }
}

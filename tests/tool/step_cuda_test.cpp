#include "backend.hpp"
#include "step_runner.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

using namespace step_test;
using nlohmann::json;

namespace {

constexpr std::array result_files{"reward.npy", "turn_return.npy",     "advantage.npy",      "keep.npy",
                                  "reason.npy", "geometric_ratio.npy", "token_advantage.npy"};

/// Numbers with a fraction may differ in the order of sums, anything else not at all.
void check_same(json const& value, json const& expected, std::string const& name) {
  CAPTURE(name);
  REQUIRE(value.type() == expected.type());
  if (expected.is_number_float()) {
    auto const number = expected.get<double>();
    CHECK(std::abs(value.get<double>() - number) <= 1e-12 * std::max(1.0, std::abs(number)));
  } else if (expected.is_structured()) {
    REQUIRE(value.size() == expected.size());
    for (auto const& [key, part] : expected.items()) {
      json const& other = expected.is_object() ? value.at(key) : value.at(std::stoul(key));
      check_same(other, part, name + '/' + key);
    }
  } else {
    CHECK(value == expected);
  }
}

/// metrics.json without what tells the runs apart.
json report_of(fs::path const& folder) {
  json report = json::parse(content_of(folder / "metrics.json"));
  report.erase("time");
  report["options"].erase("backend");
  return report;
}

void run_backend(fs::path const& input, fs::path const& output, std::string const& arguments) {
  run_result const result = run_step(input, "--output '" + output.string() + "' " + arguments);
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(result.err.empty());
}

/// Runs both backends and compares all that they write.
void compare_backends(fs::path const& input, std::string const& arguments) {
  CAPTURE(input);
  CAPTURE(arguments);
  scratch_folder const scratch;
  run_backend(input, scratch / "cpu", arguments + " --backend cpu");
  run_backend(input, scratch / "cuda", arguments + " --backend cuda");
  for (auto const* file : result_files) {
    CAPTURE(file);
    CHECK(content_of(scratch / "cuda" / file) == content_of(scratch / "cpu" / file));
  }
  check_same(report_of(scratch / "cuda"), report_of(scratch / "cpu"), "");
  CHECK(std::distance(fs::directory_iterator(scratch / "cuda"), {}) ==
        std::distance(fs::directory_iterator(scratch / "cpu"), {}));
}

constexpr std::array recipes{
    "",
    "--preset paper --seed 3 --step 5",
    "--gamma 0.4 --singleton zero --baseline-members kept --ratio-level turn --non-finite neutral",
    "--recipe kernel_zero",
    "--recipe kernel_zero --group-by turn --ratio-band 0.999,1.001 --token-veto 1e-4 --profiling-threshold 0.3",
    "--recipe kevin",
    "--recipe kevin --return max --gamma 0.7 --speedup-cap 3 --baseline-members kept --ratio-band 0.999,1.001 "
    "--profiling-threshold 0.3",
    "--recipe kevin --return best_so_far --unscored zero"};

}  // namespace

TEST_SUITE("tool/step_cuda" * doctest::skip(!rollout_step::has_cuda_device())) {
  TEST_CASE("both backends write the same files") {
    fs::path const data = TURNWISE_TEST_DATA;
    for (fs::path const& input : {fs::path{TURNWISE_DEMO_DATA}, data / "kernel_rollouts_b", data / "stress"})
      for (auto const* arguments : recipes) compare_backends(input, arguments);
  }

  TEST_CASE("log-probs of two types, flags, a mask and given rewards") {
    scratch_folder const scratch;
    small_batch batch;
    batch.valid = {1, 1, 0, 1, 1, 1};
    batch.mask = std::vector<std::uint8_t>(12, 1);
    (*batch.mask)[3] = (*batch.mask)[8] = 0;
    for (std::size_t n = 0; n < 12; ++n) batch.old_logprob[n] += 1e-4f * static_cast<float>(n % 5);
    batch.write(scratch / "flags");
    batch.reward = std::vector<double>{1, -2.5, 0, -0.0, 4, 1};
    batch.write(scratch / "given");
    batch.write(scratch / "mixed");
    std::vector<double> const wide(batch.old_logprob.begin(), batch.old_logprob.end());
    write_array(scratch / "mixed" / "old_logprob.npy", wide);
    batch.write(scratch / "wide");
    write_array(scratch / "wide" / "old_logprob.npy", wide);
    write_array(scratch / "wide" / "rollout_logprob.npy",
                std::vector<double>(batch.rollout_logprob.begin(), batch.rollout_logprob.end()));
    batch.write(scratch / "bare", false);
    for (auto const* name : {"flags", "given", "mixed", "wide"})
      for (auto const* arguments : recipes) compare_backends(scratch / name, arguments);
    compare_backends(scratch / "bare", "--no-profiling-filter");
    compare_backends(scratch / "bare", "--recipe kernel_zero");
    compare_backends(scratch / "bare", "--recipe kevin --return last");
  }

  TEST_CASE("proposals, with attempts and with given rewards") {
    scratch_folder const scratch;
    proposal_batch batch;
    batch.write(scratch / "batch");
    for (std::string const options : {"", "--group-by turn --unscored zero --ratio-band 0.999,1.001"})
      compare_backends(scratch / "batch" / "input", proposer(scratch / "batch") + options);
    batch.invalid_module = {};
    batch.attempt_valid = {0, 1, 1, 1, 1, 1, 1, 1, 1};
    batch.write(scratch / "all");
    compare_backends(scratch / "all" / "input", proposer(scratch / "all"));
    batch.attempt_valid = {};
    batch.attempt_group = batch.trajectory = batch.index = {};
    batch.compiled = batch.correct = batch.decoy = {};
    batch.write(scratch / "none");
    compare_backends(scratch / "none" / "input", proposer(scratch / "none"));
    batch.proposals.reward = std::vector<double>{1, -2.5, 0, -0.0, 4, 1};
    batch.write(scratch / "given");
    compare_backends(scratch / "given" / "input", "--recipe kernel_zero_proposer");
  }

  TEST_CASE("no turns, no tokens") {
    scratch_folder const scratch;
    small_batch empty;
    empty.group = empty.trajectory = empty.index = {};
    empty.offsets = {0};
    empty.compiled = empty.correct = empty.decoy = {};
    empty.speedup = empty.generated = empty.total = empty.old_logprob = empty.rollout_logprob = {};
    empty.write(scratch / "turns");
    small_batch tokenless;
    tokenless.offsets = std::vector<std::int64_t>(7, 0);
    tokenless.old_logprob = tokenless.rollout_logprob = {};
    tokenless.write(scratch / "tokens");
    for (auto const* name : {"turns", "tokens"})
      for (auto const* arguments : recipes) compare_backends(scratch / name, arguments);
  }

  TEST_CASE("the table says what its time holds") {
    run_result const result = run_step(fs::path{TURNWISE_DEMO_DATA}, "--backend cuda");
    CHECK(result.code == 0);
    CHECK(result.out.find("on the GPU with transfers") != std::string::npos);
  }

  TEST_CASE("what the device finds wrong is one line, and nothing is written") {
    scratch_folder const scratch;
    small_batch batch;
    batch.reward = std::vector<double>(6, std::ldexp(1.0, 500));  // returns beyond the limit
    batch.write(scratch / "batch");
    for (std::string const backend : {"cpu", "cuda"})
      check_input_refused(scratch / "batch", "--backend " + backend, {"return", "magnitude limit"});
  }
}

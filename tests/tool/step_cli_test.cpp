#include "step_runner.hpp"

#include "support/npy.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <turnwise/core/reason.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

using namespace step_test;
using turnwise::test::load_npy;

namespace {

fs::path const demo = TURNWISE_DEMO_DATA;
fs::path const test_data = TURNWISE_TEST_DATA;

constexpr std::array turn_files{"reward.npy", "turn_return.npy", "advantage.npy", "geometric_ratio.npy"};

fs::path batch_folder(std::string const& name) { return name == "kernel_rollouts_a" ? demo : test_data / name; }

/// The u32 elements of a file whose header is as NumPy writes it.
std::vector<std::uint32_t> load_u32(fs::path const& path) {
  std::string const bytes = content_of(path);
  CHECK(bytes.find("'descr': '<u4'") != std::string::npos);
  std::size_t const begin = bytes.find('\n') + 1;
  std::vector<std::uint32_t> values((bytes.size() - begin) / 4);
  std::memcpy(values.data(), bytes.data() + begin, 4 * values.size());
  return values;
}

/// Runs and expects success; the results are then in `output`.
run_result succeed(fs::path const& input, fs::path const& output, std::string const& arguments = "") {
  run_result const result = run_step(input, "--output '" + output.string() + "' " + arguments);
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(result.err.empty());
  return result;
}

void check_close(std::vector<double> const& values, std::vector<double> const& expected) {
  REQUIRE(values.size() == expected.size());
  double largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) largest = std::max(largest, std::abs(values[i] - expected[i]));
  CHECK(largest < 1e-6);
}

template <typename T>
std::vector<T> permuted(std::vector<T> const& values, std::vector<std::size_t> const& order) {
  std::vector<T> result;
  for (std::size_t const i : order) result.push_back(values[i]);
  return result;
}

/// The numbers of a report, wherever they stand, are finite: a NaN or an infinity would be null.
void check_no_null(nlohmann::json const& value) {
  CHECK_FALSE(value.is_null());
  if (value.is_structured())
    for (auto const& part : value) check_no_null(part);
}

/// Writes the batch of `from` with its rows, and their tokens with them, in another order.
void write_permuted(fs::path const& from, fs::path const& to, std::vector<std::size_t> const& rows) {
  fs::create_directory(to);
  for (auto const* name : {"turn_group.npy", "turn_trajectory.npy", "turn_index.npy"})
    write_array(to / name, permuted(load_npy<std::int32_t>(from / name), rows));
  for (auto const* name : {"compiled.npy", "correct.npy", "decoy.npy"})
    write_array(to / name, permuted(load_npy<std::uint8_t>(from / name), rows));
  for (auto const* name : {"speedup.npy", "generated_us.npy", "total_us.npy"})
    write_array(to / name, permuted(load_npy<float>(from / name), rows));
  auto const offsets = load_npy<std::int64_t>(from / "turn_offsets.npy");
  std::vector<std::int64_t> new_offsets{0};
  std::vector<std::size_t> tokens;
  for (std::size_t const row : rows) {
    for (auto n = offsets[row]; n < offsets[row + 1]; ++n) tokens.push_back(static_cast<std::size_t>(n));
    new_offsets.push_back(static_cast<std::int64_t>(tokens.size()));
  }
  write_array(to / "turn_offsets.npy", new_offsets);
  for (auto const* name : {"old_logprob.npy", "rollout_logprob.npy"})
    write_array(to / name, permuted(load_npy<float>(from / name), tokens));
}

}  // namespace

TEST_SUITE("tool/step_cli") {
  TEST_CASE("the demo prints tables of at most 100 columns") {
    run_result const result = run_step(demo, "");
    CHECK(result.code == 0);
    CHECK(result.err.empty());
    for (auto const* part : {"758 turns, 256 trajectories, 16 prompts, 66,965 tokens", "dr_kernel, preset released",
                             "DECISIONS", "kept", "profiling", "ratio_low", "turn 2", "SPREAD", "reward", "advantage",
                             "MISMATCH", "KL k1", "WARNINGS", "ms for the step", "M tokens/s"}) {
      INFO(part);
      CHECK(result.out.find(part) != std::string::npos);
    }
    for (std::size_t begin = 0; begin < result.out.size(); begin = result.out.find('\n', begin) + 1)
      CHECK(result.out.find('\n', begin) - begin <= 100);
  }

  TEST_CASE("the files have the types and lengths of the batch") {
    scratch_folder const scratch;
    fs::path const out = scratch / "out";
    succeed(demo, out);
    for (auto const* name : turn_files) CHECK(load_npy<double>(out / name).size() == 758);
    auto const keep = load_npy<std::uint8_t>(out / "keep.npy");
    auto const reason = load_u32(out / "reason.npy");
    auto const advantage = load_npy<double>(out / "advantage.npy");
    auto const token_advantage = load_npy<float>(out / "token_advantage.npy");
    auto const offsets = load_npy<std::int64_t>(demo / "turn_offsets.npy");
    REQUIRE(keep.size() == 758);
    REQUIRE(reason.size() == 758);
    REQUIRE(token_advantage.size() == 66965);
    bool consistent = true;
    for (std::size_t row = 0; row < keep.size(); ++row) {
      consistent = consistent && keep[row] == (reason[row] == 0);
      for (auto n = offsets[row]; n < offsets[row + 1]; ++n)
        consistent = consistent && token_advantage[static_cast<std::size_t>(n)] ==
                                       (keep[row] != 0 ? static_cast<float>(advantage[row]) : 0.f);
    }
    CHECK(consistent);
    CHECK(std::distance(fs::directory_iterator(out), fs::directory_iterator()) == 8);
    CHECK(scratch.entries() == 1);
  }

  TEST_CASE("metrics.json and --json hold the same finite numbers, and they add up") {
    scratch_folder const scratch;
    run_result const result = succeed(demo, scratch / "out", "--json");
    CHECK(result.out == content_of(scratch / "out" / "metrics.json"));
    auto const report = nlohmann::json::parse(result.out);
    check_no_null(report);
    auto const keep = load_npy<std::uint8_t>(scratch / "out" / "keep.npy");
    auto const kept = std::accumulate(keep.begin(), keep.end(), 0);
    CHECK(report["batch"]["tokens"] == 66965);
    CHECK(report["metrics"]["valid"]["kept"] == kept);
    CHECK(report["options"]["recipe"] == "dr_kernel");
    CHECK(report["options"]["reward"]["speedup_cap"] == 3.0);
    CHECK(report["options"]["token_veto"]["scope"] == "turn");
    CHECK(report["time"]["seconds"] > 0);
    int turns = 0, kept_by_index = 0, profiling = 0;
    for (auto const& one : report["by_turn_index"]) {
      turns += one["turns"].get<int>();
      kept_by_index += one["kept"].get<int>();
      profiling += one["reasons"]["profiling"].get<int>();
      CHECK(one["advantage"]["min"] <= one["advantage"]["mean"]);
      CHECK(one["advantage"]["mean"] <= one["advantage"]["max"]);
    }
    CHECK(turns == 758);
    CHECK(kept_by_index == kept);
    CHECK(report["metrics"]["reasons"]["profiling"] == profiling);
    CHECK(report["metrics"]["reasons"].size() == turnwise::reason::names.size());
  }

  TEST_CASE("rewards, returns and advantages are those of the published trainer") {
    for (std::string const batch : {"kernel_rollouts_a", "kernel_rollouts_b", "stress"})
      for (std::string const preset : {"paper", "released"}) {
        CAPTURE(batch);
        CAPTURE(preset);
        scratch_folder const scratch;
        fs::path const out = scratch / "out";
        succeed(batch_folder(batch), out, "--preset " + preset);
        std::string const expected = (test_data / batch / "expected" / ("drkernel_" + preset)).string();
        check_close(load_npy<double>(out / "reward.npy"), load_npy<double>(expected + "_reward.npy"));
        check_close(load_npy<double>(out / "turn_return.npy"), load_npy<double>(expected + "_return.npy"));
        check_close(load_npy<double>(out / "advantage.npy"), load_npy<double>(expected + "_trloo_advantage.npy"));
      }
  }

  TEST_CASE("kevin: scores, returns and advantages as published") {
    for (std::string const batch : {"kernel_rollouts_a", "kernel_rollouts_b", "stress"}) {
      CAPTURE(batch);
      scratch_folder const scratch;
      fs::path const out = scratch / "out";
      succeed(batch_folder(batch), out, "--recipe kevin");
      fs::path const expected = test_data / batch / "expected";
      auto const turn_return = load_npy<double>(expected / "kevin_return.npy");
      check_close(load_npy<double>(out / "reward.npy"), load_npy<double>(expected / "kevin_reward.npy"));
      check_close(load_npy<double>(out / "turn_return.npy"), turn_return);
      auto const got = load_npy<double>(out / "advantage.npy");
      auto advantage = load_npy<double>(expected / "kevin_advantage.npy");
      // A lone turn of a prompt keeps its return over 1 + epsilon there; here it gets 0.
      for (std::size_t row = 0; row < advantage.size(); ++row)
        if (batch == "stress" && got[row] == 0 && std::abs(advantage[row] * (1 + 1e-6) - turn_return[row]) < 1e-5)
          advantage[row] = 0;
      check_close(got, advantage);
    }
  }

  TEST_CASE("keep masks are those of the published trainer") {
    struct mask {
      std::string name, level, kind;
    };
    for (std::string const batch : {"kernel_rollouts_a", "kernel_rollouts_b", "stress"})
      for (mask const& one :
           {mask{"turn_geo", "turn", "geometric"}, mask{"turn", "turn", "product"},
            mask{"geometric", "trajectory", "geometric"}, mask{"sequence", "trajectory", "product"}}) {
        CAPTURE(batch);
        CAPTURE(one.name);
        scratch_folder const scratch;
        succeed(batch_folder(batch), scratch / "out",
                "--ratio-level " + one.level + " --ratio-kind " + one.kind + " --ratio-band 0.999,1.001 --token-veto " +
                    (batch == "stress" ? "1e-4" : "0.9") + " --veto-scope turn --no-profiling-filter");
        CHECK(load_npy<std::uint8_t>(scratch / "out" / "keep.npy") ==
              load_npy<std::uint8_t>(test_data / batch / "expected" / ("mrs_" + one.name + "_keep.npy")));
      }
  }

  TEST_CASE("the profiling filter keeps what has probability 1 and nothing that has probability 0") {
    scratch_folder const scratch;
    succeed(demo, scratch / "out", "--no-ratio-band --no-token-veto --step 7");
    auto const keep = load_npy<std::uint8_t>(scratch / "out" / "keep.npy");
    auto const probability = load_npy<double>(test_data / "kernel_rollouts_a" / "expected" / "prs_probability.npy");
    REQUIRE(keep.size() == probability.size());
    bool agrees = true;
    for (std::size_t row = 0; row < keep.size(); ++row)
      agrees = agrees && (probability[row] < 1 || keep[row] == 1) && (probability[row] > 0 || keep[row] == 0);
    CHECK(agrees);
  }

  TEST_CASE("geometric_ratio is the mean's exponential at the ratio level") {
    auto const old_logprob = load_npy<float>(demo / "old_logprob.npy");
    auto const rollout_logprob = load_npy<float>(demo / "rollout_logprob.npy");
    auto const offsets = load_npy<std::int64_t>(demo / "turn_offsets.npy");
    auto const trajectory = load_npy<std::int32_t>(demo / "turn_trajectory.npy");
    std::size_t const turns = trajectory.size();
    auto const key = [&](bool of_turn, std::size_t row) {
      return of_turn ? row : static_cast<std::size_t>(trajectory[row]);
    };
    for (bool const of_turn : {true, false}) {
      std::vector<double> sum(turns), count(turns), expected(turns);
      for (std::size_t row = 0; row < turns; ++row)
        for (auto n = static_cast<std::size_t>(offsets[row]); n < static_cast<std::size_t>(offsets[row + 1]); ++n) {
          sum[key(of_turn, row)] += static_cast<double>(old_logprob[n]) - static_cast<double>(rollout_logprob[n]);
          ++count[key(of_turn, row)];
        }
      for (std::size_t row = 0; row < turns; ++row)
        expected[row] = std::exp(sum[key(of_turn, row)] / count[key(of_turn, row)]);
      scratch_folder const scratch;
      succeed(demo, scratch / "out",
              std::string{"--no-ratio-band --ratio-kind product --ratio-level "} + (of_turn ? "turn" : "trajectory"));
      check_close(load_npy<double>(scratch / "out" / "geometric_ratio.npy"), expected);
    }
  }

  TEST_CASE("rows in another order give the same bits, in that order, with one thread and with two") {
    std::vector<std::size_t> rows(758);
    std::iota(rows.begin(), rows.end(), std::size_t{0});
    std::ranges::shuffle(rows, std::mt19937{5});
    scratch_folder const scratch;
    write_permuted(demo, scratch / "batch", rows);
    std::string const options = "--singleton others --baseline-members kept";
    succeed(demo, scratch / "sorted", options + " --threads 1");
    succeed(scratch / "batch", scratch / "mixed", options + " --threads 2");
    auto const sorted = [&](std::string const& name) { return scratch / "sorted" / name; };
    auto const mixed = [&](std::string const& name) { return scratch / "mixed" / name; };
    auto const bits = [](std::vector<double> const& values) {
      std::vector<std::uint64_t> result;
      for (double const value : values) result.push_back(std::bit_cast<std::uint64_t>(value));
      return result;
    };
    for (auto const* name : turn_files)
      CHECK(bits(load_npy<double>(mixed(name))) == permuted(bits(load_npy<double>(sorted(name))), rows));
    CHECK(load_npy<std::uint8_t>(mixed("keep.npy")) == permuted(load_npy<std::uint8_t>(sorted("keep.npy")), rows));
    CHECK(load_u32(mixed("reason.npy")) == permuted(load_u32(sorted("reason.npy")), rows));

    auto const offsets = load_npy<std::int64_t>(demo / "turn_offsets.npy");
    std::vector<std::size_t> tokens;
    for (std::size_t const row : rows)
      for (auto n = offsets[row]; n < offsets[row + 1]; ++n) tokens.push_back(static_cast<std::size_t>(n));
    CHECK(load_npy<float>(mixed("token_advantage.npy")) ==
          permuted(load_npy<float>(sorted("token_advantage.npy")), tokens));
    auto const report = [&](fs::path const& path) { return nlohmann::json::parse(content_of(path)); };
    CHECK(report(mixed("metrics.json"))["metrics"] == report(sorted("metrics.json"))["metrics"]);
    CHECK(report(mixed("metrics.json"))["by_turn_index"] == report(sorted("metrics.json"))["by_turn_index"]);
  }
}

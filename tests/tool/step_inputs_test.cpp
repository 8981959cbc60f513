#include "step_runner.hpp"

#include "support/npy.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using namespace step_test;
using turnwise::test::load_npy;

namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

/// One run on a batch, its results read back.
struct step_run {
  run_result result;
  std::vector<double> reward, turn_return, advantage, ratio;
  std::vector<std::uint8_t> keep;
  std::vector<float> token_advantage;
  nlohmann::json report;
};

step_run run_on(fs::path const& input, std::string const& arguments = "") {
  scratch_folder const scratch;
  fs::path const out = scratch / "out";
  step_run run;
  run.result = run_step(input, "--json --output '" + out.string() + "' " + arguments);
  INFO(run.result.err);
  REQUIRE(run.result.code == 0);
  run.reward = load_npy<double>(out / "reward.npy");
  run.turn_return = load_npy<double>(out / "turn_return.npy");
  run.advantage = load_npy<double>(out / "advantage.npy");
  run.ratio = load_npy<double>(out / "geometric_ratio.npy");
  run.keep = load_npy<std::uint8_t>(out / "keep.npy");
  run.token_advantage = load_npy<float>(out / "token_advantage.npy");
  run.report = nlohmann::json::parse(run.result.out);
  return run;
}

step_run run_on(small_batch const& batch, std::string const& arguments = "", bool evaluation = true) {
  scratch_folder const scratch;
  batch.write(scratch / "batch", evaluation);
  return run_on(scratch / "batch", arguments);
}

bool same_turns(step_run const& a, step_run const& b) {
  return a.reward == b.reward && a.turn_return == b.turn_return && a.advantage == b.advantage && a.keep == b.keep;
}

using doubles = std::vector<double>;
using flags = std::vector<std::uint8_t>;

std::string const no_filters = "--no-ratio-band --no-token-veto --no-profiling-filter ";

}  // namespace

TEST_SUITE("tool/step_inputs") {
  TEST_CASE("rewards, returns and advantages of a batch worked out by hand") {
    auto const run = run_on(small_batch{}, no_filters);
    // 0.5 (1 + min(speedup, 3) + PR); PR = 0.8, -, 0.9, 1, 0.5, -
    doubles const reward{1.9, 0, 1.7, 2.5, 1.25, 0};
    doubles const turn_return{1.9, 0, 4.2, 2.5, 1.25, 0};
    doubles const advantage{1.9 - 4.2, -2.5, 4.2 - 1.9, 2.5, 1.25, -1.25};
    for (std::size_t row = 0; row < 6; ++row) {
      CHECK(run.reward[row] == doctest::Approx(reward[row]));
      CHECK(run.turn_return[row] == doctest::Approx(turn_return[row]));
      CHECK(run.advantage[row] == doctest::Approx(advantage[row]));
    }
    CHECK(run.keep == flags{1, 1, 1, 1, 1, 1});
    CHECK(run.ratio == doubles(6, 1.0));
    CHECK(run.report["metrics"]["speedup_outliers"] == 1);
    CHECK(run.report["warnings"].contains("speedup_outlier"));
  }

  TEST_CASE("each option of the reward overrides its part of the preset") {
    auto const run = run_on(small_batch{}, no_filters +
                                               "--gamma 0.5 --correct-weight 1 --speedup-weight 2 --profiling-weight 4 "
                                               "--speedup-cap 3.5 --speedup-floor 1.6");
    CHECK(run.reward[0] == doctest::Approx(1 + 2 * 2 + 4 * 0.8));
    CHECK(run.reward[2] == doctest::Approx(1 + 0 + 4 * 0.9));
    CHECK(run.reward[3] == doctest::Approx(1 + 2 * 3.5 + 4 * 1));
    CHECK(run.turn_return[2] == doctest::Approx(run.reward[2] + 0.5 * run.reward[3]));
    CHECK(run.report["options"]["gamma"] == 0.5);
    CHECK(run_on(small_batch{}, "--speedup-cap inf").report["options"]["reward"]["speedup_cap"].is_null());
  }

  TEST_CASE("wide ids, flags of type bool and wide times change no bit") {
    small_batch const batch;
    auto const plain = run_on(batch);
    scratch_folder const scratch;
    fs::path const folder = scratch / "batch";
    batch.write(folder);
    write_array(folder / "turn_group.npy", std::vector<std::int64_t>(batch.group.begin(), batch.group.end()));
    write_array(folder / "turn_trajectory.npy",
                std::vector<std::int64_t>(batch.trajectory.begin(), batch.trajectory.end()));
    write_array(folder / "turn_index.npy", std::vector<std::int64_t>(batch.index.begin(), batch.index.end()));
    write_array(folder / "turn_offsets.npy", std::vector<std::int32_t>(batch.offsets.begin(), batch.offsets.end()));
    write_bool_array(folder / "compiled.npy", batch.compiled);
    write_bool_array(folder / "correct.npy", batch.correct);
    write_bool_array(folder / "decoy.npy", batch.decoy);
    write_bool_array(folder / "turn_valid.npy", flags(6, 1));
    write_bool_array(folder / "token_mask.npy", flags(12, 1));
    write_array(folder / "speedup.npy", doubles(batch.speedup.begin(), batch.speedup.end()));
    write_array(folder / "generated_us.npy", doubles(batch.generated.begin(), batch.generated.end()));
    write_array(folder / "total_us.npy", doubles(batch.total.begin(), batch.total.end()));
    auto const wide = run_on(folder);
    CHECK(same_turns(wide, plain));
    CHECK(wide.ratio == plain.ratio);
    CHECK(wide.token_advantage == plain.token_advantage);
  }

  TEST_CASE("log-probs may be f32 or f64, each on its own") {
    fs::path const demo = TURNWISE_DEMO_DATA;
    auto const plain = run_on(demo);
    for (int which = 1; which < 4; ++which) {
      scratch_folder const scratch;
      fs::path const folder = scratch / "batch";
      fs::copy(demo, folder);
      for (int array = 0; array < 2; ++array) {
        if ((which >> array & 1) == 0) continue;
        auto const* name = array == 0 ? "old_logprob.npy" : "rollout_logprob.npy";
        auto const narrow = load_npy<float>(folder / name);
        write_array(folder / name, doubles(narrow.begin(), narrow.end()));
      }
      auto const wide = run_on(folder);
      CHECK(wide.reward == plain.reward);
      CHECK(wide.advantage == plain.advantage);
      for (std::size_t row = 0; row < plain.ratio.size(); ++row)
        CHECK(std::abs(wide.ratio[row] - plain.ratio[row]) < 1e-6);
    }
  }

  TEST_CASE("the token mask hides tokens, and turn_valid turns") {
    small_batch batch;
    batch.old_logprob[1] = infinity;  // of row 0, hidden
    batch.mask = flags(12, 1);
    (*batch.mask)[1] = 0;
    (*batch.mask)[8] = (*batch.mask)[9] = 0;  // all of row 4
    batch.valid = flags{1, 1, 1, 0, 1, 1};
    batch.speedup[3] = infinity;  // of a turn flagged off: no error, and not in the return before it
    auto const run = run_on(batch, "--no-profiling-filter");
    CHECK(run.keep == flags{1, 1, 1, 0, 0, 1});
    CHECK(run.token_advantage[0] == static_cast<float>(run.advantage[0]));
    CHECK(run.token_advantage[1] == 0);
    CHECK(run.token_advantage[8] == 0);
    CHECK(run.turn_return[2] == run.reward[2]);
    CHECK(run.report["metrics"]["reasons"]["no_token"] == 1);
    CHECK(run.report["metrics"]["reasons"]["invalid"] == 1);
    CHECK(run.report["metrics"]["ratio_tokens"] == 7);
  }

  TEST_CASE("a given reward replaces the kernel reward, with or without an evaluation") {
    small_batch batch;
    batch.reward = doubles{1, 2, 3, 4, 5, nan_value};
    auto const with = run_on(batch, "--no-profiling-filter");
    auto const without = run_on(batch, "--no-profiling-filter", false);
    CHECK(with.turn_return == doubles{3, 2, 7, 4, 5, 0});
    CHECK(with.keep == flags{1, 1, 1, 1, 1, 0});
    CHECK(without.turn_return == with.turn_return);
    CHECK(without.advantage == with.advantage);
    CHECK(with.report["metrics"]["correct"]["turns"] == 4);
    CHECK(without.report["metrics"]["correct"]["turns"] == 0);
    batch.speedup[0] = infinity;  // no ingredient of a given reward
    CHECK(run_on(batch, "--no-profiling-filter").turn_return == with.turn_return);
  }

  TEST_CASE("one trajectory id in two prompts is two trajectories") {
    auto const plain = run_on(small_batch{}, no_filters);
    small_batch batch;
    batch.trajectory = {0, 0, 1, 1, 0, 1};
    auto const run = run_on(batch, no_filters);
    CHECK(same_turns(run, plain));
    CHECK(run.report["batch"]["trajectories"] == 4);
  }

  TEST_CASE("a .npy file without a meaning is told of, and not read") {
    scratch_folder const scratch;
    small_batch{}.write(scratch / "batch");
    write_bytes(scratch / "batch" / "notes.txt", "mine");
    CHECK(!run_on(scratch / "batch").report["warnings"].contains("unknown_file"));
    write_bytes(scratch / "batch" / "maks.npy", "text");
    CHECK(run_on(scratch / "batch").report["warnings"]["unknown_file"] == "maks.npy: not read (--help has the names)");
    for (std::string const name : {"z.npy", "y.npy", "advantage.npy"}) write_bytes(scratch / "batch" / name, "text");
    CHECK(run_step(scratch / "batch", "").out.find("advantage.npy, maks.npy and 2 more: not read") !=
          std::string::npos);

    proposal_batch{}.write(scratch / "proposals");
    write_bytes(scratch / "proposals" / "attempts" / "valid.npy", "text");
    auto const run = run_on(scratch / "proposals" / "input", proposer(scratch / "proposals"));
    CHECK(run.report["warnings"]["unknown_file"].get<std::string>().starts_with("valid.npy: "));
  }

  TEST_CASE("the table calls groups by what they are, and shows no -0 nor rounding dust") {
    small_batch batch;  // prompt 5 keeps only turn 1 of one trajectory, which is alone in its turn group then
    batch.old_logprob[0] = batch.old_logprob[4] = batch.old_logprob[2] = 0;
    scratch_folder const scratch;
    batch.write(scratch / "batch");
    std::string const options = "--ratio-level turn --no-profiling-filter ";
    CHECK(run_step(scratch / "batch", options).out.find("1 turn group has a single turn left") != std::string::npos);
    CHECK(run_step(scratch / "batch", "--recipe kevin " + options).out.find("1 prompt has a single turn left") !=
          std::string::npos);

    batch = {};
    batch.reward = doubles{0.1, 0, 0.2, 0, 0.3, 0};  // sums of these leave dust
    batch.write(scratch / "dust");
    std::string const out = run_step(scratch / "dust", "--recipe kevin").out;
    CHECK(out.find("mean advantage of kept turns  0.000 ") != std::string::npos);
    CHECK(out.find(" -0 ") == std::string::npos);
    CHECK(out.find(" -0.000 ") == std::string::npos);
  }

  TEST_CASE("a missing reward follows --unscored") {
    small_batch batch;
    batch.speedup[3] = static_cast<float>(nan_value);
    auto const excluded = run_on(batch, no_filters);
    CHECK(excluded.keep == flags{1, 1, 0, 0, 1, 1});
    CHECK(excluded.report["metrics"]["reasons"]["unscored"] == 1);
    CHECK(excluded.report["metrics"]["reasons"]["unscored_future"] == 1);
    CHECK(run_on(batch, no_filters + "--unscored zero").keep == flags{1, 1, 1, 0, 1, 1});
  }

  TEST_CASE("a log ratio that is not finite follows --non-finite") {
    small_batch batch;
    batch.rollout_logprob[0] = -infinity;
    CHECK(run_on(batch, "--no-profiling-filter").keep == flags{0, 1, 1, 1, 1, 1});
    auto const neutral = run_on(batch, "--no-profiling-filter --non-finite neutral");
    CHECK(neutral.keep == flags(6, 1));
    CHECK(neutral.report["warnings"].contains("non_finite_tokens"));
  }

  TEST_CASE("a profile without meaning follows --invalid-profile") {
    small_batch batch;
    batch.generated = {10, 0, 10, 10, 10, 10};
    batch.total[2] = 0;
    CHECK(run_on(batch).keep == flags{1, 1, 0, 1, 1, 1});
    CHECK(run_on(batch, "--invalid-profile keep").keep == flags(6, 1));
  }

  TEST_CASE("singletons and baseline members follow their options") {
    small_batch const batch;  // row 3 and row 1 are a turn group; without row 1 in the ratio band, row 3 is alone
    small_batch drifted = batch;
    drifted.old_logprob[2] = 0;
    std::string const options = "--ratio-level turn --no-profiling-filter --baseline-members kept --singleton ";
    auto const zero = run_on(drifted, options + "zero");
    CHECK(zero.keep == flags{1, 0, 1, 1, 1, 1});
    CHECK(zero.advantage[3] == 0);
    auto const others = run_on(drifted, options + "others");
    CHECK(others.advantage[3] == doctest::Approx(2.5 - 1.9));
  }

  TEST_CASE("kernel_zero rewards by the gate, and filters nothing unless asked") {
    auto const run = run_on(small_batch{}, "--recipe kernel_zero");
    doubles const reward{1 + 0.1 * 0.2, 0, 1, 1.1, 1, 0};
    for (std::size_t row = 0; row < 6; ++row) CHECK(run.reward[row] == doctest::Approx(reward[row]));
    CHECK(run.keep == flags(6, 1));
    CHECK(run.report["options"]["ratio_band"].is_null());
    CHECK(run.report["options"]["token_veto"].is_null());
    CHECK(run.report["options"]["profiling_filter"].is_null());
    auto const by_turn = run_on(small_batch{}, "--recipe kernel_zero --group-by turn");
    CHECK(by_turn.reward[0] == doctest::Approx(1.1));

    auto const asked = run_on(small_batch{},
                              "--recipe kernel_zero --ratio-level turn --veto-scope trajectory "
                              "--profiling-softness 0.2")
                           .report["options"];
    CHECK(asked["ratio_band"] ==
          nlohmann::json{{"level", "turn"}, {"kind", "geometric"}, {"low", 0.999}, {"high", 1.001}});
    CHECK(asked["token_veto"] == nlohmann::json{{"threshold", 1e-4}, {"scope", "trajectory"}});
    CHECK(asked["profiling_filter"]["threshold"] == 0.3);
    CHECK(asked["profiling_filter"]["softness"] == 0.2);
  }

  TEST_CASE("kernel_zero_proposer rewards proposals that about half of the attempts solve") {
    scratch_folder const scratch;
    proposal_batch batch;
    batch.write(scratch / "batch");
    auto const options = proposer(scratch / "batch");
    auto const run = run_on(scratch / "batch" / "input", options);
    // 1 - 2 |share - 1/2| with shares 2/2, 1/2, -, 1/3, 0/1, -
    doubles const reward{0, 1, -1, 2.0 / 3, 0};
    // Group 5 by the mean 1/6 and the squares 1/36 + 25/36 + 49/36 + 9/36; in group -3 the scored one is alone.
    double const deviation = std::sqrt(84.0 / 36 / 3) + 1e-6;
    doubles const advantage{-1.0 / 6 / deviation, 5.0 / 6 / deviation, -7.0 / 6 / deviation, 0.5 / deviation, 0, 0};
    for (std::size_t row = 0; row < 5; ++row) CHECK(run.reward[row] == doctest::Approx(reward[row]));
    CHECK(std::isnan(run.reward[5]));
    for (std::size_t row = 0; row < 6; ++row) CHECK(run.advantage[row] == doctest::Approx(advantage[row]));
    CHECK(run.keep == flags{1, 1, 1, 1, 1, 0});
    CHECK(run.token_advantage[2] == static_cast<float>(run.advantage[1]));
    CHECK(run.report["options"]["recipe"] == "kernel_zero_proposer");
    CHECK(run.report["options"]["reward"] == nlohmann::json{{"target", 0.5}, {"invalid_reward", -1}});
    CHECK(run.report["options"]["ratio_band"].is_null());
    CHECK(run_step(scratch / "batch" / "input", options).out.find("kernel_zero_proposer, grouped by prompt") !=
          std::string::npos);

    // Without the flags row 2 has 0 of 1; without the last turn of trajectory 6 its first one counts, and is wrong.
    batch.invalid_module = {};
    batch.attempt_valid = flags{0, 1, 1, 1, 1, 1, 1, 1, 1};
    batch.write(scratch / "all");
    auto const all = run_on(scratch / "all" / "input", proposer(scratch / "all") + "--group-by turn --unscored zero");
    CHECK(all.reward[2] == 0);
    CHECK(all.reward[3] == 0);
    CHECK(all.report["options"]["group_by"] == "turn");

    batch.proposals.reward = doubles{1, 0, 0, 0, 1, 0};
    batch.write(scratch / "given");
    CHECK(run_on(scratch / "given" / "input", "--recipe kernel_zero_proposer").reward == *batch.proposals.reward);
  }

  TEST_CASE("kevin scores correctness and speed, discounts by 0.4, and filters nothing unless asked") {
    auto const run = run_on(small_batch{}, "--recipe kevin");
    doubles const reward{2.3, 0, 1.8, 4.3, 1.3, 0};
    doubles const turn_return{2.3, 0, 1.8 + 0.4 * 4.3, 4.3, 1.3, 0};
    // Means 2.53 and 0.65; squares 0.0529 + 6.4009 + 0.9801 + 3.1329, and twice 0.4225.
    double const five = std::sqrt(10.5668 / 3) + 1e-6, minus_three = std::sqrt(0.845) + 1e-6;
    doubles const advantage{-0.23 / five, -2.53 / five,       0.99 / five,
                            1.77 / five,  0.65 / minus_three, -0.65 / minus_three};
    for (std::size_t row = 0; row < 6; ++row) {
      CHECK(run.reward[row] == doctest::Approx(reward[row]));
      CHECK(run.turn_return[row] == doctest::Approx(turn_return[row]));
      CHECK(run.advantage[row] == doctest::Approx(advantage[row]));
    }
    CHECK(run.keep == flags(6, 1));
    auto const options = run.report["options"];
    CHECK(options["recipe"] == "kevin");
    CHECK(options["return"] == "sum");
    CHECK(options["gamma"] == 0.4);
    CHECK(options["reward"]["correct_weight"] == 0.3);
    CHECK(options["reward"]["speedup_cap"].is_null());
    CHECK(!options["reward"].contains("profiling_weight"));
    CHECK(options["ratio_band"].is_null());
    CHECK(options["profiling_filter"].is_null());

    auto const best = run_on(small_batch{}, "--recipe kevin --return best_so_far --speedup-cap 3 --correct-weight 1");
    CHECK(best.turn_return == doubles{3, 3, 2.5, 4, 2, 0});
    CHECK(best.report["options"]["gamma"].is_null());
    CHECK(best.report["metrics"]["speedup_outliers"] == 1);
    auto const last = run_on(small_batch{}, "--recipe kevin --return last --gamma 1 --profiling-threshold 0.3");
    CHECK(last.turn_return[2] == doctest::Approx(4.3));
    CHECK(last.report["options"]["profiling_filter"]["threshold"] == 0.3);
    scratch_folder const scratch;
    small_batch{}.write(scratch / "batch");
    CHECK(run_step(scratch / "batch", "--recipe kevin").out.find("kevin, return sum, gamma 0.4") != std::string::npos);
  }

  TEST_CASE("seed and step change the profiling draws, and nothing else does") {
    fs::path const demo = TURNWISE_DEMO_DATA;
    auto const first = run_on(demo);
    CHECK(run_on(demo, "--seed 0 --step 0").keep == first.keep);
    CHECK(run_on(demo, "--step 1").keep != first.keep);
    CHECK(run_on(demo, "--seed 4294967295").keep != first.keep);
  }

  TEST_CASE("batches without turns, and without tokens") {
    small_batch empty;
    empty.group = empty.trajectory = empty.index = {};
    empty.offsets = {0};
    empty.compiled = empty.correct = empty.decoy = {};
    empty.speedup = empty.generated = empty.total = empty.old_logprob = empty.rollout_logprob = {};
    for (std::string const recipe : {"", "--recipe kernel_zero", "--recipe kevin"}) {
      auto const run = run_on(empty, recipe);
      CHECK(run.reward.empty());
      CHECK(run.token_advantage.empty());
      CHECK(run.report["metrics"]["nothing_kept"] == true);
    }
    scratch_folder const scratch;
    empty.write(scratch / "batch");
    CHECK(run_step(scratch / "batch", "").out.find("0 turns, 0 trajectories") != std::string::npos);

    small_batch tokenless;
    tokenless.offsets = std::vector<std::int64_t>(7, 0);
    tokenless.old_logprob = tokenless.rollout_logprob = {};
    auto const run = run_on(tokenless, "--no-profiling-filter");
    CHECK(run.keep == flags(6, 0));
    CHECK(run.report["metrics"]["reasons"]["no_token"] == 6);

    small_batch outside;  // tokens before the first turn and after the last
    outside.offsets = {3, 4, 4, 5, 6, 7, 8};
    auto const part = run_on(outside, "--no-profiling-filter");
    CHECK(part.token_advantage[0] == 0);
    CHECK(part.token_advantage[11] == 0);
    CHECK(part.keep == flags{1, 0, 1, 1, 1, 1});
  }

  TEST_CASE("many and large turn indices fit the page") {
    small_batch batch;
    batch.group = {1, 1, 1, 1, 1, 1};
    batch.trajectory = {0, 0, 0, 0, 0, 0};
    batch.index = {0, 1, 10, 20000, 300000000, 2147483647};
    scratch_folder const scratch;
    batch.write(scratch / "batch");
    run_result const result = run_step(scratch / "batch", "--no-profiling-filter");
    REQUIRE(result.code == 0);
    CHECK(result.out.find("later") != std::string::npos);
    for (std::size_t begin = 0; begin < result.out.size(); begin = result.out.find('\n', begin) + 1)
      CHECK(result.out.find('\n', begin) - begin <= 100);
  }
}

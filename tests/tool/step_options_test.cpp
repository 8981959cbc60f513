#include "files.hpp"
#include "step_runner.hpp"

#include <doctest/doctest.h>

#include <turnwise/core/reason.hpp>

#include <stdlib.h>
#include <string>
#include <vector>

using namespace step_test;

TEST_SUITE("tool/step_options") {
  TEST_CASE("help exits 0, and names every option") {
    run_result const result = run_step("--help");
    CHECK(result.code == 0);
    CHECK(result.err.empty());
    for (auto const* option : {"--input",
                               "--output",
                               "--recipe",
                               "--group-by",
                               "--attempts",
                               "proposal_group.npy",
                               "invalid_module.npy",
                               "--preset",
                               "--gamma",
                               "--return",
                               "--correct-weight",
                               "--speedup-weight",
                               "--profiling-weight",
                               "--speedup-cap",
                               "--speedup-floor",
                               "--ratio-level",
                               "--ratio-kind",
                               "--ratio-band",
                               "--no-ratio-band",
                               "--token-veto",
                               "--no-token-veto",
                               "--veto-scope",
                               "--profiling-threshold",
                               "--profiling-softness",
                               "--no-profiling-filter",
                               "--seed",
                               "--step",
                               "--singleton",
                               "--baseline-members",
                               "--invalid-profile",
                               "--unscored",
                               "--non-finite",
                               "--threads",
                               "--backend",
                               "--json"}) {
      INFO(option);
      CHECK(result.out.find(option) != std::string::npos);
    }
    CHECK(result.out.find("dr_kernel|kernel_zero|kernel_zero_proposer|kevin") != std::string::npos);
    CHECK(result.out.find("sum|max|last|current|best_so_far") != std::string::npos);
  }

  TEST_CASE("help and the data's README describe every file alike") {
    std::string const help = run_step("--help").out;
    std::string const page = content_of(fs::path{TURNWISE_DEMO_DATA}.parent_path() / "README.md");
    auto const check = [&](auto const& files) {
      for (auto const& file : files) {
        CAPTURE(file.name);
        std::string const meaning{file.meaning};
        CHECK(help.find("  " + std::string{file.name}) != std::string::npos);
        CHECK(help.find(meaning + '\n') != std::string::npos);
        std::string type{file.type};
        if (auto const bar = type.find('|'); bar != std::string::npos) type.replace(bar, 1, " or ");
        std::string const shape = file.shape.empty() ? "" : '[' + std::string{file.shape} + ']';
        CHECK(page.find("| `" + std::string{file.name} + "` | " + type + " | " + shape + " | " + meaning + " |\n") !=
              std::string::npos);
      }
    };
    check(rollout_step::input_files);
    check(rollout_step::output_files);
    for (std::size_t bit = 0; bit < turnwise::reason::names.size(); ++bit)
      CHECK(help.find(std::to_string(bit) + ' ' + std::string{turnwise::reason::names[bit]}) != std::string::npos);
    for (std::size_t begin = help.find("Files:"); begin < help.size(); begin = help.find('\n', begin) + 1)
      CHECK(help.find('\n', begin) - begin <= 100);
  }

  TEST_CASE("text where a number belongs: the error says which numbers") {
    for (std::string const option : {"--gamma abc", "--gamma 1.5"})
      check_input_refused(TURNWISE_DEMO_DATA, option, {"--gamma", "given, expected a number in [0, 1]"});
    for (std::string const value : {"abc", "1.5", "-1", "4294967296", "99999999999999999999"})
      check_input_refused(TURNWISE_DEMO_DATA, "--seed=" + value,
                          {"--seed", value, "given, expected an integer in [0, 4294967295]"});
    for (std::string const value : {"many", "1025"})
      check_input_refused(TURNWISE_DEMO_DATA, "--threads " + value,
                          {"--threads", value, "given, expected an integer in [0, 1024]"});
  }

  TEST_CASE("options out of range, unknown or contradictory") {
    struct refused {
      std::string arguments, option;
    };
    for (refused const& one :
         std::vector<refused>{{"--no-such-option", "--no-such-option"},
                              {"stray", "stray"},
                              {"--recipe ppo", "--recipe"},
                              {"--preset best", "--preset"},
                              {"--backend gpu", "--backend"},
                              {"--ratio-level token", "--ratio-level"},
                              {"--ratio-kind mean", "--ratio-kind"},
                              {"--veto-scope token", "--veto-scope"},
                              {"--singleton drop", "--singleton"},
                              {"--baseline-members all", "--baseline-members"},
                              {"--invalid-profile 0", "--invalid-profile"},
                              {"--unscored skip", "--unscored"},
                              {"--non-finite skip", "--non-finite"},
                              {"--gamma 1.5", "--gamma"},
                              {"--gamma=-0.1", "--gamma"},
                              {"--gamma nan", "--gamma"},
                              {"--gamma half", "--gamma"},
                              {"--gamma", "--gamma"},
                              {"--gamma 1 --gamma 1", "--gamma"},
                              {"--correct-weight inf", "--correct-weight"},
                              {"--speedup-weight nan", "--speedup-weight"},
                              {"--profiling-weight nan", "--profiling-weight"},
                              {"--speedup-cap nan", "--speedup-cap"},
                              {"--speedup-cap -1", "--speedup-cap"},
                              {"--speedup-floor inf", "--speedup-floor"},
                              {"--speedup-floor 4", "--speedup-floor"},
                              {"--ratio-band 1.001,0.999", "--ratio-band"},
                              {"--ratio-band 0.999", "--ratio-band"},
                              {"--ratio-band 0.9,1.1,1.2", "--ratio-band"},
                              {"--ratio-band nan,1", "--ratio-band"},
                              {"--ratio-band 0.9,nan", "--ratio-band"},
                              {"--ratio-band=-1,1", "--ratio-band"},
                              {"--ratio-band 0,0", "--ratio-band"},
                              {"--ratio-band inf,inf", "--ratio-band"},
                              {"--token-veto=-1", "--token-veto"},
                              {"--token-veto nan", "--token-veto"},
                              {"--token-veto inf", "--token-veto"},
                              {"--profiling-threshold=-0.1", "--profiling-threshold"},
                              {"--profiling-softness nan", "--profiling-softness"},
                              {"--seed -1", "--seed"},
                              {"--seed 4294967296", "--seed"},
                              {"--seed 99999999999999999999", "--seed"},
                              {"--seed 1.5", "--seed"},
                              {"--seed ''", "--seed"},
                              {"--gamma ''", "--gamma"},
                              {"--token-veto 1e-400", "--token-veto"},
                              {"--invalid-profile keep --no-profiling-filter", "--invalid-profile"},
                              {"--step -1", "--step"},
                              {"--threads -1", "--threads"},
                              {"--threads 1000000", "--threads"},
                              {"--ratio-band 0.9,1.1 --no-ratio-band", "--ratio-band"},
                              {"--token-veto 0.1 --no-token-veto", "--token-veto"},
                              {"--veto-scope turn --no-token-veto", "--veto-scope"},
                              {"--profiling-threshold 0.1 --no-profiling-filter", "--profiling-threshold"},
                              {"--profiling-softness 0.1 --no-profiling-filter", "--profiling-softness"},
                              {"--group-by turn", "--group-by"},
                              {"--return max", "--return"},
                              {"--recipe kernel_zero --return max", "--return"},
                              {"--recipe kevin --return best", "--return"},
                              {"--recipe kevin --return current --gamma 0.4", "--gamma"},
                              {"--recipe kevin --return best_so_far --gamma 1", "--gamma"},
                              {"--recipe kevin --gamma 1.5", "--gamma"},
                              {"--recipe kevin --preset paper", "--preset"},
                              {"--recipe kevin --group-by prompt", "--group-by"},
                              {"--recipe kevin --singleton zero", "--singleton"},
                              {"--recipe kevin --profiling-weight 1", "--profiling-weight"},
                              {"--recipe kevin --speedup-cap -1", "--speedup-cap"},
                              {"--recipe kevin --speedup-weight inf", "--speedup-weight"},
                              {"--recipe kernel_zero --group-by batch", "--group-by"},
                              {"--recipe kernel_zero --preset paper", "--preset"},
                              {"--recipe kernel_zero --gamma 1", "--gamma"},
                              {"--recipe kernel_zero --singleton zero", "--singleton"},
                              {"--recipe kernel_zero --baseline-members valid", "--baseline-members"},
                              {"--recipe kernel_zero --correct-weight 1", "--correct-weight"},
                              {"--recipe kernel_zero --speedup-weight 1", "--speedup-weight"},
                              {"--recipe kernel_zero --profiling-weight 1", "--profiling-weight"},
                              {"--recipe kernel_zero --speedup-cap 1", "--speedup-cap"},
                              {"--recipe kernel_zero --speedup-floor 1", "--speedup-floor"}}) {
      CAPTURE(one.arguments);
      check_input_refused(TURNWISE_DEMO_DATA, one.arguments, {one.option});
    }
    check_input_refused(TURNWISE_DEMO_DATA, "--baseline-members kept",
                        {"--baseline-members", "--singleton zero", "others"});
    check_refused(run_step(""), {"--input"});
  }

  TEST_CASE("the GPU, in a build without CUDA or on a machine without a device") {
#ifdef TURNWISE_STEP_CUDA
    REQUIRE(setenv("CUDA_VISIBLE_DEVICES", "", 1) == 0);
    check_input_refused(TURNWISE_DEMO_DATA, "--backend cuda", {"--backend cuda"});
    unsetenv("CUDA_VISIBLE_DEVICES");
#else
    check_input_refused(TURNWISE_DEMO_DATA, "--backend cuda", {"--backend", "without CUDA"});
#endif
  }
}

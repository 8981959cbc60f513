#include "error.hpp"
#include "files.hpp"
#include "options.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace rollout_step {
namespace {

template <typename E, std::size_t N>
void add_choice(CLI::App& app, std::string const& option, std::optional<E>& target,
                std::array<choice<E>, N> const& choices, std::string const& help) {
  std::vector<std::string> names;
  std::string shown;
  for (auto const& one : choices) {
    names.emplace_back(one.name);
    shown += (shown.empty() ? "" : "|") + names.back();
  }
  auto const set = [&target, &choices](std::string const& name) {
    target = std::ranges::find(choices, name, &choice<E>::name)->value;
  };
  // A check of our own, because IsMember would spell the choices out a second time in the help text.
  auto const check = [names, shown](std::string const& name) {
    return std::ranges::find(names, name) != names.end() ? std::string{} : name + " is not one of " + shown;
  };
  app.add_option_function<std::string>(option, set, help)->check(CLI::Validator{check, ""})->type_name(shown);
}

/// A number that is the whole text, in decimal; CLI11 itself takes an empty text for none given and 010 for eight.
///
/// @param wanted  what errors say was expected; make_options judges the value.
template <typename T>
CLI::Option* add_number(CLI::App& app, std::string const& option, std::optional<T>& target, std::string_view wanted,
                        std::string const& help) {
  auto const parse = [](std::string const& text, T& number) {
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc{} && end == text.data() + text.size();
  };
  auto const set = [&target, parse](std::string const& text) { parse(text, target.emplace()); };
  auto const check = [parse, wanted](std::string const& text) {
    T number{};
    return parse(text, number) ? std::string{} : "'" + text + "' given, expected " + std::string{wanted};
  };
  return app.add_option_function<std::string>(option, set, help)
      ->check(CLI::Validator{check, ""})
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw);
}

void add_files(CLI::App& app, command_line& given) {
  app.add_option("--input", given.input, "Folder with the .npy files of the batch (see below)")
      ->type_name("DIR")
      ->required();
  app.add_option("--output", given.output, "Folder for the results; created if it is missing")->type_name("DIR");
  app.add_flag("--json", given.json, "Print metrics.json instead of the tables");
}

void add_recipe(CLI::App& app, command_line& given) {
  app.option_defaults()->group("Recipe");
  add_choice(app, "--recipe", given.recipe, recipe_choices, "Which published system (default dr_kernel)");
  add_choice(app, "--preset", given.preset, preset_choices, "dr_kernel: whose settings (default released)");
  add_choice(app, "--group-by", given.group_by, group_by_choices,
             "kernel_zero, kernel_zero_proposer: what is compared (default prompt)");
  app.add_option("--attempts", given.attempts,
                 "kernel_zero_proposer: folder with the attempts at the proposals (below)")
      ->type_name("DIR");
  add_number(app, "--gamma", given.gamma, wanted::share,
             "Discount of later turns' rewards, in [0, 1] (default 1, kevin 0.4)")
      ->type_name("G");
  add_choice(app, "--return", given.return_kind, return_choices,
             "kevin: which rewards a turn is credited with (default sum)");
  add_choice(app, "--singleton", given.singleton, singleton_choices,
             "dr_kernel: what a turn without others gets (default keep: its return)");
  add_choice(app, "--baseline-members", given.baseline_members, members_choices,
             "Whose returns enter baselines (default valid; kept: dr_kernel needs --singleton zero or others)");
  add_choice(app, "--unscored", given.unscored, unscored_choices,
             "What a missing reward (NaN) does to earlier turns (default exclude)");

  app.option_defaults()->group("Reward of dr_kernel and kevin");
  add_number(app, "--correct-weight", given.correct_weight, wanted::weight,
             "Weight of correctness (released 0.5, paper 1; kevin 0.3)")
      ->type_name("W");
  add_number(app, "--speedup-weight", given.speedup_weight, wanted::weight,
             "Weight of the speedup (released 0.5, paper 1; kevin 1)")
      ->type_name("W");
  add_number(app, "--profiling-weight", given.profiling_weight, wanted::weight,
             "dr_kernel: weight of the profiling ratio (released 0.5, paper 1)")
      ->type_name("W");
  add_number(app, "--speedup-cap", given.speedup_cap, wanted::cap,
             "Larger speedups count as this (released 3; paper and kevin inf)")
      ->type_name("X");
  add_number(app, "--speedup-floor", given.speedup_floor, wanted::weight, "Smaller speedups count as 0 (default 0)")
      ->type_name("X");
}

void add_filters(CLI::App& app, command_line& given) {
  app.option_defaults()->group("Filters (all but dr_kernel: off unless one of their options is given)");
  add_choice(app, "--ratio-level", given.ratio_level, scope_choices,
             "What the importance ratio is taken over (default trajectory)");
  add_choice(app, "--ratio-kind", given.ratio_kind, ratio_kind_choices,
             "Mean or product of token ratios (default geometric)");
  app.add_option("--ratio-band", given.ratio_band, "Ratios kept, inclusive (default 0.999,1.001)")->type_name("LO,HI");
  app.add_flag("--no-ratio-band", given.no_ratio_band, "Reject nothing for its ratio");
  add_number(app, "--token-veto", given.token_veto, wanted::ratio, "A token ratio below this rejects (default 1e-4)")
      ->type_name("X");
  app.add_flag("--no-token-veto", given.no_token_veto, "Reject nothing for a single token");
  add_choice(app, "--veto-scope", given.veto_scope, scope_choices,
             "What a veto rejects (released turn, paper trajectory)");
  add_number(app, "--profiling-threshold", given.profiling_threshold, wanted::threshold,
             "Profiling ratio up to which correct turns are rejected (default 0.3)")
      ->type_name("X");
  add_number(app, "--profiling-softness", given.profiling_softness, wanted::threshold,
             "Width of the ramp to certain keeping (default 0.1; 0: a hard cut)")
      ->type_name("X");
  app.add_flag("--no-profiling-filter", given.no_profiling_filter, "Reject nothing for its profile");
  add_choice(app, "--invalid-profile", given.invalid_profile, invalid_profile_choices,
             "What the profiling filter does with a profile without meaning (default reject)");
  add_choice(app, "--non-finite", given.non_finite, non_finite_choices,
             "What a NaN or infinite log ratio does to its turn (default reject)");
  add_number(app, "--seed", given.seed, wanted::word, "Seed of the profiling draws (default 0)")->type_name("N");
  add_number(app, "--step", given.step, wanted::word, "Training step; draws differ from step to step (default 0)")
      ->type_name("N");
}

void add_execution(CLI::App& app, command_line& given) {
  app.option_defaults()->group("Execution");
  add_number(app, "--threads", given.threads, wanted::thread_count,
             "Most threads to use (default 0: as the runtime has it)")
      ->type_name("N");
  add_choice(app, "--backend", given.backend, backend_choices, "Where the step runs (default cpu)");
}

}  // namespace

command_line parse_command_line(int argc, char const* const* argv) {
  command_line given;
  CLI::App app{"What one training step decides about a batch of multi-turn rollouts in .npy files.", "turnwise-step"};
  app.get_formatter()->column_width(42);
  app.footer(files_help());
  add_files(app, given);
  add_recipe(app, given);
  add_filters(app, given);
  add_execution(app, given);
  try {
    app.parse(argc, argv);
  } catch (CLI::CallForHelp const&) {
    given.help = app.help();
  } catch (CLI::ParseError const& error) {
    fail(error.what());
  }
  return given;
}

}  // namespace rollout_step

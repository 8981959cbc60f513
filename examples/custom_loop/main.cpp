/// @file
/// A complete RL loop without a framework; see README.md.

#include "defaults.hpp"
#include "report.hpp"

#include <CLI/CLI.hpp>

#include <cmath>
#include <exception>
#include <fstream>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace custom_loop {
namespace {

struct command_line {
  std::string study = "all";
  std::size_t seeds = default_seeds;
  std::uint32_t first_seed = 0;
  std::optional<std::size_t> steps, k, prompts;
  std::optional<std::string> optimiser;
  std::optional<double> rate, lazy, real, context_full;
  std::string csv;
  bool check = false;
};

void add_options(CLI::App& app, command_line& given) {
  app.add_option("--study", given.study, "baselines, remedies or all")
      ->check(CLI::IsMember({"baselines", "remedies", "all"}));
  app.add_option("--seeds", given.seeds, "Runs of each kind")->check(CLI::Range(1, 100000))->capture_default_str();
  app.add_option("--first-seed", given.first_seed, "The first of them")->capture_default_str();
  app.add_option("--steps", given.steps, "Training steps (300; remedies 600)")->check(CLI::Range(1, 1000000));
  app.add_option("--k", given.k, "Trajectories a prompt (4 and 16; remedies 8)")->check(CLI::Range(2, 100000));
  app.add_option("--prompts", given.prompts, "Prompts a step (4)")->check(CLI::Range(1, 100000));
  app.add_option("--optimiser", given.optimiser, "sgd or adam (baselines: both; remedies: sgd)")
      ->check(CLI::IsMember({"sgd", "adam"}));
  app.add_option("--rate", given.rate, "Learning rate (sgd 0.05, remedies 0.1; adam 0.02)")->check(CLI::PositiveNumber);
  app.add_option("--lazy", given.lazy, "First probability of the lazy plan (0.45; remedies 0.1)")
      ->check(CLI::Range(1e-9, 1.0));
  app.add_option("--real", given.real, "First probability of the real plan (0.05; remedies 0.005)")
      ->check(CLI::Range(1e-9, 1.0));
  app.add_option("--context-full", given.context_full, "Probability to end before a later turn (0.1)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--csv", given.csv, "File for all curves");
  app.add_flag("--check", given.check, "Check the README's claims at its settings; takes --seeds alone");
}

/// The claims hold at their settings, so an option that would change one is refused.
void expect_seeds_alone(CLI::App const& app) {
  for (CLI::Option const* const option : app.get_options())
    if (option->count() > 0 && !option->check_name("--check") && !option->check_name("--seeds"))
      throw std::invalid_argument("--check takes --seeds alone, but " + option->get_name() + " is given");
}

run_options with(run_options options, command_line const& given) {
  options.steps = given.steps.value_or(options.steps);
  options.prompts = given.prompts.value_or(options.prompts);
  options.k = given.k.value_or(options.k);
  options.rate = given.rate.value_or(options.rate);
  options.of.lazy = given.lazy.value_or(options.of.lazy);
  options.of.real = given.real.value_or(options.of.real);
  options.of.context_full = given.context_full.value_or(options.of.context_full);
  options.seed = given.first_seed;
  if (!std::isfinite(options.rate)) throw std::invalid_argument("--rate is not finite");
  if (!(options.of.lazy + options.of.real < 1))
    throw std::invalid_argument("--lazy and --real leave nothing for wrong plans");
  return options;
}

void run(command_line const& given) {
  std::ofstream csv;
  if (!given.csv.empty()) {
    csv.open(given.csv);
    if (!csv) throw std::runtime_error(given.csv + " cannot be opened");
    write_csv_header(csv);
  }
  auto const save = [&](study const& of) {
    if (!given.csv.empty()) write_csv(of, csv);
  };
  auto const optimisers = given.optimiser
                              ? std::vector{*given.optimiser == "adam" ? optimiser_kind::adam : optimiser_kind::sgd}
                              : std::vector{optimiser_kind::sgd, optimiser_kind::adam};
  auto const sizes = given.k ? std::vector{*given.k} : std::vector<std::size_t>{4, 16};
  if (given.study != "remedies")
    for (optimiser_kind const optimiser : optimisers)
      for (std::size_t const k : sizes) {
        study const of = compare_baselines(with(baselines_defaults(k, optimiser), given), given.seeds);
        report_baselines(of);
        save(of);
      }
  if (given.study != "baselines") {
    study const of = compare_remedies(with(remedies_defaults(optimisers.front()), given), given.seeds);
    report_remedies(of);
    save(of);
  }
  if (!given.csv.empty() && !csv.flush()) throw std::runtime_error(given.csv + " cannot be written");
}

}  // namespace
}  // namespace custom_loop

int main(int argc, char** argv) {
  using namespace custom_loop;
  command_line given;
  CLI::App app{"Learns plans over three turns and compares baselines, and remedies against lazy plans."};
  add_options(app, given);
  CLI11_PARSE(app, argc, argv);
  try {
    if (given.check) {
      expect_seeds_alone(app);
      return check_claims(given.seeds) ? 0 : 1;
    }
    run(given);
    return 0;
  } catch (std::exception const& error) {
    std::cerr << "custom_loop: " << error.what() << '\n';
    return 2;
  }
}

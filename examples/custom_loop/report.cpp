#include "report.hpp"

#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

namespace custom_loop {
namespace {

char const* name_of(optimiser_kind kind) { return kind == optimiser_kind::sgd ? "sgd" : "adam"; }

void print_heading(study const& of, char const* title) {
  run_options const& run = of.common;
  std::printf("\n%s\n  %s, rate %g, K %zu, %zu prompts, %zu steps, seeds %u to %zu\n", title, name_of(run.optimiser),
              run.rate, run.k, run.prompts, run.steps, run.seed, run.seed + of.ways[0].curves.size() - 1);
  std::printf("  untrained: lazy %g%%, real %g%%; before a later turn the context is full with probability %g%%\n",
              100 * run.of.lazy, 100 * run.of.real, 100 * run.of.context_full);
}

/// The medians over seeds, one column a few steps; of two series in one place the later is seen.
template <typename Of>
void print_plot(study const& of, char const* title, Of value) {
  constexpr std::size_t columns = 72, rows = 11;
  std::vector<std::string> canvas(rows, std::string(columns, ' '));
  std::string legend;
  for (series const& way : of.ways) {
    for (std::size_t column = 0; column < columns; ++column) {
      double const height = median_at(way, column * of.common.steps / (columns - 1), value);
      if (!std::isfinite(height)) continue;  // a rate at which training diverges
      canvas[rows - 1 - static_cast<std::size_t>(std::lround(height * (rows - 1)))][column] = way.mark;
    }
    legend += std::string("  ") + way.mark + ' ' + way.name;
  }
  std::printf("\n  %s:%s\n", title, legend.c_str());
  for (std::size_t row = 0; row < rows; ++row)
    std::printf("  %3zu%% |%s\n", 100 * (rows - 1 - row) / (rows - 1),
                canvas[row].erase(canvas[row].find_last_not_of(' ') + 1).c_str());
  std::printf("       +%s\n       0%*zu steps\n", std::string(columns, '-').c_str(), static_cast<int>(columns) - 1,
              of.common.steps);
}

/// A number of steps; - where it was never reached.
std::string steps_text(double steps) { return std::isfinite(steps) ? std::to_string(std::lround(steps)) : "-"; }

}  // namespace

void report_baselines(study const& of) {
  print_heading(of, "BASELINES: how fast the real plan is learned");
  std::printf("  %-26s steps to   steps / leave-one-out's   the same at\n", "");
  std::printf("  %-26s half       median [quartiles]        turn 1  turn 2  turn 3\n", "");
  series const& base = of.ways[0];
  for (series const& way : of.ways) {
    auto const ratio = slower_by(way, base, [](curve const& run) { return steps_to_half(run); });
    std::printf("  %-26s %-10s %.3f [%.3f, %.3f]   ", way.name.c_str(),
                steps_text(median(of_seeds(way, [](curve const& run) { return steps_to_half(run); }))).c_str(),
                median(ratio), quantile(ratio, 0.25), quantile(ratio, 0.75));
    for (std::size_t turn = 0; turn < turns; ++turn)
      std::printf("   %.3f", median(slower_by(way, base, [&](curve const& run) { return steps_to_half(run, turn); })));
    std::printf("\n");
  }
  print_plot(of, "probability of the real plan", [](curve_point const& at) { return at.real; });
}

void report_remedies(study const& of) {
  print_heading(of, "REMEDIES: what becomes of the lazy plan (medians)");
  std::printf("  %-26s %-12s %-12s %-12s %s\n", "", "lazy at 90%", "lazy, peak", "lazy at end", "real at end");
  for (series const& way : of.ways)
    std::printf("  %-26s %-12s %-12.3f %-12.3f %.3f\n", way.name.c_str(),
                steps_text(median(of_seeds(way, steps_to_takeover))).c_str(), median(of_seeds(way, lazy_peak)),
                median_at(way, of.common.steps, [](curve_point const& at) { return at.lazy; }),
                median_at(way, of.common.steps, [](curve_point const& at) { return at.real; }));
  print_plot(of, "probability of the lazy plan", [](curve_point const& at) { return at.lazy; });
  print_plot(of, "probability of the real plan", [](curve_point const& at) { return at.real; });
}

void write_csv_header(std::ostream& to) {
  to << "study,optimiser,rate,k,method,seed,step,lazy,real,real_turn_1,real_turn_2,real_turn_3\n";
}

void write_csv(study const& of, std::ostream& to) {
  for (series const& way : of.ways)
    for (std::size_t seed = 0; seed < way.curves.size(); ++seed)
      for (std::size_t step = 0; step < way.curves[seed].size(); ++step) {
        curve_point const& at = way.curves[seed][step];
        to << of.name << ',' << name_of(way.options.optimiser) << ',' << way.options.rate << ',' << way.options.k
           << ",\"" << way.name << "\"," << way.options.seed + seed << ',' << step << ',' << at.lazy << ',' << at.real;
        for (double const real : at.real_at) to << ',' << real;
        to << '\n';
      }
}

}  // namespace custom_loop

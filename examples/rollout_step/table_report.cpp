#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace rollout_step {
namespace {

using turnwise::metrics::kept_count;

constexpr std::size_t width = 100;
constexpr std::size_t most_columns = 5;  ///< turn indices that get a column of their own
constexpr std::size_t most_rows = 12;    ///< and a row of their own

std::string right(std::string const& text, std::size_t columns) {
  return text.size() < columns ? std::string(columns - text.size(), ' ') + text : text;
}
std::string left(std::string const& text, std::size_t columns) {
  return text.size() < columns ? text + std::string(columns - text.size(), ' ') : text;
}

/// Groups of three digits: 66,965.
std::string count_text(std::int64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t digits = 3; digits < text.size(); digits += 4) text.insert(text.size() - digits, 1, ',');
  return text;
}

/// No -0.
std::string number_text(double value, int digits = 4) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*g", digits, value == 0 ? 0.0 : value);
  return text;
}

/// Three decimals where that fits a column, else powers of ten; no -0.000.
std::string decimal_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, std::abs(value) < 1e3 ? "%.3f" : "%.1e", std::abs(value) < 5e-4 ? 0.0 : value);
  return text;
}

/// At most eight characters.
std::string index_text(std::int64_t turn_index) {
  std::string const number = std::to_string(turn_index);
  return number.size() <= 3   ? "turn " + number
         : number.size() <= 8 ? number
                              : number_text(static_cast<double>(turn_index), 3);
}

std::string percent_text(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", 100 * share);
  return text;
}

double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string heading(std::string const& title) { return '\n' + title + '\n'; }

std::string plural(std::int64_t count, std::string const& noun, std::string const& ending = "s") {
  return count_text(count) + ' ' + noun + (count == 1 ? "" : ending);
}

std::string batch_line(step_summary const& summary, step_options const& options) {
  std::filesystem::path const folder = options.input.has_filename() ? options.input : options.input.parent_path();
  std::string const sizes =
      plural(summary.turns, "turn") + ", " +
      plural(summary.trajectories, summary.trajectories == 1 ? "trajectory" : "trajectories", "") + ", " +
      plural(summary.groups, "prompt") + ", " + plural(summary.tokens, "token");
  std::string name = folder.filename().string();
  constexpr std::size_t indent = 10;
  std::size_t const room = width - std::min(width, indent + 2 + sizes.size());
  if (name.size() > room) name = "..." + name.substr(name.size() - std::min(name.size(), room > 3 ? room - 3 : 0));
  return left("batch", indent) + name + ": " + sizes + '\n' +
         (summary.given_reward ? left("reward", indent) + "given by reward.npy\n" : "");
}

std::string recipe_line(step_options const& options) {
  std::string text = left("recipe", 10) + std::string{name_of(recipe_choices, options.recipe)};
  auto const& turn_return = options.turn_return();
  bool const own_reward =
      options.recipe == recipe_name::kernel_zero || options.recipe == recipe_name::kernel_zero_proposer;
  if (own_reward) text += ", grouped by " + std::string{name_of(group_by_choices, options.groups())};
  if (options.recipe == recipe_name::dr_kernel)
    text += ", preset " + std::string{name_of(preset_choices, options.preset)};
  if (options.recipe == recipe_name::kevin)
    text += ", return " + std::string{name_of(return_choices, turn_return.kind)};
  if (!own_reward && uses_gamma(turn_return.kind)) text += ", gamma " + number_text(turn_return.gamma);
  return text + ", seed " + std::to_string(options.key.seed) + ", step " + std::to_string(options.key.step) + '\n';
}

std::string filters_line(step_options const& options) {
  auto const& filters = options.filters();
  std::vector<std::string> parts;
  if (auto const& band = filters.ratio_band)
    parts.push_back(std::string{name_of(scope_choices, band->level)} + ' ' +
                    std::string{name_of(ratio_kind_choices, band->kind)} + " ratio in [" + number_text(band->low, 6) +
                    ", " + number_text(band->high, 6) + ']');
  if (auto const& veto = filters.token_veto)
    parts.push_back("a token ratio below " + number_text(veto->threshold, 6) + " rejects its " +
                    std::string{name_of(scope_choices, veto->veto_scope)});
  if (auto const& filter = filters.profiling_filter)
    parts.push_back(std::string{"correct turns by their profiling ratio: none kept "} +
                    (filter->softness > 0 ? "up to " : "below ") + number_text(filter->threshold) + ", all from " +
                    number_text(filter->threshold + filter->softness));
  if (parts.empty()) parts.emplace_back("none");
  std::string text;
  for (auto const& part : parts) text += left(text.empty() ? "filters" : "", 10) + part + '\n';
  return text;
}

/// One row of the decision table: all turns, then a column a turn index; those beyond the columns are added up.
template <typename Count>
std::string decision_row(std::string const& label, step_summary const& summary, Count count) {
  std::int64_t all = 0;
  std::vector<std::int64_t> columns;
  for (auto const& one : summary.by_turn_index) {
    all += count(one);
    if (columns.size() <= most_columns)
      columns.push_back(count(one));
    else
      columns.back() += count(one);
  }
  std::string line =
      "  " + left(label, 18) + right(count_text(all), 10) + right(percent_text(share(all, summary.turns)), 9);
  for (std::int64_t const column : columns) line += right(count_text(column), 10);
  return line + '\n';
}

std::string decisions(step_summary const& summary, step_result const& result) {
  std::string text = left("DECISIONS", 20) + right("turns", 10) + right("share", 9);
  for (std::size_t i = 0; i < std::min(summary.by_turn_index.size(), most_columns + 1); ++i)
    text += right(i < most_columns ? index_text(summary.by_turn_index[i].turn_index) : "later", 10);
  text = heading(text);
  text += decision_row("all", summary, [](turn_index_summary const& one) { return one.turns; });
  text += decision_row("kept", summary, [](turn_index_summary const& one) { return one.kept; });
  text += decision_row("not kept", summary, [](turn_index_summary const& one) { return one.turns - one.kept; });
  std::int64_t carried = 0;
  for (std::size_t bit = 0; bit < result.metrics.reasons.size(); ++bit) {
    if (result.metrics.reasons[bit] == 0) continue;
    carried += result.metrics.reasons[bit];
    text += decision_row("  " + std::string{turnwise::reason::names[bit]}, summary,
                         [bit](turn_index_summary const& one) { return one.reasons[bit]; });
  }
  std::int64_t const rejected = summary.turns - result.metrics.valid.kept;
  return text + (carried > rejected ? "  (some turns have several reasons)\n" : "");
}

std::string spread_text(spread const& values) {
  if (values.count == 0) return right("-", 9) + right("-", 9) + right("-", 9) + right("-", 9);
  return right(decimal_text(values.min), 9) + right(decimal_text(values.mean), 9) + right(decimal_text(values.max), 9) +
         right(decimal_text(values.deviation), 9);
}

std::string spreads(step_summary const& summary) {
  std::string const columns = right("min", 9) + right("mean", 9) + right("max", 9) + right("std", 9);
  std::string text = heading(left("SPREAD", 16) + right("valid", 8) + "   " + left("    reward", 36) + "    advantage");
  text += std::string(27, ' ') + columns + columns + '\n';
  std::size_t const shown = std::min(summary.by_turn_index.size(), most_rows);
  for (std::size_t i = 0; i < shown; ++i) {
    auto const& one = summary.by_turn_index[i];
    text += "  " + left(index_text(one.turn_index), 14) + right(count_text(one.valid), 8) + "   " +
            spread_text(one.reward) + spread_text(one.advantage) + '\n';
  }
  if (shown < summary.by_turn_index.size())
    text += "  and " + std::to_string(summary.by_turn_index.size() - shown) + " later turn indices (see --json)\n";
  return text;
}

std::string kept_cell(std::string const& label, kept_count const& count) {
  return "  " + left(label, 26) + right(percent_text(count.rate()), 7) + " of " + left(count_text(count.turns), 9);
}

std::string keep_rates(step_result const& result) {
  auto const& metrics = result.metrics;
  std::vector<std::string> lengths, qualities;
  for (auto const& quartile : metrics.by_length)
    if (quartile.count.turns > 0)
      lengths.push_back(
          kept_cell((quartile.shortest < quartile.longest ? count_text(quartile.shortest) + " to " : std::string{}) +
                        plural(quartile.longest, "token"),
                    quartile.count));
  if (metrics.correct.turns + metrics.incorrect.turns > 0)
    qualities = {kept_cell("correct", metrics.correct), kept_cell("  faster than reference", metrics.fast),
                 kept_cell("not correct", metrics.incorrect)};
  std::string text;
  for (std::size_t i = 0; i < std::max(lengths.size(), qualities.size()); ++i)
    text += (i < lengths.size() ? lengths[i] : std::string(i < qualities.size() ? 48 : 0, ' ')) +
            (i < qualities.size() ? qualities[i] : "") + '\n';
  return text.empty() ? text : heading("KEEP RATE by length, and by quality") + text;
}

std::string metric_cell(std::string const& label, std::string const& value) {
  return "  " + left(label, 30) + left(value, 16);
}

std::string mismatch(step_result const& result) {
  auto const& m = result.metrics;
  std::vector<std::string> const cells{
      metric_cell("KL k1, nats a token", number_text(m.kl)),
      metric_cell("perplexity old, rollout", number_text(m.old_ppl) + ", " + number_text(m.rollout_ppl)),
      metric_cell("KL k3, nats a token", number_text(m.k3)),
      metric_cell("log perplexity difference", number_text(m.log_ppl_difference)),
      metric_cell("chi-square of tokens", number_text(m.chi2_token)),
      metric_cell("token ratio min, max", number_text(m.ratio_min) + ", " + number_text(m.ratio_max)),
      metric_cell("chi-square of turns", number_text(m.chi2_turn)),
      metric_cell("turns below, above the band",
                  percent_text(m.low_turn_share) + ", " + percent_text(m.high_turn_share)),
      metric_cell("effective sample size", percent_text(m.effective_sample_size)),
      metric_cell("tokens of those turns", percent_text(m.low_token_share) + ", " + percent_text(m.high_token_share)),
      metric_cell("mean advantage of kept turns", decimal_text(m.kept_advantage_mean)),
      metric_cell("tokens of kept turns", count_text(m.kept_tokens))};
  std::string text = heading("MISMATCH of old and rollout log-probs, " + plural(m.ratio_tokens, "token") + " of " +
                             plural(m.ratio_turns, "turn"));
  for (std::size_t i = 0; i < cells.size(); i += 2) text += cells[i] + cells[i + 1] + '\n';
  return text;
}

std::string without_trailing_spaces(std::string const& text) {
  std::string trimmed;
  for (char const symbol : text) {
    if (symbol == '\n') trimmed.erase(trimmed.find_last_not_of(' ') + 1);
    trimmed += symbol;
  }
  return trimmed;
}

}  // namespace

std::string table_report(step_summary const& summary, step_options const& options, step_result const& result) {
  std::string text = batch_line(summary, options) + recipe_line(options) + filters_line(options);
  text += decisions(summary, result) + spreads(summary) + keep_rates(result) + mismatch(result);
  if (!summary.warnings.empty()) text += heading("WARNINGS");
  for (auto const& one : summary.warnings) text += "  " + left(one.name, 18) + one.text + '\n';
  double const rate = result.seconds > 0 ? static_cast<double>(summary.tokens) / result.seconds : 0.0;
  bool const on_gpu = options.backend == backend_name::cuda;
  text += '\n' + left("time", 10) + number_text(1e3 * result.seconds, 3) +
          (on_gpu ? " ms for the step on the GPU with transfers, " : " ms for the step, ") +
          number_text(rate / 1e6, 3) + " M tokens/s\n";
  if (options.output) text += left("saved", 10) + options.output->string() + '\n';
  return without_trailing_spaces(text);
}

}  // namespace rollout_step

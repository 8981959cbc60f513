#include "options.hpp"

#include "error.hpp"

#include <charconv>
#include <cmath>
#include <utility>

namespace rollout_step {
namespace {

using turnwise::within_limit;
using turnwise::recipe::filter_options;

bool at_least_0(double value) { return value >= 0 && within_limit(value); }

/// Replaces a preset's number by the given one, if there is one and it is in range.
template <typename Accept>
void override_number(double& field, std::optional<double> const& given, std::string_view option, Accept accept,
                     std::string_view expected) {
  if (!given) return;
  if (!accept(*given)) fail(option, ": ", *given, " given, expected ", expected);
  field = *given;
}

template <typename T>
void override_choice(T& field, std::optional<T> const& given) {
  if (given) field = *given;
}

std::int64_t integer(std::optional<std::int64_t> const& given, std::string_view option, std::int64_t most,
                     std::string_view expected) {
  std::int64_t const value = given.value_or(0);
  if (value < 0 || value > most) fail(option, ": ", value, " given, expected ", expected);
  return value;
}

/// Refuses an option that is given although the reason stands against it.
void refuse(bool given, std::string_view option, std::string_view reason) {
  if (given) fail(option, ": ", reason);
}

std::pair<double, double> parse_band(std::string const& text) {
  std::array<double, 2> edge{};
  char const* at = text.data();
  char const* const end = at + text.size();
  for (std::size_t i = 0; i < 2; ++i) {
    auto const [stop, error] = std::from_chars(at, end, edge[i]);
    bool const complete = error == std::errc{} && (i == 0 ? stop != end && *stop == ',' : stop == end);
    if (!complete) fail("--ratio-band: '", text, "' given, expected two numbers LO,HI");
    at = stop + 1;
  }
  auto const [low, high] = edge;
  if (!(low >= 0) || !within_limit(low)) fail("--ratio-band: LO = ", low, ", expected a ratio from 0 to 2^500");
  if (!(high >= low && high > 0)) fail("--ratio-band: HI = ", high, ", expected a ratio, at least LO = ", low);
  return {low, high};
}

/// @param[out] shown_band  the band that metrics go by where the filter is off.
void apply_ratio_band(command_line const& given, filter_options const& defaults, filter_options& filters,
                      turnwise::rejection::ratio_band_options& shown_band) {
  refuse(given.ratio_band && given.no_ratio_band, "--ratio-band", "contradicts --no-ratio-band");
  auto band = *defaults.ratio_band;
  override_choice(band.level, given.ratio_level);
  override_choice(band.kind, given.ratio_kind);
  if (given.ratio_band) std::tie(band.low, band.high) = parse_band(*given.ratio_band);
  if (given.no_ratio_band)
    filters.ratio_band.reset();
  else if (filters.ratio_band || given.ratio_level || given.ratio_kind || given.ratio_band)
    filters.ratio_band = band;
  shown_band = band;
}

void apply_token_veto(command_line const& given, filter_options const& defaults, filter_options& filters) {
  refuse(given.token_veto && given.no_token_veto, "--token-veto", "contradicts --no-token-veto");
  refuse(given.veto_scope && given.no_token_veto, "--veto-scope", "contradicts --no-token-veto");
  auto veto = *defaults.token_veto;
  override_number(veto.threshold, given.token_veto, "--token-veto", at_least_0, wanted::ratio);
  override_choice(veto.veto_scope, given.veto_scope);
  if (given.no_token_veto)
    filters.token_veto.reset();
  else if (filters.token_veto || given.token_veto || given.veto_scope)
    filters.token_veto = veto;
}

void apply_profiling_filter(command_line const& given, filter_options const& defaults, filter_options& filters) {
  constexpr std::string_view contradiction = "contradicts --no-profiling-filter";
  refuse(given.profiling_threshold && given.no_profiling_filter, "--profiling-threshold", contradiction);
  refuse(given.profiling_softness && given.no_profiling_filter, "--profiling-softness", contradiction);
  refuse(given.invalid_profile && given.no_profiling_filter, "--invalid-profile", contradiction);
  auto filter = *defaults.profiling_filter;
  override_number(filter.threshold, given.profiling_threshold, "--profiling-threshold", at_least_0, wanted::threshold);
  override_number(filter.softness, given.profiling_softness, "--profiling-softness", at_least_0, wanted::threshold);
  override_choice(filter.invalid_profile, given.invalid_profile);
  if (given.no_profiling_filter)
    filters.profiling_filter.reset();
  else if (filters.profiling_filter || given.profiling_threshold || given.profiling_softness || given.invalid_profile)
    filters.profiling_filter = filter;
}

/// Lays the filter options over `filters`; fields that are not given come from `defaults`, which has every filter on.
void apply_filters(command_line const& given, filter_options const& defaults, filter_options& filters,
                   turnwise::rejection::ratio_band_options& shown_band) {
  apply_ratio_band(given, defaults, filters, shown_band);
  apply_token_veto(given, defaults, filters);
  apply_profiling_filter(given, defaults, filters);
  override_choice(filters.usable_tokens.non_finite, given.non_finite);
}

/// @param reward  of dr_kernel or kevin.
template <typename Reward>
void apply_reward(command_line const& given, Reward& reward) {
  auto const finite = [](double value) { return within_limit(value); };
  override_number(reward.correct_weight, given.correct_weight, "--correct-weight", finite, wanted::weight);
  override_number(reward.speedup_weight, given.speedup_weight, "--speedup-weight", finite, wanted::weight);
  if constexpr (requires { reward.profiling_weight; })
    override_number(reward.profiling_weight, given.profiling_weight, "--profiling-weight", finite, wanted::weight);
  override_number(reward.speedup_floor, given.speedup_floor, "--speedup-floor", finite, wanted::weight);
  auto const is_number = [](double value) { return !std::isnan(value); };
  override_number(reward.speedup_cap, given.speedup_cap, "--speedup-cap", is_number, wanted::cap);
  if (reward.speedup_cap < reward.speedup_floor)
    fail(given.speedup_cap ? "--speedup-cap" : "--speedup-floor", ": cap ", reward.speedup_cap, " is below floor ",
         reward.speedup_floor);
}

void apply_gamma(command_line const& given, double& gamma) {
  override_number(
      gamma, given.gamma, "--gamma", [](double value) { return value >= 0 && value <= 1; }, wanted::share);
}

void apply_dr_kernel(command_line const& given, step_options& options) {
  using turnwise::recipe::dr_kernel_options;
  refuse(given.return_kind.has_value(), "--return", "the return of dr_kernel is the discounted sum");
  refuse(given.group_by.has_value(), "--group-by", "dr_kernel compares the turns of a prompt at one turn index");
  override_choice(options.preset, given.preset);
  auto& recipe = options.dr_kernel;
  recipe = options.preset == preset_name::paper ? dr_kernel_options::paper() : dr_kernel_options::released();
  recipe.threads = options.threads;
  apply_gamma(given, recipe.turn_return.gamma);
  override_choice(recipe.turn_return.unscored, given.unscored);
  apply_reward(given, recipe.reward);
  override_choice(recipe.advantage.singleton, given.singleton);
  override_choice(recipe.advantage.members, given.baseline_members);
  if (recipe.advantage.members == baseline_members::kept && recipe.advantage.singleton == singleton_policy::keep)
    fail(
        "--baseline-members: kept needs --singleton zero or --singleton others, or a lone kept turn gets its whole "
        "return as advantage");
  filter_options const preset_filters = recipe.filters;
  apply_filters(given, preset_filters, recipe.filters, recipe.metrics.band);
}

/// @param recipe  options of kernel_zero or kernel_zero_proposer.
template <typename Recipe>
void apply_kernel_zero(command_line const& given, step_options const& options, Recipe& recipe) {
  std::string const reason = "not an option of " + std::string{name_of(recipe_choices, options.recipe)};
  refuse(given.preset.has_value(), "--preset", reason);
  refuse(given.gamma.has_value(), "--gamma", reason + ", whose return is the turn's own reward");
  refuse(given.return_kind.has_value(), "--return", reason);
  refuse(given.singleton.has_value(), "--singleton", reason);
  refuse(given.baseline_members.has_value(), "--baseline-members", reason);
  refuse(given.correct_weight.has_value(), "--correct-weight", reason);
  refuse(given.speedup_weight.has_value(), "--speedup-weight", reason);
  refuse(given.profiling_weight.has_value(), "--profiling-weight", reason);
  refuse(given.speedup_cap.has_value(), "--speedup-cap", reason);
  refuse(given.speedup_floor.has_value(), "--speedup-floor", reason);
  recipe.threads = options.threads;
  override_choice(recipe.groups, given.group_by);
  override_choice(recipe.unscored, given.unscored);
  apply_filters(given, turnwise::recipe::dr_kernel_options::released().filters, recipe.filters, recipe.metrics.band);
}

void apply_kevin(command_line const& given, step_options& options) {
  constexpr std::string_view reason = "not an option of kevin";
  refuse(given.preset.has_value(), "--preset", reason);
  refuse(given.group_by.has_value(), "--group-by", "kevin compares all turns of a prompt");
  refuse(given.singleton.has_value(), "--singleton", reason);
  refuse(given.profiling_weight.has_value(), "--profiling-weight", reason);
  auto& recipe = options.kevin;
  recipe.threads = options.threads;
  override_choice(recipe.turn_return.kind, given.return_kind);
  if (!uses_gamma(recipe.turn_return.kind)) recipe.turn_return.gamma = 1;
  refuse(given.gamma.has_value() && !uses_gamma(recipe.turn_return.kind), "--gamma",
         "this --return looks at no later turn");
  apply_gamma(given, recipe.turn_return.gamma);
  override_choice(recipe.turn_return.unscored, given.unscored);
  apply_reward(given, recipe.reward);
  override_choice(recipe.advantage.members, given.baseline_members);
  apply_filters(given, turnwise::recipe::dr_kernel_options::released().filters, recipe.filters, recipe.metrics.band);
}

}  // namespace

step_options make_options(command_line const& given) {
  step_options options;
  if (given.input.empty()) fail("--input: empty path");
  options.input = given.input;
  if (given.output) {
    if (given.output->empty()) fail("--output: empty path");
    options.output = *given.output;
  }
  options.key.seed = static_cast<std::uint32_t>(integer(given.seed, "--seed", largest_word, wanted::word));
  options.key.step = static_cast<std::uint32_t>(integer(given.step, "--step", largest_word, wanted::word));
  options.threads = static_cast<int>(integer(given.threads, "--threads", most_threads, wanted::thread_count));
  options.json = given.json;
  override_choice(options.recipe, given.recipe);
  override_choice(options.backend, given.backend);
  if (given.attempts) {
    refuse(options.recipe != recipe_name::kernel_zero_proposer, "--attempts",
           "an option of kernel_zero_proposer alone");
    if (given.attempts->empty()) fail("--attempts: empty path");
    options.attempts = *given.attempts;
  }
#ifndef TURNWISE_STEP_CUDA
  refuse(options.backend == backend_name::cuda, "--backend",
         "this turnwise-step was built without CUDA (CMake option TURNWISE_CUDA)");
#endif
  switch (options.recipe) {
    case recipe_name::dr_kernel:
      apply_dr_kernel(given, options);
      break;
    case recipe_name::kernel_zero:
      apply_kernel_zero(given, options, options.kernel_zero);
      break;
    case recipe_name::kernel_zero_proposer:
      apply_kernel_zero(given, options, options.kernel_zero_proposer);
      break;
    case recipe_name::kevin:
      apply_kevin(given, options);
      break;
  }
  return options;
}

}  // namespace rollout_step

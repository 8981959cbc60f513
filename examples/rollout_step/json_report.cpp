#include "report.hpp"

#include <nlohmann/json.hpp>

#include <cmath>

namespace rollout_step {
namespace {

using json = nlohmann::ordered_json;
using turnwise::metrics::kept_count;
using turnwise::metrics::mismatch_record;

/// Limits that are infinite are no limits.
json limit(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

template <typename Counts>
json reasons_json(Counts const& counts) {
  json object;
  for (std::size_t bit = 0; bit < counts.size(); ++bit) object[std::string{turnwise::reason::names[bit]}] = counts[bit];
  return object;
}

json kept_json(kept_count const& count) {
  return {{"turns", count.turns}, {"kept", count.kept}, {"keep_rate", count.rate()}};
}

json spread_json(spread const& values) {
  return {{"count", values.count},
          {"min", values.min},
          {"mean", values.mean},
          {"max", values.max},
          {"std", values.deviation}};
}

json filters_json(step_options const& options) {
  auto const& filters = options.filters();
  auto const band_json = [](turnwise::rejection::ratio_band_options const& band) -> json {
    return {{"level", name_of(scope_choices, band.level)},
            {"kind", name_of(ratio_kind_choices, band.kind)},
            {"low", band.low},
            {"high", limit(band.high)}};
  };
  json object;
  object["ratio_band"] = filters.ratio_band ? band_json(*filters.ratio_band) : json(nullptr);
  object["metrics_band"] = band_json(options.band());
  object["token_veto"] = nullptr;
  if (auto const& veto = filters.token_veto)
    object["token_veto"] = {{"threshold", veto->threshold}, {"scope", name_of(scope_choices, veto->veto_scope)}};
  object["profiling_filter"] = nullptr;
  if (auto const& filter = filters.profiling_filter)
    object["profiling_filter"] = {{"threshold", filter->threshold},
                                  {"softness", filter->softness},
                                  {"invalid_profile", name_of(invalid_profile_choices, filter->invalid_profile)}};
  object["non_finite"] = name_of(non_finite_choices, filters.usable_tokens.non_finite);
  return object;
}

/// The options of kernel_reward and kevin_score that both have.
template <typename Reward>
json reward_json(Reward const& reward) {
  json object{{"correct_weight", reward.correct_weight}, {"speedup_weight", reward.speedup_weight}};
  if constexpr (requires { reward.profiling_weight; }) object["profiling_weight"] = reward.profiling_weight;
  object["speedup_cap"] = limit(reward.speedup_cap);
  object["speedup_floor"] = reward.speedup_floor;
  return object;
}

json options_json(step_options const& options) {
  json object{{"recipe", name_of(recipe_choices, options.recipe)}};
  if (options.recipe == recipe_name::dr_kernel) {
    auto const& recipe = options.dr_kernel;
    object["preset"] = name_of(preset_choices, options.preset);
    object["gamma"] = recipe.turn_return.gamma;
    object["reward"] = reward_json(recipe.reward);
    object["singleton"] = name_of(singleton_choices, recipe.advantage.singleton);
    object["baseline_members"] = name_of(members_choices, recipe.advantage.members);
  } else if (options.recipe == recipe_name::kevin) {
    auto const& recipe = options.kevin;
    object["return"] = name_of(return_choices, recipe.turn_return.kind);
    object["gamma"] = uses_gamma(recipe.turn_return.kind) ? json(recipe.turn_return.gamma) : json(nullptr);
    object["reward"] = reward_json(recipe.reward);
    object["baseline_members"] = name_of(members_choices, recipe.advantage.members);
  } else if (options.recipe == recipe_name::kernel_zero_proposer) {
    auto const& reward = options.kernel_zero_proposer.reward;
    object["attempts"] = options.attempts ? json(options.attempts->string()) : json(nullptr);
    object["group_by"] = name_of(group_by_choices, options.kernel_zero_proposer.groups);
    object["reward"] = {{"target", reward.target}, {"invalid_reward", reward.invalid_reward}};
  } else {
    auto const& reward = options.kernel_zero.reward;
    object["group_by"] = name_of(group_by_choices, options.kernel_zero.groups);
    object["reward"] = {{"alpha", reward.alpha}, {"beta", reward.beta}, {"min_spread", reward.min_spread}};
  }
  object["unscored"] = name_of(unscored_choices, options.turn_return().unscored);
  object.update(filters_json(options));
  object["seed"] = options.key.seed;
  object["step"] = options.key.step;
  object["threads"] = options.threads;
  object["backend"] = name_of(backend_choices, options.backend);
  return object;
}

json lengths_json(mismatch_record const& record) {
  json list = json::array();
  for (auto const& quartile : record.by_length) {
    json object{{"shortest", quartile.shortest}, {"longest", quartile.longest}};
    object.update(kept_json(quartile.count));
    list.push_back(object);
  }
  return list;
}

json metrics_json(mismatch_record const& record) {
  return {{"turns", record.turns},
          {"ratio_turns", record.ratio_turns},
          {"ratio_tokens", record.ratio_tokens},
          {"non_finite_tokens", record.non_finite_tokens},
          {"saturated_tokens", record.saturated_tokens},
          {"kl", record.kl},
          {"k3", record.k3},
          {"old_log_ppl", record.old_log_ppl},
          {"rollout_log_ppl", record.rollout_log_ppl},
          {"log_ppl_difference", record.log_ppl_difference},
          {"old_ppl", record.old_ppl},
          {"rollout_ppl", record.rollout_ppl},
          {"chi2_token", record.chi2_token},
          {"chi2_turn", record.chi2_turn},
          {"effective_sample_size", record.effective_sample_size},
          {"ratio_min", record.ratio_min},
          {"ratio_max", record.ratio_max},
          {"low_turn_share", record.low_turn_share},
          {"high_turn_share", record.high_turn_share},
          {"low_token_share", record.low_token_share},
          {"high_token_share", record.high_token_share},
          {"valid", kept_json(record.valid)},
          {"kept_tokens", record.kept_tokens},
          {"reasons", reasons_json(record.reasons)},
          {"by_length", lengths_json(record)},
          {"correct", kept_json(record.correct)},
          {"incorrect", kept_json(record.incorrect)},
          {"fast", kept_json(record.fast)},
          {"kept_advantage_mean", record.kept_advantage_mean},
          {"negative_groups", record.negative_groups},
          {"rejected_to_one", record.rejected_to_one},
          {"meaningless_profiles", record.meaningless_profiles},
          {"speedup_outliers", record.speedup_outliers},
          {"low_keep", record.low_keep},
          {"nothing_kept", record.nothing_kept},
          {"profiler_suspect", record.profiler_suspect}};
}

json turn_indices_json(step_summary const& summary) {
  json list = json::array();
  for (auto const& one : summary.by_turn_index)
    list.push_back({{"turn_index", one.turn_index},
                    {"turns", one.turns},
                    {"valid", one.valid},
                    {"kept", one.kept},
                    {"reasons", reasons_json(one.reasons)},
                    {"reward", spread_json(one.reward)},
                    {"advantage", spread_json(one.advantage)}});
  return list;
}

}  // namespace

std::string json_report(step_summary const& summary, step_options const& options, step_result const& result) {
  json warnings = json::object();
  for (auto const& one : summary.warnings) warnings[one.name] = one.text;
  double const rate = result.seconds > 0 ? static_cast<double>(summary.tokens) / result.seconds : 0.0;
  json const report{{"batch",
                     {{"input", options.input.string()},
                      {"turns", summary.turns},
                      {"trajectories", summary.trajectories},
                      {"groups", summary.groups},
                      {"tokens", summary.tokens}}},
                    {"options", options_json(options)},
                    {"metrics", metrics_json(result.metrics)},
                    {"by_turn_index", turn_indices_json(summary)},
                    {"reward_given", summary.given_reward},
                    {"warnings", warnings},
                    {"time", {{"seconds", result.seconds}, {"tokens_per_second", rate}}}};
  // Paths may hold bytes that are not UTF-8; they must not stop a report.
  return report.dump(2, ' ', false, json::error_handler_t::replace) + '\n';
}

}  // namespace rollout_step

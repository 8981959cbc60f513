/// @file
/// Options by the names of their C++ structs and fields.
#pragma once

#include "backend.hpp"

#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/core/grouping.hpp>
#include <turnwise/loss/aggregate.hpp>
#include <turnwise/loss/inputs.hpp>
#include <turnwise/loss/ppo_clip.hpp>
#include <turnwise/recipe/dr_kernel.hpp>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace turnwise_torch {

/// Sets fields to what is given under their names; `finish` then throws on a name that no field asked for.
class option_reader {
 public:
  option_reader(std::string_view function, option_map const& given) : function_(function), given_(given) {}

  void number(std::string const& name, double& to) { read(name, "a number", to); }
  void flag(std::string const& name, bool& to) { read(name, "True or False", to); }
  template <std::integral T>
  void whole(std::string const& name, T& to) {
    constexpr T most = std::numeric_limits<T>::max();
    static_assert(sizeof(T) <= 4);  // exact in a double
    auto value = static_cast<double>(to);
    number(name, value);
    turnwise::expects(value >= 0 && value <= most && value == std::floor(value), function_, ": ", prefix_, name, " = ",
                      value, ", expected a whole number within [0, ", most, "]");
    to = static_cast<T>(value);
  }
  /// The values of an enumeration, in their order.
  template <typename E>
  void choice(std::string const& name, E& to, std::initializer_list<std::string_view> names) {
    std::string text, all;
    std::size_t index = 0;
    if (!read(name, "a string", text)) return;
    for (std::string_view const one : names) {
      if (text == one) {
        to = static_cast<E>(index);
        return;
      }
      all += (index++ == 0 ? "" : ", ") + std::string(one);
    }
    turnwise::fail(function_, ": ", prefix_, name, " is \"", text, "\", expected one of ", all);
  }
  /// Options of their own, "name.field".
  template <typename Options, typename Fields>
  void group(std::string const& name, Options& to, Fields fields) {
    std::string const outer = prefix_;
    prefix_ += name + ".";
    fields(*this, to);
    prefix_ = outer;
  }
  /// A part that may be off: name = False, or on: True, or any of its fields.
  template <typename Options, typename Fields>
  void part(std::string const& name, std::optional<Options>& to, Fields fields) {
    bool on = to.has_value();
    auto const next = given_.lower_bound(prefix_ + name + ".");
    if (next != given_.end() && next->first.starts_with(prefix_ + name + ".")) on = true;
    flag(name, on);
    if (!on) {
      to.reset();
      return;
    }
    if (!to) to.emplace();
    group(name, *to, fields);
  }
  void finish() const {
    for (auto const& [name, value] : given_)
      if (asked_.count(name) == 0) {
        std::string all;
        for (auto const& known : asked_) all += (all.empty() ? "" : ", ") + known;
        turnwise::fail(function_, ": unknown option ", name, ", expected one of ", all);
      }
  }

 private:
  /// Whether it is given.
  template <typename T>
  bool read(std::string const& name, std::string_view kind, T& to) {
    asked_.insert(prefix_ + name);
    auto const found = given_.find(prefix_ + name);
    if (found == given_.end()) return false;
    T const* const value = std::get_if<T>(&found->second);
    turnwise::expects(value != nullptr, function_, ": ", prefix_, name, " is not ", kind);
    to = *value;
    return true;
  }

  std::string_view function_;
  option_map const& given_;
  std::string prefix_;
  std::set<std::string> asked_;
};

namespace fields {

inline void ratio_band(option_reader& read, turnwise::rejection::ratio_band_options& to) {
  read.choice("level", to.level, {"turn", "trajectory"});
  read.choice("kind", to.kind, {"geometric", "product"});
  read.number("low", to.low);
  read.number("high", to.high);
}
inline void token_veto(option_reader& read, turnwise::rejection::token_veto_options& to) {
  read.number("threshold", to.threshold);
  read.choice("veto_scope", to.veto_scope, {"turn", "trajectory"});
  read.number("outlier", to.outlier);
}
inline void usable_tokens(option_reader& read, turnwise::rejection::usable_tokens_options& to) {
  read.choice("non_finite", to.non_finite, {"reject", "neutral", "error"});
  read.choice("non_finite_scope", to.non_finite_scope, {"turn", "trajectory"});
}
inline void profiling_filter(option_reader& read, turnwise::rejection::profiling_filter_options& to) {
  read.number("threshold", to.threshold);
  read.number("softness", to.softness);
  read.number("keep_speedup", to.keep_speedup);
  read.flag("all_turns", to.all_turns);
  read.choice("invalid_profile", to.invalid_profile, {"reject", "keep", "error"});
}
inline void kernel_reward(option_reader& read, turnwise::reward::kernel_reward_options& to) {
  read.number("correct_weight", to.correct_weight);
  read.number("speedup_weight", to.speedup_weight);
  read.number("profiling_weight", to.profiling_weight);
  read.number("speedup_cap", to.speedup_cap);
  read.number("speedup_floor", to.speedup_floor);
  read.number("compile_failure_penalty", to.compile_failure_penalty);
  read.number("rule_violation_penalty", to.rule_violation_penalty);
  read.number("decoy_penalty", to.decoy_penalty);
  read.number("incorrect_penalty", to.incorrect_penalty);
}
inline void discounted_return(option_reader& read, turnwise::advantage::discounted_return_options& to) {
  read.number("gamma", to.gamma);
  read.choice("unscored", to.unscored, {"exclude", "zero", "error"});
}
inline void leave_one_out(option_reader& read, turnwise::advantage::leave_one_out_options& to) {
  read.choice("singleton", to.singleton, {"keep", "zero", "others"});
  read.choice("exclude", to.exclude, {"trajectory", "member"});
  read.choice("members", to.members, {"valid", "kept"});
  read.flag("allow_kept_with_keep", to.allow_kept_with_keep);
  read.flag("scale", to.scale);
  read.number("epsilon", to.epsilon);
}
inline void group_relative(option_reader& read, turnwise::advantage::group_relative_options& to) {
  read.flag("scale", to.scale);
  read.whole("ddof", to.ddof);
  read.number("epsilon", to.epsilon);
  read.choice("members", to.members, {"valid", "kept"});
}
inline void aggregate(option_reader& read, turnwise::loss::aggregate_options& to) {
  read.choice(
      "mean", to.mean,
      {"token_mean", "token_sum", "sequence_mean_token_mean", "sequence_mean_token_sum", "sequence_mean_token_norm"});
  read.choice("unit", to.unit, {"turn", "trajectory"});
  read.choice("scope", to.scope, {"batch", "prompt"});
  read.choice("denominator", to.denominator, {"kept", "valid", "nominal"});
  read.number("nominal", to.nominal);
  read.number("norm", to.norm);
}
inline void kl(option_reader& read, turnwise::divergence::kl_options& to) {
  read.choice("kind", to.kind, {"k1", "k2", "k3", "absolute"});
  read.number("clamp", to.clamp);
  read.number("cap", to.cap);
  read.choice("gradient", to.gradient, {"own", "k2"});
}

}  // namespace fields

[[nodiscard]] inline turnwise::group_by group_by_of(std::string const& by) {
  auto to = turnwise::group_by::turn;
  option_map const given{{"by", by}};
  option_reader{"make_grouping", given}.choice("by", to, {"group", "turn", "batch"});
  return to;
}

/// Options of a call that has one struct of them.
template <typename Options>
[[nodiscard]] Options options_of(std::string_view function, option_map const& given,
                                 void (*fields)(option_reader&, Options&)) {
  Options options;
  option_reader read{function, given};
  fields(read, options);
  read.finish();
  return options;
}

/// The policy ppo_clip and the driver's options.
struct ppo_options {
  turnwise::loss::ppo_clip policy{};
  turnwise::loss::loss_options driver{};

  ppo_options(std::string_view function, option_map const& given) {
    option_reader read{function, given};
    read.number("clip_low", policy.clip_low);
    read.number("clip_high", policy.clip_high);
    read.number("dual_clip", policy.dual_clip);
    read.number("log_ratio_limit", driver.log_ratio_limit);
    read.number("kl_coefficient", driver.kl_coefficient);
    read.number("entropy_coefficient", driver.entropy_coefficient);
    read.group("kl", driver.kl, fields::kl);
    read.finish();
  }
};

/// A preset of the recipe, the changes to it, and the key of its draws.
struct step_options {
  turnwise::recipe::dr_kernel_options recipe{};
  turnwise::draw_key key{};

  explicit step_options(option_map const& given) {
    enum class preset { paper, released } start = preset::paper;
    option_reader read{"dr_kernel", given};
    read.choice("preset", start, {"paper", "released"});
    recipe = start == preset::paper ? turnwise::recipe::dr_kernel_options::paper()
                                    : turnwise::recipe::dr_kernel_options::released();
    read.whole("seed", key.seed);
    read.whole("step", key.step);
    read.group("kernel_reward", recipe.reward, fields::kernel_reward);
    read.group("discounted_return", recipe.turn_return, fields::discounted_return);
    read.group("leave_one_out", recipe.advantage, fields::leave_one_out);
    read.group("usable_tokens", recipe.filters.usable_tokens, fields::usable_tokens);
    read.part("ratio_band", recipe.filters.ratio_band, fields::ratio_band);
    read.part("token_veto", recipe.filters.token_veto, fields::token_veto);
    read.part("profiling_filter", recipe.filters.profiling_filter, fields::profiling_filter);
    read.finish();
  }
};

}  // namespace turnwise_torch

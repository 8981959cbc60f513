/// @file
/// What a run is asked to do: choices and numbers as given, checked and laid over the presets of the library.
#pragma once

#include <turnwise/recipe/dr_kernel.hpp>
#include <turnwise/recipe/kernel_zero.hpp>
#include <turnwise/recipe/kernel_zero_proposer.hpp>
#include <turnwise/recipe/kevin.hpp>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace rollout_step {

enum class recipe_name : std::uint8_t { dr_kernel, kernel_zero, kernel_zero_proposer, kevin };
enum class preset_name : std::uint8_t { paper, released };
enum class backend_name : std::uint8_t { cpu, cuda };

/// A word of the command line and what it stands for.
template <typename E>
struct choice {
  std::string_view name;
  E value;
};

using turnwise::advantage::baseline_members;
using turnwise::advantage::return_kind;
using turnwise::advantage::singleton_policy;
using turnwise::advantage::unscored_policy;
using turnwise::advantage::uses_gamma;
using turnwise::rejection::invalid_profile_policy;
using turnwise::rejection::non_finite_policy;
using turnwise::rejection::ratio_kind;
using turnwise::rejection::scope;

inline constexpr std::array recipe_choices{
    choice<recipe_name>{"dr_kernel", recipe_name::dr_kernel},
    choice<recipe_name>{"kernel_zero", recipe_name::kernel_zero},
    choice<recipe_name>{"kernel_zero_proposer", recipe_name::kernel_zero_proposer},
    choice<recipe_name>{"kevin", recipe_name::kevin}};
inline constexpr std::array preset_choices{choice<preset_name>{"paper", preset_name::paper},
                                           choice<preset_name>{"released", preset_name::released}};
inline constexpr std::array backend_choices{choice<backend_name>{"cpu", backend_name::cpu},
                                            choice<backend_name>{"cuda", backend_name::cuda}};
inline constexpr std::array group_by_choices{choice<turnwise::group_by>{"prompt", turnwise::group_by::group},
                                             choice<turnwise::group_by>{"turn", turnwise::group_by::turn}};
inline constexpr std::array return_choices{
    choice<return_kind>{"sum", return_kind::discounted_sum}, choice<return_kind>{"max", return_kind::max},
    choice<return_kind>{"last", return_kind::last}, choice<return_kind>{"current", return_kind::current},
    choice<return_kind>{"best_so_far", return_kind::best_so_far}};
inline constexpr std::array scope_choices{choice<scope>{"turn", scope::turn},
                                          choice<scope>{"trajectory", scope::trajectory}};
inline constexpr std::array ratio_kind_choices{choice<ratio_kind>{"geometric", ratio_kind::geometric},
                                               choice<ratio_kind>{"product", ratio_kind::product}};
inline constexpr std::array singleton_choices{choice<singleton_policy>{"keep", singleton_policy::keep},
                                              choice<singleton_policy>{"zero", singleton_policy::zero},
                                              choice<singleton_policy>{"others", singleton_policy::others}};
inline constexpr std::array members_choices{choice<baseline_members>{"valid", baseline_members::valid},
                                            choice<baseline_members>{"kept", baseline_members::kept}};
inline constexpr std::array invalid_profile_choices{
    choice<invalid_profile_policy>{"reject", invalid_profile_policy::reject},
    choice<invalid_profile_policy>{"keep", invalid_profile_policy::keep},
    choice<invalid_profile_policy>{"error", invalid_profile_policy::error}};
inline constexpr std::array unscored_choices{choice<unscored_policy>{"exclude", unscored_policy::exclude},
                                             choice<unscored_policy>{"zero", unscored_policy::zero},
                                             choice<unscored_policy>{"error", unscored_policy::error}};
inline constexpr std::array non_finite_choices{choice<non_finite_policy>{"reject", non_finite_policy::reject},
                                               choice<non_finite_policy>{"neutral", non_finite_policy::neutral},
                                               choice<non_finite_policy>{"error", non_finite_policy::error}};

template <typename E, std::size_t N>
[[nodiscard]] constexpr std::string_view name_of(std::array<choice<E>, N> const& choices, E value) {
  for (auto const& one : choices)
    if (one.value == value) return one.name;
  return {};
}

inline constexpr std::int64_t largest_word = 0xffffffff;
inline constexpr std::int64_t most_threads = 1024;

/// What errors say that a number is expected to be.
namespace wanted {
inline constexpr std::string_view share = "a number in [0, 1]";
inline constexpr std::string_view weight = "a number within +-2^500";
inline constexpr std::string_view cap = "a number or inf";
inline constexpr std::string_view ratio = "a ratio from 0 to 2^500";
inline constexpr std::string_view threshold = "a number from 0 to 2^500";
inline constexpr std::string_view word = "an integer in [0, 4294967295]";
inline constexpr std::string_view thread_count = "an integer in [0, 1024]";
}  // namespace wanted

/// The command line, unjudged. Empty: not given.
struct command_line {
  std::string help;  ///< not empty: help was asked for, and nothing else counts
  std::string input;
  std::optional<std::string> output, attempts, ratio_band;
  std::optional<recipe_name> recipe;
  std::optional<preset_name> preset;
  std::optional<backend_name> backend;
  std::optional<turnwise::group_by> group_by;
  std::optional<turnwise::advantage::return_kind> return_kind;
  std::optional<scope> ratio_level, veto_scope;
  std::optional<turnwise::rejection::ratio_kind> ratio_kind;
  std::optional<singleton_policy> singleton;
  std::optional<turnwise::advantage::baseline_members> baseline_members;
  std::optional<invalid_profile_policy> invalid_profile;
  std::optional<unscored_policy> unscored;
  std::optional<non_finite_policy> non_finite;
  std::optional<double> gamma, correct_weight, speedup_weight, profiling_weight, speedup_cap, speedup_floor;
  std::optional<double> token_veto, profiling_threshold, profiling_softness;
  std::optional<std::int64_t> seed, step, threads;
  bool no_ratio_band = false;
  bool no_token_veto = false;
  bool no_profiling_filter = false;
  bool json = false;
};

/// What a run does. Only the options of the chosen recipe count.
struct step_options {
  std::filesystem::path input;
  std::optional<std::filesystem::path> output;
  std::optional<std::filesystem::path> attempts;  ///< of kernel_zero_proposer
  recipe_name recipe = recipe_name::dr_kernel;
  preset_name preset = preset_name::released;  ///< of dr_kernel
  turnwise::recipe::dr_kernel_options dr_kernel{};
  turnwise::recipe::kernel_zero_options kernel_zero{};
  turnwise::recipe::kernel_zero_proposer_options kernel_zero_proposer{};
  turnwise::recipe::kevin_options kevin{};
  turnwise::draw_key key{0, 0};
  int threads = 0;
  backend_name backend = backend_name::cpu;
  bool json = false;

  /// Calls use(options) with those of the chosen recipe.
  template <typename Use>
  auto& with_recipe(Use use) const {
    switch (recipe) {
      case recipe_name::dr_kernel:
        return use(dr_kernel);
      case recipe_name::kernel_zero:
        return use(kernel_zero);
      case recipe_name::kernel_zero_proposer:
        return use(kernel_zero_proposer);
      default:
        return use(kevin);
    }
  }
  [[nodiscard]] turnwise::recipe::filter_options const& filters() const {
    return with_recipe([](auto const& options) -> auto& { return options.filters; });
  }
  [[nodiscard]] turnwise::metrics::mismatch_options const& metrics() const {
    return with_recipe([](auto const& options) -> auto& { return options.metrics; });
  }
  /// The band that metrics and geometric_ratio.npy go by, also where it is no filter.
  [[nodiscard]] turnwise::rejection::ratio_band_options const& band() const { return metrics().band; }
  /// The speedup that counts as an outlier for the metrics.
  [[nodiscard]] double speedup_cap() const {
    return recipe == recipe_name::dr_kernel ? dr_kernel.reward.speedup_cap
           : recipe == recipe_name::kevin   ? kevin.reward.speedup_cap
                                            : metrics().speedup_cap;
  }
  [[nodiscard]] turnwise::group_by groups() const {
    return recipe == recipe_name::dr_kernel     ? turnwise::group_by::turn
           : recipe == recipe_name::kevin       ? turnwise::group_by::group
           : recipe == recipe_name::kernel_zero ? kernel_zero.groups
                                                : kernel_zero_proposer.groups;
  }
  [[nodiscard]] turnwise::advantage::turn_return_options turn_return() const {
    if (recipe == recipe_name::kevin) return kevin.turn_return;
    auto const sum = return_kind::discounted_sum;
    if (recipe == recipe_name::dr_kernel) return {sum, dr_kernel.turn_return.gamma, dr_kernel.turn_return.unscored};
    return {sum, 0, recipe == recipe_name::kernel_zero ? kernel_zero.unscored : kernel_zero_proposer.unscored};
  }
};

/// Reads the command line. @throws tool_error  unknown options and choices, text where a number belongs.
[[nodiscard]] command_line parse_command_line(int argc, char const* const* argv);

/// Checks each option and lays it over the recipe's preset.
///
/// @throws tool_error  numbers out of range, options that contradict each other or do not belong to the recipe.
[[nodiscard]] step_options make_options(command_line const& given);

}  // namespace rollout_step

/// @file
/// What may be a reward, and an option that becomes one.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>

#include <concepts>
#include <string_view>

namespace turnwise::reward {
namespace detail {

/// True for what may be written as a reward of type T: NaN (unscored), or a number within its magnitude_limit.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool is_reward(double value) noexcept {
  return !(value > magnitude_limit<T> || value < -magnitude_limit<T>);
}

/// A weight, or a reward that stands in the options, of rewards of type T.
template <real T>
void check_reward_option(double value, std::string_view function, std::string_view option) {
  expects(value == value && is_reward<T>(value), function, ": ", option, " = ", value,
          ", expected a number within +-2^", std::same_as<T, float> ? 100 : 500, ", the limit of the rewards' type");
}

}  // namespace detail
}  // namespace turnwise::reward

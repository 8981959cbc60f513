/// @file
/// The settings at which the README's numbers were measured.
#pragma once

#include "training.hpp"

namespace custom_loop {

inline constexpr std::size_t default_seeds = 63;

[[nodiscard]] inline double default_rate(optimiser_kind kind, double of_sgd) {
  return kind == optimiser_kind::sgd ? of_sgd : 0.02;
}

/// Real plans are not rare: every run learns them, without a filter.
[[nodiscard]] inline run_options baselines_defaults(std::size_t k, optimiser_kind kind) {
  return {.k = k, .steps = 300, .optimiser = kind, .rate = default_rate(kind, 0.05)};
}

/// Real plans are rare enough for lazy ones to take over before they are learned.
[[nodiscard]] inline run_options remedies_defaults(optimiser_kind kind = optimiser_kind::sgd) {
  return {
      .of = {.lazy = 0.10, .real = 0.005}, .k = 8, .steps = 600, .optimiser = kind, .rate = default_rate(kind, 0.1)};
}

}  // namespace custom_loop

/// Evaluations of turns for GPU tests: on the host, and the same in device memory.
#pragma once

#include "support/gpu_batches.cuh"

#include <turnwise/gpu/reward/kernel_reward.cuh>
#include <turnwise/reward/kernel_reward.hpp>

#include <limits>
#include <vector>

namespace support {

/// Everything that can be said of a turn; NaN speedups, and profiles without meaning, infinite ones included only where
/// nothing reads them.
template <typename E>
struct random_evaluation {
  std::vector<std::uint8_t> compiled, correct, decoy, rule_violation;
  std::vector<E> speedup, generated_us, total_us;
  bool sparse;  ///< the arrays that may be left out are

  random_evaluation(std::uint64_t seed, std::size_t turns) : sparse(seed % 4 == 0) {
    integers random{seed};
    constexpr E infinite = std::numeric_limits<E>::infinity();
    constexpr E nan = std::numeric_limits<E>::quiet_NaN();
    for (std::size_t s = 0; s < turns; ++s) {
      compiled.push_back(random.below(8) != 0);
      decoy.push_back(random.below(9) == 0);
      rule_violation.push_back(random.below(11) == 0);
      correct.push_back(random.below(3) != 0);
      bool const counts = counts_as_correct(s);
      speedup.push_back(random.below(20) == 0 ? nan : static_cast<E>(random.below(6000)) * E(1.1e-3));
      total_us.push_back(random.below(15) == 0 ? E{0} : static_cast<E>(random.below(1000)) * E(0.37));
      generated_us.push_back(random.below(15) == 0 ? nan : static_cast<E>(random.below(1200)) * E(0.31));
      if (!counts && random.below(2) == 0) speedup[s] = total_us[s] = generated_us[s] = infinite;
      if (counts && seed % 3 == 0 && random.below(3) == 0) speedup[s] = random.below(2) == 0 ? E{0} : -E{0};
    }
  }

  [[nodiscard]] bool counts_as_correct(std::size_t s) const {
    return correct[s] != 0 && (sparse || (compiled[s] != 0 && decoy[s] == 0 && rule_violation[s] == 0));
  }
  [[nodiscard]] turnwise::reward::evaluation<E> view() const {
    turnwise::reward::evaluation<E> result{
        .correct = correct, .speedup = speedup, .generated_us = generated_us, .total_us = total_us};
    if (sparse) return result;
    result.compiled = compiled;
    result.decoy = decoy;
    result.rule_violation = rule_violation;
    return result;
  }
};

/// An evaluation in device memory.
template <typename E>
class device_evaluation {
 public:
  explicit device_evaluation(turnwise::reward::evaluation<E> const& host)
      : compiled_(host.compiled),
        correct_(host.correct),
        decoy_(host.decoy),
        rule_violation_(host.rule_violation),
        speedup_(host.speedup),
        generated_us_(host.generated_us),
        total_us_(host.total_us) {}

  [[nodiscard]] gpu::reward::evaluation<E> view() const {
    return {compiled_.view(), correct_.view(),      decoy_.view(),   rule_violation_.view(),
            speedup_.view(),  generated_us_.view(), total_us_.view()};
  }

 private:
  device_array<std::uint8_t> compiled_, correct_, decoy_, rule_violation_;
  device_array<E> speedup_, generated_us_, total_us_;
};

}  // namespace support

/// @file
/// A linear softmax policy over plans, and its optimisers.
#pragma once

#include "task.hpp"

#include <Eigen/Core>

#include <array>
#include <cmath>

namespace custom_loop {

/// What the policy sees, one-hot: the turn, and at later turns the kind of the plan before.
inline constexpr int features = turns + kinds;
using feature_vector = Eigen::Matrix<double, features, 1>;
using weights = Eigen::Matrix<double, kinds, features>;
using probabilities = Eigen::Matrix<double, kinds, 1>;

[[nodiscard]] inline feature_vector features_of(std::size_t turn, plan before) {
  feature_vector seen = feature_vector::Zero();
  seen[static_cast<int>(turn)] = 1;
  if (turn > 0) seen[static_cast<int>(turns) + static_cast<int>(before)] = 1;
  return seen;
}

[[nodiscard]] inline probabilities policy(weights const& w, feature_vector const& seen) {
  probabilities const logits = w * seen;
  probabilities const grown = (logits.array() - logits.maxCoeff()).exp();
  return grown / grown.sum();
}

[[nodiscard]] inline plan sample(probabilities const& p, double u) {
  return u < p[0] ? plan::wrong : u < p[0] + p[1] ? plan::lazy : plan::real;
}

/// The weights under which plans have the task's first probabilities at every turn.
[[nodiscard]] inline weights untrained(task const& of) {
  weights w = weights::Zero();
  std::array const first{1 - of.lazy - of.real, of.lazy, of.real};
  for (std::size_t kind = 0; kind < kinds; ++kind)
    w.row(static_cast<int>(kind)).head<turns>().setConstant(std::log(first[kind]));
  return w;
}

using turn_probabilities = Eigen::Matrix<double, kinds, turns>;

/// The exact probability of each kind of plan at each turn.
[[nodiscard]] inline turn_probabilities plan_probabilities(weights const& w) {
  turn_probabilities p = turn_probabilities::Zero();
  p.col(0) = policy(w, features_of(0, plan::wrong));
  for (std::size_t turn = 1; turn < turns; ++turn)
    for (std::size_t before = 0; before < kinds; ++before)
      p.col(static_cast<int>(turn)) += p(static_cast<int>(before), static_cast<int>(turn) - 1) *
                                       policy(w, features_of(turn, static_cast<plan>(before)));
  return p;
}

enum class optimiser_kind : std::uint8_t { sgd, adam };

/// Gradient ascent: plain, or Adam with its usual decays of 0.9 and 0.999.
class optimiser {
 public:
  optimiser(optimiser_kind kind, double rate) : kind_(kind), rate_(rate) {}

  void step(weights& w, weights const& gradient) {
    if (kind_ == optimiser_kind::sgd) {
      w += rate_ * gradient;
      return;
    }
    mean_ = 0.9 * mean_ + 0.1 * gradient;
    square_ = 0.999 * square_ + 0.001 * gradient.cwiseAbs2();
    mean_weight_ *= 0.9;
    square_weight_ *= 0.999;
    w.array() +=
        rate_ * (mean_.array() / (1 - mean_weight_)) / ((square_.array() / (1 - square_weight_)).sqrt() + 1e-8);
  }

 private:
  optimiser_kind kind_;
  double rate_;
  weights mean_ = weights::Zero(), square_ = weights::Zero();
  double mean_weight_ = 1, square_weight_ = 1;
};

}  // namespace custom_loop

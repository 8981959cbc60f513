#include "support/two_turn_problem.hpp"

#include <turnwise/advantage/reinforce_plus_plus.hpp>
#include <turnwise/advantage/whiten.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

using namespace turnwise::test::two_turns;
using turnwise::group_by;
using turnwise::make_grouping;
using turnwise::advantage::epsilon_place;
using turnwise::advantage::reinforce_plus_plus_options;
using turnwise::advantage::whiten_options;
using turnwise::test::exactly;
using turnwise::test::rational;

namespace {

using method = std::function<std::vector<double>(sample const&)>;

/// No sample variance of numbers in [0, 3], nor of their distances from a mean of them, is above 9: the divisor is 4.
constexpr whiten_options by_four{.epsilon = 16, .place = epsilon_place::floor};

method whitened(whiten_options const& options) {
  return [=](sample const& drawn) {
    std::vector<double> advantage(drawn.batch.turns());
    turnwise::advantage::whiten(returns_of(drawn.batch), {}, {}, options, std::span{advantage});
    return advantage;
  };
}

/// The trajectories of a sample are those of one prompt.
method plus_plus(bool group_baseline, whiten_options const& options) {
  return [=](sample const& drawn) {
    return by_turn(drawn, [&](auto const& groups, auto const& returns, auto advantage) {
      turnwise::advantage::reinforce_plus_plus(
          groups, returns, {}, {}, reinforce_plus_plus_options{.group_baseline = group_baseline, .whiten = options},
          advantage);
    });
  };
}

/// The fractions for which the doubles stand, with those that centre on a mean of at most 10, over 4.
estimator exact(method const& of) {
  return [=](sample const& drawn) {
    std::vector<rational> result;
    for (double const value : of(drawn)) result.push_back(exactly(value, 4 * 2520));
    return result;
  };
}

gradient quarter(gradient const& of) { return {of.turn_1 * rational{1, 4}, of.turn_2 * rational{1, 4}}; }

/// Whitening without the library: numbers over their deviation about 0 mean (ddof 1, epsilon 1e-6 outside the root).
method over_deviation(std::function<std::vector<rational>(sample const&)> const& centred_values) {
  return [=](sample const& drawn) {
    std::vector<double> result;
    double squares = 0;
    for (rational const value : centred_values(drawn)) {
      result.push_back(as_double(value));
      squares += result.back() * result.back();
    }
    if (squares == 0) return result;  // all are 0
    for (double& value : result) value /= std::sqrt(squares / static_cast<double>(result.size() - 1)) + 1e-6;
    return result;
  };
}

std::vector<rational> centred_on_all(sample const& drawn) {
  auto result = exact_returns(drawn);
  rational sum;
  for (rational const value : result) sum += value;
  for (rational& value : result) value = value - sum / rational{static_cast<std::int64_t>(result.size())};
  return result;
}

std::vector<rational> centred_on_turn_group(sample const& drawn) {
  return exact_by_turn(drawn, [](turn_group const& group) {
    rational sum;
    for (rational const value : group.value) sum += value;
    return sum / rational{static_cast<std::int64_t>(group.value.size())};
  });
}

void check_same(std::array<double, 2> const& got, std::array<double, 2> const& wanted) {
  for (std::size_t t = 0; t < 2; ++t) CHECK(std::abs(got[t] - wanted[t]) <= 1e-13);
}

/// Neither the truth nor, at any length, its direction.
void check_biased(std::array<double, 2> const& got, gradient const& truth) {
  double const turn_1 = as_double(truth.turn_1), turn_2 = as_double(truth.turn_2);
  CHECK(std::abs(got[0] - turn_1) > 1e-3);
  CHECK(std::abs(got[1] - turn_2) > 1e-3);
  CHECK(std::abs(got[0] * turn_2 - got[1] * turn_1) > 1e-4);
}

}  // namespace

TEST_SUITE("advantage/estimator_claims_batch") {
  TEST_CASE("K = 4, divided by a constant: the rows of the table for the means that they subtract") {
    CHECK(expected_gradient(of_the_table, 4, exact(whitened(by_four))) ==
          quarter({{-213, 4480}, {6921, 35840}}));  // the mean over all turns
    CHECK(expected_gradient(of_the_table, 4, exact(plus_plus(false, by_four))) ==
          quarter({{-213, 4480}, {6921, 35840}}));
    CHECK(expected_gradient(of_the_table, 4, exact(plus_plus(true, by_four))) ==
          quarter({{-3, 64}, {153, 1024}}));  // the group mean by turn, lone members 0
  }

  TEST_CASE("whiten: biased; a constant times the mean over all turns where the deviation is constant") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        auto const constant = expected_gradient(w, k, exact(whitened(by_four)));
        CHECK(constant == quarter(expected_gradient(w, k, centred_on_all)));
        CHECK(constant != quarter(true_gradient(w)));
        auto const scaled = approximate_gradient(w, k, whitened({}));
        check_same(scaled, approximate_gradient(w, k, over_deviation(centred_on_all)));
        check_biased(scaled, true_gradient(w));
      }
  }

  TEST_CASE("reinforce_plus_plus: biased as whiten is, whatever the groups") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        CHECK(expected_gradient(w, k, exact(plus_plus(false, by_four))) ==
              quarter(expected_gradient(w, k, centred_on_all)));
        auto const scaled = approximate_gradient(w, k, plus_plus(false, {}));
        check_same(scaled, approximate_gradient(w, k, over_deviation(centred_on_all)));
        check_biased(scaled, true_gradient(w));
      }
  }

  TEST_CASE("reinforce_plus_plus with the group's baseline: biased; a constant times the group mean likewise") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        auto const constant = expected_gradient(w, k, exact(plus_plus(true, by_four)));
        CHECK(constant == quarter(expected_gradient(w, k, centred_on_turn_group)));
        CHECK(constant != quarter(true_gradient(w)));
        auto const scaled = approximate_gradient(w, k, plus_plus(true, {}));
        check_same(scaled, approximate_gradient(w, k, over_deviation(centred_on_turn_group)));
        check_biased(scaled, true_gradient(w));
      }
  }

}  // TEST_SUITE

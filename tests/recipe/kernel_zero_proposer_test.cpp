#include "support/batches.hpp"

#include <turnwise/recipe/kernel_zero_proposer.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace turnwise;
using recipe::kernel_zero_proposer_options;
using test::bits_of;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using test::sample_turn;
using flags = std::vector<reason_flags>;
using numbers = std::vector<double>;
using ids = std::vector<std::int64_t>;

constexpr draw_key key{.seed = 3, .step = 4};

/// Proposals of two prompts, and four attempts at each of all but the last.
struct problems {
  sample_batch<> proposals;
  sample_batch<> attempts;
  grouping attempt_groups;
  ids group{101, 102, 103, 104, 105};
  std::vector<std::uint8_t> invalid_module{0, 0, 0, 0, 1};

  problems() : problems({{2, 4, 1}, {2, 0}}) {}
  /// correct[p][k]: of four attempts at proposal k of prompt p, how many succeed.
  explicit problems(std::vector<std::vector<int>> const& correct)
      : proposals(proposals_of(correct)),
        attempts(attempts_of(correct)),
        attempt_groups(make_grouping(attempts.view(), group_by::group)) {}

  static std::vector<sample_trajectory> proposals_of(std::vector<std::vector<int>> const& correct) {
    std::vector<sample_trajectory> result;
    for (std::size_t p = 0; p < correct.size(); ++p)
      for (std::size_t k = 0; k < correct[p].size(); ++k)
        result.push_back({.group = static_cast<std::int64_t>(p),
                          .id = static_cast<std::int64_t>(k),
                          .turns = {sample_turn{.log_ratio = {0, 0}}}});
    return result;
  }
  static std::vector<sample_trajectory> attempts_of(std::vector<std::vector<int>> const& correct) {
    std::vector<sample_trajectory> result;
    std::int64_t group = 101;
    for (auto const& prompt : correct)
      for (int const count : prompt) {
        for (int k = 0; k < 4; ++k)
          result.push_back({.group = group, .id = k, .turns = {sample_turn{.correct = k < count}}});
        ++group;
      }
    return result;
  }
  [[nodiscard]] recipe::step_inputs<double, double, double> inputs() const { return {proposals.tokens(), {}, {}}; }
  [[nodiscard]] recipe::proposal_results<double> results() const {
    return {{attempts.view(), &attempt_groups, attempts.evaluation()}, group, invalid_module};
  }
};

struct step_result {
  numbers reward, turn_return, advantage;
  flags reasons;
  std::vector<float> token_advantage;
  metrics::mismatch_record metrics;

  explicit step_result(problems const& of)
      : reward(of.proposals.turns(), -77),
        turn_return(of.proposals.turns(), -77),
        advantage(of.proposals.turns(), -77),
        reasons(of.proposals.turns(), 0xabcdu),
        token_advantage(of.proposals.mask.size(), -77) {
    metrics.turns = -77;
  }
  [[nodiscard]] recipe::step_outputs outputs() {
    return {reward, turn_return, advantage, reasons, {}, token_advantage, {}, &metrics};
  }
};

step_result run(problems const& of, kernel_zero_proposer_options const& options = {}) {
  step_result r(of);
  recipe::kernel_zero_proposer(of.proposals.view(), of.inputs(), of.results(), options, key, r.outputs());
  return r;
}

void check_close(numbers const& got, numbers const& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t s = 0; s < got.size(); ++s) {
    CAPTURE(s);
    CHECK(std::abs(got[s] - want[s]) < 1e-12);
  }
}

}  // namespace

TEST_SUITE("recipe/kernel_zero_proposer") {
  TEST_CASE("the defaults are the paper's: target 0.5, -1 for an invalid module, group deviation, no filters") {
    kernel_zero_proposer_options const options;
    CHECK(options.reward.target == 0.5);
    CHECK(options.reward.invalid_reward == -1);
    CHECK(options.groups == group_by::group);
    CHECK(options.advantage.scale);
    CHECK(!options.filters.ratio_band);
  }

  TEST_CASE("hand numbers: half of the attempts pay most") {
    auto const r = run(problems{});
    check_close(r.reward, {1, 0, 0.5, 1, -1});
    CHECK(r.turn_return == r.reward);
    // Prompt 0: mean 1/2, deviation sqrt((1/4 + 1/4) / 2) = 1/2. Prompt 1: mean 0, deviation sqrt(2).
    double const half = 0.5 / (0.5 + 1e-6), one = 1 / (std::sqrt(2.0) + 1e-6);
    check_close(r.advantage, {half, -half, 0, one, -one});
    CHECK(r.reasons == flags(5, 0));
    for (std::size_t s = 0; s < 5; ++s) CHECK(r.token_advantage[2 * s + 1] == static_cast<float>(r.advantage[s]));
    CHECK(r.metrics.valid.kept == 5);
  }

  TEST_CASE("options are handed on") {
    kernel_zero_proposer_options options;
    options.reward = {.target = 1, .invalid_reward = -3};
    options.advantage.scale = false;
    options.groups = group_by::batch;
    auto const r = run(problems{}, options);
    check_close(r.reward, {0, 1, -0.5, 0, -3});
    check_close(r.advantage, {0.5, 1.5, 0, 0.5, -2.5});
  }

  TEST_CASE("a valid proposal without attempts is unscored; error throws") {
    problems of;
    of.group[1] = 999;
    auto const r = run(of);
    CHECK(std::isnan(r.reward[1]));
    CHECK(r.reasons == flags{0, reason::unscored, 0, 0, 0});
    CHECK(r.advantage[1] == 0);
    double const quarter = 0.25 / (std::sqrt(0.125) + 1e-6);
    CHECK(r.advantage[0] == doctest::Approx(quarter));
    kernel_zero_proposer_options options;
    options.unscored = advantage::unscored_policy::error;
    CHECK_THROWS_AS(run(of, options), precondition_error);
  }

  TEST_CASE("lone proposals and equal rewards give exactly 0") {
    problems one{{{2}}};
    one.group = {101};
    one.invalid_module = {};
    CHECK(run(one).advantage == numbers{0});
    problems equal{{{1, 3, 1}}};  // 0.5 each
    equal.group = {101, 102, 103};
    equal.invalid_module = {};
    CHECK(run(equal).reward == numbers{0.5, 0.5, 0.5});
    CHECK(run(equal).advantage == numbers{0, 0, 0});
    problems none{{}};
    none.group = {};
    none.invalid_module = {};
    CHECK(run(none).metrics.nothing_kept);
  }

  TEST_CASE("a given reward replaces the frontier") {
    problems const of;
    numbers const given{1, 2, 3, 4, nan_value};
    auto in = of.inputs();
    in.given_reward = given;
    step_result r(of);
    recipe::kernel_zero_proposer(of.proposals.view(), in, recipe::proposal_results<double>{}, {}, key, r.outputs());
    CHECK(bits_of(r.reward) == bits_of(given));
    CHECK(r.reasons == flags{0, 0, 0, 0, reason::unscored});
  }

  TEST_CASE("filters of the proposals' tokens, where asked for") {
    problems const of;
    kernel_zero_proposer_options options;
    options.filters.ratio_band = {rejection::scope::turn, rejection::ratio_kind::geometric, 2, 3};
    auto const r = run(of, options);
    CHECK(r.reasons == flags(5, reason::ratio_low));
    CHECK(r.token_advantage == std::vector<float>(10, 0));
    CHECK(r.metrics.nothing_kept);
  }

  TEST_CASE("an error in any part leaves every output unchanged") {
    problems const of;
    struct step {
      recipe::step_inputs<double, double, double> inputs;
      recipe::proposal_results<double> results;
      kernel_zero_proposer_options options{};
    };
    std::vector<std::pair<std::string, std::function<void(step&)>>> const errors{
        {"target", [](step& s) { s.options.reward.target = 2; }},
        {"invalid_reward", [](step& s) { s.options.reward.invalid_reward = nan_value; }},
        {"ddof", [](step& s) { s.options.advantage.ddof = 2; }},
        {"group ids", [](step& s) { s.results.group = s.results.group.first(4); }},
        {"flags", [](step& s) { s.results.invalid_module = s.results.invalid_module.first(4); }},
        {"no attempts", [](step& s) { s.results.attempts = {}; }},
        {"evaluation", [](step& s) { s.results.attempts.evaluation.correct = {}; }},
        {"log-probs", [](step& s) { s.inputs.tokens.old_logprob = s.inputs.tokens.old_logprob.first(2); }},
    };
    for (auto const& error : errors) {
      CAPTURE(error.first);
      step s{of.inputs(), of.results()};
      error.second(s);
      step_result r(of);
      CHECK_THROWS_AS(
          recipe::kernel_zero_proposer(of.proposals.view(), s.inputs, s.results, s.options, key, r.outputs()),
          precondition_error);
      CHECK(r.reward == numbers(5, -77));
      CHECK(r.advantage == numbers(5, -77));
      CHECK(r.reasons == flags(5, 0xabcdu));
      CHECK(r.metrics.turns == -77);
    }
  }

}  // TEST_SUITE

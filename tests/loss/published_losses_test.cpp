// What verl's own functions returned on the recorded batches, log-probs widened to double (see tests/data/README.md).
#include "loss/loss_batch.hpp"
#include "support/batches.hpp"

#include <turnwise/loss/cispo.hpp>
#include <turnwise/loss/gmpo.hpp>
#include <turnwise/loss/gspo.hpp>
#include <turnwise/loss/ppo_clip.hpp>
#include <turnwise/loss/sapo.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

using namespace turnwise;
using namespace turnwise::test;
using doctest::Approx;
using loss::aggregate_options;
using loss::loss_mean;

namespace {

constexpr loss::ppo_clip vanilla{.clip_low = 0.2, .clip_high = 0.28, .dual_clip = 3};
constexpr aggregate_options token_mean{};
constexpr aggregate_options sequence_mean{.mean = loss_mean::sequence_mean_token_mean};

/// Loss and gradients of a recorded batch against the published ones, in float64 arithmetic.
template <typename Policy>
loss::loss_record compare(std::string const& name, std::string const& which, Policy const& policy,
                          aggregate_options const& options, double published) {
  CAPTURE(name);
  CAPTURE(which);
  auto const batch = load_batch(name);
  auto const view = batch.turns.view();
  auto const advantage = batch.expected<double>("drkernel_paper_trloo_advantage");
  std::vector<double> const current(batch.old_logprob.begin(), batch.old_logprob.end());
  std::vector<double> const old(batch.rollout_logprob.begin(), batch.rollout_logprob.end());
  std::vector<reason_flags> const reasons(view.turns());
  std::vector<std::int64_t> tokens(view.turns());
  std::vector<double> scale(view.turns()), gradient(current.size());
  loss::count_tokens(view, {}, tokens);
  loss::aggregate(view, tokens, reasons, options, scale);
  loss::loss_inputs<double> const in{.current_logprob = current, .old_logprob = old, .turn_advantage = advantage};
  auto const record = loss::policy_loss(view, in, policy, {}, scale, loss::loss_outputs<double>{gradient});

  CHECK(record.loss() == Approx(published).epsilon(1e-6).scale(0));
  auto const expected = load_npy<float>(batch.expected_folder / ("verl_grad_" + which + ".npy"));
  REQUIRE(expected.size() == gradient.size());
  double most = 0, error = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(expected[i])));
    error = std::max(error, std::abs(gradient[i] - static_cast<double>(expected[i])));
  }
  CHECK(error <= 1e-6 * most);  // stored as float32
  CHECK(record.tokens == static_cast<std::int64_t>(current.size()));
  CHECK(record.non_finite == 0);
  return record;
}

struct published {
  char const* batch;
  double token_mean, sequence_token_mean, sequence_token_sum, sequence_token_norm, width;
  double gspo, cispo, geo_mean, sapo, old_kl;
};

constexpr published batches[]{
    {"kernel_rollouts_a", -0.0005535533398966991, -1.1800100974022264e-05, -0.048903297369633794, -0.24070584029988584,
     154, -1.365979498319032e-05, -0.021292542299550896, -1.3481933071764901e-05, -0.053538353149354,
     2.9622975559572827e-05},
    {"kernel_rollouts_b", -0.015195004067992547, 0.0030677840937801786, -1.2420807436693002, -5.508993416039131, 170,
     0.0029940446981619423, -0.02170235063744909, 0.001008956598194424, -0.058464032861194976, 0.005259638378046659}};

}  // namespace

TEST_SUITE("loss/published_losses") {
  TEST_CASE("PPO with dual clip in four aggregation modes") {
    for (auto const& one : batches) {
      auto const record = compare(one.batch, "vanilla_token-mean", vanilla, token_mean, one.token_mean);
      CHECK(record.old_kl_mean() == Approx(one.old_kl).epsilon(1e-6).scale(0));
      compare(one.batch, "vanilla_seq-mean-token-mean", vanilla, sequence_mean, one.sequence_token_mean);
      compare(one.batch, "vanilla_seq-mean-token-sum", vanilla, {.mean = loss_mean::sequence_mean_token_sum},
              one.sequence_token_sum);
      // verl divides the sum over all sequences by the width alone
      compare(one.batch, "vanilla_seq-mean-token-sum-norm", vanilla,
              {.mean = loss_mean::sequence_mean_token_norm,
               .denominator = loss::loss_denominator::nominal,
               .nominal = 1,
               .norm = one.width},
              one.sequence_token_norm);
    }
  }

  TEST_CASE("clip fractions of PPO: verl's two numbers, of low or high and of the dual clip, add up to ours") {
    auto const record = compare("kernel_rollouts_b", "vanilla_token-mean", vanilla, token_mean, batches[1].token_mean);
    CHECK(record.clip_fraction_low() + record.clip_fraction_high() ==
          Approx(0.013499042736149934 + 6.489924392379776e-05).epsilon(1e-9).scale(0));
  }

  TEST_CASE("GSPO, CISPO, GMPO and SAPO") {
    for (auto const& one : batches) {
      auto const gspo = compare(one.batch, "gspo_seq-mean-token-mean",
                                loss::gspo{.clip_low = 0.003, .clip_high = 0.004}, sequence_mean, one.gspo);
      auto const cispo = compare(one.batch, "cispo_token-mean", loss::cispo{.clip_low = 0.2, .clip_high = 0.28},
                                 token_mean, one.cispo);
      compare(one.batch, "sapo_token-mean", loss::sapo{}, sequence_mean, one.sapo);
      // verl's mean is over all rows, absent turns included
      compare(one.batch, "geo_mean_token-mean", loss::gmpo{},
              {.mean = loss_mean::sequence_mean_token_mean,
               .denominator = loss::loss_denominator::nominal,
               .nominal = 16 * 16 * 3},
              one.geo_mean);
      if (one.batch != batches[1].batch) continue;
      CHECK(gspo.clip_fraction_low() + gspo.clip_fraction_high() == Approx(0.34313852743609974).epsilon(1e-9).scale(0));
      CHECK(cispo.clip_fraction_low() + cispo.clip_fraction_high() ==
            Approx(0.02686828698445227).epsilon(1e-9).scale(0));
    }
  }

}  // TEST_SUITE

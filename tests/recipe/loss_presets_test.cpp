#include <turnwise/recipe/loss_presets.hpp>

#include "loss/loss_batch.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace turnwise;
using namespace turnwise::test;
using doctest::Approx;

namespace {

/// The loss of two turns, of 2 and 1 tokens at ratio 1 with advantages 1 and -2, and of a rejected third.
double loss_of(recipe::loss_preset const& preset, bool with_reference) {
  loss_batch<double> batch({{0, 0}, {std::log(4.0)}, {0}}, {1, -2, 5});
  if (with_reference) {
    batch.reference = batch.current;
    batch.reference[0] += std::log(2.0);
  }
  std::vector<reason_flags> const reasons{0, 0, reason::ratio_high};
  std::vector<std::int64_t> const tokens{2, 1, 1};
  loss::aggregate(batch.view(), tokens, reasons, preset.aggregate, batch.scale);
  return batch.run(preset.policy, preset.options).record.loss();
}

}  // namespace

TEST_SUITE("recipe/loss_presets") {
  TEST_CASE("Dr. Kernel: token sums over a nominal count, the negative turn at the dual clip") {
    CHECK(loss_of(recipe::dr_kernel_loss(768), false) == Approx((-2 + 6) / 768.0).epsilon(1e-12).scale(0));
  }
  TEST_CASE("Kevin: token sums over a constant length, no dual clip") {
    CHECK(loss_of(recipe::kevin_loss(100), false) == Approx((-2 + 8) / 200.0).epsilon(1e-12).scale(0));
  }
  TEST_CASE("KernelZero: mean over turns of the token mean, k3 with 0.01") {
    double const k3 = 1 - std::log(2.0);
    CHECK(loss_of(recipe::kernel_zero_loss(), true) == Approx((-1 + 0.01 * k3 / 2 + 8) / 2).epsilon(1e-12).scale(0));
    CHECK_THROWS_AS(loss_of(recipe::kernel_zero_loss(), false), precondition_error);  // needs a reference
  }
}  // TEST_SUITE

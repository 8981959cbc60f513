#include <turnwise/divergence/kl_controller.hpp>

#include <doctest/doctest.h>

#include <limits>

namespace {

using namespace turnwise;
using divergence::kl_controller;
using divergence::kl_controller_options;
using divergence::kl_controller_state;
using divergence::kl_schedule;

double after(double measured, std::int64_t samples, kl_controller_options const& options) {
  kl_controller_state state{.coefficient = 0.5};
  kl_controller(state, measured, samples, options);
  return state.coefficient;
}

}  // namespace

TEST_SUITE("divergence/kl_controller") {
  TEST_CASE("the coefficient follows the clipped proportional error") {
    kl_controller_options const options{.target = 4, .horizon = 1024};
    CHECK(after(4, 256, options) == 0.5);
    CHECK(after(4.5, 256, options) == 0.5 * (1 + 0.125 * 0.25));
    CHECK(after(3.5, 256, options) == 0.5 * (1 - 0.125 * 0.25));
    CHECK(after(5, 256, options) == doctest::Approx(0.5 * (1 + 0.2 * 0.25)));
    CHECK(after(400, 256, options) == after(5, 256, options));
    CHECK(after(-400, 256, options) == doctest::Approx(0.5 * (1 - 0.2 * 0.25)));
    CHECK(after(0, 512, {.target = 4, .horizon = 1024, .error_clip = 0.5}) == 0.5 * (1 - 0.5 * 0.5));
    CHECK(after(400, 0, options) == 0.5);
  }

  TEST_CASE("fixed stays, whatever is measured") {
    CHECK(after(400, 1000000, {.schedule = kl_schedule::fixed, .target = 0}) == 0.5);
  }

  TEST_CASE("a controlled quantity that falls with the coefficient settles at the target") {
    kl_controller_state state{.coefficient = 0.01};
    for (int step = 0; step < 2000; ++step) kl_controller(state, 3 / state.coefficient, 256, {});
    CHECK(3 / state.coefficient == doctest::Approx(6).epsilon(1e-3));
  }

  TEST_CASE("measurements without meaning are skipped and counted") {
    for (auto const schedule : {kl_schedule::fixed, kl_schedule::adaptive}) {
      kl_controller_state state{.coefficient = 0.5};
      for (double const bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
        kl_controller(state, bad, 256, {.schedule = schedule});
      CHECK(state.coefficient == 0.5);
      CHECK(state.skipped == 2);
    }
    kl_controller_state large{.coefficient = std::numeric_limits<double>::max()};
    kl_controller(large, 1e300, 9999, {});
    CHECK(large.coefficient == std::numeric_limits<double>::max());
    kl_controller_state zero{.coefficient = 0};
    kl_controller(zero, 100, 256, {});
    CHECK(zero.coefficient == 0);
  }

  TEST_CASE("bad arguments throw") {
    double const nan = std::numeric_limits<double>::quiet_NaN();
    double const inf = std::numeric_limits<double>::infinity();
    auto const throws = [&](double coefficient, std::int64_t samples, kl_controller_options const& options) {
      kl_controller_state state{.coefficient = coefficient};
      CHECK_THROWS_AS(kl_controller(state, 1, samples, options), precondition_error);
    };
    for (double const bad : {0.0, -1.0, nan, inf}) {
      throws(0.5, 1, {.target = bad});
      throws(0.5, 1, {.horizon = bad});
      throws(0.5, 1, {.error_clip = bad});
    }
    for (double const bad : {-1.0, nan, inf}) throws(bad, 1, {});
    throws(0.5, -1, {});
    throws(0.5, 50000, {});
  }
}

#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/off_policy_mask.cuh>

namespace off_policy_mask_test {

using namespace support;
using turnwise::rejection::off_policy_mask_options;
using turnwise::rejection::scope;

namespace {

template <typename T>
std::vector<T> random_advantages(std::uint64_t seed, std::size_t turns) {
  integers random{seed};
  std::vector<T> result;
  for (std::size_t s = 0; s < turns; ++s) {
    auto const kind = random.below(12);
    T const strange[]{static_cast<T>(turnwise::test::nan_value), -static_cast<T>(turnwise::test::infinity), -T{0},
                      T{0}};
    result.push_back(kind < 4 ? strange[kind] : static_cast<T>(random.below(2001) - 1000) * T(1e-3));
  }
  return result;
}

template <typename T>
void compare(std::uint64_t seed) {
  rule_case const one{seed};
  auto const advantage = random_advantages<T>(seed, one.reasons.size());
  auto const device_advantage = on_device(advantage);
  for (auto const level : {scope::turn, scope::trajectory})
    for (double const delta : {0.0, 1e-4, 1e-3}) {
      off_policy_mask_options const options{delta, level};
      one.compare(
          [&](auto const& batch, auto statistics, auto reasons) {
            turnwise::rejection::usable_tokens(batch, statistics, {}, reasons);
            turnwise::rejection::off_policy_mask(batch, statistics, std::span<T const>{advantage}, options, reasons);
          },
          [&](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const> statistics,
              gpu::device_span<reason_flags> reasons, gpu::status_record*, cuda::stream_ref stream) {
            gpu::rejection::usable_tokens(batch, statistics, {}, reasons, nullptr, stream);
            gpu::rejection::off_policy_mask(batch, statistics, device_advantage.view(), options, reasons, stream);
          });
    }
}

}  // namespace

TEST_SUITE("gpu/rejection/off_policy_mask" * doctest::skip(!has_device())) {
  TEST_CASE("the host's flags, all options") {
    for (std::uint64_t seed = 0; seed <= seeds(12); ++seed) {
      CAPTURE(seed);
      compare<float>(seed);
      compare<double>(seed);
    }
  }

  TEST_CASE("wrong sizes, no turns, wrong offsets, bad options") {
    rule_case const one{6};
    auto const advantage = on_device(random_advantages<double>(6, one.reasons.size()));
    one.check_sizes([&](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const> statistics,
                        gpu::device_span<reason_flags> reasons, gpu::status_record*, cuda::stream_ref stream) {
      gpu::rejection::off_policy_mask(batch, statistics, advantage.view().first(batch.turns), {}, reasons, stream);
    });
    side_stream const stream;
    auto const throws = [&](std::size_t advantages, double delta) {
      CHECK_THROWS_AS(gpu::rejection::off_policy_mask(one.device.view(), one.device_statistics.view(),
                                                      advantage.view().first(advantages), {.delta = delta},
                                                      one.after.span(), stream),
                      turnwise::precondition_error);
    };
    throws(one.reasons.size() - 1, 0.0);
    throws(one.reasons.size(), -1.0);
    throws(one.reasons.size(), turnwise::test::nan_value);
  }

}  // TEST_SUITE

}  // namespace off_policy_mask_test

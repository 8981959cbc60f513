#include "support/gpu_rules.cuh"

#include <turnwise/gpu/reward/kl_penalty.cuh>

#include <cmath>

namespace kl_penalty_test {

using namespace support;
using turnwise::divergence::kl_kind;
using turnwise::divergence::kl_sums;
using turnwise::reward::kl_penalty_options;

namespace {

/// Runs `call(rewards, stream)` from the same start in every way, and compares with `expected`; rewards lie `shift`
/// elements behind an aligned address.
template <typename T, typename Call>
void compare(std::vector<T> const& before, std::vector<T> const& expected, double tolerance, Call call,
             std::size_t shift = 0) {
  auto const start = on_device(before);
  shifted_array<T> const reward{before.size(), shift};
  on_stream_and_in_graph([&] { reward.fill(0xa5); },
                         [&](cuda::stream_ref stream) {
                           if (!before.empty())
                             gpu::check(
                                 cudaMemcpyAsync(reward.span().data(), start.view().data(), before.size() * sizeof(T),
                                                 cudaMemcpyDeviceToDevice, stream.get()),
                                 "copy");
                           call(reward.span(), stream);
                         },
                         [&] {
                           auto const got = reward.host();
                           if (tolerance == 0) CHECK(same_numbers(got, expected));
                           for (std::size_t i = 0; i < got.size(); ++i) {
                             bool const both_nan = std::isnan(got[i]) && std::isnan(expected[i]);
                             if (!both_nan && got[i] != expected[i])
                               CHECK(std::abs(got[i] - expected[i]) <= tolerance * (1 + std::abs(expected[i])));
                           }
                         });
}

template <typename T>
std::vector<T> rewards(std::size_t count) {
  integers random{count};
  std::vector<T> result;
  for (std::size_t i = 0; i < count; ++i)
    result.push_back(random.below(30) == 0 ? std::numeric_limits<T>::quiet_NaN()
                                           : static_cast<T>(random.below(1000)) * T(0.01));
  return result;
}

template <typename T>
void compare_tokens(unsigned seed, std::size_t count, bool masked, kl_kind kind, std::size_t shift = 0) {
  auto const current = random_logprobs<float>(seed, count);
  auto const reference = random_logprobs<double>(seed + 50, count);
  std::vector<std::uint8_t> mask;
  integers random{seed};
  if (masked)
    for (std::size_t i = 0; i < count; ++i) mask.push_back(static_cast<std::uint8_t>(random.below(3)));
  kl_penalty_options const options{.coefficient = 0.3, .estimate = {.kind = kind}};
  auto const before = rewards<T>(count);
  auto expected = before;
  turnwise::reward::kl_penalty<float, double, T>({current, reference, mask}, options, expected);
  shifted_array<float> const device_current{current, shift};
  shifted_array<double> const device_reference{reference, shift};
  shifted_array<std::uint8_t> const device_mask{mask, shift};
  auto const call = [&](gpu::device_span<T> reward, cuda::stream_ref stream) {
    gpu::reward::kl_penalty<float, double, T>({device_current.view(), device_reference.view(), device_mask.view()},
                                              options, reward, stream);
  };
  compare(before, expected, kind == kl_kind::k3 ? 1e-6 : 0, call, shift);
}

}  // namespace

TEST_SUITE("gpu/reward/kl_penalty" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("tokens: the host's rewards", T, float, double) {
    for (unsigned seed = 1; seed <= seeds(3); ++seed)
      for (bool const masked : {false, true})
        for (kl_kind const kind : {kl_kind::k1, kl_kind::k2, kl_kind::k3, kl_kind::absolute}) {
          CAPTURE(seed);
          compare_tokens<T>(seed, seed == 1 ? 0 : 20001, masked, kind);
        }
  }

  TEST_CASE_TEMPLATE("tokens in arrays that are aligned to their elements alone", T, float, double) {
    for (std::size_t const shift : {1, 3}) {
      CAPTURE(shift);
      compare_tokens<T>(5, 5003, true, kl_kind::k1, shift);
    }
  }

  TEST_CASE_TEMPLATE("turns: the host's bits", T, float, double) {
    for (std::size_t const count : {0u, 1u, 5000u}) {
      integers random{7};
      std::vector<kl_sums> sums(count);
      for (auto& one : sums) one.value = static_cast<double>(random.below(1 << 20) - (1 << 19)) * 1e-3;
      auto const before = rewards<T>(count);
      auto expected = before;
      turnwise::reward::kl_penalty<T>(sums, 0.1, expected);
      auto const device_sums = on_device(sums);
      compare(before, expected, 0, [&](gpu::device_span<T> reward, cuda::stream_ref stream) {
        gpu::reward::kl_penalty<T>(device_sums.view(), 0.1, reward, stream);
      });
    }
  }

  TEST_CASE("bad sizes and options throw") {
    device_array<float> const four{4}, reward{4};
    device_array<std::uint8_t> const mask{3};
    device_array<kl_sums> const sums{3};
    side_stream const stream;
    using turnwise::precondition_error;
    auto const throws = [&](auto current, auto reference, auto on, kl_penalty_options const& options) {
      CHECK_THROWS_AS(
          (gpu::reward::kl_penalty<float, float, float>({current, reference, on}, options, reward.span(), stream)),
          precondition_error);
    };
    gpu::device_span<std::uint8_t const> const all{};
    throws(four.view().first(3), four.view(), all, {});
    throws(four.view(), four.view().first(3), all, {});
    throws(four.view(), four.view(), mask.view(), {});
    throws(four.view(), four.view(), all, {.coefficient = -1});
    throws(four.view(), four.view(), all, {.estimate = {.cap = 0}});
    CHECK_THROWS_AS((gpu::reward::kl_penalty<float>(sums.view(), 1, reward.span(), stream)), precondition_error);
    CHECK_THROWS_AS((gpu::reward::kl_penalty<float>(sums.view(), -1, reward.span().first(3), stream)),
                    precondition_error);
  }

}  // TEST_SUITE

}  // namespace kl_penalty_test

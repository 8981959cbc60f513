#include "support/gpu_rules.cuh"

#include <turnwise/gpu/divergence/kl_estimate.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

namespace kl_estimate_test {

using namespace support;
using turnwise::divergence::kl_gradient;
using turnwise::divergence::kl_kind;
using turnwise::divergence::kl_options;
using turnwise::divergence::kl_sums;

namespace {

constexpr double none = std::numeric_limits<double>::infinity();

std::vector<kl_options> all_options() {
  std::vector<kl_options> result;
  for (kl_kind const kind : {kl_kind::k1, kl_kind::k2, kl_kind::k3, kl_kind::absolute})
    for (kl_gradient const gradient : {kl_gradient::own, kl_gradient::k2}) {
      result.push_back({.kind = kind, .gradient = gradient});
      result.push_back({.kind = kind, .clamp = none, .cap = none, .gradient = gradient});
    }
  return result;
}

/// Largest |a - b| / |b|; infinite where one of them is not finite.
template <typename T>
double worst_ratio(std::vector<T> const& a, std::vector<T> const& b) {
  double worst = a.size() == b.size() ? 0 : none;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    auto const x = static_cast<double>(a[i]);
    auto const y = static_cast<double>(b[i]);
    if (!std::isfinite(x) || !std::isfinite(y)) return none;
    if (x != y) worst = std::max(worst, std::abs(x - y) / std::abs(y));
  }
  return worst;
}

gpu::rollout_view device_view(token_case const& turns) {
  return {.turns = turns.turns(), .turn_begin = turns.device_begin.view(), .turn_end = turns.device_end.view()};
}

/// Token arrays lie `shift` elements behind an aligned address.
template <typename Current, typename Reference, typename T>
void compare(token_case const& turns, unsigned seed, bool masked, kl_options const& options, double tolerance,
             std::size_t shift = 0) {
  CAPTURE(static_cast<int>(options.kind));
  CAPTURE(masked);
  auto const current = random_logprobs<Current>(seed, turns.tokens());
  auto const reference = random_logprobs<Reference>(seed + 1, turns.tokens());
  auto const mask = masked ? turns.mask : std::vector<std::uint8_t>{};
  T const untouched = 7;
  std::vector<T> value(turns.tokens(), untouched), slope(turns.tokens(), untouched);
  std::vector<kl_sums> sums(turns.turns());
  turnwise::divergence::kl_estimate<Current, Reference, T>(turns.view(), {current, reference, mask}, options, sums,
                                                           {value, slope});
  kl_sums const total = turnwise::divergence::total_kl(sums, turns.reasons);

  shifted_array<Current> const device_current{current, shift};
  shifted_array<Reference> const device_reference{reference, shift};
  shifted_array<std::uint8_t> const device_mask{mask, shift};
  auto const reasons = on_device(turns.reasons);
  auto const start = on_device(std::vector<T>(turns.tokens(), untouched));
  shifted_array<T> const device_value{turns.tokens(), shift}, device_slope{turns.tokens(), shift};
  device_array<kl_sums> const device_sums{turns.turns()}, device_total{1};
  device_status const status;
  std::vector<std::vector<T>> runs;
  on_stream_and_in_graph(
      [&] {
        fill_bytes(device_sums, 0xa5);
        for (auto const* const one : {&device_value, &device_slope})
          if (turns.tokens() > 0)
            gpu::check(cudaMemcpy(one->span().data(), start.view().data(), turns.tokens() * sizeof(T),
                                  cudaMemcpyDeviceToDevice),
                       "copy");
        gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      },
      [&](cuda::stream_ref stream) {
        gpu::divergence::kl_estimate<Current, Reference, T>(
            device_view(turns), {device_current.view(), device_reference.view(), device_mask.view()}, options,
            device_sums.span(), {device_value.span(), device_slope.span()}, status.get(), stream);
        gpu::divergence::total_kl(device_sums.view(), reasons.view(), device_total.span().data(), stream);
      },
      [&] {
        CHECK(status.ok());
        runs.push_back(device_value.host());
        CHECK(same_bits(runs.back(), runs.front()));
        CHECK(worst_ratio(device_value.host(), value) <= tolerance);
        CHECK(worst_ratio(device_slope.host(), slope) <= tolerance);
        auto const got = device_sums.host();
        for (std::size_t s = 0; s < got.size(); ++s) {
          bool const same = got[s].count == sums[s].count && got[s].clamped == sums[s].clamped &&
                            got[s].non_finite == sums[s].non_finite &&
                            std::abs(got[s].value - sums[s].value) <= tolerance * (1e-30 + std::abs(sums[s].value));
          if (!same) {
            CAPTURE(s);
            CHECK(got[s].value == sums[s].value);
            CHECK(got[s].count == sums[s].count);
            CHECK(got[s].clamped == sums[s].clamped);
            CHECK(got[s].non_finite == sums[s].non_finite);
          }
        }
        // the same bits from the same sums
        CHECK(device_total.host()[0] == turnwise::divergence::total_kl(got, turns.reasons));
        CHECK(device_total.host()[0].count == total.count);
      });
}

}  // namespace

TEST_SUITE("gpu/divergence/kl_estimate" * doctest::skip(!has_device())) {
  TEST_CASE("the host's values, slopes and counts: all kinds, limits and types") {
    for (unsigned seed = 1; seed <= seeds(3); ++seed) {
      CAPTURE(seed);
      token_case const turns{seed, 300, seed == 1 ? 5.0 : 200.0, seed == 2};
      for (auto const& options : all_options()) {
        bool const exact = options.kind != kl_kind::k3;
        for (bool const masked : {false, true}) {
          compare<float, float, float>(turns, seed, masked, options, exact ? 0 : 1e-5);
          compare<double, double, double>(turns, seed, masked, options, exact ? 0 : 1e-13);
        }
        compare<__nv_bfloat16, float, float>(turns, seed, true, options, exact ? 0 : 1e-5);
        compare<__half, double, float>(turns, seed, true, options, exact ? 0 : 2e-7);
      }
    }
  }

  TEST_CASE("arrays that are aligned to their elements alone") {
    token_case const turns{4, 100, 200, false};
    for (std::size_t const shift : {1, 3}) {
      CAPTURE(shift);
      compare<float, float, float>(turns, 4, true, {}, 1e-5, shift);
      compare<double, double, double>(turns, 4, true, {.kind = kl_kind::k2}, 0, shift);
      compare<__nv_bfloat16, float, float>(turns, 4, false, {.kind = kl_kind::k1}, 0, shift);
    }
  }

  TEST_CASE("one long turn, no tokens, no turns") {
    compare<float, float, float>(token_case{5, 1, 90000, false}, 5, true, {}, 1e-5);
    compare<float, float, float>(token_case{6, 0, 3, false}, 6, true, {}, 0);
    side_stream const stream;
    device_array<kl_sums> const total{1};
    fill_bytes(total, 0xa5);
    gpu::divergence::total_kl({}, {}, total.span().data(), stream);
    stream.wait();
    CHECK(total.host()[0] == kl_sums{});
  }

  TEST_CASE("sums of doubles without limits are finite") {
    std::vector<std::int64_t> const begin{0}, end{4};
    std::vector<double> const current(4), reference(4, -std::numeric_limits<double>::max());
    auto const device_begin = on_device(begin), device_end = on_device(end);
    auto const device_current = on_device(current), device_reference = on_device(reference);
    device_array<kl_sums> const sums{1};
    side_stream const stream;
    gpu::divergence::kl_estimate<double, double, double>(
        {.turns = 1, .turn_begin = device_begin.view(), .turn_end = device_end.view()},
        {device_current.view(), device_reference.view(), {}}, {.kind = kl_kind::k1, .clamp = none, .cap = none},
        sums.span(), {}, nullptr, stream);
    stream.wait();
    CHECK(sums.host()[0] == kl_sums{.value = 0x1p502, .count = 4});
  }

  TEST_CASE("ranges outside the arrays are reported and read nothing; without outputs only sums are written") {
    std::vector<std::int64_t> const begin{0, -5, 3, 2}, end{2, 1, 900, 1};
    std::vector<float> const zeros(4);
    auto const device_begin = on_device(begin);
    auto const device_end = on_device(end);
    auto const logprob = on_device(zeros);
    device_array<kl_sums> const sums{4};
    device_status const status;
    side_stream const stream;
    gpu::divergence::kl_estimate<float, float, float>(
        {.turns = 4, .turn_begin = device_begin.view(), .turn_end = device_end.view()},
        {logprob.view(), logprob.view(), {}}, {}, sums.span(), {}, status.get(), stream);
    stream.wait();
    CHECK(status.host().code() == gpu::status_code::token_range);
    CHECK(status.host().index() == 1);
    CHECK(sums.host() == std::vector<kl_sums>{{.count = 2}, {}, {}, {}});
  }

  TEST_CASE("bad sizes and options throw, and nothing is written") {
    token_case const turns{9, 20, 10, false};
    auto const logprob = on_device(random_logprobs<float>(9, turns.tokens()));
    auto const mask = on_device(turns.mask);
    auto const reasons = on_device(turns.reasons);
    device_array<float> const value{turns.tokens()};
    device_array<kl_sums> const sums{turns.turns()};
    fill_bytes(value, 0x5a);
    auto const untouched = value.host();
    side_stream const stream;
    auto const shorter = [](auto span) { return span.first(span.size() - 1); };
    auto const throws = [&](auto reference, auto on, auto out, auto out_value, auto out_slope,
                            kl_options const& options) {
      CHECK_THROWS_AS(
          (gpu::divergence::kl_estimate<float, float, float>(device_view(turns), {logprob.view(), reference, on},
                                                             options, out, {out_value, out_slope}, nullptr, stream)),
          turnwise::precondition_error);
    };
    throws(shorter(logprob.view()), mask.view(), sums.span(), value.span(), value.span(), {});
    throws(logprob.view(), shorter(mask.view()), sums.span(), value.span(), value.span(), {});
    throws(logprob.view(), mask.view(), shorter(sums.span()), value.span(), value.span(), {});
    throws(logprob.view(), mask.view(), sums.span(), shorter(value.span()), value.span(), {});
    throws(logprob.view(), mask.view(), sums.span(), value.span(), shorter(value.span()), {});
    throws(logprob.view(), mask.view(), sums.span(), value.span(), value.span(), {.clamp = 0});
    CHECK_THROWS_AS(gpu::divergence::total_kl(sums.view(), shorter(reasons.view()), nullptr, stream),
                    turnwise::precondition_error);
    stream.wait();
    CHECK(same_bits(value.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace kl_estimate_test

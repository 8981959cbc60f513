#include "support/gpu_rules.cuh"

#include <turnwise/gpu/importance/importance_weight.cuh>

#include <cuda_bf16.h>

#include <cmath>

namespace importance_weight_test {

using namespace support;
using turnwise::importance::non_finite_policy;
using turnwise::importance::ratio_kind;
using turnwise::importance::scope;
using turnwise::importance::token_weight_options;
using turnwise::importance::turn_weight_options;
using turnwise::importance::weight_bounds;
using turnwise::importance::weight_counts;
using turnwise::importance::weight_rule;

namespace {

constexpr double none = std::numeric_limits<double>::infinity();

weight_bounds const all_bounds[]{{},
                                 {.high = none},
                                 {.high = none, .log_clamp = 20},
                                 {weight_rule::clip, 0.8, 1.2},
                                 {weight_rule::mask, 0.5, 5},
                                 {weight_rule::mask, 0.9, none}};

/// Largest |a - b| / |b|, infinite where one is 0 and the other not.
template <typename W>
double worst_ratio(std::vector<W> const& a, std::vector<W> const& b) {
  double worst = a.size() == b.size() ? 0 : none;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    if (a[i] != b[i]) {
      double const off = std::abs(static_cast<double>(a[i]) / static_cast<double>(b[i]) - 1);
      worst = std::isnan(off) ? none : std::max(worst, off);
    }
  return worst;
}

/// `call(weight, counts, stream)` on the device against the host's weights and counts; weights lie `shift` elements
/// behind an aligned address.
template <typename W, typename Call>
void compare(std::vector<W> const& expected, weight_counts const& counts, double tolerance, Call call,
             std::size_t shift = 0) {
  shifted_array<W> const weight{expected.size(), shift};
  device_array<weight_counts> const device_counts{1};
  std::vector<std::vector<W>> runs;
  for (bool const counting : {true, false}) {
    int calls = 0;  // on counts that were zeroed; a graph is replayed twice
    on_stream_and_in_graph(
        [&] {
          weight.fill(0xa5);
          fill_bytes(device_counts, 0);
          ++calls;
        },
        [&](cuda::stream_ref stream) { call(weight.span(), counting ? device_counts.span().data() : nullptr, stream); },
        [&] {
          runs.push_back(weight.host());
          CHECK(same_bits(runs.back(), runs.front()));
          CHECK(worst_ratio(runs.back(), expected) <= tolerance);
          weight_counts sum;
          for (int i = 0; i < calls && counting; ++i) sum += counts;
          CHECK(device_counts.host()[0] == sum);
        });
  }
}

template <typename Old, typename Rollout, typename W>
void compare_tokens(unsigned seed, std::size_t count, bool masked, token_weight_options const& options,
                    double tolerance, std::size_t shift = 0) {
  CAPTURE(seed);
  CAPTURE(masked);
  auto const old_logprob = random_logprobs<Old>(seed, count);
  auto const rollout_logprob = random_logprobs<Rollout>(seed + 100, count);
  std::vector<std::uint8_t> mask;
  integers random{seed};
  if (masked)
    for (std::size_t i = 0; i < count; ++i) mask.push_back(static_cast<std::uint8_t>(random.below(3)));
  std::vector<W> expected(count);
  auto const counts =
      turnwise::importance::importance_weight<Old, Rollout, W>({old_logprob, rollout_logprob, mask}, options, expected);
  shifted_array<Old> const device_old{old_logprob, shift};
  shifted_array<Rollout> const device_rollout{rollout_logprob, shift};
  shifted_array<std::uint8_t> const device_mask{mask, shift};
  auto const call = [&](gpu::device_span<W> weight, weight_counts* to, cuda::stream_ref stream) {
    gpu::importance::importance_weight<Old, Rollout, W>({device_old.view(), device_rollout.view(), device_mask.view()},
                                                        options, weight, to, nullptr, stream);
  };
  compare(expected, counts, tolerance, call, shift);
}

}  // namespace

TEST_SUITE("gpu/importance/importance_weight" * doctest::skip(!has_device())) {
  TEST_CASE("tokens: the host's weights within 2 ulp, its counts and masks exactly") {
    for (unsigned seed = 1; seed <= seeds(3); ++seed)
      for (auto const& bounds : all_bounds)
        for (bool const masked : {false, true})
          for (auto const policy : {non_finite_policy::reject, non_finite_policy::neutral}) {
            token_weight_options const options{bounds, policy};
            compare_tokens<float, float, float>(seed, 30011, masked, options, 0x1p-22);
            compare_tokens<double, float, double>(seed, 30011, masked, options, 0x1p-51);
            compare_tokens<float, __nv_bfloat16, double>(seed, 5000, masked, options, 0x1p-22);
          }
    for (std::size_t const count : {0u, 1u, 1023u, 1024u, 1025u, 3'000'000u})
      compare_tokens<float, float, float>(9, count, true, {}, 0x1p-22);
  }

  TEST_CASE("tokens in arrays that are aligned to their elements alone") {
    for (std::size_t const shift : {1, 3}) {
      CAPTURE(shift);
      compare_tokens<float, float, float>(4, 30011, true, {}, 0x1p-22, shift);
      compare_tokens<double, float, double>(5, 30011, false, {}, 0x1p-51, shift);
      compare_tokens<float, __nv_bfloat16, double>(6, 5000, true, {}, 0x1p-22, shift);
    }
  }

  TEST_CASE("turns and trajectories: the host's weights within 2 ulp, its counts exactly") {
    for (std::uint64_t seed = 0; seed <= seeds(10); ++seed) {
      CAPTURE(seed);
      rule_case const one{seed};
      for (scope const level : {scope::turn, scope::trajectory})
        for (ratio_kind const kind : {ratio_kind::product, ratio_kind::geometric})
          for (auto const& bounds : all_bounds) {
            turn_weight_options const options{level, kind, bounds};
            std::vector<double> expected(one.reasons.size());
            auto const counts = turnwise::importance::importance_weight<double>(one.batch.view(), one.statistics,
                                                                                one.reasons, options, expected);
            compare(expected, counts, 0x1p-51,
                    [&](gpu::device_span<double> weight, weight_counts* to, cuda::stream_ref stream) {
                      gpu::importance::importance_weight<double>(one.device.view(), one.device_statistics.view(),
                                                                 one.before.view(), options, weight, to, stream);
                    });
          }
    }
  }

  TEST_CASE("non_finite_policy::error reports the first such token, and its weight is 0") {
    std::vector<float> const zeros(3000);
    auto bad = zeros;
    bad[700] = std::numeric_limits<float>::quiet_NaN();  // masked
    bad[2500] = std::numeric_limits<float>::quiet_NaN();
    bad[1800] = -std::numeric_limits<float>::infinity();
    std::vector<std::uint8_t> mask(3000, 1);
    mask[700] = 0;
    auto const old_logprob = on_device(bad);
    auto const rollout_logprob = on_device(zeros);
    auto const device_mask = on_device(mask);
    device_array<float> const weight{3000};
    device_status const status;
    side_stream const stream;
    gpu::importance::importance_weight<float, float, float>(
        {old_logprob.view(), rollout_logprob.view(), device_mask.view()}, {{}, non_finite_policy::error}, weight.span(),
        nullptr, status.get(), stream);
    stream.wait();
    CHECK(status.host().code() == gpu::status_code::token_value);
    CHECK(status.host().index() == 1800);
    auto const got = weight.host();
    CHECK(got[1800] == 0);
    CHECK(got[700] == 0);
    CHECK(got[1801] == 1);
  }

  TEST_CASE("bad sizes and options throw, and nothing is written") {
    rule_case const one{6};
    device_array<float> const logprob{10}, weight{10};
    device_array<std::uint8_t> const mask{9};
    device_array<double> const of_turn{one.reasons.size()};
    fill_bytes(weight, 0x5a);
    auto const untouched = weight.host();
    side_stream const stream;
    using turnwise::precondition_error;
    auto const tokens = [&](auto old_logprob, auto rollout_logprob, auto on, weight_bounds const& bounds) {
      CHECK_THROWS_AS((gpu::importance::importance_weight<float, float, float>(
                          {old_logprob, rollout_logprob, on}, {bounds}, weight.span(), nullptr, nullptr, stream)),
                      precondition_error);
    };
    gpu::device_span<std::uint8_t const> const all{};
    tokens(logprob.view().first(9), logprob.view(), all, {});
    tokens(logprob.view(), logprob.view().first(9), all, {});
    tokens(logprob.view(), logprob.view(), mask.view(), {});
    tokens(logprob.view(), logprob.view(), all, {.low = 1});
    tokens(logprob.view(), logprob.view(), all, {weight_rule::mask, 3, 2});
    tokens(logprob.view(), logprob.view(), all, {.log_clamp = 89});
    auto const shorter = [](auto span) { return span.first(span.size() - 1); };
    auto const turns = [&](auto statistics, auto reasons, auto out, weight_bounds const& bounds) {
      CHECK_THROWS_AS(
          gpu::importance::importance_weight<double>(one.device.view(), statistics, reasons,
                                                     turn_weight_options{.bounds = bounds}, out, nullptr, stream),
          precondition_error);
    };
    turns(shorter(one.device_statistics.view()), one.before.view(), of_turn.span(), {});
    turns(one.device_statistics.view(), shorter(one.before.view()), of_turn.span(), {});
    turns(one.device_statistics.view(), one.before.view(), shorter(of_turn.span()), {});
    turns(one.device_statistics.view(), one.before.view(), of_turn.span(), {.log_clamp = 0});
    stream.wait();
    CHECK(same_bits(weight.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace importance_weight_test

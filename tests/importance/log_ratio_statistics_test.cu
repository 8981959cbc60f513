#include "support/gpu.cuh"
#include "support/gpu_builders.cuh"

#include <turnwise/gpu/importance/log_ratio_statistics.cuh>
#include <turnwise/importance/log_ratio_statistics.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace log_ratio_statistics_test {

using namespace support;
using turnwise::importance::ratio_moments;
using turnwise::importance::turn_statistics;

namespace {

/// A ragged batch: turns with gaps between them, in shuffled memory order unless told otherwise.
struct token_batch {
  std::vector<std::int64_t> begin, end;
  std::vector<std::uint8_t> mask;
  std::size_t tokens = 0;

  token_batch(unsigned seed, std::size_t turns, double mean, bool shuffled, bool gaps) {
    std::mt19937 generator{seed};
    std::lognormal_distribution<double> length{std::log(mean), 1.0};
    for (std::size_t s = 0; s < turns; ++s) {
      auto const size = generator() % 7 == 0 ? 0 : std::min(100000.0, length(generator));
      begin.push_back(static_cast<std::int64_t>(tokens));
      tokens += static_cast<std::size_t>(size);
      end.push_back(static_cast<std::int64_t>(tokens));
      if (gaps && generator() % 3 == 0) tokens += generator() % 50;
    }
    if (shuffled)
      for (std::size_t s = turns; s-- > 1;) {
        std::size_t const other = generator() % (s + 1);
        std::swap(begin[s], begin[other]);
        std::swap(end[s], end[other]);
      }
    for (std::size_t i = 0; i < tokens; ++i) mask.push_back(generator() % 5 != 0);
  }

  [[nodiscard]] turnwise::rollout_view host(std::vector<std::int64_t>& offsets,
                                            std::vector<std::int64_t> const& ids) const {
    offsets = {0, static_cast<std::int64_t>(begin.size())};
    turnwise::rollout_view batch;
    batch.turn_begin = begin;
    batch.turn_end = end;
    batch.trajectory_offsets = offsets;
    batch.group_id = ids;
    batch.trajectory_id = ids;
    return batch;
  }
};

template <typename T>
std::vector<T> values(unsigned seed, std::size_t count, bool odd) {
  std::mt19937 generator{seed};
  std::normal_distribution<float> around{-1.0f, 0.5f};
  std::vector<T> result;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  float const strange[]{std::numeric_limits<float>::quiet_NaN(),
                        infinity,
                        -infinity,
                        3e38f,
                        -3e38f,
                        64.0f,
                        -65.0f,
                        1e-40f,
                        -0.0f,
                        0.0f,
                        1000.0f,
                        -1000.0f};
  for (std::size_t i = 0; i < count; ++i) {
    float value = around(generator);
    if (odd && generator() % 900 == 0) value = strange[generator() % 12];
    result.push_back(static_cast<T>(value));
  }
  return result;
}

template <typename Record>
bool same_bits(std::vector<Record> const& a, std::vector<Record> const& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(Record)) == 0);
}

/// Host and device over one batch, tokens shifted by `shift` elements from an aligned address.
template <typename Old, typename Rollout>
void compare(token_batch const& batch, bool odd, bool masked, std::size_t shift, gpu::turn_order known) {
  std::size_t const turns = batch.begin.size();
  auto const old_logprob = values<Old>(1, batch.tokens, odd);
  auto const rollout_logprob = values<Rollout>(2, batch.tokens, odd);
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> const ids{0};
  auto const host_batch = batch.host(offsets, ids);
  turnwise::token_logprobs<Old, Rollout> host_tokens{old_logprob, rollout_logprob, {}};
  if (masked) host_tokens.mask = batch.mask;
  std::vector<turn_statistics> expected(turns);
  std::vector<ratio_moments> expected_moments(turns);
  turnwise::importance::log_ratio_statistics(host_batch, host_tokens, std::span{expected}, std::span{expected_moments});

  auto const shifted = [&](auto const& from) {
    auto copy = from;
    copy.insert(copy.begin(), shift, typename std::decay_t<decltype(from)>::value_type{});
    return copy;
  };
  device_array<Old> const device_old{std::span<Old const>{shifted(old_logprob)}};
  device_array<Rollout> const device_rollout{std::span<Rollout const>{shifted(rollout_logprob)}};
  device_array<std::uint8_t> const mask{std::span<std::uint8_t const>{shifted(batch.mask)}};
  device_array<std::int64_t> const begin{std::span<std::int64_t const>{batch.begin}};
  device_array<std::int64_t> const end{std::span<std::int64_t const>{batch.end}};
  device_array<turn_statistics> const records{turns};
  device_array<ratio_moments> const sums{turns};
  device_array<gpu::status_record> const status{1};
  gpu::rollout_view device_batch;
  device_batch.turns = turns;
  device_batch.turn_begin = begin.view();
  device_batch.turn_end = end.view();
  gpu::token_logprobs<Old, Rollout> tokens{device_old.view().subspan(shift), device_rollout.view().subspan(shift), {}};
  if (masked) tokens.mask = mask.view().subspan(shift);

  exact_workspace const plan_memory{support::token_plan_workspace_bytes(turns, batch.tokens, known)};
  exact_workspace const memory{gpu::importance::log_ratio_statistics_workspace_bytes(batch.tokens, true)};
  auto const clear = [&] {
    gpu::check(cudaMemset(records.span().data(), 0xff, turns * sizeof(turn_statistics)), "cudaMemset");
    gpu::check(cudaMemset(sums.span().data(), 0xff, turns * sizeof(ratio_moments)), "cudaMemset");
    gpu::check(cudaMemset(status.span().data(), 0, sizeof(gpu::status_record)), "cudaMemset");
    gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  };
  for (bool const moments : {false, true})
    on_stream_and_in_graph(
        clear,
        [&](cuda::stream_ref stream) {
          auto const plan = support::make_token_plan(device_batch, batch.tokens, status.span().data(),
                                                     plan_memory.whole(), stream, known);
          if (moments)
            gpu::importance::log_ratio_statistics(plan, tokens, records.span(), sums.span(), memory.whole(), stream);
          else
            gpu::importance::log_ratio_statistics(plan, tokens, records.span(), memory.whole(), stream);
        },
        [&] {
          gpu::check(status.host()[0]);
          CHECK(same_bits(records.host(), expected));
          if (!moments) return;
          auto const got = sums.host();
          auto const magnitude = [&](std::size_t s) {
            double sum = 0;
            for (auto i = batch.begin[s]; i < batch.end[s]; ++i) {
              auto const value = static_cast<double>(rollout_logprob[static_cast<std::size_t>(i)]);
              if (std::isfinite(value)) sum += std::abs(value);
            }
            return sum;
          };
          for (std::size_t s = 0; s < turns; ++s) {
            auto const near = [&](double a, double b, double scale) {
              return std::abs(a - b) <= 1e-12 * (std::abs(b) + scale);
            };
            CHECK(near(got[s].k3, expected_moments[s].k3, 0));
            CHECK(near(got[s].excess_squared, expected_moments[s].excess_squared, 0));
            CHECK(near(got[s].rollout_logprob, expected_moments[s].rollout_logprob, magnitude(s)));
          }
        });
}

/// Sum of the log ratios of each turn, nats.
template <typename Old, typename Rollout>
std::vector<double> log_sums(std::vector<Old> const& old_logprob, std::vector<Rollout> const& rollout_logprob,
                             std::vector<std::int64_t> const& begin, std::vector<std::int64_t> const& end) {
  device_array<Old> const device_old{std::span<Old const>{old_logprob}};
  device_array<Rollout> const device_rollout{std::span<Rollout const>{rollout_logprob}};
  device_array<std::int64_t> const device_begin{std::span<std::int64_t const>{begin}};
  device_array<std::int64_t> const device_end{std::span<std::int64_t const>{end}};
  device_array<turn_statistics> const records{begin.size()};
  gpu::rollout_view batch;
  batch.turns = begin.size();
  batch.turn_begin = device_begin.view();
  batch.turn_end = device_end.view();
  exact_workspace const plan_memory{support::token_plan_workspace_bytes(batch.turns, old_logprob.size())};
  exact_workspace const memory{gpu::importance::log_ratio_statistics_workspace_bytes(old_logprob.size(), false)};
  side_stream const stream;
  auto const plan = support::make_token_plan(batch, old_logprob.size(), nullptr, plan_memory.whole(), stream);
  gpu::importance::log_ratio_statistics(plan,
                                        gpu::token_logprobs<Old, Rollout>{device_old.view(), device_rollout.view(), {}},
                                        records.span(), memory.whole(), stream);
  stream.wait();
  std::vector<double> sums;
  for (auto const& one : records.host()) sums.push_back(one.log_sum());
  return sums;
}

}  // namespace

TEST_SUITE("gpu/importance/log_ratio_statistics" * doctest::skip(!has_device())) {
  TEST_CASE("same bits as the host, any mean length, mask, order and alignment") {
    unsigned seed = 0;
    for (double const mean : {1.0, 6.0, 40.0, 300.0, 3000.0})
      for (bool const shuffled : {false, true})
        for (std::size_t const shift : {0, 1, 3}) {
          CAPTURE(mean);
          CAPTURE(shuffled);
          CAPTURE(shift);
          ++seed;
          token_batch const batch{seed, mean > 1000 ? 40u : 700u, mean, shuffled, seed % 2 == 0};
          auto const known = shuffled ? gpu::turn_order::unknown : gpu::turn_order::by_tokens;
          compare<float, float>(batch, seed % 3 == 0, seed % 4 == 1, shift, known);
        }
  }

  TEST_CASE("half types, doubles and mixed types") {
    token_batch const batch{99, 300, 90, true, true};
    for (std::size_t const shift : {0, 1}) {
      compare<__nv_bfloat16, __nv_bfloat16>(batch, true, true, shift, gpu::turn_order::unknown);
      compare<__half, float>(batch, true, false, shift, gpu::turn_order::unknown);
      compare<float, __nv_bfloat16>(batch, false, true, shift, gpu::turn_order::unknown);
      compare<double, double>(batch, true, true, shift, gpu::turn_order::unknown);
      compare<float, double>(batch, true, false, shift, gpu::turn_order::unknown);
    }
  }

  TEST_CASE("CU-07 the scratch of a reduction is used again and again") {
    // 128 tokens of log ratio k + 1 in round k of eight, a thousand times: a warp's scratch holds one after the other.
    constexpr std::size_t rounds = 8, size = 128, repeats = 1000;
    std::size_t const turns = rounds * repeats;
    std::vector<float> old_logprob;
    std::vector<std::int64_t> begin, end;
    for (std::size_t s = 0; s < turns; ++s) {
      begin.push_back(static_cast<std::int64_t>(old_logprob.size()));
      old_logprob.resize(old_logprob.size() + size, static_cast<float>(s % rounds + 1));
      end.push_back(static_cast<std::int64_t>(old_logprob.size()));
    }
    auto const sums = log_sums(old_logprob, std::vector<float>(old_logprob.size()), begin, end);
    std::vector<double> expected;
    for (std::size_t s = 0; s < turns; ++s)
      expected.push_back(std::array{128., 256., 384., 512., 640., 768., 896., 1024.}[s % 8]);
    CHECK(sums == expected);
  }

  TEST_CASE("CU-13 log-probs stored as float: equal ones have ratio 1; stored as bfloat16 they do not") {
    std::vector<float> const logprob(100, -7.43f);
    auto const mean_ratio = [](std::vector<double> const& sums) { return std::exp(sums[0] / 100); };
    CHECK(mean_ratio(log_sums(logprob, logprob, {0}, {100})) == 1.0);
    // -7.43 in bfloat16 is -7.4375, as the steps are 1/32 between 4 and 8: exp(0.0075).
    std::vector<__nv_bfloat16> const rounded(100, __float2bfloat16(-7.43f));
    CHECK(mean_ratio(log_sums(logprob, rounded, {0}, {100})) == doctest::Approx(1.0075281954445343).epsilon(1e-6));
  }

  TEST_CASE("CU-06 no turns, turns without tokens, no tokens at all") {
    token_batch empty{1, 0, 1, false, false};
    compare<float, float>(empty, false, false, 0, gpu::turn_order::unknown);
    token_batch hollow{1, 0, 1, false, false};
    hollow.begin = hollow.end = {0, 0, 0};
    compare<float, float>(hollow, false, false, 0, gpu::turn_order::unknown);
    compare<float, float>(hollow, false, false, 0, gpu::turn_order::by_tokens);
    token_batch inside{5, 20, 50, false, false};
    inside.begin.push_back(10);
    inside.end.push_back(10);
    compare<float, float>(inside, false, false, 0, gpu::turn_order::unknown);
  }

}  // TEST_SUITE

}  // namespace log_ratio_statistics_test

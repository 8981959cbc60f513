#include "support/gpu_scans.cuh"

#include <turnwise/gpu/advantage/gae.cuh>
#include <turnwise/gpu/advantage/vtrace.cuh>

namespace vtrace_test {

using namespace support;
using gpu::status_code;
using turnwise::advantage::vtrace_advantage;
using turnwise::advantage::vtrace_options;
using turnwise::advantage::detail::vtrace_rule;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

template <typename T>
expected_tokens<T> on_host(token_batch<T> const& batch, vtrace_options const& options) {
  expected_tokens<T> expected{batch.tokens()};
  turnwise::advantage::vtrace(batch.view(), batch.reward, batch.value, batch.log_ratio, options,
                              std::span{expected.advantage}, expected.target);
  vtrace_rule const rule{options};
  bound(batch, rule, 12, rule.takes_excess, rule.mix, rule.pg_rho_bar, expected);
  return expected;
}

template <typename T>
void enqueue(device_tokens<T> const& device, vtrace_options const& options, gpu::status_record* status,
             gpu::workspace scratch, cuda::stream_ref stream) {
  gpu::advantage::vtrace(device.segments(), device.reward.view(), device.value.view(), device.log_ratio.view(), options,
                         device.advantage.span(), device.target.span(), status, scratch, stream);
}

/// Checks both outputs against those of `judged`; returns the status.
template <typename T>
gpu::status_record compare(token_batch<T> const& judged, device_tokens<T> const& device,
                           vtrace_options const& options) {
  auto const expected = on_host(judged, options);
  exact_workspace const memory{gpu::advantage::vtrace_workspace_bytes<T>(judged.tokens())};
  device_status const status;
  on_stream_and_in_graph(
      [&] { device.clear(); },
      [&](cuda::stream_ref stream) { enqueue(device, options, status.get(), memory.whole(), stream); },
      [&] {
        CHECK(within_slack(device.advantage.host(), expected.advantage, expected.advantage_slack, judged.mask));
        CHECK(within_slack(device.target.host(), expected.target, expected.target_slack, judged.mask));
      });
  return status.host();
}

template <typename T>
void compare(token_batch<T> const& batch, std::size_t shift, bool with_mask, vtrace_options const& options) {
  CHECK(compare(batch, device_tokens<T>{batch, shift, with_mask}, options).code() == status_code::ok);
}

}  // namespace

TEST_SUITE("gpu/advantage/vtrace" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("near the host's results: any size, mask, option and address", T, float, double) {
    std::uint64_t seed = 0;
    for (std::int64_t const tokens : {1, 1279, 1280, 1281, 2815, 2816, 2817, 40000, 500000})
      for (std::int64_t const mean : {1, 8, 300, 8192, 1000000}) {
        if (++seed > seeds(45)) break;
        CAPTURE(tokens);
        CAPTURE(mean);
        bool const masked = seed % 2 == 0;
        auto const batch =
            random_tokens<T>(seed, tokens, mean, masked ? 1 + static_cast<std::int64_t>(seed % 4) * 2 : 0);
        vtrace_options const options{.gamma = seed % 3 == 0 ? 1.0 : 0.99,
                                     .lambda = seed % 4 == 0   ? 0.0
                                               : seed % 4 == 1 ? 0.95
                                                               : 1.0,
                                     .rho_bar = seed % 5 == 0 ? infinity : 1 + 0.1 * static_cast<double>(seed % 5),
                                     .c_bar = seed % 7 == 0 ? 0.0 : 1.0,
                                     .pg_rho_bar = seed % 5 == 1 ? infinity : 1.2,
                                     .advantage = static_cast<vtrace_advantage>(seed % 3)};
        compare(batch, seed % 4, masked, options);
      }
  }

  TEST_CASE_TEMPLATE("segments that end at every offset of a chunk", T, float, double) {
    constexpr std::int64_t chunk = gpu::advantage::detail::scan_chunk<T, vtrace_rule>;
    integers random{3};
    token_batch<T> batch;
    std::int64_t const steps = seeds(50) < 50 ? 40 : chunk;
    for (std::int64_t k = 0; k < steps; ++k) batch.add(random, chunk + 1, 0);
    compare(batch, 0, false, {.rho_bar = 2});
  }

  TEST_CASE("one long segment: what comes from far behind passes thousands of chunks") {
    integers random{4};
    token_batch<float> batch;
    batch.add(random, seeds(50) < 50 ? 200'000 : 1 << 23, 0);
    for (float& ratio : batch.log_ratio) ratio = std::abs(ratio);  // the trace stays at 1
    compare(batch, 1, false, {});
  }

  TEST_CASE("on-policy with the excess as advantage: the bits of gae where chunks agree") {
    auto batch = random_tokens<double>(5, 1200, 90, 4);  // one chunk of either
    std::ranges::fill(batch.log_ratio, 0.0);
    device_tokens<double> const device{batch, 1};
    exact_workspace const memory{gpu::advantage::vtrace_workspace_bytes<double>(batch.tokens())};
    side_stream const stream;
    enqueue(device, {.gamma = 0.9, .lambda = 0.8, .advantage = vtrace_advantage::excess}, nullptr, memory.whole(),
            stream);
    stream.wait();
    auto const advantage = device.advantage.host();
    gpu::advantage::gae<double>(device.segments(), device.reward.view(), device.value.view(),
                                {.gamma = 0.9, .lambda = 0.8}, device.advantage.span(), {}, nullptr, memory.whole(),
                                stream);
    stream.wait();
    auto const gae = device.advantage.host();
    for (std::size_t n = 0; n < gae.size(); ++n) CHECK(advantage[n] == doctest::Approx(gae[n]).epsilon(1e-12));
  }

  TEST_CASE_TEMPLATE("the same bits in every run, on any stream, at any address", T, float, double) {
    auto const batch = random_tokens<T>(9, 1'000'000, 100'000, 6);
    exact_workspace const memory{gpu::advantage::vtrace_workspace_bytes<T>(batch.tokens())};
    std::vector<T> advantage, target;
    for (std::size_t const shift : {0, 1, 3})
      for (int run = 0; run < 6; ++run) {
        device_tokens<T> const device{batch, shift};
        side_stream const stream;
        enqueue(device, {.gamma = 0.9999}, nullptr, memory.whole(), stream);
        stream.wait();
        if (advantage.empty()) advantage = device.advantage.host(), target = device.target.host();
        CHECK(same_bits(device.advantage.host(), advantage));
        CHECK(same_bits(device.target.host(), target));
      }
  }

  TEST_CASE_TEMPLATE("a bad token is reported and acts as masked; log ratios beyond +-64 are clamped", T, float,
                     double) {
    auto batch = random_tokens<T>(15, 30'000, 900, 4);
    T const huge[]{turnwise::largest<T>, -turnwise::largest<T>, T(65), T(-65)};
    for (std::size_t n = 100; n < batch.tokens(); n += 331)
      if (batch.mask[n] != 0) batch.log_ratio[n] = huge[n % 4];
    auto judged = batch;
    T const bad[]{std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                  -std::numeric_limits<T>::infinity()};
    std::int64_t first = -1;
    for (std::size_t n = 700; n < batch.tokens(); n += 997) {
      (n % 3 == 0 ? batch.reward : n % 3 == 1 ? batch.value : batch.log_ratio)[n] = bad[n / 3 % 3];
      if (batch.mask[n] != 0 && first < 0) first = static_cast<std::int64_t>(n);
      judged.mask[n] = 0;
    }
    REQUIRE(first >= 0);
    auto const status = compare(judged, device_tokens<T>{batch, 1}, {.gamma = 0.9, .rho_bar = 3, .pg_rho_bar = 5});
    CHECK(status.code() == status_code::token_value);
    CHECK(status.index() == first);
  }

  TEST_CASE_TEMPLATE("bad arguments throw with nothing written; no tokens", T, float, double) {
    auto const batch = random_tokens<T>(17, 9000, 100, 4);
    device_tokens<T> const device{batch, 0};
    device.clear();
    auto const untouched = device.advantage.host();
    exact_workspace const memory{gpu::advantage::vtrace_workspace_bytes<T>(batch.tokens())};
    side_stream const stream;
    auto const call = [&](gpu::device_span<T const> log_ratio, gpu::device_span<T> advantage,
                          vtrace_options const& options, gpu::workspace scratch) {
      gpu::advantage::vtrace(device.segments(), device.reward.view(), device.value.view(), log_ratio, options,
                             advantage, device.target.span(), nullptr, scratch, stream);
    };
    auto const ratio = device.log_ratio.view();
    auto const out = device.advantage.span();
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call(ratio.first(8999), out, {}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(ratio, out.first(8999), {}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(ratio, out, {.gamma = -1}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(ratio, out, {.c_bar = 2}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(ratio, out, {.rho_bar = 2, .c_bar = 2}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(ratio, out, {.pg_rho_bar = -1}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(ratio, out, {}, memory.short_by_one()), precondition_error);
    stream.wait();
    CHECK(same_bits(device.advantage.host(), untouched));

    token_batch<T> const none;
    device_tokens<T> const nothing{none, 0};
    exact_workspace const little{gpu::advantage::vtrace_workspace_bytes<T>(0)};
    enqueue(nothing, {}, nullptr, little.whole(), stream);
    stream.wait();
  }

}  // TEST_SUITE

}  // namespace vtrace_test

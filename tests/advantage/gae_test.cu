#include "support/gpu_scans.cuh"

#include <turnwise/gpu/advantage/gae.cuh>

namespace gae_test {

using namespace support;
using gpu::status_code;
using turnwise::advantage::gae_options;
using turnwise::advantage::detail::gae_rule;

namespace {

template <typename T>
expected_tokens<T> on_host(token_batch<T> const& batch, gae_options const& options) {
  expected_tokens<T> expected{batch.tokens()};
  turnwise::advantage::gae(batch.view(), batch.reward, batch.value, options, std::span{expected.advantage},
                           expected.target);
  bound(batch, gae_rule{options}, 4, true, 1, 1, expected);
  return expected;
}

template <typename T>
void enqueue(device_tokens<T> const& device, gae_options const& options, gpu::status_record* status,
             gpu::workspace scratch, cuda::stream_ref stream) {
  gpu::advantage::gae(device.segments(), device.reward.view(), device.value.view(), options, device.advantage.span(),
                      device.target.span(), status, scratch, stream);
}

/// Checks both outputs; returns the status.
template <typename T>
gpu::status_record compare(token_batch<T> const& batch, device_tokens<T> const& device, gae_options const& options,
                           expected_tokens<T> const& expected) {
  exact_workspace const memory{gpu::advantage::gae_workspace_bytes<T>(batch.tokens())};
  device_status const status;
  on_stream_and_in_graph(
      [&] { device.clear(); },
      [&](cuda::stream_ref stream) { enqueue(device, options, status.get(), memory.whole(), stream); },
      [&] {
        CHECK(within_slack(device.advantage.host(), expected.advantage, expected.advantage_slack, batch.mask));
        CHECK(within_slack(device.target.host(), expected.target, expected.target_slack, batch.mask));
      });
  return status.host();
}

template <typename T>
void compare(token_batch<T> const& batch, std::size_t shift, bool with_mask, gae_options const& options) {
  device_tokens<T> const device{batch, shift, with_mask};
  CHECK(compare(batch, device, options, on_host(batch, options)).code() == status_code::ok);
}

}  // namespace

TEST_SUITE("gpu/advantage/gae" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("MP-07: a cut episode bootstraps, an ended one does not, and neither leaks into the next", T,
                     float, double) {
    double const ended[]{1.25, 1, 0.5}, stopped[]{1.35, 1.2, 0.9};
    token_batch<T> batch;
    for (int k = 0; k < 5000; ++k) {
      batch.cut.push_back(k % 2 == 0);
      batch.next_value.push_back(T(0.8));
      batch.mask.insert(batch.mask.end(), 3, 1);
      batch.reward.insert(batch.reward.end(), 3, T(1));
      batch.value.insert(batch.value.end(), 3, T(0.5));
      batch.offsets.push_back(batch.offsets.back() + 3);
    }
    batch.log_ratio.resize(batch.tokens());
    for (bool const with_mask : {false, true}) {
      device_tokens<T> const device{batch, 1, with_mask};
      exact_workspace const memory{gpu::advantage::gae_workspace_bytes<T>(batch.tokens())};
      side_stream const stream;
      enqueue(device, {.gamma = 0.5, .lambda = 1}, nullptr, memory.whole(), stream);
      stream.wait();
      auto const got = device.advantage.host();
      bool right = true;
      for (std::size_t n = 0; n < got.size(); ++n) {
        double const wanted = (n / 3 % 2 == 0 ? stopped : ended)[n % 3];
        right = right && std::abs(static_cast<double>(got[n]) - wanted) <= 1e-6;
      }
      CHECK(right);
    }
  }

  TEST_CASE_TEMPLATE("near the host's results: any size, mask, gamma, lambda and address", T, float, double) {
    std::uint64_t seed = 0;
    for (std::int64_t const tokens : {1, 31, 1791, 1792, 1793, 3839, 3840, 3841, 50000, 700000})
      for (std::int64_t const mean : {1, 8, 300, 8192, 1000000}) {
        if (++seed > seeds(50)) break;
        CAPTURE(tokens);
        CAPTURE(mean);
        bool const masked = seed % 2 == 0;
        auto const batch =
            random_tokens<T>(seed, tokens, mean, masked ? 1 + static_cast<std::int64_t>(seed % 4) * 2 : 0);
        gae_options const options{.gamma = seed % 3 == 0   ? 1.0
                                           : seed % 3 == 1 ? 0.99
                                                           : 0.0,
                                  .lambda = seed % 5 == 0  ? 0.0
                                            : seed % 5 < 3 ? 1.0
                                                           : 0.95};
        compare(batch, seed % 4, masked, options);
      }
  }

  TEST_CASE_TEMPLATE("segments that end at every offset of a chunk", T, float, double) {
    constexpr std::int64_t chunk = gpu::advantage::detail::scan_chunk<T, gae_rule>;
    integers random{3};
    token_batch<T> batch;
    std::int64_t const steps = seeds(50) < 50 ? 40 : chunk;
    for (std::int64_t k = 0; k < steps; ++k) batch.add(random, chunk + 1, 0);
    compare(batch, 0, false, {.gamma = 1, .lambda = 1});
    token_batch<T> small;  // and chunks with two ends, one or none
    for (std::int64_t k = 0; k < 2000; ++k) small.add(random, k % 7 == 0 ? 0 : 1 + random.below(chunk), 5);
    compare(small, 3, true, {.gamma = 0.999, .lambda = 1});
  }

  TEST_CASE("one long segment: what comes from far behind passes thousands of chunks") {
    integers random{4};
    token_batch<float> batch;
    batch.add(random, seeds(50) < 50 ? 300'000 : 1 << 24, 0);
    for (double const gamma : {1.0, 0.999999}) compare(batch, 1, false, {.gamma = gamma, .lambda = 1});
    std::ranges::fill(batch.mask, std::uint8_t{0});  // and passes over chunks without an unmasked token
    batch.mask.front() = batch.mask.back() = 1;
    compare(batch, 1, true, {.gamma = 0.5, .lambda = 1});
  }

  TEST_CASE_TEMPLATE("one segment of as many chunks as are carried on together, of fewer and of more", T, float,
                     double) {
    constexpr std::int64_t chunk = gpu::advantage::detail::scan_chunk<T, gae_rule>;
    constexpr std::int64_t group = gpu::advantage::detail::carry_group;
    integers random{5};
    for (std::int64_t const chunks :
         {group - 1, group, group + 1, group + 2, 2 * group + 1, 16 * group, 16 * group + 2})
      for (std::int64_t const more : {0, 1}) {
        CAPTURE(chunks);
        token_batch<T> batch;
        batch.add(random, chunks * chunk + more, chunks % 2 == 0 ? 5 : 0);
        compare(batch, 1, chunks % 2 == 0, {.gamma = 1, .lambda = 1});
      }
  }

  TEST_CASE("zeros of both signs: the same bits whichever way a chunk learns what reaches it") {
    token_batch<float> batch;
    integers random{6};
    for (int k = 0; k < 300; ++k) batch.add(random, 1 + random.below(9000), 7);
    for (std::size_t n = 0; n < batch.tokens(); ++n) {
      batch.reward[n] = n % 3 == 0 ? 0.0F : -0.0F;
      batch.value[n] = n % 5 == 0 ? 0.0F : -0.0F;
    }
    for (float& next : batch.next_value) next = -0.0F;
    device_tokens<float> const device{batch, 0};
    exact_workspace const memory{gpu::advantage::gae_workspace_bytes<float>(batch.tokens())};
    side_stream const stream;
    std::vector<float> advantage;
    for (int run = 0; run < 20; ++run) {
      device.clear();
      enqueue(device, {.gamma = 0.5, .lambda = 1}, nullptr, memory.whole(), stream);
      stream.wait();
      if (advantage.empty()) advantage = device.advantage.host();
      CHECK(same_bits(device.advantage.host(), advantage));
      CHECK(std::ranges::all_of(advantage, [](float number) { return number == 0; }));
    }
  }

  TEST_CASE_TEMPLATE("the same bits in every run, on any stream, at any address", T, float, double) {
    auto const batch = random_tokens<T>(9, 2'000'000, 100'000, 6);
    gae_options const options{.gamma = 0.9999, .lambda = 0.9999};
    exact_workspace const memory{gpu::advantage::gae_workspace_bytes<T>(batch.tokens())};
    std::vector<T> advantage, target;
    for (std::size_t const shift : {0, 1, 3})
      for (int run = 0; run < 10; ++run) {
        device_tokens<T> const device{batch, shift};
        side_stream const stream;
        enqueue(device, options, nullptr, memory.whole(), stream);
        stream.wait();
        if (advantage.empty()) advantage = device.advantage.host(), target = device.target.host();
        CHECK(same_bits(device.advantage.host(), advantage));
        CHECK(same_bits(device.target.host(), target));
      }
  }

  TEST_CASE_TEMPLATE("one output alone, outputs over inputs, no status", T, float, double) {
    auto const batch = random_tokens<T>(12, 60'000, 500, 4);
    gae_options const options{.gamma = 0.98, .lambda = 0.9};
    exact_workspace const memory{gpu::advantage::gae_workspace_bytes<T>(batch.tokens())};
    side_stream const stream;
    device_tokens<T> const device{batch, 2};
    enqueue(device, options, nullptr, memory.whole(), stream);
    stream.wait();
    auto const advantage = device.advantage.host(), target = device.target.host();
    device.clear();
    gpu::advantage::gae<T>(device.segments(), device.reward.view(), device.value.view(), options,
                           device.advantage.span(), {}, nullptr, memory.whole(), stream);
    gpu::advantage::gae<T>(device.segments(), device.reward.view(), device.value.view(), options, {},
                           device.target.span(), nullptr, memory.whole(), stream);
    stream.wait();
    CHECK(same_bits(device.advantage.host(), advantage));
    CHECK(same_bits(device.target.host(), target));
    gpu::advantage::gae<T>(device.segments(), device.reward.view(), device.value.view(), options, device.value.span(),
                           device.reward.span(), nullptr, memory.whole(), stream);
    stream.wait();
    CHECK(same_bits(device.value.host(), advantage));
    CHECK(same_bits(device.reward.host(), target));
  }

  TEST_CASE_TEMPLATE("a bad token is reported and acts as masked, a bad next_value as 0", T, float, double) {
    for (std::int64_t const masked_in : {0, 4}) {
      auto batch = random_tokens<T>(15, 40'000, 900, masked_in);
      auto judged = batch;
      T const bad[]{std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                    -std::numeric_limits<T>::infinity(), std::numeric_limits<T>::max()};
      std::int64_t first = -1;
      for (std::size_t n = 700; n < batch.tokens(); n += 997) {
        (n % 2 == 0 ? batch.reward : batch.value)[n] = bad[n % 4];
        if (batch.mask[n] != 0 && first < 0) first = static_cast<std::int64_t>(n);
        judged.mask[n] = 0;
      }
      std::int64_t next_at = -1;
      for (std::size_t k = 3; k < batch.cut.size(); k += 5) {
        if (batch.cut[k] == 0 || batch.offsets[k] == batch.offsets[k + 1]) continue;
        batch.next_value[k] = bad[k % 4];
        judged.next_value[k] = 0;
        if (next_at < 0) next_at = batch.offsets[k + 1] - 1;
      }
      REQUIRE(first >= 0);
      REQUIRE(next_at >= 0);
      gae_options const options{.gamma = 0.9, .lambda = 0.9};
      device_tokens<T> const device{batch, 1, masked_in != 0};
      auto const status = compare(judged, device, options, on_host(judged, options));
      CHECK(status.code() == status_code::token_value);
      CHECK(status.index() == std::min(first, next_at));
      CHECK_THROWS_AS(gpu::check(status), turnwise::precondition_error);
    }
  }

  TEST_CASE("wrong offsets are reported, stay in bounds and give 0") {
    auto const batch = random_tokens<float>(16, 30'000, 100, 0);
    for (int kind = 0; kind < 4; ++kind) {
      auto broken = batch;
      std::size_t at = broken.offsets.size() / 2;
      if (kind == 0) broken.offsets[at] = 1'000'000'000'000;
      if (kind == 1) broken.offsets[at] = -77;
      if (kind == 2) broken.offsets[at = 0] = 1;
      if (kind == 3) broken.offsets[at = broken.offsets.size() - 1] -= 1;
      device_tokens<float> const device{broken, 1, false};
      exact_workspace const memory{gpu::advantage::gae_workspace_bytes<float>(batch.tokens())};
      device_status const status;
      side_stream const stream;
      device.clear();
      enqueue(device, {}, status.get(), memory.whole(), stream);
      stream.wait();
      CHECK(status.host().code() == status_code::trajectory_offsets);
      CHECK(status.host().index() == static_cast<std::int64_t>(at));
      CHECK(same_bits(device.advantage.host(), std::vector<float>(batch.tokens())));
      CHECK(same_bits(device.target.host(), std::vector<float>(batch.tokens())));
    }
  }

  TEST_CASE_TEMPLATE("bad arguments throw with nothing written; no tokens", T, float, double) {
    auto const batch = random_tokens<T>(17, 9000, 100, 4);
    device_tokens<T> const device{batch, 0};
    device.clear();
    auto const untouched = device.advantage.host();
    exact_workspace const memory{gpu::advantage::gae_workspace_bytes<T>(batch.tokens())};
    side_stream const stream;
    auto const shorter = [](auto span) { return span.first(span.size() - 1); };
    auto const refused = [&](auto change) {
      auto segments = device.segments();
      auto reward = device.reward.view(), value = device.value.view();
      auto advantage = device.advantage.span(), target = device.target.span();
      gae_options options;
      auto scratch = memory.whole();
      change(segments, reward, value, advantage, target, options, scratch);
      CHECK_THROWS_AS(
          gpu::advantage::gae(segments, reward, value, options, advantage, target, nullptr, scratch, stream),
          turnwise::precondition_error);
    };
    refused([&](auto& segments, auto&&...) { segments.mask = shorter(segments.mask); });
    refused([&](auto& segments, auto&&...) { segments.cut = shorter(segments.cut); });
    refused([&](auto& segments, auto&&...) { segments.next_value = shorter(segments.next_value); });
    refused([&](auto& segments, auto&&...) { segments.cut = {}; });
    refused([&](auto& segments, auto&&...) { segments = {}; });
    refused([&](auto&, auto& reward, auto&&...) { reward = shorter(reward); });
    refused([&](auto&, auto&, auto& value, auto&&...) { value = shorter(value); });
    refused([&](auto&, auto&, auto&, auto& advantage, auto&&...) { advantage = shorter(advantage); });
    refused([&](auto&, auto&, auto&, auto&, auto& target, auto&&...) { target = shorter(target); });
    refused([&](auto&, auto&, auto&, auto&, auto&, auto& options, auto&) { options.gamma = 1.01; });
    refused([&](auto&, auto&, auto&, auto&, auto&, auto& options, auto&) { options.lambda = -0.01; });
    refused([&](auto&, auto&, auto&, auto&, auto&, auto&, auto& scratch) { scratch = memory.short_by_one(); });
    stream.wait();
    CHECK(same_bits(device.advantage.host(), untouched));

    token_batch<T> const none;
    device_tokens<T> const nothing{none, 0};
    exact_workspace const little{gpu::advantage::gae_workspace_bytes<T>(0)};
    enqueue(nothing, {}, nullptr, little.whole(), stream);
    stream.wait();
  }

}  // TEST_SUITE

namespace {

TURNWISE_KERNEL void fill_ones(float* reward, float* value, std::int64_t tokens) {
  gpu::detail::for_each_by_thread(tokens, [&](std::int64_t n) {
    reward[n] = 1;
    value[n] = 0;
  });
}

TURNWISE_KERNEL void count_wrong(float const* advantage, std::int64_t size, std::int64_t tokens,
                                 unsigned long long* wrong) {
  gpu::detail::for_each_by_thread(tokens, [&](std::int64_t n) {
    std::int64_t const end = (n / size + 1) * size < tokens ? (n / size + 1) * size : tokens;
    if (advantage[n] != static_cast<float>(end - n)) atomicAdd(wrong, 1ull);
  });
}

}  // namespace

TEST_SUITE("gpu/advantage/gae/large_batch" * doctest::skip(!has_device())) {
  TEST_CASE("CU-01 more than 2^31 tokens: rewards of 1 count the tokens that are left") {
    std::int64_t const tokens = (std::int64_t{1} << 31) + 12345;
    auto const count = static_cast<std::size_t>(tokens);
    std::size_t free_bytes = 0, all_bytes = 0;
    gpu::check(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
    if (free_bytes < count * 12 + (std::size_t{2} << 30)) {
      MESSAGE("not run: needs ", (count * 12) >> 30, " GiB, free are ", free_bytes >> 30);
      return;
    }
    side_stream const stream;
    device_array<float> const reward{count}, value{count}, advantage{count};
    gpu::launch("fill", fill_ones, 4096, 256, 0, stream, reward.span().data(), value.span().data(), tokens);
    exact_workspace const memory{gpu::advantage::gae_workspace_bytes<float>(count)};
    for (std::int64_t const size : {std::int64_t{1000003}, tokens}) {
      std::vector<std::int64_t> offsets;
      for (std::int64_t begin = 0; begin < tokens; begin += size) offsets.push_back(begin);
      offsets.push_back(tokens);
      auto const device_offsets = on_device(offsets);
      device_array<unsigned long long> const wrong{1};
      fill_bytes(wrong, 0);
      gpu::advantage::gae<float>({.offsets = device_offsets.view()}, reward.view(), value.view(), {}, advantage.span(),
                                 {}, nullptr, memory.whole(), stream);
      gpu::launch("count", count_wrong, 4096, 256, 0, stream, advantage.span().data(), size, tokens,
                  wrong.span().data());
      stream.wait();
      CHECK(wrong.host()[0] == 0);
    }
  }

}  // TEST_SUITE

}  // namespace gae_test

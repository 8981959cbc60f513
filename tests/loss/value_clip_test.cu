#include "support/gpu_rules.cuh"

#include <turnwise/gpu/loss/value_clip.cuh>

#include <cmath>

namespace value_clip_test {

using namespace support;
using turnwise::loss::value_clip_options;
using turnwise::loss::value_error;
using turnwise::loss::value_record;

namespace {

constexpr double none = std::numeric_limits<double>::infinity();

gpu::rollout_view device_view(token_case const& turns) {
  return {.turns = turns.turns(), .turn_begin = turns.device_begin.view(), .turn_end = turns.device_end.view()};
}

/// Token arrays lie `shift` elements behind an aligned address.
template <typename T>
void compare(token_case const& turns, unsigned seed, bool masked, value_clip_options const& options,
             std::size_t shift = 0) {
  CAPTURE(masked);
  CAPTURE(options.clip);
  auto const value = random_logprobs<T>(seed, turns.tokens());
  auto const old_value = options.clip < none ? random_logprobs<T>(seed + 1, turns.tokens()) : std::vector<T>{};
  auto const target = random_logprobs<T>(seed + 2, turns.tokens());
  auto const mask = masked ? turns.mask : std::vector<std::uint8_t>{};
  std::vector<double> scale;
  for (std::size_t s = 0; s < turns.turns(); ++s)
    scale.push_back(turns.reasons[s] == 0 ? 1.0 / static_cast<double>(s + 1) : 0.0);
  std::vector<T> gradient(turns.tokens());
  auto const expected =
      turnwise::loss::value_clip<T>(turns.view(), {value, old_value, target, mask}, options, scale, gradient);

  shifted_array<T> const device_value{value, shift}, device_old{old_value, shift}, device_target{target, shift};
  shifted_array<std::uint8_t> const device_mask{mask, shift};
  shifted_array<double> const device_scale{scale, shift};
  shifted_array<T> const device_gradient{turns.tokens(), shift};
  device_array<value_record> const record{1};
  exact_workspace const memory{gpu::loss::value_clip_workspace_bytes(turns.turns())};
  device_status const status;
  std::vector<value_record> runs;
  on_stream_and_in_graph(
      [&] {
        device_gradient.fill(0xa5);
        fill_bytes(record, 0xa5);
      },
      [&](cuda::stream_ref stream) {
        gpu::loss::value_clip<T>(device_view(turns),
                                 {device_value.view(), device_old.view(), device_target.view(), device_mask.view()},
                                 options, device_scale.view(), device_gradient.span(), record.span().data(),
                                 memory.whole(), status.get(), stream);
      },
      [&] {
        CHECK(status.ok());
        CHECK(same_numbers(device_gradient.host(), gradient));
        runs.push_back(record.host()[0]);
        CHECK(runs.back() == runs.front());
        auto const& got = runs.back();
        CHECK(got.tokens == expected.tokens);
        CHECK(got.clipped == expected.clipped);
        CHECK(got.non_finite == expected.non_finite);
        CHECK(std::abs(got.loss - expected.loss) <= 1e-12 * expected.loss);
      });
}

}  // namespace

TEST_SUITE("gpu/loss/value_clip" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's gradient and counts to the bit, its loss to 1e-12", T, float, double) {
    for (unsigned seed = 1; seed <= seeds(4); ++seed) {
      CAPTURE(seed);
      token_case const turns{seed, 200, seed == 1 ? 4.0 : 150.0, seed == 2};
      for (bool const masked : {false, true})
        for (auto const error : {value_error::squared, value_error::huber})
          for (double const clip : {0.2, 1.0, none}) compare<T>(turns, seed, masked, {clip, error, 0.3});
    }
    compare<T>(token_case{7, 1, 60000, false}, 7, true, {});
    compare<T>(token_case{8, 0, 3, false}, 8, true, {});
  }

  TEST_CASE_TEMPLATE("arrays that are aligned to their elements alone", T, float, double) {
    token_case const turns{5, 100, 150, true};
    for (std::size_t const shift : {1, 3}) {
      CAPTURE(shift);
      compare<T>(turns, 5, true, {}, shift);
    }
  }

  TEST_CASE("terms too large are counted and left out, as on the host") {
    std::vector<std::int64_t> const begin{0, 1, 2}, end{1, 2, 3};
    std::vector<double> const value{0x1p500, 0x1p500, 2}, target{-0x1p500, -0x1p500, 1}, scale{0x1p500, -0x1p500, 1};
    auto const device_begin = on_device(begin), device_end = on_device(end);
    auto const device_value = on_device(value), device_target = on_device(target), device_scale = on_device(scale);
    device_array<double> const gradient{3};
    device_array<value_record> const record{1};
    exact_workspace const memory{gpu::loss::value_clip_workspace_bytes(3)};
    side_stream const stream;
    gpu::loss::value_clip<double>({.turns = 3, .turn_begin = device_begin.view(), .turn_end = device_end.view()},
                                  {device_value.view(), {}, device_target.view(), {}}, {.clip = none},
                                  device_scale.view(), gradient.span(), record.span().data(), memory.whole(), nullptr,
                                  stream);
    stream.wait();
    CHECK(gradient.host() == std::vector<double>{0, 0, 1});
    CHECK(record.host()[0] == value_record{.loss = 0.5, .tokens = 1, .non_finite = 2});
  }

  TEST_CASE("bad ranges and scales are reported, and leave their turn out") {
    std::vector<std::int64_t> const begin{0, 1, -1, 2}, end{1, 2, 2, 3};
    std::vector<float> const value{1, 2, 3}, zeros(3);
    std::vector<double> const scale{1, std::numeric_limits<double>::quiet_NaN(), 1, 1};
    auto const device_begin = on_device(begin);
    auto const device_end = on_device(end);
    auto const device_value = on_device(value);
    auto const device_zeros = on_device(zeros);
    auto const device_scale = on_device(scale);
    device_array<float> const gradient{3};
    device_array<value_record> const record{1};
    exact_workspace const memory{gpu::loss::value_clip_workspace_bytes(4)};
    device_status const status;
    side_stream const stream;
    gpu::loss::value_clip<float>({.turns = 4, .turn_begin = device_begin.view(), .turn_end = device_end.view()},
                                 {device_value.view(), {}, device_zeros.view(), {}}, {.clip = none},
                                 device_scale.view(), gradient.span(), record.span().data(), memory.whole(),
                                 status.get(), stream);
    stream.wait();
    CHECK(status.host().code() == gpu::status_code::token_range);
    CHECK(status.host().index() == 2);
    CHECK(gradient.host() == std::vector<float>{1, 0, 3});
    CHECK(record.host()[0] == value_record{.loss = 5, .tokens = 2});
  }

  TEST_CASE("bad sizes, options and workspaces throw, and nothing is written") {
    token_case const turns{9, 20, 10, false};
    auto const numbers = on_device(random_logprobs<float>(9, turns.tokens()));
    auto const mask = on_device(turns.mask);
    device_array<double> const scale{turns.turns()};
    device_array<float> const gradient{turns.tokens()};
    device_array<value_record> const record{1};
    fill_bytes(gradient, 0x5a);
    auto const untouched = gradient.host();
    exact_workspace const memory{gpu::loss::value_clip_workspace_bytes(turns.turns())};
    side_stream const stream;
    auto const shorter = [](auto span) { return span.first(span.size() - 1); };
    auto const throws = [&](gpu::loss::value_inputs<float> const& in, value_clip_options const& options, auto scales,
                            auto out, gpu::workspace const& scratch) {
      CHECK_THROWS_AS(gpu::loss::value_clip<float>(device_view(turns), in, options, scales, out, record.span().data(),
                                                   scratch, nullptr, stream),
                      turnwise::precondition_error);
    };
    auto const all = numbers.view();
    auto const less = shorter(all);
    throws({all, less, all, mask.view()}, {}, scale.view(), gradient.span(), memory.whole());
    throws({all, {}, all, mask.view()}, {}, scale.view(), gradient.span(), memory.whole());
    throws({all, all, less, mask.view()}, {}, scale.view(), gradient.span(), memory.whole());
    throws({all, all, all, shorter(mask.view())}, {}, scale.view(), gradient.span(), memory.whole());
    throws({all, all, all, mask.view()}, {.clip = 0}, scale.view(), gradient.span(), memory.whole());
    throws({all, all, all, mask.view()}, {}, shorter(scale.view()), gradient.span(), memory.whole());
    throws({all, all, all, mask.view()}, {}, scale.view(), shorter(gradient.span()), memory.whole());
    throws({all, all, all, mask.view()}, {}, scale.view(), gradient.span(), memory.short_by_one());
    stream.wait();
    CHECK(same_bits(gradient.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace value_clip_test

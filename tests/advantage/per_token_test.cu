#include "support/gpu_batches.cuh"
#include "support/gpu_builders.cuh"

#include <turnwise/advantage/per_token.hpp>
#include <turnwise/gpu/advantage/per_token.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace per_token_test {

using namespace support;

namespace {

enum class layout { packed, padded, gaps, unsorted };

/// Turns with advantages and reasons over N tokens, some of them masked.
struct token_turns {
  std::vector<std::int64_t> begin, end;
  std::vector<double> advantage;
  std::vector<reason_flags> reasons;
  std::vector<std::uint8_t> mask;
  std::size_t tokens = 0;

  token_turns(unsigned seed, layout kind, std::size_t turns, double mean) {
    std::mt19937_64 random{seed};
    std::lognormal_distribution<double> length{std::log(mean), 1.3};
    auto const width = static_cast<std::int64_t>(3 * mean) + 1;
    std::int64_t next = 0;
    for (std::size_t s = 0; s < turns; ++s) {
      auto size = random() % 8 == 0 ? 0 : static_cast<std::int64_t>(std::min(20000.0, length(random)));
      if (kind == layout::padded) size = std::min(size, width);
      begin.push_back(next);
      end.push_back(next + size);
      next += kind == layout::padded ? width : size;
      if (kind == layout::gaps || kind == layout::unsorted)
        next += random() % 3 == 0 ? static_cast<std::int64_t>(random() % 1500) : 0;
      advantage.push_back(std::ldexp(static_cast<double>(random()), -64) * (random() % 40 == 0 ? 1e300 : 3) - 1);
      bool const rejected = random() % 4 == 0;
      reasons.push_back(rejected ? reason_flags{1} << random() % 11 : 0);
      if (rejected && random() % 3 == 0) advantage.back() = std::numeric_limits<double>::quiet_NaN();
    }
    if (kind == layout::unsorted)
      for (std::size_t s = turns; s-- > 1;) {
        std::size_t const other = random() % (s + 1);
        std::swap(begin[s], begin[other]);
        std::swap(end[s], end[other]);
      }
    tokens = static_cast<std::size_t>(next);
    for (std::size_t i = 0; i < tokens; ++i) mask.push_back(static_cast<std::uint8_t>(random() % 5 * 3));
  }
};

template <typename A, typename T>
struct host_result {
  std::vector<A> turn_advantage;
  std::vector<T> advantage;
  std::vector<std::uint8_t> mask;

  host_result(token_turns const& turns, std::vector<std::uint8_t> const& token_mask)
      : turn_advantage(turns.begin.size()), advantage(turns.tokens), mask(turns.tokens) {
    std::ranges::transform(turns.advantage, turn_advantage.begin(), [](double a) { return static_cast<A>(a); });
    std::vector<std::int64_t> const offsets{0, static_cast<std::int64_t>(turns.begin.size())};
    std::vector<std::int64_t> const id{0};
    turnwise::rollout_view const batch{turns.begin, turns.end, offsets, id, id, {}, {}};
    turnwise::advantage::per_token(batch, token_mask, std::span<A const>{turn_advantage}, turns.reasons,
                                   std::span{advantage}, std::span{mask});
  }
};

/// What stands in [shift, shift + size) of an array of one more, and whether the rest is as `fill_bytes(0x5a)` left it.
template <typename T>
bool holds(device_array<T> const& memory, std::size_t shift, std::vector<T> const& expected) {
  auto all = memory.host();
  T filler;
  std::memset(&filler, 0x5a, sizeof(T));
  std::vector<T> whole(all.size(), filler);
  std::copy(expected.begin(), expected.end(), whole.begin() + static_cast<std::ptrdiff_t>(shift));
  return same_bits(all, whole);
}

/// Host and device over one batch; outputs begin `shift` elements from an aligned address.
template <typename A, typename T>
void compare(token_turns const& turns, bool masked, std::size_t shift, gpu::turn_order known) {
  CAPTURE(masked);
  CAPTURE(shift);
  CAPTURE(static_cast<int>(known));
  auto const mask = masked ? turns.mask : std::vector<std::uint8_t>{};
  host_result<A, T> const expected{turns, mask};
  auto const begin = on_device(turns.begin);
  auto const end = on_device(turns.end);
  auto const device_mask = on_device(mask);
  auto const advantage = on_device(expected.turn_advantage);
  auto const reasons = on_device(turns.reasons);
  device_array<T> const token_advantage{turns.tokens + 1};
  device_array<std::uint8_t> const token_mask{turns.tokens + 1};
  device_status const status;
  exact_workspace const memory{support::token_plan_workspace_bytes(turns.begin.size(), turns.tokens, known)};
  gpu::rollout_view const batch{.turns = turns.begin.size(), .turn_begin = begin.view(), .turn_end = end.view()};
  auto const wanted = [&](auto span) { return span.subspan(shift).first(turns.tokens); };
  for (bool const with_advantage : {true, false})
    for (bool const with_mask : {true, false}) {
      CAPTURE(with_advantage);
      CAPTURE(with_mask);
      on_stream_and_in_graph(
          [&] {
            fill_bytes(token_advantage, 0x5a);
            fill_bytes(token_mask, 0x5a);
          },
          [&](cuda::stream_ref stream) {
            auto const plan =
                support::make_token_plan(batch, turns.tokens, status.get(), memory.whole(), stream, known);
            gpu::advantage::per_token<A, T>(plan, device_mask.view(), advantage.view(), reasons.view(),
                                            with_advantage ? wanted(token_advantage.span()) : gpu::device_span<T>{},
                                            with_mask ? wanted(token_mask.span()) : gpu::device_span<std::uint8_t>{},
                                            stream);
          },
          [&] {
            CHECK(status.ok());
            CHECK(holds(token_advantage, shift, with_advantage ? expected.advantage : std::vector<T>{}));
            CHECK(holds(token_mask, shift, with_mask ? expected.mask : std::vector<std::uint8_t>{}));
          });
    }
}

template <typename A, typename T>
void compare_all(token_turns const& turns, bool sorted) {
  for (bool const masked : {false, true})
    for (std::size_t const shift : {0, 1}) {
      compare<A, T>(turns, masked, shift, gpu::turn_order::unknown);
      if (sorted) compare<A, T>(turns, masked, shift, gpu::turn_order::by_tokens);
    }
}

}  // namespace

TEST_SUITE("gpu/advantage/per_token" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits for every layout, masked or not, aligned or not", T, float, double) {
    for (layout const kind : {layout::packed, layout::padded, layout::gaps, layout::unsorted})
      for (double const mean : {70.0, 3.0, 2500.0}) {
        if (under_checker() && mean != 70.0) continue;
        CAPTURE(static_cast<int>(kind));
        CAPTURE(mean);
        token_turns const turns{static_cast<unsigned>(mean) + 7, kind, mean > 1000 ? 60u : 900u, mean};
        compare_all<double, T>(turns, kind != layout::unsorted);
        if (mean == 70.0) compare_all<float, T>(turns, kind != layout::unsorted);
      }
  }

  TEST_CASE("no turns, no tokens, only turns without tokens, one turn of whole chunks") {
    for (auto const& [turns, mean] : {std::pair{0u, 3.0}, std::pair{40u, 3.0}, std::pair{1u, 3.0}}) {
      token_turns one{5, layout::packed, turns, mean};
      compare_all<double, float>(one, true);
      one.tokens = 0;
      one.mask.clear();
      std::ranges::fill(one.begin, 0);
      std::ranges::fill(one.end, 0);
      compare_all<double, float>(one, true);
      if (turns != 1) continue;
      one.tokens = 3 * 1024;
      one.mask.assign(one.tokens, 1);
      one.end[0] = 3 * 1024;
      one.reasons[0] = 0;
      compare_all<double, double>(one, true);
    }
    token_turns none{5, layout::packed, 0, 3};
    none.tokens = 2500;
    none.mask.assign(none.tokens, 1);
    compare_all<double, float>(none, true);
  }

  TEST_CASE("bad sizes throw, and nothing is written") {
    token_turns const turns{9, layout::gaps, 50, 40};
    host_result<double, float> const expected{turns, turns.mask};
    auto const begin = on_device(turns.begin);
    auto const end = on_device(turns.end);
    auto const mask = on_device(turns.mask);
    auto const advantage = on_device(turns.advantage);
    auto const reasons = on_device(turns.reasons);
    device_array<float> const token_advantage{turns.tokens};
    device_array<std::uint8_t> const token_mask{turns.tokens};
    fill_bytes(token_advantage, 0x5a);
    fill_bytes(token_mask, 0x5a);
    auto const untouched = token_advantage.host();
    auto const untouched_mask = token_mask.host();
    exact_workspace const memory{support::token_plan_workspace_bytes(turns.begin.size(), turns.tokens)};
    gpu::rollout_view const batch{.turns = turns.begin.size(), .turn_begin = begin.view(), .turn_end = end.view()};
    side_stream const stream;
    using turnwise::precondition_error;
    CHECK_THROWS_AS(
        static_cast<void>(support::make_token_plan(batch, turns.tokens, nullptr, memory.short_by_one(), stream)),
        precondition_error);
    auto const plan = support::make_token_plan(batch, turns.tokens, nullptr, memory.whole(), stream);
    auto const shorter = [](auto span) { return span.first(span.size() - 1); };
    auto const throws = [&](auto of_tokens, auto of_turns, auto flags, auto out, auto out_mask) {
      CHECK_THROWS_AS(
          (gpu::advantage::per_token<double, float>(plan, of_tokens, of_turns, flags, out, out_mask, stream)),
          precondition_error);
    };
    auto const out = token_advantage.span();
    auto const out_mask = token_mask.span();
    throws(shorter(mask.view()), advantage.view(), reasons.view(), out, out_mask);
    throws(mask.view(), shorter(advantage.view()), reasons.view(), out, out_mask);
    throws(mask.view(), advantage.view(), shorter(reasons.view()), out, out_mask);
    throws(mask.view(), advantage.view(), reasons.view(), shorter(out), out_mask);
    throws(mask.view(), advantage.view(), reasons.view(), out, shorter(out_mask));
    stream.wait();
    CHECK(same_bits(token_advantage.host(), untouched));
    CHECK(same_bits(token_mask.host(), untouched_mask));
  }

}  // TEST_SUITE

}  // namespace per_token_test

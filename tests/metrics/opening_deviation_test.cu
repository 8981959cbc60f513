#include "support/gpu_batches.cuh"

#include <turnwise/gpu/metrics/opening_deviation.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace opening_deviation_test {

using namespace support;
using turnwise::metrics::opening;
using turnwise::metrics::opening_record;
using turnwise::metrics::short_turn_policy;

namespace {

/// A batch whose turns have a few tokens of a small vocabulary, on both sides; on the device arrays lie `shift`
/// elements behind an aligned address.
template <typename Token>
struct opening_case {
  ragged_batch<double> batch;
  std::vector<std::int64_t> begin, end;
  std::vector<Token> tokens;
  std::vector<std::uint8_t> mask;
  std::vector<reason_flags> reasons;
  device_rollout device;
  shifted_array<std::int64_t> device_begin, device_end;
  shifted_array<Token> device_tokens;
  shifted_array<std::uint8_t> device_mask;
  shifted_array<reason_flags> device_reasons;
  shifted_array<opening> flags;
  device_array<opening_record> out{1};

  explicit opening_case(std::uint64_t seed, std::size_t shift = 0)
      : batch(random_batch<double>(seed)),
        reasons(fill(seed)),
        device(batch.view()),
        device_begin(begin, shift),
        device_end(end, shift),
        device_tokens(tokens, shift),
        device_mask(mask, shift),
        device_reasons(reasons, shift),
        flags(batch.turns(), shift) {}

  [[nodiscard]] turnwise::rollout_view host_view() const {
    auto view = batch.view();
    view.turn_begin = begin;
    view.turn_end = end;
    return view;
  }
  [[nodiscard]] gpu::rollout_view device_view() const {
    auto view = device.view();
    view.turn_begin = device_begin.view();
    view.turn_end = device_end.view();
    return view;
  }

  void compare(std::vector<Token> const& prefix, short_turn_policy policy, bool with_mask, bool with_reasons,
               bool with_flags) const {
    std::vector<opening> expected(with_flags ? batch.turns() : 0);
    auto const record = turnwise::metrics::opening_deviation<Token>(
        host_view(), tokens, with_mask ? mask : std::vector<std::uint8_t>{}, prefix,
        with_reasons ? reasons : std::vector<reason_flags>{}, {policy}, expected);
    auto const device_prefix = on_device(prefix);
    device_status const status;
    on_stream_and_in_graph(
        [&] {
          flags.fill(0xa5);
          fill_bytes(out, 0xa5);
        },
        [&](cuda::stream_ref stream) {
          gpu::metrics::opening_deviation(
              device_view(), device_tokens.view(),
              with_mask ? device_mask.view() : gpu::device_span<std::uint8_t const>{}, device_prefix.view(),
              with_reasons ? device_reasons.view() : gpu::device_span<reason_flags const>{}, {policy},
              with_flags ? flags.span() : gpu::device_span<opening>{}, out.span(), status.get(), stream);
        },
        [&] {
          CHECK(status.ok());
          CHECK(out.host()[0] == record);
          if (with_flags) CHECK(flags.host() == expected);
        });
  }

 private:
  /// Fills the tokens and gives the reasons.
  std::vector<reason_flags> fill(std::uint64_t seed) {
    integers random{seed + 7};
    std::vector<reason_flags> result(batch.turns());
    for (std::size_t s = 0; s < result.size(); ++s) {
      begin.push_back(static_cast<std::int64_t>(tokens.size()));
      std::int64_t const length = random.below(6);
      for (std::int64_t i = 0; i < length; ++i) {
        tokens.push_back(static_cast<Token>(random.below(12) == 0 ? -5 : random.below(5) == 0 ? 11 : 10 + i % 2));
        mask.push_back(random.below(5) != 0);
      }
      end.push_back(static_cast<std::int64_t>(tokens.size()));
      if (random.below(6) == 0)
        result[s] = random.below(2) == 0 ? turnwise::reason::invalid : turnwise::reason::ratio_low;
    }
    return result;
  }
};

}  // namespace

TEST_SUITE("gpu/metrics/opening_deviation" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's counts and flags, all options", Token, std::int32_t, std::int64_t) {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
      CAPTURE(seed);
      opening_case<Token> const one{seed};
      for (auto const& prefix :
           {std::vector<Token>{10}, std::vector<Token>{10, 11}, std::vector<Token>{10, 11, 10, -5}})
        for (auto const policy : {short_turn_policy::deviates, short_turn_policy::ignore}) {
          one.compare(prefix, policy, true, true, true);
          one.compare(prefix, policy, false, true, false);
          one.compare(prefix, policy, true, false, true);
        }
    }
  }

  TEST_CASE_TEMPLATE("arrays that are aligned to their elements alone", Token, std::int32_t, std::int64_t) {
    for (std::size_t const shift : {1, 3}) {
      CAPTURE(shift);
      opening_case<Token> const one{4, shift};
      one.compare({10, 11}, short_turn_policy::deviates, true, true, true);
    }
  }

  TEST_CASE("tokens outside the arrays are reported, and the turn does not count") {
    opening_case<std::int32_t> const one{3};
    auto const tokens = static_cast<std::int64_t>(one.tokens.size());
    auto begin = one.begin;
    auto end = one.end;
    std::vector<std::uint8_t> bad(begin.size());
    for (std::size_t s = 9, kind = 0; s < begin.size(); s += 11, ++kind) {
      if (one.reasons[s] & turnwise::reason::invalid) continue;
      bad[s] = 1;
      if (kind % 3 == 0) begin[s] = -1;
      if (kind % 3 == 1) end[s] = tokens + 1;
      if (kind % 3 == 2) begin[s] = end[s] + 1;
    }
    auto reasons = one.reasons;
    std::int64_t first = -1;
    for (std::size_t s = 0; s < bad.size(); ++s) {
      if (!bad[s]) continue;
      if (first < 0) first = static_cast<std::int64_t>(s);
      reasons[s] |= turnwise::reason::invalid;
    }
    REQUIRE(first >= 0);
    std::vector<std::int32_t> const prefix{10, 11};
    std::vector<opening> expected(bad.size());
    auto const record = turnwise::metrics::opening_deviation<std::int32_t>(one.host_view(), one.tokens, {}, prefix,
                                                                           reasons, {}, expected);

    auto const device_begin = on_device(begin);
    auto const device_end = on_device(end);
    auto const device_prefix = on_device(prefix);
    auto view = one.device_view();
    view.turn_begin = device_begin.view();
    view.turn_end = device_end.view();
    device_status const status;
    side_stream const stream;
    gpu::metrics::opening_deviation(view, one.device_tokens.view(), {}, device_prefix.view(), one.device_reasons.view(),
                                    {}, one.flags.span(), one.out.span(), status.get(), stream);
    stream.wait();
    CHECK(one.flags.host() == expected);
    CHECK(one.out.host()[0] == record);
    CHECK(status.host().code() == gpu::status_code::token_range);
    CHECK(status.host().index() == first);
  }

  TEST_CASE("no turns; bad sizes throw with nothing written") {
    opening_case<std::int64_t> const one{5};
    side_stream const stream;
    auto const prefix = on_device(std::vector<std::int64_t>{10});
    gpu::metrics::opening_deviation<std::int64_t>({}, {}, {}, prefix.view(), {}, {}, {}, one.out.span(), nullptr,
                                                  stream);
    stream.wait();
    CHECK(one.out.host()[0] == opening_record{});

    std::size_t const turns = one.begin.size();
    one.flags.fill(0x42);
    auto const untouched = one.flags.host();
    auto const call = [&](gpu::rollout_view const& view, std::size_t mask, std::size_t prefix_length,
                          std::size_t reasons, std::size_t flags, std::size_t out) {
      gpu::metrics::opening_deviation(view, one.device_tokens.view(), one.device_mask.view().first(mask),
                                      prefix.view().first(prefix_length), one.device_reasons.view().first(reasons), {},
                                      one.flags.span().first(flags), one.out.span().first(out), nullptr, stream);
    };
    std::size_t const tokens = one.tokens.size();
    auto const view = one.device_view();
    auto shorter = view;
    shorter.turn_end = shorter.turn_end.first(turns - 1);
    CHECK_THROWS_AS(call(shorter, tokens, 1, turns, turns, 1), turnwise::precondition_error);
    CHECK_THROWS_AS(call(view, tokens - 1, 1, turns, turns, 1), turnwise::precondition_error);
    CHECK_THROWS_AS(call(view, tokens, 0, turns, turns, 1), turnwise::precondition_error);
    CHECK_THROWS_AS(call(view, tokens, 1, turns - 1, turns, 1), turnwise::precondition_error);
    CHECK_THROWS_AS(call(view, tokens, 1, turns, turns - 1, 1), turnwise::precondition_error);
    CHECK_THROWS_AS(call(view, tokens, 1, turns, turns, 0), turnwise::precondition_error);
    stream.wait();
    CHECK(same_bits(one.flags.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace opening_deviation_test

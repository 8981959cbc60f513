#include "support/gpu_batches.cuh"

#include <turnwise/gpu/advantage/remax.cuh>

#include <doctest/doctest.h>

#include <optional>
#include <span>
#include <vector>

namespace remax_test {

using namespace support;
using turnwise::precondition_error;

namespace {

/// Returns of a batch, and greedy returns of other magnitudes; garbage where the turn is invalid.
template <typename T>
struct greedy_case : returns_case<T> {
  std::vector<T> greedy;

  explicit greedy_case(std::uint64_t seed) : returns_case<T>(seed), greedy(this->batch.turns()) {
    integers random{seed ^ 0x9eed};
    for (std::size_t s = 0; s < greedy.size(); ++s)
      greedy[s] = turnwise::is_valid(this->reasons[s]) ? turnwise::test::uneven_number<T>(random)
                                                       : std::numeric_limits<T>::quiet_NaN();
  }
};

}  // namespace

TEST_SUITE("gpu/advantage/remax" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, on a stream, in a graph and in place", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(10); ++seed) {
      CAPTURE(seed);
      greedy_case<T> const one{seed};
      std::vector<T> expected(one.greedy.size());
      turnwise::advantage::remax(one.turn_return, one.greedy, one.reasons, std::span{expected});
      auto const returns = on_device(one.turn_return);
      auto const greedy = on_device(one.greedy);
      auto const reasons = on_device(one.reasons);
      device_array<T> const advantage{expected.size()};
      device_status const status;
      on_stream_and_in_graph([&] { fill_bytes(advantage, 0xa5); },
                             [&](cuda::stream_ref stream) {
                               gpu::advantage::remax(returns.view(), greedy.view(), reasons.view(), advantage.span(),
                                                     status.get(), stream);
                             },
                             [&] {
                               CHECK(status.ok());
                               CHECK(same_bits(advantage.host(), expected));
                             });
      side_stream const stream;
      gpu::advantage::remax(returns.view(), greedy.view(), reasons.view(), returns.span(), status.get(), stream);
      stream.wait();
      CHECK(same_bits(returns.host(), expected));
    }
  }

  TEST_CASE_TEMPLATE("bad content and bad sizes; no turns", T, float, double) {
    greedy_case<T> one{8};
    std::size_t const turns = one.greedy.size();
    auto excluded = one.reasons;
    std::optional<std::int64_t> first;
    for (std::size_t s = 5; s < turns; s += 17) {
      (s % 2 == 0 ? one.greedy : one.turn_return)[s] =
          s % 3 == 0 ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::max();
      excluded[s] |= turnwise::reason::invalid;
      if (!first && turnwise::is_valid(one.reasons[s])) first = static_cast<std::int64_t>(s);
    }
    REQUIRE(first);
    std::vector<T> expected(turns);
    turnwise::advantage::remax(one.turn_return, one.greedy, excluded, std::span{expected});
    auto const returns = on_device(one.turn_return);
    auto const greedy = on_device(one.greedy);
    auto const reasons = on_device(one.reasons);
    device_array<T> const advantage{turns};
    device_status const status;
    side_stream const stream;
    auto const call = [&](auto of_turn, auto of_greedy, auto flags, auto out) {
      gpu::advantage::remax(of_turn, of_greedy, flags, out, status.get(), stream);
    };
    call(returns.view(), greedy.view(), reasons.view(), advantage.span());
    stream.wait();
    CHECK(same_bits(advantage.host(), expected));
    CHECK(status.host().code() == gpu::status_code::turn_return);
    CHECK(status.host().index() == *first);

    auto const shorter = [](auto span) { return span.first(span.size() - 1); };
    CHECK_THROWS_AS(call(shorter(returns.view()), greedy.view(), reasons.view(), advantage.span()), precondition_error);
    CHECK_THROWS_AS(call(returns.view(), shorter(greedy.view()), reasons.view(), advantage.span()), precondition_error);
    CHECK_THROWS_AS(call(returns.view(), greedy.view(), shorter(reasons.view()), advantage.span()), precondition_error);
    CHECK_THROWS_AS(call(returns.view(), greedy.view(), reasons.view(), shorter(advantage.span())), precondition_error);
    stream.wait();
    CHECK(same_bits(advantage.host(), expected));
    call(returns.view().first(0), greedy.view().first(0), reasons.view().first(0), advantage.span().first(0));
    stream.wait();
    CHECK(gpu::advantage::remax_workspace_bytes == 0);
  }

}  // TEST_SUITE

}  // namespace remax_test

#include "support/gpu_batches.cuh"

#include <turnwise/gpu/advantage/whiten.cuh>

#include <doctest/doctest.h>

#include <optional>

namespace whiten_test {

using namespace support;
using gpu::status_code;
using turnwise::exact_sum;
using turnwise::advantage::baseline_members;
using turnwise::advantage::epsilon_place;
using turnwise::advantage::whiten_moments;
using turnwise::advantage::whiten_options;

namespace {

std::vector<std::int64_t> random_weights(std::uint64_t seed, std::size_t turns) {
  integers random{seed + 7};
  std::vector<std::int64_t> weight;
  for (std::size_t s = 0; s < turns; ++s)
    weight.push_back(random.below(random.below(9) == 0 ? turnwise::advantage::most_weight : 3000));
  return weight;
}

template <typename T>
void compare(returns_case<T> const& one, std::vector<std::int64_t> const& weight, whiten_options const& options) {
  std::size_t const turns = one.turn_return.size();
  std::vector<T> expected(turns);
  turnwise::advantage::whiten(one.turn_return, weight, one.reasons, options, std::span{expected});
  auto const returns = on_device(one.turn_return);
  auto const weights = on_device(weight);
  auto const reasons = on_device(one.reasons);
  device_array<T> const advantage{turns};
  exact_workspace const memory{gpu::advantage::whiten_workspace_bytes()};
  device_status const status;
  on_stream_and_in_graph([&] { fill_bytes(advantage, 0xa5); },
                         [&](cuda::stream_ref stream) {
                           gpu::advantage::whiten(returns.view(), weights.view(), reasons.view(), options,
                                                  advantage.span(), status.get(), memory.whole(), stream);
                         },
                         [&] {
                           CHECK(status.ok());
                           CHECK(same_bits(advantage.host(), expected));
                         });
}

}  // namespace

TEST_SUITE("gpu/advantage/whiten" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, all options", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
      returns_case<T> const one{seed};
      auto const weight = random_weights(seed, one.turn_return.size());
      for (auto const& options : {whiten_options{}, whiten_options::verl(), whiten_options::open_rlhf(),
                                  whiten_options{0, 0, epsilon_place::outside, baseline_members::kept}}) {
        CAPTURE(seed);
        compare(one, {}, options);
        compare(one, weight, options);
      }
    }
  }

  TEST_CASE_TEMPLATE("equal values, one turn, no reasons: 0; in place", T, float, double) {
    side_stream const stream;
    exact_workspace const memory{gpu::advantage::whiten_workspace_bytes()};
    for (std::size_t const n : {1u, 2u, 7u, 1000u}) {
      auto const values = on_device(std::vector<T>(n, static_cast<T>(0.1)));
      gpu::advantage::whiten(values.view(), {}, {}, {.epsilon = 0}, values.span(), nullptr, memory.whole(), stream);
      stream.wait();
      CHECK(same_bits(values.host(), std::vector<T>(n)));
    }
    gpu::advantage::whiten<T>({}, {}, {}, {}, {}, nullptr, memory.whole(), stream);
  }

  TEST_CASE("shards on the device, records joined as integers: the bits of the whole batch") {
    returns_case<double> const one{10};
    std::size_t const turns = one.turn_return.size();
    auto const weight = random_weights(10, turns);
    whiten_options const options = whiten_options::verl();
    std::vector<double> expected(turns);
    turnwise::advantage::whiten(one.turn_return, weight, one.reasons, options, std::span{expected});
    auto const returns = on_device(one.turn_return);
    auto const weights = on_device(weight);
    auto const reasons = on_device(one.reasons);
    device_array<double> const advantage{turns};
    side_stream const stream;
    for (std::size_t const shards : {1u, 2u, 8u}) {
      auto const cut = [&](auto span, std::size_t k) {
        return span.subspan(turns * k / shards).first(turns * (k + 1) / shards - turns * k / shards);
      };
      whiten_moments all;
      exact_sum squares;
      for (std::size_t k = 0; k < shards; ++k) {
        device_array<whiten_moments> const record{1};
        fill_bytes(record, 0x77);
        gpu::advantage::whiten_sum(cut(returns.view(), k), cut(weights.view(), k), cut(reasons.view(), k), options,
                                   record.span(), nullptr, stream);
        stream.wait();
        all += record.host()[0];
      }
      auto const device_all = on_device(std::vector<whiten_moments>{all});
      for (std::size_t k = 0; k < shards; ++k) {
        device_array<exact_sum> const record{1};
        fill_bytes(record, 0x77);
        gpu::advantage::whiten_squares(cut(returns.view(), k), cut(weights.view(), k), cut(reasons.view(), k),
                                       device_all.view(), options, record.span(), nullptr, stream);
        stream.wait();
        squares += record.host()[0];
      }
      auto const device_squares = on_device(std::vector<exact_sum>{squares});
      fill_bytes(advantage, 0xa5);
      for (std::size_t k = 0; k < shards; ++k)
        gpu::advantage::whiten_apply(cut(returns.view(), k), cut(weights.view(), k), cut(reasons.view(), k),
                                     device_all.view(), device_squares.view(), options, cut(advantage.span(), k),
                                     nullptr, stream);
      stream.wait();
      CHECK(same_bits(advantage.host(), expected));

      // The host's records mean the same.
      auto const of_host = turnwise::advantage::whiten_sum<double>(one.turn_return, weight, one.reasons, options);
      CHECK(of_host.sum.value() == all.sum.value());
      CHECK(of_host.weight == all.weight);
      CHECK(of_host.members == all.members);
    }
  }

  TEST_CASE_TEMPLATE("a bad return or weight is reported, and its turn acts as invalid", T, float, double) {
    returns_case<T> one{8};
    std::size_t const turns = one.turn_return.size();
    auto weight = random_weights(8, turns);
    auto excluded = one.reasons;
    std::optional<std::int64_t> first_return, first_weight;
    for (std::size_t s = 5; s < turns; s += 17) {
      bool const of_weight = s % 3 == 0;
      if (turnwise::is_valid(one.reasons[s])) {
        auto& first = of_weight ? first_weight : first_return;
        if (!first) first = static_cast<std::int64_t>(s);
      }
      if (of_weight)
        weight[s] = s % 2 == 0 ? -1 : turnwise::advantage::most_weight + 1;
      else
        one.turn_return[s] = s % 2 == 0 ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
      excluded[s] |= turnwise::reason::invalid;
    }
    std::vector<T> expected(turns);
    turnwise::advantage::whiten(one.turn_return, weight, excluded, {}, std::span{expected});
    auto const reasons = on_device(one.reasons);
    auto const weights = on_device(weight);
    device_array<T> const advantage{turns};
    exact_workspace const memory{gpu::advantage::whiten_workspace_bytes()};
    side_stream const stream;
    device_status const status;
    auto const call = [&](std::vector<T> const& values) {
      auto const returns = on_device(values);
      gpu::advantage::whiten(returns.view(), weights.view(), reasons.view(), {}, advantage.span(), status.get(),
                             memory.whole(), stream);
      stream.wait();
    };
    call(one.turn_return);
    CHECK(same_bits(advantage.host(), expected));
    REQUIRE(first_return);
    REQUIRE(first_weight);
    CHECK(status.host().code() == status_code::turn_return);
    CHECK(status.host().index() == *first_return);
    status.clear();
    call(std::vector<T>(turns, T{1}));
    CHECK(status.host().code() == status_code::weight);
    CHECK(status.host().index() == *first_weight);
  }

  TEST_CASE("bad sizes and options, a workspace one byte short: throw with nothing written") {
    returns_case<double> const one{3};
    std::size_t const turns = one.turn_return.size();
    auto const returns = on_device(one.turn_return);
    auto const reasons = on_device(one.reasons);
    auto const weights = on_device(random_weights(3, turns));
    device_array<double> const advantage{turns};
    fill_bytes(advantage, 0x42);
    auto const untouched = advantage.host();
    exact_workspace const memory{gpu::advantage::whiten_workspace_bytes()};
    side_stream const stream;
    auto const call = [&](std::size_t weight_size, std::size_t reasons_size, std::size_t outputs,
                          whiten_options const& options, gpu::workspace const& scratch) {
      gpu::advantage::whiten(returns.view(), weights.view().first(weight_size), reasons.view().first(reasons_size),
                             options, advantage.span().first(outputs), nullptr, scratch, stream);
    };
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call(turns - 1, turns, turns, {}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(turns, turns - 1, turns, {}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(turns, turns, turns - 1, {}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(turns, turns, turns, {.ddof = 2}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(turns, turns, turns, {.epsilon = -1}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(turns, turns, turns, {}, memory.short_by_one()), precondition_error);
    device_array<whiten_moments> const record{1};
    CHECK_THROWS_AS(gpu::advantage::whiten_sum(returns.view(), {}, {}, {}, record.span().first(0), nullptr, stream),
                    precondition_error);
    device_array<exact_sum> const squares{1};
    CHECK_THROWS_AS(gpu::advantage::whiten_squares(returns.view(), {}, {}, {}, {}, squares.span(), nullptr, stream),
                    precondition_error);
    stream.wait();
    CHECK(same_bits(advantage.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace whiten_test

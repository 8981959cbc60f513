#include "support/gpu_batches.cuh"

#include <turnwise/gpu/metrics/gradient_norm.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace gradient_norm_test {

using namespace support;
using turnwise::metrics::gradient_norm_options;
using turnwise::metrics::gradient_norm_record;
using turnwise::metrics::norm_kind;

namespace {

/// Arrays on the host, and on the device `shift` elements from an aligned address.
template <typename T>
struct gradient_case {
  std::vector<std::vector<T>> host;
  std::vector<std::unique_ptr<device_array<T>>> memory;
  std::vector<gpu::device_span<T const>> device;

  void add(std::vector<T> const& values, std::size_t shift) {
    std::vector<T> shifted(shift + values.size(), static_cast<T>(1e4f));  // not to be read
    std::copy(values.begin(), values.end(), shifted.begin() + static_cast<std::ptrdiff_t>(shift));
    memory.push_back(std::make_unique<device_array<T>>(std::span<T const>{shifted}));
    device.push_back(gpu::device_span<T const>{memory.back()->span()}.subspan(shift));
    host.push_back(values);
  }
  [[nodiscard]] gradient_norm_record expected(gradient_norm_options const& options) const {
    std::vector<std::span<T const>> const spans(host.begin(), host.end());
    return turnwise::metrics::gradient_norm<T>(spans, options);
  }
};

template <typename T>
std::vector<T> gradients(std::size_t count, std::uint64_t seed) {
  integers random{seed};
  std::vector<T> result;
  for (std::size_t i = 0; i < count; ++i)
    result.push_back(static_cast<T>(
        std::ldexp(static_cast<float>(random.below(1 << 24) - (1 << 23)), static_cast<int>(random.below(12)) - 30)));
  return result;
}

template <typename T>
void compare(gradient_case<T> const& one, gradient_norm_options const& options) {
  gpu::metrics::gradient_entries<T> const entries{one.device};
  auto const arrays = on_device(entries.arrays);
  gpu::metrics::gradient_list<T> const list{arrays.view(), entries.chunks};
  device_array<gradient_norm_record> const record{1};
  exact_workspace const memory{gpu::metrics::gradient_norm_workspace_bytes(entries.chunks)};
  auto const expected = one.expected(options);
  on_stream_and_in_graph([&] { fill_bytes(record, 0xa5); },
                         [&](cuda::stream_ref stream) {
                           gpu::metrics::gradient_norm<T>(list, options, record.span().data(), memory.whole(), stream);
                         },
                         [&] {
                           auto const got = record.host()[0];
                           CHECK(got.sums.squares == expected.sums.squares);
                           CHECK(got == expected);
                         });
}

}  // namespace

TEST_SUITE("gpu/metrics/gradient_norm" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits: sizes around chunks and lanes, aligned or not", T, float, double, __half,
                     __nv_bfloat16) {
    gradient_case<T> one;
    std::uint64_t seed = 1;
    for (std::size_t const size : {0u, 1u, 7u, 2047u, 2048u, 2049u, 0u, 65535u, 65536u, 65537u, 300'000u})
      for (std::size_t const shift : {0u, 1u, 3u}) one.add(gradients<T>(size, ++seed), shift);
    for (norm_kind const kind : {norm_kind::l2, norm_kind::infinity})
      for (double const max_norm : {1e-3, 1e30, std::numeric_limits<double>::infinity()})
        compare(one, {.kind = kind, .max_norm = max_norm});
    for (std::size_t const only : {0u, 5u, 32u}) {
      gradient_case<T> single;
      single.add(one.host[only], 0);
      compare(single, {.max_norm = 0.5});
    }
  }

  TEST_CASE("many chunks, and no arrays") {
    gradient_case<float> one;
    for (int i = 0; i < 3; ++i) one.add(gradients<float>(1'000'000, 90 + static_cast<std::uint64_t>(i)), 0);
    for (int i = 0; i < 2500; ++i) one.add(gradients<float>(3, 7), 0);  // more chunks than lanes
    compare(one, {.max_norm = 1});
    compare(gradient_case<float>{}, {.max_norm = 1});
  }

  TEST_CASE_TEMPLATE("NaN and infinite elements anywhere: counted, no step", T, float, double, __half, __nv_bfloat16) {
    auto values = gradients<T>(70'000, 5);
    for (std::size_t const at : {0u, 2047u, 65'535u, 65'536u, 69'999u})
      values[at] = static_cast<T>(at % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                              : -std::numeric_limits<float>::infinity());
    gradient_case<T> one;
    one.add(values, 0);
    one.add(gradients<T>(10, 6), 0);
    auto const expected = one.expected({});
    CHECK(expected.sums.non_finite == 5);
    compare(one, {});
    compare(one, {.kind = norm_kind::infinity, .max_norm = 1});
  }

  TEST_CASE("doubles whose squares overflow") {
    gradient_case<double> one;
    one.add({1e200, -3}, 0);
    compare(one, {.max_norm = 1});
    compare(one, {.kind = norm_kind::infinity, .max_norm = 1});
  }

  TEST_CASE("doubles whose squares underflow, among others and alone") {
    gradient_case<double> alone, among;
    auto values = gradients<double>(200'000, 8);
    for (double& value : values) value = std::ldexp(value, -600);
    for (std::size_t const shift : {0u, 1u}) {
      alone.add(values, shift);
      among.add(values, shift);
    }
    for (std::size_t i = 0; i < values.size(); i += 3) values[i] = std::ldexp(values[i], i % 2 == 0 ? 160 : 600);
    among.add(values, 0);
    compare(alone, {.max_norm = 1e-200, .epsilon = 0});
    compare(among, {.max_norm = 1});
    CHECK(alone.expected({}).norm > 0);
  }

  TEST_CASE("parts join, in place too") {
    std::vector<gradient_norm_record> const parts{{.sums = {9, 3, 0}}, {.sums = {16, 4, 0}}, {.sums = {144, 12, 0}}};
    auto const memory = on_device(parts);
    gradient_norm_options const options{.max_norm = 6.5};
    side_stream const stream;
    gpu::metrics::join_gradient_norms(memory.view(), options, memory.span().data(), stream);
    stream.wait();
    CHECK(memory.host()[0] == turnwise::metrics::join_gradient_norms(parts, options));
    CHECK(memory.host()[0].norm == 13);
    std::vector<gradient_norm_record> const tiny{{.sums = {0, 0x3p-900, 0, 0x9p-600}},
                                                 {.sums = {0, 0x4p-900, 0, 0x10p-600}}};
    auto const of_tiny = on_device(tiny);
    gpu::metrics::join_gradient_norms(of_tiny.view(), options, memory.span().data(), stream);
    stream.wait();
    CHECK(memory.host()[0] == turnwise::metrics::join_gradient_norms(tiny, options));
    CHECK(memory.host()[0].norm == 0x5p-900);
  }

  TEST_CASE("bad options, lists and workspaces throw, and nothing is written") {
    gradient_case<float> one;
    one.add(gradients<float>(100'000, 3), 0);
    gpu::metrics::gradient_entries<float> const entries{one.device};
    auto const arrays = on_device(entries.arrays);
    device_array<gradient_norm_record> const record{1};
    fill_bytes(record, 0x5a);
    auto const untouched = record.host();
    exact_workspace const memory{gpu::metrics::gradient_norm_workspace_bytes(entries.chunks)};
    side_stream const stream;
    auto const throws = [&](gpu::metrics::gradient_list<float> const& list, gradient_norm_options const& options,
                            gpu::workspace const& scratch) {
      CHECK_THROWS_AS(gpu::metrics::gradient_norm<float>(list, options, record.span().data(), scratch, stream),
                      turnwise::precondition_error);
    };
    throws({arrays.view(), entries.chunks}, {.max_norm = 0}, memory.whole());
    throws({arrays.view(), entries.chunks}, {.epsilon = -1}, memory.whole());
    throws({arrays.view(), 0}, {}, memory.whole());
    throws({{}, 2}, {}, memory.whole());
    // the workspace's blocks are of 256 bytes; 2 chunks fit in one, so a list of that many more does not
    throws({arrays.view(), 1000}, {}, memory.whole());
    throws({arrays.view(), entries.chunks}, {}, memory.short_by_one());
    CHECK_THROWS_AS(gpu::metrics::join_gradient_norms(record.view(), {.max_norm = -1}, record.span().data(), stream),
                    turnwise::precondition_error);
    stream.wait();
    CHECK(std::memcmp(record.host().data(), untouched.data(), sizeof(gradient_norm_record)) == 0);
  }

}  // TEST_SUITE

}  // namespace gradient_norm_test

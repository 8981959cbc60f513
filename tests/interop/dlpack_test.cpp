#include "support/message_of.hpp"

#include <turnwise/core/rollout.hpp>
#include <turnwise/interop/dlpack.hpp>
#include <turnwise/logprob/token_logprob.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>

#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

using namespace turnwise;
using interop::dlpack_logits;
using interop::dlpack_span;
using support::message_of;

namespace {

constexpr DLDataType float32{kDLFloat, 32, 1};

/// A tensor with its shape and strides.
struct made_tensor {
  std::vector<std::int64_t> shape, strides;
  DLTensor tensor{};

  made_tensor(void* data, DLDataType type, std::vector<std::int64_t> sizes, std::vector<std::int64_t> steps = {})
      : shape(std::move(sizes)), strides(std::move(steps)) {
    tensor.data = data;
    tensor.device = {kDLCPU, 0};
    tensor.ndim = static_cast<int>(shape.size());
    tensor.dtype = type;
    tensor.shape = shape.data();
    tensor.strides = strides.empty() ? nullptr : strides.data();
  }
  made_tensor(made_tensor const&) = delete;
};

std::vector<float> counting(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

}  // namespace

TEST_SUITE("interop/dlpack") {
  TEST_CASE("a tensor without gaps is one span over the same memory") {
    auto values = counting(6);
    for (auto const& strides : {std::vector<std::int64_t>{}, {3, 1}}) {
      made_tensor const t(values.data(), float32, {2, 3}, strides);
      auto const span = dlpack_span<float const>(t.tensor, "rewards");
      CHECK(span.data() == values.data());
      CHECK(span.size() == 6);
    }
    made_tensor const column(values.data(), float32, {6, 1, 1}, {1, 77, -5});  // strides of size 1 do not matter
    CHECK(dlpack_span<float const>(column.tensor, "rewards").size() == 6);
    made_tensor const scalar(values.data(), float32, {});
    CHECK(dlpack_span<float const>(scalar.tensor, "rewards").size() == 1);
  }

  TEST_CASE("writes reach the tensor, behind its byte offset") {
    auto values = counting(4);
    made_tensor t(values.data(), float32, {2});
    t.tensor.byte_offset = 2 * sizeof(float);
    auto const span = dlpack_span<float>(t.tensor, "out");
    span[1] = 9;
    CHECK(values == std::vector<float>{0, 1, 2, 9});
    DLManagedTensor const managed{t.tensor, nullptr, nullptr};
    CHECK(dlpack_span<float>(managed, "out").data() == values.data() + 2);
  }

  TEST_CASE("without elements there is an empty span, also of null data and any strides") {
    for (auto const& strides : {std::vector<std::int64_t>{}, {1, 8}}) {
      made_tensor const t(nullptr, float32, {0, 3}, strides);
      CHECK(dlpack_span<float const>(t.tensor, "rewards").empty());
    }
    made_tensor const rows(nullptr, float32, {0, 5});
    auto const logits = dlpack_logits<float const>(rows.tensor, "logits");
    CHECK(logits.values.empty());
    CHECK(logits.layout.rows == 0);
  }

  TEST_CASE_TEMPLATE("each number type is taken as itself and nothing else", T, float, double, Eigen::half,
                     Eigen::bfloat16, std::int32_t, std::int64_t, std::uint8_t, std::uint32_t, bool) {
    std::array<double, 2> memory{};
    struct known_type {
      DLDataType type;
      bool same;
    };
    std::vector<known_type> const types{{{kDLFloat, 32, 1}, std::same_as<T, float>},
                                        {{kDLFloat, 64, 1}, std::same_as<T, double>},
                                        {{kDLFloat, 16, 1}, std::same_as<T, Eigen::half>},
                                        {{kDLBfloat, 16, 1}, std::same_as<T, Eigen::bfloat16>},
                                        {{kDLInt, 32, 1}, std::same_as<T, std::int32_t>},
                                        {{kDLInt, 64, 1}, std::same_as<T, std::int64_t>},
                                        {{kDLInt, 16, 1}, false},
                                        {{kDLUInt, 8, 1}, std::same_as<T, std::uint8_t>},
                                        {{kDLUInt, 32, 1}, std::same_as<T, std::uint32_t>},
                                        {{6, 8, 1}, std::same_as<T, bool> || std::same_as<T, std::uint8_t>},
                                        {{kDLComplex, 64, 1}, false},
                                        {{kDLFloat, 32, 4}, false}};
    for (auto const& known : types) {
      made_tensor const t(memory.data(), known.type, {1});
      CAPTURE(int{known.type.code});
      CAPTURE(int{known.type.bits});
      CHECK((message_of([&] { return dlpack_span<T const>(t.tensor, "x"); }) == "no error") == known.same);
    }
  }

  TEST_CASE("what does not fit is refused, by name") {
    auto values = counting(64);
    auto const refusal = [&](made_tensor const& t) {
      return message_of([&] { return dlpack_span<float>(t.tensor, "old_logprob"); });
    };
    auto const tensor = [&](auto... rest) { return made_tensor(values.data(), float32, rest...); };
    using sizes = std::vector<std::int64_t>;

    CHECK(refusal(made_tensor(values.data(), {kDLFloat, 64, 1}, {2})) ==
          "dlpack_span: old_logprob has elements of type float64, expected float32");
    CHECK(refusal(made_tensor(values.data(), {kDLBfloat, 16, 2}, {2})) ==
          "dlpack_span: old_logprob has elements of type bfloat16 x 2 lanes, expected float32");
    CHECK(refusal(made_tensor(values.data(), {14, 8, 1}, {2})) ==
          "dlpack_span: old_logprob has elements of type type code 14, bits 8, expected float32");
    CHECK(refusal(tensor(sizes{2, 3}, sizes{4, 1})) ==
          "dlpack_span: old_logprob is not contiguous: dimension 0 has stride 4, expected 3");
    CHECK(refusal(tensor(sizes{2, 3}, sizes{1, 2})) ==
          "dlpack_span: old_logprob is not contiguous: dimension 1 has stride 2, expected 1");
    CHECK(refusal(tensor(sizes{5}, sizes{-1})) ==
          "dlpack_span: old_logprob is not contiguous: dimension 0 has stride -1, expected 1");
    CHECK(refusal(tensor(sizes{5}, sizes{0})) ==
          "dlpack_span: old_logprob is not contiguous: dimension 0 has stride 0, expected 1");
    CHECK(refusal(tensor(sizes{2, -3})) == "dlpack_span: old_logprob has size -3 in dimension 1");
    CHECK(refusal(tensor(sizes{std::int64_t{1} << 40, std::int64_t{1} << 40})) ==
          "dlpack_span: old_logprob has more elements than memory can hold");
    CHECK(refusal(made_tensor(nullptr, float32, {2})) == "dlpack_span: old_logprob has 2 elements and no data");

    made_tensor odd(values.data(), float32, {2});
    odd.tensor.byte_offset = 2;
    CHECK(refusal(odd) == "dlpack_span: old_logprob begins at an address that is no multiple of 4");
    odd.tensor.byte_offset = std::uint64_t{0} - 4;  // before the data, by wrapping around
    CHECK(refusal(odd) == "dlpack_span: old_logprob reaches beyond the end of memory");
    odd.tensor.byte_offset = 0;
    odd.tensor.device.device_type = kDLCUDA;
    CHECK(refusal(odd) == "dlpack_span: old_logprob is on cuda:0, expected host memory");
    odd.tensor.device.device_type = kDLVulkan;
    CHECK(refusal(odd) == "dlpack_span: old_logprob is on DLPack device type 7, expected host memory");
    odd.tensor.device.device_type = kDLCUDAHost;  // pinned host memory is host memory
    CHECK(refusal(odd) == "no error");
    odd.tensor.ndim = -1;
    CHECK(refusal(odd) == "dlpack_span: old_logprob has -1 dimensions");
    odd.tensor.ndim = 1;
    odd.tensor.shape = nullptr;
    CHECK(refusal(odd) == "dlpack_span: old_logprob has no shape");
  }

  TEST_CASE("rows of logits keep their distance") {
    auto values = counting(64);
    auto const rows = [&](std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
      made_tensor const t(values.data(), float32, std::move(shape), std::move(strides));
      return dlpack_logits<float const>(t.tensor, "logits");
    };
    struct expected {
      std::vector<std::int64_t> shape, strides;
      std::size_t extent;
    };
    for (auto const& each : {expected{{2, 3, 4}, {}, 24},
                             {{2, 3, 4}, {24, 8, 1}, 44},
                             {{2, 3, 4}, {4, 16, 1}, 40},
                             {{2, 1, 4}, {20, 99, 1}, 24},
                             {{1, 3, 4}, {99, 5, 1}, 14},
                             {{3, 4}, {10, 1}, 24},
                             {{3, 4}, {}, 12},
                             {{1, 4}, {0, 1}, 4},
                             {{3, 1}, {7, 0}, 15}}) {
      auto const& [shape, strides, extent] = each;
      auto const got = rows(shape, strides);
      auto const at = [&sizes = each.shape](std::size_t d) { return static_cast<std::size_t>(sizes[d]); };
      std::size_t const inner = at(shape.size() - 2);
      REQUIRE(got.layout.vocabulary == at(shape.size() - 1));
      REQUIRE(got.layout.rows == (shape.size() == 3 ? at(0) : 1) * inner);
      CHECK(got.values.size() == extent);
      for (std::size_t row = 0; row < got.layout.rows; ++row) {  // by the definition of a strided tensor
        std::size_t const width = at(shape.size() - 1);
        std::size_t const row_step = strides.empty() ? width : static_cast<std::size_t>(strides[shape.size() - 2]);
        std::size_t const batch_step = strides.empty() ? width * inner : static_cast<std::size_t>(strides[0]);
        CHECK(got.layout.offset(row) == row / inner * (shape.size() == 3 ? batch_step : 0) + row % inner * row_step);
      }
    }
  }

  TEST_CASE("logits in a wider buffer give their log-probs") {
    std::vector<float> buffer(2 * 8, NAN);  // two rows of 2 logits, NaN between them
    buffer[0] = 0, buffer[1] = std::log(3.0f), buffer[8] = std::log(7.0f), buffer[9] = 0;
    made_tensor const t(buffer.data(), float32, {2, 2}, {8, 1});
    auto const rows = dlpack_logits<float const>(t.tensor, "logits");
    std::array<std::int64_t, 2> const ids{1, 1};
    std::array<double, 2> logprob{};
    logprob::token_logits<float, std::int64_t> const logits{rows.values, rows.layout, ids};
    logprob::token_logprob(logits, {}, logprob::token_logprob_outputs<double>{.logprob = std::span<double>{logprob}});
    CHECK(logprob[0] == doctest::Approx(std::log(0.75)));
    CHECK(logprob[1] == doctest::Approx(std::log(0.125)));
  }

  TEST_CASE("logits that are no rows are refused, by name") {
    auto values = counting(64);
    auto const refusal = [&](std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
      made_tensor const t(values.data(), float32, std::move(shape), std::move(strides));
      return message_of([&] { return dlpack_logits<float const>(t.tensor, "logits").values; });
    };
    CHECK(refusal({8}, {1}) ==
          "dlpack_logits: logits has 1 dimensions, expected [rows, vocabulary] or [batch, rows, vocabulary]");
    CHECK(refusal({4, 8}, {1, 4}) == "dlpack_logits: logits has stride 4 in dimension 1, expected 1");
    CHECK(refusal({4, 8}, {0, 1}) == "dlpack_logits: logits has stride 0 in dimension 0, expected at least 1");
    CHECK(refusal({2, 4, 8}, {-32, 8, 1}) ==
          "dlpack_logits: logits has stride -32 in dimension 0, expected at least 1");
    CHECK(refusal({4, std::int64_t{1} << 62}, {std::int64_t{1} << 62, 1}) ==
          "dlpack_logits: logits has more elements than memory can hold");
  }

  TEST_CASE("a span becomes a tensor over the same memory, and comes back") {
    auto values = counting(6);
    std::array<std::int64_t, 2> shape{2, 3}, strides{};
    DLTensor const tensor = interop::to_dlpack(std::span{values}, shape, strides, "advantage");
    CHECK(tensor.data == values.data());
    CHECK(tensor.device.device_type == kDLCPU);
    CHECK(tensor.ndim == 2);
    CHECK(tensor.shape == shape.data());
    CHECK(tensor.strides == strides.data());
    CHECK(strides == std::array<std::int64_t, 2>{3, 1});
    CHECK(tensor.byte_offset == 0);
    auto const back = dlpack_span<float>(tensor, "advantage");
    CHECK(back.data() == values.data());
    CHECK(back.size() == 6);
    std::vector<std::int64_t> ids{7};
    CHECK(dlpack_span<std::int64_t const>(interop::to_dlpack(std::span{ids}, {}, {}, "ids"), "ids")[0] == 7);
    std::array<std::int64_t, 2> none{0, 5};
    auto const empty = interop::to_dlpack(std::span{values}.first(0), none, strides, "none");
    CHECK(empty.data == nullptr);
    CHECK(dlpack_span<float>(empty, "none").empty());

    auto const refused = [&](std::array<std::int64_t, 2> sizes) {
      return message_of([&] { return interop::to_dlpack(std::span{values}, sizes, strides, "advantage"); });
    };
    CHECK(refused({2, 2}) == "to_dlpack: advantage has 6 elements, its shape 4");
    CHECK(refused({-2, -3}) == "to_dlpack: advantage has size -2 in dimension 0");
    CHECK(message_of([&] { return interop::to_dlpack(std::span{values}, shape, {}, "advantage"); }) ==
          "to_dlpack: strides has 0 elements, expected 2 (one a dimension)");
    CHECK(refused({std::int64_t{1} << 62, 8}).starts_with("to_dlpack: advantage has 6 elements"));
  }

#if !defined(DLPACK_MAJOR_VERSION)
  template <typename T>
  concept becomes_tensor = requires(std::span<T> values, std::span<std::int64_t> shape) {
    interop::to_dlpack(values, shape, shape, "");
  };
  TEST_CASE("without a read-only flag, a span that is only read does not become a tensor") {
    CHECK(becomes_tensor<float>);
    CHECK_FALSE(becomes_tensor<float const>);
  }
#endif
}  // TEST_SUITE

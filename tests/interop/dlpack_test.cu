#include "support/message_of.hpp"

#include <turnwise/gpu/interop/dlpack.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <string>

namespace dlpack_test {

using support::message_of;
using turnwise::gpu::interop::dlpack_logits;
using turnwise::gpu::interop::dlpack_span;

// Descriptors alone: no memory is looked at, so none need exist.
TEST_SUITE("gpu/interop/dlpack") {
  TEST_CASE("a tensor of the stream's device is a device span; others are refused by name") {
    std::array<std::int64_t, 3> shape{2, 3, 4}, strides{24, 8, 1};
    auto* const address = reinterpret_cast<void*>(std::uintptr_t{4096});
    DLTensor t{address, {kDLCUDA, 1}, 3, {kDLBfloat, 16, 1}, shape.data(), nullptr, 2};
    auto const span = dlpack_span<__nv_bfloat16 const>(t, 1, "old_logprob");
    CHECK(reinterpret_cast<std::uintptr_t>(span.data()) == 4098);
    CHECK(span.size() == 24);
    t.strides = strides.data();
    auto const rows = dlpack_logits<__nv_bfloat16>(t, 1, "logits");
    CHECK(rows.values.size() == 44);
    CHECK(rows.layout.offset(4) == 32);

    auto const refusal = [&](int device) {
      return message_of([&] { return dlpack_logits<__nv_bfloat16 const>(t, device, "logits").values; });
    };
    CHECK(refusal(0) == "dlpack_logits: logits is on cuda:1, expected cuda:0");
    t.device.device_type = kDLCUDAManaged;
    CHECK(refusal(0) == "no error");
    t.device.device_type = kDLCPU;
    CHECK(refusal(1) == "dlpack_logits: logits is on cpu, expected cuda:1");
    CHECK(message_of([&] { return dlpack_span<__nv_bfloat16 const>(t, 0, "x"); }) ==
          "dlpack_span: x is on cpu, expected cuda:0");
    t.device = {kDLCUDA, 0};
    CHECK(message_of([&] { return dlpack_span<__half const>(t, 0, "x"); }) ==
          "dlpack_span: x has elements of type bfloat16, expected float16");
  }

  TEST_CASE("a device span becomes a tensor on its device") {
    turnwise::gpu::device_span<float> const span{reinterpret_cast<float*>(std::uintptr_t{4096}), 6};
    std::array<std::int64_t, 2> shape{2, 3}, strides{};
    DLTensor const tensor = turnwise::gpu::interop::to_dlpack(span, shape, strides, 1, "advantage");
    CHECK(tensor.device.device_type == kDLCUDA);
    CHECK(tensor.device.device_id == 1);
    CHECK(dlpack_span<float>(tensor, 1, "advantage").data() == span.data());
    shape[1] = 4;
    CHECK(message_of([&] { return turnwise::gpu::interop::to_dlpack(span, shape, strides, 1, "advantage"); }) ==
          "to_dlpack: advantage has 6 elements, its shape 8");
  }

#if defined(DLPACK_MAJOR_VERSION)
  TEST_CASE("a device span that is only read becomes a read-only tensor") {
    turnwise::gpu::device_span<float const> const span{reinterpret_cast<float const*>(std::uintptr_t{4096}), 6};
    std::array<std::int64_t, 1> shape{6}, strides{};
    auto const managed = turnwise::gpu::interop::to_dlpack(span, shape, strides, 1, "advantage");
    CHECK(managed.flags == DLPACK_FLAG_BITMASK_READ_ONLY);
    CHECK(dlpack_span<float const>(managed, 1, "advantage").data() == span.data());
    CHECK(message_of([&] { return dlpack_span<float>(managed, 1, "advantage"); }) ==
          "dlpack_span: advantage is read-only, but would be written");
  }
#endif
}  // TEST_SUITE

}  // namespace dlpack_test

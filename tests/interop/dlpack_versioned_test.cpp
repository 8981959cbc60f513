// What DLPack 1.0 brought, also under an older header: this file then adds what the library reads of it.
#include <dlpack/dlpack.h>

#include <cstdint>

#ifndef DLPACK_MAJOR_VERSION
#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 0
#define DLPACK_FLAG_BITMASK_READ_ONLY 1UL
struct DLPackVersion {
  std::uint32_t major, minor;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor dl_tensor;
};
#endif
// The other tests of this program may see other versions of these classes.
#define interop interop_versioned
#include <turnwise/interop/dlpack.hpp>

#include "support/message_of.hpp"

#include <doctest/doctest.h>

#include <array>
#include <string>

using support::message_of;
using turnwise::interop::dlpack_logits;
using turnwise::interop::dlpack_span;

namespace {

std::array<std::int64_t, 2> sizes{1, 3}, steps{};
std::array<float, 3> values{1, 2, 3};

DLManagedTensorVersioned of_version(std::uint32_t major, std::uint64_t flags) {
  DLManagedTensorVersioned managed{};
  managed.version = {major, 7};
  managed.flags = flags;
  managed.dl_tensor.data = values.data();
  managed.dl_tensor.device = {kDLCPU, 0};
  managed.dl_tensor.dtype = {kDLFloat, 32, 1};
  managed.dl_tensor.ndim = 2;
  managed.dl_tensor.shape = sizes.data();
  return managed;
}

}  // namespace

TEST_SUITE("interop/dlpack_versioned") {
  TEST_CASE("a read-only tensor is read, not written") {
    auto const managed = of_version(1, DLPACK_FLAG_BITMASK_READ_ONLY);
    CHECK(dlpack_span<float const>(managed, "rewards").data() == values.data());
    CHECK(dlpack_logits<float const>(managed, "logits").layout.vocabulary == 3);
    CHECK(message_of([&] { return dlpack_span<float>(managed, "out"); }) ==
          "dlpack_span: out is read-only, but would be written");
    CHECK(message_of([&] { return dlpack_logits<float>(managed, "logits").values; }) ==
          "dlpack_logits: logits is read-only, but would be written");
  }

  TEST_CASE("a span that is only read becomes a read-only tensor of this version, without a deleter") {
    std::span<float const> const read{values};
    auto const managed = turnwise::interop::to_dlpack(read, sizes, steps, "rewards");
    CHECK(managed.version.major == 1);
    CHECK(managed.flags == DLPACK_FLAG_BITMASK_READ_ONLY);
    CHECK((managed.deleter == nullptr));
    CHECK(managed.dl_tensor.data == values.data());
    CHECK(dlpack_span<float const>(managed, "rewards").size() == 3);
    CHECK(message_of([&] { return dlpack_span<float>(managed, "out"); }) ==
          "dlpack_span: out is read-only, but would be written");
    CHECK(message_of([&] {
            std::array<std::int64_t, 2> four{2, 2};
            return turnwise::interop::to_dlpack(read, four, steps, "rewards");
          }) == "to_dlpack: rewards has 3 elements, its shape 4");
  }

  TEST_CASE("other flags and minor versions do not matter") {
    for (std::uint64_t const flags : {0u, 2u, 4u}) {  // none, copied, padded
      auto const managed = of_version(1, flags);
      CHECK(dlpack_span<float>(managed, "out").data() == values.data());
    }
  }

  TEST_CASE("another major version is refused, to read and to write") {
    for (std::uint32_t const major : {0u, 2u}) {
      auto const managed = of_version(major, 0);
      std::string const expected =
          "dlpack: a tensor of DLPack " + std::to_string(major) + ".7, expected major version 1";
      CHECK(message_of([&] { return dlpack_span<float const>(managed, "rewards"); }) == expected);
      CHECK(message_of([&] { return dlpack_span<float>(managed, "out"); }) == expected);
    }
  }
}  // TEST_SUITE

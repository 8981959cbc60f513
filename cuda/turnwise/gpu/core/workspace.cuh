/// @file
/// Scratch memory that the caller owns, cut into named blocks.
#pragma once

#include <turnwise/core/error.hpp>
#include <turnwise/gpu/core/device_span.cuh>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu {

/// Blocks of a workspace start at multiples of this; so must the workspace.
inline constexpr std::size_t workspace_alignment = 256;

/// Hands out blocks one after the other. Without memory it only adds up sizes, so that one function describes both how
/// much a call needs and where its blocks are.
class workspace {
 public:
  /// Adds up sizes.
  workspace() noexcept = default;
  /// Cuts up `memory`. Throws precondition_error unless it is aligned.
  explicit workspace(device_span<std::byte> memory) : memory_(memory), counts_(false) {
    expects(reinterpret_cast<std::uintptr_t>(memory.data()) % workspace_alignment == 0,
            "workspace: its address must be a multiple of ", workspace_alignment);
  }

  /// The next block; throws precondition_error naming it when the memory ends before it does.
  template <typename T>
  [[nodiscard]] device_span<T> take(std::size_t count, std::string_view block) {
    std::size_t const begin = used_;
    used_ = begin + (count * sizeof(T) + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
    if (counts_) return {nullptr, count};
    expects(used_ <= memory_.size(), "workspace: block ", block, " ends at byte ", used_, ", the workspace has ",
            memory_.size());
    return {reinterpret_cast<T*>(memory_.data() + begin), count};
  }
  /// Bytes taken so far.
  [[nodiscard]] std::size_t used() const noexcept { return used_; }
  /// It only counts what would be taken.
  [[nodiscard]] bool counts() const noexcept { return counts_; }

 private:
  device_span<std::byte> memory_{};
  std::size_t used_ = 0;
  bool counts_ = true;
};

}  // namespace turnwise::gpu

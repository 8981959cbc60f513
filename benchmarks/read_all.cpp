#include "common.hpp"

#include <atomic>
#include <cstring>

namespace turnwise::benchmarks {

std::uint64_t read_all(std::span<float const> a, std::span<float const> b, int threads) {
  using words [[gnu::vector_size(64)]] = std::uint64_t;
  constexpr std::size_t step = sizeof(words) / sizeof(float);
  std::atomic<std::uint64_t> total = 0;
  parallel_for(a.size() / step, std::size_t{1} << 12, threads, [&](std::size_t first, std::size_t last) {
    words sum{};
    for (std::size_t i = first; i < last; ++i) {
      words x, y;
      std::memcpy(&x, a.data() + i * step, sizeof x);
      std::memcpy(&y, b.data() + i * step, sizeof y);
      sum += x ^ y;
    }
    std::uint64_t part = 0;
    for (std::size_t l = 0; l < sizeof(words) / sizeof(std::uint64_t); ++l) part += sum[l];
    total += part;
  });
  return total;
}

}  // namespace turnwise::benchmarks

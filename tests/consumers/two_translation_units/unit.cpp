// Compiled twice, with and without OpenMP.
#include <turnwise/core/parallel_for.hpp>
#include <turnwise/turnwise.hpp>

#include <cstddef>
#include <numeric>
#include <vector>

std::size_t UNIT() {
  std::vector<std::size_t> index(1000);
  turnwise::parallel_for(index.size(), 10, 2, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) index[i] = i;
  });
  return std::accumulate(index.begin(), index.end(), std::size_t{0});
}

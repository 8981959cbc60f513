#pragma once
#include <atomic>
#include <cstddef>
#include <string>

/// What a unit sees of the library.
struct unit_result {
  std::size_t sum;         ///< of 0, ..., 999
  int ranges;              ///< into which parallel_for cut these
  std::string token_loop;  ///< a type whose layout follows the vector registers
};

/// The same type in every unit.
struct add_indices {
  std::atomic<std::size_t>& sum;
  std::atomic<int>& ranges;
  void operator()(std::size_t first, std::size_t last) const {
    for (; first < last; ++first) sum += first;
    ++ranges;
  }
};

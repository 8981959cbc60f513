/// @file
/// The one place where threads are used.
#pragma once

#include <turnwise/core/config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace turnwise {
// Translation units compiled with and without OpenMP must not share one definition.
#ifdef _OPENMP
inline namespace openmp {
#else
inline namespace serial {
#endif

/// Calls body(first, last) on ranges that cover [0, count): of at most `grain` indices each, or one range in one thread.
///
/// @param grain    indices worth a thread's time; no more than that: no second thread.
/// @param threads  most threads to use; 0 = the OpenMP default; without OpenMP the calling thread does all.
/// @param body     must not throw, and must give the same result for any split.
template <typename Body>
void parallel_for(std::size_t count, std::size_t grain, int threads, Body&& body) {
  grain = std::max<std::size_t>(grain, 1);
#ifdef _OPENMP
  auto const ranges = static_cast<std::int64_t>(count / grain + (count % grain != 0));
  int const team = static_cast<int>(std::min<std::int64_t>(threads > 0 ? threads : omp_get_max_threads(), ranges));
  if (team > 1) {
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (std::int64_t range = 0; range < ranges; ++range) {
      std::size_t const first = static_cast<std::size_t>(range) * grain;
      body(first, std::min(first + grain, count));
    }
    return;
  }
#endif
  static_cast<void>(threads);
  if (count > 0) body(std::size_t{0}, count);
}

}  // inline namespace
}  // namespace turnwise

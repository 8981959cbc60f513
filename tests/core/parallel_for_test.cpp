#include <turnwise/core/parallel_for.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <vector>

namespace {

/// Runs parallel_for and says whether every index was covered once, by ranges that are not empty and in bounds.
bool covers_once(std::size_t count, std::size_t grain, int threads) {
  std::vector<std::atomic<int>> visits(count);
  std::atomic<bool> good{true};
  turnwise::parallel_for(count, grain, threads, [&](std::size_t first, std::size_t last) {
    if (first >= last || last > count) {
      good = false;
      return;
    }
    for (std::size_t i = first; i < last; ++i) ++visits[i];
  });
  for (auto const& visit : visits) good = good && visit == 1;
  return good;
}

}  // namespace

TEST_SUITE("core/parallel_for") {
  TEST_CASE("covers every index once, whatever the count, grain and threads") {
    for (std::size_t const grain : {0u, 1u, 2u, 7u, 64u, 1000u})
      for (std::size_t const count :
           {0u, 1u, 2u, 6u, 7u, 8u, 63u, 64u, 65u, 127u, 128u, 129u, 999u, 1000u, 1001u, 10007u})
        for (int const threads : {0, 1, 2, 3, 8, 33}) {
          CAPTURE(grain);
          CAPTURE(count);
          CAPTURE(threads);
          CHECK(covers_once(count, grain, threads));
        }
  }

  TEST_CASE("nothing to do calls nothing") {
    bool called = false;
    for (int const threads : {0, 1, 4})
      turnwise::parallel_for(0, 16, threads, [&](std::size_t, std::size_t) { called = true; });
    CHECK(!called);
  }

#ifdef _OPENMP
  TEST_CASE("with threads, no range is longer than the grain, and no more threads run than were asked for") {
    std::atomic<std::size_t> longest{0};
    std::atomic<int> team{0};
    turnwise::parallel_for(1000, 7, 3, [&](std::size_t first, std::size_t last) {
      if (last - first > longest) longest = last - first;
      team = omp_get_num_threads();
    });
    CHECK(longest <= 7);
    CHECK(team <= 3);
  }
#endif

  TEST_CASE("one thread runs on the caller") {
    int calls = 0;
    std::size_t covered = 0;
    turnwise::parallel_for(100, 10, 1, [&](std::size_t first, std::size_t last) {
      ++calls;
      covered += last - first;
    });
    CHECK(calls >= 1);
    CHECK(covered == 100);
  }

}  // TEST_SUITE

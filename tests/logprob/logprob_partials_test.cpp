#include "logprob/logits.hpp"

#include <turnwise/logprob/logprob_partials.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <string>

namespace {

using namespace turnwise;
using namespace turnwise::logprob;
using test::infinity;
using test::nan_value;

struct results {
  std::vector<double> logprob, entropy, sum_squares;
  std::vector<log_normalizer<double>> normalizer;

  explicit results(std::size_t rows) : logprob(rows, 9), entropy(rows, 9), sum_squares(rows, 9), normalizer(rows) {}
  token_logprob_outputs<double> outputs() { return {logprob, entropy, sum_squares, normalizer}; }
  [[nodiscard]] bool same_bits(results const& other) const {
    auto const same = [](auto const& a, auto const& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    return same(logprob, other.logprob) && same(entropy, other.entropy) && same(sum_squares, other.sum_squares) &&
           same(normalizer, other.normalizer);
  }
};

template <typename L>
std::vector<logprob_partial<double>> gathered(std::vector<L> const& values, std::size_t rows, std::size_t vocabulary,
                                              std::vector<std::int32_t> const& ids,
                                              std::vector<std::size_t> const& cuts,
                                              token_logprob_options const& options,
                                              std::vector<std::uint8_t> const& mask = {}) {
  std::vector<logprob_partial<double>> all;
  for (std::size_t rank = 0; rank + 1 < cuts.size(); ++rank) {
    std::size_t const columns = cuts[rank + 1] - cuts[rank];
    std::vector<logprob_partial<double>> own(partial_tiles(columns, options.tile) * rows);
    token_logits<L, std::int32_t> const shard{
        std::span{values}.subspan(cuts[rank]), {rows, columns, vocabulary}, ids, mask};
    logprob_partials(shard, {cuts[rank], vocabulary}, options, std::span{own});
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace

TEST_SUITE("logprob/logprob_partials") {
  TEST_CASE("CU-11 a rank without the target adds 0 to its logit") {
    std::vector<float> const values{0.5f, 2.0f, -1.0f, 1.0f, 0.0f, 3.0f};
    auto const parts = gathered(values, 1, 6, {1}, {0, 3, 6}, {});
    REQUIRE(parts.size() == 2);
    CHECK(parts[0].target == 2);
    CHECK(parts[1].target == 0);
    results out(1);
    merge_logprob_partials<double>(parts, 1, {}, {}, out.outputs());
    CHECK(std::abs(out.logprob[0] - -1.5028352437086807) < 1e-6);
  }

  TEST_CASE("any number of ranks that cut at tiles gives the bits of one rank") {
    constexpr std::size_t rows = 5, vocabulary = 1000;
    auto const values = test::random_logits<float>(1, rows * vocabulary, 8);
    auto const ids = test::random_ids<std::int32_t>(2, rows, vocabulary);
    for (std::size_t const tile : {1u, 125u, 250u, 300u}) {
      token_logprob_options const options{.temperature = 0.7, .tile = tile};
      results one(rows);
      token_logprob(token_logits<float, std::int32_t>{values, {rows, vocabulary}, ids}, options, one.outputs());
      std::vector<std::vector<std::size_t>> const cuts{{0, 1000}, {0, tile, 1000}, {0, tile, 2 * tile, 3 * tile, 1000}};
      for (auto const& cut : cuts) {
        results many(rows);
        merge_logprob_partials<double>(gathered(values, rows, vocabulary, ids, cut, options), rows, {}, options,
                                       many.outputs());
        CHECK(many.same_bits(one));
      }
    }
  }

  TEST_CASE("cut anywhere: equal within rounding; a shard may be filtered away") {
    auto values = test::random_logits<double>(4, 2 * 60);
    for (std::size_t i = 20; i < 40; ++i) values[i] = -infinity;
    std::vector<std::int32_t> const ids{7, 33};
    results one(2), many(2);
    token_logprob(token_logits<double, std::int32_t>{values, {2, 60}, ids}, {}, one.outputs());
    merge_logprob_partials<double>(gathered(values, 2, 60, ids, {0, 20, 40, 60}, {}), 2, {}, {}, many.outputs());
    for (std::size_t row = 0; row < 2; ++row) {
      CHECK(many.logprob[row] == doctest::Approx(one.logprob[row]).epsilon(1e-13));
      CHECK(many.entropy[row] == doctest::Approx(one.entropy[row]).epsilon(1e-13));
      CHECK(many.sum_squares[row] == doctest::Approx(one.sum_squares[row]).epsilon(1e-13));
      CHECK(many.normalizer[row].maximum == one.normalizer[row].maximum);
    }
  }

  TEST_CASE("bad and masked rows, on whichever rank they are bad") {
    // NaN on one rank, +inf on the other, all filtered, masked.
    std::vector<double> const values{1,         nan_value, 1,         1,         1,         1,         infinity, 1,
                                     -infinity, -infinity, -infinity, -infinity, nan_value, nan_value, 1,        1};
    std::vector<std::int32_t> const ids{0, 0, 0, -100};
    std::vector<std::uint8_t> const mask{1, 1, 1, 0};
    results out(4);
    merge_logprob_partials<double>(gathered(values, 4, 4, ids, {0, 2, 4}, {}, mask), 4, mask, {}, out.outputs());
    for (std::size_t row = 0; row < 3; ++row) CHECK(std::isnan(out.logprob[row]));
    CHECK(out.logprob[3] == 0);
    CHECK(out.entropy[3] == 0);
  }

  TEST_CASE("errors") {
    std::vector<float> const values(8);
    std::vector<std::int32_t> const ids{0, 5};
    std::vector<logprob_partial<double>> parts(2);
    auto const message = [&](auto call) {
      try {
        call();
      } catch (precondition_error const& error) {
        return std::string{error.what()};
      }
      return std::string{};
    };
    auto const partials = [&](vocabulary_shard const& shard, token_logprob_options const& options) {
      return message([&] {
        logprob_partials(token_logits<float, std::int32_t>{values, {2, 4}, ids}, shard, options, std::span{parts});
      });
    };
    CHECK(partials({4, 7}, {}).find("leaves the vocabulary, which has 7") != std::string::npos);
    CHECK(partials({0, 5}, {}).find("ids[1] = 5") != std::string::npos);
    CHECK(partials({4, 8}, {.tile = 3}).find("partials has 2 elements, expected 4") != std::string::npos);
    CHECK(partials({4, 8}, {.temperature = 0}).find("temperature") != std::string::npos);
    CHECK(parts[0].sum == 0);
    CHECK(partials({4, 8}, {}).empty());
    results out(2);
    auto const merge = [&](std::size_t rows, std::vector<std::uint8_t> const& mask) {
      return message([&] { merge_logprob_partials<double>(parts, rows, mask, {}, out.outputs()); });
    };
    CHECK(merge(3, {}).find("positive multiple of rows = 3") != std::string::npos);
    CHECK(merge(2, {1}).find("mask has 1 elements") != std::string::npos);
    CHECK(merge(1, {}).find("logprob has 2 elements, expected 1") != std::string::npos);
    CHECK(out.logprob[0] == 9);
  }

}  // TEST_SUITE

#include "logprob/gpu_logits.cuh"

#include <turnwise/gpu/logprob/logprob_partials.cuh>

namespace logprob_partials_test {

using namespace support;
using test::infinity;
using test::nan_value;
using turnwise::logprob::logprob_partial;

namespace {

using token_logprob_options = logprob::token_logprob_options;

/// The parts of all ranks, each with a copy of its columns somewhere else in memory.
template <typename T>
std::vector<logprob_partial<float>> gathered(std::vector<T> const& values, std::size_t rows, std::size_t vocabulary,
                                             std::vector<std::int32_t> const& ids, std::vector<std::size_t> const& cuts,
                                             token_logprob_options const& options,
                                             std::vector<std::uint8_t> const& mask = {}) {
  std::vector<logprob_partial<float>> all;
  auto const device_ids = on_device(ids);
  auto const device_mask = on_device(mask);
  for (std::size_t rank = 0; rank + 1 < cuts.size(); ++rank) {
    std::size_t const columns = cuts[rank + 1] - cuts[rank];
    std::vector<T> own;
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t i = cuts[rank]; i < cuts[rank + 1]; ++i) own.push_back(values[row * vocabulary + i]);
    placed_rows<T> const shard{own, rows, columns, columns + rank, 3 * rank};
    device_array<logprob_partial<float>> const parts{logprob::partial_tiles(columns, options.tile) * rows};
    side_stream const stream;
    logprob::logprob_partials(
        logprob::token_logits<T, std::int32_t>{shard.view(), shard.layout, device_ids.view(), device_mask.view()},
        {cuts[rank], vocabulary}, options, parts.span(), stream);
    stream.wait();
    auto const host = parts.host();
    all.insert(all.end(), host.begin(), host.end());
  }
  return all;
}

row_values merged(std::vector<logprob_partial<float>> const& parts, std::size_t rows,
                  token_logprob_options const& options, gpu::status_record* status = nullptr,
                  std::vector<std::uint8_t> const& mask = {}) {
  auto const device_parts = on_device(parts);
  auto const device_mask = on_device(mask);
  row_outputs const out{rows};
  row_values got;
  on_stream_and_in_graph([&] { out.poison(); },
                         [&](cuda::stream_ref stream) {
                           logprob::merge_logprob_partials(device_parts.view(), rows, device_mask.view(), options,
                                                           out.all(), status, stream);
                         },
                         [&] { got = row_values{out}; });
  return got;
}

}  // namespace

TEST_SUITE("gpu/logprob/logprob_partials" * doctest::skip(!has_device())) {
  TEST_CASE("CU-11 a rank without the target adds 0 to its logit") {
    std::vector<float> const values{0.5f, 2.0f, -1.0f, 1.0f, 0.0f, 3.0f};
    auto const parts = gathered(values, 1, 6, {1}, {0, 3, 6}, {});
    REQUIRE(parts.size() == 2);
    CHECK(parts[0].target == 2);
    CHECK(parts[1].target == 0);
    CHECK(std::abs(merged(parts, 1, {}).logprob[0] - -1.5028352437086807) < 1e-6);
  }

  TEST_CASE("any number of ranks that cut at tiles gives the bits of one rank") {
    struct shape {
      std::size_t vocabulary, tile;
    };
    for (auto const [vocabulary, tile] :
         {shape{1000, 125}, shape{1000, 301}, shape{40000, 5001}, shape{151936, 18992}}) {
      CAPTURE(vocabulary);
      CAPTURE(tile);
      constexpr std::size_t rows = 3;
      auto const values = test::random_logits<__nv_bfloat16>(1, rows * vocabulary, 4);
      auto const ids = test::random_ids<std::int32_t>(2, rows, vocabulary);
      token_logprob_options const options{.temperature = 0.7, .tile = tile};
      placed_rows<__nv_bfloat16> const whole{values, rows, vocabulary, vocabulary, 0};
      auto const one = run_rows(whole, ids, options);
      std::vector<std::size_t> each{0};
      while (each.back() < vocabulary) each.push_back(std::min(each.back() + tile, vocabulary));
      std::vector<std::vector<std::size_t>> const cuts{{0, vocabulary}, {0, 2 * tile, vocabulary}, each};
      for (auto const& cut : cuts)
        CHECK(merged(gathered(values, rows, vocabulary, ids, cut, options), rows, options).same(one));
    }
  }

  TEST_CASE("cut anywhere: equal within rounding") {
    constexpr std::size_t rows = 2, vocabulary = 5000;
    auto const values = test::random_logits<float>(4, rows * vocabulary);
    auto const ids = test::random_ids<std::int32_t>(2, rows, vocabulary);
    auto const got = merged(gathered(values, rows, vocabulary, ids, {0, 7, 2500, 2501, 5000}, {}), rows, {});
    for (std::size_t row = 0; row < rows; ++row) {
      auto const truth = test::truth_of(std::span<float const>{values}.subspan(row * vocabulary, vocabulary),
                                        static_cast<std::size_t>(ids[row]), 1);
      CHECK(std::abs(static_cast<double>(got.logprob[row]) - truth.logprob) < 2e-6 + 4e-7 * -truth.logprob);
      CHECK(std::abs(static_cast<double>(got.entropy[row]) - truth.entropy) < 4e-6 * (1 + truth.entropy));
      CHECK(std::abs(static_cast<double>(got.sum_squares[row]) - truth.sum_squares) < 4e-6 * truth.sum_squares);
    }
  }

  TEST_CASE("bad and masked rows, on whichever rank they are bad") {
    // NaN on one rank, +inf on the other, all filtered, masked, an id of no rank, a good one.
    auto const nan = static_cast<float>(nan_value), inf = static_cast<float>(infinity);
    std::vector<float> const values{1,   nan, 1, 1, 1, 1, inf, 1, -inf, -inf, -inf, -inf,
                                    nan, nan, 1, 1, 1, 1, 1,   1, -inf, -inf, 1,    1};
    std::vector<std::int32_t> const ids{0, 0, 0, -100, 4, 2};
    std::vector<std::uint8_t> const mask{1, 1, 1, 0, 1, 1};
    status_memory const status;
    auto const got = merged(gathered(values, 6, 4, ids, {0, 2, 4}, {}, mask), 6, {}, status.get(), mask);
    for (std::size_t const row : {0u, 1u, 2u, 4u}) CHECK(std::isnan(got.logprob[row]));
    CHECK(got.logprob[3] == 0);
    CHECK(got.entropy[3] == 0);
    CHECK(got.logprob[5] == doctest::Approx(-std::log(2.0)));
    CHECK(status.host().code() == logprob::detail::bad_logits);
    CHECK(status.host().index() == 0);
  }

  TEST_CASE("errors") {
    device_array<float> const values{8}, three{3};
    device_array<std::int32_t> const ids{2};
    device_array<logprob_partial<float>> const parts{2};
    side_stream const stream;
    auto const partials = [&](turnwise::logprob::vocabulary_shard const& shard, token_logprob_options const& options) {
      return message_of([&] {
        logprob::logprob_partials(logprob::token_logits<float, std::int32_t>{values.view(), {2, 4}, ids.view()}, shard,
                                  options, parts.span(), stream);
      });
    };
    auto const has = [](std::string const& text, char const* part) { return text.find(part) != std::string::npos; };
    CHECK(has(partials({4, 7}, {}), "leaves the vocabulary, which has 7"));
    CHECK(has(partials({4, 8}, {.tile = 3}), "partials has 2 elements, expected 4"));
    CHECK(has(partials({4, 8}, {.temperature = 0}), "temperature"));
    auto const merge = [&](std::size_t rows, token_logprob_options const& options) {
      return message_of([&] {
        logprob::merge_logprob_partials(parts.view(), rows, {}, options, {.logprob = three.span()}, nullptr, stream);
      });
    };
    CHECK(has(merge(3, {}), "positive multiple of rows = 3"));
    CHECK(has(merge(2, {}), "logprob has 3 elements, expected 2"));
    CHECK(has(merge(1, {.temperature = -1}), "logprob has 3"));
  }

}  // TEST_SUITE

}  // namespace logprob_partials_test

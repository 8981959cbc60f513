#include "logprob/gpu_logits.cuh"

#include <array>

namespace token_logprob_test {

using namespace support;
using test::infinity;
using test::nan_value;
using turnwise::logprob::logit_layout;

namespace {

bool near(double a, double b, double absolute, double relative = 0) {
  return std::abs(a - b) <= absolute + relative * std::abs(b);
}

/// Random rows of one vocabulary, at several places and strides, against long double.
template <typename T, typename Id>
void compare(std::size_t vocabulary, double temperature, std::size_t shift, std::size_t gap) {
  CAPTURE(vocabulary);
  CAPTURE(temperature);
  CAPTURE(shift);
  CAPTURE(gap);
  constexpr std::size_t rows = 3;
  auto const values = test::random_logits<T>(static_cast<unsigned>(vocabulary + shift), rows * vocabulary);
  auto const ids = test::random_ids<Id>(7, rows, vocabulary);
  placed_rows<T> const placed{values, rows, vocabulary, vocabulary + gap, shift};
  status_memory const status;
  auto const got = run_rows(placed, ids, {.temperature = temperature}, status.get());
  gpu::check(status.host());
  for (std::size_t row = 0; row < rows; ++row) {
    auto const truth = test::truth_of(std::span<T const>{values}.subspan(row * vocabulary, vocabulary),
                                      static_cast<std::size_t>(ids[row]), temperature);
    CHECK(near(got.logprob[row], truth.logprob, 2e-6, 4e-7));
    CHECK(got.logprob[row] <= 0);
    CHECK(near(got.entropy[row], truth.entropy, 4e-6, 4e-6));
    CHECK(near(got.sum_squares[row], truth.sum_squares, 0, 4e-6));
    double const log_sum_exp = got.normalizer[2 * row] / temperature + got.normalizer[2 * row + 1];
    CHECK(near(log_sum_exp, truth.log_sum_exp, 2e-6, 1e-12));
  }
}

template <typename T>
std::vector<T> converted(std::vector<double> const& values) {
  std::vector<T> result;
  for (double const value : values) result.push_back(static_cast<T>(static_cast<float>(value)));
  return result;
}

}  // namespace

TEST_SUITE("gpu/logprob/token_logprob" * doctest::skip(!has_device())) {
  TEST_CASE("every vocabulary, type and alignment against long double") {
    for (std::size_t const vocabulary : test::vocabularies)
      for (std::size_t const shift : {0u, 1u, 3u}) {
        compare<__nv_bfloat16, std::int32_t>(vocabulary, 1, shift, shift);
        if (vocabulary > 130000 && shift > 0) continue;
        compare<float, std::int64_t>(vocabulary, 1, shift, 2 * shift);
        compare<__half, std::int32_t>(vocabulary, 1, shift, shift);
      }
  }

  TEST_CASE("temperatures") {
    for (double const temperature : {0.1, 0.3, 2.0, 10.0})
      for (std::size_t const vocabulary : {2u, 127u, 1000u, 32000u}) {
        compare<__nv_bfloat16, std::int32_t>(vocabulary, temperature, 0, 0);
        compare<float, std::int32_t>(vocabulary, temperature, 1, 0);
      }
  }

  TEST_CASE("on a stream, in a graph, with any set of outputs: the same bits") {
    constexpr std::size_t rows = 9, vocabulary = 40003;
    auto const values = test::random_logits<__nv_bfloat16>(3, rows * vocabulary);
    placed_rows<__nv_bfloat16> const placed{values, rows, vocabulary, vocabulary, 0};
    auto const ids = on_device(test::random_ids<std::int32_t>(7, rows, vocabulary));
    logprob::token_logits<__nv_bfloat16, std::int32_t> const logits{placed.view(), placed.layout, ids.view()};
    row_outputs const out{rows};
    row_values first;
    on_stream_and_in_graph([&] { out.poison(); },
                           [&](cuda::stream_ref stream) { logprob::token_logprob(logits, {}, out.all(), {}, stream); },
                           [&] {
                             row_values const got{out};
                             if (first.logprob.empty()) first = got;
                             CHECK(got.same(first));
                           });
    side_stream const stream;
    out.poison();
    logprob::token_logprob(logits, {}, {.logprob = out.logprob.span(), .normalizer = out.normalizer.span()}, nullptr,
                           stream);
    stream.wait();
    CHECK(same_bits(out.logprob.host(), first.logprob));
    CHECK(same_bits(row_values{out}.normalizer, first.normalizer));
    out.poison();
    logprob::token_logprob(logits, {}, {.entropy = out.entropy.span()}, nullptr, stream);
    stream.wait();
    CHECK(same_bits(out.entropy.host(), first.entropy));
  }

  TEST_CASE("batch-invariant: a row has the same bits at any alignment and among any others") {
    for (std::size_t const vocabulary : {5u, 301u, 3001u, 20011u}) {
      CAPTURE(vocabulary);
      constexpr std::size_t rows = 17;
      auto values = test::random_logits<__nv_bfloat16>(3, rows * vocabulary);
      for (std::size_t row = 1; row < rows; row += 2)  // odd rows are all the first
        std::copy_n(values.begin(), vocabulary, values.begin() + static_cast<std::ptrdiff_t>(row * vocabulary));
      std::vector<std::int32_t> const ids(rows, 2);
      placed_rows<__nv_bfloat16> const many{values, rows, vocabulary, vocabulary,
                                            0};  // all alignments, by an odd stride
      placed_rows<__nv_bfloat16> const alone{values, 1, vocabulary, vocabulary, 5};
      auto const got = run_rows(many, ids);
      auto const one = run_rows(alone, std::vector<std::int32_t>{2});
      for (std::size_t row = 1; row < rows; row += 2) CHECK(got.row(row).same(got.row(0)));
      CHECK(one.same(got.row(0)));
    }
  }

  TEST_CASE("no rows, one row; CU-02 more rows than a grid's y axis holds") {
    placed_rows<float> const none{{}, 0, 7, 7, 0};
    CHECK(run_rows(none, std::vector<std::int32_t>{}).logprob.empty());
    for (std::size_t const rows : {1u, 65535u, 65536u, 65537u, 70000u})
      for (std::size_t const vocabulary : {1u, 3u, 300u}) {
        if (vocabulary == 300 && rows != 65537) continue;
        CAPTURE(rows);
        CAPTURE(vocabulary);
        std::vector<float> values;
        for (std::size_t row = 0; row < rows; ++row)
          values.insert(values.end(), vocabulary, static_cast<float>(row % 7));
        placed_rows<float> const placed{values, rows, vocabulary, vocabulary, 0};
        auto const got = run_rows(placed, std::vector<std::int32_t>(rows, static_cast<int>(vocabulary) - 1));
        double sum = 0;
        bool all_equal = true;
        for (std::size_t row = 0; row < rows; ++row) {
          sum += static_cast<double>(got.normalizer[2 * row]);
          all_equal = all_equal && near(got.logprob[row], -std::log(static_cast<double>(vocabulary)), 2e-6);
        }
        CHECK(all_equal);
        if (rows == 65535) CHECK(sum == 196602);
        if (rows == 65536) CHECK(sum == 196603);
        if (rows == 70000) CHECK(sum == 210000);
      }
  }

  TEST_CASE("CU-04 a transposed view: rows are where the strides say") {
    auto const buffer = on_device(converted<float>({0.1, 0.2, 0.3, 1, 0, -1, 2, 2.5, 0.5, -1, -2, 0}));
    auto const ids = on_device(std::vector<std::int32_t>{2, 1, 0, 2});
    logit_layout const layout{.rows = 4, .vocabulary = 3, .row_stride = 6, .batch_rows = 2, .batch_stride = 3};
    row_outputs const out{4};
    side_stream const stream;
    logprob::token_logprob(logprob::token_logits<float, std::int32_t>{buffer.view(), layout, ids.view()}, {}, out.all(),
                           nullptr, stream);
    stream.wait();
    std::array const expected{-1.001942848229244, -0.5549569196419907, -0.4076059644443803, -0.4076059644443803};
    auto const got = out.logprob.host();
    for (std::size_t i = 0; i < 4; ++i) CHECK(near(got[i], expected[i], 1e-6));
  }

  TEST_CASE("CU-12 no log-prob is positive, and one near 0 is exact") {
    placed_rows<float> const pair{converted<float>({12.3, 0}), 1, 2, 2, 0};
    CHECK(near(run_rows(pair, std::vector<std::int32_t>{0}).logprob[0], -4.551734103925841e-06, 5e-7));
    placed_rows<__nv_bfloat16> const halves{converted<__nv_bfloat16>({12.3, 0}), 1, 2, 2, 0};  // 12.3125
    CHECK(near(run_rows(halves, std::vector<std::int32_t>{0}).logprob[0], -std::log1p(std::exp(-12.3125)), 5e-7));
    constexpr std::size_t rows = 2000, vocabulary = 50;
    auto const values = test::random_logits<__nv_bfloat16>(1, rows * vocabulary, 30);
    std::vector<std::int32_t> ids;
    for (std::size_t row = 0; row < rows; ++row) {
      auto const first = values.begin() + static_cast<std::ptrdiff_t>(row * vocabulary);
      ids.push_back(static_cast<std::int32_t>(
          std::max_element(first, first + vocabulary,
                           [](auto a, auto b) { return static_cast<float>(a) < static_cast<float>(b); }) -
          first));
    }
    placed_rows<__nv_bfloat16> const placed{values, rows, vocabulary, vocabulary, 0};
    auto const got = run_rows(placed, ids, {.temperature = 0.3});
    CHECK(std::all_of(got.logprob.begin(), got.logprob.end(), [](float x) { return x <= 0 && x >= -4; }));
    CHECK(std::all_of(got.entropy.begin(), got.entropy.end(), [](float x) { return x >= 0; }));
  }

  TEST_CASE("filtered tokens and large logits") {
    // The large row is read by a whole block, the small ones by lanes.
    for (std::size_t const vocabulary : {4u, 20000u}) {
      std::vector<float> values(3 * vocabulary, -std::numeric_limits<float>::infinity());
      values[1] = values[vocabulary - 1] = 1;
      for (std::size_t i = 0; i < vocabulary; ++i) values[vocabulary + i] = -3e38f;
      values[vocabulary + 1] = values[2 * vocabulary - 1] = 3e38f;
      values[2 * vocabulary] = -1e30f;
      values[2 * vocabulary + 2] = -1e30f;
      placed_rows<float> const placed{values, 3, vocabulary, vocabulary, 0};
      status_memory const status;
      for (double const temperature : {0.1, 1.0, 10.0}) {
        auto const got =
            run_rows(placed, std::vector<std::int32_t>{1, 1, 0}, {.temperature = temperature}, status.get());
        for (std::size_t row = 0; row < 3; ++row) {
          CHECK(near(got.logprob[row], -std::log(2.0), 1e-6));
          CHECK(near(got.entropy[row], std::log(2.0), 1e-6));
          CHECK(got.sum_squares[row] == 0.5f);
        }
      }
      auto const filtered = run_rows(placed, std::vector<std::int32_t>{0, 0, 1}, {}, status.get());
      CHECK(filtered.logprob[0] == -infinity);
      CHECK(filtered.logprob[1] == -infinity);
      CHECK(filtered.logprob[2] == -infinity);
      gpu::check(status.host());
    }
  }

  TEST_CASE("bad rows give NaN and set the status, masked rows 0; other rows do not notice") {
    for (std::size_t const vocabulary : {6u, 300u, 20000u})
      for (std::size_t const at : {std::size_t{0}, vocabulary / 2, vocabulary - 1}) {
        CAPTURE(vocabulary);
        CAPTURE(at);
        constexpr std::size_t rows = 8;
        auto values = test::random_logits<__half>(1, rows * vocabulary);
        auto const put = [&](std::size_t row, double x) {
          values[row * vocabulary + at] = static_cast<__half>(static_cast<float>(x));
        };
        placed_rows<__half> const clean{values, rows, vocabulary, vocabulary, 0};
        std::vector<std::int32_t> ids(rows, 1);
        auto const expected = run_rows(clean, ids);
        put(0, nan_value);  // masked
        put(2, nan_value);
        put(3, infinity);
        for (std::size_t i = 0; i < vocabulary; ++i) values[4 * vocabulary + i] = static_cast<__half>(-INFINITY);
        ids = {-100, 1, 1, 1, 1, -1, static_cast<std::int32_t>(vocabulary), 1};
        placed_rows<__half> const placed{values, rows, vocabulary, vocabulary, 0};
        status_memory const status;
        auto const got = run_rows(placed, ids, {}, status.get(), {0, 1, 1, 1, 1, 1, 1, 1});
        CHECK(got.logprob[0] == 0);
        CHECK(got.entropy[0] == 0);
        CHECK(got.sum_squares[0] == 0);
        CHECK(got.normalizer[0] == 0);
        CHECK(got.normalizer[1] == 0);
        for (std::size_t row = 2; row < 7; ++row) {
          CHECK(std::isnan(got.logprob[row]));
          CHECK(std::isnan(got.entropy[row]));
          CHECK(std::isnan(got.sum_squares[row]));
          CHECK(std::isnan(got.normalizer[2 * row]));
          CHECK(std::isnan(got.normalizer[2 * row + 1]));
        }
        CHECK(got.row(1).same(expected.row(1)));
        CHECK(got.row(7).same(expected.row(7)));
        CHECK(status.host().code() == logprob::detail::bad_logits);
        CHECK(status.host().index() == 2);
        CHECK_THROWS_AS(gpu::check(status.host()), turnwise::precondition_error);

        status.clear();
        auto const bad_id =
            run_rows(clean, std::vector<std::int64_t>{1, 1, std::int64_t{1} << 40, 1, 1, 1, 1, 1}, {}, status.get());
        CHECK(std::isnan(bad_id.logprob[2]));
        CHECK(status.host().code() == logprob::detail::bad_id);
        CHECK(status.host().index() == 2);
      }
  }

  TEST_CASE("errors") {
    device_array<float> const values{12}, three{3}, four{4};
    device_array<std::int32_t> const ids{3};
    device_array<std::uint8_t> const mask{2};
    side_stream const stream;
    auto const message = [&](logit_layout const& layout, std::size_t masked, double temperature,
                             logprob::token_logprob_outputs const& out) {
      return message_of([&] {
        logprob::token_logprob(
            logprob::token_logits<float, std::int32_t>{values.view(), layout, ids.view(), mask.view().first(masked)},
            {.temperature = temperature}, out, nullptr, stream);
      });
    };
    auto const has = [](std::string const& text, char const* part) { return text.find(part) != std::string::npos; };
    logprob::token_logprob_outputs const good{.logprob = three.span()};
    CHECK(has(message({3, 5}, 0, 1, good), "logits have 12 elements, their layout needs 15"));
    CHECK(has(message({3, 4, 5}, 0, 1, good), "needs 14"));
    CHECK(has(message({2, 4}, 0, 1, good), "ids has 3 elements, expected 2"));
    CHECK(has(message({3, 4}, 2, 1, good), "mask has 2 elements, expected 3"));
    CHECK(has(message({3, 4}, 0, 0, good), "temperature = 0"));
    CHECK(has(message({3, 4}, 0, nan_value, good), "temperature = "));
    CHECK(has(message({3, 4}, 0, 1, {.logprob = three.span(), .entropy = four.span()}), "entropy has 4"));
  }

}  // TEST_SUITE

TEST_SUITE("gpu/logprob/token_logprob/large_batch" * doctest::skip(!has_device())) {
  TEST_CASE("CU-01 more than 2^31 logits") {
    constexpr std::size_t rows = 70000, stride = 32768, vocabulary = 3000;  // 4.6 GB, of which 0.4 GB are read
    static_assert(rows * stride > std::size_t{1} << 31);
    device_array<__nv_bfloat16> const values{rows * stride};
    gpu::check(cudaMemset(values.span().data(), 0, rows * stride * sizeof(__nv_bfloat16)), "cudaMemset");
    auto const last = converted<__nv_bfloat16>({8, 0, 4});
    gpu::check(cudaMemcpy(values.span().data() + (rows - 1) * stride, last.data(), 3 * sizeof(__nv_bfloat16),
                          cudaMemcpyHostToDevice),
               "cudaMemcpy");
    gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    auto const ids = on_device(std::vector<std::int32_t>(rows, 2));
    device_array<float> const out{rows};
    side_stream const stream;
    logprob::token_logprob(
        logprob::token_logits<__nv_bfloat16, std::int32_t>{values.view(), {rows, vocabulary, stride}, ids.view()}, {},
        {.logprob = out.span()}, nullptr, stream);
    stream.wait();
    auto const got = out.host();
    for (std::size_t const row : {std::size_t{0}, std::size_t{65536}, rows - 2})
      CHECK(near(got[row], -std::log(3000.0), 4e-6));
    CHECK(near(got[rows - 1], 4 - std::log(std::exp(8.0) + std::exp(4.0) + 2998), 4e-6));
  }
}

}  // namespace token_logprob_test

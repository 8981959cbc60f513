#include "logprob/logits.hpp"

#include <turnwise/logprob/token_logprob.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace turnwise;
using namespace turnwise::logprob;
using test::infinity;
using test::nan_value;

template <real T = double>
struct results {
  std::vector<T> logprob, entropy, sum_squares;
  std::vector<log_normalizer<T>> normalizer;

  explicit results(std::size_t rows) : logprob(rows, 9), entropy(rows, 9), sum_squares(rows, 9), normalizer(rows) {}
  token_logprob_outputs<T> outputs() { return {logprob, entropy, sum_squares, normalizer}; }
};

template <real T = double, typename L, typename Id>
results<T> run(std::vector<L> const& values, logit_layout const& layout, std::vector<Id> const& ids,
               token_logprob_options const& options = {}, std::vector<std::uint8_t> const& mask = {}, int threads = 1) {
  results<T> out(layout.rows);
  token_logprob(token_logits<L, Id>{values, layout, ids, mask}, options, out.outputs(), threads);
  return out;
}

bool near(double a, double b, double absolute, double relative = 0) {
  return std::abs(a - b) <= absolute + relative * std::abs(b);
}

}  // namespace

TEST_SUITE("logprob/token_logprob") {
  TEST_CASE("by hand: equal logits, and odds of 1 to 3") {
    // Four equal logits: log 1/4, entropy log 4, sum of squares 1/4.
    auto const equal = run(std::vector<float>(4, 7.5f), {1, 4}, std::vector<std::int32_t>{2});
    CHECK(equal.logprob[0] == doctest::Approx(-std::log(4.0)).epsilon(1e-15));
    CHECK(equal.entropy[0] == doctest::Approx(std::log(4.0)).epsilon(1e-15));
    CHECK(equal.sum_squares[0] == 0.25);
    CHECK(equal.normalizer[0].maximum == 7.5);
    // Probabilities 1/4 and 3/4: sum of squares 10/16; at temperature 1/2 the odds are squared, 1 to 9.
    std::vector<double> const odds{0, std::log(3.0)};
    auto const third = run(odds, {1, 2}, std::vector<std::int64_t>{0});
    CHECK(third.logprob[0] == doctest::Approx(std::log(0.25)).epsilon(1e-14));
    CHECK(third.entropy[0] == doctest::Approx(0.25 * std::log(4.0) + 0.75 * std::log(4.0 / 3)).epsilon(1e-14));
    CHECK(third.sum_squares[0] == doctest::Approx(0.625).epsilon(1e-14));
    auto const cold = run(odds, {1, 2}, std::vector<std::int64_t>{1}, {.temperature = 0.5});
    CHECK(cold.logprob[0] == doctest::Approx(std::log(0.9)).epsilon(1e-14));
    CHECK(cold.sum_squares[0] == doctest::Approx(0.82).epsilon(1e-14));
  }

  TEST_CASE("a vocabulary of one: certain") {
    auto const one = run(std::vector<float>{-3e38f}, {1, 1}, std::vector<std::int32_t>{0}, {.temperature = 0.1});
    CHECK(one.logprob[0] == 0);
    CHECK(one.entropy[0] == 0);
    CHECK(one.sum_squares[0] == 1);
  }

  TEST_CASE("every vocabulary and temperature against long double") {
    for (std::size_t const vocabulary : test::vocabularies)
      for (double const temperature : {0.1, 0.7, 1.0, 10.0}) {
        if (vocabulary > 32000 && temperature != 0.7) continue;
        CAPTURE(vocabulary);
        CAPTURE(temperature);
        auto const values = test::random_logits<float>(static_cast<unsigned>(vocabulary), 2 * vocabulary);
        auto const ids = test::random_ids<std::int32_t>(3, 2, vocabulary);
        auto const got = run(values, {2, vocabulary}, ids, {.temperature = temperature});
        for (std::size_t row = 0; row < 2; ++row) {
          auto const truth = test::truth_of(std::span{values}.subspan(row * vocabulary, vocabulary),
                                            static_cast<std::size_t>(ids[row]), temperature);
          CHECK(near(got.logprob[row], truth.logprob, 1e-12, 1e-13));
          CHECK(near(got.entropy[row], truth.entropy, 1e-12, 1e-12));
          CHECK(near(got.sum_squares[row], truth.sum_squares, 0, 1e-12));
          double const log_sum_exp = got.normalizer[row].maximum / temperature + got.normalizer[row].log_sum;
          CHECK(near(log_sum_exp, truth.log_sum_exp, 1e-12, 1e-14));
          CHECK(got.logprob[row] <= 0);
        }
      }
  }

  TEST_CASE("half types and float outputs") {
    auto const wide = test::random_logits<float>(5, 3 * 200);
    std::vector<Eigen::bfloat16> values;
    std::vector<float> same;
    for (float const x : wide) {
      values.push_back(static_cast<Eigen::bfloat16>(x));
      same.push_back(static_cast<float>(values.back()));
    }
    auto const ids = test::random_ids<std::int64_t>(4, 3, 200);
    auto const from_half = run<float>(values, {3, 200}, ids);
    auto const from_float = run<float>(same, {3, 200}, ids);
    CHECK(from_half.logprob == from_float.logprob);
    CHECK(from_half.entropy == from_float.entropy);
    CHECK(from_half.logprob[0] == static_cast<float>(run(same, {3, 200}, ids).logprob[0]));
  }

  TEST_CASE("CU-01 offsets take 64 bits") {
    logit_layout const layout{.rows = 300001, .vocabulary = 18, .row_stride = 8192};
    CHECK(layout.offset(300000) + 17 == 2457600017u);
  }

  TEST_CASE("CU-04 a transposed view: rows are where the strides say") {
    std::vector<float> const buffer{0.1f, 0.2f, 0.3f, 1.0f, 0.0f, -1.0f, 2.0f, 2.5f, 0.5f, -1.0f, -2.0f, 0.0f};
    logit_layout const view{.rows = 4, .vocabulary = 3, .row_stride = 6, .batch_rows = 2, .batch_stride = 3};
    auto const got = run(buffer, view, std::vector<std::int32_t>{2, 1, 0, 2});
    std::array const expected{-1.001942848229244, -0.5549569196419907, -0.4076059644443803, -0.4076059644443803};
    for (std::size_t i = 0; i < 4; ++i) CHECK(near(got.logprob[i], expected[i], 1e-6));
  }

  TEST_CASE("CU-12 no log-prob is positive, and one near 0 is exact") {
    std::vector<float> const values{12.3f, 0.0f};
    CHECK(near(run(values, {1, 2}, std::vector<std::int32_t>{0}).logprob[0], -4.551734103925841e-06, 5e-7));
    for (unsigned seed = 0; seed < 200; ++seed) {
      auto const row = test::random_logits<float>(seed, 40, 30);
      auto const top = std::max_element(row.begin(), row.end()) - row.begin();
      auto const got = run<float>(row, {1, 40}, std::vector<std::int64_t>{top}, {.temperature = 0.3});
      CHECK(got.logprob[0] <= 0);
      CHECK(got.entropy[0] >= 0);
      CHECK(got.sum_squares[0] <= 1);
    }
  }

  TEST_CASE("filtered tokens and large logits") {
    float const filtered = -std::numeric_limits<float>::infinity();
    std::vector<float> const values{filtered, 1, filtered, 1};
    auto const kept = run(values, {1, 4}, std::vector<std::int32_t>{1});
    CHECK(kept.logprob[0] == doctest::Approx(-std::log(2.0)).epsilon(1e-15));
    CHECK(kept.entropy[0] == doctest::Approx(std::log(2.0)).epsilon(1e-15));
    CHECK(kept.sum_squares[0] == 0.5);
    CHECK(run(values, {1, 4}, std::vector<std::int32_t>{0}).logprob[0] == -infinity);
    for (float const scale : {1e4f, 1e30f, 3e38f}) {
      auto const large = run(std::vector<float>{-scale, scale, scale}, {1, 3}, std::vector<std::int32_t>{1});
      CHECK(large.logprob[0] == doctest::Approx(-std::log(2.0)).epsilon(1e-15));
      CHECK(large.entropy[0] == doctest::Approx(std::log(2.0)).epsilon(1e-15));
    }
  }

  TEST_CASE("bad rows give NaN, masked rows 0 and are not read; other rows do not notice") {
    float const nan = static_cast<float>(nan_value);
    float const inf = static_cast<float>(infinity);
    std::vector<float> const values{1, 2, nan, 1, inf, 1, -inf, -inf, nan, nan, 1, 2, -inf, nan};
    std::vector<std::int32_t> const ids{1, 1, 1, 0, -100, 1, 0};
    auto const got = run(values, {7, 2}, ids, {}, {1, 1, 1, 1, 0, 1, 1});
    for (std::size_t const row : {1u, 2u, 3u, 6u}) {
      CHECK(std::isnan(got.logprob[row]));
      CHECK(std::isnan(got.entropy[row]));
      CHECK(std::isnan(got.sum_squares[row]));
      CHECK(std::isnan(got.normalizer[row].maximum));
      CHECK(std::isnan(got.normalizer[row].log_sum));
    }
    CHECK(got.logprob[4] == 0);
    CHECK(got.entropy[4] == 0);
    CHECK(got.sum_squares[4] == 0);
    CHECK(got.normalizer[4].maximum == 0);
    CHECK(got.normalizer[4].log_sum == 0);
    for (std::size_t const row : {0u, 5u}) CHECK(got.logprob[row] == doctest::Approx(-std::log1p(std::exp(-1.0))));
  }

  TEST_CASE("no rows; a row does not depend on the others, its place or the threads") {
    CHECK(run(std::vector<float>{}, {0, 5}, std::vector<std::int32_t>{}).logprob.empty());
    constexpr std::size_t rows = 65537, stride = 7;
    auto const values = test::random_logits<float>(8, rows * stride);
    auto const ids = test::random_ids<std::int32_t>(9, rows, 5);
    auto const all = run(values, {rows, 5, stride}, ids, {}, {}, 0);
    for (std::size_t const row : {std::size_t{0}, std::size_t{1}, rows - 2, rows - 1}) {
      std::vector<float> const alone(values.begin() + static_cast<std::ptrdiff_t>(row * stride),
                                     values.begin() + static_cast<std::ptrdiff_t>(row * stride + 5));
      auto const one = run(alone, {1, 5}, std::vector<std::int32_t>{ids[row]});
      CHECK(one.logprob[0] == all.logprob[row]);
      CHECK(one.entropy[0] == all.entropy[row]);
    }
  }

  TEST_CASE("outputs that are not asked for may be empty") {
    std::vector<float> const values{0, 0};
    std::vector<std::int32_t> const ids{1};
    std::vector<float> entropy{9};
    token_logprob(token_logits<float, std::int32_t>{values, {1, 2}, ids}, {},
                  token_logprob_outputs<float>{.entropy = entropy});
    CHECK(entropy[0] == doctest::Approx(std::log(2.0f)));
  }

  TEST_CASE("errors leave the outputs alone and say what is wrong") {
    std::vector<float> const values(12);
    std::vector<std::int32_t> const ids{0, 1, 2};
    std::vector<float> out(3, 9.0f);
    auto const fails = [&](token_logits<float, std::int32_t> const& logits, token_logprob_options const& options,
                           token_logprob_outputs<float> const& outputs, std::string const& part) {
      CAPTURE(part);
      std::string message;
      try {
        token_logprob(logits, options, outputs);
      } catch (precondition_error const& error) {
        message = error.what();
      }
      CHECK(message.find(part) != std::string::npos);
      CHECK(out == std::vector<float>(3, 9.0f));
    };
    token_logprob_outputs<float> const good{.logprob = out};
    fails({values, {3, 5}, ids}, {}, good, "logits have 12 elements, their layout needs 15");
    fails({values, {3, 4, 5}, ids}, {}, good, "needs 14");
    fails({values, {3, 4, std::numeric_limits<std::size_t>::max() / 2}, ids}, {}, good, "their layout needs");
    fails({values, {3, 0}, ids}, {}, good, "a vocabulary of 0");
    fails({values, {3, 4, 4, 2, 8}, ids}, {}, good, "multiple of batch_rows = 2");
    fails({values, {2, 4}, ids}, {}, good, "ids has 3 elements, expected 2");
    fails({values, {3, 4}, ids, std::vector<std::uint8_t>{1}}, {}, good, "mask has 1 elements, expected 3");
    fails({values, {3, 2}, ids}, {}, good, "ids[2] = 2");
    fails({values, {3, 4}, std::vector<std::int32_t>{0, -1, 0}}, {}, good, "ids[1] = -1");
    for (double const temperature : {0.0, -1.0, nan_value, infinity, 1e-31})
      fails({values, {3, 4}, ids}, {.temperature = temperature}, good, "temperature = ");
    std::vector<float> longer(4, 9.0f);
    fails({values, {3, 4}, ids}, {}, {.logprob = out, .entropy = longer}, "entropy has 4 elements, expected 3");
    fails({values, {3, 4}, ids}, {}, {.logprob = out, .sum_squares = longer}, "sum_squares has 4");
  }

}  // TEST_SUITE

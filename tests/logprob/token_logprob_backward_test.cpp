#include "logprob/logits.hpp"

#include <turnwise/logprob/token_logprob_backward.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>

#include <array>
#include <string>

namespace {

using namespace turnwise;
using namespace turnwise::logprob;
using test::infinity;
using test::nan_value;

struct problem {
  std::vector<double> values;
  logit_layout layout;
  std::vector<std::int32_t> ids;
  std::vector<double> of_logprob, of_entropy;
  double temperature = 1;
  std::vector<std::uint8_t> mask{};

  [[nodiscard]] token_logits<double, std::int32_t> logits() const { return {values, layout, ids, mask}; }

  /// Sum over rows of of_logprob * logprob + of_entropy * entropy.
  [[nodiscard]] double objective() const {
    std::vector<double> logprob(layout.rows), entropy(layout.rows);
    token_logprob(logits(), {temperature}, token_logprob_outputs<double>{logprob, entropy});
    double sum = 0;
    for (std::size_t row = 0; row < layout.rows; ++row) {
      if (!of_logprob.empty()) sum += of_logprob[row] * logprob[row];
      if (!of_entropy.empty()) sum += of_entropy[row] * entropy[row];
    }
    return sum;
  }

  [[nodiscard]] std::vector<double> gradient(double fill = 9) const {
    std::vector<double> entropy(layout.rows);
    std::vector<log_normalizer<double>> normalizer(layout.rows);
    token_logprob(logits(), {temperature}, token_logprob_outputs<double>{.entropy = entropy, .normalizer = normalizer});
    std::vector<double> result(values.size(), fill);
    token_logprob_backward(logits(), logprob_gradients<double>{normalizer, entropy, of_logprob, of_entropy},
                           temperature, 0, std::span{result}, layout);
    return result;
  }
};

}  // namespace

TEST_SUITE("logprob/token_logprob_backward") {
  TEST_CASE("by hand: probabilities 1/4 and 3/4") {
    problem const one{{0, std::log(3.0)}, {1, 2}, {0}, {2.0}, {}, 0.5};
    // At temperature 1/2 the probabilities are 1/10 and 9/10: (1 - p) g / T and -p g / T.
    auto const gradient = one.gradient();
    CHECK(gradient[0] == doctest::Approx(0.9 * 2 / 0.5).epsilon(1e-14));
    CHECK(gradient[1] == doctest::Approx(-0.9 * 2 / 0.5).epsilon(1e-14));
    problem const entropy{{0, std::log(3.0)}, {1, 2}, {0}, {}, {1.0}, 1};
    double const h = 0.25 * std::log(4.0) + 0.75 * std::log(4.0 / 3);
    CHECK(entropy.gradient()[0] == doctest::Approx(-0.25 * (std::log(0.25) + h)).epsilon(1e-14));
  }

  TEST_CASE("against central differences; a row's gradients add up to 0") {
    for (std::size_t const vocabulary : {1u, 2u, 7u, 31u})
      for (double const temperature : {0.1, 1.0, 10.0}) {
        CAPTURE(vocabulary);
        CAPTURE(temperature);
        std::size_t const rows = 3, stride = vocabulary + 2;
        problem one{test::random_logits<double>(7, rows * stride, 1),
                    {rows, vocabulary, stride},
                    test::random_ids<std::int32_t>(1, rows, vocabulary),
                    {0.7, -1.3, 0.2},
                    {0.4, 0.1, -2},
                    temperature};
        auto const gradient = one.gradient();
        for (std::size_t row = 0; row < rows; ++row) {
          double sum = 0;
          for (std::size_t i = 0; i < vocabulary; ++i) {
            double& x = one.values[row * stride + i];
            double const kept = x, step = 1e-5 * temperature;
            x = kept + step;
            double const above = one.objective();
            x = kept - step;
            double const below = one.objective();
            x = kept;
            double const got = gradient[row * stride + i];
            sum += got;
            CHECK(std::abs(got - (above - below) / (2 * step)) < 2e-8 / temperature);
          }
          CHECK(std::abs(sum) < 1e-12 / temperature);
          if (row + 1 < rows) CHECK(gradient[row * stride + vocabulary] == 9);  // between the rows
        }
      }
  }

  TEST_CASE("in place, in bfloat16, with float normalizers") {
    using half = Eigen::bfloat16;
    auto values = test::random_logits<half>(3, 2 * 50);
    auto const ids = test::random_ids<std::int64_t>(1, 2, 50);
    std::vector<float> entropy(2);
    std::vector<log_normalizer<float>> normalizer(2);
    std::vector<float> const of_logprob{1.5f, -1}, of_entropy{0.25f, 0};
    token_logits<half, std::int64_t> const logits{values, {2, 50}, ids};
    token_logprob(logits, {}, token_logprob_outputs<float>{.entropy = entropy, .normalizer = normalizer});
    std::vector<double> expected;
    for (std::size_t row = 0; row < 2; ++row) {
      std::vector<double> p;
      auto const id = static_cast<std::size_t>(ids[row]);
      auto const truth = test::truth_of(std::span<half const>{values}.subspan(row * 50, 50), id, 1, &p);
      for (std::size_t i = 0; i < 50; ++i)
        expected.push_back(static_cast<double>(of_logprob[row]) * ((i == id) - p[i]) -
                           static_cast<double>(of_entropy[row]) * p[i] * (std::log(p[i]) + truth.entropy));
    }
    token_logprob_backward(logits, logprob_gradients<float>{normalizer, entropy, of_logprob, of_entropy}, 1, 0,
                           std::span<half>{values}, {2, 50});
    for (std::size_t i = 0; i < values.size(); ++i)  // bfloat16 rounds by at most 2^-8
      CHECK(std::abs(static_cast<double>(static_cast<float>(values[i])) - expected[i]) <=
            std::abs(expected[i]) * 0x1.01p-8 + 1e-12);
  }

  TEST_CASE("zero rows: masked, without a gradient, bad; nothing of masked and idle ones is read") {
    problem one{{nan_value, nan_value, nan_value, 1, 1, 2, -infinity, -infinity, 1, 2},
                {5, 2},
                {-100, 0, 1, 0, 1},
                {1, 0, 1, 1, 1},
                {1, 0, 0, 1, 0},
                1,
                {0, 1, 1, 1, 1}};
    auto const gradient = one.gradient();
    for (std::size_t const i : {0u, 1u, 2u, 3u, 6u, 7u}) CHECK(gradient[i] == 0);
    double const p = 1 / (1 + std::exp(-1.0));
    for (std::size_t const i : {4u, 8u}) {
      CHECK(gradient[i] == doctest::Approx(p - 1));
      CHECK(gradient[i + 1] == doctest::Approx(1 - p));
    }
  }

  TEST_CASE("filtered tokens have gradient 0, and a filtered target that of probability 0") {
    problem const one{{-infinity, 1, 1}, {1, 3}, {1}, {1}, {1}};
    auto const gradient = one.gradient();
    CHECK(gradient[0] == 0);
    CHECK(gradient[1] == doctest::Approx(0.5));
    problem const target{{-infinity, 1, 1}, {1, 3}, {0}, {1}, {}};
    CHECK(target.gradient() == std::vector<double>{1, -0.5, -0.5});
  }

  TEST_CASE("shards: columns [first_id, first_id + columns) of the whole gradient") {
    problem const whole{test::random_logits<double>(2, 2 * 10), {2, 10}, {3, 8}, {1, -2}, {0.5, 0}};
    auto const expected = whole.gradient();
    std::vector<double> entropy(2);
    std::vector<log_normalizer<double>> normalizer(2);
    token_logprob(whole.logits(), {}, token_logprob_outputs<double>{.entropy = entropy, .normalizer = normalizer});
    logprob_gradients<double> const from{normalizer, entropy, whole.of_logprob, whole.of_entropy};
    std::vector<double> joined(20);
    for (std::size_t const first : {0u, 5u}) {
      logit_layout const layout{2, 5, 10};
      token_logits<double, std::int32_t> const shard{std::span{whole.values}.subspan(first), layout, whole.ids};
      token_logprob_backward(shard, from, 1, first, std::span{joined}.subspan(first), layout);
    }
    CHECK(joined == expected);
  }

  TEST_CASE("errors write nothing and say what is wrong") {
    std::vector<float> const values(12), floats(3);
    std::vector<std::int32_t> const ids{0, 1, 2};
    std::vector<log_normalizer<float>> const normalizer(3);
    std::vector<float> gradient(12, 9.0f);
    token_logits<float, std::int32_t> const logits{values, {3, 4}, ids};
    auto const fails = [&](logprob_gradients<float> const& from, double temperature, logit_layout const& layout,
                           std::string const& part) {
      CAPTURE(part);
      std::string message;
      try {
        token_logprob_backward(logits, from, temperature, 0, std::span{gradient}, layout);
      } catch (precondition_error const& error) {
        message = error.what();
      }
      CHECK(message.find(part) != std::string::npos);
      CHECK(gradient == std::vector<float>(12, 9.0f));
    };
    std::span<float const> const two = std::span{floats}.first(2);
    logprob_gradients<float> const good{normalizer, floats, floats, floats};
    fails({std::span{normalizer}.first(2), floats, floats, floats}, 1, {3, 4}, "normalizer has 2 elements");
    fails({normalizer, floats, two, floats}, 1, {3, 4}, "logprob_gradient has 2 elements");
    fails({normalizer, floats, floats, two}, 1, {3, 4}, "entropy_gradient has 2 elements");
    fails({normalizer, {}, floats, floats}, 1, {3, 4}, "entropy has 0 elements");
    fails(good, 0, {3, 4}, "temperature = 0");
    fails(good, 1, {3, 3}, "gradient is 3 rows of 3, expected 3 of 4");
    fails(good, 1, {3, 4, 3}, "rows of gradient overlap");
    fails(good, 1, {3, 4, 5}, "gradient have 12 elements, their layout needs 14");
    fails(good, 1, {3, 4, 4, 1, 3}, "rows of gradient overlap");
  }

}  // TEST_SUITE

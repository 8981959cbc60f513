/// What the tests of topic logprob share: random logits, and what a row gives in long double by the textbook.
#pragma once

#include <turnwise/logprob/token_logprob.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

/// What one row gives.
struct row_truth {
  double logprob, entropy, sum_squares, log_sum_exp;
};

/// In long double, each term from its definition. `probability` gains p.
template <typename T>
row_truth truth_of(std::span<T const> row, std::size_t id, double temperature, std::vector<double>* probability = {}) {
  long double high = -std::numeric_limits<long double>::infinity();
  for (T const x : row) high = std::max(high, static_cast<long double>(static_cast<double>(x)));
  long double sum = 0;
  auto const scaled = [&](std::size_t i) {
    return (static_cast<long double>(static_cast<double>(row[i])) - high) / static_cast<long double>(temperature);
  };
  for (std::size_t i = 0; i < row.size(); ++i) sum += std::exp(scaled(i));
  long double entropy = 0, squares = 0;
  if (probability != nullptr) probability->clear();
  for (std::size_t i = 0; i < row.size(); ++i) {
    long double const logp = scaled(i) - std::log(sum);
    long double const p = std::exp(logp);
    if (p > 0) entropy -= p * logp;
    squares += p * p;
    if (probability != nullptr) probability->push_back(static_cast<double>(p));
  }
  return {static_cast<double>(scaled(id) - std::log(sum)), static_cast<double>(entropy), static_cast<double>(squares),
          static_cast<double>(high / static_cast<long double>(temperature) + std::log(sum))};
}

/// Random rows: a spread of `deviation` about a row's own level, with a few likely tokens.
template <typename T>
std::vector<T> random_logits(unsigned seed, std::size_t count, float deviation = 3) {
  std::mt19937 generator{seed};
  std::normal_distribution<float> around{2.0f, deviation};
  std::vector<T> values;
  values.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    values.push_back(static_cast<T>(around(generator) + (generator() % 97 == 0 ? 8.0f : 0.0f)));
  return values;
}

template <typename Id>
std::vector<Id> random_ids(unsigned seed, std::size_t rows, std::size_t vocabulary) {
  std::mt19937 generator{seed};
  std::vector<Id> ids;
  for (std::size_t i = 0; i < rows; ++i) ids.push_back(static_cast<Id>(generator() % vocabulary));
  return ids;
}

/// Sizes that logits come in, and those that kernels stumble over.
inline constexpr std::size_t vocabularies[]{1, 2, 31, 32, 127, 1000, 32000, 50257, 128256, 151936, 262144};

}  // namespace test

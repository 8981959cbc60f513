/// @file
/// Exact fractions, for expectations over a few hundred outcomes.
#pragma once

#include <cmath>
#include <cstdint>
#include <ostream>
#include <stdexcept>

namespace turnwise::test {

/// numerator / denominator in lowest terms, denominator > 0. Throws when a result does not fit 64 bits.
class rational {
 public:
  constexpr rational(std::int64_t numerator = 0, std::int64_t denominator = 1)
      : rational(wide{numerator}, wide{denominator}, 0) {}

  [[nodiscard]] constexpr std::int64_t numerator() const { return numerator_; }
  [[nodiscard]] constexpr std::int64_t denominator() const { return denominator_; }

  friend constexpr rational operator+(rational a, rational b) {
    return {wide{a.numerator_} * b.denominator_ + wide{b.numerator_} * a.denominator_,
            wide{a.denominator_} * b.denominator_, 0};
  }
  friend constexpr rational operator-(rational a) { return {-a.numerator_, a.denominator_}; }
  friend constexpr rational operator-(rational a, rational b) { return a + -b; }
  friend constexpr rational operator*(rational a, rational b) {
    return {wide{a.numerator_} * b.numerator_, wide{a.denominator_} * b.denominator_, 0};
  }
  friend constexpr rational operator/(rational a, rational b) {
    return {wide{a.numerator_} * b.denominator_, wide{a.denominator_} * b.numerator_, 0};
  }
  constexpr rational& operator+=(rational other) { return *this = *this + other; }
  constexpr rational& operator*=(rational other) { return *this = *this * other; }

  friend constexpr bool operator==(rational, rational) = default;
  friend constexpr bool operator<(rational a, rational b) {
    return wide{a.numerator_} * b.denominator_ < wide{b.numerator_} * a.denominator_;
  }
  friend std::ostream& operator<<(std::ostream& out, rational value) {
    return out << value.numerator_ << '/' << value.denominator_;
  }

 private:
  __extension__ using wide = __int128;

  constexpr rational(wide numerator, wide denominator, int) {
    if (denominator == 0) throw std::domain_error("rational: denominator 0");
    wide a = numerator < 0 ? -numerator : numerator;
    wide b = denominator < 0 ? -denominator : denominator;
    while (b != 0) {
      wide const rest = a % b;
      a = b;
      b = rest;
    }
    if (denominator < 0) a = -a;
    numerator_ = narrow(numerator / a);
    denominator_ = narrow(denominator / a);
  }
  static constexpr std::int64_t narrow(wide value) {
    if (value > INT64_MAX || value < -INT64_MAX) throw std::overflow_error("rational: does not fit 64 bits");
    return static_cast<std::int64_t>(value);
  }

  std::int64_t numerator_ = 0;
  std::int64_t denominator_ = 1;
};

[[nodiscard]] constexpr rational power(rational base, int exponent) {
  rational result{1};
  for (int i = 0; i < exponent; ++i) result *= base;
  return result;
}

/// The fraction with a denominator that divides `common` for which a double stands. Throws when none is near.
[[nodiscard]] inline rational exactly(double value, std::int64_t common) {
  double const multiple = std::round(value * static_cast<double>(common));
  if (!(std::abs(value - multiple / static_cast<double>(common)) < 1e-12))
    throw std::domain_error("exactly: no such fraction");
  return {static_cast<std::int64_t>(multiple), common};
}

}  // namespace turnwise::test

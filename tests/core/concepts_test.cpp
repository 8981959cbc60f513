#include <turnwise/core/concepts.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>

#include <array>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace {

/// bfloat16 as a user would write it: no arithmetic, an explicit conversion.
struct short_float {
  std::uint16_t bits;
  explicit constexpr operator float() const { return static_cast<float>(bits); }
};
struct opaque {
  std::uint16_t bits;
};
enum class code : std::uint8_t { a };
enum old_code : std::uint8_t { b };

template <typename T>
void takes_span(turnwise::no_deduce<std::span<T const>> in, std::span<T> out) {
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = in[i];
}

}  // namespace

TEST_SUITE("core/concepts") {
  TEST_CASE("rewards are float or double and nothing else") {
    static_assert(turnwise::real<float> && turnwise::real<double>);
    static_assert(!turnwise::real<long double> && !turnwise::real<int> && !turnwise::real<bool>);
    static_assert(!turnwise::real<Eigen::half> && !turnwise::real<float const> && !turnwise::real<float&>);
  }

  TEST_CASE("log-probs are double or convert exactly to float") {
    static_assert(turnwise::logprob_value<float> && turnwise::logprob_value<double>);
    static_assert(turnwise::logprob_value<Eigen::half> && turnwise::logprob_value<Eigen::bfloat16>);
    static_assert(turnwise::logprob_value<short_float>);
  }

  TEST_CASE("integers, enums and types without a conversion are no log-probs") {
    static_assert(!turnwise::logprob_value<int> && !turnwise::logprob_value<std::int64_t> &&
                  !turnwise::logprob_value<bool>);
    static_assert(!turnwise::logprob_value<std::int16_t> && !turnwise::logprob_value<std::uint16_t>);
    static_assert(!turnwise::logprob_value<std::int8_t> && !turnwise::logprob_value<std::uint8_t> &&
                  !turnwise::logprob_value<char>);
    static_assert(!turnwise::logprob_value<code> && !turnwise::logprob_value<old_code> &&
                  !turnwise::logprob_value<std::byte>);
    static_assert(!turnwise::logprob_value<opaque> && !turnwise::logprob_value<std::complex<float>>);
    static_assert(!turnwise::logprob_value<long double> && !turnwise::logprob_value<std::string> &&
                  !turnwise::logprob_value<float*>);
  }

  TEST_CASE("a log ratio is formed in double when either side is double") {
    static_assert(std::same_as<turnwise::log_ratio_t<float, float>, float>);
    static_assert(std::same_as<turnwise::log_ratio_t<Eigen::half, Eigen::bfloat16>, float>);
    static_assert(std::same_as<turnwise::log_ratio_t<short_float, float>, float>);
    static_assert(std::same_as<turnwise::log_ratio_t<double, float>, double>);
    static_assert(std::same_as<turnwise::log_ratio_t<Eigen::half, double>, double>);
  }

  TEST_CASE("inputs convert from vectors and arrays when the output fixes the type") {
    std::vector<double> const in{1, 2};
    std::vector<double> out(2);
    takes_span(in, std::span{out});
    CHECK(out == in);
    std::array const other{3.0, 4.0};
    takes_span(other, std::span{out});
    CHECK(out == std::vector{3.0, 4.0});
  }

  TEST_CASE_TEMPLATE("within_limit refuses NaN, infinity and what could overflow in a sum of squares", T, float,
                     double) {
    T const limit = static_cast<T>(turnwise::magnitude_limit<T>);
    CHECK(turnwise::within_limit(T{0}));
    CHECK(turnwise::within_limit(limit));
    CHECK(turnwise::within_limit(-limit));
    CHECK(!turnwise::within_limit(limit * 2));
    CHECK(!turnwise::within_limit(-limit * 2));
    CHECK(!turnwise::within_limit(std::numeric_limits<T>::infinity()));
    CHECK(!turnwise::within_limit(-std::numeric_limits<T>::infinity()));
    CHECK(!turnwise::within_limit(std::numeric_limits<T>::quiet_NaN()));
  }

  TEST_CASE("the limits are 2^100 and 2^500") {
    CHECK(turnwise::magnitude_limit<float> == 1267650600228229401496703205376.0);
    CHECK(turnwise::magnitude_limit<double> == 0x1p500);
  }

}  // TEST_SUITE

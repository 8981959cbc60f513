#include "support/ragged.hpp"
#include "support/rational.hpp"

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/advantage/gae.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using doctest::Contains;
using turnwise::precondition_error;
using turnwise::advantage::gae;
using turnwise::advantage::gae_options;
using turnwise::advantage::token_segments;
using turnwise::test::integers;
using turnwise::test::rational;

namespace {

using offsets = std::vector<std::int64_t>;
using bytes = std::vector<std::uint8_t>;

template <typename T>
struct outputs {
  std::vector<T> advantage, target;
  bool operator==(outputs const&) const = default;
};

template <typename T>
outputs<T> run(token_segments<T> const& segments, std::vector<T> const& reward, std::vector<T> const& value,
               gae_options const& options) {
  outputs<T> out{std::vector<T>(reward.size(), T{-77}), std::vector<T>(reward.size(), T{-77})};
  gae(segments, reward, value, options, std::span{out.advantage}, out.target);
  return out;
}

/// Segments of many sizes, many of them empty, tokens with gaps in the mask, garbage wherever nothing is read.
template <typename T>
struct random_segments {
  offsets ends{0};
  bytes cut, mask;
  std::vector<T> next_value, reward, value;

  explicit random_segments(std::uint64_t seed, std::int64_t count = 60, std::int64_t most = 40) {
    integers random{seed};
    T const garbage = std::numeric_limits<T>::quiet_NaN();
    for (std::int64_t k = 0; k < count; ++k) {
      std::int64_t const tokens = random.below(3) == 0 ? 0 : random.below(most);
      cut.push_back(random.below(2) == 0);
      next_value.push_back(cut.back() != 0 && tokens > 0 ? turnwise::test::uneven_number<T>(random) : garbage);
      bool const all = random.below(3) == 0;
      bool const none = random.below(8) == 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        mask.push_back(!none && (all || random.below(3) != 0));
        reward.push_back(mask.back() != 0 ? turnwise::test::uneven_number<T>(random) : garbage);
        value.push_back(mask.back() != 0 ? turnwise::test::uneven_number<T>(random) : -garbage);
      }
      ends.push_back(static_cast<std::int64_t>(reward.size()));
    }
  }
  [[nodiscard]] token_segments<T> view() const {
    return {.offsets = ends, .cut = cut, .next_value = next_value, .mask = mask};
  }
  [[nodiscard]] std::size_t first(std::size_t k) const { return static_cast<std::size_t>(ends[k]); }
  /// Unmasked tokens of segment k.
  [[nodiscard]] std::vector<std::size_t> tokens(std::size_t k) const {
    std::vector<std::size_t> result;
    for (std::size_t n = first(k); n < first(k + 1); ++n)
      if (mask[n] != 0) result.push_back(n);
    return result;
  }
  [[nodiscard]] double bootstrap(std::size_t k) const {
    return cut[k] != 0 && first(k) < first(k + 1) ? static_cast<double>(next_value[k]) : 0.0;
  }
};

template <typename T>
void check_near(T got, double wanted, double scale = 1) {
  CHECK(std::abs(static_cast<double>(got) - wanted) <= (sizeof(T) == 4 ? 2e-7 : 1e-13) * (std::abs(wanted) + scale));
}

}  // namespace

TEST_SUITE("advantage/gae") {
  TEST_CASE_TEMPLATE("hand numbers: gamma 1/2, lambda 1/2", T, float, double) {
    // delta = (1 + 1 - 4, 2 + 4 - 2, 3 - 8) = (-2, 4, -5); A = (-2 + (4 - 5/4)/4, 4 - 5/4, -5).
    offsets const ends{0, 3};
    auto const out = run<T>({.offsets = ends}, {1, 2, 3}, {4, 2, 8}, {.gamma = 0.5, .lambda = 0.5});
    CHECK(out.advantage == std::vector<T>{T(-1.3125), T(2.75), T(-5)});
    CHECK(out.target == std::vector<T>{T(2.6875), T(4.75), T(3)});
  }

  TEST_CASE_TEMPLATE("MP-07: a cut episode bootstraps, an ended one does not, and neither leaks into the next", T,
                     float, double) {
    std::vector<T> const rewards{1, 1, 1}, values{T(0.5), T(0.5), T(0.5)};
    double const ended[]{1.25, 1, 0.5}, stopped[]{1.35, 1.2, 0.9};
    gae_options const options{.gamma = 0.5, .lambda = 1};
    for (std::size_t const segments : {1u, 2u, 7u}) {
      offsets ends{0};
      bytes cut;
      std::vector<T> next, reward, value;
      for (std::size_t k = 0; k < segments; ++k) {
        cut.push_back(k % 2 == 0);
        next.push_back(T(0.8));
        reward.insert(reward.end(), rewards.begin(), rewards.end());
        value.insert(value.end(), values.begin(), values.end());
        ends.push_back(static_cast<std::int64_t>(reward.size()));
      }
      auto const out = run<T>({.offsets = ends, .cut = cut, .next_value = next}, reward, value, options);
      auto const all_ended = run<T>({.offsets = ends}, reward, value, options);
      for (std::size_t n = 0; n < reward.size(); ++n) {
        check_near(out.advantage[n], n / 3 % 2 == 0 ? stopped[n % 3] : ended[n % 3]);
        check_near(all_ended.advantage[n], ended[n % 3]);
      }
    }
  }

  TEST_CASE("exact fractions: every gamma and lambda in eighths, cut and ended") {
    rational const reward[]{3, {-1, 2}, {5, 4}, 2}, value[]{{1, 2}, 2, -1, {3, 4}};
    rational const next{-3, 2};
    offsets const ends{0, 4};
    bytes const cut{1};
    auto const number = [](rational q) {
      return static_cast<double>(q.numerator()) / static_cast<double>(q.denominator());
    };
    std::vector<double> r, v;
    for (auto const q : reward) r.push_back(number(q));
    for (auto const q : value) v.push_back(number(q));
    std::vector<double> const boot{number(next)};
    for (int g = 0; g <= 8; ++g)
      for (int l = 0; l <= 8; ++l)
        for (bool const is_cut : {false, true}) {
          rational const gamma{g, 8}, lambda{l, 8};
          token_segments<double> segments{.offsets = ends};
          if (is_cut) segments.cut = cut, segments.next_value = boot;
          auto const out = run<double>(segments, r, v, {.gamma = g / 8.0, .lambda = l / 8.0});
          for (int t = 0; t < 4; ++t) {
            rational sum;
            for (int j = t; j < 4; ++j) {
              rational const after = j < 3 ? value[j + 1] : is_cut ? next : rational{};
              sum += turnwise::test::power(gamma * lambda, j - t) * (reward[j] + gamma * after - value[j]);
            }
            CHECK(out.advantage[static_cast<std::size_t>(t)] == number(sum));  // all are multiples of 2^-26
            CHECK(out.target[static_cast<std::size_t>(t)] == number(sum + value[t]));
          }
        }
  }

  TEST_CASE_TEMPLATE("the definition's double sum over the unmasked tokens, ragged with empty segments", T, float,
                     double) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      random_segments<T> const batch{seed};
      gae_options const options{.gamma = 0.97, .lambda = seed % 2 == 0 ? 0.9 : 1.0};
      auto const out = run<T>(batch.view(), batch.reward, batch.value, options);
      for (std::size_t n = 0; n < batch.reward.size(); ++n)
        if (batch.mask[n] == 0) {
          CHECK(out.advantage[n] == 0);
          CHECK(out.target[n] == 0);
        }
      for (std::size_t k = 0; k + 1 < batch.ends.size(); ++k) {
        auto const tokens = batch.tokens(k);
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          double sum = 0, scale = 0, weight = 1;
          for (std::size_t j = i; j < tokens.size(); ++j, weight *= options.gamma * options.lambda) {
            double const after =
                j + 1 < tokens.size() ? static_cast<double>(batch.value[tokens[j + 1]]) : batch.bootstrap(k);
            double const value = static_cast<double>(batch.value[tokens[j]]);
            sum += weight * (static_cast<double>(batch.reward[tokens[j]]) + options.gamma * after - value);
            scale += weight * (std::abs(value) + std::abs(after));
          }
          check_near(out.advantage[tokens[i]], sum, scale * 1e-3);
          check_near(out.target[tokens[i]], sum + static_cast<double>(batch.value[tokens[i]]), 1 + scale * 1e-3);
        }
      }
    }
  }

  TEST_CASE("lambda = 1: the advantage is the discounted return minus the value; lambda = 0: one difference") {
    random_segments<double> const batch{11};
    double const gamma = 0.9;
    auto const whole = run<double>(batch.view(), batch.reward, batch.value, {.gamma = gamma, .lambda = 1});
    auto const step = run<double>(batch.view(), batch.reward, batch.value, {.gamma = gamma, .lambda = 0});
    for (std::size_t k = 0; k + 1 < batch.ends.size(); ++k) {
      auto const tokens = batch.tokens(k);
      double later = batch.bootstrap(k), after = later;
      for (std::size_t i = tokens.size(); i-- > 0;) {
        std::size_t const n = tokens[i];
        later = turnwise::advantage::discounted_step(batch.reward[n], gamma, later);
        check_near(whole.advantage[n], later - batch.value[n], 100);
        check_near(whole.target[n], later, 100);
        CHECK(step.advantage[n] == std::fma(gamma, after, batch.reward[n]) - batch.value[n]);
        after = batch.value[n];
      }
    }
  }

  TEST_CASE("turn by turn: offsets of trajectories, and the returns of discounted_return where the values are 0") {
    turnwise::test::ragged_batch<double> const batch{
        {{.id = 1, .turns = {1, 2, 4}}, {.id = 2, .turns = {}}, {.id = 3, .turns = {-3, 5}}}};
    std::vector<double> const zeros(batch.turns());
    std::vector<double> turn_return(batch.turns());
    auto reasons = batch.reasons();
    turnwise::advantage::discounted_return(batch.view(), batch.value, {.gamma = 0.4}, reasons, std::span{turn_return});
    auto const out = run<double>({.offsets = batch.offsets}, batch.value, zeros, {.gamma = 0.4, .lambda = 1});
    CHECK(out.advantage == turn_return);
    CHECK(out.target == turn_return);
  }

  TEST_CASE_TEMPLATE("masked tokens: the same as without them, whatever stands there", T, float, double) {
    offsets const ends{0, 3, 6}, wide{0, 6, 11};
    bytes const cut{1, 0}, mask{0, 1, 0, 1, 1, 0, 1, 1, 0, 0, 1};
    std::vector<T> const next{T(0.7), std::numeric_limits<T>::infinity()};
    std::vector<T> const reward{1, 2, 3, 4, 5, 6}, value{6, 2, 1, 7, 0, 4};
    std::vector<T> wide_reward(11, std::numeric_limits<T>::quiet_NaN());
    std::vector<T> wide_value(11, std::numeric_limits<T>::infinity());
    for (std::size_t n = 0, i = 0; n < 11; ++n)
      if (mask[n] != 0) wide_reward[n] = reward[i], wide_value[n] = value[i++];
    gae_options const options{.gamma = 0.9, .lambda = 0.8};
    auto const packed = run<T>({.offsets = ends, .cut = cut, .next_value = next}, reward, value, options);
    auto const masked =
        run<T>({.offsets = wide, .cut = cut, .next_value = next, .mask = mask}, wide_reward, wide_value, options);
    for (std::size_t n = 0, i = 0; n < 11; ++n) {
      CHECK(masked.advantage[n] == (mask[n] != 0 ? packed.advantage[i] : T{0}));
      CHECK(masked.target[n] == (mask[n] != 0 ? packed.target[i] : T{0}));
      i += mask[n] != 0;
    }
  }

  TEST_CASE("a segment without an unmasked token, and one without any") {
    offsets const ends{0, 0, 2, 2};
    bytes const cut{1, 1, 1}, mask{0, 0};
    std::vector<double> const next{std::nan(""), 3, std::nan("")}, none(2, std::nan(""));
    auto const out = run<double>({.offsets = ends, .cut = cut, .next_value = next, .mask = mask}, none, none, {});
    CHECK(out.advantage == std::vector<double>{0, 0});
    CHECK(out.target == std::vector<double>{0, 0});
  }

  TEST_CASE_TEMPLATE("a value that foresees the reward gives exactly 0", T, float, double) {
    std::size_t const n = 1000;
    offsets const ends{0, static_cast<std::int64_t>(n)};
    std::vector<T> const reward(n), value(n, T(0.3));
    bytes const cut{1};
    std::vector<T> const next{T(0.3)};
    auto const out = run<T>({.offsets = ends, .cut = cut, .next_value = next}, reward, value, {.lambda = 0.95});
    CHECK(out.advantage == std::vector<T>(n));
    CHECK(out.target == value);
  }

  TEST_CASE("the same bits for any order of segments and any number of threads") {
    random_segments<float> const batch{5, 4000, 200};
    auto const expected =
        run<float>(batch.view(), batch.reward, batch.value, {.gamma = 0.99, .lambda = 0.95, .threads = 1});
    for (int const threads : {0, 2, 3})
      CHECK(run<float>(batch.view(), batch.reward, batch.value, {.gamma = 0.99, .lambda = 0.95, .threads = threads}) ==
            expected);
    // The last segment alone.
    std::size_t const begin = batch.first(3999);
    auto const tail = [&](auto const& all) {
      return std::vector(all.begin() + static_cast<std::ptrdiff_t>(begin), all.end());
    };
    offsets const ends{0, batch.ends.back() - batch.ends[3999]};
    bytes const cut{batch.cut.back()}, mask = tail(batch.mask);
    std::vector<float> const next{batch.next_value.back()};
    auto const alone = run<float>({.offsets = ends, .cut = cut, .next_value = next, .mask = mask}, tail(batch.reward),
                                  tail(batch.value), {.gamma = 0.99, .lambda = 0.95});
    CHECK(alone.advantage == tail(expected.advantage));
  }

  TEST_CASE("one output alone, and outputs over the inputs") {
    random_segments<double> const batch{6};
    gae_options const options{.gamma = 0.9, .lambda = 0.7};
    auto const expected = run<double>(batch.view(), batch.reward, batch.value, options);
    std::vector<double> only(batch.reward.size());
    gae(batch.view(), batch.reward, batch.value, options, std::span{only});
    CHECK(only == expected.advantage);
    gae<double>(batch.view(), batch.reward, batch.value, options, {}, only);
    CHECK(only == expected.target);
    for (bool const crossed : {false, true}) {
      auto reward = batch.reward, value = batch.value;
      gae(batch.view(), reward, value, options, std::span{crossed ? value : reward}, crossed ? reward : value);
      CHECK((crossed ? value : reward) == expected.advantage);
      CHECK((crossed ? reward : value) == expected.target);
    }
  }

  TEST_CASE("empty spans that have an address are no mask and no output") {
    offsets const ends{0, 2};
    bytes const mask{0, 0};
    std::vector<double> const ones{1, 1};
    std::vector<double> out{9, 9};
    gae({.offsets = ends, .mask = std::span{mask}.first(0)}, ones, ones, {}, std::span{out}, std::span{out}.first(0));
    CHECK(out == std::vector<double>{1, 0});
  }

  TEST_CASE("the largest numbers stay finite") {
    offsets const ends{0, 3};
    float const big = 0x1p100f;
    auto const out = run<float>({.offsets = ends}, {big, big, big}, {-big, -big, -big}, {});
    CHECK(out.advantage == std::vector<float>{4 * big, 3 * big, 2 * big});
    double const wide = 0x1p500;
    CHECK(run<double>({.offsets = ends}, {wide, wide, wide}, {0, 0, 0}, {}).advantage[0] == 3 * wide);
  }

  TEST_CASE("no tokens") {
    CHECK(run<float>({}, {}, {}, {}).advantage.empty());
    offsets const ends{0, 0, 0};
    CHECK(run<float>({.offsets = ends}, {}, {}, {}).advantage.empty());
  }

  TEST_CASE_TEMPLATE("MP-04: every error names the argument and leaves the outputs alone", T, float, double) {
    offsets ends{0, 2, 2, 5};
    bytes cut{1, 1, 0}, mask{1, 1, 1, 0, 1};
    std::vector<T> next{1, 2, 3}, reward(5, T{1}), value(5, T{1}), advantage(5, T{9}), target(5, T{9});
    gae_options options;
    auto const call = [&] {
      gae({.offsets = ends, .cut = cut, .next_value = next, .mask = mask}, reward, value, options, std::span{advantage},
          target);
    };
    auto const refused = [&](char const* text) {
      auto const before = advantage;
      CHECK_THROWS_WITH_AS(call(), Contains(text), precondition_error);
      CHECK(advantage == before);
      CHECK(target == std::vector<T>(target.size(), T{9}));
    };
    T const nan = std::numeric_limits<T>::quiet_NaN(), infinity = std::numeric_limits<T>::infinity();
    T const large = static_cast<T>(turnwise::magnitude_limit<T>) * 2;
    SUBCASE("value") {
      value.pop_back();
      refused("gae: value has 4 elements, expected 5");
    }
    SUBCASE("mask") {
      mask.push_back(1);
      refused("gae: mask has 6 elements, expected 5");
    }
    SUBCASE("cut") {
      cut.pop_back();
      refused("gae: cut has 2 elements, expected 3");
    }
    SUBCASE("next_value") {
      next.pop_back();
      refused("gae: next_value has 2 elements, expected 3");
      next.clear();
      refused("gae: next_value has 0 elements, expected 3");
    }
    SUBCASE("next_value without cut") {
      cut.clear();
      refused("gae: next_value without cut");
    }
    SUBCASE("advantage and target") {
      advantage.pop_back();
      refused("gae: advantage has 4 elements, expected 5");
      advantage.push_back(9);
      target.pop_back();
      refused("gae: target has 4 elements, expected 5");
    }
    SUBCASE("offsets") {
      ends = {1, 2, 2, 5};
      refused("gae: offsets[0] is 1");
      ends = {0, 3, 2, 5};
      refused("gae: offsets[2] = 2 is less than the offset before it, 3");
      ends = {0, 2, 2, 4};
      refused("gae: the last offset is 4, expected the number of tokens, 5");
      ends.clear();
      cut.clear();
      next.clear();
      refused("gae: offsets name no segment, but there are 5 tokens");
    }
    SUBCASE("gamma and lambda") {
      for (double const bad : {-0.1, 1.1, std::nan("")}) {
        options = {.gamma = bad};
        refused("gae: gamma = ");
        options = {.lambda = bad};
        refused("gae: lambda = ");
      }
    }
    SUBCASE("an unmasked token, the first bad one") {
      for (T const bad : {nan, infinity, -infinity, large, -large}) {
        for (std::size_t const n : {4u, 1u}) {
          reward[n] = bad;
          refused(n == 4 ? "gae: reward[4] = " : "gae: reward[1] = ");
        }
        reward.assign(5, T{1});
        value[2] = bad;
        refused("gae: value[2] = ");
        value.assign(5, T{1});
        reward[3] = value[3] = bad;  // masked
        next[1] = next[2] = bad;     // of an empty segment, of an ended one
        CHECK_NOTHROW(call());
        advantage.assign(5, T{9});
        target.assign(5, T{9});
        next[0] = bad;
        refused("gae: next_value[0] = ");
        next[0] = 1;
      }
    }
    SUBCASE("in the middle of many, with several threads") {
      std::size_t const n = 700'000;
      ends = {0, 2, 2, static_cast<std::int64_t>(n)};
      for (auto* numbers : {&reward, &value}) numbers->assign(n, T{1});
      advantage.assign(n, T{9});
      target.assign(n, T{9});
      mask.assign(n, 1);
      reward[600'001] = reward[410'007] = reward[410'009] = nan;
      mask[410'007] = 0;
      options.threads = 2;
      refused("gae: reward[410009] = ");
    }
  }

}  // TEST_SUITE

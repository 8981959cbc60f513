#include "support/batches.hpp"

#include <turnwise/loss/value_clip.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace turnwise;
using loss::value_clip;
using loss::value_clip_options;
using loss::value_error;
using loss::value_inputs;
using loss::value_record;
using loss::value_term;
using test::infinity;
using test::nan_value;

/// Turns of the given sizes, one after the other, in one trajectory.
struct turns_of {
  std::vector<std::int64_t> begin, end, offsets{0}, id{0};
  explicit turns_of(std::vector<std::int64_t> const& sizes) {
    std::int64_t next = 0;
    for (std::int64_t const size : sizes) {
      begin.push_back(next);
      end.push_back(next += size);
    }
    offsets.push_back(static_cast<std::int64_t>(sizes.size()));
  }
  [[nodiscard]] rollout_view view() const { return {begin, end, offsets, id, id, {}, {}}; }
};

bool is(loss::value_terms const& terms, double loss, double slope, bool clipped) {
  return terms.loss == loss && terms.slope == slope && terms.clipped == clipped;
}

}  // namespace

TEST_SUITE("loss/value_clip") {
  TEST_CASE("one token by hand: the larger of the two errors, and no gradient where that is the clipped one") {
    value_clip_options const half{.clip = 0.5};
    CHECK(is(value_term(1.25, 1, 3, half), 0.5 * 1.75 * 1.75, -1.75, false));  // inside the clip
    CHECK(is(value_term(1.5, 1, 3, half), 0.5 * 1.5 * 1.5, -1.5, false));      // on its edge
    CHECK(is(value_term(2, 1, 3, half), 0.5 * 1.5 * 1.5, 0, true));            // moved towards the target: cut
    CHECK(is(value_term(0, 1, 3, half), 0.5 * 3 * 3, -3, false));              // moved away: whole
    CHECK(is(value_term(0, 1, -3, half), 0.5 * 3.5 * 3.5, 0, true));
    CHECK(is(value_term(2, 1, -3, half), 0.5 * 5 * 5, 5, false));
    CHECK(is(value_term(2, 1, 1.75, half), 0.5 * 0.25 * 0.25, 0.25, false));  // both errors equal: the plain one
    CHECK(is(value_term(2, 1, 3, {.clip = infinity}), 0.5, -1, false));
  }

  TEST_CASE("Huber: quadratic within delta, linear beyond, clipped or not") {
    value_clip_options const options{.clip = infinity, .error = value_error::huber, .huber_delta = 2};
    CHECK(is(value_term(1.5, 0, 0, options), 1.125, 1.5, false));
    CHECK(is(value_term(-2, 0, 0, options), 2, -2, false));
    CHECK(is(value_term(5, 0, 0, options), 8, 2, false));
    CHECK(is(value_term(-5, 0, 0, options), 8, -2, false));
    value_clip_options const clipped{.clip = 1, .error = value_error::huber, .huber_delta = 2};
    CHECK(is(value_term(4, 1, 9, clipped), 2 * (7 - 1), 0, true));
  }

  TEST_CASE("slopes are derivatives: central differences off the edges") {
    for (double const delta : {0.4, 100.0})
      for (double const target : {-1.3, 0.05, 0.9, 3.0})
        for (double value = -2.03; value < 3; value += 0.11) {
          value_clip_options const options{.clip = 0.5, .error = value_error::huber, .huber_delta = delta};
          double const h = 1e-6;
          double const difference =
              (value_term(value + h, 0.3, target, options).loss - value_term(value - h, 0.3, target, options).loss) /
              (2 * h);
          CAPTURE(value);
          CHECK(value_term(value, 0.3, target, options).slope == doctest::Approx(difference).epsilon(1e-5));
        }
  }

  TEST_CASE_TEMPLATE("a batch: scales of turns, masks, and what is in no turn", T, float, double) {
    std::vector<std::int64_t> const begin{1, 4, 6}, end{4, 6, 7}, offsets{0, 3}, id{0};
    rollout_view const batch{begin, end, offsets, id, id, {}, {}};
    std::vector<T> const value{5, 1, 2, 3, 4, 0, 8, 5}, old_value{5, 1, 1, 1, 4, 0, 8, 5};
    std::vector<T> const target{9, 2, 2, 4, 2, 1, 9, 9};
    std::vector<std::uint8_t> const mask{1, 1, 1, 1, 1, 0, 1, 1};
    std::vector<T> gradient(8, 7);
    // token 1: e = 1/2; 2: moved by 1, clipped to 1.5: 1/8 > 0; 3: clipped to 1.5: 2.5^2/2 > 1/2; 4: 2
    auto const record = value_clip<T>(batch, {value, old_value, target, mask}, {.clip = 0.5},
                                      std::vector<double>{0.5, 0.25, 0}, gradient);
    CHECK(record == value_record{.loss = 0.5 * (0.5 + 0.125 + 3.125) + 0.25 * 2, .tokens = 4, .clipped = 2});
    CHECK(record.clip_fraction() == 0.5);
    CHECK(gradient == std::vector<T>{0, T(-0.5), 0, 0, T(0.5), 0, 0, 0});
  }

  TEST_CASE_TEMPLATE("bad numbers: counted, gradient 0, no other token touched; masked ones not read", T, float,
                     double) {
    auto const inf = static_cast<T>(infinity);
    auto const nan = static_cast<T>(nan_value);
    std::vector<T> const value{1, nan, 1, 1, largest<T>, nan, 1}, old_value{1, 1, -inf, 1, 1, nan, 1};
    std::vector<T> const target{0, 0, 0, inf, 0, nan, 0};
    std::vector<std::uint8_t> const mask{1, 1, 1, 1, 1, 0, 1};
    turns_of const turns{{3, 4}};
    std::vector<T> gradient(7, 9);
    std::vector<double> const scale{1, 2};
    auto const record = value_clip<T>(turns.view(), {value, old_value, target, mask}, {}, scale, gradient);
    CHECK(record == value_record{.loss = 1.5, .tokens = 2, .non_finite = 4});
    CHECK(gradient == std::vector<T>{1, 0, 0, 0, 0, 0, 2});
    // without a clip old values are not read, and may be missing
    CHECK(value_clip<T>(turns.view(), {value, old_value, target, mask}, {.clip = infinity}, scale, gradient).tokens ==
          3);
    CHECK(value_clip<T>(turns.view(), {value, {}, target, mask}, {.clip = infinity}, scale, gradient).tokens == 3);
  }

  TEST_CASE("terms too large: counted and left out, so that scales of both signs give no NaN") {
    std::vector<double> const value{0x1p500, 0x1p500, 2}, target{-0x1p500, -0x1p500, 1};
    turns_of const turns{{1, 1, 1}};
    std::vector<double> gradient(3, 9);
    auto const record = value_clip<double>(turns.view(), {value, {}, target, {}}, {.clip = infinity},
                                           std::vector<double>{0x1p500, -0x1p500, 1}, gradient);
    CHECK(record == value_record{.loss = 0.5, .tokens = 1, .non_finite = 2});
    CHECK(gradient == std::vector<double>{0, 0, 1});
    std::vector<double> const small{0x1p400, 0, 2}, none(3);
    auto const large = value_clip<double>(turns.view(), {small, {}, none, {}}, {.clip = infinity},
                                          std::vector<double>{0x1p100, 1, 1}, gradient);
    CHECK(large == value_record{.loss = 0x1p899, .tokens = 3});
    CHECK(gradient == std::vector<double>{0x1p500, 0, 2});
  }

  TEST_CASE("everything rejected, no tokens, no turns: 0") {
    std::vector<double> const one{1, nan_value};
    std::vector<double> gradient(2, 9);
    turns_of const turn{{2, 0}};
    CHECK(value_clip<double>(turn.view(), {one, one, one, {}}, {}, std::vector<double>{0, 1}, gradient) ==
          value_record{});
    CHECK(gradient == std::vector<double>{0, 0});
    CHECK(value_clip<double>({}, {}, {}, {}, {}).clip_fraction() == 0);
  }

  TEST_CASE("micro-batches add up, and the bits do not depend on the threads") {
    test::integers random{11};
    std::vector<double> value, old_value, target, scale;
    std::vector<std::int64_t> sizes;
    for (int i = 0; i < 5000; ++i) {
      value.push_back(static_cast<double>(random.below(4096)) * 0x1p-10);
      old_value.push_back(value.back() + static_cast<double>(random.below(1024) - 512) * 0x1p-10);
      target.push_back(static_cast<double>(random.below(4096)) * 0x1p-10);
    }
    for (int s = 0; s < 50; ++s) {
      sizes.push_back(100);
      scale.push_back(1.0 / static_cast<double>(1 + random.below(9)));
    }
    turns_of const turns{sizes};
    std::vector<double> gradient(5000), other(5000);
    auto const whole = value_clip<double>(turns.view(), {value, old_value, target, {}}, {}, scale, gradient, 1);
    CHECK(value_clip<double>(turns.view(), {value, old_value, target, {}}, {}, scale, other, 6) == whole);
    CHECK(other == gradient);
    CHECK(whole.clipped > 100);

    value_record total;
    for (std::size_t s = 0; s < 50; ++s) {
      turns_of const part{{100}};
      auto const cut = [&](std::vector<double> const& all) { return std::span(all).subspan(100 * s, 100); };
      total += value_clip<double>(part.view(), {cut(value), cut(old_value), cut(target), {}}, {},
                                  std::span(scale).subspan(s, 1), std::span(other).subspan(100 * s, 100));
    }
    CHECK(total.loss == doctest::Approx(whole.loss).epsilon(1e-12));
    CHECK(total.clipped == whole.clipped);
    CHECK(other == gradient);
  }

  TEST_CASE("bad arguments throw, and nothing is written") {
    std::vector<double> const two(2), three(3);
    std::vector<std::uint8_t> const mask(3);
    std::vector<double> const scale{1};
    std::vector<double> gradient(2, 9);
    turns_of const turn{{2}};
    auto const throws = [&](value_inputs<double> const& in, value_clip_options const& options,
                            std::vector<double> const& scales, std::span<double> out) {
      CHECK_THROWS_AS(value_clip<double>(turn.view(), in, options, scales, out), precondition_error);
    };
    throws({two, three, two, {}}, {}, scale, gradient);
    throws({two, {}, two, {}}, {}, scale, gradient);
    throws({two, two, three, {}}, {}, scale, gradient);
    throws({two, two, two, mask}, {}, scale, gradient);
    throws({two, two, two, {}}, {}, two, gradient);
    throws({two, two, two, {}}, {}, {nan_value}, gradient);
    throws({two, two, two, {}}, {}, {infinity}, gradient);
    throws({two, two, two, {}}, {}, scale, std::span(gradient).first(1));
    std::vector<double> const one(1);
    std::vector<double> small(1);
    throws({one, one, one, {}}, {}, scale, small);  // the turn's tokens leave the arrays
    std::vector<std::int64_t> const begin{0, 1}, end{2, 2}, offsets{0, 2}, id{0};
    CHECK_THROWS_AS(value_clip<double>({begin, end, offsets, id, id, {}, {}}, {two, two, two, {}}, {}, two, gradient),
                    precondition_error);
    for (double const bad : {0.0, -1.0, nan_value}) throws({two, two, two, {}}, {.clip = bad}, scale, gradient);
    for (double const bad : {0.0, -1.0, nan_value, infinity})
      throws({two, two, two, {}}, {.error = value_error::huber, .huber_delta = bad}, scale, gradient);
    CHECK(gradient == std::vector<double>{9, 9});
  }
}

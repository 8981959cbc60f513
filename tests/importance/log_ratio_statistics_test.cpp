#include <turnwise/importance/log_ratio_statistics.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace turnwise;
using namespace turnwise::importance;

constexpr double inf = std::numeric_limits<double>::infinity();

/// The least that a user's 16-bit type offers.
struct brain_float {
  std::uint16_t bits = 0;
  brain_float() = default;
  explicit brain_float(float value) : bits(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)) {}
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};
static_assert(logprob_value<brain_float> && logprob_value<Eigen::half> && logprob_value<Eigen::bfloat16>);

/// Long double sums of a turn, with the magnitudes that bound the error of their double versions.
struct exact_moments {
  long double k3 = 0;
  long double excess_squared = 0;
  long double ratio = 0;
  long double ratio_squared = 0;
  long double rollout_logprob = 0;
  long double rollout_magnitude = 0;
};

struct reference {
  turn_statistics statistics;
  exact_moments moments;
};

template <typename Wide>
Wide as_wide(auto value) {
  return static_cast<Wide>(value);
}

/// One token after the other, in integers and long double.
template <typename Old, typename Rollout>
reference reference_of(Old const* old_logprob, Rollout const* rollout_logprob, std::uint8_t const* mask,
                       std::size_t size) {
  using wide = std::conditional_t<std::is_same_v<Old, double> || std::is_same_v<Rollout, double>, double, float>;
  reference result;
  turn_statistics& s = result.statistics;
  for (std::size_t i = 0; i < size; ++i) {
    if (mask != nullptr && mask[i] == 0) continue;
    wide const d = as_wide<wide>(old_logprob[i]) - as_wide<wide>(rollout_logprob[i]);
    if (!std::isfinite(d)) {
      ++s.non_finite;
      continue;
    }
    double const value = d == 0 ? 0.0 : static_cast<double>(d);
    double const clamped = std::fmin(64.0, std::fmax(-64.0, value));
    ++s.count;
    s.sum += static_cast<std::int64_t>(std::nearbyint(clamped * 0x1p24));
    s.min = std::fmin(s.min, value);
    s.max = std::fmax(s.max, value);
    s.saturated += std::fabs(value) > 64.0;

    exact_moments& m = result.moments;
    long double const x = std::nearbyint(clamped * 0x1p24) * 0x1p-24;
    long double k3 = std::expm1(x) - x;
    if (std::fabs(x) < 0.01L) k3 = x * x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7)))));
    long double const rollout = static_cast<long double>(as_wide<wide>(rollout_logprob[i]));
    m.k3 += k3;
    m.excess_squared += std::expm1(x) * std::expm1(x);
    m.ratio += std::exp(x);
    m.ratio_squared += std::exp(2 * x);
    m.rollout_logprob += rollout;
    m.rollout_magnitude += std::fabs(rollout);
  }
  return result;
}

bool same_bits(turn_statistics const& a, turn_statistics const& b) { return std::memcmp(&a, &b, sizeof a) == 0; }
bool same_bits(ratio_moments const& a, ratio_moments const& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

bool near(double value, long double exact, long double bound) {
  return std::isfinite(value) && std::fabs(static_cast<long double>(value) - exact) <= bound;
}

/// Within 1e-7 (k3) and 2e-8 a ratio, and what the double sums add to that.
bool within_bounds(ratio_moments const& moments, reference const& exact) {
  turn_statistics const& s = exact.statistics;
  exact_moments const& m = exact.moments;
  long double const n = static_cast<long double>(s.count);
  long double const sums = n * 0x1p-52L;
  // The square of the excess moves by 2 |excess| times an error of 2e-8 of max(1, ratio).
  return moments.k3 >= 0 && near(moments.k3, m.k3, (1e-7L + sums) * m.k3) &&
         near(moments.excess_squared, m.excess_squared,
              4.1e-8L * (m.excess_squared + std::sqrt(m.excess_squared * n)) + sums * m.excess_squared) &&
         near(moments.rollout_logprob, m.rollout_logprob, sums * m.rollout_magnitude);
}

/// A ragged batch of one trajectory: turn s is tokens [begin[s], end[s]).
template <typename Old, typename Rollout>
struct ragged {
  std::vector<std::int64_t> begin, end, offsets, id{0};
  std::vector<Old> old_logprob;
  std::vector<Rollout> rollout_logprob;
  std::vector<std::uint8_t> mask;

  void add_turn(std::size_t size) {
    begin.push_back(static_cast<std::int64_t>(old_logprob.size()));
    old_logprob.resize(old_logprob.size() + size);
    rollout_logprob.resize(old_logprob.size());
    mask.resize(old_logprob.size(), 1);
    end.push_back(static_cast<std::int64_t>(old_logprob.size()));
  }
  /// Tokens of no turn.
  void add_gap(std::size_t size) {
    old_logprob.resize(old_logprob.size() + size);
    rollout_logprob.resize(old_logprob.size());
    mask.resize(old_logprob.size(), 1);
  }
  [[nodiscard]] std::size_t turns() const { return begin.size(); }
  [[nodiscard]] rollout_view view() {
    offsets = {0, static_cast<std::int64_t>(begin.size())};
    return {.turn_begin = begin, .turn_end = end, .trajectory_offsets = offsets, .group_id = id, .trajectory_id = id};
  }
  [[nodiscard]] token_logprobs<Old, Rollout> tokens(bool masked) const {
    if (masked) return {old_logprob, rollout_logprob, mask};
    return {old_logprob, rollout_logprob, {}};
  }
};

template <typename Old, typename Rollout>
struct results {
  std::vector<turn_statistics> alone, statistics;
  std::vector<ratio_moments> moments;

  results(ragged<Old, Rollout>& batch, bool masked, int threads = 1)
      : alone(batch.turns()), statistics(batch.turns()), moments(batch.turns()) {
    log_ratio_statistics(batch.view(), batch.tokens(masked), std::span(alone), threads);
    log_ratio_statistics(batch.view(), batch.tokens(masked), std::span(statistics), std::span(moments), threads);
  }
};

template <typename T>
void set(T& place, double value) {
  place = static_cast<T>(static_cast<float>(value));
  if constexpr (std::is_same_v<T, double>) place = value;
}

/// Log-probs with log ratios of about `width`, and every `every`-th token an unusual one (0: none).
template <typename Old, typename Rollout>
void fill(ragged<Old, Rollout>& batch, std::mt19937_64& random, double width, unsigned every) {
  constexpr double unusual[]{std::numeric_limits<double>::quiet_NaN(),
                             -std::numeric_limits<double>::quiet_NaN(),
                             inf,
                             -inf,
                             64,
                             -64,
                             64.00000762939453,  // floats next to +-64
                             -64.00000762939453,
                             63.99999618530273,
                             -63.99999618530273,
                             1e-45,
                             -1e-45,
                             1e-39,
                             3e38,
                             -3e38,
                             0.0,
                             -0.0,
                             0x1p-25,
                             -0x1p-25,
                             3 * 0x1p-25,
                             -5 * 0x1p-25,
                             0x1p-8 + 0x1p-25,
                             0x1.8p-9,
                             -0x1.8p-9,
                             31,
                             -26,
                             0.5};
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < batch.old_logprob.size(); ++i) {
    double const rollout = -std::fabs(normal(random));
    set(batch.rollout_logprob[i], rollout);
    set(batch.old_logprob[i],
        static_cast<double>(static_cast<float>(batch.rollout_logprob[i])) + width * normal(random));
    if (every != 0 && random() % every == 0) {
      double const value = unusual[random() % std::size(unusual)];
      bool const swap = random() % 2 == 0;
      set(batch.old_logprob[i], swap ? 0.0 : value);
      set(batch.rollout_logprob[i], swap ? value : -0.0);
    }
    batch.mask[i] = random() % 4 == 0 ? 0 : static_cast<std::uint8_t>(1 + random() % 255);
  }
}

/// Random turns at all offsets, short, long and empty.
template <typename Old, typename Rollout>
ragged<Old, Rollout> random_turns(std::mt19937_64& random) {
  ragged<Old, Rollout> batch;
  for (std::size_t size = 0; size <= 300; size += 1 + random() % 3) {
    batch.add_gap(random() % 17);
    batch.add_turn(size);
  }
  for (std::size_t offset = 0; offset < 16; ++offset) {
    batch.add_gap((offset + 16 - batch.old_logprob.size() % 16) % 16);
    batch.add_turn(random() % 40);
  }
  for (std::size_t size : {512U, 513U, 1023U, 1024U, 1025U, 2048U, 5001U, 7777U}) batch.add_turn(size);
  return batch;
}

template <typename Old, typename Rollout>
void check_against_reference(double width, unsigned every, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  auto batch = random_turns<Old, Rollout>(random);
  fill(batch, random, width, every);
  for (bool masked : {false, true}) {
    results<Old, Rollout> const result(batch, masked);
    for (std::size_t s = 0; s < batch.turns(); ++s) {
      auto const first = static_cast<std::size_t>(batch.begin[s]);
      auto const size = static_cast<std::size_t>(batch.end[s]) - first;
      auto const exact = reference_of(batch.old_logprob.data() + first, batch.rollout_logprob.data() + first,
                                      masked ? batch.mask.data() + first : nullptr, size);
      bool const same =
          same_bits(result.alone[s], exact.statistics) && same_bits(result.statistics[s], exact.statistics);
      bool const close = within_bounds(result.moments[s], exact);
      if (!same || !close)
        FAIL_CHECK("turn " << s << " of " << size << " tokens, masked " << masked << ", width " << width << ", every "
                           << every << ": same " << same << ", close " << close << "; sum " << result.alone[s].sum
                           << " for " << exact.statistics.sum << ", k3 " << result.moments[s].k3 << " for "
                           << static_cast<double>(exact.moments.k3));
    }
  }
}

template <typename Old, typename Rollout>
void check_types() {
  std::uint64_t seed = 1;
  for (double width : {1e-7, 0.02, 0.2, 3.0, 40.0})
    for (unsigned every : {0U, 3U, 50U, 1000U}) check_against_reference<Old, Rollout>(width, every, seed++);
}

TEST_SUITE("importance/log_ratio_statistics") {
  TEST_CASE("RR-07 equal to the reference: float") { check_types<float, float>(); }
  TEST_CASE("RR-07 equal to the reference: double") { check_types<double, double>(); }
  TEST_CASE("RR-07 equal to the reference: mixed") {
    check_types<double, float>();
    check_types<float, double>();
  }
  TEST_CASE("RR-07 equal to the reference: 16-bit types") {
    check_types<brain_float, brain_float>();
    check_types<float, brain_float>();
    check_types<Eigen::half, float>();
    check_types<Eigen::bfloat16, double>();
  }

  TEST_CASE("CU-13 log-probs stored as float: equal ones have ratio 1; stored as bfloat16 they do not") {
    std::vector<std::int64_t> const begin{0}, end{1}, offsets{0, 1}, id{0};
    rollout_view const batch{begin, end, offsets, id, id};
    std::vector<float> const logprob{-7.43F};
    std::vector<Eigen::bfloat16> const rounded{Eigen::bfloat16{-7.43F}};  // -7.4375
    std::vector<turn_statistics> record(1);
    log_ratio_statistics(batch, token_logprobs<float, float>{logprob, logprob, {}}, std::span{record});
    CHECK(std::exp(record[0].log_mean()) == 1.0);
    log_ratio_statistics(batch, token_logprobs<float, Eigen::bfloat16>{logprob, rounded, {}}, std::span{record});
    CHECK(std::exp(record[0].log_mean()) == doctest::Approx(1.0075281954445343).epsilon(1e-6));
  }

  TEST_CASE("one unusual token in every lane") {
    for (std::size_t size : {1U, 5U, 8U, 16U, 31U, 48U, 70U})
      for (std::size_t place = 0; place < size; ++place)
        for (double value : {-std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN(), inf,
                             -inf, 100.0, -100.0, 64.0, -0.0}) {
          ragged<float, float> batch;
          batch.add_turn(size);
          for (auto& old : batch.old_logprob) old = 0.25F;
          batch.old_logprob[place] = static_cast<float>(value);
          results<float, float> const result(batch, false);
          auto const exact = reference_of(batch.old_logprob.data(), batch.rollout_logprob.data(), nullptr, size);
          CHECK(same_bits(result.alone[0], exact.statistics));
          CHECK(same_bits(result.statistics[0], exact.statistics));
          CHECK(within_bounds(result.moments[0], exact));
        }
  }

  TEST_CASE("RR-13 log ratios beyond 64 are clamped in sums and counted") {
    ragged<float, float> batch;
    batch.add_turn(5);
    batch.old_logprob = {0.5F, 31.0F, -26.0F, 65.0F, -1000.0F};
    results<float, float> const result(batch, false);
    CHECK(result.alone[0].count == 5);
    CHECK(result.alone[0].saturated == 2);
    CHECK(result.alone[0].log_sum() == 0.5 + 31 - 26 + 64 - 64);
    CHECK(result.alone[0].min == -1000);
    CHECK(result.alone[0].max == 65);
    batch.old_logprob = {0.5F, 31.0F, -26.0F, 64.0F, -64.0F};
    CHECK(results<float, float>(batch, false).alone[0].saturated == 0);
  }

  TEST_CASE("ties go to the even multiple of 2^-24") {
    for (std::int64_t tie = -99; tie <= 99; tie += 2) {
      ragged<float, float> batch;
      batch.add_turn(67);
      for (auto& old : batch.old_logprob) old = static_cast<float>(tie) * 0x1p-25F;
      std::int64_t const below = (tie - 1) / 2;  // tie - 1 is even: exact
      CHECK(results<float, float>(batch, false).alone[0].sum == 67 * (below % 2 == 0 ? below : below + 1));
    }
  }

  TEST_CASE("no unmasked tokens") {
    ragged<float, float> batch;
    batch.add_turn(0);
    batch.add_turn(100);
    batch.mask.assign(100, 0);
    results<float, float> const result(batch, true);
    for (std::size_t s : {0U, 1U}) {
      CHECK(same_bits(result.alone[s], turn_statistics{0, 0, inf, -inf, 0, 0}));
      CHECK(same_bits(result.statistics[s], turn_statistics{}));
      CHECK(same_bits(result.moments[s], ratio_moments{}));
    }
    CHECK(result.alone[0].log_mean() == 0);
  }

  TEST_CASE("equal log-probs") {
    ragged<float, float> batch;
    batch.add_turn(1234);
    batch.old_logprob.assign(1234, -0.5F);
    batch.rollout_logprob = batch.old_logprob;
    results<float, float> const result(batch, false);
    CHECK(same_bits(result.alone[0], turn_statistics{1234, 0, 0.0, 0.0, 0, 0}));
    CHECK(same_bits(result.moments[0], ratio_moments{0.0, 0.0, -617.0}));
  }

  TEST_CASE("what masked tokens hold does not matter") {
    std::mt19937_64 random(5);
    auto batch = random_turns<float, float>(random);
    fill(batch, random, 0.3, 0);
    results<float, float> const before(batch, true);
    auto const garbage = [&] { return std::bit_cast<float>(static_cast<std::uint32_t>(random())); };
    for (std::size_t i = 0; i < batch.mask.size(); ++i)
      if (batch.mask[i] == 0) batch.old_logprob[i] = garbage(), batch.rollout_logprob[i] = garbage();
    for (std::size_t i = 0; i < batch.mask.size(); i += 3)
      if (batch.mask[i] == 0) batch.old_logprob[i] = std::numeric_limits<float>::quiet_NaN();
    results<float, float> const after(batch, true);
    for (std::size_t s = 0; s < batch.turns(); ++s) {
      CHECK(same_bits(before.alone[s], after.alone[s]));
      CHECK(same_bits(before.moments[s], after.moments[s]));
    }
  }

  TEST_CASE("a mask of ones is no mask") {
    std::mt19937_64 random(6);
    auto batch = random_turns<float, double>(random);
    fill(batch, random, 0.1, 500);
    batch.mask.assign(batch.mask.size(), 7);
    results<float, double> const with(batch, true);
    results<float, double> const without(batch, false);
    for (std::size_t s = 0; s < batch.turns(); ++s) {
      CHECK(same_bits(with.alone[s], without.alone[s]));
      CHECK(same_bits(with.moments[s], without.moments[s]));
    }
  }

  TEST_CASE("parts merge to the whole") {
    std::mt19937_64 random(7);
    ragged<float, float> batch;
    batch.add_turn(9000);
    fill(batch, random, 0.5, 40);
    for (int repeat = 0; repeat < 20; ++repeat) {
      batch.begin = {0};
      batch.end = {9000};
      auto const whole = results<float, float>(batch, true).alone[0];
      batch.begin.clear();
      batch.end.clear();
      for (std::int64_t at = 0; at < 9000;) {
        std::int64_t const next = std::min<std::int64_t>(9000, at + static_cast<std::int64_t>(random() % 400));
        batch.begin.push_back(at);
        batch.end.push_back(next);
        at = next;
      }
      turn_statistics merged;
      for (auto const& part : results<float, float>(batch, true).alone) merged += part;
      CHECK(same_bits(merged, whole));
    }
  }

  TEST_CASE("packed or padded, one thread or two, at any address: the same bits") {
    std::mt19937_64 random(8);
    ragged<float, float> packed;
    for (int s = 0; s < 3000; ++s) packed.add_turn(random() % 200);
    fill(packed, random, 0.2, 300);
    ragged<float, float> padded;
    for (std::size_t s = 0; s < packed.turns(); ++s) {
      auto const first = static_cast<std::size_t>(packed.begin[s]);
      auto const size = static_cast<std::size_t>(packed.end[s]) - first;
      padded.add_turn(size);
      auto const at = static_cast<std::size_t>(padded.begin[s]);
      for (std::size_t i = 0; i < size; ++i) {
        padded.old_logprob[at + i] = packed.old_logprob[first + i];
        padded.rollout_logprob[at + i] = packed.rollout_logprob[first + i];
        padded.mask[at + i] = packed.mask[first + i];
      }
      padded.add_gap(203 - size);
      for (std::size_t i = at + size; i < padded.old_logprob.size(); ++i)
        padded.old_logprob[i] = std::numeric_limits<float>::quiet_NaN();
    }
    for (bool masked : {false, true}) {
      results<float, float> const one(packed, masked, 1);
      results<float, float> const two(packed, masked, 2);
      results<float, float> const wide(padded, masked, 2);
      for (std::size_t s = 0; s < packed.turns(); ++s) {
        CHECK(same_bits(one.alone[s], one.statistics[s]));
        CHECK(same_bits(one.alone[s], two.alone[s]));
        CHECK(same_bits(one.alone[s], wide.alone[s]));
        CHECK(same_bits(one.moments[s], two.moments[s]));
        CHECK(same_bits(one.moments[s], wide.moments[s]));
      }
    }
  }

  TEST_CASE("the same bits in every build") {
    ragged<float, float> batch;
    for (std::size_t size : {1000U, 3001U, 77U, 5U}) batch.add_turn(size);
    std::uint32_t state = 1;
    for (std::size_t i = 0; i < batch.old_logprob.size(); ++i) {  // widths from 2^-22 to 2
      auto const next = [&state] { return static_cast<std::int32_t>(state = state * 1664525U + 1013904223U); };
      batch.rollout_logprob[i] = static_cast<float>(next()) * 0x1p-30F;
      batch.old_logprob[i] = batch.rollout_logprob[i] + static_cast<float>(next()) * (i < 1000 ? 0x1p-35F : 0x1p-30F);
    }
    results<float, float> const result(batch, false);
    std::uint64_t hash = 14695981039346656037U;
    auto const mix = [&hash](auto value) { hash = (hash ^ std::bit_cast<std::uint64_t>(value)) * 1099511628211U; };
    for (std::size_t s = 0; s < batch.turns(); ++s) {
      auto const& [count, sum, min, max, non_finite, saturated] = result.alone[s];
      mix(count), mix(sum), mix(min), mix(max), mix(non_finite), mix(saturated);
      auto const& [k3, excess_squared, rollout_logprob] = result.moments[s];
      mix(k3), mix(excess_squared), mix(rollout_logprob);
    }
    CHECK(hash == 11097703058931610392U);
  }

  TEST_CASE("errors name both sizes and leave the outputs as they were") {
    ragged<float, float> batch;
    batch.add_turn(3);
    batch.add_turn(4);
    std::vector<turn_statistics> statistics(2, turn_statistics{5, 5, 5, 5, 5, 5});
    std::vector<ratio_moments> moments(2, ratio_moments{5, 5, 5});
    auto const view = batch.view();
    auto const tokens = batch.tokens(true);
    auto const fails = [&](rollout_view const& v, token_logprobs<float, float> const& t, std::size_t s, std::size_t m) {
      int failures = 0;
      try {
        log_ratio_statistics(v, t, std::span(statistics).first(s));
      } catch (precondition_error const& error) {
        ++failures;
        CHECK(std::string(error.what()).starts_with("log_ratio_statistics: "));
      }
      try {
        log_ratio_statistics(v, t, std::span(statistics).first(s), std::span(moments).first(m));
      } catch (precondition_error const& error) {
        failures += 2;
        CHECK(std::string(error.what()).starts_with("log_ratio_statistics: "));
      }
      for (auto const& record : statistics) CHECK(record == turn_statistics{5, 5, 5, 5, 5, 5});
      for (auto const& record : moments) CHECK(record == ratio_moments{5, 5, 5});
      return failures;
    };
    CHECK(fails(view, {tokens.old_logprob, tokens.rollout_logprob.first(6), {}}, 2, 2) == 3);
    CHECK(fails(view, {tokens.old_logprob, tokens.rollout_logprob, tokens.mask.first(6)}, 2, 2) == 3);
    CHECK(fails(view, {tokens.old_logprob.first(6), tokens.rollout_logprob.first(6), {}}, 2, 2) == 3);
    CHECK(fails(view, tokens, 1, 2) == 3);
    std::vector<std::int64_t> const negative{-1, 3}, reversed{4, 3}, outside{3, 8};
    auto changed = view;
    changed.turn_begin = negative;
    CHECK(fails(changed, tokens, 2, 2) == 3);
    changed.turn_begin = reversed;
    CHECK(fails(changed, tokens, 2, 2) == 3);
    changed = view;
    changed.turn_end = outside;
    CHECK(fails(changed, tokens, 2, 2) == 3);
    changed.turn_end = view.turn_end.first(1);
    CHECK(fails(changed, tokens, 2, 2) == 3);
    changed = view;
    changed.group_id = {};
    CHECK(fails(changed, tokens, 2, 2) == 3);
    CHECK_THROWS_AS(log_ratio_statistics(view, tokens, std::span(statistics), std::span(moments).first(1)),
                    precondition_error);
    CHECK(moments[0] == ratio_moments{5, 5, 5});
    CHECK(statistics[0].count == 5);
  }
}

}  // namespace

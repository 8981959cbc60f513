// Every policy on the device against the host, over generated batches.
#include "support/gpu_batches.cuh"
#include "support/gpu_builders.cuh"

#include <turnwise/gpu/loss/policy_loss.cuh>
#include <turnwise/loss/cispo.hpp>
#include <turnwise/loss/clip_cov.hpp>
#include <turnwise/loss/gmpo.hpp>
#include <turnwise/loss/gspo.hpp>
#include <turnwise/loss/kl_cov.hpp>
#include <turnwise/loss/policy_loss.hpp>
#include <turnwise/loss/ppo_clip.hpp>
#include <turnwise/loss/reinforce.hpp>
#include <turnwise/loss/sapo.hpp>

#include <cuda_bf16.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace policy_loss_test {

using namespace support;
using turnwise::loss::loss_options;
using turnwise::loss::loss_record;
namespace host = turnwise::loss;

namespace {

enum class layout { packed, padded, unsorted };

/// A batch with everything that a token or a turn can be; all arrays are filled, and calls pick what they use.
template <typename P>
struct loss_case {
  std::vector<std::int64_t> begin, end, trajectory_offsets, id;
  std::vector<P> current, old, reference;
  std::vector<double> advantage, token_advantage, scale;
  std::vector<float> weight, entropy;
  std::vector<std::uint8_t> mask, selected;

  loss_case(std::uint64_t seed, layout kind, std::int64_t turns, std::int64_t most_tokens) {
    integers random{seed};
    std::int64_t next = 0;
    for (std::int64_t s = 0; s < turns; ++s) {
      std::int64_t const size = random.below(6) == 0 ? 0 : random.below(most_tokens);
      begin.push_back(next);
      end.push_back(next + size);
      next += kind == layout::packed ? size : kind == layout::padded ? most_tokens : size + random.below(40);
      advantage.push_back(static_cast<double>(random.below(9) - 4) * 0.5);
      scale.push_back(random.below(6) == 0 ? 0.0 : static_cast<double>(1 + random.below(4)) / 1024);
      if (scale.back() == 0 && random.below(2) == 0) advantage.back() = std::numeric_limits<double>::quiet_NaN();
    }
    if (kind == layout::unsorted)
      for (std::int64_t s = turns; s-- > 1;) {
        auto const other = static_cast<std::size_t>(random.below(s + 1));
        std::swap(begin[static_cast<std::size_t>(s)], begin[other]);
        std::swap(end[static_cast<std::size_t>(s)], end[other]);
      }
    trajectory_offsets = {0, turns};
    id = {0};
    constexpr double wild[]{1000, -1000, INFINITY, -INFINITY, NAN, 25, -25};
    for (std::int64_t i = 0; i < next; ++i) {
      double const of_old = -static_cast<double>(random.below(4 << 10)) * 0x1p-10;
      double d = static_cast<double>(random.below(801) - 400) * 0x1p-10;  // no ratio at an edge of a clip
      if (random.below(300) == 0) d = wild[random.below(7)];
      old.push_back(static_cast<P>(static_cast<float>(of_old)));
      current.push_back(static_cast<P>(static_cast<float>(of_old + d)));
      reference.push_back(static_cast<P>(static_cast<float>(of_old + static_cast<double>(random.below(99)) * 0.01)));
      mask.push_back(random.below(5) != 0);
      selected.push_back(random.below(4) == 0);
      token_advantage.push_back(static_cast<double>(random.below(9) - 4) * 0.25);
      weight.push_back(0.25f * static_cast<float>(random.below(9)));
      entropy.push_back(0.5f * static_cast<float>(random.below(5)));
    }
  }
  [[nodiscard]] std::size_t tokens() const { return current.size(); }
  [[nodiscard]] std::size_t turns() const { return begin.size(); }
  [[nodiscard]] turnwise::rollout_view view() const { return {begin, end, trajectory_offsets, id, id, {}, {}}; }
};

/// Which of the optional arrays a call uses.
struct parts {
  bool mask, by_token, extras;
};

template <typename T>
std::span<T const> if_used(std::vector<T> const& values, bool used) {
  return used ? std::span<T const>{values} : std::span<T const>{};
}
template <typename T>
gpu::device_span<T const> if_used(device_array<T> const& values, bool used) {
  return used ? values.view() : gpu::device_span<T const>{};
}

template <typename G>
double distance(G got, G expected) {
  return std::abs(static_cast<double>(static_cast<float>(got)) - static_cast<double>(static_cast<float>(expected)));
}
inline double distance(double got, double expected) { return std::abs(got - expected); }

/// Host and device over one batch: gradients within a few ulp of the largest term, sums within the stated tolerance.
template <typename G, typename P, typename Policy>
void compare(loss_case<P> const& batch, Policy const& policy, parts const& use, std::size_t shift = 0) {
  using F = turnwise::log_ratio_t<P, P>;
  CAPTURE(use.mask);
  CAPTURE(use.by_token);
  CAPTURE(use.extras);
  CAPTURE(shift);
  constexpr bool chooses = host::uses_selection<Policy>;
  loss_options options;
  if (use.extras) {
    options.kl_coefficient = 0.25;
    options.entropy_coefficient = 0.125;
  }
  host::loss_inputs<P> in{.current_logprob = batch.current, .old_logprob = batch.old};
  in.mask = if_used(batch.mask, use.mask);
  (use.by_token ? in.token_advantage : in.turn_advantage) = use.by_token ? batch.token_advantage : batch.advantage;
  in.reference_logprob = if_used(batch.reference, use.extras);
  in.weight = if_used(batch.weight, use.extras);
  in.entropy = if_used(batch.entropy, use.extras);
  in.selected = if_used(batch.selected, chooses);
  std::vector<G> gradient(batch.tokens()), entropy_gradient(use.extras ? batch.tokens() : 0);
  loss_record const expected = host::policy_loss(batch.view(), in, policy, options, batch.scale,
                                                 host::loss_outputs<G>{gradient, entropy_gradient});

  auto const begin = on_device(batch.begin), end = on_device(batch.end);
  auto const shifted = [&](auto values) {
    values.insert(values.begin(), shift, values.empty() ? decltype(values.front() + 0){} : values.front());
    return on_device(values);
  };
  auto const current_memory = [&] {
    auto values = batch.current;
    values.insert(values.begin(), shift, static_cast<P>(0.0f));
    return on_device(values);
  }();
  auto const old = on_device(batch.old), reference = on_device(batch.reference);
  auto const advantage = on_device(batch.advantage), scale = on_device(batch.scale);
  auto const token_advantage = shifted(batch.token_advantage);
  auto const weight = on_device(batch.weight), entropy = on_device(batch.entropy);
  auto const mask = shifted(batch.mask), selected = on_device(batch.selected);
  gpu::loss::loss_inputs<P> device_in;
  device_in.current_logprob = current_memory.view().subspan(shift);
  device_in.old_logprob = old.view();
  if (use.mask) device_in.mask = mask.view().subspan(shift);
  if (use.by_token)
    device_in.token_advantage = token_advantage.view().subspan(shift);
  else
    device_in.turn_advantage = advantage.view();
  device_in.reference_logprob = if_used(reference, use.extras);
  device_in.weight = if_used(weight, use.extras);
  device_in.entropy = if_used(entropy, use.extras);
  device_in.selected = if_used(selected, chooses);

  device_array<G> const device_gradient{batch.tokens() + 1}, device_entropy_gradient{batch.tokens()};
  device_array<loss_record> const record{1};
  device_status const status;
  exact_workspace const plan_memory{support::token_plan_workspace_bytes(batch.turns(), batch.tokens())};
  exact_workspace const memory{gpu::loss::policy_loss_workspace_bytes<Policy, F>(batch.turns(), batch.tokens())};
  gpu::rollout_view const view{.turns = batch.turns(), .turn_begin = begin.view(), .turn_end = end.view()};
  gpu::loss::loss_outputs<G> out{device_gradient.span().subspan(shift).first(batch.tokens()), {}};
  if (use.extras) out.entropy_gradient = device_entropy_gradient.span();
  std::vector<G> first_gradient;
  std::vector<loss_record> first_record;

  double const unit = std::is_same_v<F, double> && std::is_same_v<G, double> ? 0x1p-52
                      : sizeof(G) == 2                                       ? 0x1p-8
                                                                             : 0x1p-23;
  on_stream_and_in_graph(
      [&] {
        fill_bytes(device_gradient, 0x5a);
        fill_bytes(device_entropy_gradient, 0x5a);
        fill_bytes(record, 0x5a);
      },
      [&](cuda::stream_ref stream) {
        auto const plan = support::make_token_plan(view, batch.tokens(), status.get(), plan_memory.whole(), stream);
        gpu::loss::policy_loss(plan, device_in, policy, options, scale.view(), out, record.span(), status.get(),
                               memory.whole(), stream);
      },
      [&] {
        CHECK(status.ok());
        auto const all = device_gradient.host();
        std::vector<G> const got(all.begin() + static_cast<std::ptrdiff_t>(shift),
                                 all.begin() + static_cast<std::ptrdiff_t>(shift + batch.tokens()));
        auto const got_record = record.host();
        if (first_gradient.empty()) {
          first_gradient = got;
          first_record = got_record;
        }
        CHECK(same_bits(got, first_gradient));  // run to run
        CHECK(first_record[0] == got_record[0]);
        double worst = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          // weights up to 2, advantages up to 2, ratios up to 1.5 (or at the clamp), scales up to 4/1024
          double const size = std::max(std::abs(static_cast<double>(static_cast<float>(gradient[i]))), 1.0 / 64);
          worst = std::max(worst, distance(got[i], gradient[i]) / (size * unit));
        }
        CHECK(worst <= 8);
        if (use.extras) {
          auto const got_entropy = device_entropy_gradient.host();
          double worst_entropy = 0;
          for (std::size_t i = 0; i < got.size(); ++i)
            worst_entropy = std::max(worst_entropy, distance(got_entropy[i], entropy_gradient[i]));
          CHECK(worst_entropy <= unit / 64);
        }
        loss_record const& r = got_record[0];
        CHECK(r.tokens == expected.tokens);
        CHECK(r.turns == expected.turns);
        CHECK(r.non_finite == expected.non_finite);
        CHECK(r.saturated == expected.saturated);
        CHECK(r.clipped_low == expected.clipped_low);
        CHECK(r.clipped_high == expected.clipped_high);
        double const tolerance = std::is_same_v<F, double> ? 1e-12 : 1e-6;
        auto const near = [&](double a, double b, double magnitude) {
          CHECK(std::abs(a - b) <= tolerance * (magnitude + std::abs(b)));
        };
        double const tokens = static_cast<double>(expected.tokens);
        double const ratios = expected.tokens == 0 ? 0 : std::max(1.0, expected.ratio_max) * tokens;
        near(r.policy_loss, expected.policy_loss, ratios * 16 / 1024);
        near(r.kl_loss, expected.kl_loss, tokens * 10 / 1024);
        near(r.entropy_loss, expected.entropy_loss, tokens / 1024);
        near(r.log_ratio_sum, expected.log_ratio_sum, 20 * tokens);
        near(r.ratio_sum, expected.ratio_sum, ratios);
        near(r.kl_sum, expected.kl_sum, 10 * tokens);
        near(r.entropy_sum, expected.entropy_sum, 2 * tokens);
        if (expected.tokens == 0) return;
        near(r.ratio_min, expected.ratio_min, 0);
        near(r.ratio_max, expected.ratio_max, 0);
      });
}

/// Calls body(policy) for every policy; no ratio of loss_case stands at an edge.
template <typename Body>
void for_each_policy(Body body) {
  body(host::ppo_clip{.clip_low = 0.2, .clip_high = 0.28, .dual_clip = 3});
  body(host::reinforce{.importance_weight = true, .weight_low = 0.75, .weight_high = 1.25});
  body(host::cispo{.clip_low = 0.2, .clip_high = 0.28});
  body(host::sapo{});
  body(host::gspo{.clip_low = 0.01, .clip_high = 0.02});
  body(host::gmpo{.clip_low = 0.3001, .clip_high = 0.2001});
  body(host::clip_cov{});
  body(host::kl_cov{.kl_coefficient = 0.5});
}

}  // namespace

TEST_SUITE("gpu/loss/policy_loss" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("every policy agrees with the host, in every layout", P, float, double) {
    for (layout const kind : {layout::packed, layout::padded, layout::unsorted})
      for (std::int64_t const most_tokens : {4, 90, 5000}) {
        if (under_checker() && (kind == layout::padded || most_tokens == 4)) continue;
        CAPTURE(static_cast<int>(kind));
        CAPTURE(most_tokens);
        loss_case<P> const batch{static_cast<std::uint64_t>(most_tokens) + 3, kind, most_tokens > 1000 ? 12 : 150,
                                 most_tokens};
        for_each_policy([&](auto const& policy) {
          compare<P>(batch, policy, {false, false, false});
          compare<P>(batch, policy, {true, true, false});
          compare<P>(batch, policy, {true, false, true});
        });
        compare<P>(batch, host::ppo_clip{}, {true, true, true}, 1);
        compare<P>(batch, host::ppo_clip{}, {true, false, false}, 1);
      }
  }

  TEST_CASE("turn-level policies: tokens with any bad number are in neither pass") {
    loss_case<double> batch{21, layout::packed, 60, 300};
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    for (std::size_t i = 0; i < batch.tokens(); i += 17) {
      if (i % 4 == 0) batch.token_advantage[i] = nan;
      if (i % 4 == 1) batch.weight[i] = std::numeric_limits<float>::infinity();
      if (i % 4 == 2) batch.reference[i] = nan;
      if (i % 4 == 3) batch.entropy[i] = std::numeric_limits<float>::quiet_NaN();
    }
    for (bool const extras : {false, true}) {
      compare<double>(batch, host::gspo{.clip_low = 0.01, .clip_high = 0.02}, {true, true, extras});
      compare<double>(batch, host::gmpo{.clip_low = 0.3001, .clip_high = 0.2001}, {true, true, extras});
    }
  }

  TEST_CASE("bfloat16 log-probs, and gradients of each type") {
    loss_case<__nv_bfloat16> const batch{8, layout::packed, 40, 3000};
    for (bool const mask : {false, true}) {
      compare<__nv_bfloat16>(batch, host::ppo_clip{}, {mask, false, false});
      compare<float>(batch, host::gspo{.clip_low = 0.01, .clip_high = 0.02}, {mask, false, false});
      compare<float>(batch, host::cispo{}, {mask, true, true}, 1);
    }
    loss_case<float> const wide{8, layout::packed, 40, 3000};
    compare<double>(wide, host::ppo_clip{}, {true, false, false});
    compare<__nv_bfloat16>(wide, host::sapo{}, {true, false, false});
  }

  TEST_CASE("no turns, no tokens, everything out of the loss, one turn of whole chunks") {
    loss_case<float> none{1, layout::packed, 0, 10};
    compare<float>(none, host::ppo_clip{}, {false, false, false});
    compare<float>(none, host::gspo{}, {false, false, false});
    none.current.assign(2500, -1.0f);
    none.old = none.reference = none.current;
    none.mask.assign(2500, 1);
    none.token_advantage.assign(2500, 1);
    compare<float>(none, host::ppo_clip{}, {true, true, false});
    loss_case<float> empty{2, layout::packed, 30, 1};
    compare<float>(empty, host::gspo{}, {false, false, false});
    loss_case<float> out{3, layout::packed, 30, 300};
    std::ranges::fill(out.scale, 0.0);
    compare<float>(out, host::gspo{}, {true, false, false});
    loss_case<float> whole{4, layout::packed, 1, 2};
    whole.begin = {0};
    whole.end = {5 * 1024};
    whole.scale = {0.5 / 1024};
    whole.advantage = {1.5};
    whole.current.assign(5 * 1024, -1.0f);
    whole.old.assign(5 * 1024, -1.125f);
    whole.mask.assign(5 * 1024, 1);
    for_each_policy([&](auto const& policy) {
      if constexpr (!host::uses_selection<std::decay_t<decltype(policy)>>)
        compare<float>(whole, policy, {false, false, false});
    });
  }

  TEST_CASE("many chunks: records are summed in two steps") {
    loss_case<float> const batch{5, layout::packed, 3200, 4000};  // about 5.3 M tokens
    REQUIRE(batch.tokens() > 4096u * 1024);
    compare<float>(batch, host::ppo_clip{}, {false, false, false});
  }

  TEST_CASE("a bad scale or advantage is reported, and its turn is out of the loss") {
    std::vector<std::int64_t> const begin{0, 2, 4}, end{2, 4, 6};
    std::vector<float> const current(6, -1.0f), old(6, -1.0f);
    for (bool const of_scale : {true, false}) {
      std::vector<double> scale{1, 1, 1}, advantage{1, 1, 1};
      (of_scale ? scale : advantage)[1] = std::numeric_limits<double>::quiet_NaN();
      auto const device_begin = on_device(begin), device_end = on_device(end);
      auto const device_current = on_device(current), device_old = on_device(old);
      auto const device_scale = on_device(scale), device_advantage = on_device(advantage);
      device_array<float> const gradient{6};
      device_array<loss_record> const record{1};
      device_status const status;
      exact_workspace const plan_memory{support::token_plan_workspace_bytes(3, 6)};
      exact_workspace const memory{gpu::loss::policy_loss_workspace_bytes<host::ppo_clip, float>(3, 6)};
      gpu::rollout_view const view{.turns = 3, .turn_begin = device_begin.view(), .turn_end = device_end.view()};
      gpu::loss::loss_inputs<float> in{.current_logprob = device_current.view(), .old_logprob = device_old.view()};
      in.turn_advantage = device_advantage.view();
      side_stream const stream;
      auto const plan = support::make_token_plan(view, 6, status.get(), plan_memory.whole(), stream);
      gpu::loss::policy_loss(plan, in, host::ppo_clip{}, {}, device_scale.view(),
                             gpu::loss::loss_outputs<float>{gradient.span(), {}}, record.span(), status.get(),
                             memory.whole(), stream);
      stream.wait();
      CHECK(status.host().code() == (of_scale ? gpu::status_code::weight : gpu::status_code::turn_return));
      CHECK(status.host().index() == 1);
      CHECK(gradient.host() == std::vector<float>{-1, -1, 0, 0, -1, -1});
      CHECK(record.host()[0].tokens == 4);
    }
  }

  TEST_CASE("turns outside the arrays or out of order are reported, and nothing outside the arrays is written") {
    constexpr std::int64_t far = std::int64_t{1} << 33;
    // The searches for the first and the next turn of chunk 0 pass by the bad ones: all of turns 0 to 5 are in it.
    std::vector<std::int64_t> const begin{0, far - (1 << 30), 100, -far, 200, -5, 1500, 2900};
    std::vector<std::int64_t> const end{50, far, 150, 5000 - far, 250, 700, 2600, far};
    std::size_t const turns = begin.size(), tokens = 3000, guard = 4096;
    auto const device_begin = on_device(begin), device_end = on_device(end);
    auto const values = on_device(std::vector<float>(tokens, -1.0f));
    auto const ones = on_device(std::vector<double>(turns, 1.0));
    device_array<float> const gradient{tokens + 2 * guard};
    device_array<loss_record> const record{1};
    exact_workspace const plan_memory{support::token_plan_workspace_bytes(turns, tokens)};
    exact_workspace const memory{gpu::loss::policy_loss_workspace_bytes<host::gspo, float>(turns, tokens)};
    gpu::rollout_view const view{.turns = turns, .turn_begin = device_begin.view(), .turn_end = device_end.view()};
    gpu::loss::loss_inputs<float> in{.current_logprob = values.view(), .old_logprob = values.view()};
    in.turn_advantage = ones.view();
    gpu::loss::loss_outputs<float> const out{gradient.span().subspan(guard).first(tokens), {}};
    auto const check = [&](auto const& policy, gpu::turn_order order) {
      device_status const status;
      fill_bytes(gradient, 0x5a);
      auto const untouched = gradient.host();
      side_stream const stream;
      auto const plan = support::make_token_plan(view, tokens, status.get(), plan_memory.whole(), stream, order);
      gpu::loss::policy_loss(plan, in, policy, {}, ones.view(), out, record.span(), status.get(), memory.whole(),
                             stream);
      stream.wait();
      CHECK(status.host().code() == gpu::status_code::token_range);
      CHECK(status.host().index() == 1);
      auto const got = gradient.host();
      auto const last = static_cast<std::ptrdiff_t>(guard + tokens);
      CHECK(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(guard), untouched.begin()));
      CHECK(std::equal(got.begin() + last, got.end(), untouched.begin() + last));
      for (std::size_t i = guard; i < guard + tokens; ++i) REQUIRE((got[i] == 0 || got[i] == -1));
      CHECK(record.host()[0].tokens == std::count(got.begin(), got.end(), -1.0f));
    };
    for (auto const order : {gpu::turn_order::by_tokens, gpu::turn_order::unknown}) {
      check(host::ppo_clip{}, order);
      check(host::gspo{.clip_low = 0.01, .clip_high = 0.02}, order);
    }
  }

  TEST_CASE("bad sizes, options and workspaces throw, and nothing is written") {
    loss_case<float> const batch{6, layout::packed, 20, 50};
    std::size_t const tokens = batch.tokens(), turns = batch.turns();
    auto const begin = on_device(batch.begin), end = on_device(batch.end);
    auto const current = on_device(batch.current), old = on_device(batch.old);
    auto const advantage = on_device(batch.advantage), scale = on_device(batch.scale);
    auto const mask = on_device(batch.mask);
    device_array<float> const gradient{tokens};
    device_array<loss_record> const record{1};
    fill_bytes(gradient, 0x5a);
    auto const untouched = gradient.host();
    exact_workspace const plan_memory{support::token_plan_workspace_bytes(turns, tokens)};
    exact_workspace const memory{gpu::loss::policy_loss_workspace_bytes<host::gspo, float>(turns, tokens)};
    gpu::rollout_view const view{.turns = turns, .turn_begin = begin.view(), .turn_end = end.view()};
    side_stream const stream;
    auto const plan = support::make_token_plan(view, tokens, nullptr, plan_memory.whole(), stream);
    gpu::loss::loss_inputs<float> good{.current_logprob = current.view(), .old_logprob = old.view()};
    good.turn_advantage = advantage.view();
    auto const call = [&](auto const& in, auto scales, auto out, auto records, gpu::workspace scratch,
                          loss_options const& options = {}) {
      gpu::loss::policy_loss(plan, in, host::gspo{}, options, scales, gpu::loss::loss_outputs<float>{out, {}}, records,
                             nullptr, scratch, stream);
    };
    using turnwise::precondition_error;
    auto const shorter = [](auto span) { return span.first(span.size() - 1); };
    auto const throws = [&](auto change) {
      auto in = good;
      change(in);
      CHECK_THROWS_AS(call(in, scale.view(), gradient.span(), record.span(), memory.whole()), precondition_error);
    };
    throws([&](auto& in) { in.current_logprob = shorter(in.current_logprob); });
    throws([&](auto& in) { in.old_logprob = shorter(in.old_logprob); });
    throws([&](auto& in) { in.mask = shorter(mask.view()); });
    throws([&](auto& in) { in.turn_advantage = shorter(in.turn_advantage); });
    throws([&](auto& in) { in.token_advantage = in.turn_advantage; });
    throws([&](auto& in) { in.reference_logprob = shorter(in.old_logprob); });
    CHECK_THROWS_AS(call(good, shorter(scale.view()), gradient.span(), record.span(), memory.whole()),
                    precondition_error);
    CHECK_THROWS_AS(call(good, scale.view(), shorter(gradient.span()), record.span(), memory.whole()),
                    precondition_error);
    CHECK_THROWS_AS(call(good, scale.view(), gradient.span(), shorter(record.span()), memory.whole()),
                    precondition_error);
    CHECK_THROWS_AS(call(good, scale.view(), gradient.span(), record.span(), memory.short_by_one()),
                    precondition_error);
    CHECK_THROWS_AS(call(good, scale.view(), gradient.span(), record.span(), memory.whole(), {.kl_coefficient = 1}),
                    precondition_error);
    CHECK_THROWS_AS(call(good, scale.view(), gradient.span(), record.span(), memory.whole(), {.log_ratio_limit = 0}),
                    precondition_error);
    stream.wait();
    CHECK(same_bits(gradient.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace policy_loss_test

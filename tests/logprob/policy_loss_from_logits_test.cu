#include "logprob/gpu_row_loss.cuh"

#include <turnwise/loss/cispo.hpp>
#include <turnwise/loss/ppo_clip.hpp>
#include <turnwise/loss/reinforce.hpp>
#include <turnwise/loss/sapo.hpp>

namespace policy_loss_from_logits_test {

using namespace support;
using test::nan_value;
using turnwise::logprob::logit_layout;

namespace {

/// Rows in the loss, outside it, masked and bad, in any order: each gets what the row got alone.
template <typename T>
void check_rows(std::size_t rows, std::size_t vocabulary) {
  CAPTURE(vocabulary);
  loss_batch<T> some{6, vocabulary};
  some.scale = {0.5f, 0, 0.75f, 1, 0.25f, 1};
  some.mask = {1, 1, 1, 0, 1, 1};
  for (std::size_t const bad : {1u, 3u, 4u}) some.values[bad * vocabulary + 5] = static_cast<T>(std::nanf(""));
  std::vector<loss_result<T>> alone;
  for (std::size_t r = 0; r < 6; ++r)
    alone.push_back(run(repeated(some, {r}), turnwise::loss::ppo_clip{}, with_all, true));
  std::mt19937 generator{7};
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < rows; ++i) which.push_back(generator() % 6);
  auto const got = run(repeated(some, which), turnwise::loss::ppo_clip{}, with_all, true, 0, 0, true);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    auto const& expected = alone[which[i]];
    bool const same =
        std::memcmp(got.gradient.data() + i * vocabulary, expected.gradient.data(), vocabulary * sizeof(T)) == 0 &&
        std::memcmp(&got.logprob[i], expected.logprob.data(), sizeof(float)) == 0 &&
        std::memcmp(&got.entropy[i], expected.entropy.data(), sizeof(float)) == 0;
    wrong += same ? 0 : 1;
  }
  CHECK(wrong == 0);
}

/// A batch of four rows over and over, in place, as many as make it pass 2^31 logits: each row gets what it got in a
/// batch of the four. One row lies on both sides of the 2^31st logit.
void check_large(std::size_t shift) {
  CAPTURE(shift);
  constexpr std::size_t rows = 16400, vocabulary = 131080, across = 16383;
  constexpr std::size_t limit = std::size_t{1} << 31;
  static_assert(rows % 4 == 0 && across * vocabulary < limit && limit < (across + 1) * vocabulary);
  using T = __nv_bfloat16;
  std::size_t free = 0, all = 0;
  gpu::check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  if (free < rows * vocabulary * sizeof(T) + (std::size_t{1} << 28)) {
    MESSAGE("left out: too little device memory");
    return;
  }
  loss_batch<T> four{4, vocabulary};
  four.scale = {0.5f, 0.75f, 1, 0.25f};
  auto const expected = run(four, turnwise::loss::ppo_clip{}, with_all, true);

  device_array<T> const memory{shift + rows * vocabulary};
  auto const values = memory.span().subspan(shift);
  gpu::check(cudaMemcpy(values.data(), four.values.data(), four.values.size() * sizeof(T), cudaMemcpyHostToDevice),
             "cudaMemcpy");
  for (std::size_t done = 4, more = 0; done < rows; done += more) {
    more = std::min(done, rows - done);
    gpu::check(cudaMemcpy(values.data() + done * vocabulary, values.data(), more * vocabulary * sizeof(T),
                          cudaMemcpyDeviceToDevice),
               "cudaMemcpy");
  }
  gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  auto const over_and_over = []<typename N>(std::vector<N> const& numbers) {
    std::vector<N> result;
    for (std::size_t row = 0; row < rows; ++row) result.push_back(numbers[row % 4]);
    return on_device(result);
  };
  auto const ids = over_and_over(four.ids);
  auto const old_logprob = over_and_over(four.old_logprob), advantage = over_and_over(four.advantage);
  auto const scale = over_and_over(four.scale), reference = over_and_over(four.reference);
  auto const weight = over_and_over(four.weight);
  logit_layout const layout{rows, vocabulary};
  row_outputs const out{rows};
  out.poison();
  device_array<loss_record> const record{1};
  exact_workspace const scratch{logprob::policy_loss_from_logits_workspace_bytes(rows)};
  side_stream const stream;
  logprob::policy_loss_from_logits(
      logprob::token_logits<T, std::int32_t>{values, layout, ids.view()},
      {old_logprob.view(), advantage.view(), scale.view(), reference.view(), weight.view()}, turnwise::loss::ppo_clip{},
      with_all, 1, {values, layout, out.logprob.span(), out.entropy.span()}, record.span(), nullptr, scratch.whole(),
      stream);
  stream.wait();

  auto const got = record.host()[0];
  CHECK(got.tokens == static_cast<std::int64_t>(rows));
  CHECK(got.non_finite == 0);
  CHECK(got.clipped_low == static_cast<std::int64_t>(rows / 4) * expected.record.clipped_low);
  CHECK(got.clipped_high == static_cast<std::int64_t>(rows / 4) * expected.record.clipped_high);
  auto const logprob = out.logprob.host(), entropy = out.entropy.host();
  std::size_t wrong = 0;
  for (std::size_t row = 0; row < rows; ++row)
    wrong += std::memcmp(&logprob[row], &expected.logprob[row % 4], sizeof(float)) == 0 &&
                     std::memcmp(&entropy[row], &expected.entropy[row % 4], sizeof(float)) == 0
                 ? 0
                 : 1;
  CHECK(wrong == 0);
  for (std::size_t const row :
       {std::size_t{0}, std::size_t{8191}, std::size_t{8192}, across - 1, across, across + 1, across + 2, rows - 1}) {
    CAPTURE(row);
    std::vector<T> gradient(vocabulary);
    gpu::check(
        cudaMemcpy(gradient.data(), values.data() + row * vocabulary, vocabulary * sizeof(T), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
    auto const begin = expected.gradient.begin() + static_cast<std::ptrdiff_t>(row % 4 * vocabulary);
    CHECK(same_bits(gradient, {begin, begin + static_cast<std::ptrdiff_t>(vocabulary)}));
  }
}

bool near(double a, double b, double absolute, double relative) {
  return std::abs(a - b) <= absolute + relative * std::abs(b);
}

template <typename T, typename Policy>
void compare(std::size_t rows, std::size_t vocabulary, Policy const& policy, loss_options const& options, bool extras,
             std::size_t shift, bool in_place, std::size_t gradient_shift = 0, double temperature = 1) {
  CAPTURE(vocabulary);
  CAPTURE(temperature);
  CAPTURE(shift);
  CAPTURE(in_place);
  CAPTURE(gradient_shift);
  loss_batch<T> const batch{rows, vocabulary, temperature};
  std::vector<double> expected;
  auto const record = batch.expected(policy, options, extras, expected);
  auto const got = run(batch, policy, options, extras, shift, shift, in_place, nullptr, gradient_shift);
  double const rounding = sizeof(T) == 4 ? 0 : std::same_as<T, __half> ? 0x1p-11 : 0x1p-8;
  double const slack = std::max(1.0, 1 / temperature);  // log-probs grow by it, and with them the error of a float
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) largest = std::max(largest, std::abs(expected[i]));
  for (std::size_t i = 0; i < expected.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(static_cast<float>(got.gradient[i])) - expected[i]) /
                                (rounding * 1.01 * std::abs(expected[i]) + 2e-5 * slack * largest + 1e-7));
  CHECK(worst <= 1);
  CHECK(near(got.record.loss(), record.loss(), 1e-5 * slack, 1e-5 * slack));
  CHECK(got.record.tokens == record.tokens);
  CHECK(got.record.non_finite == record.non_finite);
  CHECK(got.record.clipped_low == record.clipped_low);
  CHECK(got.record.clipped_high == record.clipped_high);
  CHECK(near(got.record.ratio_sum, record.ratio_sum, 0, 1e-5 * slack));
  CHECK(near(got.record.kl_sum, record.kl_sum, 1e-5 * slack, 1e-4 * slack));
  if (extras) CHECK(near(got.record.entropy_sum, record.entropy_sum, 1e-5 * slack, 1e-5 * slack));
}

}  // namespace

TEST_SUITE("gpu/logprob/policy_loss_from_logits" * doctest::skip(!has_device())) {
  TEST_CASE("against the host in double: vocabularies that a block holds and that it does not") {
    turnwise::loss::ppo_clip const policy{};
    for (std::size_t const vocabulary : test::vocabularies) {
      compare<__nv_bfloat16>(4, vocabulary, policy, {}, false, 0, false);
      compare<__nv_bfloat16>(4, vocabulary, policy, with_all, true, 1, true);
      if (vocabulary > 130000 && vocabulary < 262144) continue;
      compare<float>(2, vocabulary, policy, with_all, true, 0, true);
    }
    compare<__half>(3, 5000, policy, with_all, true, 3, false);
  }

  TEST_CASE("temperatures") {
    for (double const temperature : {0.1, 10.0})
      for (std::size_t const vocabulary : {127u, 32000u, 128256u}) {
        compare<__nv_bfloat16>(4, vocabulary, turnwise::loss::ppo_clip{}, with_all, true, 0, true, 0, temperature);
        compare<float>(3, vocabulary, turnwise::loss::reinforce{}, {}, false, 1, false, 0, temperature);
      }
  }

  TEST_CASE("any alignment of logits and gradient") {
    for (std::size_t const vocabulary : {3u, 40u, 5003u, 130003u})
      for (std::size_t const gradient_shift : {0u, 1u, 6u}) {
        compare<__nv_bfloat16>(2, vocabulary, turnwise::loss::ppo_clip{}, with_all, true, 1, false, gradient_shift);
        compare<__nv_bfloat16>(2, vocabulary, turnwise::loss::ppo_clip{}, {}, false, 0, false, gradient_shift);
      }
  }

  TEST_CASE("every token-level policy") {
    compare<float>(300, 50, turnwise::loss::ppo_clip{.dual_clip = 3}, with_all, true, 0, false);
    compare<float>(300, 50, turnwise::loss::reinforce{.importance_weight = true}, with_all, true, 0, false);
    compare<float>(300, 50, turnwise::loss::cispo{}, {}, false, 0, false);
    compare<float>(300, 50, turnwise::loss::sapo{}, {.entropy_coefficient = 0.02}, false, 0, false);
  }

  TEST_CASE("more rows than blocks; the same bits on every run, at any alignment, in place or not") {
    loss_batch<__nv_bfloat16> const batch{1500, 130};
    turnwise::loss::ppo_clip const policy{};
    auto const first = run(batch, policy, with_all, true);
    for (std::size_t const shift : {0u, 1u, 2u, 7u})
      for (bool const in_place : {false, true}) {
        auto const again = run(batch, policy, with_all, true, shift, shift, in_place);
        CHECK(same_bits(again.gradient, first.gradient));
        CHECK(same_bits(again.logprob, first.logprob));
        CHECK(again.record == first.record);
      }
    // A row alone is what it is among others.
    loss_batch<__nv_bfloat16> one{1, 130};
    std::size_t const at = 777;
    one.values.assign(batch.values.begin() + at * 130, batch.values.begin() + (at + 1) * 130);
    one.ids = {batch.ids[at]};
    one.old_logprob = {batch.old_logprob[at]}, one.advantage = {batch.advantage[at]}, one.scale = {batch.scale[at]};
    one.reference = {batch.reference[at]}, one.weight = {batch.weight[at]};
    auto const alone = run(one, policy, with_all, true);
    CHECK(same_bits(alone.gradient, {first.gradient.begin() + at * 130, first.gradient.begin() + (at + 1) * 130}));
  }

  TEST_CASE("one block and clusters of any size give the same bits; rows that end within a vector") {
    struct shape {
      std::size_t vocabulary, gap;
    };
    // Rows of the first run begin at vectors, those of the second, which a block works on, do not.
    auto const check = []<typename T>(T, shape const& one) {
      CAPTURE(one.vocabulary);
      loss_batch<T> const batch{3, one.vocabulary};
      auto const clusters = run(batch, turnwise::loss::ppo_clip{}, with_all, true, 0, one.gap);
      auto const block = run(batch, turnwise::loss::ppo_clip{}, with_all, true, 1, one.gap);
      CHECK(same_bits(clusters.gradient, block.gradient));
      CHECK(same_bits(clusters.logprob, block.logprob));
      CHECK(same_bits(clusters.entropy, block.entropy));
      CHECK(clusters.record == block.record);
    };
    for (shape const one : {shape{1, 7}, shape{7, 1}, shape{8, 0}, shape{31, 1}, shape{2053, 3}, shape{20000, 0},
                            shape{50257, 7}, shape{90003, 5}, shape{151936, 0}, shape{151941, 3}})
      check(__nv_bfloat16{}, one);
    for (shape const one : {shape{5, 3}, shape{25001, 3}, shape{128256, 0}}) check(float{}, one);
    check(__half{}, shape{32001, 7});
  }

  TEST_CASE("each row by itself, in any order, through all sizes of a cluster") {
    for (std::size_t const vocabulary : {8u, 4096u, 40000u, 100000u, 151936u})
      check_rows<__nv_bfloat16>(40, vocabulary);
    check_rows<float>(20, 50260);
  }

  TEST_CASE("rows outside the loss are not read and get 0; bad rows are counted and set the status") {
    for (std::size_t const vocabulary : {6u, 20000u}) {
      loss_batch<float> batch{6, vocabulary};
      batch.scale = {1, 0, 1, 1, 1, 1};
      batch.mask = {0, 1, 1, 1, 1, 1};
      for (std::size_t const row : {0u, 1u, 2u}) batch.values[row * vocabulary + 3] = static_cast<float>(nan_value);
      batch.ids = {-100, -100, 1, 1, -1, 1};
      batch.old_logprob[3] = std::numeric_limits<float>::infinity();
      status_memory const status;
      auto const got = run(batch, turnwise::loss::ppo_clip{}, {}, false, 0, 0, false, status.get());
      bool zeros = true;
      for (std::size_t i = 0; i < 5 * vocabulary; ++i) zeros = zeros && got.gradient[i] == 0;
      CHECK(zeros);
      CHECK(got.record.tokens == 1);
      CHECK(got.record.non_finite == 3);
      CHECK(got.logprob[0] == 0);
      CHECK(got.logprob[1] == 0);
      CHECK(std::isnan(got.logprob[2]));
      CHECK(std::isnan(got.logprob[4]));
      double sum = 0;
      for (std::size_t i = 5 * vocabulary; i < 6 * vocabulary; ++i) sum += static_cast<double>(got.gradient[i]);
      CHECK(std::abs(sum) < 1e-4);
      CHECK(status.host().code() == logprob::detail::bad_logits);
      CHECK(status.host().index() == 2);
    }
  }

  TEST_CASE("on a stream and in a graph; nothing kept; no rows") {
    loss_batch<float> batch{40, 300};
    turnwise::loss::cispo const policy{};
    auto const first = run(batch, policy, {}, false);
    auto const ids = on_device(batch.ids);
    auto const values = on_device(batch.values);
    auto const old_logprob = on_device(batch.old_logprob), advantage = on_device(batch.advantage);
    auto const scale = on_device(batch.scale);
    device_array<float> const gradient{values.span().size()};
    device_array<loss_record> const record{1};
    logit_layout const layout{40, 300};
    exact_workspace const memory{logprob::policy_loss_from_logits_workspace_bytes(40)};
    auto const enqueue = [&](gpu::workspace const& scratch, ::cuda::stream_ref stream) {
      logprob::policy_loss_from_logits(logprob::token_logits<float, std::int32_t>{values.view(), layout, ids.view()},
                                       {old_logprob.view(), advantage.view(), scale.view()}, policy, {}, 1,
                                       {gradient.span(), layout}, record.span(), nullptr, scratch, stream);
    };
    on_stream_and_in_graph(
        [&] {
          gpu::check(cudaMemset(gradient.span().data(), 0x7b, gradient.span().size() * sizeof(float)), "cudaMemset");
          gpu::check(cudaMemset(record.span().data(), 0x7b, sizeof(loss_record)), "cudaMemset");
          gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        },
        [&](::cuda::stream_ref stream) { enqueue(memory.whole(), stream); },
        [&] {
          CHECK(same_bits(gradient.host(), first.gradient));
          CHECK(record.host()[0] == first.record);
        });
    side_stream const stream;
    CHECK(message_of([&] { enqueue(memory.short_by_one(), stream); }).find("policy_loss_from_logits: rows") !=
          std::string::npos);

    batch.scale.assign(40, 0);
    auto const none = run(batch, policy, {}, false);
    CHECK(none.record.nothing_kept());
    CHECK(none.record.loss() == 0);
    CHECK(std::all_of(none.gradient.begin(), none.gradient.end(), [](float x) { return x == 0; }));
    CHECK(run(loss_batch<float>{0, 3}, policy, {}, false).record.nothing_kept());
  }

  TEST_CASE("errors") {
    device_array<float> const values{12}, three{3}, two{2};
    device_array<std::int32_t> const ids{3};
    device_array<loss_record> const record{1};
    exact_workspace const memory{logprob::policy_loss_from_logits_workspace_bytes(3)};
    side_stream const stream;
    auto const message = [&](logprob::row_loss_inputs const& in, loss_options const& options, double temperature,
                             logit_layout const& layout) {
      return message_of([&] {
        logprob::policy_loss_from_logits(logprob::token_logits<float, std::int32_t>{values.view(), {3, 4}, ids.view()},
                                         in, turnwise::loss::ppo_clip{}, options, temperature, {values.span(), layout},
                                         record.span(), nullptr, memory.whole(), stream);
      });
    };
    auto const has = [](std::string const& text, char const* part) { return text.find(part) != std::string::npos; };
    logprob::row_loss_inputs const good{three.view(), three.view(), three.view()};
    CHECK(has(message({two.view(), three.view(), three.view()}, {}, 1, {3, 4}), "old_logprob has 2"));
    CHECK(has(message({three.view(), three.view(), two.view()}, {}, 1, {3, 4}), "scale has 2"));
    CHECK(has(message(good, with_all, 1, {3, 4}), "without reference_logprob"));
    CHECK(has(message(good, {}, 0, {3, 4}), "temperature = 0"));
    CHECK(has(message(good, {}, 1, {3, 3}), "gradient is 3 rows of 3"));
    CHECK(has(message(good, {}, 1, {3, 4, 3}), "overlap"));
  }

}  // TEST_SUITE

TEST_SUITE("gpu/logprob/policy_loss_from_logits/large_batch" * doctest::skip(!has_device())) {
  TEST_CASE("more rows than clusters at a time") {
    check_rows<__nv_bfloat16>(1600, 20000);
    check_rows<__nv_bfloat16>(800, 40000);
    check_rows<__nv_bfloat16>(400, 100000);
    check_rows<__nv_bfloat16>(300, 151936);
    check_rows<float>(100, 262144);
  }

  TEST_CASE("CU-01 more than 2^31 logits, in place") {
    check_large(0);  // clusters
    check_large(1);  // blocks, as no row begins at a multiple of 16 bytes
  }
}

}  // namespace policy_loss_from_logits_test

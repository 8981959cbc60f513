#include "logprob/gpu_logits.cuh"

#include <turnwise/gpu/logprob/token_logprob_backward.cuh>

namespace token_logprob_backward_test {

using namespace support;
using test::infinity;
using test::nan_value;
using turnwise::logprob::log_normalizer;
using turnwise::logprob::logit_layout;

namespace {

/// Rounding to T, relative.
template <typename T>
inline constexpr double rounding = sizeof(T) == 4            ? 0
                                   : std::same_as<T, __half> ? 0x1p-11
                                                             : 0x1p-8;

struct upstream {
  std::vector<float> of_logprob, of_entropy;
};

/// Forward and backward; the gradient comes back packed, and what lies between its rows must stay as it was.
template <typename T>
std::vector<T> gradient_of(placed_rows<T> const& logits, std::vector<std::int32_t> const& ids, upstream const& from,
                           double temperature, std::size_t stride, std::size_t shift, bool in_place = false,
                           std::vector<std::uint8_t> const& mask = {}) {
  std::size_t const rows = logits.layout.rows, vocabulary = logits.layout.vocabulary;
  auto const device_ids = on_device(ids);
  auto const device_mask = on_device(mask);
  auto const of_logprob = on_device(from.of_logprob);
  auto const of_entropy = on_device(from.of_entropy);
  row_outputs const out{rows};
  side_stream const stream;
  logprob::token_logits<T, std::int32_t> const call{logits.view(), logits.layout, device_ids.view(),
                                                    device_mask.view()};
  logprob::token_logprob(call, {.temperature = temperature}, out.all(), nullptr, stream);
  logit_layout const layout = in_place ? logits.layout : logit_layout{rows, vocabulary, stride};
  std::size_t const begin = in_place ? logits.shift : shift;
  std::size_t const size = begin + (rows - 1) * layout.stride() + vocabulary;
  std::vector<T> const before =
      in_place ? logits.memory.host() : std::vector<T>(size + 9, static_cast<T>(static_cast<float>(nan_value)));
  auto const memory = on_device(before);
  logprob::logprob_gradients const gradients{out.normalizer.view(), out.entropy.view(), of_logprob.view(),
                                             of_entropy.view()};
  auto const target = (in_place ? logits.memory.span() : memory.span()).subspan(begin);
  logprob::token_logprob_backward(call, gradients, temperature, 0, target, layout, stream);
  stream.wait();
  auto const after = in_place ? logits.memory.host() : memory.host();
  std::vector<T> packed, around_before, around_after;
  for (std::size_t i = 0; i < after.size(); ++i) {
    bool const inside = i >= begin && i < size && (i - begin) % layout.stride() < vocabulary;
    if (inside) packed.push_back(after[i]);
    if (!inside) around_before.push_back(before[i]), around_after.push_back(after[i]);
  }
  CHECK(same_bits(around_before, around_after));
  CHECK(packed.size() == rows * vocabulary);
  return packed;
}

template <typename T>
void compare(std::size_t vocabulary, double temperature, std::size_t shift, std::size_t gradient_shift,
             std::size_t gradient_gap, bool in_place) {
  CAPTURE(vocabulary);
  CAPTURE(temperature);
  CAPTURE(shift);
  CAPTURE(gradient_shift);
  CAPTURE(in_place);
  constexpr std::size_t rows = 3;
  auto const values = test::random_logits<T>(static_cast<unsigned>(vocabulary + shift), rows * vocabulary);
  auto const ids = test::random_ids<std::int32_t>(5, rows, vocabulary);
  upstream const from{{1.5f, -0.7f, 0.0f}, {0.0f, 0.25f, -2.0f}};
  placed_rows<T> const placed{values, rows, vocabulary, vocabulary + shift, shift};
  auto const got = gradient_of(placed, ids, from, temperature, vocabulary + gradient_gap, gradient_shift, in_place);
  double worst = 0;  // error over what is allowed
  for (std::size_t row = 0; row < rows; ++row) {
    std::vector<double> p;
    auto const id = static_cast<std::size_t>(ids[row]);
    auto const truth =
        test::truth_of(std::span<T const>{values}.subspan(row * vocabulary, vocabulary), id, temperature, &p);
    double const g = static_cast<double>(from.of_logprob[row]), h = static_cast<double>(from.of_entropy[row]);
    for (std::size_t i = 0; i < vocabulary; ++i) {
      double const logp = p[i] > 0 ? std::log(p[i]) : 0;
      double const expected = (g * ((i == id) - p[i]) - h * p[i] * (logp + truth.entropy)) / temperature;
      double const tiny = 0x1p-126 * (std::abs(g) + std::abs(h) * (truth.entropy + 88));  // of probabilities lost
      double const near = 5e-6 * (1 - logp) * p[i] * (std::abs(g) + std::abs(h) * (1 + truth.entropy - logp));
      double const allowed = (near + tiny + (i == id) * 2e-7 * std::abs(g)) / temperature +
                             rounding<T> * 1.01 * std::abs(expected) + 1e-7 * (sizeof(T) == 2) + 0x1p-149;
      worst = std::max(
          worst, std::abs(static_cast<double>(static_cast<float>(got[row * vocabulary + i])) - expected) / allowed);
    }
  }
  CHECK(worst <= 1);
}

}  // namespace

TEST_SUITE("gpu/logprob/token_logprob_backward" * doctest::skip(!has_device())) {
  TEST_CASE("every vocabulary and type against long double") {
    for (std::size_t const vocabulary : test::vocabularies) {
      compare<__nv_bfloat16>(vocabulary, 1, 0, 0, 0, false);
      compare<__nv_bfloat16>(vocabulary, 1, 1, 0, 0, true);
      if (vocabulary > 60000) continue;
      compare<float>(vocabulary, 0.7, 0, 0, 3, false);
      compare<__half>(vocabulary, 1, 0, 0, 0, true);
    }
  }

  TEST_CASE("any alignment of logits and gradient") {
    for (std::size_t const vocabulary : {3u, 40u, 300u, 5003u})
      for (std::size_t const shift : {0u, 1u, 5u})
        for (std::size_t const gradient_shift : {0u, 1u, 2u, 7u}) {
          compare<__nv_bfloat16>(vocabulary, 1, shift, gradient_shift, gradient_shift, false);
          compare<float>(vocabulary, 1, shift, gradient_shift, 1, false);
        }
  }

  TEST_CASE("temperatures") {
    for (double const temperature : {0.1, 0.3, 10.0}) {
      compare<float>(1000, temperature, 0, 0, 0, false);
      compare<__nv_bfloat16>(20000, temperature, 0, 0, 0, true);
    }
  }

  TEST_CASE("central differences of the forward pass in double, through float gradients") {
    constexpr std::size_t vocabulary = 6;
    auto const values = test::random_logits<float>(1, vocabulary, 1);
    std::vector<std::int32_t> const ids{4};
    placed_rows<float> const placed{values, 1, vocabulary, vocabulary, 0};
    auto const got = gradient_of(placed, ids, {{1.5f}, {-0.5f}}, 0.8, vocabulary, 0);
    std::vector<double> x(values.begin(), values.end());
    auto const objective = [&] {
      auto const truth = test::truth_of(std::span<double const>{x}, 4, 0.8);
      return 1.5 * truth.logprob - 0.5 * truth.entropy;
    };
    for (std::size_t i = 0; i < vocabulary; ++i) {
      double const kept = x[i];
      x[i] = kept + 1e-4;
      double const above = objective();
      x[i] = kept - 1e-4;
      double const below = objective();
      x[i] = kept;
      CHECK(std::abs(static_cast<double>(got[i]) - (above - below) / 2e-4) < 3e-6);
    }
  }

  TEST_CASE("zero rows: masked, without a gradient, bad; their logits are not read") {
    for (std::size_t const vocabulary : {2u, 300u, 20000u}) {
      CAPTURE(vocabulary);
      constexpr std::size_t rows = 5;
      std::vector<float> values(rows * vocabulary, 1);
      for (std::size_t const row : {0u, 1u, 2u}) values[row * vocabulary + 1] = static_cast<float>(nan_value);
      placed_rows<float> const placed{values, rows, vocabulary, vocabulary, 0};
      auto const got = gradient_of(placed, {-100, 0, 0, -3, 1}, {{1, 0, 1, 1, 1}, {1, 0, 1, 1, 0}}, 1, vocabulary + 1,
                                   1, false, {0, 1, 1, 1, 1});
      bool zeros = true;
      for (std::size_t i = 0; i < 4 * vocabulary; ++i) zeros = zeros && got[i] == 0;
      CHECK(zeros);
      float const p = 1.0f / static_cast<float>(vocabulary);
      CHECK(got[4 * vocabulary] == doctest::Approx(-p).epsilon(4e-6));
      CHECK(got[4 * vocabulary + 1] == doctest::Approx(1 - p).epsilon(4e-6));
    }
  }

  TEST_CASE("filtered tokens have gradient 0") {
    float const filtered = -std::numeric_limits<float>::infinity();
    placed_rows<float> const placed{{filtered, 1, 1, filtered, 1, 1}, 2, 3, 3, 0};
    auto const got = gradient_of(placed, {1, 0}, {{1, 1}, {1, 0}}, 1, 3, 0);
    std::vector<double> const expected{0, 0.5, -0.5, 1, -0.5, -0.5};
    for (std::size_t i = 0; i < 6; ++i) CHECK(std::abs(static_cast<double>(got[i]) - expected[i]) < 2e-6);
  }

  TEST_CASE("on a stream and in a graph; 65537 rows; no rows") {
    constexpr std::size_t rows = 65537, vocabulary = 5;
    auto const values = on_device(test::random_logits<__half>(2, rows * vocabulary));
    auto const ids = on_device(std::vector<std::int32_t>(rows, 3));
    auto const ones = on_device(std::vector<float>(rows, 1));
    row_outputs const out{rows};
    device_array<__half> const gradient{rows * vocabulary};
    logit_layout const layout{rows, vocabulary};
    logprob::token_logits<__half, std::int32_t> const logits{values.view(), layout, ids.view()};
    std::vector<__half> first;
    on_stream_and_in_graph(
        [&] {
          gpu::check(cudaMemset(gradient.span().data(), 0x7b, rows * vocabulary * sizeof(__half)), "cudaMemset");
          gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        },
        [&](cuda::stream_ref stream) {
          logprob::token_logprob(logits, {}, out.all(), nullptr, stream);
          logprob::token_logprob_backward(logits, {out.normalizer.view(), {}, ones.view(), {}}, 1, 0, gradient.span(),
                                          layout, stream);
        },
        [&] {
          auto const got = gradient.host();
          if (first.empty()) first = got;
          CHECK(same_bits(got, first));
          double worst = 0;
          for (std::size_t row = 0; row < rows; ++row) {
            double sum = 0;  // of a row: 0
            for (std::size_t i = 0; i < vocabulary; ++i)
              sum += static_cast<double>(static_cast<float>(got[row * vocabulary + i]));
            worst = std::max(worst, std::abs(sum));
          }
          CHECK(worst < 3e-3);
        });
    side_stream const stream;
    logprob::token_logprob_backward(logprob::token_logits<float, std::int32_t>{{}, {0, 5}, {}}, {}, 1, 0, {}, {0, 5},
                                    stream);
    stream.wait();
  }

  TEST_CASE("errors") {
    device_array<float> const values{12}, three{3}, two{2};
    device_array<std::int32_t> const ids{3};
    device_array<log_normalizer<float>> const normalizer{3};
    side_stream const stream;
    auto const message = [&](logprob::logprob_gradients const& from, double temperature, logit_layout const& layout) {
      return message_of([&] {
        logprob::token_logprob_backward(logprob::token_logits<float, std::int32_t>{values.view(), {3, 4}, ids.view()},
                                        from, temperature, 0, values.span(), layout, stream);
      });
    };
    auto const has = [](std::string const& text, char const* part) { return text.find(part) != std::string::npos; };
    logprob::logprob_gradients const good{normalizer.view(), three.view(), three.view(), three.view()};
    CHECK(has(message({normalizer.view().first(2), {}, {}, {}}, 1, {3, 4}), "normalizer has 2"));
    CHECK(has(message({normalizer.view(), three.view(), two.view(), {}}, 1, {3, 4}), "logprob_gradient has 2"));
    CHECK(has(message({normalizer.view(), {}, three.view(), three.view()}, 1, {3, 4}), "entropy has 0"));
    CHECK(has(message(good, 0, {3, 4}), "temperature = 0"));
    CHECK(has(message(good, 1, {3, 3}), "gradient is 3 rows of 3"));
    CHECK(has(message(good, 1, {3, 4, 3}), "overlap"));
  }

}  // TEST_SUITE

TEST_SUITE("gpu/logprob/token_logprob_backward/large_batch" * doctest::skip(!has_device())) {
  TEST_CASE("CU-01 more than 2^31 logits, in place") {
    constexpr std::size_t rows = 70000, stride = 32768, vocabulary = 3000;
    device_array<__nv_bfloat16> const values{rows * stride};
    gpu::check(cudaMemset(values.span().data(), 0, rows * stride * sizeof(__nv_bfloat16)), "cudaMemset");
    gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    auto const ids = on_device(std::vector<std::int32_t>(rows, 2));
    auto const ones = on_device(std::vector<float>(rows, 1));
    row_outputs const out{rows};
    logit_layout const layout{rows, vocabulary, stride};
    side_stream const stream;
    logprob::token_logits<__nv_bfloat16, std::int32_t> const logits{values.view(), layout, ids.view()};
    logprob::token_logprob(logits, {}, out.all(), nullptr, stream);
    logprob::token_logprob_backward(logits, {out.normalizer.view(), {}, ones.view(), {}}, 1, 0, values.span(), layout,
                                    stream);
    stream.wait();
    std::vector<__nv_bfloat16> last(vocabulary + 1);
    for (std::size_t const row : {std::size_t{0}, std::size_t{65536}, rows - 1}) {
      std::size_t const count = row + 1 < rows ? vocabulary + 1 : vocabulary;
      gpu::check(cudaMemcpy(last.data(), values.span().data() + row * stride, count * sizeof(__nv_bfloat16),
                            cudaMemcpyDeviceToHost),
                 "cudaMemcpy");
      CHECK(static_cast<double>(static_cast<float>(last[0])) == doctest::Approx(-1.0 / 3000).epsilon(0.005));
      CHECK(static_cast<double>(static_cast<float>(last[2])) == doctest::Approx(1 - 1.0 / 3000).epsilon(0.005));
      CHECK(static_cast<double>(static_cast<float>(last[2999])) == doctest::Approx(-1.0 / 3000).epsilon(0.005));
      if (row + 1 < rows) CHECK(static_cast<float>(last[3000]) == 0);
    }
  }
}

}  // namespace token_logprob_backward_test

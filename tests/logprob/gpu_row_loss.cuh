/// Batches of rows for policy_loss_from_logits: what they give on the host and on the device.
#pragma once

#include "logprob/gpu_logits.cuh"

#include <turnwise/gpu/logprob/policy_loss_from_logits.cuh>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace support {

using turnwise::loss::loss_options;
using turnwise::loss::loss_record;

inline loss_options const with_all{.kl_coefficient = 0.1, .entropy_coefficient = 0.02};

/// Tokens with everything that a loss may read.
template <typename T>
struct loss_batch {
  std::size_t rows, vocabulary;
  double temperature;
  std::vector<T> values;
  std::vector<std::int32_t> ids;
  std::vector<float> old_logprob, advantage, scale, reference, weight;
  std::vector<std::uint8_t> mask;

  loss_batch(std::size_t r, std::size_t v, double of_softmax = 1)
      : rows(r), vocabulary(v), temperature(of_softmax), values(test::random_logits<T>(1, r * v)), mask(r, 1) {
    ids = test::random_ids<std::int32_t>(2, r, v);
    std::mt19937 generator{3};
    std::normal_distribution<float> around{0, 0.3f};
    for (std::size_t i = 0; i < r; ++i) {
      auto const truth =
          test::truth_of(std::span<T const>{values}.subspan(i * v, v), static_cast<std::size_t>(ids[i]), temperature);
      old_logprob.push_back(static_cast<float>(truth.logprob) + around(generator));
      reference.push_back(static_cast<float>(truth.logprob) + around(generator));
      advantage.push_back(around(generator) * 5);
      scale.push_back(0.25f * static_cast<float>(generator() % 4));  // some are 0
      weight.push_back(0.5f + static_cast<float>(generator() % 3));
    }
    if (r > 0) scale[0] = 0.5f;
  }

  /// The host's, in double.
  template <typename Policy>
  loss_record expected(Policy const& policy, loss_options const& options, bool extras,
                       std::vector<double>& gradient) const {
    std::vector<double> wide;
    for (T const x : values) wide.push_back(static_cast<double>(static_cast<float>(x)));
    turnwise::logprob::row_loss_inputs<float> in{old_logprob, advantage, scale};
    if (extras) in.reference_logprob = reference, in.weight = weight;
    gradient.resize(wide.size());
    return turnwise::logprob::policy_loss_from_logits(
        turnwise::logprob::token_logits<double, std::int32_t>{wide, {rows, vocabulary}, ids, mask}, in, policy, options,
        temperature, {.gradient = gradient, .layout = {rows, vocabulary}});
  }
};

template <typename T>
struct loss_result {
  std::vector<T> gradient;  ///< packed
  std::vector<float> logprob, entropy;
  loss_record record;
};

template <typename T, typename Policy>
loss_result<T> run(loss_batch<T> const& batch, Policy const& policy, loss_options const& options, bool extras,
                   std::size_t shift = 0, std::size_t gap = 0, bool in_place = false,
                   gpu::status_record* status = nullptr, std::size_t gradient_shift = 0) {
  std::size_t const rows = batch.rows, vocabulary = batch.vocabulary;
  auto const ids = on_device(batch.ids);
  auto const mask = on_device(batch.mask);
  auto const old_logprob = on_device(batch.old_logprob), advantage = on_device(batch.advantage);
  auto const scale = on_device(batch.scale), reference = on_device(batch.reference), weight = on_device(batch.weight);
  logprob::row_loss_inputs in{old_logprob.view(), advantage.view(), scale.view()};
  if (extras) in.reference_logprob = reference.view(), in.weight = weight.view();
  placed_rows<T> const placed{batch.values, rows, vocabulary, vocabulary + gap, shift};
  placed_rows<T> const other{batch.values, rows, vocabulary, vocabulary + gap, gradient_shift};
  placed_rows<T> const& target = in_place ? placed : other;
  row_outputs const out{rows};
  out.poison();
  if (!in_place && !target.span().empty()) {
    gpu::check(cudaMemset(target.span().data(), 0x7b, target.span().size() * sizeof(T)), "cudaMemset");
    gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  device_array<loss_record> const record{1};
  exact_workspace const memory{logprob::policy_loss_from_logits_workspace_bytes(rows)};
  side_stream const stream;
  logprob::policy_loss_from_logits(
      logprob::token_logits<T, std::int32_t>{placed.view(), placed.layout, ids.view(), mask.view()}, in, policy,
      options, batch.temperature,
      {target.span(), target.layout, out.logprob.span(), extras ? out.entropy.span() : gpu::device_span<float>{}},
      record.span(), status, memory.whole(), stream);
  stream.wait();
  loss_result<T> result{{}, out.logprob.host(), out.entropy.host(), record.host()[0]};
  auto const host = target.memory.host();
  std::vector<T> between;
  for (std::size_t row = 0; row < rows; ++row) {
    auto const begin = host.begin() + static_cast<std::ptrdiff_t>(target.shift + target.layout.offset(row));
    auto const end = begin + static_cast<std::ptrdiff_t>(vocabulary);
    result.gradient.insert(result.gradient.end(), begin, end);
    if (row + 1 < rows) between.insert(between.end(), end, end + static_cast<std::ptrdiff_t>(gap));
  }
  if (!in_place) {  // stays as it was
    std::vector<unsigned char> const before(between.size() * sizeof(T), 0x7b);
    CHECK((before.empty() || std::memcmp(between.data(), before.data(), before.size()) == 0));
  }
  return result;
}

/// Rows of a batch, row i as row which[i] of `from`.
template <typename T>
loss_batch<T> repeated(loss_batch<T> const& from, std::vector<std::size_t> const& which) {
  loss_batch<T> batch{0, from.vocabulary, from.temperature};
  batch.rows = which.size();
  batch.values.reserve(batch.rows * batch.vocabulary);
  for (std::size_t const r : which) {
    auto const begin = from.values.begin() + static_cast<std::ptrdiff_t>(r * from.vocabulary);
    batch.values.insert(batch.values.end(), begin, begin + static_cast<std::ptrdiff_t>(from.vocabulary));
    batch.ids.push_back(from.ids[r]);
    batch.old_logprob.push_back(from.old_logprob[r]);
    batch.advantage.push_back(from.advantage[r]);
    batch.scale.push_back(from.scale[r]);
    batch.reference.push_back(from.reference[r]);
    batch.weight.push_back(from.weight[r]);
    batch.mask.push_back(from.mask[r]);
  }
  return batch;
}

}  // namespace support

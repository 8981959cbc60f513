/// @file
/// What a pass over a row of logits leaves: of the whole row, and of a part of its vocabulary.
#pragma once

#include <turnwise/core/concepts.hpp>

namespace turnwise::logprob {

/// The log-sum-exp of a row in two parts, log Z = maximum / temperature + log_sum, so that probabilities keep their
/// accuracy whatever the magnitude of the logits. NaN in both: the row was bad.
template <real T>
struct log_normalizer {
  T maximum;  ///< largest logit
  T log_sum;  ///< log of the sum of exp((x - maximum) / temperature), nats; at least 0
};

/// What a part of the vocabulary adds to a row; parts are joined by merge_logprob_partials. Plain numbers, so that
/// ranks can exchange its bytes. With e = exp((x - maximum) / temperature):
template <real T>
struct logprob_partial {
  T maximum;  ///< largest logit, at least the lowest finite number; NaN and +inf tell of a bad logit
  T sum;      ///< of e
  T e_log_e;  ///< sum of e log2(e), at most 0
  T squares;  ///< sum of e^2
  T target;   ///< logit of the row's token; 0 where another part has it, NaN where its id is outside the vocabulary
};

}  // namespace turnwise::logprob

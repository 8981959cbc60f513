/// What the exactness programs' methods take: turns with rewards, returns and reasons.
#pragma once

#include "exactness/batches.hpp"
#include "exactness/digest.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace digest {

using namespace turnwise;
using advantage::baseline_members;
using test::sample_batch;

struct settled_turns {
  std::vector<double> reward, turn_return;
  std::vector<reason_flags> reasons;
  std::vector<std::int64_t> version;  ///< at most 0

  settled_turns(sample_batch<double> const& batch, std::vector<importance::turn_statistics> const& statistics)
      : reward(batch.turns()), turn_return(batch.turns()), reasons(batch.turns()) {
    begin_reasons(batch.view(), reasons);
    reward::kevin_score(batch.evaluation(), {}, reasons, std::span{reward});
    advantage::discounted_return(batch.view(), reward, {.gamma = 0.4}, reasons, std::span{turn_return});
    rejection::usable_tokens(batch.view(), statistics, {}, reasons);
    rejection::ratio_band(batch.view(), statistics, {.level = rejection::scope::turn, .low = 0.95, .high = 1.05},
                          reasons);
    for (std::size_t s = 0; s < batch.turns(); ++s) version.push_back(-static_cast<std::int64_t>(s * s % 7));
  }
};

}  // namespace digest

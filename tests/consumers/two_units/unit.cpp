// Compiled with and without OpenMP, and for wide vector registers.
#include "unit.hpp"

#include <every_header.hpp>
#include <typeinfo>

unit_result UNIT() {
  std::atomic<std::size_t> sum = 0;
  std::atomic<int> ranges = 0;
  turnwise::parallel_for(1000, 10, 2, add_indices{sum, ranges});
  using loop = turnwise::loss::detail::token_loop<turnwise::loss::loss_inputs<float>, turnwise::loss::ppo_clip,
                                                  turnwise::loss::loss_outputs<float>>;
  return {sum, ranges, typeid(loop).name()};
}

/// @file
/// The whole host library.
#pragma once

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/leave_one_out.hpp>
#include <turnwise/advantage/per_token.hpp>
#include <turnwise/core/grouping.hpp>
#include <turnwise/core/philox.hpp>
#include <turnwise/core/rollout.hpp>
#include <turnwise/core/rollout_builder.hpp>
#include <turnwise/core/version.hpp>
#include <turnwise/importance/log_ratio_statistics.hpp>
#include <turnwise/metrics/mismatch.hpp>
#include <turnwise/recipe/dr_kernel.hpp>
#include <turnwise/recipe/kernel_zero.hpp>
#include <turnwise/rejection/profiling_filter.hpp>
#include <turnwise/rejection/ratio_band.hpp>
#include <turnwise/rejection/token_veto.hpp>
#include <turnwise/rejection/usable_tokens.hpp>
#include <turnwise/reward/group_gate.hpp>
#include <turnwise/reward/kernel_reward.hpp>

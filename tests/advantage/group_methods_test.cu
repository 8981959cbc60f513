/// Every group-wise advantage: the host's bits, with every option, in groups of every size and kind.
#include "support/gpu_groups.cuh"

#include <turnwise/gpu/advantage/gpg.cuh>
#include <turnwise/gpu/advantage/group_relative.cuh>
#include <turnwise/gpu/advantage/leave_one_out.cuh>
#include <turnwise/gpu/advantage/max_rl.cuh>
#include <turnwise/gpu/advantage/median_mad.cuh>
#include <turnwise/gpu/advantage/opo.cuh>
#include <turnwise/gpu/advantage/pass_at_k.cuh>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

namespace group_methods_test {

using namespace support;
using turnwise::group_by;
using turnwise::precondition_error;
namespace host = turnwise::advantage;
namespace device = turnwise::gpu::advantage;

namespace {

/// What some methods take besides returns and reasons, for batches of up to `turns` turns: a weight a turn (a token
/// count, sometimes 0; garbage where the turn is invalid) and a workspace.
class extra_inputs {
 public:
  extra_inputs(std::size_t turns, std::uint64_t seed, std::vector<reason_flags> const& reasons = {})
      : weight_(random_weights(turns, seed, reasons)),
        device_weight_(on_device(weight_)),
        scratch_(std::max(device::pass_at_k_workspace_bytes(turns), device::gpg_workspace_bytes)) {}

  [[nodiscard]] std::span<double const> weight(turnwise::grouping const& groups) const {
    return std::span{weight_}.first(groups.turns());
  }
  [[nodiscard]] gpu::device_span<double const> weight(gpu::grouping const& groups) const {
    return device_weight_.view().first(groups.turns);
  }
  [[nodiscard]] gpu::workspace scratch() const { return scratch_.whole(); }

 private:
  static std::vector<double> random_weights(std::size_t turns, std::uint64_t seed,
                                            std::vector<reason_flags> const& reasons) {
    integers random{seed ^ 0x3e16};
    bool const weightless = seed % 6 == 5;
    double const unit = seed % 2 == 0 ? 1 : 1.1e-7;
    double const garbage[]{-1, turnwise::test::nan_value, turnwise::test::infinity};
    std::vector<double> result(turns);
    for (std::size_t s = 0; s < turns; ++s) {
      if (!reasons.empty() && !turnwise::is_valid(reasons[s]))
        result[s] = garbage[random.below(3)];
      else if (!weightless && random.below(6) != 0)
        result[s] = static_cast<double>(random.below(8000)) * unit;
    }
    return result;
  }

  std::vector<double> weight_;
  device_array<double> device_weight_;
  exact_workspace scratch_;
};

/// A method with its options, on both sides.
template <typename T>
struct group_method {
  std::string name;
  std::function<void(turnwise::grouping const&, std::span<T const>, std::span<reason_flags const>, std::span<T>)> host;
  std::function<void(gpu::grouping const&, gpu::device_span<T const>, gpu::device_span<reason_flags const>,
                     gpu::device_span<T>, gpu::status_record*, cuda::stream_ref)>
      device;
  bool quadratic = false;  ///< costs the square of a group's size
};

/// All methods; `every_option`: with each value of each option, else with a few.
template <typename T>
std::vector<group_method<T>> every_method(extra_inputs const& extra, bool every_option) {
  std::vector<group_method<T>> all;
  // host(groups, returns, reasons, options, advantage), device(the same, status, stream).
  auto const add = [&](std::string name, bool quadratic, auto options, auto on_host, auto on_device) {
    all.push_back({name + (options.members == host::baseline_members::kept ? ", kept" : ""),
                   [=](auto const& groups, auto returns, auto reasons, auto advantage) {
                     on_host(groups, returns, reasons, options, advantage);
                   },
                   [=](auto const& groups, auto returns, auto reasons, auto advantage, auto status, auto stream) {
                     on_device(groups, returns, reasons, options, advantage, status, stream);
                   },
                   quadratic});
  };
  using enum host::singleton_policy;
  using enum host::exclude_policy;
  for (auto const members : {host::baseline_members::valid, host::baseline_members::kept}) {
    for (auto const singleton : {others, keep, zero})
      for (auto const exclude : {trajectory, member})
        for (bool const scale : {false, true}) {
          if (!every_option && singleton == zero) continue;
          add(
              "leave_one_out " + std::to_string(static_cast<int>(singleton)) + (exclude == member ? " member" : "") +
                  (scale ? " scale" : ""),
              scale || singleton == others,
              host::leave_one_out_options{.singleton = singleton,
                                          .exclude = exclude,
                                          .members = members,
                                          .allow_kept_with_keep = true,
                                          .threads = 1,
                                          .scale = scale},
              [](auto const&... call) { host::leave_one_out(call...); },
              [](auto const&... call) { device::leave_one_out(call...); });
        }
    for (auto const& [scale, ddof, epsilon] :
         {std::tuple{true, 1, 1e-6}, std::tuple{true, 0, 0.0}, std::tuple{false, 1, 1e-6}})
      add(
          "group_relative " + std::to_string(scale) + std::to_string(ddof), false,
          host::group_relative_options{scale, ddof, epsilon, members, 1},
          [](auto const&... call) { host::group_relative(call...); },
          [](auto const&... call) { device::group_relative(call...); });
    for (double const epsilon : {0.0, 1e-6})
      add(
          "max_rl", false, host::max_rl_options{epsilon, members, 1},
          [](auto const&... call) { host::max_rl(call...); }, [](auto const&... call) { device::max_rl(call...); });
    for (bool const scale : {true, false})
      add(
          "median_mad " + std::to_string(scale), false, host::median_mad_options{scale, 1e-6, members, 1},
          [](auto const&... call) { host::median_mad(call...); },
          [](auto const&... call) { device::median_mad(call...); });
    add(
        "opo", false, host::opo_options{members, 1},
        [&extra](auto const& groups, auto returns, auto const&... call) {
          host::opo(groups, returns, extra.weight(groups), call...);
        },
        [&extra](auto const& groups, auto returns, auto const&... call) {
          device::opo(groups, returns, extra.weight(groups), call...);
        });
    for (std::int64_t const k : {0, 2, 5})
      for (bool const scale : {false, true}) {
        if (!every_option && scale && k == 2) continue;
        add(
            "pass_at_k " + std::to_string(k) + (scale ? " scale" : ""), true,
            host::pass_at_k_options{k, scale, 1e-6, members, 1}, [](auto const&... call) { host::pass_at_k(call...); },
            [&extra](auto const& groups, auto returns, auto reasons, auto const& options, auto advantage, auto status,
                     auto stream) {
              device::pass_at_k(groups, returns, reasons, options, advantage, status, extra.scratch(), stream);
            });
      }
    for (auto const signal : {host::gpg_signal::group, host::gpg_signal::nonzero})
      add(
          "gpg " + std::to_string(static_cast<int>(signal)), false, host::gpg_options{signal, members, 1},
          [](auto const&... call) { host::gpg(call...); },
          [&extra](auto const& groups, auto returns, auto reasons, auto const& options, auto advantage, auto status,
                   auto stream) {
            device::gpg(groups, returns, reasons, options, advantage, status, extra.scratch(), stream);
          });
  }
  return all;
}

/// Every method on one batch; those of quadratic cost while its groups are small enough.
template <typename T>
void compare_all(returns_case<T> const& one, std::uint64_t seed, group_by by, bool every_option) {
  auto const host_groups = turnwise::make_grouping(one.batch.view(), by);
  device_groups const on_device{one.batch.view(), by};
  extra_inputs const extra{one.batch.turns(), seed, one.reasons};
  std::size_t largest = 0;
  for (std::size_t g = 0; g < host_groups.groups(); ++g) largest = std::max(largest, host_groups.members(g).size());
  for (auto const& method : every_method<T>(extra, every_option)) {
    if (method.quadratic && largest > (under_checker() ? 1000u : 5000u)) continue;
    CAPTURE(method.name);
    same_advantages(host_groups, on_device.groups(), one.turn_return, one.reasons, method.host, method.device);
  }
}

template <typename T>
returns_case<T> case_of(std::vector<turn_values<T>> const& trajectories) {
  returns_case<T> one{1};
  one.batch = ragged_batch<T>{trajectories};
  one.turn_return = one.batch.value;
  one.reasons.assign(one.turn_return.size(), 0);
  return one;
}

}  // namespace

TEST_SUITE("gpu/advantage/group_methods" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, all groupings and options", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed)
      for (group_by const by : every_kind) {
        CAPTURE(seed);
        CAPTURE(static_cast<int>(by));
        compare_all(returns_case<T>{seed}, seed, by, seed % 4 == 0);
      }
  }

  TEST_CASE("groups in all three sum orders, at their borders") {
    integers random{77};
    for (std::int64_t const size : {1, 2, 31, 32, 33, 63, 64, 65, 300, 4096, 4097, 9000}) {
      CAPTURE(size);
      std::vector<turn_values<double>> trajectories;
      for (std::int64_t k = 0; k < size; ++k)
        trajectories.push_back({.group = 5, .id = size - k, .turns = {turnwise::test::uneven_number(random)}});
      auto one = case_of(trajectories);
      for (auto& flags : one.reasons) flags = random.below(5) == 0 ? turnwise::reason::ratio_low : 0;
      compare_all(one, 2, group_by::turn, false);
    }
  }

  TEST_CASE("few values many times: ties in ranks and medians, zeros of both signs") {
    integers random{79};
    for (std::int64_t const kinds : {1, 2, 3, 7}) {
      CAPTURE(kinds);
      std::vector<turn_values<double>> trajectories;
      for (std::int64_t g = 0; g < 40; ++g)
        for (std::int64_t k = 0; k < 1 + g * 3; ++k) {
          double const value = static_cast<double>(random.below(kinds) - kinds / 2);
          trajectories.push_back({.group = g, .id = k, .turns = {random.below(2) == 0 && value == 0 ? -0.0 : value}});
        }
      auto one = case_of(trajectories);
      for (auto& flags : one.reasons) flags = random.below(4) == 0 ? turnwise::reason::ratio_low : 0;
      compare_all(one, 5, group_by::group, true);
    }
  }

  TEST_CASE("trajectories of many turns: their own sum is taken in order") {
    integers random{78};
    std::vector<turn_values<double>> trajectories;
    for (std::int64_t const turns : {31, 0, 32, 1, 33, 64, 2, 700, 65, 1, 1, 96, 3000, 3}) {
      turn_values<double> one{.group = -9, .id = static_cast<std::int64_t>(trajectories.size())};
      for (std::int64_t t = 0; t < turns; ++t) one.turns.push_back(turnwise::test::uneven_number(random));
      trajectories.push_back(one);
    }
    for (bool const alone : {false, true}) {
      if (alone) trajectories.erase(trajectories.begin(), trajectories.end() - 2);
      auto one = case_of(trajectories);
      for (auto& flags : one.reasons) flags = random.below(6) == 0 ? turnwise::reason::invalid : 0;
      for (group_by const by : every_kind) compare_all(one, 4, by, true);
    }
  }

  TEST_CASE("without reasons all turns are valid") {
    returns_case<float> one{6};
    for (float& value : one.turn_return) value = value == value ? value : 0.0f;
    auto const host_groups = turnwise::make_grouping(one.batch.view(), group_by::turn);
    device_groups const on_device{one.batch.view(), group_by::turn};
    extra_inputs const extra{one.batch.turns(), 6};
    for (auto const& method : every_method<float>(extra, false)) {
      CAPTURE(method.name);
      same_advantages(host_groups, on_device.groups(), one.turn_return, {}, method.host, method.device);
    }
  }

  TEST_CASE_TEMPLATE("bad content, bad sizes, wrong offsets, no turns", T, float, double) {
    extra_inputs const extra{returns_case<T>{8}.batch.turns(), 8};
    std::string checked;  // the function before
    for (auto const& method : every_method<T>(extra, false)) {
      CAPTURE(method.name);
      std::string const function = method.name.substr(0, method.name.find_first_of(" ,"));
      if (under_checker() && std::exchange(checked, function) == function) continue;
      check_group_errors<T>(method.host, method.device);
    }
  }

  TEST_CASE_TEMPLATE("bad options", T, float, double) {
    device_groups const empty{turnwise::rollout_view{}, group_by::turn};
    extra_inputs const extra{0, 1};
    side_stream const stream;
    gpu::device_span<T> const none;
    auto const refused = [&](auto method, auto const& options, auto const&... scratch) {
      CHECK_THROWS_AS(method(empty.groups(), none, gpu::device_span<reason_flags const>{}, options, none, nullptr,
                             scratch..., stream),
                      precondition_error);
    };
    auto const leave_one_out = [](auto const&... call) { device::leave_one_out(call...); };
    refused(leave_one_out, host::leave_one_out_options{.members = host::baseline_members::kept});
    refused(leave_one_out, host::leave_one_out_options{.epsilon = -1});
    auto const group_relative = [](auto const&... call) { device::group_relative(call...); };
    refused(group_relative, host::group_relative_options{.ddof = 2});
    refused(group_relative, host::group_relative_options{.epsilon = turnwise::test::nan_value});
    refused([](auto const&... call) { device::max_rl(call...); }, host::max_rl_options{.epsilon = -1});
    refused([](auto const&... call) { device::median_mad(call...); },
            host::median_mad_options{.epsilon = turnwise::test::infinity});
    auto const pass_at_k = [](auto const&... call) { device::pass_at_k(call...); };
    for (std::int64_t const k : {1, -1}) refused(pass_at_k, host::pass_at_k_options{.k = k}, extra.scratch());
    refused(pass_at_k, host::pass_at_k_options{.epsilon = -1}, extra.scratch());
  }

  TEST_CASE_TEMPLATE("opo with weights of any size, 0 too: the host's bits", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(6); ++seed) {
      CAPTURE(seed);
      returns_case<T> const one{seed};
      integers random{seed};
      std::vector<double> weight;
      for (std::size_t s = 0; s < one.batch.turns(); ++s) {
        int const exponent = seed % 3 == 0 ? -1074 : seed % 3 == 1 ? 490 : -static_cast<int>(s % 1070);
        weight.push_back(random.below(3) == 0 ? 0.0 : std::ldexp(static_cast<double>(1 + random.below(9)), exponent));
      }
      auto const device_returns = on_device(one.turn_return);
      auto const device_weight = on_device(weight);
      auto const device_reasons = on_device(one.reasons);
      device_array<T> const advantage{weight.size()};
      for (group_by const by : every_kind) {
        device_groups const groups{one.batch.view(), by};
        std::vector<T> expected(weight.size());
        host::opo(turnwise::make_grouping(one.batch.view(), by), one.turn_return, weight, one.reasons, {},
                  std::span{expected});
        side_stream const stream;
        device_status const status;
        device::opo(groups.groups(), device_returns.view(), device_weight.view(), device_reasons.view(), {},
                    advantage.span(), status.get(), stream);
        stream.wait();
        CHECK(same_bits(advantage.host(), expected));
        CHECK(status.ok());
      }
    }
  }

  TEST_CASE_TEMPLATE("bad weights act as invalid turns", T, float, double) {
    returns_case<T> const one{8};
    std::size_t const turns = one.batch.turns();
    device_groups const on_device_groups{one.batch.view(), group_by::group};
    std::vector<double> weight(turns, 2.5);
    auto excluded = one.reasons;
    std::optional<std::int64_t> first;
    double const bad[]{-1, turnwise::test::nan_value, turnwise::test::infinity, 0x1p501};
    for (std::size_t s = 3; s < turns; s += 11) {
      weight[s] = bad[s % 4];
      excluded[s] |= turnwise::reason::invalid;
      if (!first && turnwise::is_valid(one.reasons[s])) first = static_cast<std::int64_t>(s);
    }
    REQUIRE(first);
    std::vector<T> expected(turns);
    host::opo(turnwise::make_grouping(one.batch.view(), group_by::group), one.turn_return, weight, excluded, {},
              std::span{expected});
    auto const device_returns = on_device(one.turn_return);
    auto const device_weight = on_device(weight);
    auto const device_reasons = on_device(one.reasons);
    device_array<T> const advantage{turns};
    device_status const status;
    side_stream const stream;
    auto const call = [&](gpu::device_span<double const> weights, gpu::device_span<T> out) {
      device::opo(on_device_groups.groups(), device_returns.view(), weights, device_reasons.view(), {}, out,
                  status.get(), stream);
    };
    call(device_weight.view(), advantage.span());
    stream.wait();
    CHECK(same_bits(advantage.host(), expected));
    CHECK(status.host().code() == gpu::status_code::weight);
    CHECK(status.host().index() == *first);
    CHECK_THROWS_AS(call(device_weight.view().first(turns - 1), advantage.span()), precondition_error);
    CHECK_THROWS_AS(call({}, advantage.span()), precondition_error);
    if constexpr (std::is_same_v<T, double>)
      CHECK_THROWS_AS(call(device_weight.view(), device_weight.span()), precondition_error);
  }

  TEST_CASE("a workspace that is too short is refused, and nothing is enqueued") {
    returns_case<double> const one{3};
    std::size_t const turns = one.batch.turns();
    device_groups const groups{one.batch.view(), group_by::group};
    auto const returns = on_device(one.turn_return);
    auto const reasons = on_device(one.reasons);
    device_array<double> const advantage{turns};
    fill_bytes(advantage, 0x11);
    auto const untouched = advantage.host();
    side_stream const stream;
    exact_workspace const ranks{device::pass_at_k_workspace_bytes(turns)};
    CHECK_THROWS_AS(device::pass_at_k(groups.groups(), returns.view(), reasons.view(), {}, advantage.span(), nullptr,
                                      ranks.short_by_one(), stream),
                    precondition_error);
    exact_workspace const counts{device::gpg_workspace_bytes};
    CHECK_THROWS_AS(device::gpg(groups.groups(), returns.view(), reasons.view(), {}, advantage.span(), nullptr,
                                counts.short_by_one(), stream),
                    precondition_error);
    stream.wait();
    CHECK(same_bits(advantage.host(), untouched));
  }

  TEST_CASE("workspaces") {
    CHECK(device::leave_one_out_workspace_bytes == 0);
    CHECK(device::group_relative_workspace_bytes == 0);
    CHECK(device::max_rl_workspace_bytes == 0);
    CHECK(device::median_mad_workspace_bytes == 0);
    CHECK(device::opo_workspace_bytes == 0);
    CHECK(device::pass_at_k_workspace_bytes(0) == 0);
    CHECK(device::pass_at_k_workspace_bytes(1000) == 16128);  // 16000, in blocks of 256
  }

}  // TEST_SUITE

}  // namespace group_methods_test

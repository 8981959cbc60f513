/// The two phases of gpg; gpg itself is in group_methods_test.cu.
#include "support/gpu_groups.cuh"

#include <turnwise/gpu/advantage/gpg.cuh>

namespace gpg_test {

using namespace support;
using turnwise::group_by;
using turnwise::precondition_error;
using turnwise::advantage::baseline_members;
using turnwise::advantage::gpg_counts;
using turnwise::advantage::gpg_options;
using turnwise::advantage::gpg_signal;

TEST_SUITE("gpu/advantage/gpg" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("each phase gives the host's bits, also for counts that are not the batch's own", T, float,
                     double) {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
      returns_case<T> const one{seed};
      std::size_t const turns = one.turn_return.size();
      for (auto const by : every_kind) {
        CAPTURE(seed);
        auto const groups = turnwise::make_grouping(one.batch.view(), by);
        device_groups const device{one.batch.view(), by};
        auto const returns = on_device(one.turn_return);
        auto const reasons = on_device(one.reasons);
        for (auto const signal : {gpg_signal::group, gpg_signal::nonzero})
          for (auto const members : {baseline_members::valid, baseline_members::kept}) {
            gpg_options const options{signal, members, 1};
            auto const counts = turnwise::advantage::gpg_count<T>(groups, one.turn_return, one.reasons, options);
            auto joined = counts;
            joined += gpg_counts{1000, 7};
            std::vector<T> expected(turns);
            turnwise::advantage::gpg_apply(groups, one.turn_return, one.reasons, joined, options, std::span{expected});

            auto const batch = on_device(std::vector<gpg_counts>{joined});
            device_array<gpg_counts> const counted{1};
            device_array<T> const advantage{turns};
            device_status const status;
            on_stream_and_in_graph(
                [&] {
                  fill_bytes(counted, 0x77);
                  fill_bytes(advantage, 0xa5);
                },
                [&](cuda::stream_ref stream) {
                  gpu::advantage::gpg_count(device.groups(), returns.view(), reasons.view(), options, counted.span(),
                                            status.get(), stream);
                  gpu::advantage::gpg_apply(device.groups(), returns.view(), reasons.view(), batch.view(), options,
                                            advantage.span(), status.get(), stream);
                },
                [&] {
                  CHECK(status.ok());
                  CHECK(counted.host()[0] == counts);
                  CHECK(same_bits(advantage.host(), expected));
                });
          }
      }
    }
  }

  TEST_CASE("bad sizes are refused; no turns count nothing") {
    returns_case<double> const one{3};
    std::size_t const turns = one.turn_return.size();
    device_groups const groups{one.batch.view(), group_by::group};
    auto const returns = on_device(one.turn_return);
    auto const reasons = on_device(one.reasons);
    device_array<double> const advantage{turns};
    device_array<gpg_counts> const counts{2};
    fill_bytes(advantage, 0x11);
    fill_bytes(counts, 0x77);
    auto const untouched = advantage.host();
    auto const untouched_counts = counts.host();
    side_stream const stream;
    auto const count = [&](auto values, auto flags, auto out) {
      gpu::advantage::gpg_count<double>(groups.groups(), values, flags, {}, out, nullptr, stream);
    };
    auto const one_record = counts.span().first(1);
    CHECK_THROWS_AS(count(returns.view().first(turns - 1), reasons.view(), one_record), precondition_error);
    CHECK_THROWS_AS(count(returns.view(), reasons.view().first(turns - 1), one_record), precondition_error);
    CHECK_THROWS_AS(count(returns.view(), reasons.view(), counts.span()), precondition_error);
    auto const apply = [&](auto batch, auto out) {
      gpu::advantage::gpg_apply(groups.groups(), returns.view(), reasons.view(), batch, {}, out, nullptr, stream);
    };
    CHECK_THROWS_AS(apply(counts.view(), advantage.span()), precondition_error);
    CHECK_THROWS_AS(apply(counts.view().first(1), advantage.span().first(turns - 1)), precondition_error);
    stream.wait();
    CHECK(same_bits(advantage.host(), untouched));
    CHECK(counts.host() == untouched_counts);

    device_groups const empty{turnwise::rollout_view{}, group_by::group};
    gpu::advantage::gpg_count<double>(empty.groups(), {}, {}, {}, one_record, nullptr, stream);
    stream.wait();
    CHECK(counts.host()[0] == gpg_counts{});
    CHECK(gpu::advantage::gpg_count_workspace_bytes == 0);
    CHECK(gpu::advantage::gpg_apply_workspace_bytes == 0);
  }

}  // TEST_SUITE

}  // namespace gpg_test

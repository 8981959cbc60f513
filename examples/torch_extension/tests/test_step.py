import pytest
import reference
import torch

import turnwise_torch as tw

BAND = dict(low=0.99, high=1.01)
OFF = dict(profiling_filter=False, step=0)


def run(batch, r, device, **options):
    return tw.dr_kernel(
        batch,
        r.old.to(device),
        r.rollout.to(device),
        r.mask.to(device),
        reward=r.reward.to(device),
        **{**OFF, "ratio_band": BAND, **options},
    )


def test_ten_lines(device):
    def whole(*values):
        return torch.tensor(values, device=device)

    batch = tw.Batch(whole(0, 1, 3), whole(7, 7), whole(0, 1), whole(0, 2, 4, 6), tokens=6)
    logprob = torch.full((6,), -0.5, device=device)
    step = tw.dr_kernel(batch, logprob, logprob, reward=whole(1.0, 0.0, 2.0).double(), **OFF)
    assert step.advantage.tolist() == [-1, 1, 2]  # returns 1, 2 of the first turns; 2 alone at the second
    assert step.keep.tolist() == [True] * 3
    assert step.token_advantage.tolist() == [-1, -1, 1, 1, 2, 2]
    batch.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(6))
def test_against_the_reference(make_batch, device, seed, dtype):
    r = reference.random_rollouts(seed, dtype=dtype)
    batch = make_batch(r, device)
    step = run(batch, r, device, discounted_return={"gamma": 0.5}, token_veto={"threshold": 1e-4})
    value = reference.returns(r, 0.5)
    advantage = reference.turn_leave_one_out(r, value)
    keep = reference.keeps(r, BAND["low"], BAND["high"], 1e-4)
    assert 0 < keep.sum() < len(keep)  # it decides something
    torch.testing.assert_close(step.turn_return.cpu(), value, rtol=1e-14, atol=0)
    torch.testing.assert_close(step.advantage.cpu(), advantage, rtol=1e-12, atol=1e-13)
    assert step.keep.tolist() == keep.tolist()

    sizes = torch.tensor(r.lengths)
    on = torch.repeat_interleave(keep, sizes) & r.mask
    assert step.token_mask.cpu().tolist() == on.tolist()
    spread = torch.repeat_interleave(advantage, sizes) * on
    torch.testing.assert_close(step.token_advantage.cpu().double(), spread, rtol=1e-6, atol=1e-7)
    sums = torch.stack([reference.log_ratios(r, s).sum() for s in range(r.turns)])
    torch.testing.assert_close(step.statistics.log_sum.cpu(), sums, rtol=0, atol=37 * 2.0**-25 + 1e-5)
    assert step.statistics.count.tolist() == [reference.log_ratios(r, s).numel() for s in range(r.turns)]
    full = [s for s in range(r.turns) if reference.log_ratios(r, s).numel() > 0]
    for name, of in (("min", torch.amin), ("max", torch.amax)):
        want = torch.stack([of(reference.log_ratios(r, s)) for s in full])
        torch.testing.assert_close(getattr(step.statistics, name).cpu()[full], want, rtol=1e-6, atol=1e-7)
    batch.check()


def test_parts_give_what_the_recipe_gives(make_batch, device):
    r = reference.random_rollouts(11)
    batch = make_batch(r, device)
    step = run(batch, r, device)
    reasons = tw.begin_reasons(batch)
    turn_return, reasons = tw.discounted_return(batch, r.reward.to(device), reasons)
    statistics = tw.log_ratio_statistics(batch, r.old.to(device), r.rollout.to(device), r.mask.to(device))
    reasons = tw.usable_tokens(batch, statistics, reasons)
    reasons = tw.ratio_band(batch, statistics, reasons, **BAND)
    reasons = tw.token_veto(batch, statistics, reasons)
    advantage = tw.leave_one_out(tw.make_grouping(batch), turn_return, reasons)
    assert torch.equal(reasons, step.reasons)
    assert torch.equal(advantage, step.advantage)
    assert torch.equal(statistics.words, step.statistics.words)
    token_advantage, token_mask = tw.per_token(batch, advantage, reasons, r.mask.to(device))
    assert torch.equal(token_advantage, step.token_advantage)
    assert torch.equal(token_mask, step.token_mask)


def test_inputs_are_left_alone(make_batch, device):
    r = reference.random_rollouts(5)
    batch = make_batch(r, device)
    reasons = tw.begin_reasons(batch)
    before = reasons.clone()
    tw.discounted_return(batch, torch.full((r.turns,), torch.nan, dtype=torch.float64, device=device), reasons)
    assert torch.equal(reasons, before)


@pytest.mark.parametrize("padding", ["right", "mask"])
def test_padded_is_packed(make_batch, device, padding):
    r = reference.random_rollouts(3)
    width = max(r.lengths) + 2
    left = 0 if padding == "right" else 1  # with a mask tokens may stand anywhere in the row

    def pad(flat, fill):
        rows = torch.full((r.turns, width), fill, dtype=flat.dtype)
        for s, length in enumerate(r.lengths):
            rows[s, left : left + length] = flat[r.token_offsets[s] : r.token_offsets[s + 1]]
        return rows.to(device)

    old, rollout = pad(r.old, torch.nan), pad(r.rollout, torch.nan)
    mask = pad(r.mask, padding == "right")
    length = torch.tensor(r.lengths, device=device) if padding == "right" else None
    batch = tw.Batch.padded(
        *(torch.tensor(x, device=device) for x in (r.offsets, r.group, r.trajectory)), like=old, length=length
    )
    step = tw.dr_kernel(batch, old, rollout, mask, reward=r.reward.to(device), ratio_band=BAND, **OFF)
    packed = run(make_batch(r, device), r, device)
    assert torch.equal(step.advantage, packed.advantage)
    assert torch.equal(step.reasons, packed.reasons)
    assert step.token_mask.shape == old.shape
    assert torch.equal(step.token_mask, pad(packed.token_mask.cpu(), False))
    assert torch.equal(step.token_advantage, pad(packed.token_advantage.cpu(), 0.0))


def test_turns_in_any_order_of_tokens(make_batch, device):
    r = reference.random_rollouts(4)
    packed = run(make_batch(r, device), r, device)
    order = torch.randperm(r.turns, generator=torch.Generator().manual_seed(0)).tolist()
    begin = torch.zeros(r.turns, dtype=torch.int64)
    at, pieces = 0, []
    for s in order:  # the tokens of turn s, one unused token behind them
        begin[s] = at
        piece = torch.arange(r.token_offsets[s], r.token_offsets[s + 1])
        pieces += [piece, torch.zeros(1, dtype=torch.int64)]
        at += len(piece) + 1
    where = torch.cat(pieces)
    end = begin + torch.tensor(r.lengths)
    ids = (torch.tensor(x, device=device) for x in (r.offsets, r.group, r.trajectory))
    batch = tw.Batch(*ids, turn_begin=begin.to(device), turn_end=end.to(device), tokens=at)
    step = tw.dr_kernel(
        batch,
        *(x[where].to(device) for x in (r.old, r.rollout, r.mask)),
        reward=r.reward.to(device),
        ratio_band=BAND,
        **OFF,
    )
    assert torch.equal(step.advantage, packed.advantage)
    assert torch.equal(step.reasons, packed.reasons)


def test_reward_of_a_kernel_by_hand(device):
    ids = (torch.tensor(x, device=device) for x in ([0, 1, 2, 3], [1, 1, 1], [0, 1, 2], [0, 1, 2, 3]))
    batch = tw.Batch(*ids, tokens=3)
    evaluation = dict(
        correct=torch.tensor([True, True, False]),
        speedup=torch.tensor([2.0, 8.0, 9.0]).double(),
        generated_us=torch.tensor([1.0, 3.0, 1.0]).double(),
        total_us=torch.full((3,), 4.0).double(),
    )
    evaluation = {name: value.to(device) for name, value in evaluation.items()}
    logprob = torch.zeros(3, device=device)
    paper = tw.dr_kernel(batch, logprob, logprob, step=1, profiling_filter=False, **evaluation)
    assert paper.reward.tolist() == [1 + 2 + 0.25, 1 + 8 + 0.75, 0]
    released = tw.dr_kernel(
        batch,
        logprob,
        logprob,
        step=1,
        preset="released",
        token_outputs=False,
        profiling_filter={"threshold": 0.5, "softness": 0.0},
        **evaluation,
    )
    assert released.reward.tolist() == [0.5 * (1 + 2 + 0.25), 0.5 * (1 + 3 + 0.75), 0]
    assert released.keep.tolist() == [False, True, True]  # only the first has a profiling ratio below 0.5
    assert released.token_advantage is None


def test_draws_follow_seed_and_step(device):
    n = 512
    ids = (
        torch.arange(n + 1, device=device),
        torch.zeros(n, dtype=torch.int64, device=device),
        torch.arange(n, device=device),
        torch.arange(n + 1, device=device),
    )
    batch = tw.Batch(*ids, tokens=n)
    ones = torch.ones(n, dtype=torch.float64, device=device)
    evaluation = dict(correct=ones.bool(), speedup=ones, generated_us=0.35 * ones, total_us=ones)  # kept at 1/2
    logprob = torch.zeros(n, device=device)

    def keep(**key):
        return tw.dr_kernel(batch, logprob, logprob, **evaluation, **key).keep

    assert torch.equal(keep(step=3), keep(step=3))
    assert not torch.equal(keep(step=3), keep(step=4))
    assert not torch.equal(keep(step=3), keep(step=3, seed=1))
    assert 0.3 < float(keep(step=3).float().mean()) < 0.7


def test_leave_one_out_by_hand(device):
    ids = (torch.tensor(x, device=device) for x in ([0, 2, 3, 5], [4, 4, 4], [0, 1, 2], [0] * 6))
    batch = tw.Batch(*ids, tokens=0)
    value = torch.tensor([1.0, 5.0, 3.0, 2.0, 9.0], dtype=torch.float64, device=device)
    by_turn, by_group = tw.make_grouping(batch, "turn"), tw.make_grouping(batch, by="group")
    assert tw.leave_one_out(by_turn, value).tolist() == [1 - 2.5, 5 - 9, 3 - 1.5, 2 - 2, 9 - 5]
    own_out = [1 - 14 / 3, 5 - 14 / 3, 3 - 17 / 4, 2 - 9 / 3, 9 - 9 / 3]  # all turns of the own trajectory left out
    torch.testing.assert_close(tw.leave_one_out(by_group, value).cpu().tolist(), own_out, rtol=1e-15, atol=0)
    reasons = torch.tensor([0, 0, 1, 0, 0], dtype=torch.int32, device=device)
    assert tw.leave_one_out(by_turn, value, reasons, singleton="zero").tolist() == [1 - 2, 5 - 9, 0, 2 - 1, 9 - 5]


def test_turns_flagged_off_and_given_indices(device):
    ids = (torch.tensor(x, device=device) for x in ([0, 2, 4], [1, 1], [0, 1], [0, 1, 2, 3, 4]))
    index, valid = torch.tensor([0, 1, 1, 2], device=device), torch.tensor([0, 1, 1, 1], device=device).bool()
    batch = tw.Batch(*ids, tokens=4, turn_index=index, turn_valid=valid)
    logprob = torch.zeros(4, device=device)
    reward = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64, device=device)
    step = tw.dr_kernel(batch, logprob, logprob, reward=reward, **OFF)
    assert step.reasons.tolist() == [1, 0, 0, 0]
    assert step.keep.tolist() == [False, True, True, True]
    assert step.advantage.tolist() == [0, 2 - 12, 12 - 2, 8]  # two turns have index 1, one index 2
    batch.check()


def test_nothing_at_all(device):
    empty = torch.zeros(0, dtype=torch.int64, device=device)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    batch = tw.Batch(zero, empty, empty, zero, tokens=0)
    none = torch.zeros(0, device=device)
    step = tw.dr_kernel(batch, none, none, reward=none.double(), **{**OFF, "profiling_filter": None})
    assert step.advantage.shape == step.keep.shape == step.token_advantage.shape == (0,)
    batch.check()


def test_a_missing_reward_is_no_turn(make_batch, device):
    r = reference.random_rollouts(2)
    r.reward[3] = torch.nan
    step = run(make_batch(r, device), r, device)
    assert not step.keep[3] and step.advantage[3] == 0
    assert step.reasons[3] == 2  # unscored
    assert not step.advantage.isnan().any()


def test_capture_and_replay(make_batch, cuda):
    """The whole step, grouping included, follows its inputs when the graph is replayed."""
    first, second = reference.random_rollouts(20), reference.random_rollouts(20)
    second.reward = -3 * second.reward
    second.rollout = second.rollout + 0.01 * torch.rand(len(second.rollout))
    old, rollout, mask, reward = (x.to(cuda) for x in (first.old, first.rollout, first.mask, first.reward))
    ids = [torch.tensor(x, device=cuda) for x in (first.offsets, first.group, first.trajectory, first.token_offsets)]

    def whole_step():
        batch = tw.Batch(*ids, tokens=old.numel())
        return batch, tw.dr_kernel(batch, old, rollout, mask, reward=reward, ratio_band=BAND, **OFF)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        whole_step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch, step = whole_step()
    for r in (first, second):
        rollout.copy_(r.rollout)
        reward.copy_(r.reward)
        graph.replay()
        plain = run(make_batch(r, "cpu"), r, "cpu")
        assert torch.equal(step.advantage.cpu(), plain.advantage)
        assert torch.equal(step.reasons.cpu(), plain.reasons)
        assert torch.equal(step.token_advantage.cpu(), plain.token_advantage)
        batch.check()


def test_same_bits_on_both_devices(make_batch, cuda):
    for seed in range(4):
        r = reference.random_rollouts(seed, trajectories=60, most_tokens=2000)
        there, here = run(make_batch(r, cuda), r, cuda), run(make_batch(r, "cpu"), r, "cpu")
        for name in ("reward", "turn_return", "advantage", "reasons", "token_advantage", "token_mask"):
            assert torch.equal(getattr(there, name).cpu(), getattr(here, name)), name
        assert torch.equal(there.statistics.words.cpu(), here.statistics.words)


def test_never_waits(make_batch, cuda):
    r = reference.random_rollouts(1)
    batch = make_batch(r, cuda)
    tensors = [x.to(cuda) for x in (r.old, r.rollout, r.mask, r.reward)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        step = tw.dr_kernel(batch, *tensors[:3], reward=tensors[3], **OFF)
        tw.aggregate(batch, step.reasons, tensors[2])
    finally:
        torch.cuda.set_sync_debug_mode("default")

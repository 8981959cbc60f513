"""Conversations in rows: turns from a mask, and batches of them."""

import pathlib
import re

import pytest
import reference
import torch

import turnwise_torch as tw


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_turns_by_hand(device, dtype):
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 1]], device=device).to(dtype)
    turns = tw.turns_of_mask(mask)
    assert turns.trajectory_offsets.tolist() == [0, 2, 3, 3, 6]
    assert turns.turn_begin.tolist() == [1, 4, 5, 15, 17, 19]  # a run ends with its row
    assert turns.turn_end.tolist() == [3, 5, 10, 16, 18, 20]
    assert {x.dtype for x in turns} == {torch.int64} and {x.device.type for x in turns} == {device}


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 3)])
def test_no_turns(device, shape):
    turns = tw.turns_of_mask(torch.zeros(shape, device=device))
    assert turns.trajectory_offsets.tolist() == [0] * (shape[0] + 1)
    assert turns.turn_begin.numel() == turns.turn_end.numel() == 0


def conversations(r):
    """The turns of each trajectory in one row, gaps of 1 to 3 between them; also where each packed token went."""
    width = max((last - first) * 3 + sum(r.lengths[first:last]) for first, last in zip(r.offsets, r.offsets[1:])) + 1
    where = []
    for row, (first, last) in enumerate(zip(r.offsets, r.offsets[1:])):
        at = row * width + row % 2
        for s in range(first, last):
            where += range(at, at + r.lengths[s])
            at += r.lengths[s] + 1 + s % 3
    return torch.tensor(where), (len(r.offsets) - 1, width)


@pytest.mark.parametrize("in_token_order", [False, True])
def test_rows_of_several_turns_are_packed_turns(make_batch, device, in_token_order):
    r = reference.random_rollouts(6)
    r.lengths = [max(n, 1) for n in r.lengths]  # a mask shows no turn without tokens
    n = sum(r.lengths)
    random = torch.Generator().manual_seed(6)
    r.old = -torch.rand(n, generator=random)
    r.rollout, r.mask = r.old + 0.01 * torch.randn(n, generator=random), torch.ones(n, dtype=torch.bool)
    where, shape = conversations(r)

    def rows(flat, fill):
        return torch.full(shape, fill, dtype=flat.dtype).flatten().index_copy(0, where, flat).view(shape).to(device)

    old, rollout, mask = rows(r.old, torch.nan), rows(r.rollout, torch.nan), rows(r.mask, False)
    turns = tw.turns_of_mask(mask)
    assert turns.trajectory_offsets.tolist() == r.offsets
    ids = (torch.tensor(x, device=device) for x in (r.group, r.trajectory))
    batch = tw.Batch.padded(
        turns.trajectory_offsets,
        *ids,
        like=old,
        turn_begin=turns.turn_begin,
        turn_end=turns.turn_end,
        in_token_order=in_token_order,
    )
    options = dict(
        reward=r.reward.to(device), step=0, profiling_filter=False, ratio_band=dict(low=0.998, high=1.002)
    )
    step = tw.dr_kernel(batch, old, rollout, **options)
    packed = tw.dr_kernel(make_batch(r, device), r.old.to(device), r.rollout.to(device), **options)
    assert 0 < int(packed.keep.sum()) < r.turns
    assert torch.equal(step.advantage, packed.advantage) and torch.equal(step.reasons, packed.reasons)
    assert torch.equal(step.token_advantage, rows(packed.token_advantage.cpu(), 0.0))
    assert torch.equal(step.token_mask, rows(packed.token_mask.cpu(), False))
    batch.check()


README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_readme(block, device):
    """Each example runs as it is printed, on packed or padded arrays of two conversations of two turns."""
    shape = (2, 8) if "turns_of_mask" in block else (4, 2) if "padded" in block else (8,)
    response_mask = torch.tensor([[1, 1, 0, 0, 1, 1, 0, 0]] * 2, device=device)
    whole = dict(trajectory_offsets=[0, 2, 4], group_id=[7, 7], trajectory_id=[0, 1], token_offsets=[0, 2, 4, 6, 8])
    names = {name: torch.tensor(x, device=device) for name, x in whole.items()}
    for name in ("old_logprob", "rollout_logprob", "current_logprob"):
        names[name] = torch.full(shape, -0.5, device=device)
    names["current_logprob"].requires_grad_()
    names["token_reward"] = torch.zeros(shape, device=device)
    if len(shape) == 2 and shape[1] == 8:
        names["token_reward"][:, 1::4] = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    names.update(
        torch=torch,
        tw=tw,
        mask=torch.ones(shape, device=device).bool(),
        reward=torch.tensor([1.0, 2.0, 3.0, 4.0], device=device),
        response_mask=response_mask,
        prompt_id=torch.tensor([7, 7], device=device),
        update=3,
    )
    exec(block, names)
    names["batch"].check()
    if "step" in names:
        assert names["step"].advantage.tolist() == [-4, -2, 4, 2]

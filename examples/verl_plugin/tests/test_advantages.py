import math

import numpy as np
import pytest
import torch
from batches import ROWS, WIDTH, draw, rewards

from turnwise_verl import row_leave_one_out, turn_leave_one_out

TOLERANCE = dict(rtol=1e-5, atol=1e-5)  # verl sums in float32; returns here are of order 1


@pytest.fixture
def verl():
    pytest.importorskip("verl", reason="verl is not installed")
    from verl.trainer.ppo import core_algos

    return core_algos


def turns_of(mask_row):
    """First columns of the runs of 1, or column 0 of a masked row."""
    row = mask_row.tolist()
    return [t for t in range(len(row)) if row[t] and (t == 0 or not row[t - 1])] or [0]


def returns_by_loops(reward, mask, gamma):
    """{(row, turn): return} in float64, and the columns where the turns begin."""
    found, starts = {}, [turns_of(m) for m in mask]
    for i, begin in enumerate(starts):
        edges = [0, *begin[1:], reward.shape[1]]
        later = 0.0
        for t in reversed(range(len(begin))):
            later = math.fsum(reward[i, edges[t] : edges[t + 1]].tolist()) + gamma * later
            found[i, t] = later
    return found, starts


def spread(value, starts, mask):
    out = torch.zeros(mask.shape)
    for i, begin in enumerate(starts):
        for t, first in enumerate(begin):
            out[i, first:] = value[i, t]
    return out * mask


def test_by_hand(device):
    # Two conversations of one prompt: rewards by turn 1, 2 and 4; the second has one turn.
    mask = torch.tensor([[1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 0]], device=device)
    reward = torch.tensor([[0.0, 1, 0, 0, 2, 0], [0, 0, 0, 0, 0, 4]], device=device)
    advantages, returns = turn_leave_one_out(reward, mask, np.array(["a", "a"]))
    assert returns.tolist() == [[3, 3, 0, 2, 0, 0], [0, 4, 4, 4, 4, 0]]
    assert advantages.tolist() == [[-1, -1, 0, 2, 0, 0], [0, 1, 1, 1, 1, 0]]  # the lone second turn keeps its return
    advantages, _ = turn_leave_one_out(reward, mask, np.array(["a", "a"]), options={"singleton": "zero"})
    assert advantages.tolist() == [[-1, -1, 0, 0, 0, 0], [0, 1, 1, 1, 1, 0]]
    advantages, returns = turn_leave_one_out(reward, mask, np.array(["a", "a"]), config={"gamma": 0.5})
    assert returns.tolist() == [[2, 2, 0, 2, 0, 0], [0, 4, 4, 4, 4, 0]]
    advantages, _ = row_leave_one_out(reward, mask, np.array(["a", "a"]))
    assert advantages.tolist() == [[-1, -1, 0, -1, 0, 0], [0, 1, 1, 1, 1, 0]]


def test_given_turns(device):
    # The mask no longer tells the turns: one token of turn 0 and all of turn 1 were rejected in the first row.
    mask = torch.tensor([[1, 0, 1, 0, 0, 1], [1, 1, 1, 1, 1, 1]], device=device)
    turns = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2]], device=device)
    reward = torch.tensor([[0.0, 0, 0, 0, 0, 5], [0, 0, 0, 1, 0, 2]], device=device)
    advantages, _ = turn_leave_one_out(reward, mask, np.array([7, 7]), turns=turns)
    assert advantages.tolist() == [[2, 0, 2, 0, 0, 3], [-2, -2, 3, 3, -3, -3]]
    with pytest.raises(ValueError, match="turns: row 1 has ids"):
        turns[1] = turns[1].flip(0)
        turn_leave_one_out(reward, mask, np.array([7, 7]), turns=turns)


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("seed", range(4))
def test_turns_are_rloo_of_verl_over_rows_that_are_turns(verl, seed, gamma, device):
    mask = draw(seed)[2]
    reward, uid = rewards(seed)
    value, starts = returns_by_loops(reward, mask, gamma)
    keys = sorted(value)
    theirs, _ = verl.compute_rloo_outcome_advantage(
        torch.tensor([[value[key]] for key in keys]),
        torch.ones(len(keys), 1, dtype=torch.int64),
        np.array([f"{uid[i]} turn {t}" for i, t in keys]),
    )
    expected = spread(dict(zip(keys, theirs[:, 0].tolist())), starts, mask)
    estimator = verl.get_adv_estimator_fn("turnwise_trloo")
    advantages, returns = estimator(
        token_level_rewards=reward.to(device), response_mask=mask.to(device), index=uid, config={"gamma": gamma}
    )
    torch.testing.assert_close(advantages.cpu(), expected, **TOLERANCE)
    torch.testing.assert_close(returns.cpu(), spread(value, starts, mask), **TOLERANCE)


@pytest.mark.parametrize("ours, singleton, theirs", [
    ("turnwise_rloo", "keep", "rloo"),
    ("turnwise_rloo", "zero", "rloo_vectorized"),
    ("turnwise_trloo", "keep", "rloo"),  # on rows of one turn
])  # fmt: skip
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_rloo_of_verl(verl, seed, ours, singleton, theirs, device):
    mask = draw(seed)[2]
    if ours == "turnwise_trloo":
        mask = (torch.arange(WIDTH) < torch.arange(ROWS)[:, None] * 2).long()  # the first row is masked
    reward, uid = rewards(seed)
    expected, _ = verl.get_adv_estimator_fn(theirs)(token_level_rewards=reward.clone(), response_mask=mask, index=uid)
    advantages, _ = verl.get_adv_estimator_fn(ours)(
        token_level_rewards=reward.to(device),
        response_mask=mask.to(device),
        index=uid,
        options={"singleton": singleton},
    )
    torch.testing.assert_close(advantages.cpu(), expected, **TOLERANCE)
    assert advantages.dtype == expected.dtype


def test_missing_reward_stays_in_its_row(verl, device):
    reward, mask, uid = torch.tensor([[math.nan], [1.0], [3.0]]), torch.ones(3, 1), np.array(["a", "a", "a"])
    theirs, _ = verl.compute_rloo_outcome_advantage(reward.clone(), mask, uid)
    assert theirs.isnan().all()
    advantages, _ = row_leave_one_out(reward.to(device), mask.to(device), uid)
    assert advantages.tolist() == [[0], [-2], [2]]


def test_trainer_runs_it(verl):
    pytest.importorskip("verl.trainer.ppo.ray_trainer", exc_type=ImportError)
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_advantage

    reward, uid = rewards(0)
    mask = draw(0)[2]
    data = DataProto.from_dict(
        tensors={"token_level_rewards": reward, "response_mask": mask}, non_tensors={"uid": uid}
    )
    config = OmegaConf.create({"gamma": 0.9})
    data = compute_advantage(data, adv_estimator="turnwise_trloo", config=config)
    expected = turn_leave_one_out(reward, mask, uid, config)
    assert torch.equal(data.batch["advantages"], expected[0]) and torch.equal(data.batch["returns"], expected[1])


def test_cuda_has_the_bits_of_the_cpu(cuda):
    reward, uid = rewards(5)
    mask = draw(5)[2]
    there = turn_leave_one_out(reward.to(cuda), mask.to(cuda), uid)
    for ours, expected in zip(there, turn_leave_one_out(reward, mask, uid)):
        assert torch.equal(ours.cpu(), expected)


def test_errors(device):
    reward, mask = torch.zeros(2, 3, device=device), torch.ones(2, 3, device=device)
    with pytest.raises(ValueError, match="index .* not given"):
        turn_leave_one_out(reward, mask)
    with pytest.raises(ValueError, match="index .* of 1 entries"):
        row_leave_one_out(reward, mask, np.array(["a"]))
    with pytest.raises(ValueError, match="token_level_rewards and response_mask have shapes"):
        turn_leave_one_out(reward, mask[:, :2], np.array(["a", "a"]))
    with pytest.raises(ValueError, match="reward"):
        turn_leave_one_out(reward + math.inf, mask, np.array(["a", "a"]))

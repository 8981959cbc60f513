"""Advantage estimators of verl's registry, with its arguments and results."""

from __future__ import annotations

import importlib.util
from typing import Any, Optional

import numpy as np
import torch
import turnwise_torch as tw
from torch import Tensor
from torch.nn.functional import pad

if importlib.util.find_spec("verl") is None:

    def register_adv_est(name):
        return lambda function: function

else:
    from verl.trainer.ppo.core_algos import register_adv_est


def _begins(mask: Tensor, turns: Optional[Tensor]) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    """Offsets [B + 1] of turns in rows, where each turn begins in the flattened mask, and their numbers if given.

    A row without unmasked token is one turn, number 0.
    """
    empty = ~mask.any(1)
    mask = torch.cat([mask[:, :1] | empty[:, None], mask[:, 1:]], 1)
    if turns is None:
        found = tw.turns_of_mask(mask)
        return found.trajectory_offsets, found.turn_begin, None
    if turns.shape != mask.shape:
        shapes = f"{tuple(turns.shape)}, expected that of response_mask, {tuple(mask.shape)}"
        raise ValueError(f"turns has shape {shapes}")
    turns = torch.where(empty[:, None], 0, turns.to(torch.int64))
    before = pad(torch.where(mask, turns, -1).cummax(1).values, (1, 0), value=-1)[:, :-1]
    wrong = (mask & ((turns < 0) | (turns < before))).any(1)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(f"turns: row {row} has ids that are negative or decrease along its unmasked tokens")
    starts = mask & (turns > before)
    begin = starts.flatten().nonzero().squeeze(1)
    return pad(starts.sum(1).cumsum(0), (1, 0)), begin, turns.flatten()[begin]


def _group_ids(index: Any, rows: int, device: torch.device) -> Tensor:
    if index is None or len(index) != rows:
        given = "not given" if index is None else f"of {len(index)} entries"
        raise ValueError(f"index (uid) is {given}, expected one a row, {rows}")
    if isinstance(index, Tensor):
        index = index.cpu().numpy()
    return torch.from_numpy(np.unique(index, return_inverse=True)[1].reshape(-1)).to(device, torch.int64)


@torch.no_grad()
def _advantages(rewards, response_mask, index, config, begins, by, options):
    """Leave-one-out over stretches of rows: each lasts from its begin, a row's first from column 0, to the next."""
    rows, width = rewards.shape
    first, begin, turn_index = begins
    group = _group_ids(index, rows, rewards.device)
    trajectory = torch.arange(rows, device=rewards.device)
    token_offsets = pad(begin.index_copy(0, first[:-1], trajectory * width), (0, 1), value=rows * width)
    batch = tw.Batch(first, group, trajectory, token_offsets, tokens=rows * width, turn_index=turn_index)
    reward = torch.segment_reduce(rewards.double().flatten(), "sum", offsets=token_offsets)
    gamma = 1.0 if config is None else float(config.get("gamma", 1.0))
    turn_return, reasons = tw.discounted_return(batch, reward, tw.begin_reasons(batch), gamma=gamma)
    advantage = tw.leave_one_out(tw.make_grouping(batch, by), turn_return, reasons, **(options or {}))
    mask = response_mask.bool().contiguous()
    spread = [tw.per_token(batch, values, reasons, mask)[0] for values in (advantage, turn_return)]
    batch.check()
    return tuple(x.view(rows, width).to(rewards.dtype) for x in spread)


def _check_padded(rewards: Tensor, response_mask: Tensor) -> None:
    if rewards.dim() != 2 or rewards.shape != response_mask.shape or rewards.numel() == 0:
        shapes = f"{tuple(rewards.shape)} and {tuple(response_mask.shape)}"
        raise ValueError(f"token_level_rewards and response_mask have shapes {shapes}, expected [B, T] each, not empty")


@register_adv_est("turnwise_trloo")
def turn_leave_one_out(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any = None,
    config: Any = None,
    turns: Optional[Tensor] = None,
    options: Optional[dict[str, Any]] = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Return of each turn minus the mean return of the same turn of the prompt's other rows, spread over its tokens.

        G(i, t) = sum over u >= t of gamma^(u - t) r(i, u);   A(i, t) = G(i, t) - mean over j != i of G(j, t)

    The turns of a row are the runs of 1 in response_mask, numbered 0, 1, ...; or, with `turns` [B, T], the stretches of
    unmasked tokens of equal id, which is their number: at least 0 and never decreasing along a row. A turn's reward is
    the sum of token_level_rewards, masked or not, from its first token up to the next turn's; what stands before the
    first turn is the first turn's. A row without unmasked token is one turn, number 0, with the row's reward: rejected
    rows stay in baselines. Rules that mask single tokens split runs: pass `turns` there.

    index [B]: the prompt (uid) of each row, of any type. gamma: config.gamma, by turn. options: those of leave_one_out
    (lone turns keep their return by default). Sums are float64; results have the dtype of token_level_rewards.
    NaN reward: that turn and, with gamma > 0, earlier ones of the row get 0 and are in no baseline. Raises ValueError
    for an infinite reward. Waits for the device. Returns (advantages, returns) [B, T], 0 where masked.
    """
    _check_padded(token_level_rewards, response_mask)
    begins = _begins(response_mask.bool(), turns)
    return _advantages(token_level_rewards, response_mask, index, config, begins, "turn", options)


@register_adv_est("turnwise_rloo")
def row_leave_one_out(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any = None,
    config: Any = None,
    options: Optional[dict[str, Any]] = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Leave-one-out over whole rows of a prompt: verl's rloo; with options={"singleton": "zero"} its rloo_vectorized.

    As turn_leave_one_out with one turn a row, whatever the mask.
    """
    _check_padded(token_level_rewards, response_mask)
    rows, width = response_mask.shape
    first = torch.arange(rows + 1, device=response_mask.device)
    begins = first, first[:-1] * width, None
    return _advantages(token_level_rewards, response_mask, index, config, begins, "group", options)

"""turnwise on PyTorch tensors: advantages, keep masks and policy losses for multi-turn rollouts.

    import turnwise_torch as tw
    batch = tw.Batch(trajectory_offsets, group_id, trajectory_id, token_offsets, tokens=old_logprob.numel())
    step = tw.dr_kernel(batch, old_logprob, rollout_logprob, reward=reward.double(), step=0, profiling_filter=False)
    step.advantage, step.keep

Tensors are on one device, cpu or cuda, without gaps. Numbers of a turn are float64, those of a token float32 or
bfloat16 (old and rollout log-probs alike), ids and offsets int64, flags bool or uint8. S turns, J trajectories, N
tokens. Options have the names of the C++ option structs; a part of a recipe is a dict of its options, or False for off.

On CUDA every call enqueues on PyTorch's current stream, takes its memory from PyTorch's allocator, does not wait for
the device and can be captured in a torch.cuda.graph. Bad content is recorded in a status tensor there, and check()
raises it; what does not fit in size, dtype, device or layout raises ValueError at once, on both devices.
"""

from __future__ import annotations

import pathlib
from typing import Any, Optional

import torch
from torch import Tensor

try:
    from . import _C
except ImportError as error:
    folder = pathlib.Path(__file__).parent
    if next(folder.glob("_C.*"), None) is not None:
        raise
    raise ImportError(
        f"turnwise_torch is not built in {folder}: install it (pip install --no-build-isolation .) and run "
        "where Python does not find this folder first, or build it in place (python setup.py build_ext --inplace)"
    ) from error

from .losses import policy_loss_from_logits, ppo_clip, token_logprob
from .masks import MaskTurns, turns_of_mask
from .records import LossRecord, Statistics, Step, words_of
from .tensors import flat_options, given

__all__ = [
    "Batch",
    "Grouping",
    "LossRecord",
    "MaskTurns",
    "Statistics",
    "Step",
    "aggregate",
    "begin_reasons",
    "check",
    "discounted_return",
    "dr_kernel",
    "group_relative",
    "leave_one_out",
    "log_ratio_statistics",
    "make_grouping",
    "new_status",
    "per_token",
    "policy_loss_from_logits",
    "ppo_clip",
    "ratio_band",
    "token_logprob",
    "token_veto",
    "turns_of_mask",
    "usable_tokens",
]


def new_status(device) -> Tensor:
    """A status record in which nothing is wrong; calls on the device add to it."""
    return torch.zeros(1, dtype=torch.int64, device=device)


def check(status: Tensor) -> None:
    """Raises ValueError if a call reported bad content; waits for the device. On the cpu calls raise by themselves."""
    _C.check_status(status)


class Batch:
    """Where the tokens of each turn are, and which turns form a trajectory and a group (a prompt).

    trajectory_offsets [J + 1], group_id [J], trajectory_id [J] (unique in its group); turns in time order. The tokens
    of turn s are [token_offsets[s], token_offsets[s + 1]) of arrays of `tokens` elements; or give turn_begin and
    turn_end [S] for turns that stand in another order or have gaps between them. turn_index [S]: strictly increasing in
    a trajectory, if it is not the position; turn_valid [S]: 0 for turns to leave out. in_token_order: turns stand in
    the order of their tokens, which spares a sort on CUDA and is checked there.

    Views its tensors: they must not change while the batch is in use. On CUDA the grouping by (group, turn index),
    which dr_kernel takes, is built here. `status` gathers what any call on this batch found wrong; see check().
    """

    def __init__(
        self,
        trajectory_offsets: Tensor,
        group_id: Tensor,
        trajectory_id: Tensor,
        token_offsets: Optional[Tensor] = None,
        *,
        tokens: int,
        turn_begin: Optional[Tensor] = None,
        turn_end: Optional[Tensor] = None,
        turn_index: Optional[Tensor] = None,
        turn_valid: Optional[Tensor] = None,
        in_token_order: bool = False,
    ):
        if (token_offsets is None) == (turn_begin is None) or (turn_begin is None) != (turn_end is None):
            raise ValueError("Batch: expected either token_offsets, or turn_begin and turn_end")
        given(
            "Batch",
            required=("trajectory_offsets",),
            trajectory_offsets=trajectory_offsets,
            token_offsets=token_offsets,
            turn_begin=turn_begin,
        )
        if token_offsets is not None:
            if token_offsets.dim() != 1 or token_offsets.numel() == 0:
                raise ValueError("Batch: token_offsets has no element, expected one a turn, and one")
            turn_begin, turn_end, in_token_order = token_offsets[:-1], token_offsets[1:], True
        if tokens < 0:
            raise ValueError(f"Batch: tokens = {tokens}, expected at least 0")
        self.tokens = tokens
        self.turns = turn_begin.numel()
        self.status = new_status(trajectory_offsets.device)
        named = given(
            "Batch",
            trajectory_offsets=trajectory_offsets,
            group_id=group_id,
            trajectory_id=trajectory_id,
            turn_begin=turn_begin,
            turn_end=turn_end,
            turn_index=turn_index,
            turn_valid=turn_valid,
            status=self.status,
        )
        self._C = _C.make_batch(named, tokens, in_token_order)

    @classmethod
    def padded(
        cls,
        trajectory_offsets: Tensor,
        group_id: Tensor,
        trajectory_id: Tensor,
        like: Tensor,
        *,
        length: Optional[Tensor] = None,
        turn_begin: Optional[Tensor] = None,
        turn_end: Optional[Tensor] = None,
        in_token_order: Optional[bool] = None,
        **more: Any,
    ) -> Batch:
        """For token arrays [rows, width] such as `like`, of one turn a row or of several: nothing is copied.

        One turn a row: length [S] has the tokens of a row from its left; without it all of a row, of which the mask of
        each call tells the tokens of the turn (right or left padding, observations in between).
        Several: turn_begin and turn_end [S] are indices into the flattened array, as turns_of_mask finds them; say
        in_token_order=True where trajectories stand in the order of their rows.
        more: turn_index, turn_valid.
        """
        given("Batch.padded", required=("like",), differentiable=("like",), like=like, length=length)
        if like.dim() != 2:
            raise ValueError(f"Batch.padded: like has {like.dim()} dimensions, expected [rows, width]")
        several = turn_begin is not None or turn_end is not None
        if several and length is not None:
            raise ValueError("Batch.padded: expected either length, or turn_begin and turn_end")
        if not several:
            rows, width = like.shape
            edges = torch.arange(rows + 1, device=like.device) * width
            turn_begin, turn_end = edges[:-1], edges[1:]
        if length is not None:
            if length.shape != (rows,):
                raise ValueError(f"Batch.padded: length has shape {tuple(length.shape)}, expected ({rows},)")
            # A length beyond the row becomes a range that is refused, by name of the turn.
            turn_end = torch.where((length >= 0) & (length <= width), turn_begin + length, -1)
        return cls(
            trajectory_offsets,
            group_id,
            trajectory_id,
            turn_begin=turn_begin,
            turn_end=turn_end,
            tokens=like.numel(),
            in_token_order=not several if in_token_order is None else in_token_order,
            **more,
        )

    def check(self) -> None:
        """check() of what all calls on this batch reported."""
        check(self.status)


class Grouping:
    """Which turns are compared with each other; of make_grouping."""

    def __init__(self, batch: Batch, by: str):
        self.batch = batch
        self._C = batch._C.make_grouping(by)


def make_grouping(batch: Batch, by: str = "turn") -> Grouping:
    """Groups by "turn" (the prompt and the turn index), "group" (the prompt) or "batch"."""
    return Grouping(batch, by)


def leave_one_out(groups: Grouping, turn_return: Tensor, reasons: Optional[Tensor] = None, **options: Any) -> Tensor:
    """Advantage [S] of each turn over the mean return of the others of its group.

    Options of leave_one_out_options: singleton, exclude, members, allow_kept_with_keep, scale, epsilon.
    """
    named = given("leave_one_out", turn_return=turn_return, reasons=reasons)
    return groups._C.leave_one_out(named, flat_options(options))["advantage"]


def group_relative(groups: Grouping, turn_return: Tensor, reasons: Optional[Tensor] = None, **options: Any) -> Tensor:
    """Advantage [S] of each turn over the mean return of its group, itself included, by the group's deviation (GRPO).

    Options of group_relative_options: scale (False: Dr. GRPO), ddof, epsilon, members.
    """
    named = given("group_relative", turn_return=turn_return, reasons=reasons)
    return groups._C.group_relative(named, flat_options(options))["advantage"]


def begin_reasons(batch: Batch) -> Tensor:
    """Reasons [S] int32: 1 where the caller flagged a turn off, else 0. A turn with reasons 0 is kept."""
    return batch._C.begin_reasons()["reasons"]


def discounted_return(batch: Batch, reward: Tensor, reasons: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Returns [S] and the reasons, with those of turns whose reward is missing (NaN) added.

    Options of discounted_return_options: gamma, unscored.
    """
    named = given("discounted_return", reward=reward, reasons=reasons)
    out = batch._C.discounted_return(named, flat_options(options))
    return out["turn_return"], out["reasons"]


def log_ratio_statistics(
    batch: Batch, old_logprob: Tensor, rollout_logprob: Tensor, mask: Optional[Tensor] = None
) -> Statistics:
    """Exact statistics of each turn's log ratios old - rollout, in one pass over the tokens."""
    named = given("log_ratio_statistics", old_logprob=old_logprob, rollout_logprob=rollout_logprob, mask=mask)
    return Statistics(batch._C.log_ratio_statistics(named)["statistics"])


def usable_tokens(batch: Batch, statistics: Statistics, reasons: Tensor, **options: Any) -> Tensor:
    """The reasons, with those of turns without tokens or with log ratios that are not finite: before the ratio rules.

    Options of usable_tokens_options: non_finite, non_finite_scope.
    """
    named = given("usable_tokens", statistics=words_of("usable_tokens", statistics), reasons=reasons)
    return batch._C.usable_tokens(named, flat_options(options))["reasons"]


def ratio_band(batch: Batch, statistics: Statistics, reasons: Tensor, **options: Any) -> Tensor:
    """The reasons, with those of turns whose ratio, or whose trajectory's ratio, leaves [low, high].

    Options of ratio_band_options: level, kind, low, high.
    """
    named = given("ratio_band", statistics=words_of("ratio_band", statistics), reasons=reasons)
    return batch._C.ratio_band(named, flat_options(options))["reasons"]


def token_veto(batch: Batch, statistics: Statistics, reasons: Tensor, **options: Any) -> Tensor:
    """The reasons, with those of turns, or trajectories, in which a token's ratio is below the threshold.

    Options of token_veto_options: threshold, veto_scope, outlier.
    """
    named = given("token_veto", statistics=words_of("token_veto", statistics), reasons=reasons)
    return batch._C.token_veto(named, flat_options(options))["reasons"]


def dr_kernel(
    batch: Batch,
    old_logprob: Tensor,
    rollout_logprob: Tensor,
    mask: Optional[Tensor] = None,
    *,
    reward: Optional[Tensor] = None,
    correct: Optional[Tensor] = None,
    speedup: Optional[Tensor] = None,
    generated_us: Optional[Tensor] = None,
    total_us: Optional[Tensor] = None,
    compiled: Optional[Tensor] = None,
    decoy: Optional[Tensor] = None,
    rule_violation: Optional[Tensor] = None,
    step: int,
    seed: int = 0,
    preset: str = "paper",
    token_outputs: bool = True,
    **options: Any,
) -> Step:
    """The training step of Dr. Kernel: rewards, returns, turn-level leave-one-out advantages and keep decisions.

    reward [S] takes the place of the one that is formed of correct, speedup, generated_us and total_us; NaN: missing.
    Without profiles, so with reward alone, pass profiling_filter=False: every preset has that filter on.
    preset: "paper" (the default; the command-line tool's is "released") or "released". step and seed are the key of the
    profiling filter's draws, so `step` counts up.
    Options, each a dict: kernel_reward, discounted_return, leave_one_out, usable_tokens; and, with False for off,
    ratio_band, token_veto, profiling_filter. token_outputs=False leaves out Step.token_advantage and token_mask.
    """
    named = given(
        "dr_kernel",
        old_logprob=old_logprob,
        rollout_logprob=rollout_logprob,
        mask=mask,
        reward=reward,
        correct=correct,
        speedup=speedup,
        generated_us=generated_us,
        total_us=total_us,
        compiled=compiled,
        decoy=decoy,
        rule_violation=rule_violation,
    )
    fields = flat_options({"step": step, "seed": seed, "preset": preset, **options})
    return Step(batch._C.dr_kernel(named, fields, token_outputs), batch.status, old_logprob.shape)


def _one_a_turn(batch: Batch, function: str, **named: Tensor) -> None:
    for name, tensor in named.items():
        if tensor.numel() != batch.turns:
            raise ValueError(f"{function}: {name} has {tensor.numel()} elements, expected {batch.turns} (one a turn)")


def per_token(
    batch: Batch, values: Tensor, reasons: Optional[Tensor] = None, mask: Optional[Tensor] = None
) -> tuple[Tensor, Tensor]:
    """A value of each turn [S] spread over its tokens [N] as float32, and the mask; both 0 where a turn is not kept."""
    if reasons is None:
        reasons = begin_reasons(batch)
    named = given("per_token", required=("values",), values=values, reasons=reasons, mask=mask)
    _one_a_turn(batch, "per_token", values=values, reasons=reasons)
    out = batch._C.per_token(named)
    return out["token_values"], out["token_mask"].view(torch.bool)


def aggregate(batch: Batch, reasons: Tensor, mask: Optional[Tensor] = None, **options: Any) -> Tensor:
    """The factor [S] by which the token losses of each turn enter the loss; 0 where the turn is not kept.

    Options of aggregate_options: mean, unit, scope, denominator, nominal, norm.
    """
    named = given("aggregate", required=("reasons",), reasons=reasons, mask=mask)
    _one_a_turn(batch, "aggregate", reasons=reasons)
    if mask is not None and mask.numel() != batch.tokens:
        raise ValueError(f"aggregate: mask has {mask.numel()} elements, expected {batch.tokens}")
    return batch._C.aggregate(named, flat_options(options))["turn_scale"]

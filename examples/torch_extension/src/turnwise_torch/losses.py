"""Losses and log-probs with gradients: each an autograd function over turnwise's analytic gradient."""

from __future__ import annotations

from typing import Any, Optional, Union

from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from . import _C
from .records import LossRecord
from .tensors import flat_options, given


class _Loss(Function):
    """A loss whose gradient is formed with its value; `call` returns gradient and record."""

    @staticmethod
    def forward(ctx, differentiated: Tensor, call):
        out = call()
        ctx.save_for_backward(out["gradient"].view(differentiated.shape))
        words = out["record"]
        logprob = out.get("logprob", words.new_empty(0))
        ctx.mark_non_differentiable(words, logprob)
        return LossRecord(words).loss, words, logprob

    @staticmethod
    @once_differentiable
    def backward(ctx, loss_gradient, *_):
        (gradient,) = ctx.saved_tensors
        return gradient * loss_gradient, None


def ppo_clip(
    batch,
    current_logprob: Tensor,
    old_logprob: Tensor,
    turn_advantage: Optional[Tensor] = None,
    turn_scale: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    reference_logprob: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
    *,
    token_advantage: Optional[Tensor] = None,
    **options: Any,
) -> tuple[Tensor, LossRecord]:
    """The clipped surrogate of PPO, summed with turn_scale [S] of aggregate: (loss, record).

    Advantages are turn_advantage [S] float64, or token_advantage [N] float32 or float64: exactly one of them.
    The gradient reaches current_logprob [N] alone; float32, bfloat16, or on the host float64, as the other log-probs.
    Options of ppo_clip: clip_low, clip_high, dual_clip; of loss_options: log_ratio_limit, kl_coefficient, kl (a dict).
    """
    if (turn_advantage is None) == (token_advantage is None):
        raise ValueError("ppo_clip: expected either turn_advantage or token_advantage")
    if turn_scale is None:
        raise ValueError("ppo_clip: turn_scale is missing: pass what aggregate gives")
    named = given(
        "ppo_clip",
        differentiable=("current_logprob",),
        current_logprob=current_logprob,
        old_logprob=old_logprob,
        turn_advantage=turn_advantage,
        token_advantage=token_advantage,
        turn_scale=turn_scale,
        mask=mask,
        reference_logprob=reference_logprob,
        weight=weight,
    )
    loss, words, _ = _Loss.apply(current_logprob, lambda: batch._C.ppo_clip(named, flat_options(options)))
    return loss, LossRecord(words)


def policy_loss_from_logits(
    logits: Tensor,
    ids: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    scale: Tensor,
    mask: Optional[Tensor] = None,
    reference_logprob: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
    *,
    temperature: float = 1.0,
    status: Optional[Tensor] = None,
    **options: Any,
) -> tuple[Tensor, LossRecord, Tensor]:
    """PPO's loss straight from logits [..., vocabulary]: (loss, record, log-probs), without log-probs in between.

    All others [rows], a row a token: numbers are float32 (float64 for float64 logits), ids int64. The gradient with
    respect to the logits is formed in the forward pass and kept; the log-probs have none. Options as of ppo_clip, and
    entropy_coefficient.
    """
    named = given(
        "policy_loss_from_logits",
        required=("logits",),
        differentiable=("logits",),
        logits=logits,
        ids=ids,
        old_logprob=old_logprob,
        advantage=advantage,
        scale=scale,
        mask=mask,
        reference_logprob=reference_logprob,
        weight=weight,
        status=status,
    )
    loss, words, logprob = _Loss.apply(
        logits, lambda: _C.policy_loss_from_logits(named, float(temperature), flat_options(options))
    )
    return loss, LossRecord(words), logprob.view(logits.shape[:-1])


class _TokenLogprob(Function):
    @staticmethod
    def forward(ctx, logits: Tensor, named: dict[str, Tensor], temperature: float, entropy: bool):
        out = _C.token_logprob(named, temperature, entropy)
        mask, held = named.get("mask"), out.get("entropy")
        ctx.save_for_backward(logits, named["ids"], mask, out["normalizer"], held)
        ctx.temperature = temperature
        shape = logits.shape[:-1]
        return (out["logprob"].view(shape), held.view(shape)) if entropy else out["logprob"].view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, logprob_gradient, entropy_gradient=None):
        logits, ids, mask, normalizer, entropy = ctx.saved_tensors
        named = given(
            "token_logprob",
            logits=logits.detach(),
            ids=ids,
            mask=mask,
            normalizer=normalizer,
            entropy=entropy,
            logprob_gradient=logprob_gradient.contiguous(),
            entropy_gradient=None if entropy_gradient is None else entropy_gradient.contiguous(),
        )
        return _C.token_logprob_backward(named, ctx.temperature)["gradient"], None, None, None


def token_logprob(
    logits: Tensor,
    ids: Tensor,
    mask: Optional[Tensor] = None,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    status: Optional[Tensor] = None,
) -> Union[Tensor, tuple[Tensor, Tensor]]:
    """Log-prob of each row's token, in float32 (float64 for float64 logits); with entropy=True also the entropy.

    logits [rows, vocabulary] or [batch, rows, vocabulary], rows any distance apart; ids [rows] int64. mask 0: the row
    gives 0 and its logits get gradient 0. Rows with NaN or infinite logits give NaN, and gradient 0.
    """
    named = given(
        "token_logprob",
        required=("logits", "ids"),
        differentiable=("logits",),
        logits=logits,
        ids=ids,
        mask=mask,
        status=status,
    )
    return _TokenLogprob.apply(logits, named, float(temperature), entropy)

"""Rollout correction with the call, the results and the metrics of verl's rollout_corr_helper."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
import turnwise_torch as tw
from torch import Tensor

from . import masked
from .options import parse_bounds, parse_rules

LOG_RATIO_LIMIT = 20.0  # nats; where verl clamps before exp


class _Rows:
    """Log ratios d = old - rollout: statistics of rows by turnwise, and those of tokens, 0 where masked."""

    def __init__(self, old: Tensor, rollout: Tensor, response_mask: Tensor):
        if old.dtype != rollout.dtype:
            old, rollout = old.float(), rollout.float()
        old, rollout, mask = old.contiguous(), rollout.contiguous(), response_mask.bool().contiguous()
        row = torch.arange(old.shape[0] + 1, device=old.device)
        self.batch = tw.Batch.padded(row, torch.zeros_like(row[1:]), row[:-1], like=old)
        self.statistics = tw.log_ratio_statistics(self.batch, old, rollout, mask)
        self.reasons = tw.usable_tokens(self.batch, self.statistics, tw.begin_reasons(self.batch))
        self.whole = self.statistics.non_finite[:, None] == 0  # else the row counts as masked
        self.mask = mask & self.whole
        self.count = self.statistics.count[:, None] * self.whole
        self.log_sum = self.statistics.log_sum[:, None] * self.whole
        self.old, self.rollout = (torch.where(self.mask, x.float(), 0.0) for x in (old, rollout))
        self.log_ratio = (self.old - self.rollout).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    def band_keeps(self, kind: str, low: float, high: float) -> Tensor:
        band = dict(level="turn", kind=kind, low=low, high=high)
        return (tw.ratio_band(self.batch, self.statistics, self.reasons, **band) == self.reasons)[:, None]


def _divergence(log_ratio: Tensor, estimate: str) -> Tensor:
    if estimate == "k1":
        return -log_ratio
    return 0.5 * log_ratio**2 if estimate == "k2" else torch.expm1(log_ratio) - log_ratio


def _estimate(rows: _Rows, rule: str) -> tuple[Tensor, Tensor]:
    """The number that a rule bounds, of tokens [B, T] or rows [B, 1], and how many tokens each stands for."""
    aggregate, estimate = rule.rsplit("_", 1)
    if aggregate == "token":
        return _divergence(rows.log_ratio, estimate), rows.mask
    if aggregate == "seq_max":  # k2 and k3 rise on both sides of 0, so an extreme log ratio has the largest
        extremes = torch.stack([rows.statistics.min, rows.statistics.max]).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        value = _divergence(extremes, estimate).amax(0)[:, None] * (rows.count > 0)
    elif estimate == "k1":
        value = -rows.log_sum
    else:
        value = _divergence(rows.log_ratio, estimate).sum(1, keepdim=True, dtype=torch.float64)
    return value / rows.count.clamp(min=1) if aggregate == "seq_mean" else value, rows.count


def _reject(rows: _Rows, rule: str, bounds: tuple[float, float], metrics: dict[str, Tensor]) -> Tensor:
    """What a rule keeps, [B, T] or [B, 1]."""
    value, tokens = _estimate(rows, rule)
    signed = rule.endswith("k1")
    low, high = (math.log(bound) for bound in bounds) if signed else bounds
    if signed and rule.startswith("seq"):
        keep = rows.band_keeps("product" if "sum" in rule else "geometric", 1 / bounds[1], 1 / bounds[0])
    else:
        keep = (value >= low) & (value <= high)

    on, valid = tokens > 0, rows.count[:, 0] > 0
    nothing = value.new_zeros(())
    of_row = masked.row_mean(value, tokens)
    seq_mean, seq_std, seq_max, seq_min = masked.spread(of_row, valid)
    found = dict(
        mean=masked.mean(value, tokens),
        max=masked.largest(value, on),
        min=-masked.largest(-value, on),
        fraction_high=masked.mean(value > high, on),
        fraction_low=masked.mean(value < low, on) if signed else nothing,
        std=masked.deviation(value.clamp(low, high), tokens),
        seq_mean=seq_mean,
        seq_std=seq_std,
        seq_max=seq_max,
        seq_min=seq_min,
        seq_max_deviation=masked.largest(of_row.abs(), valid),
        seq_fraction_high=masked.mean(of_row > high, valid),
        masked_fraction=masked.mean(~keep, tokens),
        seq_masked_fraction=masked.mean((~keep & on).any(1), valid),
    )
    if signed:
        found["seq_fraction_low"] = masked.mean(of_row < low, valid)
    metrics.update({f"rollout_rs_{rule}_{name}": number for name, number in found.items()})
    return keep


def _weigh(rows: _Rows, level: str, low: Optional[float], high: float, metrics: dict[str, Tensor]) -> Tensor:
    """Importance weights of tokens [B, T] or rows [B, 1], 0 where masked: cut to high, or 0 outside [low, high]."""
    by_token = level == "token"
    tokens = rows.mask if by_token else rows.count
    ratio = (rows.log_ratio if by_token else rows.log_sum.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)).exp()
    outside = (ratio > high) if low is None else (ratio > high) | (ratio < low)
    weight = (ratio.clamp(max=high) if low is None else ratio.masked_fill(outside, 0.0)) * (tokens > 0)
    if low is not None:
        metrics["rollout_is_oob_ratio"] = masked.mean(outside, tokens)

    low = 1 / high if low is None else low
    counted = tokens > 0 if by_token else torch.ones_like(ratio, dtype=torch.bool)
    seen = weight if by_token else ratio
    mean, square = masked.mean(weight, tokens), masked.mean(weight * weight, tokens)
    of_row, ratio_of_row = masked.row_mean(weight, tokens), masked.row_mean(ratio, tokens)
    seq_mean, seq_std, seq_max, seq_min = masked.spread(of_row, torch.ones_like(of_row, dtype=torch.bool))
    found = dict(
        mean=mean,
        max=masked.largest(seen, counted),
        min=-masked.largest(-seen, counted),
        ratio_fraction_high=masked.mean(ratio > high, counted),
        ratio_fraction_low=masked.mean(ratio < low, counted),
        std=masked.deviation(weight, tokens),
        eff_sample_size=torch.where(square > 0, (mean + 1e-8) ** 2 / square, 0.0),
        seq_mean=seq_mean,
        seq_std=seq_std,
        seq_max=seq_max,
        seq_min=seq_min,
        seq_max_deviation=(of_row - 1).abs().amax(),
        seq_fraction_high=(ratio_of_row > high).double().mean(),
        seq_fraction_low=(ratio_of_row < low).double().mean(),
    )
    metrics.update({f"rollout_is_{name}": number for name, number in found.items()})
    return weight


def _to_mean_one(weight: Tensor, on: Tensor, metrics: dict[str, Tensor]) -> Tensor:
    """Weights over their mean, of all ranks; unchanged where that is 0."""
    sums = torch.stack([(weight * on).sum(dtype=torch.float64), on.sum(dtype=torch.float64)])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    mean = sums[0] / sums[1].clamp(min=1)
    metrics["rollout_is_batch_norm_factor"] = factor = torch.where(mean > 1e-8, mean, 1.0)
    return weight / factor


def _mismatch(rows: _Rows, metrics: dict[str, Tensor]) -> None:
    """How far apart the two policies are; means over rows count a row without tokens as 0 nats, as verl does."""
    d, mask = rows.log_ratio, rows.mask
    old, rollout = -masked.row_mean(rows.old, mask), -masked.row_mean(rows.rollout, mask)
    difference = old - rollout
    metrics.update(
        training_ppl=old.exp().mean(),
        training_log_ppl=old.mean(),
        kl=masked.mean(rows.rollout - rows.old, mask),
        k3_kl=masked.mean(_divergence(d, "k3"), mask),
        rollout_ppl=rollout.exp().mean(),
        rollout_log_ppl=rollout.mean(),
        log_ppl_diff=difference.mean(),
        log_ppl_abs_diff=difference.abs().mean(),
        log_ppl_diff_max=difference.amax(),
        log_ppl_diff_min=difference.amin(),
        ppl_ratio=difference.exp().mean(),
        chi2_token=masked.mean((2 * d).exp(), mask) - 1,
        chi2_seq=(2 * rows.log_sum.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)).exp().mean() - 1,
    )


@torch.no_grad()
def rollout_correction(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    rollout_is: Optional[str] = None,
    rollout_is_threshold: Any = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: Optional[str] = None,
    rollout_rs_threshold: Any = None,
) -> tuple[Optional[Tensor], Tensor, dict[str, float]]:
    """Weights [B, T] (None if not asked for), the mask with what was rejected cleared, and metrics.

    Arguments, options and names of metrics are verl's, and so are results but for this: sums of a row's log ratios are
    exact (on a grid of 2^-24 nats, each token up to 64 nats where verl's rules stop at 20); a row with a log ratio
    that is not finite counts as masked, weights and mask 0; where nothing is left, metrics are finite numbers.
    Log-probs are float32 or bfloat16. On CUDA waits for the device once, to read all metrics.
    Raises ValueError, naming the argument, for shapes that differ, an empty batch and options that do not exist.
    """
    shapes = [tuple(x.shape) for x in (old_log_prob, rollout_log_prob, response_mask)]
    if len(set(shapes)) != 1 or len(shapes[0]) != 2 or old_log_prob.numel() == 0:
        names = "old_log_prob, rollout_log_prob, response_mask"
        raise ValueError(f"{names} have shapes {shapes}, expected the same [B, T], not empty")
    if rollout_is not in (None, "token", "sequence"):
        raise ValueError(f"rollout_is = '{rollout_is}', expected 'token', 'sequence' or None")
    if isinstance(rollout_is_threshold, bool):
        raise TypeError("rollout_is_threshold is a bool, expected a number or a string")
    weighs = rollout_is is not None and rollout_is_threshold is not None
    bounds = parse_bounds(str(rollout_is_threshold), "rollout_is_threshold") if weighs else []
    rules = parse_rules(rollout_rs, rollout_rs_threshold)

    rows = _Rows(old_log_prob, rollout_log_prob, response_mask)
    metrics: dict[str, Tensor] = {}
    weights = None
    if weighs:
        weights = _weigh(rows, rollout_is, bounds[0] if len(bounds) == 2 else None, bounds[-1], metrics)
        if rollout_is_batch_normalize:
            on = rows.mask if rollout_is == "token" else rows.count > 0
            weights = _to_mean_one(weights, on, metrics)
        dtype = torch.promote_types(old_log_prob.dtype, rollout_log_prob.dtype)
        weights = (weights * rows.mask).to(dtype)
    keep = rows.whole
    for rule, pair in rules.items():
        keep = keep & _reject(rows, rule, pair, metrics)
    if rules:
        on = response_mask.bool()
        metrics["rollout_rs_masked_fraction"] = masked.mean(~keep, on)
        metrics["rollout_rs_seq_masked_fraction"] = (~keep & on).any(1).double().mean()
    _mismatch(rows, metrics)
    numbers = torch.stack([number.double() for number in metrics.values()]).tolist()
    named = {f"rollout_corr/{name}": number for name, number in zip(metrics, numbers)}
    return weights, response_mask.masked_fill(~keep, 0), named


def compute_rollout_correction_and_rejection_mask(*args: Any, **options: Any):
    """rollout_correction with the weights in a DataProto, as verl's function returns them."""
    from verl.protocol import DataProto

    weights, mask, metrics = rollout_correction(*args, **options)
    proto = None if weights is None else DataProto.from_dict(tensors={"rollout_is_weights": weights})
    return proto, mask, metrics

"""What calls return: views of records that the C++ library wrote, so nothing here waits for the device."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

LOG_RATIO_UNIT = 2.0**-24


class Statistics:
    """Statistics of each turn's log ratios; all [S]. turnwise::importance::turn_statistics."""

    def __init__(self, words: Tensor):
        self.words = words  # [S, 6]: the record as it is
        numbers = words.view(torch.float64)
        self.count = words[:, 0]
        self.sum = words[:, 1]  # in units of 2^-24 nats
        self.min = numbers[:, 2]
        self.max = numbers[:, 3]
        self.non_finite = words[:, 4]
        self.saturated = words[:, 5]

    @property
    def log_sum(self) -> Tensor:
        return self.sum.double() * LOG_RATIO_UNIT

    @property
    def log_mean(self) -> Tensor:
        return self.log_sum / self.count.clamp(min=1)


def words_of(function: str, statistics: Statistics) -> Tensor:
    if not isinstance(statistics, Statistics):
        name = type(statistics).__name__
        raise TypeError(f"{function}: statistics is a {name}, expected what log_ratio_statistics returns")
    return statistics.words


class Step:
    """Results of dr_kernel. [S]: reward, turn_return, advantage (float64), reasons (int32), keep (bool), statistics.

    In the shape of old_logprob: token_advantage (float32) and token_mask (bool), 0 where a turn is not kept; None if
    they were not asked for. A turn that is not kept has its advantage too. status: see check().
    """

    def __init__(self, out: dict[str, Tensor], status: Tensor, shape: torch.Size):
        self.reward = out["reward"]
        self.turn_return = out["turn_return"]
        self.advantage = out["advantage"]
        self.reasons = out["reasons"]
        self.statistics = Statistics(out["statistics"])
        self.status = status
        self.token_advantage: Optional[Tensor] = None
        self.token_mask: Optional[Tensor] = None
        if "token_mask" in out:
            self.token_advantage = out["token_advantage"].view(shape)
            self.token_mask = out["token_mask"].view(torch.bool).view(shape)

    @property
    def keep(self) -> Tensor:
        return self.reasons == 0

    def __repr__(self) -> str:
        masked = "not asked for" if self.token_mask is None else f"of shape {list(self.token_mask.shape)}"
        return f"<Step: {self.reasons.numel()} turns, token outputs {masked}, on {self.reasons.device}>"


class LossRecord:
    """What a loss reports, each a tensor of one number: turnwise::loss::loss_record. repr() shows all, and waits.

    policy_loss, kl_loss, entropy_loss: the terms of the loss. tokens: in the loss; turns: with a scale. non_finite:
    tokens left out for it; saturated: with a clamped log ratio; clipped_low, clipped_high: that the policy clipped
    because the ratio is too small, too large. log_ratio_sum (current - old), ratio_sum, ratio_min, ratio_max, kl_sum
    and entropy_sum go over the tokens in the loss.
    """

    FIELDS = (
        "policy_loss",
        "kl_loss",
        "entropy_loss",
        "tokens",
        "turns",
        "non_finite",
        "saturated",
        "clipped_low",
        "clipped_high",
        "log_ratio_sum",
        "ratio_sum",
        "ratio_min",
        "ratio_max",
        "kl_sum",
        "entropy_sum",
    )
    COUNTS = FIELDS[3:9]
    MEANS = ("clip_fraction_low", "clip_fraction_high", "ratio_mean", "kl_mean", "old_kl_mean")

    def __init__(self, words: Tensor):
        self.words = words  # [15]: the record as it is
        self.numbers = words.view(torch.float64)

    def __getattr__(self, name: str) -> Tensor:
        if name not in self.FIELDS:
            raise AttributeError(f"a loss record has no {name}, but {', '.join(self.FIELDS)}")
        index = self.FIELDS.index(name)
        return self.words[index] if name in self.COUNTS else self.numbers[index]

    def __repr__(self) -> str:
        here = LossRecord(self.words.cpu())
        values = {name: getattr(here, name).item() for name in self.FIELDS + self.MEANS}
        return f"LossRecord({', '.join(f'{k}={v}' if k in self.COUNTS else f'{k}={v:.6g}' for k, v in values.items())})"

    def _mean(self, total: Tensor) -> Tensor:
        return total.double() / self.tokens.clamp(min=1)

    @property
    def loss(self) -> Tensor:
        return self.numbers[:3].sum()

    @property
    def clip_fraction_low(self) -> Tensor:
        """Share of the tokens in the loss that are clipped from below; this and the means are 0 without tokens."""
        return self._mean(self.clipped_low)

    @property
    def clip_fraction_high(self) -> Tensor:
        return self._mean(self.clipped_high)

    @property
    def ratio_mean(self) -> Tensor:
        return self._mean(self.ratio_sum)

    @property
    def kl_mean(self) -> Tensor:
        """Of KL(current || reference), nats."""
        return self._mean(self.kl_sum)

    @property
    def old_kl_mean(self) -> Tensor:
        """k1 estimate of KL(old || current), nats."""
        return self._mean(-self.log_ratio_sum)

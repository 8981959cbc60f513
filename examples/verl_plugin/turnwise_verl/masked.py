"""Masked means and spreads, of tokens [B, T] or of rows [B, 1] that stand for `weight` tokens each; 0 of nothing."""

from __future__ import annotations

import torch
from torch import Tensor


def mean(value: Tensor, weight: Tensor) -> Tensor:
    return (value * weight).sum(dtype=torch.float64) / weight.sum(dtype=torch.float64).clamp(min=1)


def row_mean(value: Tensor, weight: Tensor) -> Tensor:
    return (value * weight).sum(1, dtype=torch.float64) / weight.sum(1).clamp(min=1)


def deviation(value: Tensor, weight: Tensor) -> Tensor:
    return mean((value - mean(value, weight)) ** 2, weight).sqrt()


def largest(value: Tensor, on: Tensor) -> Tensor:
    return torch.where(on.any(), torch.where(on, value, -torch.inf).amax(), 0.0)


def spread(value: Tensor, on: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, sample deviation (0 of one), largest and smallest of the rows that are on."""
    center = mean(value, on)
    square = torch.where(on, (value - center) ** 2, 0.0).sum() / (on.sum() - 1).clamp(min=1)
    return center, square.sqrt(), largest(value, on), -largest(-value, on)

"""Turns from the mask of padded conversations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class MaskTurns(NamedTuple):
    """Turns of a mask [rows, width], all int64 on its device; tokens are indices into the flattened mask."""

    trajectory_offsets: Tensor  # [rows + 1]: the turns of a row are [offsets[row], offsets[row + 1])
    turn_begin: Tensor  # [S]: the first token of each turn
    turn_end: Tensor  # [S]: behind its last token


@torch.no_grad()
def turns_of_mask(mask: Tensor) -> MaskTurns:
    """The runs of nonzero in each row of a mask [rows, width], row by row from left to right: a row is a conversation.

    A row without any has no turn, and its trajectory is empty. On CUDA it waits for the device, once: how many turns
    there are decides the sizes. So it cannot be captured in a graph.
    """
    if mask.dim() != 2:
        raise ValueError(f"turns_of_mask: mask has {mask.dim()} dimensions, expected [rows, width]")
    edge = pad(mask != 0, (1, 1)).to(torch.int8).diff(dim=1)  # [rows, width + 1]: 1 begins a turn, -1 is behind it
    offsets = pad((edge == 1).sum(1).cumsum(0), (1, 0))
    row, column = (edge != 0).nonzero(as_tuple=True)  # begin and end take turns
    begin_end = row * mask.shape[1] + column
    return MaskTurns(offsets, begin_end[0::2].contiguous(), begin_end[1::2].contiguous())

"""Random padded batches as verl has them, and edge rows."""

import numpy as np
import torch

ROWS, WIDTH = 24, 48


def draw(seed, device="cpu", dtype=torch.float32, spread=0.1):
    """old and rollout log-probs, and a mask with runs of 1: row 0 masked, row 1 of one token, row 2 full."""
    random = torch.Generator().manual_seed(seed)
    old = -torch.rand(ROWS, WIDTH, generator=random)
    rollout = old + spread * torch.randn(ROWS, WIDTH, generator=random)
    switch = torch.rand(ROWS, WIDTH, generator=random) < 0.15
    mask = (switch.cumsum(1) + torch.arange(ROWS)[:, None]) % 2
    mask[0], mask[1], mask[2] = 0, 0, 1
    mask[1, 7] = 1
    return old.to(device, dtype), rollout.to(device, dtype), mask.to(device)


def rewards(seed, device="cpu"):
    """Rewards at a few tokens, masked ones and padding included, and uids: groups of several sizes, two lone rows."""
    random = torch.Generator().manual_seed(1000 + seed)
    reward = torch.randn(ROWS, WIDTH, generator=random) * (torch.rand(ROWS, WIDTH, generator=random) < 0.1)
    group = torch.randint(0, 5, (ROWS,), generator=random).tolist()
    group[3], group[4] = 100, 101
    return reward.to(device), np.array([f"uid-{g}" for g in group], dtype=object)

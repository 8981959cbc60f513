"""The same results by hand in float64 PyTorch, turn by turn, and batches to try them on."""

import math
from dataclasses import dataclass

import torch


@dataclass
class Rollouts:
    """A ragged batch; lists of what Batch takes as tensors."""

    offsets: list  # of turns in trajectories
    group: list
    trajectory: list
    lengths: list  # tokens of each turn
    old: torch.Tensor
    rollout: torch.Tensor
    mask: torch.Tensor
    reward: torch.Tensor

    @property
    def turns(self):
        return len(self.lengths)

    @property
    def token_offsets(self):
        return [0] + torch.tensor(self.lengths).cumsum(0).tolist()


def random_rollouts(seed, trajectories=13, most_turns=4, most_tokens=37, dtype=torch.float32):
    """Trajectories of 0 to most_turns turns of 0 to most_tokens tokens, in groups of 1 to 5, some with large ratios."""
    random = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return int(torch.randint(low, high + 1, (1,), generator=random))

    counts = [draw(0, most_turns) for _ in range(trajectories)]
    offsets = [0] + torch.tensor(counts).cumsum(0).tolist()
    lengths = [draw(0, most_tokens) for _ in range(sum(counts))]
    group = [int(g) for g in torch.randint(-3, 3, (trajectories,), generator=random)]
    n = sum(lengths)
    old = -torch.rand(n, generator=random)
    rollout = old + 0.05 * torch.randn(n, generator=random)
    for token in range(0, n, 61):
        rollout[token] += 12.0  # far below the veto's threshold
    mask = torch.rand(n, generator=random) > 0.2
    reward = torch.randn(len(lengths), generator=random, dtype=torch.float64)
    return Rollouts(
        offsets, group, list(range(100, 100 + trajectories)), lengths, old.to(dtype), rollout.to(dtype), mask, reward
    )


def log_ratios(r, s):
    begin, end = r.token_offsets[s], r.token_offsets[s + 1]
    d = r.old[begin:end].double() - r.rollout[begin:end].double()
    return d[r.mask[begin:end]]


def returns(r, gamma):
    out = torch.zeros(r.turns, dtype=torch.float64)
    for first, last in zip(r.offsets, r.offsets[1:]):
        later = 0.0
        for s in reversed(range(first, last)):
            later = float(r.reward[s]) + gamma * later
            out[s] = later
    return out


def turn_leave_one_out(r, value):
    """Over the other trajectories of the prompt at the same turn index; a lone turn keeps its value."""
    members = {}
    for j, (first, last) in enumerate(zip(r.offsets, r.offsets[1:])):
        for s in range(first, last):
            members.setdefault((r.group[j], s - first), []).append(s)
    out = torch.zeros_like(value)
    for turns in members.values():
        for s in turns:
            others = [float(value[o]) for o in turns if o != s]
            out[s] = float(value[s]) - (math.fsum(others) / len(others) if others else 0.0)
    return out


def keeps(r, low, high, veto):
    """Kept: a turn with tokens, whose trajectory's geometric ratio is in the band and has no token below the veto."""
    keep = torch.zeros(r.turns, dtype=torch.bool)
    for first, last in zip(r.offsets, r.offsets[1:]):
        d = torch.cat([log_ratios(r, s) for s in range(first, last)]) if last > first else torch.zeros(0)
        if d.numel() == 0:
            continue
        good = math.log(low) <= float(d.mean()) <= math.log(high) and float(d.min()) >= math.log(veto)
        for s in range(first, last):
            keep[s] = good and log_ratios(r, s).numel() > 0
    return keep


def ppo_loss(current, old, advantage, scale, low, high, reference=None, kl_coefficient=0.0):
    """Sum over tokens of scale * (clipped surrogate + kl_coefficient * k3)."""
    ratio = torch.exp(current - old)
    loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    if reference is not None:
        d = reference - current
        loss = loss + kl_coefficient * (torch.exp(d) - 1 - d)
    return (scale * loss).sum()


def logprob_and_entropy(logits, ids, temperature):
    logp = torch.log_softmax(logits.double() / temperature, -1)
    return logp.gather(-1, ids.unsqueeze(-1)).squeeze(-1), -(logp.exp() * logp).sum(-1)

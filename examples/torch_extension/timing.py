"""Times the dr_kernel step from Python on a GPU, beside a compiled PyTorch version of the same outputs.

16 prompts x 16 trajectories x 3 turns, each turn a row of `--width` tokens of which a random number is in use; the
layout that suits PyTorch best. Prints JSON: microseconds a call, MiB beyond the inputs.

    device_us   of a CUDA graph of the call, replayed: what the GPU works
    wall_us     of plain calls, one after the other: device or Python, whichever is slower
    enqueue_us  of plain calls until they return
    outputs_mib, scratch_mib  what a call leaves allocated, and what it takes beside that while it runs
"""

import argparse
import json
import math
import statistics
import sys
import time

import torch

import turnwise_torch as tw

PROMPTS, SAMPLES, TURNS = 16, 16, 3
LOW, HIGH, VETO, GAMMA = 0.999, 1.001, 1e-4, 1.0


def make_inputs(width, dtype):
    random = torch.Generator(device="cuda").manual_seed(1)
    rows = PROMPTS * SAMPLES * TURNS
    old = -torch.rand(rows, width, generator=random, device="cuda")
    spread = torch.linspace(1e-4, 4e-3, rows, device="cuda")[:, None]  # some trajectories leave the band
    rollout = old + spread * torch.randn(rows, width, generator=random, device="cuda") + 0.3 * spread
    length = torch.randint(1, width + 1, (rows, 1), generator=random, device="cuda")
    mask = torch.arange(width, device="cuda") < length
    reward = torch.rand(rows, generator=random, device="cuda", dtype=torch.float64)
    return old.to(dtype), rollout.to(dtype), mask, reward


def make_batch(old):
    trajectories = PROMPTS * SAMPLES
    offsets = torch.arange(trajectories + 1, device="cuda") * TURNS
    group = torch.arange(trajectories, device="cuda") // SAMPLES
    return tw.Batch.padded(offsets, group, torch.arange(trajectories, device="cuda"), like=old)


def by_turnwise(batch):
    def step(old, rollout, mask, reward):
        out = tw.dr_kernel(
            batch,
            old,
            rollout,
            mask,
            reward=reward,
            step=0,
            profiling_filter=False,
            discounted_return={"gamma": GAMMA},
            ratio_band={"low": LOW, "high": HIGH},
            token_veto={"threshold": VETO},
        )
        return out.advantage, out.reasons, out.token_advantage, out.token_mask

    return step


def by_pytorch(old, rollout, mask, reward):
    """Only for this regular shape; its float sums are not exact, nor independent of the launch."""
    d = old.float() - rollout.float()
    finite = torch.isfinite(d)
    on = mask & finite
    count = on.sum(1).view(-1, TURNS)
    total = torch.where(on, d, 0.0).double().sum(1).view(-1, TURNS)
    least = torch.where(on, d, torch.inf).amin(1).view(-1, TURNS)
    broken = (mask & ~finite).any(1).view(-1, TURNS)
    used = (count > 0) & ~broken
    mean = (total * used).sum(1) / (count * used).sum(1).clamp(min=1)
    good = (mean >= math.log(LOW)) & (mean <= math.log(HIGH))
    good &= torch.where(used, least, torch.inf).amin(1) >= math.log(VETO)
    keep = used & good[:, None]

    gamma = GAMMA ** torch.arange(TURNS, device=d.device, dtype=torch.float64)
    reward = reward.view(-1, TURNS)
    turn_return = torch.stack([(reward[:, t:] * gamma[: TURNS - t]).sum(1) for t in range(TURNS)], 1)
    in_group = turn_return.view(PROMPTS, SAMPLES, TURNS)
    others = (in_group.sum(1, keepdim=True) - in_group) / (SAMPLES - 1)
    advantage = (in_group - others).view(-1)
    token_mask = mask & keep.view(-1, 1)
    return advantage, keep.view(-1), torch.where(token_mask, advantage.float()[:, None], 0.0), token_mask


def microseconds(call, rounds, per_round):
    """Median over rounds of the time of a call; wall time until the device is done, and until the calls return."""
    wall, enqueue = [], []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(per_round):
            call()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        wall.append((time.perf_counter() - begin) / per_round * 1e6)
        enqueue.append((returned - begin) / per_round * 1e6)
    return statistics.median(wall), statistics.median(enqueue)


def device_microseconds(call, rounds, per_round):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(per_round):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / per_round * 1e3)
    return statistics.median(times)


def measure(step, inputs, rounds, per_round):
    def call():
        return step(*inputs)

    for _ in range(10):
        call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    outputs = call()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated() - before
    peak = torch.cuda.max_memory_allocated() - before
    wall, enqueue = microseconds(call, rounds, per_round)
    found = dict(wall_us=wall, enqueue_us=enqueue, outputs_mib=held / 2**20, scratch_mib=(peak - held) / 2**20)
    found["device_us"] = device_microseconds(call, rounds, per_round)
    return outputs, {name: round(value, 2) for name, value in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--per-round", type=int, default=50)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("timing.py needs a CUDA device")
    inputs = make_inputs(args.width, getattr(torch, args.dtype))
    batch = make_batch(inputs[0])
    batch.check()

    step = by_turnwise(batch)
    torch.cuda.set_sync_debug_mode("error")
    step(*inputs)  # raises if PyTorch sees it wait
    torch.cuda.set_sync_debug_mode("default")
    ours, our_numbers = measure(step, inputs, args.rounds, args.per_round)
    theirs, their_numbers = measure(torch.compile(by_pytorch), inputs, args.rounds, args.per_round)
    batch_wall, _ = microseconds(lambda: make_batch(inputs[0]), args.rounds, args.per_round)

    kept = ours[1] == 0
    result = dict(
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        dtype=args.dtype,
        tokens=int(inputs[2].sum()),
        input_mib=round(sum(x.numel() * x.element_size() for x in inputs) / 2**20, 2),
        kept_turns=int(kept.sum()),
        turnwise=our_numbers,
        torch_compile=their_numbers,
        batch_wall_us=round(batch_wall, 2),
        largest_difference=float((ours[0] - theirs[0]).abs().max()),
        turns_decided_otherwise=int((kept != theirs[1]).sum()),
    )
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

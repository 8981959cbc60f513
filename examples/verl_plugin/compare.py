"""Times turnwise's advantages and rollout correction beside verl's on the same tensors, and compares the results.

Prints a line for each: the median and the least wall time of a call, in milliseconds, until its results are there.
Without verl only ours are timed, and what runs on CUDA is compared with what the cpu gave. In bfloat16 verl rounds log
ratios, ours does not, so masks differ. PyTorch's default number of threads.
"""

import argparse
import importlib.util
import os
import statistics
import time

import numpy as np
import torch

import turnwise_verl

HAS_VERL = importlib.util.find_spec("verl") is not None
CORRECTIONS = {
    "metrics only": {},
    "token weights": dict(rollout_is="token"),
    "sequence weights, geo_rs": dict(
        rollout_is="sequence", rollout_rs="seq_mean_k1", rollout_rs_threshold="0.999_1.001"
    ),
    "k3_rs": dict(rollout_rs="seq_mean_k3", rollout_rs_threshold=0.001),
    "token_k1, seq_max_k2": dict(rollout_rs="token_k1,seq_max_k2", rollout_rs_threshold="0.5_2,0.1"),
}


def make_batch(rows, width, samples, dtype):
    """Conversations of 4 runs of unmasked tokens, a fifth of their length masked between; a reward at the end."""
    random = torch.Generator().manual_seed(1)
    old = -torch.rand(rows, width, generator=random)
    rollout = old + torch.linspace(1e-3, 5e-2, rows)[:, None] * torch.randn(rows, width, generator=random)
    length = torch.randint(width // 2, width + 1, (rows, 1), generator=random)
    column = torch.arange(width)
    mask = ((column < length) & (column * 20 // length % 5 < 4)).long()
    reward = torch.zeros(rows, width)
    reward.scatter_(1, length - 1, torch.rand(rows, 1, generator=random))
    uid = np.array([f"uid-{row // samples}" for row in range(rows)], dtype=object)
    return old.to(dtype), rollout.to(dtype), mask, reward, uid


def milliseconds(calls, device, rounds):
    """(median, least) of each call; calls take turns, so that what disturbs one disturbs the others too."""
    times = [[] for _ in calls]
    for _ in range(rounds + 2):
        for call, found in zip(calls, times):
            begin = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            found.append((time.perf_counter() - begin) * 1e3)
    return [(statistics.median(found[2:]), min(found[2:])) for found in times]


def differences(ours, theirs, names):
    """Largest absolute difference of each float result, number of differing elements of each mask."""
    text = []
    for name, a, b in zip(names, ours, theirs):
        if a is None:
            continue
        if a.is_floating_point():
            text.append(f"{name} differ by {float((a.cpu() - b.cpu()).abs().max()):.1e}")
        else:
            text.append(f"{int((a.cpu() != b.cpu()).sum())} of {a.numel()} {name} differ")
    return ", ".join(text)


def report(what, device, ours, reference, names, rounds, theirs):
    calls = {"turnwise": ours} if theirs is None else {"turnwise": ours, "verl": theirs}
    line = f"{device:5} {what:30}"
    for name, (median, least) in zip(calls, milliseconds(calls.values(), device, rounds)):
        line += f" {name} {median:8.3f} (least {least:8.3f})"
    found = ours()
    other, expected = ("cpu", reference) if theirs is None else ("verl", theirs())
    if expected is not None:
        line += f"  against {other}: {differences(found, expected, names)}"
    print(line, flush=True)
    return found


def run(device, batch, rounds, references):
    old, rollout, mask, reward = (x.to(device) for x in batch[:4])
    uid = batch[4]
    if HAS_VERL:
        from verl.trainer.ppo.core_algos import get_adv_estimator_fn
        from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

        rloo = get_adv_estimator_fn("rloo_vectorized")

    def their_correction(options):
        proto, kept, _ = compute_rollout_correction_and_rejection_mask(old, rollout, mask, **options)
        return None if proto is None else proto.batch["rollout_is_weights"], kept

    def zero(estimator):
        return lambda: estimator(reward, mask, uid, options={"singleton": "zero"})[:1]

    def add(what, ours, names, theirs=None):
        theirs = theirs if HAS_VERL else None
        references[what] = report(what, device, ours, references.get(what), names, rounds, theirs)

    add("turnwise_trloo", zero(turnwise_verl.turn_leave_one_out), ["advantages"])
    their_rloo = lambda: rloo(token_level_rewards=reward, response_mask=mask, index=uid)[:1]  # noqa: E731
    add("turnwise_rloo, rloo_vectorized", zero(turnwise_verl.row_leave_one_out), ["advantages"], their_rloo)
    for what, options in CORRECTIONS.items():
        ours = lambda: turnwise_verl.rollout_correction(old, rollout, mask, **options)[:2]  # noqa: B023, E731
        add(what, ours, ["weights", "mask bytes"], lambda: their_correction(options))  # noqa: B023


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--samples", type=int, default=8, help="rows of a prompt")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    batch = make_batch(args.rows, args.width, args.samples, getattr(torch, args.dtype))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores, {args}")
    if not HAS_VERL:
        print("skipped: verl, not installed")
    references = {}
    run("cpu", batch, args.rounds, references)
    if not torch.cuda.is_available():
        print("skipped: cuda, no device")
        return
    print(torch.cuda.get_device_name())
    run("cuda", batch, args.rounds, references)


if __name__ == "__main__":
    main()

import pathlib
import shutil
import subprocess
import sys

import pytest
import reference
import torch

import turnwise_torch as tw


@pytest.fixture
def world(make_batch, device):
    """A batch and the arguments of a good call."""
    r = reference.random_rollouts(7)
    good = dict(
        old_logprob=r.old.to(device),
        rollout_logprob=r.rollout.to(device),
        mask=r.mask.to(device),
        reward=r.reward.to(device),
        step=0,
        profiling_filter=False,
    )
    tw.dr_kernel(make_batch(r, device), **good)
    return make_batch(r, device), good


def strided(tensor):
    return torch.stack([tensor, tensor], dim=1)[:, 0]


@pytest.mark.parametrize(
    "name, change, message",
    [
        (
            "rollout_logprob",
            torch.Tensor.double,
            "dr_kernel: rollout_logprob has elements of type float64, expected float32: pass rollout_logprob.float()",
        ),
        (
            "old_logprob",
            torch.Tensor.double,
            "old_logprob has dtype float64, expected float32 or bfloat16: pass old_logprob.float()",
        ),
        ("old_logprob", torch.Tensor.half, "old_logprob has dtype float16"),
        ("rollout_logprob", torch.Tensor.bfloat16, "rollout_logprob has elements of type bfloat16"),
        (
            "reward",
            torch.Tensor.float,
            "dr_kernel: reward has elements of type float32, expected float64: pass reward.double()",
        ),
        (
            "mask",
            torch.Tensor.float,
            "dr_kernel: mask has elements of type float32, expected uint8 or bool: pass mask.bool()",
        ),
        ("reward", lambda x: x[1:], "dr_kernel: reward has .* elements, expected .* (one a turn of the batch)"),
        ("old_logprob", lambda x: x[1:], "old_logprob has .* elements, expected .* (one a token of the batch)"),
        ("rollout_logprob", lambda x: x[1:], "rollout_logprob has .* elements"),
        ("mask", lambda x: x[1:], "mask has .* elements"),
        ("rollout_logprob", strided, "rollout_logprob is not contiguous: dimension 0 has stride 2, expected 1"),
        ("reward", strided, "dr_kernel: reward is not contiguous: .*: pass reward.contiguous()"),
        ("old_logprob", lambda x: x.clone().requires_grad_(), "old_logprob requires grad, but gets none here"),
        ("reward", lambda x: None, "dr_kernel: neither reward nor correct is given"),
        ("step", lambda x: 0.5, "step = 0.5, expected a whole number"),
        ("step", lambda x: -1, "step = -1"),
        ("step", lambda x: 2**32, "step = 4294967296, expected"),
        ("step", lambda x: 10**400, "option step is an integer beyond every float"),
        ("profiling_filter", lambda x: True, "dr_kernel: correct is not given, .* pass profiling_filter=False"),
    ],
)
def test_bad_tensors_name_the_argument(world, name, change, message):
    batch, good = world
    bad = {**good, name: change(good[name])}
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        tw.dr_kernel(batch, **bad)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(ratio_bnd={}), "unknown option ratio_bnd, expected one of .*ratio_band.low"),
        (dict(ratio_band=dict(lo=1)), "unknown option ratio_band.lo"),
        (dict(ratio_band=dict(low=-1.0)), "ratio_band: low = -1"),
        (dict(ratio_band=dict(low="1")), "ratio_band.low is not a number"),
        (dict(ratio_band=dict(level="turns")), 'ratio_band.level is "turns", expected one of turn, trajectory'),
        (dict(discounted_return=dict(gamma=1.5)), "gamma = 1.5"),
        (dict(preset="papers"), "preset is"),
        (dict(ratio_band=3), "ratio_band is not True or False"),
    ],
)
def test_bad_options(world, options, message):
    batch, good = world
    with pytest.raises(ValueError, match=message):
        tw.dr_kernel(batch, **good, **options)


def test_other_types_are_no_tensors(world):
    batch, good = world
    with pytest.raises(TypeError, match="reward is a list, expected a torch.Tensor"):
        tw.dr_kernel(batch, **{**good, "reward": good["reward"].tolist()})
    with pytest.raises(TypeError, match="option ratio_band is a list"):
        tw.dr_kernel(batch, **good, ratio_band=[1])
    with pytest.raises(TypeError):
        tw.dr_kernel(batch, **{name: value for name, value in good.items() if name != "step"})


def test_gradients_may_be_off(world):
    batch, good = world
    with torch.no_grad():
        tw.dr_kernel(batch, **{**good, "old_logprob": good["old_logprob"].clone().requires_grad_()})


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_one_device_alone(world, device, cuda, place):
    batch, good = world
    if place == device:
        pytest.skip("the same device")
    with pytest.raises(
        ValueError, match=f"rollout_logprob is on {place}.*, expected {'cuda:0' if place == 'cpu' else 'host'}"
    ):
        tw.dr_kernel(batch, **{**good, "rollout_logprob": good["rollout_logprob"].to(place)})


def test_a_folder_that_is_not_built(tmp_path):
    here = pathlib.Path(tw.__file__).parent
    shutil.copytree(here, tmp_path / here.name, ignore=shutil.ignore_patterns("_C.*"))
    command = [sys.executable, "-c", "import turnwise_torch"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert f"turnwise_torch is not built in {tmp_path / here.name}: " in found.stderr


def test_unknown_devices():
    with pytest.raises(ValueError, match="tensors are on meta"):
        tw.token_logprob(torch.zeros(2, 3, device="meta"), torch.zeros(2, dtype=torch.int64, device="meta"))


def test_what_a_view_of_the_memory_would_not_show():
    offsets = torch.tensor([0, 1, 2])
    batch = tw.Batch(offsets, torch.zeros(2, dtype=torch.int64), torch.arange(2), torch.tensor([0, 4, 8]), tokens=8)
    old = torch.ones(8)
    with pytest.raises(ValueError, match="log_ratio_statistics: old_logprob is a lazy negation"):
        tw.log_ratio_statistics(batch, torch._neg_view(old), old)
    with pytest.raises(ValueError, match="aggregate: mask has 9 elements, expected 8"):
        tw.aggregate(batch, tw.begin_reasons(batch), torch.ones(9, dtype=torch.bool))
    with pytest.raises(ValueError, match="aggregate: reasons has elements of type bool: pass int32 reasons"):
        tw.aggregate(batch, tw.begin_reasons(batch) == 0)


@pytest.mark.parametrize("length, message", [([5, 0], r"turn 0|turn_end\[0\]|\[0\]"), ([4, -1], r"\[1\]|turn 1")])
def test_lengths_stay_in_their_rows(length, message):
    like = torch.zeros(2, 4)
    index = torch.arange(2)
    with pytest.raises(ValueError, match=message):
        batch = tw.Batch.padded(torch.arange(3), index, index, like, length=torch.tensor(length))
        tw.log_ratio_statistics(batch, like, like)
    with pytest.raises(ValueError, match=r"length has shape \(1,\), expected \(2,\)"):
        tw.Batch.padded(torch.arange(3), index, index, like, length=torch.tensor([4]))


def test_batches_that_do_not_fit():
    offsets, ids = torch.tensor([0, 1, 3]), torch.tensor([0, 1])
    tokens = torch.tensor([0, 1, 2, 3])
    with pytest.raises(ValueError, match="either token_offsets, or turn_begin and turn_end"):
        tw.Batch(offsets, ids, ids, tokens=3)
    with pytest.raises(ValueError, match="either token_offsets, or turn_begin and turn_end"):
        tw.Batch(offsets, ids, ids, tokens, turn_begin=tokens[1:], turn_end=tokens[1:], tokens=3)
    with pytest.raises(ValueError, match="either token_offsets, or turn_begin and turn_end"):
        tw.Batch(offsets, ids, ids, turn_begin=tokens[1:], tokens=3)
    with pytest.raises(TypeError, match="Batch: trajectory_offsets is a list, expected a torch.Tensor"):
        tw.Batch([0, 1, 2], *[torch.tensor([0, 1])] * 2, torch.tensor([0, 1, 2]), tokens=2)
    with pytest.raises(ValueError, match="token_offsets has no element"):
        tw.Batch(offsets, ids, ids, ids[:0], tokens=3)
    with pytest.raises(ValueError, match="turn_begin has 2 elements, expected 3"):
        tw.Batch(offsets, ids, ids, tokens[:3], tokens=3)
    with pytest.raises(ValueError, match=r"turn 2 has tokens \[2, 3\), expected a range within \[0, 2\)"):
        tw.Batch(offsets, ids, ids, tokens, tokens=2)
    with pytest.raises(ValueError, match="group_id has elements of type int32, expected int64"):
        tw.Batch(offsets, ids.int(), ids, tokens, tokens=3)
    with pytest.raises(ValueError, match="group_id has 1 elements, expected 2"):
        tw.Batch(offsets, ids[:1], ids, tokens, tokens=3)
    with pytest.raises(ValueError, match="twice in group 5"):
        tw.Batch(offsets, torch.tensor([5, 5]), torch.tensor([1, 1]), tokens, tokens=3)
    with pytest.raises(ValueError, match="Batch: trajectory_offsets is missing"):
        tw.Batch(None, ids, ids, tokens, tokens=3)
    with pytest.raises(ValueError, match=r"Batch: trajectory_id is sparse_coo: pass trajectory_id.to_dense\(\)"):
        tw.Batch(offsets, ids, ids.to_sparse(), tokens, tokens=3)
    with pytest.raises(TypeError, match="Batch.padded: length is a list"):
        tw.Batch.padded(offsets, ids, ids, torch.zeros(3, 2), length=[1, 2, 1])
    batch = tw.Batch(offsets, ids, ids, tokens, tokens=3)
    reasons = tw.begin_reasons(batch)
    with pytest.raises(ValueError, match="per_token: values has 2 elements, expected 3"):
        tw.per_token(batch, torch.zeros(2).double())
    with pytest.raises(ValueError, match="per_token: values is missing"):
        tw.per_token(batch, None)
    with pytest.raises(ValueError, match="aggregate: reasons has 2 elements, expected 3"):
        tw.aggregate(batch, reasons[:2])
    with pytest.raises(TypeError, match="usable_tokens: statistics is a NoneType"):
        tw.usable_tokens(batch, None, reasons)
    with pytest.raises(ValueError, match="token_logprob: logits is missing"):
        tw.token_logprob(None, ids)
    with pytest.raises(ValueError, match="check: status is not the int64 tensor"):
        tw.check(torch.zeros(1))
    with pytest.raises(ValueError, match='by is "prompt", expected one of group, turn, batch'):
        tw.make_grouping(tw.Batch(offsets, ids, ids, tokens, tokens=3), "prompt")
    with pytest.raises(ValueError, match="like has 1 dimensions"):
        tw.Batch.padded(offsets, ids, ids, torch.zeros(3))
    with pytest.raises(ValueError, match="expected either length, or turn_begin and turn_end"):
        tw.Batch.padded(offsets, ids, ids, torch.zeros(1, 3), length=ids, turn_begin=tokens[:-1], turn_end=tokens[1:])
    with pytest.raises(ValueError, match="either token_offsets, or turn_begin and turn_end"):
        tw.Batch.padded(offsets, ids, ids, torch.zeros(1, 3), turn_end=tokens[1:])
    with pytest.raises(ValueError, match="turns_of_mask: mask has 1 dimensions"):
        tw.turns_of_mask(torch.ones(3))


def test_bad_content_is_told_when_asked(cuda):
    offsets, ids = torch.tensor([0, 1, 3], device=cuda), torch.tensor([4, 4], device=cuda)
    tokens = torch.tensor([0, 1, 2, 3], device=cuda)
    batch = tw.Batch(offsets, ids, torch.tensor([1, 1], device=cuda), tokens, tokens=3)
    with pytest.raises(ValueError, match="trajectory_id occurs twice in a group, at trajectory 1"):
        batch.check()
    batch = tw.Batch(offsets, ids, torch.tensor([0, 1], device=cuda), tokens, tokens=2)
    with pytest.raises(ValueError, match="a token range leaves the token arrays, at turn 2"):
        batch.check()
    batch = tw.Batch(offsets, ids, torch.tensor([0, 1], device=cuda), tokens, tokens=3)
    batch.check()
    logprob = torch.zeros(3, device=cuda)
    infinite = torch.tensor([0, torch.inf, 0], dtype=torch.float64, device=cuda)
    step = tw.dr_kernel(batch, logprob, logprob, reward=infinite, step=0, profiling_filter=False)
    with pytest.raises(ValueError, match="a reward is infinite or beyond the magnitude limit, at turn 1"):
        tw.check(step.status)

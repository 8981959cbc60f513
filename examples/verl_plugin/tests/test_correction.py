import inspect
import math
import sys

import pytest
import torch
from batches import ROWS, draw

from turnwise_verl import compute_rollout_correction_and_rejection_mask as ours
from turnwise_verl import rollout_correction

RULES = {
    "token_k1": "0.9_1.1",
    "token_k2": 0.01,
    "token_k3": "0.01",
    "seq_sum_k1": "0.8_1.3",
    "seq_sum_k2": 0.1,
    "seq_sum_k3": 0.1,
    "seq_mean_k1": 1.02,
    "seq_mean_k2": 0.005,
    "seq_mean_k3": 0.005,
    "seq_max_k2": 0.03,
    "seq_max_k3": 0.03,
    "token_k1, seq_mean_k3,token_k1": "0.9_1.1,0.005",
    "seq_max_k2,seq_sum_k2": 0.05,
}
WEIGHTS = [("token", 1.1), ("token", "1.1"), ("token", "0.9_1.1"), ("sequence", 1.2), ("sequence", "0.9_1.2")]
TOLERANCE = dict(rtol=1e-5, atol=1e-6)  # of weights; verl works in float32
METRIC_TOLERANCE = dict(rel=1e-4, abs=2e-5)


@pytest.fixture
def verl():
    pytest.importorskip("verl", reason="verl is not installed")
    from verl.trainer.ppo import rollout_corr_helper

    return rollout_corr_helper


def agree(verl, batch, device, precise=True, **options):
    """Compares on the same numbers; bfloat16 as float32 in verl, which would round the log ratios."""
    old, rollout, mask = batch
    theirs = verl.compute_rollout_correction_and_rejection_mask(old.float(), rollout.float(), mask, **options)
    found = ours(old.to(device), rollout.to(device), mask.to(device), **options)
    assert (found[0] is None) == (theirs[0] is None)
    if found[0] is not None:
        weights, expected = (x[0].batch["rollout_is_weights"] for x in (found, theirs))
        assert weights.dtype == old.dtype
        torch.testing.assert_close(weights.cpu(), expected.to(old.dtype), **(TOLERANCE if precise else {}))
    assert torch.equal(found[1].cpu(), theirs[1]) and found[1].dtype == theirs[1].dtype
    assert found[2].keys() == theirs[2].keys()
    for name, number in theirs[2].items():
        assert found[2][name] == pytest.approx(number, **METRIC_TOLERANCE), name
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES)
def test_masks_and_metrics_are_those_of_verl(verl, rule, dtype, device):
    rejected = 0
    for seed in range(4):
        batch = draw(seed, dtype=dtype)
        found = agree(verl, batch, device, rollout_rs=rule, rollout_rs_threshold=RULES[rule])
        rejected += int((found[1].cpu() != batch[2]).sum())
        assert found[1].any()
    assert rejected > 0


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("level, threshold", WEIGHTS)
def test_weights_are_those_of_verl(verl, level, threshold, dtype, normalise, device):
    options = dict(rollout_is=level, rollout_is_threshold=threshold, rollout_is_batch_normalize=normalise)
    for seed in range(4):
        agree(verl, draw(seed, dtype=dtype), device, precise=dtype == torch.float32, **options)


def test_all_at_once_and_nothing_asked(verl, device):
    agree(verl, draw(0), device)
    rules = dict(rollout_rs="token_k2,seq_mean_k1", rollout_rs_threshold="0.02,0.97_1.03")
    agree(verl, draw(1), device, rollout_is="sequence", rollout_is_threshold=1.5, **rules)
    old, rollout, mask = draw(2)
    one = torch.zeros_like(mask)
    one[5, 3] = 1
    agree(verl, (old, rollout, one), device, rollout_is="token", **rules)
    agree(verl, (old[:1], rollout[:1], torch.ones_like(mask[:1])), device, rollout_is="token", **rules)
    agree(verl, (old, rollout, mask.bool()), device, rollout_is="token", **rules)


def test_signature_is_that_of_verl(verl):
    theirs = inspect.signature(verl.compute_rollout_correction_and_rejection_mask).parameters.values()
    here = inspect.signature(rollout_correction).parameters.values()
    assert [(p.name, p.default) for p in here] == [(p.name, p.default) for p in theirs]


def test_a_log_ratio_that_is_not_finite_stays_in_its_row(verl, device):
    old, rollout, mask = draw(3)
    old[5, mask[5].argmax()] = math.nan
    options = dict(rollout_is="token", rollout_rs="seq_mean_k3", rollout_rs_threshold=0.005)
    proto, _, metrics = verl.compute_rollout_correction_and_rejection_mask(old, rollout, mask, **options)
    assert proto.batch["rollout_is_weights"].isnan().any() and math.isnan(metrics["rollout_corr/kl"])
    weights, kept, numbers = rollout_correction(old.to(device), rollout.to(device), mask.to(device), **options)
    without = mask.clone()
    without[5] = 0
    expected = rollout_correction(old.to(device), rollout.to(device), without.to(device), **options)
    assert torch.equal(weights, expected[0]) and torch.equal(kept, expected[1])
    shares = {"rollout_corr/rollout_rs_masked_fraction", "rollout_corr/rollout_rs_seq_masked_fraction"}
    assert {k: v for k, v in numbers.items() if k not in shares} == {
        k: v for k, v in expected[2].items() if k not in shares
    }
    assert all(map(math.isfinite, numbers.values()))


def test_nothing_left(verl, device):
    old, rollout, mask = draw(4)
    with pytest.raises(ValueError):
        verl.compute_rollout_correction_and_rejection_mask(old, rollout, mask * 0, rollout_is="token")
    outside = dict(rollout_is="token", rollout_is_threshold="50_60")
    with pytest.raises(ZeroDivisionError):
        verl.compute_rollout_correction_and_rejection_mask(old, rollout, mask, **outside)
    for on, more in ((mask * 0, {"rollout_is": "sequence"}), (mask, outside)):
        options = dict(rollout_rs=",".join(r for r in RULES if "," not in r), rollout_rs_threshold=100, **more)
        weights, kept, metrics = rollout_correction(old.to(device), rollout.to(device), on.to(device), **options)
        assert not weights.any() and torch.equal(kept.cpu(), on) and all(map(math.isfinite, metrics.values()))


def test_edges_are_inclusive(device):
    # Log ratios -1, 0, 1 / 2: exact on every grid.
    old = torch.tensor([[-1.0, 0, 0.5]], device=device)
    zero, mask = torch.zeros_like(old), torch.ones_like(old, dtype=torch.int64)

    def kept(rule, bound):
        return rollout_correction(old, zero, mask, rollout_rs=rule, rollout_rs_threshold=bound)[1][0].tolist()

    assert kept("token_k2", 0.5) == [1, 1, 1] and kept("token_k2", 0.499) == [0, 1, 1]
    assert kept("seq_max_k2", 0.5) == [1, 1, 1] and kept("seq_max_k2", 0.499) == [0, 0, 0]
    assert kept("seq_sum_k2", 0.625) == [1, 1, 1] and kept("seq_sum_k2", 0.624) == [0, 0, 0]
    assert kept("token_k1", f"{math.exp(-0.51)}_{math.exp(0.99)}") == [0, 1, 1]  # bounds are of rollout / old
    assert kept("seq_sum_k1", f"1_{math.exp(0.51)}") == [1, 1, 1]
    assert kept("seq_sum_k1", f"1_{math.exp(0.49)}") == [0, 0, 0]


def test_far_tokens_count_up_to_64_nats(verl, device):
    old, rollout = torch.tensor([[-30.0, 29.0]]), torch.zeros(1, 2)
    mask = torch.ones(1, 2, dtype=torch.int64)
    options = dict(rollout_rs="seq_sum_k1", rollout_rs_threshold="0.9_1.1")
    assert verl.compute_rollout_correction_and_rejection_mask(old, rollout, mask, **options)[1].all()  # 20 - 20
    assert not rollout_correction(old.to(device), rollout.to(device), mask.to(device), **options)[1].any()  # 30 - 29


def test_patch(verl, monkeypatch):
    from verl import DataProto
    from verl.trainer.config.algorithm import RolloutCorrectionConfig

    old, rollout, mask = draw(6)

    def corrected():
        tensors = {"old_log_probs": old, "rollout_log_probs": rollout, "response_mask": mask}
        config = RolloutCorrectionConfig.decoupled_geo_rs_seq_tis(rs_threshold="0.98_1.02")
        batch, metrics = verl.compute_rollout_correction_and_add_to_batch(DataProto.from_dict(tensors=tensors), config)
        return batch.batch["response_mask"], batch.batch["rollout_is_weights"], metrics

    monkeypatch.setattr(verl, ours.__name__, getattr(verl, ours.__name__))  # to be put back
    theirs = corrected()
    sys.modules.pop("turnwise_verl.patch", None)
    import turnwise_verl.patch  # noqa: F401

    assert verl.compute_rollout_correction_and_rejection_mask is ours
    found = corrected()
    assert torch.equal(found[0], theirs[0]) and found[2].keys() == theirs[2].keys()
    torch.testing.assert_close(found[1], theirs[1], **TOLERANCE)


def test_cuda_keeps_what_the_cpu_keeps(cuda):
    old, rollout, mask = draw(7)
    for rule, bound in RULES.items():
        options = dict(rollout_is="sequence", rollout_rs=rule, rollout_rs_threshold=bound)
        here = rollout_correction(old, rollout, mask, **options)
        there = rollout_correction(old.to(cuda), rollout.to(cuda), mask.to(cuda), **options)
        assert torch.equal(there[1].cpu(), here[1])
        torch.testing.assert_close(there[0].cpu(), here[0], **TOLERANCE)
        assert there[2] == pytest.approx(here[2], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("options, message", [
    ({"rollout_is": "turn"}, "rollout_is = 'turn'"),
    ({"rollout_is": "token", "rollout_is_threshold": -1}, "rollout_is_threshold = '-1'"),
    ({"rollout_is": "token", "rollout_is_threshold": "5_2"}, "rollout_is_threshold = '5_2'"),
    ({"rollout_rs": "seq_max_k1", "rollout_rs_threshold": 2}, "rollout_rs has 'seq_max_k1'"),
    ({"rollout_rs": "token_k1"}, "rollout_rs_threshold = None"),
    ({"rollout_rs": "token_k1", "rollout_rs_threshold": 0.5}, "rollout_rs_threshold = '0.5' for token_k1"),
    ({"rollout_rs": "token_k2", "rollout_rs_threshold": "1_2"}, "rollout_rs_threshold = '1_2' for token_k2"),
    ({"rollout_rs": "token_k2,token_k3", "rollout_rs_threshold": "1,2,3"}, "rollout_rs_threshold = 1,2,3"),
])  # fmt: skip
def test_errors(options, message):
    old, rollout, mask = draw(0)
    with pytest.raises(ValueError, match=message):
        rollout_correction(old, rollout, mask, **options)
    with pytest.raises(ValueError, match="shapes"):
        rollout_correction(old, rollout[: ROWS - 1], mask)

"""That each option reaches its field: small cases by hand."""

import math

import pytest
import torch

import turnwise_torch as tw

NAN, LOW, HIGH, NON_FINITE, NO_TOKEN, VETO, OUTLIER = math.nan, 32, 64, 16, 8, 128, 2048


def whole(device, *lists):
    return [torch.tensor(x, dtype=torch.int64, device=device) for x in lists]


@pytest.fixture
def ratios(device):
    """One trajectory of turns with these log ratios; gives a function that applies a rule to them."""

    def of(*turns):
        ends = torch.tensor([0] + [len(t) for t in turns]).cumsum(0).to(device)
        batch = tw.Batch(*whole(device, [0, len(turns)], [0], [0]), ends, tokens=int(ends[-1]))
        d = torch.tensor([x for t in turns for x in t], device=device)
        return batch, tw.log_ratio_statistics(batch, d, torch.zeros_like(d)), tw.begin_reasons(batch)

    return of


@pytest.mark.parametrize(
    "options, want",
    [
        (dict(), [HIGH, HIGH]),  # mean 0.1 of the trajectory
        (dict(low=0.9, high=1.2), [0, 0]),
        (dict(low=1.15, high=1.2), [LOW, LOW]),
        (dict(level="turn", low=0.9, high=1.15), [0, HIGH]),
        (dict(level="turn", kind="product", low=0.9, high=1.15), [0, HIGH]),
        (dict(kind="product", low=0.9, high=math.exp(0.35)), [HIGH, HIGH]),  # sum 0.4
    ],
)
def test_ratio_band(ratios, options, want):
    batch, statistics, reasons = ratios([0.0, 0.0], [0.2, 0.2])
    assert tw.ratio_band(batch, statistics, tw.usable_tokens(batch, statistics, reasons), **options).tolist() == want


@pytest.mark.parametrize(
    "options, want",
    [
        (dict(), [VETO, VETO]),
        (dict(veto_scope="turn"), [VETO, 0]),
        (dict(threshold=1e-5), [0, 0]),
        (dict(threshold=0.0, outlier=math.exp(0.5)), [OUTLIER, OUTLIER]),
    ],
)
def test_token_veto(ratios, options, want):
    batch, statistics, reasons = ratios([-10.0, 0.0], [1.0, 0.0])
    assert tw.token_veto(batch, statistics, reasons, **options).tolist() == want


@pytest.mark.parametrize(
    "options, want",
    [
        (dict(), [NON_FINITE, 0, NO_TOKEN]),
        (dict(non_finite="neutral"), [0, 0, NO_TOKEN]),
        (dict(non_finite_scope="trajectory"), [NON_FINITE, NON_FINITE, NO_TOKEN]),
    ],
)
def test_usable_tokens(ratios, options, want):
    batch, statistics, reasons = ratios([NAN, 0.0], [0.0], [])
    assert tw.usable_tokens(batch, statistics, reasons, **options).tolist() == want


def test_an_error_under_usable_tokens(ratios, device):
    batch, statistics, reasons = ratios([NAN])
    with pytest.raises(ValueError, match="turn 0|at turn 0"):
        tw.usable_tokens(batch, statistics, reasons, non_finite="error")
        batch.check()


@pytest.mark.parametrize(
    "options, returns, reasons",
    [
        (dict(gamma=0.5), [2.0, 2.0, 4.0], [4, 2, 0]),
        (dict(gamma=0.5, unscored="zero"), [2.0, 2.0, 4.0], [0, 2, 0]),
        (dict(gamma=0.0), [1.0, 0.0, 4.0], [0, 2, 0]),
    ],
)
def test_discounted_return(device, options, returns, reasons):
    batch = tw.Batch(*whole(device, [0, 3], [0], [0], [0] * 4), tokens=0)
    reward = torch.tensor([1.0, NAN, 4.0], dtype=torch.float64, device=device)
    got, why = tw.discounted_return(batch, reward, tw.begin_reasons(batch), **options)
    assert got.tolist() == returns and why.tolist() == reasons


def test_leave_one_out(device):
    batch = tw.Batch(*whole(device, [0, 2, 3, 4], [0, 0, 0], [0, 1, 2], [0] * 5), tokens=0)
    groups = tw.make_grouping(batch, "group")
    value = torch.tensor([1.0, 2.0, 4.0, 9.0], dtype=torch.float64, device=device)

    def advantage(*reasons, **options):
        reasons = torch.tensor(reasons or [0] * 4, dtype=torch.int32, device=device)
        return tw.leave_one_out(groups, value, reasons, **options).tolist()

    assert advantage() == [1 - 6.5, 2 - 6.5, 4 - 4, 9 - 7 / 3]
    assert advantage(exclude="member") == [1 - 5, 2 - 14 / 3, 4 - 4, 9 - 7 / 3]
    assert advantage(0, 0, 32, 32, members="kept", singleton="zero") == [0, 0, 4 - 1.5, 9 - 1.5]
    kept = advantage(0, 0, 32, 32, members="kept", allow_kept_with_keep=True)
    assert kept == [1, 2, 4 - 1.5, 9 - 1.5]
    scaled = advantage(scale=True, epsilon=0.5)
    assert scaled[0] == pytest.approx((1 - 6.5) / (math.sqrt(12.5) + 0.5), rel=1e-14)  # deviation of 4 and 9
    by_turn = tw.leave_one_out(tw.make_grouping(batch), value, singleton="others").tolist()
    assert by_turn[1] == 2 - 6.5  # alone at its index: the others' first turns


@pytest.mark.parametrize(
    "options, want",
    [
        (dict(scale=False), [-3.0, -2.0, 0.0, 5.0]),
        (dict(epsilon=0.0), [x / math.sqrt(38 / 3) for x in (-3, -2, 0, 5)]),
        (dict(epsilon=0.5, ddof=0), [x / (math.sqrt(38 / 4) + 0.5) for x in (-3, -2, 0, 5)]),
        (dict(epsilon=0.0, members="kept"), [x / math.sqrt(1 / 2) for x in (-0.5, 0.5, 2.5, 7.5)]),
    ],
)
def test_group_relative(device, options, want):
    batch = tw.Batch(*whole(device, [0, 2, 3, 4], [0, 0, 0], [0, 1, 2], [0] * 5), tokens=0)
    value = torch.tensor([1.0, 2.0, 4.0, 9.0], dtype=torch.float64, device=device)
    reasons = torch.tensor([0, 0, 32, 32], dtype=torch.int32, device=device)
    got = tw.group_relative(tw.make_grouping(batch, "group"), value, reasons, **options).tolist()
    assert got == pytest.approx(want, rel=1e-14)
    with pytest.raises(ValueError, match="group_relative: ddof = 0.5, expected a whole number"):
        tw.group_relative(tw.make_grouping(batch), value, ddof=0.5)
    assert tw.group_relative(tw.make_grouping(batch), value)[1] == 0  # alone at its index


def test_kernel_reward(device):
    batch = tw.Batch(*whole(device, [0, 6], [0], [0], list(range(7))), tokens=6)
    yes, no = [1, 1, 1, 1, 1, 0], [0] * 6
    flags = dict(compiled=[1, 1, 0, 1, 1, 1], correct=yes, rule_violation=[0, 0, 0, 1, 0, 0], decoy=[0, 0, 0, 0, 1, 0])
    flags = {name: torch.tensor(x, dtype=torch.uint8, device=device) for name, x in flags.items()}
    numbers = dict(speedup=[8.0, 0.5] + no[2:], generated_us=[1.0] * 6, total_us=[2.0] * 6)
    numbers = {name: torch.tensor(x, dtype=torch.float64, device=device) for name, x in numbers.items()}
    options = dict(
        correct_weight=2,
        speedup_weight=3,
        profiling_weight=5,
        speedup_cap=4,
        speedup_floor=1,
        compile_failure_penalty=-1,
        rule_violation_penalty=-2,
        decoy_penalty=-3,
        incorrect_penalty=-4,
    )
    logprob = torch.zeros(6, device=device)
    step = tw.dr_kernel(
        batch, logprob, logprob, step=0, profiling_filter=False, kernel_reward=options, **flags, **numbers
    )
    assert step.reward.tolist() == [2 + 12 + 2.5, 2 + 0 + 2.5, -1, -2, -3, -4]


@pytest.mark.parametrize(
    "options, want",
    [
        (dict(), [1 / 4, 1 / 4, 0]),
        (dict(mean="token_sum"), [1, 1, 0]),
        (dict(mean="sequence_mean_token_sum"), [1 / 2, 1 / 2, 0]),
        (dict(mean="sequence_mean_token_mean"), [1 / 2, 1 / 6, 0]),
        (dict(mean="sequence_mean_token_norm", norm=10), [1 / 20, 1 / 20, 0]),
        (dict(denominator="valid"), [1 / 9, 1 / 9, 0]),
        (dict(denominator="nominal", nominal=8), [1 / 8, 1 / 8, 0]),
        (dict(mean="sequence_mean_token_sum", unit="trajectory"), [1, 1, 0]),
        (dict(scope="prompt", denominator="valid"), [1 / 8, 1 / 8, 0]),  # two prompts of 4 and 5 valid tokens
    ],
)
def test_aggregate(device, options, want):
    batch = tw.Batch(*whole(device, [0, 2, 3], [0, 1], [0, 0], [0, 1, 4, 9]), tokens=9)
    reasons = torch.tensor([0, 0, 32], dtype=torch.int32, device=device)
    scale = tw.aggregate(batch, reasons, **options)
    torch.testing.assert_close(scale.cpu(), torch.tensor(want, dtype=torch.float64), rtol=1e-15, atol=0)


def one_token_loss(device, log_ratio, advantage, reference=None, **options):
    batch = tw.Batch(*whole(device, [0, 1], [0], [0], [0, 1]), tokens=1)
    one = torch.ones(1, dtype=torch.float64, device=device)
    old = torch.full((1,), -1.0, device=device)
    frozen = None if reference is None else old + log_ratio + reference
    return tw.ppo_clip(batch, old + log_ratio, old, advantage * one, one, None, frozen, **options)


@pytest.mark.parametrize(
    "log_ratio, advantage, options, want",
    [
        (1.0, 1.0, dict(clip_high=0.5), -1.5),
        (-1.0, -1.0, dict(clip_low=0.5), 0.5),
        (2.0, -1.0, dict(), math.exp(2)),
        (2.0, -1.0, dict(dual_clip=3.0), 3.0),
        (2.0, -1.0, dict(log_ratio_limit=0.5), math.exp(0.5)),
    ],
)
def test_ppo_clip(device, log_ratio, advantage, options, want):
    loss, _ = one_token_loss(device, log_ratio, advantage, **options)
    assert float(loss) == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize(
    "kl, want, slope",
    [
        (dict(kind="k1"), -0.5, 1.0),
        (dict(kind="k2"), 0.125, -0.5),
        (dict(kind="k3"), math.exp(0.5) - 1.5, 1 - math.exp(0.5)),
        (dict(kind="absolute"), 0.5, -1.0),
        (dict(kind="k1", gradient="k2"), -0.5, -0.5),
        (dict(kind="k2", clamp=0.25), 0.03125, None),
        (dict(kind="k2", cap=0.1), 0.1, None),
    ],
)
def test_kl(device, kl, want, slope):
    loss, record = one_token_loss(device, 0.0, 0.0, reference=0.5, kl_coefficient=0.3, kl=kl)
    assert float(record.kl_sum) == pytest.approx(want, rel=1e-5)
    assert float(loss) == pytest.approx(0.3 * want, rel=1e-5)
    if slope is None:
        return
    batch = tw.Batch(*whole(device, [0, 1], [0], [0], [0, 1]), tokens=1)
    one = torch.ones(1, dtype=torch.float64, device=device)
    current = torch.full((1,), -1.0, device=device, requires_grad=True)
    old = current.detach().clone()
    tw.ppo_clip(batch, current, old, 0 * one, one, None, old + 0.5, kl_coefficient=1.0, kl=kl)[0].backward()
    assert float(current.grad) == pytest.approx(slope, rel=1e-5)


def test_weight(device):
    batch = tw.Batch(*whole(device, [0, 1], [0], [0], [0, 2]), tokens=2)
    one = torch.ones(1, dtype=torch.float64, device=device)
    logprob, weight = torch.full((2,), -1.0, device=device), torch.tensor([0.5, 3.0], device=device)
    assert float(tw.ppo_clip(batch, logprob, logprob, one, one, weight=weight)[0]) == -3.5
    logits, ids = torch.zeros(2, 4, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    old, ones = torch.full((2,), -math.log(4), device=device), torch.ones(2, device=device)
    loss, _, _ = tw.policy_loss_from_logits(logits, ids, old, ones, ones, weight=weight)
    assert float(loss) == pytest.approx(-3.5, rel=1e-6)

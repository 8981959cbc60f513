import pytest
import reference
import torch
from torch.autograd import gradcheck

import turnwise_torch as tw


@pytest.fixture
def world(make_batch, device):
    """A batch in which some turns are kept, and per-turn numbers."""
    r = reference.random_rollouts(8)
    batch = make_batch(r, device)
    random = torch.Generator().manual_seed(8)
    reasons = (torch.rand(r.turns, generator=random) > 0.7).int() * 32
    advantage = torch.randn(r.turns, generator=random, dtype=torch.float64)
    current = (r.old.double() + 0.3 * torch.randn(len(r.old), generator=random, dtype=torch.float64)).to(device)
    return r, batch, reasons, advantage, current


def spread(r, value):
    return torch.repeat_interleave(value, torch.tensor(r.lengths))


def test_scale_of_a_token_mean(world, device):
    r, batch, reasons, _, _ = world
    scale = tw.aggregate(batch, reasons.to(device), r.mask.to(device))
    kept = int((spread(r, reasons == 0) & r.mask).sum())
    tokens = torch.tensor([int(r.mask[a:b].sum()) for a, b in zip(r.token_offsets, r.token_offsets[1:])])
    want = ((reasons == 0) & (tokens > 0)).double() / kept
    torch.testing.assert_close(scale.cpu(), want, rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float64, 1e-12)])
@pytest.mark.parametrize("with_reference", [False, True])
def test_ppo_clip_against_the_reference(world, device, dtype, tolerance, with_reference):
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("float64 log-probs are the host's")
    r, batch, reasons, advantage, current = world
    mask = r.mask.to(device)
    scale = tw.aggregate(batch, reasons.to(device), mask)
    current = current.to(dtype).requires_grad_()
    old = r.old.to(device, dtype)
    frozen = (old.double() + 0.1).to(dtype) if with_reference else None
    options = dict(kl_coefficient=0.1) if with_reference else {}
    loss, record = tw.ppo_clip(
        batch, current, old, advantage.to(device), scale, mask, frozen, clip_low=0.2, clip_high=0.28, **options
    )
    (3 * loss).backward()

    exact = current.detach().cpu().double().requires_grad_()
    token_scale = spread(r, scale.cpu()) * r.mask
    want = reference.ppo_loss(
        exact,
        old.cpu().double(),
        spread(r, advantage),
        token_scale,
        0.2,
        0.28,
        None if frozen is None else frozen.cpu().double(),
        0.1,
    )
    (3 * want).backward()
    torch.testing.assert_close(loss.detach().cpu(), want.detach(), rtol=0, atol=1e-12 if tolerance == 1e-12 else 3e-6)
    assert current.grad.dtype == dtype
    torch.testing.assert_close(current.grad.cpu().double(), exact.grad, rtol=tolerance, atol=tolerance * 1e-2)
    assert int(record.tokens) == int((token_scale > 0).sum())
    assert int(record.non_finite) == 0
    with pytest.raises(AttributeError, match="no kept, but policy_loss"):
        record.kept  # noqa: B018


def test_ppo_clip_gradcheck(world, device):
    if device == "cuda":
        pytest.skip("float64 log-probs are the host's")
    r, batch, reasons, advantage, current = world
    scale = tw.aggregate(batch, reasons, r.mask)
    current = current.requires_grad_()

    def call(x):
        return tw.ppo_clip(batch, x, r.old.double(), advantage, scale, r.mask, dual_clip=3.0)[0]

    assert gradcheck(call, current, eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_token_advantages_are_those_of_turns(world, device, dtype):
    r, batch, reasons, advantage, current = world
    mask = r.mask.to(device)
    scale = tw.aggregate(batch, reasons.to(device), mask)
    advantage = advantage.float().double()  # the same number in both types
    old = r.old.to(device)
    by_turn = current.float().requires_grad_()
    by_token = by_turn.detach().clone().requires_grad_()
    loss, record = tw.ppo_clip(batch, by_turn, old, advantage.to(device), scale, mask)
    of_tokens = spread(r, advantage).to(device, dtype)
    got, got_record = tw.ppo_clip(batch, by_token, old, turn_scale=scale, mask=mask, token_advantage=of_tokens)
    loss.backward()
    got.backward()
    assert loss.item() == pytest.approx(got.item(), rel=1e-6) and loss.item() != 0
    torch.testing.assert_close(by_token.grad, by_turn.grad, rtol=1e-6, atol=0)
    assert int(record.clipped_high) == int(got_record.clipped_high)


def test_one_kind_of_advantage(world, device):
    r, batch, reasons, advantage, current = world
    scale, one = torch.ones(r.turns, dtype=torch.float64, device=device), "either turn_advantage or token_advantage"
    current, old, advantage = current.float(), r.old.to(device), advantage.to(device)
    with pytest.raises(ValueError, match=one):
        tw.ppo_clip(batch, current, old, turn_scale=scale)
    with pytest.raises(ValueError, match=one):
        tw.ppo_clip(batch, current, old, advantage, scale, token_advantage=old)
    with pytest.raises(ValueError, match="ppo_clip: turn_scale is missing"):
        tw.ppo_clip(batch, current, old, advantage)
    with pytest.raises(ValueError, match="token_advantage has .* elements"):
        tw.ppo_clip(batch, current, old, turn_scale=scale, token_advantage=old[1:])
    with pytest.raises(ValueError, match="token_advantage has dtype bfloat16, expected float32 or float64"):
        tw.ppo_clip(batch, current, old, turn_scale=scale, token_advantage=old.bfloat16())


def test_a_record_shows_itself(device):
    ids = (torch.tensor(x, device=device) for x in ([0, 1], [0], [0], [0, 4]))
    batch = tw.Batch(*ids, tokens=4)
    one, old = torch.ones(1, dtype=torch.float64, device=device), torch.full((4,), -8.0, device=device)
    ratio = torch.tensor([1.0, 1.0, 2.0, 4.0], device=device)  # above 1.2: clipped, for advantage 1
    _, record = tw.ppo_clip(batch, old + ratio.log(), old, one, one)
    assert float(record.clip_fraction_high) == 0.5 and float(record.clip_fraction_low) == 0
    assert float(record.ratio_mean) == pytest.approx(2, rel=1e-6)
    text = repr(record)
    assert text.startswith("LossRecord(policy_loss=-4.4, ") and "tokens=4, " in text  # -(1 + 1 + 1.2 + 1.2)
    assert "clip_fraction_high=0.5" in text and all(f"{name}=" in text for name in record.FIELDS)
    empty = tw.LossRecord(torch.zeros(15, dtype=torch.int64, device=device))
    assert float(empty.clip_fraction_high) == 0


def test_a_broken_token_stays_alone(world, device):
    r, batch, reasons, advantage, current = world
    scale = tw.aggregate(batch, reasons.to(device), r.mask.to(device))
    plain, broken = current.float().requires_grad_(), current.float()
    on = int((spread(r, scale.cpu()) * r.mask).nonzero()[0])
    broken[on] = torch.nan
    broken.requires_grad_()
    for x in (plain, broken):
        loss, record = tw.ppo_clip(batch, x, r.old.to(device), advantage.to(device), scale, r.mask.to(device))
        loss.backward()
    assert int(record.non_finite) == 1 and broken.grad[on] == 0
    rest = torch.arange(len(broken)) != on
    assert torch.equal(plain.grad.cpu()[rest], broken.grad.cpu()[rest])


def logits_of(shape, dtype, device, seed=0):
    random = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(shape, generator=random, dtype=torch.float64)).to(device, dtype)
    return logits, torch.randint(shape[-1], shape[:-1], generator=random).to(device)


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 4, 33), (2, 1, 1000), (0, 9), (7, 4097)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_token_logprob_against_the_reference(device, shape, dtype, tolerance):
    logits, ids = logits_of(shape, dtype, device)
    mask = torch.arange(ids.numel(), device=device).view(ids.shape) % 3 != 1
    logits.requires_grad_()
    logprob, entropy = tw.token_logprob(logits, ids, mask, temperature=0.8, entropy=True)
    assert logprob.dtype == torch.float32 and logprob.shape == ids.shape
    (logprob.sum() + 0.5 * entropy.sum()).backward()
    exact = logits.detach().cpu().double().requires_grad_()
    want_logprob, want_entropy = reference.logprob_and_entropy(exact, ids.cpu(), 0.8)
    want_logprob, want_entropy = want_logprob * mask.cpu(), want_entropy * mask.cpu()
    (want_logprob.sum() + 0.5 * want_entropy.sum()).backward()
    torch.testing.assert_close(logprob.detach().cpu().double(), want_logprob.detach(), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(entropy.detach().cpu().double(), want_entropy.detach(), rtol=2e-5, atol=2e-5)
    assert logits.grad.dtype == dtype
    torch.testing.assert_close(logits.grad.cpu().double(), exact.grad, rtol=tolerance, atol=tolerance)


def test_rows_that_lie_apart(device):
    buffer, _ = logits_of((4, 6, 50), torch.float32, device)
    _, ids = logits_of((4, 5, 40), torch.float32, device)
    inside = buffer[:, 1:, :40]  # rows 50 elements apart, batches 300
    torch.testing.assert_close(
        tw.token_logprob(inside, ids), tw.token_logprob(inside.contiguous(), ids), rtol=0, atol=0
    )
    with pytest.raises(ValueError, match="logits has stride 50 in dimension 2, expected 1"):
        tw.token_logprob(buffer.transpose(1, 2), ids)
    with pytest.raises(ValueError, match="logits has stride 0 in dimension 0, expected at least 1"):
        tw.token_logprob(buffer[0, :1].expand(5, 50), ids[0])


def test_token_logprob_gradcheck():
    logits, ids = logits_of((3, 2, 5), torch.float64, "cpu")
    mask = torch.tensor([[1, 1], [0, 1], [1, 1]], dtype=torch.uint8)
    logits.requires_grad_()
    assert gradcheck(lambda x: tw.token_logprob(x, ids, mask, temperature=1.7), logits)
    assert gradcheck(lambda x: tw.token_logprob(x, ids, mask, temperature=0.6, entropy=True), logits)


def row_inputs(ids, device, dtype=torch.float32):
    random = torch.Generator().manual_seed(5)
    n = ids.numel()
    return (
        -1.5 - torch.rand(n, generator=random).to(device, dtype),
        torch.randn(n, generator=random).to(device, dtype),
        torch.rand(n, generator=random).to(device, dtype),
    )


@pytest.mark.parametrize("entropy_coefficient", [0.0, 0.05])
def test_policy_loss_from_logits_gradcheck(entropy_coefficient):
    logits, ids = logits_of((2, 3, 4), torch.float64, "cpu", seed=3)
    old, advantage, scale = row_inputs(ids, "cpu", torch.float64)
    logits.requires_grad_()

    def call(x):
        return tw.policy_loss_from_logits(
            x,
            ids,
            old,
            advantage,
            scale,
            temperature=1.3,
            clip_low=0.4,
            clip_high=1.5,
            kl_coefficient=0.2,
            reference_logprob=old - 0.1,
            entropy_coefficient=entropy_coefficient,
        )[0]

    assert gradcheck(call, logits)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("shape", [(6, 11), (3, 5, 1031)])
def test_policy_loss_from_logits_against_the_reference(device, shape, dtype, tolerance):
    logits, ids = logits_of(shape, dtype, device)
    old, advantage, scale = row_inputs(ids, device)
    mask = torch.arange(ids.numel(), device=device) % 4 != 2
    logits.requires_grad_()
    loss, record, logprob = tw.policy_loss_from_logits(
        logits, ids, old, advantage, scale, mask, temperature=0.9, clip_high=0.3
    )
    (2 * loss).backward(retain_graph=True)
    exact = logits.detach().cpu().double().requires_grad_()
    want_logprob, _ = reference.logprob_and_entropy(exact, ids.cpu(), 0.9)
    on = mask.cpu().double()
    want = reference.ppo_loss(
        want_logprob.flatten(), *(x.cpu().double() for x in (old, advantage)), scale.cpu().double() * on, 0.2, 0.3
    )
    (2 * want).backward()
    torch.testing.assert_close(loss.detach().cpu(), want.detach(), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(logits.grad.cpu().double(), exact.grad, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        logprob.cpu().double().flatten(), want_logprob.detach().flatten() * on, rtol=2e-5, atol=2e-5
    )
    assert int(record.tokens) == int(mask.sum())
    once = logits.grad.clone()
    (2 * loss).backward()  # the gradient is kept, not used up
    torch.testing.assert_close(logits.grad, 2 * once, rtol=0.02 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)


def test_scale_of_tokens(make_batch, device):
    """From turns to the rows of logits: per_token spreads the scale."""
    r = reference.random_rollouts(9)
    batch = make_batch(r, device)
    reasons = tw.begin_reasons(batch)
    turn_scale = tw.aggregate(batch, reasons, r.mask.to(device), mean="sequence_mean_token_sum")
    token_scale, _ = tw.per_token(batch, turn_scale, reasons, r.mask.to(device))
    want = spread(r, turn_scale.cpu()) * r.mask
    torch.testing.assert_close(token_scale.cpu().double(), want, rtol=1e-6, atol=0)


def test_bad_rows(device):
    logits, ids = logits_of((4, 9), torch.float32, device)
    logits[2, 3] = torch.nan
    logits.requires_grad_()
    status = tw.new_status(device)
    logprob = tw.token_logprob(logits, ids, status=status)
    assert logprob.isnan().tolist() == [False, False, True, False]
    logprob.nansum().backward()
    assert (logits.grad[2] == 0).all() and (logits.grad[[0, 1, 3]] != 0).all()
    if device == "cuda":
        with pytest.raises(ValueError, match="nothing but -infinity, at row 2"):
            tw.check(status)
        outside = torch.full_like(ids, 9)
        status.zero_()
        tw.token_logprob(torch.zeros_like(logits), outside, status=status)
        with pytest.raises(ValueError, match="a token id is outside the vocabulary, at row 0"):
            tw.check(status)
    else:
        with pytest.raises(ValueError, match=r"ids\[0\] = 9, expected at least 0 and below the vocabulary 9"):
            tw.token_logprob(logits, torch.full_like(ids, 9))


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(ids=torch.zeros(3, dtype=torch.int64)), "ids has 3 elements, expected 4"),
        (dict(ids=torch.zeros(4, dtype=torch.int32)), "ids has elements of type int32, expected int64"),
        (dict(old_logprob=torch.zeros(4, dtype=torch.float64)), "old_logprob has elements of type float64"),
        (dict(advantage=torch.zeros(4, requires_grad=True)), "advantage requires grad"),
        (dict(logits=torch.zeros(36)), "logits has 1 dimensions"),
        (dict(logits=torch.zeros(4, 9, dtype=torch.float16)), "logits has dtype float16"),
        (dict(temperature=0.0), "temperature"),
        (dict(clip_low=2.0), "clip_low = 2"),
        (dict(clip=2.0), "unknown option clip"),
        (dict(kl={"kind": "k9"}), 'kl.kind is "k9", expected one of k1, k2, k3, absolute'),
        (dict(kl_coefficient=1.0), "kl_coefficient = 1 without reference_logprob"),
    ],
)
def test_bad_arguments_of_a_loss(device, change, message):
    good = dict(
        logits=torch.zeros(4, 9),
        ids=torch.zeros(4, dtype=torch.int64),
        old_logprob=torch.zeros(4),
        advantage=torch.zeros(4),
        scale=torch.ones(4),
    )
    bad = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in {**good, **change}.items()}
    if "advantage" in change:
        bad["advantage"] = bad["advantage"].detach().requires_grad_()
    with pytest.raises(ValueError, match=message):
        tw.policy_loss_from_logits(**bad)


def test_losses_in_a_graph(make_batch, cuda):
    """Forward and backward captured; the replay follows new log-probs and logits."""
    r = reference.random_rollouts(12)
    batch = make_batch(r, cuda)
    mask = r.mask.to(cuda)
    reasons = tw.begin_reasons(batch)
    scale = tw.aggregate(batch, reasons, mask)
    advantage = torch.randn(r.turns, dtype=torch.float64, device=cuda)
    old = r.old.to(cuda)
    current = (old + 0.1).requires_grad_()
    logits, ids = logits_of((8, 700), torch.bfloat16, cuda)
    logits.requires_grad_()
    rows = row_inputs(ids, cuda)

    def losses():
        of_tokens, _ = tw.ppo_clip(batch, current, old, advantage, scale, mask)
        of_logits, _, _ = tw.policy_loss_from_logits(logits, ids, *rows)
        logprob, entropy = tw.token_logprob(logits, ids, entropy=True)
        total = of_tokens + of_logits + logprob.sum() + entropy.sum()
        return (total, *torch.autograd.grad(total, [current, logits]))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        losses()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = losses()
    with torch.no_grad():
        current.sub_(0.15)
        logits.mul_(0.5)
    graph.replay()
    for got, want in zip(captured, losses()):
        assert torch.equal(got, want)

"""Gradients that are missing, zero, sparse or of other types, and the loops around ADADP."""

import math

import numpy as np
import pytest
import torch
from optimizer_helpers import assert_same, every_path, feed, lr, lr_of, noise, params_of, values
from torch import nn

from adadp import ADADP
from adadp.multi_tensor import ADVANCE


@every_path
def test_parameters_without_gradients_are_left_alone(path):
    params = params_of((9, 3), (5000,))
    opt = ADADP(params, lr_of(path), foreach=path["foreach"])
    before = values(params)
    for _ in range(3):
        feed(opt, *([g, None] for g, _ in noise(params, 2)))
    assert_same(params[1:], before[1:])
    assert not opt.state.get(params[1])
    alone = params_of((9, 3), (5000,))[:1]
    other = ADADP(alone, lr_of(path), foreach=path["foreach"])
    for _ in range(3):
        feed(other, *([g] for g, _ in noise(params, 2)))
    assert_same(alone, params[:1])
    assert float(opt.error) == float(other.error)


@every_path
@pytest.mark.parametrize("advance", ADVANCE)
@pytest.mark.parametrize("lost", [0, 1, (0, 1)], ids=str)
def test_a_lost_gradient_counts_as_zero(path, advance, lost):
    params, others = params_of((9, 3), (5000,)), params_of((9, 3), (5000,))
    for kind, these in ((None, params), (0, others)):
        opt = ADADP(these, lr_of(path), advance=advance, foreach=path["foreach"])
        gradients = noise(these, 8)
        for iteration in (1, 3):  # after one with all gradients, so that an old buffer is about
            for half in np.atleast_1d(lost):
                grads = gradients[2 * iteration + half]
                grads[1] = None if kind is None else torch.zeros_like(grads[1])
        feed(opt, *gradients)
        assert opt.accepted == 4
    assert_same(params, others)


@every_path
def test_zero_gradients_do_not_inflate_lr(path):
    params = params_of((9, 3), (5000,))
    before = values(params)
    opt = ADADP(params, lr_of(path), foreach=path["foreach"])
    zeros = [torch.zeros_like(p) for p in params]
    feed(opt, zeros, zeros)
    assert lr(opt) == pytest.approx(1.1 * 0.1)
    feed(opt, *(zeros for _ in range(98)))
    assert lr(opt) == pytest.approx(1.1**10 * 0.1)
    assert_same(params, before)
    feed(opt, *noise(params, 2))  # lr moves again as soon as gradients say something
    assert lr(opt) == pytest.approx(0.9 * 1.1**10 * 0.1)
    feed(opt, zeros, zeros)
    assert lr(opt) == pytest.approx(0.9 * 1.1**11 * 0.1)


def test_no_gradients_at_all():
    for start in (0.1, torch.tensor(0.1)):
        opt = ADADP(params_of((4,)), lr=start)
        feed(opt, [None], [None])
        assert (opt.phase, opt.accepted, float(opt.error)) == (0, 1, 0.0)


def test_sparse_gradients_are_refused_before_anything_changes():
    dense, table = nn.Linear(2, 2), nn.Embedding(5, 2, sparse=True)
    opt = ADADP([*dense.parameters(), *table.parameters()])
    dense(table(torch.tensor([1, 2]))).sum().backward()
    before = values(dense.parameters())
    with pytest.raises(RuntimeError, match="dense gradients only"):
        opt.step()
    assert_same(dense.parameters(), before)
    assert opt.phase == 0


def test_two_backward_calls_before_a_step_accumulate():
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    ends = []
    for parts in ([inputs], [inputs[:2], inputs[2:]]):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        opt = ADADP(model.parameters())
        for _ in range(4):
            opt.zero_grad()
            for part in parts:
                model(part).square().sum().backward()
            opt.step()
        ends.append([*values(model.parameters()), torch.tensor(lr(opt))])
    torch.testing.assert_close(*ends)  # lr too: it does not depend on how many examples are worked on at a time


def test_gradients_are_not_changed():
    params = params_of((9, 3), (5000,))
    for opt in (ADADP(params), ADADP(params, lr=torch.tensor(0.1)), ADADP(params, maximize=True)):
        for gradients in noise(params, 2):
            feed(opt, gradients)
            assert_same([p.grad for p in params], gradients)


def test_phase_survives_the_end_of_an_epoch():
    params, others = params_of((4,)), params_of((4,))
    stream = noise(params, 6)
    opt, other = ADADP(params), ADADP(others)
    for epoch in (stream[:3], stream[3:]):  # three batches an epoch
        feed(opt, *epoch)
        assert opt.phase == (1 if epoch is stream[:3] else opt.phase)
    feed(other, *stream)
    assert opt.phase == 0
    assert opt.accepted == 3
    assert_same(params, others)


def test_forward_then_zero_grad_then_backward():
    ends = []
    for early in (True, False):
        torch.manual_seed(0)
        model, inputs = nn.Linear(3, 1), torch.ones(5, 3)
        opt = ADADP(model.parameters(), lr=0.05)
        for _ in range(4):
            if early:
                opt.zero_grad()
            loss = model(inputs).square().mean()
            if not early:
                opt.zero_grad()
            loss.backward()
            opt.step()
        ends.append(values(model.parameters()))
    assert_same(*ends)


def test_closure_is_called_once_with_gradients_on():
    theta = nn.Parameter(torch.tensor([2.0]))
    opt = ADADP([theta], lr=0.1)
    calls = []

    def closure():
        opt.zero_grad()
        loss = theta.square().sum()
        loss.backward()
        calls.append(loss.item())
        return loss

    with torch.no_grad():
        assert opt.step(closure).item() == 4.0
    assert len(calls) == 1
    assert theta.item() == pytest.approx(2.0 - 0.05 * 4.0)  # theta_{l+1/2}
    assert opt.step() is None


def test_frozen_weight_and_changing_batch_size():
    model = nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    weight = model.weight.detach().clone()
    opt = ADADP(model.parameters())
    for size in (4, 7):
        opt.zero_grad()
        model(torch.ones(size, 3)).square().mean().backward()
        opt.step()
    assert opt.accepted == 1
    assert_same([model.weight], [weight])
    assert list(opt.state) == [model.bias]


def test_a_module_that_takes_no_part():
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "idle": nn.Linear(3, 2), "every second": nn.Linear(3, 2)})
    idle = values(model["idle"].parameters())
    opt = ADADP(model.parameters())
    for step in range(8):
        opt.zero_grad()
        output = model["used"](torch.ones(4, 3))
        if step % 2:
            output = output + model["every second"](torch.ones(4, 3))
        output.square().mean().backward()
        opt.step()
    assert opt.accepted == 4
    assert_same(model["idle"].parameters(), idle)


def test_named_parameters_and_maximize():
    model = nn.Linear(3, 1)
    opt = ADADP(model.named_parameters(), maximize=True, lr=0.01)
    start = model(torch.ones(2, 3)).sum().item()
    for _ in range(6):
        opt.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        opt.step()
    assert model(torch.ones(2, 3)).sum().item() > start


def test_hooks_and_profiler_names_work():
    params = params_of((4,))
    opt, seen = ADADP(params), []
    opt.register_step_post_hook(lambda o, *_: seen.append(o.phase))
    feed(opt, *noise(params, 3))
    assert seen == [1, 0, 1]


def test_float64_model():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    opt = ADADP(model.parameters())
    for _ in range(2):
        model(torch.ones(4, 3, dtype=torch.float64)).square().mean().backward()
        opt.step()
    assert opt.accepted == 1
    assert all(p.dtype == torch.float64 for p in model.parameters())


def test_bfloat16_autocast():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 1))
    opt = ADADP(model.parameters(), lr=0.02, tol=0.05)
    inputs = torch.randn(64, 20)
    losses = []
    for _ in range(40):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(inputs) - 1).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.dtype == torch.float32 for p in model.parameters())


@every_path
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_parameters(path, dtype):
    """The error is computed in single precision from the rounded iterates."""
    params = params_of((6000,), dtype=dtype)
    theta, gradients = params[0].detach().float(), noise(params, 2)
    opt = ADADP(params, lr_of(path, 1.0), foreach=path["foreach"])
    feed(opt, *gradients)
    G1, G2 = (g[0].float() for g in gradients)
    half = (theta - 0.5 * G1).to(dtype).float()
    theta_1 = (2 * half - theta).to(dtype).float()
    error = (half - theta + 0.5 * G2) / theta_1.abs().clamp(min=1)
    assert float(opt.error) == pytest.approx(error.norm().item(), rel=1e-3)
    torch.testing.assert_close(params[0].detach().float(), theta_1, rtol=1e-2, atol=1e-2)


@every_path
def test_many_half_precision_parameters_do_not_overflow(path):
    """Their absolute values add up to more than half precision holds, and yet each is finite."""
    params = params_of((90000,), dtype=torch.float16)
    assert params[0].abs().sum(dtype=torch.float32) > torch.finfo(torch.float16).max
    opt = ADADP(params, lr_of(path, 1e-3), foreach=path["foreach"])
    feed(opt, *noise(params, 2))
    assert opt.accepted == 1


def test_models_that_are_converted_between_steps():
    model = nn.Linear(30, 4)
    opt = ADADP(model.parameters())
    for done in range(1, 6):
        feed(opt, *noise(list(model.parameters()), 1))
        assert all(state["theta_l"].dtype == p.dtype for p, state in opt.state.items())
        if done in (2, 3):  # between iterations, and in the middle of one
            model.to(torch.float64 if done == 2 else torch.float32)
    assert opt.accepted == 2


@every_path
def test_mixed_types_share_one_error(path):
    shapes = ((40,), (5000,))
    params = [*params_of(*shapes), *params_of(*shapes, dtype=torch.float64), *params_of(*shapes, dtype=torch.bfloat16)]
    params = params[::2] + params[1::2]  # in turns
    others = [nn.Parameter(p.detach().clone()) for p in params]
    opt = ADADP(params, lr_of(path), foreach=path["foreach"])
    gradients = noise(params, 2)
    feed(opt, *gradients)
    alone = [ADADP([p], lr_of(path), foreach=path["foreach"]) for p in others]
    for i, other in enumerate(alone):
        feed(other, *([grads[i]] for grads in gradients))
    assert_same(params, others)
    assert float(opt.error) == pytest.approx(math.hypot(*(float(o.error) for o in alone)))


def test_empty_tensors_are_allowed():
    params = [*params_of((4,)), nn.Parameter(torch.empty(0, 3))]
    for start in (0.1, torch.tensor(0.1)):
        opt = ADADP(params, lr=start)
        feed(opt, *noise(params, 2))
        assert math.isfinite(opt.error)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64], ids=str)
def test_parameters_that_are_not_real_are_refused(dtype):
    good, bad = torch.ones(3, requires_grad=True), torch.ones(3).to(dtype)
    opt = ADADP([good])
    with pytest.raises(ValueError, match=r"^params must be real"):
        opt.add_param_group({"params": [bad]})
    assert len(opt.param_groups) == 1
    with pytest.raises(ValueError, match=r"^params must be real"):
        ADADP([bad])

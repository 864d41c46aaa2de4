"""What ADADP restores, saves and copies, bit for bit."""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from optimizer_helpers import assert_same, every_path, feed, lr, lr_of, noise, params_of, values
from torch import nn

from adadp import ADADP
from adadp.multi_tensor import ADVANCE


@every_path
@pytest.mark.parametrize("advance", ADVANCE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_discarded_iteration_is_restored_bit_for_bit(path, advance, dtype):
    params = params_of((9, 3), (5000,), (), dtype=dtype)
    with torch.no_grad():
        params[0][0] = torch.tensor([-0.0, 1e-7, 6e4])
    before = values(params)
    opt = ADADP(params, lr_of(path), tol=1e-3, discard=True, advance=advance, foreach=path["foreach"])
    feed(opt, *noise(params, 2))
    assert opt.discarded == 1
    assert float(opt.error) > 1e-3
    assert_same(params, before)
    assert math.copysign(1, params[0][0, 0].item()) == -1  # the sign of zero too
    assert lr(opt) == pytest.approx(0.9 * 0.1)


@every_path
@pytest.mark.parametrize("advance", ADVANCE)
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_gradient_is_forgotten(path, advance, half, bad):
    params = params_of((9, 3), (5000,))
    opt = ADADP(params, lr_of(path), tol=100.0, advance=advance, foreach=path["foreach"])
    gradients = noise(params, 4)
    gradients[half][1][4321] = bad
    before = values(params)
    feed(opt, *gradients[:2])
    assert_same(params, before)
    assert (opt.accepted, opt.discarded, opt.phase) == (0, 1, 0)
    assert not math.isfinite(opt.error)
    assert lr(opt) == pytest.approx(0.9 * 0.1)
    feed(opt, *gradients[2:])
    assert (opt.accepted, opt.discarded) == (1, 1)
    assert math.isfinite(opt.error)
    assert not any(torch.equal(p, b) or not p.isfinite().all() for p, b in zip(params, before, strict=True))
    assert lr(opt) == pytest.approx(1.1 * 0.9 * 0.1)


@every_path
@pytest.mark.parametrize("relative", [True, False])
def test_a_result_beyond_all_numbers_is_discarded(path, relative):
    """The two steps agree, err is zero, and yet the full step overflows."""
    theta = nn.Parameter(torch.zeros(5000))
    opt = ADADP([theta], lr_of(path, 2.0), relative_error=relative, foreach=path["foreach"])
    feed(opt, [torch.full((5000,), 3e38)], [torch.full((5000,), 3e38)])
    assert opt.discarded == 1
    assert theta.eq(0).all()


@every_path
@pytest.mark.parametrize("size", [3, 5000])
def test_huge_gradients_are_discarded_without_a_crash(path, size):
    theta = nn.Parameter(torch.ones(size, dtype=torch.float64))
    opt = ADADP([theta], lr_of(path), relative_error=False, foreach=path["foreach"])
    feed(opt, [torch.full((size,), 1e200, dtype=torch.float64)], [torch.full((size,), -1e200, dtype=torch.float64)])
    assert (opt.discarded, opt.accepted) == (1, 0)
    assert theta.eq(1).all()


def resumed(opt, params, how):
    """Another optimizer that is to go on where this one is, with parameters of its own."""
    if how == "deepcopy":
        others, other = copy.deepcopy((params, opt))
        return others, other
    if how == "pickle":
        return pickle.loads(pickle.dumps((params, opt)))
    others = [nn.Parameter(p.detach().clone()) for p in params]
    start = torch.full_like(opt.param_groups[0]["lr"], 0.9) if isinstance(opt.error, torch.Tensor) else 0.9
    other = ADADP([{"params": others[:2]}, {"params": others[2:], "lr": 0.7}], lr=start)
    state = opt.state_dict()
    if how == "file":
        file = io.BytesIO()
        torch.save(state, file)
        state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    other.load_state_dict(state)
    return others, other


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "file", "state_dict"])
@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("done", [0, 1, 2, 7, 8])
def test_training_goes_on_bit_for_bit(how, tensor, done):
    params = params_of((9, 3), (), (5000,))
    start = torch.tensor(0.1) if tensor else 0.1
    opt = ADADP([{"params": params[:2]}, {"params": params[2:], "lr": 0.05}], lr=start, tol=2.4, discard=True)
    gradients = noise(params, 14)
    gradients[5][1] = torch.tensor(math.nan)
    feed(opt, *gradients[:done])
    others, other = resumed(opt, params, how)
    assert other.phase == opt.phase == done % 2
    for o in (opt, other):  # not in lockstep: nothing is shared
        feed(o, *gradients[done:])
    assert opt.accepted > 1 < opt.discarded
    assert_same(others, params)
    assert [lr(other, i) for i in (0, 1)] == [lr(opt, i) for i in (0, 1)]
    for name in ("error", "accepted", "discarded", "phase"):
        np.testing.assert_equal(float(getattr(other, name)), float(getattr(opt, name)))


def test_state_dict_loads_across_kinds_of_lr():
    """A checkpoint of a device continues on a CPU, where lr is a float, and the other way round."""
    for first, then in ((0.1, torch.tensor(0.5)), (torch.tensor(0.1), 0.5)):
        params = params_of((4,))
        opt, other = ADADP(params, lr=first), ADADP(params, lr=then)
        feed(opt, *noise(params, 4))
        other.load_state_dict(opt.state_dict())
        for name in ("lr", "error", "accepted", "discarded"):
            new = other.param_groups[0][name]
            assert isinstance(new, torch.Tensor) == isinstance(then, torch.Tensor)
            assert float(new) == float(opt.param_groups[0][name])
        feed(other, *noise(params, 2))
        assert other.accepted == 3


def test_state_dict_keys_are_constant():
    params = params_of((4,))
    opt = ADADP(params)
    keys = set(opt.state_dict()["param_groups"][0])
    feed(opt, *noise(params, 3))
    for same in (opt, copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        feed(same, *noise(params, 1))
        state = same.state_dict()
        assert set(state["param_groups"][0]) == keys
        assert set(state["state"][0]) == {"theta_l"}


def test_rewind_drops_the_open_iteration_exactly():
    params = params_of((9, 3), (5000,))
    opt = ADADP(params)
    feed(opt, *noise(params, 2))
    before, eta = values(params), lr(opt)
    opt.rewind()
    assert_same(params, before)
    feed(opt, *noise(params, 1))
    assert opt.phase == 1
    opt.rewind()
    assert_same(params, before)
    assert (opt.phase, opt.accepted, opt.discarded, lr(opt)) == (0, 1, 0, eta)
    feed(opt, *noise(params, 2))
    assert opt.accepted == 2


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("other", [torch.optim.SGD, torch.optim.Adam])
def test_the_state_of_another_kind_of_optimizer(other, scheduled):
    """A warm start from plain training: lr is taken over, and the rest is as given; a scheduler stays behind."""
    theta = torch.nn.Parameter(torch.ones(3))
    optimizer, before = ADADP([theta], lr=0.1, tol=0.5), other([theta], lr=0.25)
    if scheduled:
        torch.optim.lr_scheduler.StepLR(before, 5)
    optimizer.load_state_dict(before.state_dict())
    assert optimizer.phase == 0 and math.isnan(optimizer.error) and optimizer.accepted == 0
    assert optimizer.param_groups[0]["lr"] == 0.25 and optimizer.param_groups[0]["tol"] == 0.5
    for _ in range(2):
        theta.grad = torch.ones(3)
        optimizer.step()
    assert optimizer.accepted == 1


def test_rewinding_leaves_alone_what_is_not_held_any_more():
    one, other = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = ADADP([{"params": [one]}, {"params": [other]}])
    for _ in range(3):
        one.grad, other.grad = torch.ones(3), torch.ones(3)
        optimizer.step()
        if optimizer.phase == 0:
            del optimizer.param_groups[1:]
            other.data.fill_(7.0)
    optimizer.rewind()
    assert optimizer.phase == 0 and torch.equal(other, torch.full((3,), 7.0))

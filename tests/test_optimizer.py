"""ADADP: the twin test against reference.py, the contract, and the faults that comparable optimizers had."""

import copy
import doctest
import inspect
import io
import itertools
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from adadp import ADADP, VARIANTS, optimizer, predicted_lr, reference
from adadp.multi_tensor import ADVANCE

NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
SWITCHES = [
    dict(zip(("advance", "relative_error", "discard", "exponent"), values, strict=True))
    for values in itertools.product(ADVANCE, (True, False), (True, False), (1.0, 0.5))
]
PATHS = [{"lr": lr, "foreach": foreach} for lr in ("float", "tensor") for foreach in (None, True, False)]


def path_id(path):
    return f"{path['lr']} lr, foreach={path['foreach']}"


every_path = pytest.mark.parametrize("path", PATHS, ids=path_id)


def lr_of(path, lr=0.1):
    return torch.tensor(lr, dtype=torch.float64) if path["lr"] == "tensor" else lr


def params_of(*shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(2 * torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]


def feed(opt, *gradients):
    """One step for each list of gradients (None: no gradient)."""
    params = [p for group in opt.param_groups for p in group["params"]]
    for grads in gradients:
        for p, g in zip(params, grads, strict=True):
            p.grad = None if g is None else g.clone()
        opt.step()


def noise(params, count, seed=1):
    """``count`` lists of gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params] for _ in range(count)]


def values(params):
    return [p.detach().clone() for p in params]


def assert_same(one, other):
    """Equal bit for bit."""
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        assert torch.equal(a.isnan(), b.isnan())


def lr(opt, group=0):
    return float(opt.param_groups[group]["lr"])


# The twin: the optimizer is reference.py, step for step -----------------------------------------------------


def check_twin(dtype, groups, path, switches, gradients, tol=10.0, maximize=False):
    """Whether rounding nowhere decides between keeping and discarding; fails where optimizer and reference differ.

    ``groups``: (lr, shapes); ``gradients``: (iterations, 2, all parameters), nan where a tensor has no gradient.
    """
    shapes = [shape for _, group in groups for shape in group]
    sizes = [math.prod(shape) for shape in shapes]
    cuts = np.cumsum(sizes)[:-1]

    def tensors(flat):
        parts = np.split(flat.astype(NUMPY[dtype]), cuts)
        return [torch.tensor(part).reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    theta = (2 * np.random.default_rng(0).standard_normal(sum(sizes))).astype(NUMPY[dtype])
    params = iter([nn.Parameter(t) for t in tensors(theta)])
    settings = [{"lr": lr_of(path, eta), "params": [next(params) for _ in group]} for eta, group in groups]
    opt = ADADP(settings, tol=tol, foreach=path["foreach"], maximize=maximize, **switches)
    eta = np.concatenate([np.full(sum(map(math.prod, group)), eta) for eta, group in groups])
    plain = {("scaled" if name == "relative_error" else name): value for name, value in switches.items()}
    rtol = {torch.float32: 2e-5, torch.float64: 1e-12}[dtype]
    kept_count = 0
    for pair in gradients:
        sign = -1 if maximize else 1
        stream = iter(sign * np.nan_to_num(pair).astype(NUMPY[dtype]))
        with np.errstate(divide="ignore"):
            theta, eta, err, kept = reference.iteration(theta, eta, lambda _: next(stream), tol=tol, **plain)  # noqa: B023
        theta = theta.astype(NUMPY[dtype])
        if abs(err / tol - 1) < 1e-4:
            return False
        kept_count += kept
        feed(opt, *([None if g.isnan().any() else g for g in tensors(row)] for row in pair))
        flat = [p.detach().flatten() for group in opt.param_groups for p in group["params"]]
        np.testing.assert_allclose(torch.cat(flat).numpy(), theta, rtol=rtol, atol=10 * rtol)
        assert float(opt.error) == pytest.approx(err, rel=rtol, abs=rtol)
        heads = np.cumsum([0, *(sum(map(math.prod, group)) for _, group in groups)])[:-1]
        for group, head in zip(opt.param_groups, heads, strict=True):
            assert float(group["lr"]) == pytest.approx(float(eta[head]), rel=20 * rtol)
    assert (int(opt.accepted), int(opt.discarded)) == (kept_count, len(gradients) - kept_count)
    return True


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
@every_path
@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "-".join(map(str, s.values())))
def test_twin_for_every_switch(dtype, path, switches):
    groups = [(0.3, [(3, 4), (5,)]), (0.2, [(), (5000,)])]
    gradients = np.random.default_rng(1).standard_normal((5, 2, 5018))
    assert check_twin(dtype, groups, path, switches, gradients)


SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple) | st.just((70, 70))
GROUPS = st.lists(st.tuples(st.floats(0.01, 1), st.lists(SHAPES, min_size=1, max_size=3)), min_size=1, max_size=3)


@settings(max_examples=60)
@given(
    st.data(), GROUPS, st.sampled_from(PATHS), st.sampled_from(SWITCHES), st.sampled_from(list(NUMPY)), st.booleans()
)
def test_twin_for_groups_shapes_and_lost_gradients(data, groups, path, switches, dtype, maximize):
    sizes = [math.prod(shape) for _, group in groups for shape in group]
    gradients = np.random.default_rng(data.draw(st.integers(0, 99))).standard_normal((3, 2, sum(sizes)))
    for pair, half, tensor in data.draw(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 8)))):
        if tensor < len(sizes):  # this tensor has no gradient in this half
            start = sum(sizes[:tensor])
            gradients[pair, half, start : start + sizes[tensor]] = np.nan
    assume(check_twin(dtype, groups, path, switches, gradients, tol=1.0, maximize=maximize))


@pytest.mark.parametrize("advance", ADVANCE)
def test_pieces_of_a_big_tensor(advance, monkeypatch):
    """A tensor worked on in pieces, the last one shorter, in one memory order and its gradient in another."""
    monkeypatch.setattr("adadp.multi_tensor.PIECE", 1000)
    shape = (7, 11, 9, 10)
    params = params_of(shape, shape, dtype=torch.float64)
    plain = ADADP(params, advance=advance, foreach=True)
    others = [nn.Parameter(p.detach().clone(memory_format=torch.channels_last)) for p in params]
    pieces = ADADP(others, advance=advance)
    gradients = noise(params, 6)
    feed(plain, *gradients)
    feed(pieces, *gradients)
    assert others[0].grad.stride() != others[0].stride()
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-13, atol=1e-13)
    assert pieces.error == pytest.approx(plain.error, rel=1e-13)


def test_parameters_with_gaps_in_memory():
    whole = torch.zeros(80, 100)
    strided = nn.Parameter(whole[:, ::2])
    dense = nn.Parameter(torch.zeros(80, 50))
    for p in (strided, dense):
        feed(ADADP([p]), *noise([dense], 4))
    torch.testing.assert_close(strided, dense)
    assert whole[:, 1::2].eq(0).all()


# Exactness: what is restored, saved, copied -----------------------------------------------------------------


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
    opt = ADADP([{"params": params[:2]}, {"params": params[2:], "lr": 0.05}], lr=start, tol=0.5, discard=True)
    gradients = noise(params, 14)
    gradients[5][1] = torch.tensor(math.nan)
    feed(opt, *gradients[:done])
    others, other = resumed(opt, params, how)
    assert other.phase == opt.phase == done % 2
    for o in (opt, other):  # not in lockstep: nothing is shared
        feed(o, *gradients[done:])
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


# Learning rates and groups ----------------------------------------------------------------------------------


@every_path
@pytest.mark.parametrize("shapes", [((4, 3), (500,)), ((6,), (6,))], ids=["different shapes", "equal shapes"])
def test_groups_share_one_error_and_one_factor(path, shapes):
    params = params_of(*shapes)
    groups = [{"params": [p], "lr": lr_of(path, eta)} for p, eta in zip(params, (0.1, 0.03), strict=True)]
    opt = ADADP(groups, foreach=path["foreach"], tol=0.3)
    others = [nn.Parameter(p.detach().clone()) for p in params]
    alone = [ADADP([p], lr_of(path, eta), foreach=path["foreach"]) for p, eta in zip(others, (0.1, 0.03), strict=True)]
    gradients = noise(params, 2)
    feed(opt, *gradients)
    for i, other in enumerate(alone):
        feed(other, *([grads[i]] for grads in gradients))
    assert float(opt.error) == pytest.approx(math.hypot(*(float(o.error) for o in alone)), rel=1e-6)
    factor = min(max(0.3 / float(opt.error), 0.9), 1.1)
    assert [lr(opt, i) for i in (0, 1)] == pytest.approx([0.1 * factor, 0.03 * factor], rel=1e-6)
    assert_same(params, others)  # no group writes on another's weights


def test_lr_is_a_float_on_a_cpu_and_seen_in_param_groups():
    params = params_of((4,))
    opt = ADADP(params, lr=1)
    assert type(opt.param_groups[0]["lr"]) is float
    feed(opt, *noise(params, 2))
    assert type(opt.param_groups[0]["lr"]) is float
    assert opt.state_dict()["param_groups"][0]["lr"] == opt.param_groups[0]["lr"] != 1


def test_lr_set_by_hand_is_used():
    params, others = params_of((4,)), params_of((4,))
    opt, other = ADADP(params, lr=0.1), ADADP(others, lr=0.01)
    opt.param_groups[0]["lr"] = 0.01
    for o in (opt, other):
        feed(o, *noise(params, 2))
    assert_same(params, others)
    assert lr(opt) == lr(other)


def test_a_tensor_lr_is_copied_for_each_group():
    mine = torch.tensor(0.1)
    params = params_of((4,), (4,))
    opt = ADADP([{"params": p} for p in params], lr=mine, tol=1e9)
    feed(opt, *noise(params, 2))
    assert mine == 0.1
    assert [lr(opt, i) for i in (0, 1)] == pytest.approx([0.11, 0.11])


@every_path
def test_a_wrapper_that_replaces_param_groups(path):
    params = params_of((4,), (4,))
    opt = ADADP(params, lr_of(path), foreach=path["foreach"])
    opt.param_groups = [{"params": [p], "lr": lr_of(path, 0.02)} for p in params]
    before = values(params)
    gradients = noise(params, 2)
    feed(opt, gradients[0])
    for p, b, g in zip(params, before, gradients[0], strict=True):
        torch.testing.assert_close(p, b - 0.01 * g)
    feed(opt, gradients[1])
    assert [lr(opt, i) for i in (0, 1)] == pytest.approx([0.022, 0.022])
    assert opt.accepted == 1


def test_a_replaced_lr_tensor_that_groups_share_is_scaled_once():
    params = params_of((4,), (4,))
    opt = ADADP([{"params": p} for p in params], lr=torch.tensor(0.1), tol=1e9)
    for group in opt.param_groups:
        group["lr"] = opt.param_groups[0]["lr"]
    feed(opt, *noise(params, 2))
    assert lr(opt) == pytest.approx(0.11)


def test_groups_added_later_join_the_iteration():
    one, two = params_of((4,), (4,))
    opt = ADADP([one], lr=0.1, tol=100.0)
    gradients = noise([one, two], 2)
    feed(opt, gradients[0][:1])
    start = two.detach().clone()
    opt.add_param_group({"params": [two], "lr": 0.3, "maximize": True})
    feed(opt, gradients[1])
    assert_same([two], [start])  # the full step along its first gradient, which is zero
    assert (opt.phase, opt.accepted) == (0, 1)
    assert [lr(opt, i) for i in (0, 1)] == pytest.approx([0.11, 0.33])


def test_values_that_groups_share_cannot_differ():
    params = params_of((4,), (4,))
    with pytest.raises(ValueError, match="tol is shared by all parameter groups"):
        ADADP([{"params": params, "tol": 0.5}])
    opt = ADADP([{"params": p} for p in params])
    opt.param_groups[1]["tol"] = 0.5
    with pytest.raises(ValueError, match="tol must be the same"):
        feed(opt, *noise(params, 1))
    opt.param_groups[0]["tol"] = 0.5
    feed(opt, *noise(params, 1))


# Schedulers and freezing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attach",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 1),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.5),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9, cycle_momentum=False),
    ],
)
def test_a_scheduler_is_refused_before_freezing(attach):
    params = params_of((4,))
    opt = ADADP(params)
    attach(opt)
    before = values(params)
    with pytest.raises(RuntimeError, match=r"scheduler is attached.*freeze\(\)"):
        feed(opt, *noise(params, 1))
    assert_same(params, before)
    assert opt.phase == 0


@every_path
def test_a_scheduler_is_honoured_after_freezing(path):
    params = params_of((4,), (5000,))
    opt = ADADP(params, lr_of(path), foreach=path["foreach"], tol=100.0)
    feed(opt, *noise(params, 2))
    opt.freeze()
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    others = [nn.Parameter(p.detach().clone()) for p in params]
    sgd = torch.optim.SGD(others, lr=lr(opt))
    other_scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1, gamma=0.5)
    for gradients in noise(params, 3, seed=5):
        for o, s in ((opt, scheduler), (sgd, other_scheduler)):
            feed(o, gradients)
            s.step()
    assert lr(opt) == pytest.approx(0.11 / 8)
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q)
    assert (opt.phase, opt.accepted, opt.discarded) == (0, 1, 0)
    assert not any(opt.state.values())  # the buffers are given back


def test_plateau_scheduler_lowers_the_lr_from_which_adaptation_goes_on():
    params = params_of((4,))
    opt = ADADP(params, lr=0.1, alpha_min=1.0, alpha_max=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
    for _ in range(2):
        feed(opt, *noise(params, 2))
        scheduler.step(1.0)
    assert lr(opt) == 0.05


def test_freezing_in_the_middle_keeps_the_half_step():
    params = params_of((4,))
    opt = ADADP(params, lr=0.1)
    feed(opt, *noise(params, 1))
    half = values(params)
    opt.freeze()
    assert_same(params, half)
    assert opt.phase == 0
    state = opt.state_dict()
    other = ADADP(params)
    other.load_state_dict(state)
    gradient = noise(params, 1, seed=3)[0]
    feed(other, gradient)
    torch.testing.assert_close(params[0].detach(), half[0] - 0.1 * gradient[0])
    assert other.phase == 0


# Gradients that are missing, zero, sparse, accumulated ------------------------------------------------------


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


# The loop around it -----------------------------------------------------------------------------------------


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


# Types ------------------------------------------------------------------------------------------------------


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


def test_models_that_are_converted_between_steps():
    model = nn.Linear(30, 4)
    opt = ADADP(model.parameters())
    for done in range(1, 6):
        feed(opt, *noise(list(model.parameters()), 1))
        if done in (2, 3):  # between iterations, and in the middle of one
            model.to(torch.float64 if done == 2 else torch.float32)
    buffers = [state["theta_l"] for state in opt.state.values()]
    assert all(b.dtype == torch.float32 for b in buffers)
    assert opt.accepted == 2


def test_mixed_types_share_one_error():
    params = [*params_of((40,)), *params_of((40,), dtype=torch.float64)]
    opt = ADADP(params)
    feed(opt, *noise(params, 2))
    parts = [
        ADADP([nn.Parameter(p.detach().clone())]) for p in (*params_of((40,)), *params_of((40,), dtype=torch.float64))
    ]
    for i, part in enumerate(parts):
        feed(part, *([grads[i]] for grads in noise(params, 2)))
    assert opt.error == pytest.approx(math.hypot(*(p.error for p in parts)))


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


# Arguments --------------------------------------------------------------------------------------------------

BAD = {
    "lr": (
        0,
        -1.0,
        math.nan,
        math.inf,
        "0.1",
        None,
        True,
        torch.tensor([1.0, 2.0]),
        torch.tensor(math.nan),
        torch.tensor(1),
    ),
    "tol": (0.0, -1, math.nan, math.inf, "1", None),
    "alpha_min": (0, -0.5, 1.5, math.nan, None),
    "alpha_max": (0.5, math.nan, math.inf),
    "exponent": (0, -1, math.nan, math.inf, "1"),
    "relative_error": (1, None, "yes"),
    "advance": ("midpoint", None, 1),
    "discard": (1, None, math.nan),
    "maximize": (1, None, "yes"),
    "foreach": ("yes", 2),
}


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, bads in BAD.items() for bad in bads])
def test_bad_arguments_are_named(name, bad):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        ADADP(params_of((2,)), **{name: bad})


@pytest.mark.parametrize("bad", [0, math.nan])
def test_a_bad_lr_of_a_group_is_named(bad):
    with pytest.raises(ValueError, match=r"^lr must be"):
        ADADP([{"params": params_of((2,)), "lr": bad}])


def test_signature_and_documentation_are_the_contract():
    signature = inspect.signature(ADADP)
    defaults = {name: p.default for name, p in signature.parameters.items() if name != "params"}
    assert defaults == {
        "lr": 0.1,
        "tol": 1.0,
        "alpha_min": 0.9,
        "alpha_max": 1.1,
        "exponent": 1.0,
        "relative_error": True,
        "advance": "euler",
        "discard": False,
        "maximize": False,
        "foreach": None,
    }
    assert [n for n, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY] == list(defaults)[1:]
    lines = inspect.getdoc(ADADP).split("Args:")[1].split("\n\n")[0].splitlines()
    documented = [
        line.split(":")[0].strip() for line in lines if line.startswith("    ") and line[4:5] != " " and ":" in line
    ]
    assert documented == list(signature.parameters)


def test_public_values_are_read_only():
    opt = ADADP(params_of((2,)))
    for name in ("phase", "error", "accepted", "discarded"):
        with pytest.raises(AttributeError):
            setattr(opt, name, 1)


@pytest.mark.parametrize("name", ["as_printed", "reference_code", "recommended"])
def test_variants_are_arguments(name):
    params = params_of((4,))
    opt = ADADP(params, **VARIANTS[name])
    feed(opt, *noise(params, 2))
    assert opt.accepted + opt.discarded == 1
    printed = {n: p.default for n, p in inspect.signature(ADADP).parameters.items()}
    assert name != "as_printed" or all(printed[n] == value for n, value in VARIANTS[name].items())


def test_examples():
    assert doctest.testmod(optimizer).failed == 0


# What the theory says ---------------------------------------------------------------------------------------


def test_lr_settles_where_noise_puts_it():
    (theta,) = params_of((20000,))
    with torch.no_grad():
        theta.mul_(1e-3)
    opt = ADADP([theta], lr=1.0, tol=0.5)
    generator, rates = torch.Generator().manual_seed(0), []
    for _ in range(240):  # pure noise: sigma C / B = 0.1
        theta.grad = 0.1 * torch.randn(20000, generator=generator)
        opt.step()
        rates.append(lr(opt))
    expected = predicted_lr(
        tol=0.5, noise_multiplier=2.0, max_grad_norm=10.0, num_parameters=20000, expected_batch_size=200
    )
    assert np.mean(rates[-80:]) == pytest.approx(expected, rel=0.01)


def test_discarding_survives_a_stiff_valley():
    """lr far too large for the steep direction is brought down before anything moves, and the minimum found."""
    theta = nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
    scale = torch.tensor([100.0, 1.0], dtype=torch.float64)
    opt = ADADP([theta], lr=2.0, tol=0.01, discard=True, relative_error=False, exponent=0.5)
    sizes = []
    for _ in range(2000):
        opt.zero_grad()
        (0.5 * scale * theta.square()).sum().backward()
        opt.step()
        sizes += [theta.norm().item()] if opt.phase == 0 else []
    assert max(sizes) < 1.5
    assert sizes[-1] < 0.02
    assert opt.discarded > 0


# Devices: nothing is read, nothing is left behind -----------------------------------------------------------


class Unsynchronised(TorchDispatchMode):
    """Fails where the host would have to wait for a device: reading a value, or moving one between devices."""

    READS = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "item", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.READS, f"{name} reads a value"
        result = func(*args, **(kwargs or {}))
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            assert result.device.type == source.device.type, f"{name} moves between devices"
        return result


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "-".join(map(str, s.values())))
def test_nothing_is_read_on_a_device(switches, foreach):
    with FakeTensorMode():
        params = [nn.Parameter(torch.empty(5, 4, device="cuda")), nn.Parameter(torch.empty(9000, device="cuda"))]
        opt = ADADP([{"params": params[:1]}, {"params": params[1:], "lr": 0.2}], foreach=foreach, **switches)
        for p in params:
            p.grad = torch.empty_like(p)
        with Unsynchronised():
            for _ in range(4):
                opt.step()
            opt.rewind()
            opt.freeze()
            opt.step()
        for name in ("lr", "error", "accepted", "discarded"):
            value = opt.param_groups[1][name]
            assert value.device.type == "cuda"
            assert value.ndim == 0
            with pytest.raises(DataDependentOutputException):
                value.item()
        assert all(getattr(opt, name).device.type == "cuda" for name in ("error", "accepted", "discarded"))


def test_the_check_above_can_fail():
    with Unsynchronised(), pytest.raises(AssertionError, match="reads a value"):
        torch.ones(3).sum().item()
    with FakeTensorMode(), Unsynchronised(), pytest.raises(AssertionError, match="moves between devices"):
        torch.ones(3, device="cuda").to("cpu")


def test_a_float_lr_on_a_device_becomes_a_tensor():
    """As after a wrapper or a hand wrote it there."""
    with FakeTensorMode():
        p = nn.Parameter(torch.empty(5000, device="cuda"))
        opt = ADADP([p])
        for _ in range(3):
            opt.param_groups[0]["lr"] = 0.05
            p.grad = torch.empty_like(p)
            opt.step()
    assert opt.param_groups[0]["lr"].device.type == "cuda"


def test_tensors_are_changed_in_place():
    """As a CUDA graph needs it: lr, counters and buffers stay where they are in memory."""
    params = params_of((9, 3), (5000,))
    opt = ADADP(params, lr=torch.tensor(0.1))
    feed(opt, *noise(params, 2))

    def addresses():
        group = opt.param_groups[0]
        held = [group[name] for name in ("lr", "error", "accepted", "discarded", "zero_errors")]
        return [t.data_ptr() for t in (*params, *held, *(s["theta_l"] for s in opt.state.values()))]

    before = addresses()
    feed(opt, *noise(params, 4))
    assert addresses() == before


def test_what_was_read_does_not_change_later():
    params = params_of((4,))
    opt = ADADP(params, lr=torch.tensor(0.1))
    feed(opt, *noise(params, 2))
    error, accepted = opt.error, opt.accepted
    first = error.item()
    feed(opt, *noise(params, 2, seed=9))
    assert (error.item(), accepted.item()) == (first, 1)
    assert opt.error.item() != first


def test_one_extra_buffer_a_parameter():
    params = params_of((9, 3), (5000,))
    opt = ADADP(params)
    feed(opt, *noise(params, 4))
    held = [t for state in opt.state.values() for t in state.values()]
    assert sum(t.numel() for t in held) == sum(p.numel() for p in params)
    assert not [name for name, value in vars(opt).items() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("tensor", [True, False])
def test_under_torch_compile(tensor):
    """With a tensor lr the step is one graph for each half; with a float it is left out of the graph."""
    ends = []
    for compiled in (True, False):
        torch._dynamo.reset()
        params = params_of((9, 3), (5000,))
        opt = ADADP(params, lr=torch.tensor(0.1) if tensor else 0.1, tol=0.5, discard=True)

        def train(opt=opt):
            opt.step()

        run = torch.compile(train, backend="eager", fullgraph=tensor) if compiled else train
        graphs = []
        for gradients in noise(params, 16):
            for p, g in zip(params, gradients, strict=True):
                p.grad = g.clone() if p.grad is None else p.grad.copy_(g)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run()
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        assert graphs[-1] == graphs[4] <= 4  # a changed lr compiles nothing anew
        ends.append([*values(params), torch.tensor(lr(opt)), torch.tensor(float(opt.accepted))])
    assert_same(*ends)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_in_a_cuda_graph():
    start, pair = params_of((9, 3), (5000,)), None
    gradients = noise(start, 12)
    plain = [nn.Parameter(p.detach().clone()) for p in start]
    twin = ADADP(plain, tol=0.5, discard=True)
    feed(twin, *gradients)
    params = [nn.Parameter(p.detach().cuda()) for p in start]
    opt = ADADP(params, tol=0.5, discard=True)
    pair = [[torch.zeros_like(p) for p in params] for _ in range(2)]

    def iteration():
        for grads in pair:
            for p, g in zip(params, grads, strict=True):
                p.grad = g
            opt.step()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        feed(opt, *([g.cuda() for g in grads] for grads in gradients[:2]))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        iteration()
    for i in range(2, 12, 2):
        for held, grads in zip(pair, gradients[i : i + 2], strict=True):
            for h, g in zip(held, grads, strict=True):
                h.copy_(g)
        graph.replay()
    for p, q in zip(params, plain, strict=True):
        torch.testing.assert_close(p.cpu(), q)
    assert lr(opt) == pytest.approx(lr(twin), rel=1e-5)
    assert int(opt.accepted) == twin.accepted

"""ADADP is reference.py, step for step; its arguments; what the theory says of it."""

import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from optimizer_helpers import PATHS, SWITCHES, every_path, feed, lr, lr_of, noise, params_of
from torch import nn

from adadp import ADADP, VARIANTS, predicted_lr, reference
from adadp.multi_tensor import ADVANCE

NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


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
    whole = torch.zeros(80, 200)
    strided = nn.Parameter(whole[:, ::2])
    dense = nn.Parameter(torch.zeros(80, 100))
    for p in (strided, dense):
        feed(ADADP([p]), *noise([dense], 4))
    torch.testing.assert_close(strided, dense)
    assert whole[:, 1::2].eq(0).all()


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@every_path
def test_lr_never_leaves_what_the_parameters_can_hold(dtype, path):
    """Huge weights under the relative error: err stays tiny whatever lr is, and lr would grow for ever."""
    (param,) = params = [nn.Parameter(torch.full((3,), 6e4, dtype=dtype))]
    optimizer = ADADP(params, **path | {"lr": lr_of(path, 1.0)}, alpha_max=1e8)
    zero, tiny = torch.zeros_like(param), torch.full_like(param, torch.finfo(dtype).tiny)
    feed(optimizer, *[[zero], [tiny]] * 100)
    assert torch.isfinite(param).all() and optimizer.accepted > 0
    assert 1e4 < lr(optimizer) <= torch.finfo(dtype).max

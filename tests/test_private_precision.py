"""Rounding must not let an example through: cancelling positions, shortened products, a very small C."""

import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from test_private_gradient import labels, private
from torch import nn

from adadp.privacy.exact import exact
from adadp.privacy.terms import row_norms


class Tied(nn.Module):
    """An embedding and a linear map with one parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(50, 64))

    def forward(self, x, a):
        return F.embedding(x, self.weight), F.linear(a, self.weight)


LENGTH = 1e3


def linear(u, v, slight):
    """Two positions with the same input and all but opposite gradients; what is left of them is slight."""
    weights = torch.stack([u, slight / LENGTH - u])
    return nn.Linear(64, 64, bias=False), LENGTH * v.expand(1, 2, 64), lambda out, y: (out * weights).sum((1, 2))


def conv(u, v, slight):
    _, x, loss = linear(u, v, slight)
    return nn.Conv1d(64, 64, 1, bias=False), x.mT, lambda out, y: loss(out.mT, y)


def embedding(u, v, slight):
    """One row that is looked up twice."""
    weights = torch.stack([LENGTH * u, slight - LENGTH * u])
    return nn.Embedding(50, 64), torch.full((1, 2), 7), lambda out, y: (out * weights).sum((1, 2))


def tied(u, v, slight):
    """Two rows that are looked up, and what a linear map adds to the same rows."""
    a = LENGTH * torch.stack([u, v])[None]
    x = {"x": torch.tensor([[7, 8]]), "a": a}
    return Tied(), x, lambda out, y: (out[0] * (slight - a)).sum((1, 2)) + out[1][:, 0, 7] + out[1][:, 1, 8]


@pytest.mark.parametrize("case", [linear, conv, embedding, tied])
def test_positions_that_cancel_each_other_do_not_escape_the_bound(case):
    """A squared norm is then a difference of large numbers: 0 by rounding, with a gradient longer than C behind it."""
    torch.manual_seed(0)
    for _ in range(20):
        model, x, loss = case(torch.randn(64), torch.randn(64), torch.randn(64) / 3)
        grad = private(model, max_grad_norm=1.0, expected_batch_size=1, loss=loss)
        grad.backward(x, torch.zeros(1))
        assert not grad._per_example.without_rule
        (weight,) = model.parameters()
        assert 0 < weight.grad.double().norm() <= 1 + 1e-3


def few_rows():
    """A row that is looked up eight times, in a table with fewer rows than positions."""
    parts = 1e8 * torch.randn(8, 16)
    parts[-1] = -torch.stack([*parts[:-1]]).cumsum(0)[-1]
    others = torch.full((8, 8), 2), 0.01 * torch.randn(8, 8, 16)
    return nn.Embedding(4, 16), others, (torch.full((1, 8), 2), parts[None])


def wide_window():
    """A convolution whose gradients are made a few at a time and forgotten."""
    parts = torch.zeros(64, 8, 8)
    parts[:, 1:7, 1:7] = 1e7 * torch.randn(6, 6)
    parts[:, 1:7, 1:7] -= parts[:, 1:7, 1:7].mean()
    others = torch.randn(7, 64, 8, 8), 1e-4 * torch.randn(7, 64, 8, 8)
    return nn.Conv2d(64, 64, 3, padding=1, bias=False), others, (torch.ones(1, 64, 8, 8), parts[None])


@pytest.mark.parametrize("case", [few_rows, wide_window])
def test_positions_that_cancel_do_not_wipe_out_what_is_there_already(case):
    """The sum begins with the noise and adds in another order than the norm: large parts carry its digits away."""
    torch.manual_seed(0)
    for _ in range(5):
        model, (x, y), (x_one, y_one) = case()
        released = []
        for xs, ys in ((x, y), (torch.cat([x, x_one]), torch.cat([y, y_one]))):
            grad = private(
                model, max_grad_norm=1.0, noise_multiplier=1.0, expected_batch_size=1,
                loss=lambda out, y: (out * y).flatten(1).sum(1), generator=torch.Generator().manual_seed(1),
            )  # fmt: skip
            grad.backward(xs, ys)
            released.append(model.weight.grad.double().clone())
            assert not grad._per_example.without_rule
        assert float((released[1] - released[0]).norm()) <= 1 + 1e-3


@pytest.mark.parametrize("shape", [(6,), (4, 6)])
def test_norms_and_sums_leave_autocast(shape):
    """The pass is made in eight bits; what it gave is clipped to C in full precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 30), nn.Flatten(), nn.LazyLinear(3))
    model(torch.zeros(1, *shape))
    for _ in range(10):
        grad = private(model, max_grad_norm=0.01, expected_batch_size=1)
        with torch.autocast("cpu", torch.bfloat16):
            grad.backward(torch.randn(1, *shape), labels(1))
        norm = torch.sqrt(sum(p.grad.double().square().sum() for p in model.parameters()))
        assert float(norm) == pytest.approx(0.01, rel=2e-5)


def test_the_allowance_for_rounding_is_small():
    """Gradients of random positions are clipped to C as before, to four digits."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False)
    grad = private(model, max_grad_norm=1.0, expected_batch_size=1, loss=lambda out, y: out.square().sum((1, 2)))
    grad.backward(torch.randn(1, 8, 64), torch.zeros(1))
    assert float(model.weight.grad.norm()) == pytest.approx(1, abs=5e-5)


@pytest.mark.parametrize("way", ["medium", "tf32"])
def test_products_are_not_shortened_inside_and_are_as_set_afterwards(way):
    """Read in a process of its own, as the settings belong to the process."""
    if way == "tf32" and not hasattr(torch.backends.cudnn, "conv"):
        pytest.skip("needs the switches of torch 2.9")
    code = f"""
import torch
from adadp.privacy.exact import SWITCHES, exact

found = lambda: [getattr(*switch) for switch in SWITCHES]
if {way!r} == "medium":
    torch.set_float32_matmul_precision({way!r})
else:
    for owner, name in SWITCHES:
        setattr(owner, name, {way!r})
before = found()
for kind in ("cpu", "cuda"):
    try:
        with exact(torch.device(kind)):
            inside = found()[: 3 if kind == "cpu" else None]  # a CPU has no need of cuDNN's
            assert set(inside) <= {{"ieee", "none"}}, inside
            assert torch.get_float32_matmul_precision() == "highest"
            assert kind == "cpu" or not torch.backends.cudnn.allow_tf32
            with exact(torch.device(kind)):
                pass
            assert found()[: len(inside)] == inside
            raise KeyError
    except KeyError:
        pass
    assert found() == before, (found(), before)
if {way!r} == "medium":
    assert torch.get_float32_matmul_precision() == {way!r}
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_last_thread_restores_what_the_first_one_found():
    torch.set_float32_matmul_precision("medium")
    inside, leave = threading.Event(), threading.Event()

    def other():
        with exact(torch.device("cpu")):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    try:
        with exact(torch.device("cpu")):
            thread.start()
            assert inside.wait(30)
        assert torch.get_float32_matmul_precision() == "highest"  # the other one still needs it
        leave.set()
        thread.join(30)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        leave.set()
        torch.set_float32_matmul_precision("highest")


def test_a_c_whose_square_vanishes_is_refused():
    with pytest.raises(ValueError, match=r"max_grad_norm=1e-20 is too small"):
        private(nn.Linear(2, 2), max_grad_norm=1e-20, noise_multiplier=1e3)
    assert row_norms(torch.full((1, 3), 1e-15)) > 0  # what is allowed can be measured


def _in_half_of_the_positions(T, width, large):
    """Gradients of T positions: a few large elements that cancel over them, and many small ones that do not."""
    g = torch.zeros(1, T, width)
    g[0, : T // 2] = 2**-12.02
    g[0, : T // 2, :large], g[0, T // 2 :, :large] = 1, -1
    return g


@pytest.mark.parametrize(
    ("model", "x", "T", "width", "large"),
    [
        (nn.Linear(16, 16384, bias=False), 100 * torch.ones(1, 4, 16), 4, 16384, 4),
        (nn.Linear(64, 1024, bias=False), 100 * torch.ones(1, 2, 64), 2, 1024, 8),
        (nn.Embedding(50, 16384), torch.full((1, 4), 7), 4, 16384, 4),
        (nn.Conv1d(64, 2048, 1, bias=False), 100 * torch.ones(1, 64, 2), 2, 2048, 8),
    ],
    ids=["wide", "two positions", "embedding", "convolution"],
)
def test_what_long_products_lose_does_not_escape_the_bound(model, x, T, width, large):
    """A small square beside a large sum is lost every time; the large ones cancel, and only the lost part is left."""
    grad = private(model, max_grad_norm=1.0, expected_batch_size=1, loss=lambda out, y: (out * y).flatten(1).sum(1))
    g = _in_half_of_the_positions(T, width, large) * (128 if isinstance(model, nn.Embedding) else 1)
    grad.backward(x, g.mT if isinstance(model, nn.Conv1d) else g)
    assert float(model.weight.grad.double().norm()) <= 1 + 1e-3


@pytest.mark.parametrize(("clipping", "C"), [("flat", 1e-3), ("automatic", 1.0)])
def test_squares_that_vanish_do_not_escape_the_bound(clipping, C):
    """Inputs so small that their squares are 0, and labels so large that the gradient is not."""
    model = nn.Linear(10_000, 1, bias=False)
    grad = private(
        model, max_grad_norm=C, expected_batch_size=1, clipping=clipping, loss=lambda out, y: (out[:, 0] - y) ** 2
    )
    grad.backward(torch.full((1, 10_000), 2e-23), torch.full((1,), 5e18))
    assert float(model.weight.grad.double().norm()) <= C * (1 + 1e-3)


def test_norms_of_long_rows():
    """Ones after a large element are not lost."""
    rows = torch.ones(2, 3 * 10**6)
    rows[:, ::4096] = 3000.0
    assert torch.allclose(row_norms(rows).double(), rows.double().norm(dim=1), rtol=1e-5)
    assert torch.allclose(row_norms(rows[:, :5000]).double(), rows[:, :5000].double().norm(dim=1), rtol=1e-5)

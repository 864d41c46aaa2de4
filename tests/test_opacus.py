"""ADADP as the inner optimizer of Opacus, in every mode: phase, lr and accounting as without it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from adadp.optimizer import ADADP

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Expected last_epoch"),
]
MODES = ["hooks", "functorch", "ew", "ghost"]
N, BATCH, STEPS = 24, 8, 7  # an odd number of gradients, three an epoch: the phase must survive the end of an epoch


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, 6, generator=generator), torch.randint(0, 3, (N,), generator=generator)


def wrapped(mode, **settings):
    """A network, ADADP and a criterion, made private by Opacus."""
    opacus = pytest.importorskip("opacus")
    engine, model = opacus.PrivacyEngine(), network()
    optimizer = ADADP(model.parameters(), lr=0.2, tol=0.05)
    parts = engine.make_private(
        module=model, optimizer=optimizer, criterion=nn.CrossEntropyLoss(), grad_sample_mode=mode,
        poisson_sampling=False,
        data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=BATCH), **settings,
    )  # fmt: skip
    criterion = parts[2] if mode == "ghost" else nn.CrossEntropyLoss()
    return engine, parts[0], parts[1], criterion, optimizer


def batches():
    x, y = data()
    for k in range(STEPS):
        part = torch.arange(k * BATCH, (k + 1) * BATCH) % N
        yield x[part], y[part]


@pytest.mark.parametrize("mode", MODES)
def test_without_noise_and_clipping_it_is_plain_adadp(mode):
    _, model, optimizer, criterion, inner = wrapped(mode, noise_multiplier=0.0, max_grad_norm=1e6)
    twin = network()
    plain = ADADP(twin.parameters(), lr=0.2, tol=0.05)
    for x, y in batches():
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        plain.zero_grad()
        F.cross_entropy(twin(x), y).backward()
        plain.step()
        assert inner.phase == plain.phase
        assert optimizer.param_groups[0]["lr"] == pytest.approx(plain.param_groups[0]["lr"], rel=1e-4)
    assert inner.param_groups[0]["lr"] != 0.2
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_two_gradients_an_iteration_are_accounted(mode):
    engine, model, optimizer, criterion, inner = wrapped(mode, noise_multiplier=1.0, max_grad_norm=1.0)
    for x, y in batches():
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    history = engine.accountant.history
    assert sum(steps for _, _, steps in history) == STEPS
    assert all(sigma == 1.0 and rate == pytest.approx(BATCH / N) for sigma, rate, _ in history)
    assert inner.accepted + inner.discarded == STEPS // 2
    assert inner.phase == STEPS % 2


def test_the_state_of_the_inner_optimizer_goes_through():
    _, model, optimizer, criterion, inner = wrapped("hooks", noise_multiplier=1.0, max_grad_norm=1.0)
    x, y = next(batches())
    criterion(model(x), y).backward()
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    _, _, other, _, other_inner = wrapped("hooks", noise_multiplier=1.0, max_grad_norm=1.0)
    other.load_state_dict(state)
    assert other_inner.phase == inner.phase == 1

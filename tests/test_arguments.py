"""Everything private refuses what is no number, by name, when it is made or called and not later."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import adadp
from adadp.auditing import audit_epsilon, audit_noise, audit_one_run, audit_releases, audit_sensitivity, run_audit
from adadp.privacy import MomentsAccountant, PoissonSampling, PrivateGradient, ShuffledPartition, arguments
from adadp.privacy.sampling import padded
from adadp.training import AdaptThenDecay

NO_NUMBER = [math.nan, -math.inf, -1.0, -1, "1", "", None, True, False, [1.0], (1,), {}, 1j, np.nan, np.bool_(True),
             object(), b"1", torch.tensor(1.0), np.array([1.0])]  # fmt: skip
INFINITE = [math.inf, np.inf, 10**400]
NO_COUNT = [*NO_NUMBER, *INFINITE[:2], 2.0, 2.5, np.float64(2), Fraction(5, 2)]


def private(**changes):
    good = {"max_grad_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 4}
    return PrivateGradient(nn.Linear(2, 2), **{**good, **changes})


def poisson(**changes):
    return PoissonSampling(**{"sample_rate": 0.1, "steps": 3, **changes})


def shuffled(**changes):
    return ShuffledPartition(**{"batch_size": 2, "epochs": 3, **changes})


def drawn(make, **changes):
    return make().batches(**{"num_examples": 4, "start": 0, **changes})


def decay(**changes):
    return AdaptThenDecay(**{"epochs": 2, "decay": 0.1, **changes})


def training(**changes):
    model, labels = nn.Linear(2, 2), torch.arange(8) % 2
    data = adadp.data.Dataset(torch.randn(8, 2), labels, torch.randn(8, 2), labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return adadp.train(model, data, optimizer, sampling=poisson(steps=1), progress=False, **changes)


REALS = [  # what is made or called, argument, further values out of its range
    (private, "max_grad_norm", [0, 0.0]),
    (private, "noise_multiplier", [1e-13, 1e101]),
    (private, "expected_batch_size", [0]),
    (poisson, "sample_rate", [0, 1.1, 2]),
    (decay, "decay", []),
    (training, "delta", [0, 1, 0.0, 1.0]),
    (audit_sensitivity, "max_grad_norm", [0]),
    (audit_sensitivity, "noise_multiplier", []),
    (audit_noise, "noise_multiplier", [0]),
    (audit_noise, "expected_batch_size", [0]),
    (audit_noise, "confidence", [0, 1]),
    (audit_releases, "delta", [0, 1]),
    (audit_releases, "noise_multiplier", [0]),
    (audit_one_run, "confidence", [0, 1]),
    (audit_epsilon, "noise_multiplier", [0]),
    (run_audit, "delta", [0, 1]),
    (run_audit, "max_grad_norm", [0]),
]
COUNTS = [
    (private, "max_physical_batch_size", [0]),
    (poisson, "steps", []),
    (shuffled, "batch_size", [0]),
    (shuffled, "epochs", []),
    (decay, "epochs", [0]),
    (training, "evaluate_every", [0]),
    (lambda **k: drawn(poisson, **k), "num_examples", [0]),
    (lambda **k: drawn(poisson, **k), "start", []),
    (lambda **k: drawn(shuffled, **k), "num_examples", [0]),
    (lambda **k: drawn(shuffled, **k), "start", []),
    (lambda **k: padded([], **k), "size", [0]),
    (audit_sensitivity, "trials", [0]),
    (audit_sensitivity, "seed", []),
    (audit_noise, "seed", []),
    (audit_releases, "observations", [0, 9]),
    (audit_releases, "seed", []),
    (audit_one_run, "canaries", [0, 9]),
    (audit_one_run, "steps", [0]),
    (audit_one_run, "seed", []),
    (audit_epsilon, "observations", [0]),
    (run_audit, "observations", [0]),
    (run_audit, "seed", []),
]
ALLOWED = {("max_grad_norm", private): [math.inf, np.inf], ("max_physical_batch_size", private): [None],
           ("observations", run_audit): [None]}  # fmt: skip


def _check(make, name, values):
    allowed = [id(v) for v in ALLOWED.get((name, make), [])]
    for value in values:
        if id(value) not in allowed:
            with pytest.raises(ValueError, match=name):
                make(**{name: value})


@pytest.mark.parametrize(("make", "name", "further"), REALS)
def test_what_is_no_number_in_range_is_refused(make, name, further):
    _check(make, name, [*NO_NUMBER, *INFINITE, *further])


@pytest.mark.parametrize(("make", "name", "further"), COUNTS)
def test_what_is_no_count_is_refused(make, name, further):
    _check(make, name, [*NO_COUNT, *further])


@pytest.mark.parametrize("name", ["quick", "one_run", "strict"])
@pytest.mark.parametrize("value", [0, 1, "no", None, 0.0])
def test_flags_are_true_or_false(name, value):
    with pytest.raises(ValueError, match=name):
        run_audit(**{name: value})


@pytest.mark.parametrize("value", ["soft", "", None, 1, ["flat"], {"flat"}, True])
def test_clipping_is_a_name_or_a_function(value):
    with pytest.raises(ValueError, match="clipping"):
        private(clipping=value)


@pytest.mark.parametrize("value", ["gdp", None, 1, ["pld"]])
def test_the_accountant_of_a_training_is_checked_even_without_noise(value):
    with pytest.raises(ValueError, match="accountant"):
        training(accountant=value)


@pytest.mark.parametrize(("name", "value"), [("loss", None), ("loss", "mse"), ("generator", 0), ("generator", "cpu")])
def test_things_of_another_kind_are_refused_when_it_is_made(name, value):
    with pytest.raises(TypeError, match=name):
        private(**{name: value})


def test_a_model_is_a_module():
    with pytest.raises(TypeError, match="model"):
        PrivateGradient([1], max_grad_norm=1.0, noise_multiplier=1.0, expected_batch_size=1)


@pytest.mark.parametrize("make", [poisson, shuffled])
def test_batches_take_a_generator_of_torch(make):
    with pytest.raises(TypeError, match="generator"):
        drawn(make, generator=np.random.default_rng(0))


@pytest.mark.parametrize("audit", [audit_sensitivity, audit_noise, audit_releases, audit_one_run, run_audit])
def test_a_gradient_to_audit_can_be_called(audit):
    with pytest.raises(TypeError, match="gradient"):
        audit(3)


def test_what_is_audited_comes_complete():
    model, x, y = nn.Linear(2, 2), torch.randn(8, 2), torch.arange(8) % 2
    for incomplete in ({"model": model}, {"model": model, "x": x}, {"x": x, "y": y}, {"model": model, "x": x, "y": 3}):
        with pytest.raises(TypeError, match="model, x and y"):
            audit_sensitivity(**incomplete)
    with pytest.raises(ValueError, match="same number"):
        audit_noise(model=model, x=x, y=y[:-1])


@pytest.mark.parametrize(
    "changes",
    [{"max_grad_norm": 1e-31}, {"max_grad_norm": 1e31}, {"expected_batch_size": 1e31}, {"noise_multiplier": 1e90}],
)
def test_noise_that_single_precision_cannot_hold_is_refused(changes):
    with pytest.raises(ValueError, match="single precision"):
        private(**changes)
    assert private(**{**changes, "noise_multiplier": 0}).noise_multiplier == 0


def test_numbers_of_other_kinds_are_numbers():
    sampling = PoissonSampling(np.float32(0.5), np.int64(3))
    assert sampling == PoissonSampling(0.5, 3) and type(sampling.steps) is int
    assert ShuffledPartition(np.int32(2), np.uint8(3)) == ShuffledPartition(2, 3)
    gradient = private(max_grad_norm=Fraction(1, 2), noise_multiplier=np.float32(0.5), expected_batch_size=np.int64(3))
    assert (gradient.max_grad_norm, gradient.noise_multiplier, gradient.expected_batch_size) == (0.5, 0.5, 3.0)
    assert arguments.flag("quick", np.bool_(False)) is False


def test_the_moments_accountant_refuses_before_it_counts():
    accountant = MomentsAccountant()
    for name in ("noise_multiplier", "sample_rate", "num_steps"):
        for value in NO_COUNT if name == "num_steps" else [*NO_NUMBER, *INFINITE]:
            with pytest.raises(ValueError, match=name):
                accountant.step(**{"noise_multiplier": 1.0, "sample_rate": 0.1, "num_steps": 1, name: value})
    assert accountant.steps == 0

"""The law of the learning rate: bounds, exactness for floats and tensors, and where it settles."""

import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadp import VARIANTS, predicted_lr, suggested_tol
from adadp.figures.noise_analysis import noise_per_weight
from adadp.step_size import Controller

ERRORS = st.floats(min_value=0) | st.just(math.nan)
LAWS = st.builds(
    Controller,
    tol=st.floats(1e-6, 1e6),
    alpha_min=st.floats(0.01, 1),
    alpha_max=st.floats(1, 100),
    exponent=st.floats(0.1, 3),
    discard=st.booleans(),
)
SETTLED = {"tol": 1.0, "noise_multiplier": 2.0, "max_grad_norm": 10.0, "num_parameters": 334336}


@pytest.mark.parametrize(
    ("error", "exponent", "factor"),
    [
        (1.0, 1.0, 1.0),
        (0.5, 1.0, 1.1),
        (2.0, 1.0, 0.9),
        (1.05, 1.0, 1 / 1.05),
        (1.05, 0.5, 1.05**-0.5),
        (0.0, 1.0, 1.1),
        (5e-324, 2.0, 1.1),
        (1e308, 1.0, 0.9),
        (math.inf, 1.0, 0.9),
        (math.nan, 1.0, 0.9),
    ],
)
def test_factor(error, exponent, factor):
    law = Controller(exponent=exponent)
    assert law.factor(error) == factor
    assert law.factor(torch.tensor(error, dtype=torch.float64)).item() == pytest.approx(factor, rel=1e-15)


@given(LAWS, ERRORS)
def test_factor_is_within_its_bounds(law, error):
    assert law.alpha_min <= law.factor(error) <= law.alpha_max


@given(LAWS, ERRORS)
def test_tensors_and_floats_agree(law, error):
    keep, lr = law(error, 0.25)
    tensor_keep, tensor_lr = law(torch.tensor(error, dtype=torch.float64), torch.tensor(0.25, dtype=torch.float64))
    assert tensor_keep.item() is keep
    assert tensor_lr.item() == pytest.approx(lr, rel=1e-12)


@given(LAWS, ERRORS, ERRORS)
def test_a_larger_error_never_gives_a_larger_lr(law, one, other):
    if one <= other:
        assert law.factor(one) >= law.factor(other)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_kept(bad):
    for discard in (True, False):
        assert not Controller(discard=discard).accepts(bad)
        assert not Controller(discard=discard).accepts(torch.tensor(bad))


def test_discarding_starts_above_tol():
    law = Controller(tol=0.5, discard=True)
    assert law.accepts(0.5)
    assert not law.accepts(math.nextafter(0.5, 1))
    assert Controller(tol=0.5).accepts(100.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, bad)
            for name in ("tol", "exponent")
            for bad in (0, -1.0, math.nan, math.inf, "1", None, True, 10**400)
        ],
        *[("alpha_min", bad) for bad in (0, -0.1, 1.01, math.nan, "0.9")],
        *[("alpha_max", bad) for bad in (0.99, math.inf, math.nan, None)],
        ("discard", 1),
    ],
)
def test_bad_arguments_are_named(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        Controller(**{name: value})


def test_predicted_lr():
    assert predicted_lr(**SETTLED, expected_batch_size=1) == pytest.approx(math.sqrt(2 / 334336) / 20)
    assert predicted_lr(**SETTLED, expected_batch_size=200) == pytest.approx(200 * math.sqrt(2 / 334336) / 20)


@pytest.mark.parametrize("name", [*SETTLED, "expected_batch_size"])
@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, None, "2"])
def test_predicted_lr_names_bad_arguments(name, bad):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        predicted_lr(**{**SETTLED, "expected_batch_size": 200, name: bad})


def test_suggested_tol_leaves_the_noise_of_the_recommended_variant():
    recommended = VARIANTS["recommended"]
    size = {"num_parameters": 334_336}
    assert suggested_tol(steps=30_000, **size) == recommended["tol"]
    noise = noise_per_weight(15_000, tol=recommended["tol"], advance=recommended["advance"], **size)
    for steps, parameters in ((200, 334_336), (30_000, 1_000_000), (7, 12.0)):
        tol = suggested_tol(steps=steps, num_parameters=parameters)
        left = noise_per_weight(steps / 2, tol=tol, num_parameters=parameters, advance=recommended["advance"])
        assert left == pytest.approx(float(noise))


@pytest.mark.parametrize("name", ["steps", "num_parameters"])
@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, None, "2"])
def test_suggested_tol_names_bad_arguments(name, bad):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        suggested_tol(**{"steps": 10, "num_parameters": 10, name: bad})


def test_every_argument_is_documented():
    for thing in (Controller, predicted_lr, suggested_tol):
        text = inspect.getdoc(thing).split("Args:")[1].split("\n\n")[0]
        documented = [
            line.split(":")[0].strip() for line in text.splitlines() if line.startswith(4 * " ") and ":" in line
        ]
        assert [name for name in documented if " " not in name] == list(inspect.signature(thing).parameters)

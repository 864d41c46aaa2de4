"""Clip factors: one promise a test."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadp.privacy.clipping import check_clipping, clip_factors

NORMS = st.lists(st.floats(0, 1e6, width=32), min_size=0, max_size=8)
CALLABLES = {
    "flat": "flat",
    "automatic": "automatic",
    "ones": torch.ones_like,
    "huge": lambda norms: norms + 1e9,
    "negative": lambda norms: norms - 1e9,
    "nan": lambda norms: norms * math.nan,
    "inf": lambda norms: norms + math.inf,
}


@pytest.mark.parametrize("name", CALLABLES)
@given(norms=NORMS, c=st.floats(1e-3, 1e3))
def test_clipped_norm_is_at_most_c(name, norms, c):
    norms = torch.tensor(norms)
    factors = clip_factors(CALLABLES[name], norms, c)
    assert factors.shape == norms.shape
    assert torch.isfinite(factors).all() or name == "ones"
    assert (factors >= 0).all()
    assert (factors * norms <= c * (1 + 1e-6)).all()


def test_flat_leaves_short_gradients_alone_and_cuts_long_ones_to_c():
    factors = clip_factors("flat", torch.tensor([0.0, 0.5, 1.0, 4.0]), 1.0)
    assert factors.tolist() == [1.0, 1.0, 1.0, 0.25]


def test_automatic_brings_every_gradient_near_c():
    norms = torch.tensor([0.1, 1.0, 1e4])
    assert torch.allclose(clip_factors("automatic", norms, 2.0), 2.0 / (norms + 0.01))


@pytest.mark.parametrize("clipping", ["flat", "automatic", torch.ones_like], ids=["flat", "automatic", "callable"])
def test_non_finite_norms_get_zero(clipping):
    norms = torch.tensor([math.nan, math.inf, 1.0])
    assert clip_factors(clipping, norms, 1.0)[:2].tolist() == [0.0, 0.0]


def test_an_infinite_c_clips_nothing():
    norms = torch.tensor([0.0, 1.0, 1e30])
    assert clip_factors("flat", norms, math.inf).tolist() == [1.0, 1.0, 1.0]
    assert clip_factors(lambda n: n * 0 + 0.5, norms, math.inf).tolist() == [0.5, 0.5, 0.5]


def test_a_callable_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"clipping.*one factor an example"):
        clip_factors(lambda norms: norms.sum(), torch.ones(3), 1.0)


@pytest.mark.parametrize(
    ("clipping", "c", "named"),
    [
        ("soft", 1.0, "clipping"),
        (None, 1.0, "clipping"),
        ("flat", 0.0, "max_grad_norm"),
        ("flat", -1.0, "max_grad_norm"),
        ("flat", math.nan, "max_grad_norm"),
        ("automatic", math.inf, "max_grad_norm"),
    ],
)
def test_bad_arguments_are_named(clipping, c, named):
    with pytest.raises(ValueError, match=named):
        check_clipping(clipping, c)


def test_a_callable_may_overwrite_the_norms_it_gets():
    norms = torch.tensor([100.0, 0.5])
    factors = clip_factors(lambda n: n.clamp_(max=1.0), norms, 1.0)
    assert norms.tolist() == [100.0, 0.5] and factors.tolist() == [pytest.approx(0.01), 0.5]


@pytest.mark.parametrize("statistic", [torch.max, torch.mean, torch.median], ids=lambda f: f.__name__)
def test_a_callable_that_looks_at_several_norms_is_refused(statistic):
    for norms in (torch.tensor([1e-3, 1e-3, 1.0]), torch.tensor([1.0, 1e-3])):
        with pytest.raises(ValueError, match="whatever the other norms are"):
            clip_factors(lambda n: (0.1 / statistic(n)).expand_as(n), norms, 1.0)
    assert clip_factors(lambda n: (0.1 / statistic(n)).expand_as(n), torch.tensor([2.0]), 1.0).tolist() == [
        pytest.approx(0.05)
    ]

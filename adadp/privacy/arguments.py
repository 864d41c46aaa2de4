"""Checks of the arguments of everything private: a wrong one is refused by name, never computed with."""

import math
from numbers import Integral, Real

import numpy as np

ACCOUNTANTS = ("moments", "rdp", "pld")
NEIGHBORS = ("add_remove", "replace_one")


def real(name: str, value, *, low: float = 0.0, high: float = math.inf, open_low=False, open_high=False) -> float:
    """``value`` as a float inside the interval; bools, strings, nan and infinity are refused.

    Raises:
        ValueError: naming ``name`` and the interval.

    >>> real("delta", 1e-5, high=1.0, open_low=True, open_high=True)
    1e-05
    >>> real("noise_multiplier", float("nan"))
    Traceback (most recent call last):
    ValueError: noise_multiplier must be a finite number >= 0, got nan
    """
    bounds = f"{'>' if open_low else '>='} {low:g}"
    if high != math.inf:
        bounds += f" and {'<' if open_high else '<='} {high:g}"
    good = isinstance(value, Real) and not isinstance(value, (bool, np.bool_)) and _is_finite(value)
    if good:
        good = (value > low if open_low else value >= low) and (value < high if open_high else value <= high)
    if not good:
        raise ValueError(f"{name} must be a finite number {bounds}, got {value!r}")
    return float(value)


def _is_finite(value: Real) -> bool:
    """Whether a number has a finite float beside it; an integer beyond every float has none."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def count(name: str, value, *, low: int = 0) -> int:
    """``value`` as an int of at least ``low``; 3.0 and True are refused.

    Raises:
        ValueError: naming ``name``.
    """
    if not isinstance(value, Integral) or isinstance(value, (bool, np.bool_)) or value < low:
        raise ValueError(f"{name} must be a whole number >= {low}, got {value!r}")
    return int(value)


def choice(name: str, value, options: tuple[str, ...]) -> str:
    """``value`` if it is one of ``options``.

    Raises:
        ValueError: naming ``name`` and the options.
    """
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}")
    return value


def flag(name: str, value) -> bool:
    """``value`` if it is True or False; 1 and "no" are refused.

    Raises:
        ValueError: naming ``name``.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def words(name: str, value) -> str:
    """``value`` if it is a text that says something.

    Raises:
        ValueError: naming ``name``.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a description in words, got {value!r}")
    return value


def function(name: str, value, does: str):
    """``value`` if it can be called; ``does`` says what it is called for.

    Raises:
        TypeError: naming ``name``.
    """
    if not callable(value):
        raise TypeError(f"{name} must be a function {does}, got {type(value).__name__}")
    return value


def max_grad_norm(value) -> float:
    """C: above 0; infinity is allowed and means no clipping."""
    return math.inf if isinstance(value, float) and value == math.inf else real("max_grad_norm", value, open_low=True)


def noise_multiplier(value) -> float:
    """sigma: 0, or between 1e-12 and 1e100; beyond, its square leaves the range of floats."""
    sigma = real("noise_multiplier", value)
    if sigma and not 1e-12 <= sigma <= 1e100:
        raise ValueError(f"noise_multiplier must be 0 or between 1e-12 and 1e100, got {value!r}")
    return sigma


def sample_rate(value) -> float:
    """q: between 0 and 1, both allowed."""
    return real("sample_rate", value, high=1.0)


def delta(value) -> float:
    """delta: strictly between 0 and 1."""
    return real("delta", value, high=1.0, open_low=True, open_high=True)


def noise_scale(C: float, sigma: float, E: float) -> None:
    """Refuse noise that single precision cannot hold: it would come out as none, or as infinite."""
    if sigma > 0 and math.isinf(C):
        raise ValueError(
            "max_grad_norm must be finite when there is noise: its scale is max_grad_norm * noise_multiplier"
        )
    if sigma > 0 and C < 1e-15:
        raise ValueError(
            f"max_grad_norm={C:g} is too small: the squares of norms near it vanish in single precision, and nothing "
            "would be clipped; bring it nearer to 1"
        )
    if sigma > 0 and not 1e-30 < C * sigma / E < 1e30:
        raise ValueError(
            f"max_grad_norm={C:g} with noise_multiplier={sigma:g} and expected_batch_size={E:g} makes noise of "
            f"{C * sigma / E:g}, which single precision cannot hold; bring max_grad_norm nearer to 1"
        )

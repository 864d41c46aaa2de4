"""Numbers in print: short, and on the safe side."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadp.rounding import round_down, round_up

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12)


@given(NUMBERS, st.integers(1, 8))
def test_up_is_not_below_and_down_not_above_and_both_are_near(value, digits):
    up, down = float(round_up(value, digits)), float(round_down(value, digits))
    assert down <= value <= up
    assert up - down <= 10.0 ** (1 - digits) * max(abs(up), abs(down)) * (1 + 1e-9)


@given(NUMBERS, st.integers(0, 6))
def test_decimals_are_as_many_as_asked_for(value, decimals):
    text = round_up(value, decimals=decimals)
    assert len(text.partition(".")[2]) == decimals
    assert value <= float(text) <= value + 10.0**-decimals + 1e-9 * abs(value)


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [(1.536102, "1.54", "1.53"), (0.1, "0.1", "0.1"), (0.0, "0", "0"), (9.999, "10", "9.99"), (1e-5, "1e-5", "1e-5"),
     (1.0, "1", "1"), (math.inf, "inf", "inf"), (12345, "12400", "12300"), (-0.1234, "-0.123", "-0.124")],
)  # fmt: skip
def test_numbers_read_well(value, up, down):
    assert (round_up(value), round_down(value)) == (up, down)


def test_nan_is_named():
    assert round_up(math.nan) == "nan"

"""Numbers as text without saying too little: an upper bound is rounded up, a lower bound down."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def round_up(value: float, digits: int = 3, *, decimals: int | None = None) -> str:
    """The smallest short number that is not below ``value``: every epsilon that is printed goes through here.

    Args:
        value: any number; infinity and nan are named.
        digits: significant digits.
        decimals: digits after the point instead.

    >>> round_up(1.5311), round_up(0.1), round_up(12345.0), round_up(1.5311, decimals=1)
    ('1.54', '0.1', '12400', '1.6')
    """
    return _rounded(value, digits, decimals, ROUND_CEILING)


def round_down(value: float, digits: int = 3, *, decimals: int | None = None) -> str:
    """The largest short number that is not above ``value``, for what is *at least* so large; as :func:`round_up`.

    >>> round_down(3.6489), round_down(0.19951, decimals=2)
    ('3.64', '0.19')
    """
    return _rounded(value, digits, decimals, ROUND_FLOOR)


def _rounded(value: float, digits: int, decimals: int | None, direction: str) -> str:
    """Exact decimal rounding of the shortest text that names the float (so 0.1 is a tenth, not a little more)."""
    value = float(value)
    if not math.isfinite(value):
        return f"{value:g}"
    exact = Decimal(repr(value))
    last = -decimals if decimals is not None else (exact.adjusted() - digits + 1 if value else 0)
    rounded = exact.quantize(Decimal(1).scaleb(last), rounding=direction)
    if decimals is not None:
        return f"{rounded:f}"
    shown = rounded.normalize()
    return f"{shown:f}" if rounded == 0 or 1e-4 <= abs(rounded) < 1e6 else f"{shown:e}"

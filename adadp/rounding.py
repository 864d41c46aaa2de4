"""Numbers as text: as people write them, differences with their sign, and bounds that never say too little."""

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


def number(value: float, digits: int = 3) -> str:
    """A number as people write it: 0.001, 1200, 3 × 10⁻⁵.

    >>> number(0.00316), number(1e-5), number(20000)
    ('0.00316', '10⁻⁵', '20000')
    """
    text = f"{value:.{digits}g}"
    if 1e-4 < abs(value) < 1e6 or value == 0 or not abs(value) < float("inf"):
        text = f"{float(text):.10f}".rstrip("0").rstrip(".") if abs(value) < 1e6 else text
        return text.replace("-", "−")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return (power if mantissa == "1" else f"{mantissa} × {power}").replace("-", "−")


def signed(value: float, decimals: int = 1) -> str:
    """A difference with its sign; one that rounds to nothing is not negative.

    >>> signed(1.25), signed(-0.04), signed(-3)
    ('+1.2', '+0.0', '−3.0')
    """
    return f"{round(value, decimals) + 0.0:+.{decimals}f}".replace("-", "−")


def points(low: float, high: float) -> str:
    """Where a range of differences lies, in words.

    Args:
        low, high: smallest and largest difference, in points.

    >>> points(-12.1, -10.4), points(0.52, 0.68), points(-0.2, 0.4)
    ('10.4 to 12.1 points below', '0.5 to 0.7 points above', '0.2 points below to 0.4 above')
    >>> points(0.3, 0.3), points(-0.04, 0.01)
    ('0.3 points above', 'level')
    """
    low, high = (round(value, 1) + 0.0 for value in (low, high))
    if low < 0 < high:
        return f"{-low:.1f} points below to {high:.1f} above"
    near, far = sorted((abs(low), abs(high)))
    if not far:
        return "level"
    extent = f"{near:.1f} to {far:.1f}" if near < far else f"{far:.1f}"
    return f"{extent} points {'below' if low < 0 else 'above'}"


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

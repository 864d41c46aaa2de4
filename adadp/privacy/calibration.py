"""From a target epsilon back to the noise."""

import math

from scipy.optimize import brentq

from adadp.privacy import arguments
from adadp.privacy.composition import check_accountant, checked_epsilon

_XTOL = 2e-7  # of log(noise multiplier): between two of its orders RDP can change a thousand times faster


def calibrate_noise_multiplier(
    *,
    target_epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: str = "pld",
    neighbors: str = "add_remove",
) -> float:
    """The smallest noise multiplier found whose epsilon does not exceed ``target_epsilon``.

    Guarantees: ``epsilon(noise_multiplier=result, ...) <= target_epsilon`` for the same arguments, and within 0.1 %
    of the target where epsilon is continuous there.

    Args:
        target_epsilon: > 0.
        delta, sample_rate, steps, neighbors: as for :func:`epsilon`.
        accountant: as for :func:`epsilon`, but "pld" by default, which needs the least noise; :func:`epsilon` and
            :func:`adadp.train` take "moments" and show more than ``target_epsilon`` unless they are given "pld" too.
    Returns:
        sigma; 0.0 if nothing is released (``sample_rate`` or ``steps`` 0).
    Raises:
        ValueError: naming the argument; also if no reasonable noise reaches the target, with the reason, or if
            ``delta`` is not below 1 - (1 - sample_rate)**steps, the chance that a record is in any batch: without any
            noise every epsilon then holds, because delta allows a record that is drawn to be released as it is.

    >>> sigma = calibrate_noise_multiplier(target_epsilon=1.0, delta=1e-5, sample_rate=0.01, steps=1000)
    >>> from adadp.privacy.composition import epsilon
    >>> round(epsilon(noise_multiplier=sigma, delta=1e-5, sample_rate=0.01, steps=1000, accountant="pld"), 2)
    1.0
    """
    target = arguments.real("target_epsilon", target_epsilon, open_low=True)
    q, steps, delta = arguments.sample_rate(sample_rate), arguments.count("steps", steps), arguments.delta(delta)
    check_accountant(accountant, neighbors)
    if steps == 0 or q == 0:
        return 0.0
    _check_delta(delta, q, steps)

    def gap(log_sigma: float) -> float:
        """log(epsilon / target), bounded so that 0 and infinity are usable signs."""
        value = checked_epsilon(((math.exp(log_sigma), q, steps),), delta, accountant, neighbors)
        return min(max(math.log(value / target), -50.0), 50.0) if value > 0 else -50.0

    plain = max(q * math.sqrt(2 * steps * math.log(1 / delta)) / target, 0.3)  # about right where epsilon is small
    try:
        start = _guess(target, delta, q, steps, neighbors, plain) if accountant == "pld" else plain
        low, high = _bracket(gap, math.log(start), math.log(1e3 * plain))
    except OverflowError as error:
        raise ValueError(
            f"target_epsilon={target:g} is too extreme for accountant={accountant!r}: "
            "its numbers leave the range of floats"
        ) from error
    if high is None:
        floor = f": with orders up to 32 it cannot fall below {-math.log(delta) / 32:.3g}" * (accountant == "moments")
        raise ValueError(
            f"target_epsilon={target:g} is out of reach of accountant={accountant!r} at delta={delta:g}, whatever the "
            f"noise{floor}; use accountant='pld' or a larger target"
        )
    if low is None:
        raise ValueError(f"target_epsilon={target:g} is too large: it needs hardly any noise (a multiplier below 1e-9)")
    root = brentq(gap, low, high, xtol=_XTOL, rtol=1e-12)
    nudge = 0.0  # the root is only known to xtol: go to the side that keeps the promise
    while root + nudge < high and gap(root + nudge) > 0:
        nudge = max(_XTOL, 3 * nudge)
    return math.exp(min(root + nudge, high))


def _check_delta(delta: float, q: float, steps: int) -> None:
    """Refuse a delta that allows what noise is there to prevent.

    Raises:
        ValueError: a record is in no batch at all with probability 1 - delta or more, so that no noise is needed.
    """
    drawn = -math.expm1(steps * math.log1p(-q)) if q < 1 else 1.0
    if delta * (1 + 1e-9) >= drawn:
        raise ValueError(
            f"delta={delta:g} is not below {drawn:.3g}, the chance that a record is in a batch at all: every epsilon "
            "then holds without noise, and protects nobody; take a delta well below 1 / (number of records)"
        )


def _guess(target: float, delta: float, q: float, steps: int, neighbors: str, plain: float) -> float:
    """A first noise multiplier for PLD: RDP's answer is near it and cheap, where RDP has one."""
    try:
        by_rdp = calibrate_noise_multiplier(
            target_epsilon=target, delta=delta, sample_rate=q, steps=steps, accountant="rdp"
        )
    except ValueError:
        return plain
    return min(by_rdp, 3 * plain) * (2 if neighbors == "replace_one" else 1)


def _bracket(gap, start: float, ceiling: float) -> tuple[float | None, float | None]:
    """Log noise multipliers below and above the root, by growing steps.

    None above: the target is out of reach. None below: every noise that is tried reaches it.
    """
    low = high = start
    width = 0.1
    while gap(high) > 0:
        if high >= ceiling:
            return low, None
        low, high, width = high, min(high + width, ceiling), 2 * width
    width = 0.1
    while gap(low) <= 0:
        if low < math.log(1e-9):
            return None, high
        low, high, width = low - width, low, 2 * width
    return low, high

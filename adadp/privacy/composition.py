"""Epsilon of many releases, equal or in parts that differ, by any of the three accountants."""

import math
from collections.abc import Iterable
from functools import lru_cache

from adadp.privacy import arguments
from adadp.privacy.moments import MomentsAccountant


def epsilon(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    accountant: str = "moments",
    neighbors: str = "add_remove",
) -> float:
    """Epsilon after ``steps`` Poisson-sampled Gaussian releases.

    Args:
        noise_multiplier: sigma, noise standard deviation over clipping norm, >= 0 (0 gives infinity).
        sample_rate: q, probability of every example to be in a batch, in [0, 1] (0 gives 0).
        steps: gradients released, >= 0; an ADADP iteration is two. Not the T of the paper's tol analysis.
        delta: strictly between 0 and 1.
        accountant: "moments" (as in the paper; orders 1..32), "rdp" (tighter) or "pld" (tight, within 1 %). The default
            of :func:`calibrate_noise_multiplier` is "pld": name one for both, or noise that was made for some epsilon
            is given a larger one here.
        neighbors: "add_remove", or "replace_one" (the paper's own definition; "pld" only).
    Returns:
        An upper bound on epsilon.
    Raises:
        ValueError: naming the argument; also for replace_one with "moments" or "rdp", whose formulas are for
            add/remove.

    >>> paper = dict(noise_multiplier=2.0, sample_rate=1 / 300, steps=30_000, delta=1e-5)
    >>> [round(epsilon(**paper, accountant=a), 2) for a in ("moments", "rdp", "pld")]
    [1.54, 1.28, 1.17]
    >>> round(epsilon(**paper, accountant="pld", neighbors="replace_one"), 2)
    2.35

    Reference: Abadi et al. (2016); Mironov, Talwar and Zhang (2019); Doroshenko et al. (2022).
    """
    parts = [(noise_multiplier, sample_rate, steps)]
    return composed_epsilon(parts, delta=delta, accountant=accountant, neighbors=neighbors)


def check_accountant(accountant: str, neighbors: str) -> None:
    """Refuse unknown names, and replace-one where the formulas are for add/remove.

    Raises:
        ValueError: naming the argument.
    """
    arguments.choice("accountant", accountant, arguments.ACCOUNTANTS)
    arguments.choice("neighbors", neighbors, arguments.NEIGHBORS)
    if neighbors == "replace_one" and accountant != "pld":
        raise ValueError(
            f"neighbors='replace_one' is not what accountant={accountant!r} bounds (its formulas are for add/remove, "
            "and would understate epsilon); use accountant='pld'"
        )


def composed_epsilon(
    parts: Iterable[tuple[float, float, int]],
    *,
    delta: float,
    accountant: str = "moments",
    neighbors: str = "add_remove",
) -> float:
    """Epsilon of releases in parts that differ in noise or sampling, all from the same data.

    Args:
        parts: (noise multiplier, sample rate, steps), as for :func:`epsilon`; their order does not matter.
        delta, accountant, neighbors: as for :func:`epsilon`.
    Returns:
        An upper bound on epsilon; that of :func:`epsilon` where all parts are alike.
    Raises:
        ValueError: naming the argument.

    >>> known = dict(delta=1e-5, accountant="rdp")
    >>> once = composed_epsilon([(2.0, 0.01, 100), (2.0, 0.01, 50)], **known)
    >>> once == epsilon(noise_multiplier=2.0, sample_rate=0.01, steps=150, **known)
    True
    >>> composed_epsilon([(2.0, 0.01, 100), (2.0, 0.02, 50)], **known) > once
    True
    """
    delta = arguments.delta(delta)
    check_accountant(accountant, neighbors)
    total: dict[tuple[float, float], int] = {}
    for sigma, q, steps in parts:
        key, steps = (arguments.noise_multiplier(sigma), arguments.sample_rate(q)), arguments.count("steps", steps)
        if q > 0 and steps > 0:
            total[key] = total.get(key, 0) + steps
    if not total:
        return 0.0
    if any(sigma == 0 for sigma, _ in total):
        return math.inf
    merged = tuple((sigma, q, steps) for (sigma, q), steps in total.items())
    return checked_epsilon(merged, delta, accountant, neighbors)


@lru_cache(maxsize=4096)
def checked_epsilon(
    parts: tuple[tuple[float, float, int], ...], delta: float, accountant: str, neighbors: str
) -> float:
    """:func:`composed_epsilon` of checked parts that differ, with sigma, q and steps above 0."""
    if accountant == "moments":
        moments = MomentsAccountant()
        for sigma, q, steps in parts:
            moments.step(noise_multiplier=sigma, sample_rate=q, num_steps=steps)
        return moments.get_epsilon(delta=delta)
    if accountant == "rdp":
        from adadp.privacy.renyi import composed_rdp_epsilon

        return composed_rdp_epsilon(list(parts), delta)
    from adadp.privacy.pld import composed_pld_epsilon, pld_epsilon

    if len(parts) == 1:
        return pld_epsilon(*parts[0], delta, neighbors)
    return composed_pld_epsilon(list(parts), delta, neighbors)

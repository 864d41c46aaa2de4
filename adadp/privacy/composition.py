"""Epsilon of many equal releases, by any of the three accountants."""

import math
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
        accountant: "moments" (the paper's; orders 1..32), "rdp" (tighter) or "pld" (tight, within 1 %).
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
    sigma, q = arguments.noise_multiplier(noise_multiplier), arguments.sample_rate(sample_rate)
    steps, delta = arguments.count("steps", steps), arguments.delta(delta)
    check_accountant(accountant, neighbors)
    if steps == 0 or q == 0:
        return 0.0
    return math.inf if sigma == 0 else checked_epsilon(sigma, q, steps, delta, accountant, neighbors)


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


@lru_cache(maxsize=4096)
def checked_epsilon(sigma: float, q: float, steps: int, delta: float, accountant: str, neighbors: str) -> float:
    """:func:`epsilon` for checked arguments with sigma, q and steps above 0."""
    if accountant == "moments":
        moments = MomentsAccountant()
        moments.step(noise_multiplier=sigma, sample_rate=q, num_steps=steps)
        return moments.get_epsilon(delta=delta)
    if accountant == "rdp":
        from adadp.privacy.renyi import rdp_epsilon

        return rdp_epsilon(sigma, q, steps, delta)
    from adadp.privacy.pld import pld_epsilon

    return pld_epsilon(sigma, q, steps, delta, neighbors)

"""Epsilon by Rényi differential privacy (dp-accounting's), and the price of tuning on the private data."""

import logging
import math
from contextlib import contextmanager

import dp_accounting
import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from adadp.privacy.moments import log_moments


@contextmanager
def _quiet():
    """Keep dp-accounting's remarks about orders it leaves out away: leaving one out only loosens epsilon."""
    logger = logging.getLogger("absl")
    logger.addFilter(_drop)
    try:
        yield
    finally:
        logger.removeFilter(_drop)


def _drop(record: logging.LogRecord) -> bool:
    return record.levelno > logging.WARNING


def _release(sigma: float, q: float, steps: int) -> dp_accounting.DpEvent:
    """``steps`` Poisson-sampled Gaussian releases, described for dp-accounting."""
    return dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)), steps
    )


def renyi_curve(sigma: float, q: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Orders and Rényi divergences of ``steps`` releases.

    A divergence below about 1e-9 is lost to rounding in dp-accounting (it can come out negative, and epsilon as 0).
    There the exact log moments at whole orders take over; in between the log moment is convex: the chord is a bound.
    """
    orders = np.array(rdp.DEFAULT_RDP_ORDERS, dtype=float)
    curve = np.zeros(len(orders))
    if log_moments(sigma, q, (int(orders[-1]) - 1,))[0] > 1e-9:  # else all of them are lost, slowly
        with _quiet():
            accountant = rdp.RdpAccountant()
            accountant.compose(_release(sigma, q, steps))
        curve = accountant.rdp.copy()
    lost = curve * (orders - 1) < 1e-9 * steps
    if lost.any():
        whole = np.unique(np.concatenate([np.floor(orders[lost]) - 1, np.ceil(orders[lost]) - 1])).astype(int)
        whole = whole[whole >= 1]
        exact = steps * log_moments(sigma, q, tuple(whole.tolist()))
        chord = np.interp(orders[lost] - 1, np.append(0, whole), np.append(0.0, exact))
        curve[lost] = chord / (orders[lost] - 1)
    return orders, curve


def rdp_epsilon(sigma: float, q: float, steps: int, delta: float) -> float:
    """Epsilon under add/remove from dp-accounting's default orders, by its tightest conversion."""
    return composed_rdp_epsilon([(sigma, q, steps)], delta)


def composed_rdp_epsilon(parts: list[tuple[float, float, int]], delta: float) -> float:
    """:func:`rdp_epsilon` of parts that differ: their divergences add up, order by order."""
    curves = [renyi_curve(*part) for part in parts]
    with _quiet():
        return float(rdp.compute_epsilon(curves[0][0], sum(curve for _, curve in curves), delta)[0])


def replace_one_epsilon(sigma: float, q: float, steps: int, delta: float) -> float:
    """Epsilon under replace-one from :func:`rdp_epsilon` by group privacy: a removal, then an addition.

    If both are (e, d)-private, the two together are (2e, (1 + exp(e)) d)-private. Loose, and infinite where e is large:
    only for settings that are beyond double precision for PLD.
    """
    guess = 1.01 * rdp_epsilon(sigma, q, steps, delta / 2)
    for _ in range(20):
        if guess > 500:
            break
        once = rdp_epsilon(sigma, q, steps, delta / (1 + math.exp(guess)))
        if once <= guess:
            return 2 * once
        guess = 1.01 * once
    return math.inf


def best_of_epsilon(sigma: float, q: float, steps: int, delta: float, runs: float, shape: float) -> float:
    """Epsilon of the best of a random number of trainings with mean ``runs``; shape 0, 1, inf as in dp-accounting."""
    if runs == 1 and shape != math.inf:  # the truncated distributions then always give 1: an ordinary training
        return rdp_epsilon(sigma, q, steps, delta)
    with _quiet():
        accountant = rdp.RdpAccountant()
        accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(_release(sigma, q, steps), runs, shape))
        return float(accountant.get_epsilon(delta))

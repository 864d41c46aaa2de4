"""What shuffling and partitioning costs: bounds on epsilon from both sides, to be shown beside the Poisson value."""

import math

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr

from adadp.privacy import arguments
from adadp.privacy.composition import epsilon

SAMPLER = "shuffled partition"  # the name of the sampling for which the bounds hold: one batch an epoch has a record


def shuffled_upper_bound(noise_multiplier: float, epochs: int, delta: float) -> float:
    """An upper bound on epsilon after some epochs of shuffled and partitioned batches.

    In an epoch a record is in exactly one batch, whichever that is; all other releases are the same with and without
    it. So an epoch costs at most one Gaussian release without sampling, and epochs compose.

    Guarantees: above the true epsilon, for neighbours of which one has a record taken out and its place kept. Loose
    where there is much noise: what shuffling hides is not counted.

    Args:
        noise_multiplier: sigma, >= 0 (0 gives infinity).
        epochs: passes over the data, >= 0.
        delta: strictly between 0 and 1.
    Raises:
        ValueError: naming the argument.

    >>> [round(shuffled_upper_bound(sigma, 1, 1e-5), 2) for sigma in (1.0, 2.0)]
    [4.38, 1.99]
    """
    epochs = arguments.count("epochs", epochs)
    known = {"sample_rate": 1.0, "steps": epochs, "delta": delta, "accountant": "pld"}
    return epsilon(noise_multiplier=noise_multiplier, **known)


def shuffled_lower_bound(noise_multiplier: float, steps_per_epoch: int, delta: float) -> float:
    r"""A lower bound on epsilon after one epoch of shuffled and partitioned batches.

    The pair: every record but one contributes :math:`-C`, the differing one :math:`+C` or (taken out, its place kept)
    0. Above the other T - 1 batches, all alike, its batch has mean 2C or C. The event: the largest of the T noisy batch
    sums exceeds a threshold c. With :math:`F(c) = \Phi(c/\sigma)^{T-1}` and C = 1,

    .. math:: P = 1 - F(c)\,\Phi((c-2)/\sigma),\qquad Q = 1 - F(c)\,\Phi((c-1)/\sigma),\qquad
              \varepsilon \ge \max_c \log\frac{P - \delta}{Q} .

    Guarantees: below the true epsilon of the shuffled mechanism for one epoch, and so for any number of epochs and for
    neighbours that replace a record. It can exceed the Poisson epsilon of the same noise, rate and steps many times
    over. It is not an upper bound; :func:`shuffled_upper_bound` is one, and meets it where the noise is small.

    Args:
        noise_multiplier: sigma, >= 0 (0 gives infinity).
        steps_per_epoch: T, batches (gradients) an epoch, >= 1.
        delta: strictly between 0 and 1.
    Returns:
        A number >= 0; 0 when the event shows nothing.
    Raises:
        ValueError: naming the argument.

    >>> [round(shuffled_lower_bound(sigma, 300, 1e-5), 2) for sigma in (1.0, 2.0)]
    [3.64, 0.2]

    Reference: Chua et al., arXiv 2403.17673 and 2411.04205.
    """
    sigma = arguments.noise_multiplier(noise_multiplier)
    batches = arguments.count("steps_per_epoch", steps_per_epoch, low=1)
    delta = arguments.delta(delta)
    if sigma == 0:
        return math.inf

    def log_exceeds(c, mean: float):
        """log of the probability that the largest batch sum exceeds c."""
        log_below = (batches - 1) * log_ndtr(c / sigma) + log_ndtr((c - mean) / sigma)
        return np.log(-np.expm1(np.minimum(log_below, -1e-300)))

    def bound(c):
        """The epsilon that the threshold c shows (-inf: nothing)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            log_p = log_exceeds(c, 2.0)
            p_above_delta = np.where(log_p > math.log(delta), log_p + np.log1p(-delta * np.exp(-log_p)), -np.inf)
            return p_above_delta - log_exceeds(c, 1.0)

    grid = np.linspace(-4 * sigma, 2 + sigma * (4 + math.sqrt(2 * math.log(batches / delta))), 4001)
    values = bound(grid)
    best = int(np.nanargmax(values))
    around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    refined = minimize_scalar(lambda c: -float(bound(np.array(c))), bounds=around, method="bounded")
    return max(0.0, float(values[best]), -float(refined.fun) if math.isfinite(refined.fun) else 0.0)

"""Tight epsilon by privacy loss distributions: dp-accounting's, on a grid chosen from the settings."""

import math

import numpy as np
from dp_accounting import NeighboringRelation, get_epsilon_gaussian
from dp_accounting.pld import privacy_loss_distribution
from scipy.special import ndtr

from adadp.privacy.renyi import composed_rdp_epsilon, rdp_epsilon, replace_one_epsilon

SMALLEST_DELTA = 1e-10  # the fast Fourier transform leaves errors of 1e-13 to 1e-12 in delta
_CHEAP_BINS = 25_000  # of one release: dp-accounting spends 10 microseconds a bin
_MAX_BINS = 100_000
_MAX_COMPOSED = 8_000_000  # of all releases together: 16 bytes a bin, a few copies


def _loss(x: np.ndarray, sigma: float, q: float) -> np.ndarray:
    """log((1-q) + q N(x; 1)/N(x; 0)), without cancellation where it is tiny or overflow where it is huge."""
    v = (x - 0.5) / sigma / sigma
    small = np.log1p(q * np.expm1(np.minimum(v, 1.0)))
    return np.where(v < 1, small, np.logaddexp(math.log1p(-q), math.log(q) + v)) if q < 1 else v


def loss_moments(sigma: float, q: float, replace: bool) -> tuple[float, float]:
    """Mean and root mean square of the privacy loss of one release, under the data set that has the record."""
    u = np.linspace(-9.0, 9.0, 1801)
    weight = np.exp(-(u**2) / 2)
    weight /= weight.sum()
    mean = square = 0.0
    for centre, probability in ((0.0, 1 - q), (1.0, q)):
        x = centre + sigma * u
        loss = _loss(x, sigma, q) - (_loss(-x, sigma, q) if replace else 0.0)
        mean += probability * float(weight @ loss)
        square += probability * float(weight @ loss**2)
    return mean, math.sqrt(square)


def interval(sigma: float, q: float, steps: int, replace: bool, fraction: float | None = None) -> float:
    """Width of the grid of privacy losses, as a fraction of the loss's own root mean square.

    Rounding a loss to the ends of its interval of width h, keeping both probabilities (Doroshenko et al. 2022), adds
    about h^2/6 to its variance and, where h is large, up to h/2 to its mean. With h at a fifth of the root mean square
    the variance, and with it epsilon squared, grows by less than 1 %. dp-accounting's default, 1e-4, is kept where it
    lies between a twentieth and a fifth and is cheap. Two limits keep time and memory bounded; where they bind, epsilon
    stays an upper bound and only loses accuracy.

    Args:
        fraction: of the root mean square; None for the rule above.
    """
    mean, spread = loss_moments(sigma, q, replace)
    reach = float(_loss(np.array([1 + 10 * sigma]), sigma, q)[0])
    coarsest = spread / (5 if steps > 30 else 20)
    width = fraction * spread if fraction else min(max(1e-4, spread / 20, reach / _CHEAP_BINS), coarsest)
    if width > 0.5:
        width = max(0.5, min(width, 0.01 * mean))
    composed = 25 * math.sqrt(steps) * spread + 4 * reach + 0.01 * steps * mean
    return max(width, reach / _MAX_BINS, composed / _MAX_COMPOSED)


def pld_epsilon(sigma: float, q: float, steps: int, delta: float, neighbors: str) -> float:
    """Epsilon of ``steps`` Poisson-sampled Gaussian releases by composing privacy loss distributions.

    Guarantees: an upper bound. Its discretisation error is below 1 % of epsilon unless the limits of :func:`interval`
    bind (sampling so rare and noise so small that a loss is almost always 1e-6 of its largest value) or rounding does
    (more than about 1e6 releases of losses below 1e-6). There the smaller of it and of RDP's bound is taken, or RDP's
    alone. Without sampling (q = 1) the composition is one Gaussian and its closed form is used.

    Raises:
        ValueError: if delta is too small for double-precision Fourier transforms.
    """
    replace = neighbors == "replace_one"
    if q == 1:
        with np.errstate(all="ignore"):
            exact = get_epsilon_gaussian(sigma / (2 if replace else 1) / math.sqrt(steps), delta)
        return float(exact * (1 + 1e-9) + 1e-11) if exact > 0 else 0.0
    if delta < SMALLEST_DELTA:
        raise ValueError(f"delta must be >= {SMALLEST_DELTA:g} for accountant='pld', got {delta!r}; use 'rdp'")
    if _total_variation(sigma, q, steps, replace) <= delta:
        return 0.0
    bound = replace_one_epsilon if replace else rdp_epsilon
    spread = loss_moments(sigma, q, replace)[1]
    rounding = 2e-16 * steps / spread  # mass that rounding adds to the composition, times the squared fraction
    if 25 * rounding > 2:
        return bound(sigma, q, steps, delta)
    width = interval(sigma, q, steps, replace)
    try:
        value = _compose(sigma, q, steps, delta, replace, width)
    except OverflowError:  # dp-accounting's grid, where the noise is so small that one step loses hundreds
        return bound(sigma, q, steps, delta)
    fraction = max(_fraction(value / math.sqrt(steps) / spread), min(0.2, math.sqrt(1e3 * rounding)))
    finer = interval(sigma, q, steps, replace, fraction)
    if finer < 0.9 * width:
        value = min(value, _compose(sigma, q, steps, delta, replace, finer))
    limits_bind = not math.isfinite(value) or 25 * rounding > 0.005 or width > 0.21 * spread
    return min(value, bound(sigma, q, steps, delta)) if limits_bind else value


def composed_pld_epsilon(parts: list[tuple[float, float, int]], delta: float, neighbors: str) -> float:
    """Epsilon of parts (sigma, q, steps) that differ, by composing their privacy loss distributions on one grid.

    Guarantees: an upper bound, as a distribution rounded to any grid gives one. Never above that of as many releases
    with the least noise and the highest rate, which dominate every part (more noise and rarer sampling are
    post-processing), nor, under add/remove, above RDP's.

    Raises:
        ValueError: if delta is too small for double-precision Fourier transforms.
    """
    if delta < SMALLEST_DELTA:
        raise ValueError(f"delta must be >= {SMALLEST_DELTA:g} for accountant='pld', got {delta!r}; use 'rdp'")
    replace = neighbors == "replace_one"
    sigmas, rates, steps = zip(*parts, strict=True)
    bound = pld_epsilon(min(sigmas), max(rates), sum(steps), delta, neighbors)
    if not replace:
        bound = min(bound, composed_rdp_epsilon(parts, delta))
    reaches = [float(_loss(np.array([1 + 10 * sigma]), sigma, q)[0]) for sigma, q, _ in parts]
    width = max(min(interval(*part, replace) for part in parts), max(reaches) / _MAX_BINS)
    total = None
    try:
        for sigma, q, n in parts:
            several = _several(_release(sigma, q, delta * 1e-4 / sum(steps), replace, width), n)
            total = several if total is None else total.compose(several)
    except OverflowError:  # as in pld_epsilon
        return bound
    value = _invert(total, delta - len(parts) * _slack(max(steps)))
    return min(value, bound) if math.isfinite(value) else bound


def _total_variation(sigma: float, q: float, steps: int, replace: bool) -> float:
    """Upper bound on the total variation distance of all releases: at that delta epsilon is 0.

    The smaller of the sum over releases and of Pinsker's inequality, with the divergence bounded by log(1 + chi^2);
    a replacement is a removal and an addition.
    """
    summed = steps * q * (2 * ndtr(1 / (2 * sigma)) - 1)
    divergence = math.log1p(q**2 * math.expm1(min(700.0, 1 / sigma**2)))
    return (2 if replace else 1) * min(summed, math.sqrt(steps * divergence / 2))


def _fraction(x: float) -> float:
    """Fraction of the root mean square that suits an epsilon of ``x`` standard deviations of the total loss.

    For a Gaussian total loss of standard deviation S, delta is about S g(epsilon/S) with g(x) = phi(x) - x Phi(-x), so
    a relative error in S becomes 1 + g(x) / (x Phi(-x)) times as large in epsilon: much larger where x is small.
    """
    x = min(max(x, 1e-4), 8.0)
    amplification = math.exp(-x * x / 2) / math.sqrt(2 * math.pi) / (x * ndtr(-x))
    return 0.2 * max(0.03, min(1.0, math.sqrt(1.5 / amplification)))


def _rounds(steps: int) -> tuple[int, int, int]:
    """``each``, ``rounds`` and ``rest`` with each * rounds + rest = steps; more than one round from 40000 steps on."""
    rounds = max(1, math.isqrt(steps // 10_000))
    each, rest = divmod(steps, rounds)
    return each, rounds, rest


def _release(sigma: float, q: float, tail: float, replace: bool, width: float):
    """The loss of one release on a grid of that width, without tails of the mass ``tail``."""
    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma,
        value_discretization_interval=width,
        sampling_prob=q,
        log_mass_truncation_bound=max(-50.0, math.log(tail)),
        neighboring_relation=NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def _compose(sigma: float, q: float, steps: int, delta: float, replace: bool, width: float) -> float:
    """Epsilon at the given width."""
    total = _several(_release(sigma, q, delta * 1e-4 / steps, replace, width), steps)
    return _invert(total, delta - _slack(steps))


def _several(once, steps: int):
    """The loss of so many releases: in two rounds where they are many, so that the tails are cut in between."""
    each, rounds, rest = _rounds(steps)
    total = once.self_compose(each) if each > 1 else once
    total = total.self_compose(rounds) if rounds > 1 else total
    return total.compose(once.self_compose(rest) if rest > 1 else once) if rest else total


def _slack(steps: int) -> float:
    """Taken off delta for what the Fourier transform of a round gets wrong: about 5e-17 a release."""
    return max(1e-12, 1e-16 * _rounds(steps)[0])


def _invert(loss: privacy_loss_distribution.PrivacyLossDistribution, delta: float) -> float:
    """Smallest epsilon at ``delta``; above 500 not by dp-accounting, whose exp(-loss) underflows (and gives inf)."""
    with np.errstate(over="ignore"):
        value = float(loss.get_epsilon_for_delta(delta))
    if value < 500 or loss.get_delta_for_epsilon(math.inf) > delta:
        return value
    low, high = 250.0, 500.0
    while loss.get_delta_for_epsilon(high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if loss.get_delta_for_epsilon(middle) > delta else (low, middle)
    return high

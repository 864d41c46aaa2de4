"""The moments accountant of Abadi et al. (2016), which is the paper's own, in log space."""

import math
from collections.abc import Iterable
from functools import lru_cache
from numbers import Integral

import numpy as np
from scipy.special import gammaln, logsumexp

from adadp.privacy import arguments


@lru_cache(maxsize=64)
def _tables(orders: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For n = lambda + 1 in the rows and k = 2..n in the columns: k, n - k, log binomial (-inf where k > n)."""
    n = np.array(orders, dtype=float)[:, None] + 1
    k = np.arange(2, n.max() + 1)[None, :]
    rest = np.maximum(n - k, 0)
    log_binomial = np.where(k <= n, gammaln(n + 1) - gammaln(k + 1) - gammaln(rest + 1), -np.inf)
    return k, rest, log_binomial


def _expm1_in_log(c: np.ndarray) -> np.ndarray:
    """log(exp(c) - 1) for c >= 0, exact for tiny and for huge c."""
    with np.errstate(divide="ignore"):
        return c + np.log(-np.expm1(-c))


@lru_cache(maxsize=4096)
def log_moments(noise_multiplier: float, sample_rate: float, orders: tuple[int, ...]) -> np.ndarray:
    r"""Log moments of the privacy loss of one Poisson-sampled Gaussian release, the larger of both directions.

    With :math:`\mu_0 = N(0, \sigma^2)`, :math:`\mu = (1-q)\mu_0 + q N(1, \sigma^2)` and :math:`\lambda` an integer,

    .. math:: \alpha(\lambda) = \max\{\log E_{\mu}(\mu/\mu_0)^\lambda,\ \log E_{\mu_0}(\mu_0/\mu)^\lambda\}
              = \log \sum_{k=0}^{\lambda+1} \binom{\lambda+1}{k} (1-q)^{\lambda+1-k} q^k e^{k(k-1)/(2\sigma^2)} .

    The first direction is never the smaller one (Mironov, Talwar and Zhang 2019, Theorem 5) and has this closed form;
    the other has none. The terms k = 0, 1 and the "one" in every exponential add up to
    exactly 1, so only the excess over 1 is summed: all terms are positive and none is lost to rounding.

    Args:
        noise_multiplier: sigma, noise standard deviation over clipping norm, > 0.
        sample_rate: q, probability that an example is in the batch, in [0, 1].
        orders: the lambdas, integers >= 1.
    Returns:
        One log moment an order, shape (len(orders),), read-only.
    """
    half_precision = 0.5 / noise_multiplier / noise_multiplier
    lam = np.array(orders, dtype=float)
    if sample_rate == 0:
        result = np.zeros(len(orders))
    elif sample_rate == 1:
        result = lam * (lam + 1) * half_precision
    else:
        k, rest, log_binomial = _tables(orders)
        excess = _expm1_in_log(k * (k - 1) * half_precision)
        with np.errstate(invalid="ignore"):  # an infinite excess (noise below 1e-154) outside the triangle k <= n
            terms = log_binomial + k * math.log(sample_rate) + rest * math.log1p(-sample_rate) + excess
        result = np.logaddexp(0.0, logsumexp(np.where(np.isneginf(log_binomial), -np.inf, terms), axis=1))
    result.flags.writeable = False
    return result


class MomentsAccountant:
    r"""Adds up log moments over releases and turns them into (epsilon, delta).

    .. math:: \varepsilon(\delta) = \min_\lambda \frac{\sum_i \alpha_i(\lambda) + \log(1/\delta)}{\lambda},\qquad
              \delta(\varepsilon) = \min_\lambda \exp\Big(\sum_i \alpha_i(\lambda) - \lambda\varepsilon\Big) .

    Guarantees: an upper bound for Poisson-sampled Gaussian releases under add/remove neighbours, whatever the order of
    the releases and however later ones depend on earlier ones. It is loose: with orders up to 32, epsilon cannot fall
    below log(1/delta)/32 (0.360 at delta 1e-5), however large the noise; :meth:`warning` says so when that happens.

    Args:
        orders: the integer lambdas >= 1; Abadi et al. stop at 32 and so, presumably, does the paper, which names none.
            Order lambda is Renyi order lambda + 1.
    Raises:
        ValueError: if an order is not a whole number >= 1, or none is given.

    >>> accountant = MomentsAccountant()
    >>> accountant.step(noise_multiplier=2.0, sample_rate=1 / 300, num_steps=30_000)
    >>> round(accountant.get_epsilon(delta=1e-5), 3)
    1.536

    Reference: Theorem 2 of Abadi et al., "Deep Learning with Differential Privacy" (2016), quoted as the
    composability theorem of Koskela & Honkela.
    """

    name = "moments"

    def __init__(self, orders: Iterable[int] = range(1, 33)):
        orders = tuple(orders) if isinstance(orders, Iterable) and not isinstance(orders, str) else (orders,)
        if not orders or not all(isinstance(o, Integral) and not isinstance(o, bool) and o >= 1 for o in orders):
            raise ValueError(f"orders must be whole numbers >= 1, and at least one of them, got {orders!r}")
        self.orders: tuple[int, ...] = tuple(sorted({int(o) for o in orders}))
        self._releases: dict[tuple[float, float], int] = {}

    def step(self, *, noise_multiplier: float, sample_rate: float, num_steps: int = 1) -> None:
        """Account for ``num_steps`` gradients released at this noise and rate (an ADADP iteration is two).

        Raises:
            ValueError: naming the argument that is out of range.
        """
        key = (arguments.noise_multiplier(noise_multiplier), arguments.sample_rate(sample_rate))
        num_steps = arguments.count("num_steps", num_steps)
        self._releases[key] = self._releases.get(key, 0) + num_steps

    @property
    def steps(self) -> int:
        """Gradients accounted for."""
        return sum(self._releases.values())

    @property
    def _released(self) -> bool:
        """Whether anything about the data was released; log moments may be too small for a float to show it."""
        return any(q > 0 and times > 0 for (_, q), times in self._releases.items())

    @property
    def log_moments(self) -> np.ndarray:
        """The sum of the log moments over all releases, one an order."""
        total = np.zeros(len(self.orders))
        for (sigma, q), times in self._releases.items():
            if q == 0 or times == 0:
                continue  # nothing about the data was released, even without noise
            total = total + (times * log_moments(sigma, q, self.orders) if sigma > 0 else math.inf)
        return total

    def _best(self, delta: float) -> tuple[float, int | None]:
        """The smallest epsilon and the order that gives it (none: nothing was released, or no noise was added)."""
        moments = self.log_moments
        if not self._released:
            return 0.0, None
        candidates = (moments - math.log(arguments.delta(delta))) / np.array(self.orders)
        best = int(np.argmin(candidates))
        return float(candidates[best]), self.orders[best] if math.isfinite(candidates[best]) else None

    def get_epsilon(self, *, delta: float) -> float:
        """Epsilon spent so far at ``delta``; 0 before the first release, infinity after one without noise."""
        arguments.delta(delta)
        return self._best(delta)[0]

    def get_delta(self, *, epsilon: float) -> float:
        """Delta at ``epsilon``, at most 1."""
        epsilon = arguments.real("epsilon", epsilon)
        moments = self.log_moments
        if not self._released:
            return 0.0
        return float(min(1.0, np.exp(np.min(np.minimum(moments - epsilon * np.array(self.orders), 0.0)))))

    def best_order(self, *, delta: float) -> int | None:
        """The lambda that gives the smallest epsilon, or None where every order gives 0 or infinity."""
        arguments.delta(delta)
        return self._best(delta)[1]

    def warning(self, *, delta: float) -> str:
        """A sentence when the best order is the last one, so that more orders would help; otherwise ''.

        >>> accountant = MomentsAccountant()
        >>> accountant.step(noise_multiplier=8.0, sample_rate=1 / 300, num_steps=30_000)
        >>> accountant.warning(delta=1e-5)[:52]
        'The best order is 32, the last of the orders given: '
        """
        if self.best_order(delta=delta) != self.orders[-1]:
            return ""
        floor = -math.log(delta) / self.orders[-1]
        return (
            f"The best order is {self.orders[-1]}, the last of the orders given: epsilon cannot fall below "
            f"log(1/delta)/{self.orders[-1]} = {floor:.3g} with them. Give more orders, or use accountant='pld'."
        )

    def state_dict(self) -> dict:
        """What was accounted for, in plain numbers (exact, and safe to store as JSON)."""
        releases = [[sigma, q, times] for (sigma, q), times in self._releases.items()]
        return {"accountant": self.name, "orders": list(self.orders), "releases": releases}

    def load_state_dict(self, state: dict) -> None:
        """Replace what was accounted for, orders included.

        Raises:
            ValueError: if the state belongs to another kind of accountant or does not read as one.
        """
        kind = state.get("accountant") if isinstance(state, dict) else None
        if kind != self.name:
            raise ValueError(f"state belongs to accountant {kind!r}; a {self.name!r} accountant cannot continue it")
        if not {"orders", "releases"} <= state.keys():
            raise ValueError("state must have the entries 'orders' and 'releases'")
        fresh = MomentsAccountant(state["orders"])
        for sigma, q, times in state["releases"]:
            fresh.step(noise_multiplier=sigma, sample_rate=q, num_steps=times)
        self.orders, self._releases = fresh.orders, fresh._releases

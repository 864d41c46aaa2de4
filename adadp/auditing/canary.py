"""Canary audit of ADADP's two releases: can one record be seen in thousands of released gradients?"""

import math

import numpy as np
import torch
from dp_accounting import get_epsilon_gaussian
from scipy.stats import beta, norm

from adadp.auditing.harness import MakeGradient, prepared, released
from adadp.auditing.report import AuditResult
from adadp.privacy import arguments
from adadp.privacy.gradient import PrivateGradient
from adadp.rounding import round_down

_WIDTH, _OTHERS = 8, 8


def mu_lower_bound(false_alarms: int, misses: int, observations: int, confidence: float) -> float:
    r"""Lower bound on mu of Gaussian differential privacy from the two error counts of a distinguisher.

    A mu-GDP mechanism forces :math:`\Phi^{-1}(1-\alpha) - \Phi^{-1}(\beta) \le \mu` on the error rates of every test;
    their Clopper-Pearson upper limits, each at half the failure probability, give the bound.

    Args:
        false_alarms, misses: errors among ``observations`` without and among ``observations`` with the record.
    Returns:
        mu; may be negative, which shows nothing.

    >>> round(mu_lower_bound(308, 308, 1000, 0.95), 2)
    0.84

    Reference: Theorem 2.7 and Corollary 2.13 of Dong, Roth & Su, "Gaussian Differential Privacy" (2022); Nasr et al.,
    "Tight Auditing of Differentially Private Machine Learning" (2023).
    """
    share = (1 - confidence) / 2

    def upper(errors: int) -> float:
        return 1.0 if errors == observations else float(beta.isf(share, errors + 1, observations - errors))

    return float(norm.isf(upper(false_alarms)) - norm.ppf(upper(misses)))


def _observe(gradient: MakeGradient, C: float, sigma: float, observations: int, seed: int):
    """Scores of G1 and G2 over 2 * observations ADADP iterations, and in which of them the canary was; four arrays.

    The canary's gradient is (10 C u, -10 C u) / sqrt(2) over two weights of equal shape, so that it is clipped, is
    clipped wrongly if every weight is clipped apart, and stands out if both weights get the same noise. The gradients
    of the other records are C long, the opposite way, so that a divisor that counts records gives the canary away.
    """
    direction = torch.ones(2 * _WIDTH) / math.sqrt(2 * _WIDTH)
    direction[_WIDTH:] *= -1
    model, optimizer, grad = prepared(gradient, (_WIDTH, _WIDTH), C, sigma, _OTHERS, seed)
    batch = C * torch.cat([-direction.expand(_OTHERS, -1), 10 * direction[None]])
    labels = torch.zeros(_OTHERS + 1, dtype=torch.long)
    rng = np.random.default_rng(seed)
    present = np.stack([rng.permutation(2 * observations) < observations for _ in range(2)])
    scores = np.empty((2, 2 * observations))
    for run in range(2 * observations):
        for which in range(2):  # G1, then G2: the gradients as released, whatever lr the optimizer has come to
            size = _OTHERS + present[which, run]
            grad.backward(batch[:size], labels[:size])
            scores[which, run] = float(released(model) @ direction.double()) * _OTHERS / C
            optimizer.step()
    return *scores, *present


def audit_releases(
    gradient: MakeGradient = PrivateGradient,
    *,
    max_grad_norm: float = 1.0,
    noise_multiplier: float = 1.0,
    observations: int = 1000,
    confidence: float = 0.95,
    delta: float = 1e-5,
    seed: int = 0,
) -> tuple[AuditResult, AuditResult, AuditResult]:
    """Look for a canary in G1, in G2, and in G1 once G2 is known (which shows whether their noise is independent).

    Thresholds are fixed before looking, half way between the means that the declared mechanism gives. Scores are taken
    from the released gradients, not from the parameters: the learning rate between them is adaptive.

    Guarantees: with probability at least ``confidence`` a bound is below the true mu of a release, whatever
    ``gradient`` does. With the mechanism as declared mu is 1 / sigma; at 95 % the bounds come to about 0.83 at sigma 1
    with 1000 observations a side and 0.92 with 5000, and to 0.33 and 0.44 at sigma 2.

    Args:
        gradient: called like :class:`adadp.PrivateGradient`.
        max_grad_norm: C.
        noise_multiplier: sigma > 0.
        observations: of each side (with and without the canary) and of each release.
        confidence: of every bound.
        delta: for the epsilon in the detail.
    Returns:
        Three results in mu: canary in G1, canary in G2, independence of G1 and G2. ``evidence``: ``scores`` and
        ``inside``, (2 * observations,) each, in units of C with the means 0 and 1 that are declared; the ``threshold``;
        ``epsilon``, the bound at ``delta``; for the third also ``first`` and ``second``, the noise in G1 and in G2.
    Raises:
        ValueError: naming the argument.
    """
    C = arguments.real("max_grad_norm", max_grad_norm, open_low=True)
    sigma = arguments.real("noise_multiplier", noise_multiplier, open_low=True)
    observations = arguments.count("observations", observations, low=10)
    confidence = arguments.real("confidence", confidence, high=1.0, open_low=True, open_high=True)
    delta, seed = arguments.delta(delta), arguments.count("seed", seed)
    arguments.function("gradient", gradient, "that is called like PrivateGradient")
    first, second, in_first, in_second = _observe(gradient, C, sigma, observations, seed)
    centred_first, centred_second = first + _OTHERS, second + _OTHERS  # means: 0 without and 1 with the canary
    looks = {
        "canary in G1": (centred_first, in_first),
        "canary in G2": (centred_second, in_second),
        "independence of G1 and G2": (centred_first - (centred_second - in_second), in_first),
    }
    results = []
    for name, (score, inside) in looks.items():
        said = ~np.isfinite(score) | (score > 0.5)  # what is no number shows the canary
        mu = mu_lower_bound(int((said & ~inside).sum()), int((~said & inside).sum()), observations, confidence)
        shown = float(get_epsilon_gaussian(1 / mu, delta)) if mu > 0 else 0.0
        detail = f"epsilon >= {round_down(shown)} at delta {delta:g} for one release"
        evidence = {"scores": score, "inside": inside, "threshold": 0.5, "epsilon": shown}
        if name.startswith("independence"):
            evidence |= {"first": centred_first - in_first, "second": centred_second - in_second}
        results.append(
            AuditResult(name, mu <= 1 / sigma, mu, 1 / sigma, "mu", confidence, observations, detail, evidence)
        )
    return tuple(results)

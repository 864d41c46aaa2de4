"""All audits of one private gradient in one call."""

import math

from dp_accounting import get_epsilon_gaussian

from adadp.auditing.canary import audit_releases
from adadp.auditing.harness import MakeGradient
from adadp.auditing.one_run import audit_one_run
from adadp.auditing.report import AuditError, AuditResult
from adadp.auditing.sensitivity import audit_noise, audit_sensitivity
from adadp.privacy import arguments
from adadp.privacy.gradient import PrivateGradient


def audit_epsilon(
    gradient: MakeGradient = PrivateGradient,
    *,
    noise_multiplier: float = 1.0,
    max_grad_norm: float = 1.0,
    delta: float = 1e-5,
    method: str = "canary",
    observations: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> AuditResult:
    """Lower bound on the epsilon of a private gradient, to be held against the declared one.

    Args:
        gradient: called like :class:`adadp.PrivateGradient`.
        noise_multiplier: sigma > 0 that it declares.
        max_grad_norm: C that it declares.
        delta: at which epsilon is taken.
        method: "canary" (one gradient: the largest of the bounds of :func:`audit_releases`, valid together) or
            "one_run" (two gradients, a single run with ``observations`` canaries).
        observations: of each side, or canaries.
        confidence: with which the bound is below the true epsilon.
    Returns:
        ``bound``: the lower bound; ``limit``: the declared epsilon without sampling.
    Raises:
        ValueError: naming the argument.

    >>> result = audit_epsilon(noise_multiplier=1.0, observations=200)
    >>> 1 < result.bound < result.limit
    True
    """
    settings = {"noise_multiplier": noise_multiplier, "max_grad_norm": max_grad_norm, "delta": delta, "seed": seed}
    arguments.noise_multiplier(noise_multiplier)
    if arguments.choice("method", method, ("canary", "one_run")) == "one_run":
        canaries = arguments.count("observations", observations, low=10)
        return audit_one_run(gradient, **settings, canaries=canaries, confidence=confidence)
    confidence = arguments.real("confidence", confidence, high=1.0, open_low=True, open_high=True)
    each = 1 - (1 - confidence) / 3
    looks = audit_releases(gradient, **settings, observations=observations, confidence=each)
    best = max(looks, key=lambda look: look.bound)
    bound = float(get_epsilon_gaussian(1 / best.bound, delta)) if best.bound > 0 else 0.0
    limit = float(get_epsilon_gaussian(noise_multiplier, delta))
    detail = f"the most telling of three looks: {best.name}"
    return AuditResult("canary", bound <= limit, bound, limit, "epsilon", confidence, observations, detail)


def run_audit(
    gradient: MakeGradient = PrivateGradient,
    *,
    quick: bool = True,
    one_run: bool = True,
    observations: int | None = None,
    noise_multiplier: float = 1.0,
    max_grad_norm: float = 1.0,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
    strict: bool = True,
) -> list[AuditResult]:
    """Run every audit and fail loudly.

    Args:
        gradient: called like :class:`adadp.PrivateGradient`.
        quick: 1000 observations a side instead of 5000, 50 pairs of batches instead of 500.
        one_run: also guess a thousand canaries from a single run.
        observations: of each side, if neither 1000 nor 5000 will do.
        noise_multiplier, max_grad_norm, delta, confidence: what is declared, and how sure to be of the bounds on
            privacy (the noise itself is judged at the confidence of :func:`audit_noise`).
        strict: raise when an audit fails; False: return the results all the same.
    Returns:
        Results in this order: sensitivity under add/remove and replace-one, noise, canary in G1, canary in G2, their
        independence, one run.
    Raises:
        AuditError: an audit failed; it holds all the results.
        ValueError: naming the argument.
    """
    declared = {"noise_multiplier": noise_multiplier, "max_grad_norm": max_grad_norm, "seed": seed}
    trials = 50 if quick else 500
    if observations is None:
        observations = 1000 if quick else 5000
    arguments.count("observations", observations, low=10)
    arguments.real("confidence", confidence, high=1.0, open_low=True, open_high=True)
    arguments.delta(delta)
    for name, value in {"quick": quick, "one_run": one_run, "strict": strict}.items():
        arguments.flag(name, value)
    results = [
        audit_sensitivity(gradient, **declared, neighbors=neighbors, trials=trials) for neighbors in arguments.NEIGHBORS
    ]
    results.append(audit_noise(gradient, **declared))
    results += audit_releases(gradient, **declared, observations=observations, confidence=confidence, delta=delta)
    if one_run:
        scaled = declared | {"noise_multiplier": noise_multiplier * math.sqrt(2)}  # two gradients spend what one did
        results.append(audit_one_run(gradient, **scaled, delta=delta, confidence=confidence))
    if strict and not all(result.passed for result in results):
        raise AuditError(results)
    return results

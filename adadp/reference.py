"""Algorithms 1 and 2 of the paper on one flat vector, as plainly as they can be written.

Slow on purpose: every line is a line of the paper. The optimizer in ``adadp/optimizer.py`` does the same arithmetic in
place, over many tensors, and the tests hold it to these functions step for step.

``gradient`` is called with a vector and returns the gradient there; a private one draws a new batch and new noise at
every call. Vectors are numpy arrays of any float type.

Reference: Koskela & Honkela, Algorithms 1 and 2.
"""

import numpy as np


def full_step(theta, eta, G1):
    """One Euler step of size eta along the gradient flow: theta_1."""
    return theta - eta * G1


def two_half_steps(theta, eta, G1, gradient):
    """Two Euler steps of size eta/2: theta_hat, and the second gradient."""
    theta_half = theta - eta / 2 * G1
    G2 = gradient(theta_half)
    return theta_half - eta / 2 * G2, G2


def plain_error(theta_1, theta_hat):
    """Norm of the difference (Algorithm 1)."""
    return np.linalg.norm(theta_1 - theta_hat)


def relative_error(theta_1, theta_hat):
    """Norm of the difference, each coordinate divided by max(1, |theta_1|) (Algorithm 2)."""
    return np.linalg.norm(np.abs(theta_1 - theta_hat) / np.maximum(1, np.abs(theta_1)))


def next_eta(eta, err, tol, alpha_min, alpha_max, exponent=1):
    """min(max(tol/err, alpha_min), alpha_max) * eta; the paper's code takes the square root of tol/err."""
    ratio = np.inf if err == 0 else (tol / err) ** exponent
    return min(max(ratio, alpha_min), alpha_max) * eta


def algorithm_1(theta, eta, gradient, tol=0.1, alpha_min=0.9, alpha_max=1.1):
    """One iteration of Algorithm 1: a step whose error exceeds tol is discarded.

    Returns: theta, eta and err after the iteration.

    >>> theta, eta, err = algorithm_1(np.array([1.0, -2.0]), 0.1, lambda x: x)
    >>> theta, round(float(eta), 3), round(float(err), 4)
    (array([ 0.9, -1.8]), 0.11, 0.0056)
    """
    G1 = gradient(theta)
    theta_1 = full_step(theta, eta, G1)
    theta_hat, _ = two_half_steps(theta, eta, G1, gradient)
    err = plain_error(theta_1, theta_hat)
    if err > tol:
        theta_1 = theta  # discard
    return theta_1, next_eta(eta, err, tol, alpha_min, alpha_max), err


def algorithm_2(theta, eta, gradient, tol=1.0, alpha_min=0.9, alpha_max=1.1):
    """One iteration of Algorithm 2: the relative error, and no discarding.

    Returns: theta, eta and err after the iteration.

    >>> theta, eta, err = algorithm_2(np.array([1.0, -2.0]), 0.1, lambda x: x)
    >>> theta, round(float(eta), 3), round(float(err), 4)
    (array([ 0.9, -1.8]), 0.11, 0.0037)
    """
    G1 = gradient(theta)
    theta_1 = full_step(theta, eta, G1)
    theta_hat, _ = two_half_steps(theta, eta, G1, gradient)
    err = relative_error(theta_1, theta_hat)
    return theta_1, next_eta(eta, err, tol, alpha_min, alpha_max), err


def iteration(
    theta,
    eta,
    gradient,
    *,
    tol=1.0,
    alpha_min=0.9,
    alpha_max=1.1,
    exponent=1.0,
    scaled=True,
    advance="euler",
    discard=False,
):
    """One iteration with every choice on which paper and published code differ (see ``adadp.ADADP``).

    ``scaled`` is the optimizer's ``relative_error``. A non-finite error discards the step and shrinks eta by alpha_min.

    Returns: theta, eta, err after the iteration, and whether the step was kept.

    >>> theta, eta, err, kept = iteration(np.array([1.0]), 0.5, lambda theta: theta, advance="extrapolated")
    >>> theta, kept  # the midpoint rule on theta' = -theta: 1 - eta + eta^2 / 2
    (array([0.625]), True)
    """
    G1 = gradient(theta)
    theta_1 = full_step(theta, eta, G1)
    theta_hat, G2 = two_half_steps(theta, eta, G1, gradient)
    err = relative_error(theta_1, theta_hat) if scaled else plain_error(theta_1, theta_hat)
    if not np.isfinite(err):
        return theta, alpha_min * eta, err, False
    kept = not (discard and err > tol)
    candidates = {"euler": theta_1, "half_steps": theta_hat, "extrapolated": theta - eta * G2}
    eta = next_eta(eta, err, tol, alpha_min, alpha_max, exponent)
    return (candidates[advance] if kept else theta), eta, err, kept

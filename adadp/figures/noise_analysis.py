"""What privacy noise does to the error of a step: the analysis of *Choosing tol* as functions of plain numbers."""

from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adadp import reference

Array = NDArray[np.float64]


def noise_error(lr: ArrayLike, *, noise_multiplier, max_grad_norm, num_parameters, expected_batch_size) -> Array:
    """The error of an iteration made by noise alone: lr sigma C sqrt(d / 2) / B, of the shape of lr.

    >>> float(noise_error(1.0, noise_multiplier=2, max_grad_norm=10, num_parameters=200, expected_batch_size=100))
    2.0

    Reference: Sec. "Choice of parameter tol", Koskela & Honkela.
    """
    noise = noise_multiplier * max_grad_norm / expected_batch_size  # standard deviation on each weight of a gradient
    return np.asarray(lr) * noise * sqrt(num_parameters / 2)


def noise_per_weight(iterations: ArrayLike, *, tol: float, num_parameters: int, advance: str = "euler") -> Array:
    """Noise in each weight after T iterations with err = tol: tol sqrt(2 T / d), or tol sqrt(T / d) for half steps.

    Args:
        iterations: T, each of two gradients.
        tol, num_parameters: as for ``predicted_lr``.
        advance: "euler" keeps steps with the noise of one gradient; "half_steps" averages two and halves the variance.

    Raises:
        ValueError: if ``advance`` is neither.

    Reference: Sec. "Choice of parameter tol", Koskela & Honkela.
    """
    gradients = {"euler": 2, "half_steps": 1}
    if advance not in gradients:
        raise ValueError(f"advance must be 'euler' or 'half_steps' here, got {advance!r}")
    return tol * np.sqrt(gradients[advance] * np.asarray(iterations) / num_parameters)


def noise_only(tol: float, lr: float, iterations: int, generator: np.random.Generator, **private) -> Array:
    """Learning rates (iterations + 1,) of Algorithm 2 if gradients were nothing but noise.

    The norm of the noise has a chi distribution with d degrees of freedom, so one number an iteration is drawn.

    Args:
        tol, lr: the tolerance, the first learning rate.
        iterations: how many.
        generator: draws the noise.
        **private: noise_multiplier, max_grad_norm, num_parameters, expected_batch_size.
    """
    rates = [lr]
    lengths = np.sqrt(generator.chisquare(private["num_parameters"], iterations) / private["num_parameters"])
    for length in lengths:
        rates.append(reference.next_eta(rates[-1], noise_error(rates[-1], **private) * length, tol, 0.9, 1.1))
    return np.array(rates, dtype=float)


def softmax_curvature(features: ArrayLike, weights: ArrayLike) -> float:
    """L of softmax regression: the largest eigenvalue of the Hessian of its mean cross-entropy.

    Args:
        features: shape (N, k).
        weights: shape (classes, k).
    """
    features, weights = np.asarray(features, dtype=float), np.asarray(weights, dtype=float)
    scores = features @ weights.T
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    spread = np.einsum("na,ab->nab", p, np.eye(p.shape[1])) - np.einsum("na,nb->nab", p, p)
    hessian = np.einsum("nab,ni,nj->aibj", spread, features, features, optimize=True) / len(features)
    return float(np.linalg.eigvalsh(hessian.reshape(weights.size, weights.size))[-1])

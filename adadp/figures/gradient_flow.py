"""Two losses in the plane whose gradient flow is known, and what one step of gradient descent gets wrong on them.

The *Step doubling* chapter measures on these. Both are small enough to be drawn and hard enough to be interesting: the
quadratic has an exact flow, and the valley bends, so that the best step size changes along the way.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adadp import reference

Array = NDArray[np.float64]
RAN_AWAY = 1e6  # a coordinate beyond this has diverged: going on would only overflow


@dataclass(frozen=True)
class Problem:
    """A loss in the plane.

    Attributes:
        name: what the figures call it.
        loss: points of shape (..., 2) to values of shape (...).
        gradient: points of shape (..., 2) to gradients of shape (..., 2).
        hessian: one point of shape (2,) to a matrix of shape (2, 2).
        flow: (theta_0, t) to the point (2,) that the gradient flow reaches after time t.
        start: where every run begins, shape (2,).
        minimum: the minimiser, shape (2,).
        window: (left, right, bottom, top) of the drawings.
    """

    name: str
    loss: Callable[[Array], Array]
    gradient: Callable[[Array], Array]
    hessian: Callable[[Array], Array]
    flow: Callable[[Array, float], Array]
    start: Array
    minimum: Array
    window: tuple[float, float, float, float]

    @property
    def lipschitz(self) -> float:
        """L: the largest curvature at the minimum. Gradient descent near it is stable for lr < 2 / L."""
        return float(np.linalg.eigvalsh(self.hessian(self.minimum))[-1])


def quadratic(curvatures: ArrayLike = (1.0, 10.0), degrees: float = 30.0) -> Problem:
    """The bowl g(theta) = theta' A theta / 2, whose flow is exact: theta(t) = expm(-t A) theta_0.

    Args:
        curvatures: the two eigenvalues of A, both positive.
        degrees: by how much the axes of the bowl are turned.

    Raises:
        ValueError: if a curvature is not positive.

    >>> bowl = quadratic()
    >>> bool(np.allclose(bowl.flow(bowl.start, 50.0), bowl.minimum))
    True
    """
    from scipy.linalg import expm

    curvatures = np.asarray(curvatures, dtype=float)
    if curvatures.shape != (2,) or not (curvatures > 0).all():
        raise ValueError(f"curvatures must be two positive numbers, got {curvatures.tolist()}")
    turn = np.deg2rad(degrees)
    axes = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    matrix = axes @ np.diag(curvatures) @ axes.T
    return Problem(
        name="quadratic bowl",
        loss=lambda theta: 0.5 * np.einsum("...i,ij,...j", theta, matrix, theta),
        gradient=lambda theta: theta @ matrix,
        hessian=lambda theta: matrix,
        flow=lambda theta, t: expm(-t * matrix) @ theta,
        start=np.array([-1.6, 0.9]),
        minimum=np.zeros(2),
        window=(-2.1, 1.1, -1.2, 1.5),
    )


def valley(steepness: float = 10.0) -> Problem:
    """The curved valley g(x, y) = (1 - x)^2 / 2 + b (y - x^2)^2 / 2, Rosenbrock's function with milder walls.

    Its flow has no formula: it is integrated by an eighth-order method to a relative error near 1e-13.

    Args:
        steepness: b, the curvature across the valley.

    >>> bend = valley()
    >>> bool(np.allclose(bend.gradient(bend.minimum), 0.0))
    True
    """
    from scipy.integrate import solve_ivp

    b = float(steepness)

    def loss(theta):
        x, y = theta[..., 0], theta[..., 1]
        return 0.5 * (1 - x) ** 2 + 0.5 * b * (y - x**2) ** 2

    def gradient(theta):
        x, y = theta[..., 0], theta[..., 1]
        return np.stack([x - 1 - 2 * b * x * (y - x**2), b * (y - x**2)], axis=-1)

    def hessian(theta):
        x, y = theta
        return np.array([[1 + 2 * b * (3 * x**2 - y), -2 * b * x], [-2 * b * x, b]])

    def flow(theta, t):
        solution = solve_ivp(lambda _, z: -gradient(z), (0, t), theta, method="DOP853", rtol=1e-13, atol=1e-14)
        return solution.y[:, -1]

    return Problem(
        name="curved valley",
        loss=loss,
        gradient=gradient,
        hessian=hessian,
        flow=flow,
        start=np.array([-1.2, 1.0]),
        minimum=np.ones(2),
        window=(-1.7, 1.6, -0.6, 2.1),
    )


def one_iteration(problem: Problem, theta: Array, lr: float) -> dict[str, Array]:
    """The points that step doubling visits from theta, and where the flow is at that time; each of shape (2,).

    Returns: "theta_0", "theta_1" (one step), "theta_half", "theta_hat" (two half steps), "extrapolated"
    (2 theta_hat - theta_1) and "flow".

    Reference: Eq. 2 and the display after it, Koskela & Honkela.
    """
    first = problem.gradient(theta)
    full = reference.full_step(theta, lr, first)
    hat, _ = reference.two_half_steps(theta, lr, first, problem.gradient)
    half = reference.full_step(theta, lr / 2, first)
    names = ("theta_0", "theta_1", "theta_half", "theta_hat", "extrapolated", "flow")
    return dict(zip(names, (theta, full, half, hat, 2 * hat - full, problem.flow(theta, lr)), strict=True))


def local_errors(problem: Problem, step_sizes: ArrayLike, theta: Array | None = None) -> dict[str, Array]:
    """What one step gets wrong, for each step size: distances of shape (len(step_sizes),).

    Args:
        problem: the loss.
        step_sizes: the learning rates to try.
        theta: where the step starts, shape (2,); the problem's own start if left out.

    Returns:
        "local error": |theta(eta) - theta_1|, the distance of the Euler step from the flow (order eta^2);
        "estimate": |2 (theta_hat - theta_1)|, what step doubling says it is (order eta^2);
        "missed": the distance between the two vectors, which is also the error of the extrapolated point (order eta^3).
    """
    theta = problem.start if theta is None else theta
    rows = []
    for lr in np.asarray(step_sizes, dtype=float):
        at = one_iteration(problem, theta, lr)
        error, estimate = at["flow"] - at["theta_1"], 2 * (at["theta_hat"] - at["theta_1"])
        rows.append([np.linalg.norm(v) for v in (error, estimate, error - estimate)])
    columns = np.array(rows).T
    return dict(zip(("local error", "estimate", "missed"), columns, strict=True))


@dataclass(frozen=True)
class Run:
    """What a run did: `path` (n + 1, 2), and for each of the n iterations lr, error and whether the step was kept."""

    path: Array
    lr: Array
    error: Array
    kept: NDArray[np.bool_]
    gradients: int


def descend(problem: Problem, lr: float, steps: int) -> Run:
    """Gradient descent with a fixed learning rate: one gradient a step. It stops once it has run away."""
    path = [problem.start]
    while len(path) <= steps and np.abs(path[-1]).max() < RAN_AWAY:
        path.append(path[-1] - lr * problem.gradient(path[-1]))
    n = len(path) - 1
    return Run(np.array(path), np.full(n, lr), np.full(n, np.nan), np.ones(n, dtype=bool), n)


def adapt(problem: Problem, lr: float, tol: float, iterations: int, *, discard: bool = True, **choices) -> Run:
    """Algorithm 1 from the problem's start: two gradients an iteration. It stops once it has run away.

    Args:
        problem: the loss.
        lr: the first learning rate.
        tol: the error that an iteration may make.
        iterations: how many.
        discard: drop the steps whose error exceeds tol, as Algorithm 1 does.
        **choices: `exponent`, `advance`, `alpha_min`, `alpha_max` of `adadp.reference.iteration`.
    """
    path, rates, rows = [problem.start], [lr], []
    while len(rows) < iterations and np.abs(path[-1]).max() < RAN_AWAY:
        theta, lr, error, kept = reference.iteration(
            path[-1], lr, problem.gradient, tol=tol, scaled=False, discard=discard, **choices
        )
        path.append(theta)
        rates.append(lr)
        rows.append((error, kept))
    error, kept = np.array(rows).T
    return Run(np.array(path), np.array(rates[:-1]), error, kept.astype(bool), 2 * len(rows))


def noisy(problem: Problem, scale: float, generator: np.random.Generator) -> Problem:
    """The same problem, its gradients blurred by Gaussian noise of standard deviation `scale` on each weight."""

    def gradient(theta):
        return problem.gradient(theta) + scale * generator.standard_normal(theta.shape)

    return replace(problem, name=f"{problem.name}, noise {scale:g}", gradient=gradient)


def settle(problem: Problem, lr: float, tol: float, exponent: float, iterations: int) -> Array:
    """The learning rates (iterations + 1,) that the update rule chooses while theta stays where it is.

    With theta held still, the error depends on the learning rate alone, and the rule is seen without the descent.
    """
    rates = [lr]
    for _ in range(iterations):
        _, lr, _, _ = reference.iteration(problem.start, lr, problem.gradient, tol=tol, exponent=exponent, scaled=False)
        rates.append(lr)
    return np.array(rates)

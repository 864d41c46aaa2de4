"""What it costs to choose hyper-parameters on the private data."""

import math

from adadp.privacy import arguments

RUN_COUNTS = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}


def tuned_epsilon(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    runs: float,
    method: str = "logarithmic",
) -> float:
    """Epsilon of publishing the best of several private trainings, all steps of all of them counted (add/remove, RDP).

    Args:
        noise_multiplier, sample_rate, steps, delta: of ONE training, as for :func:`adadp.epsilon`.
        runs: number of trainings. For "composed" a whole number: all of a grid, every result published. For the others
            the mean of a random number of trainings, >= 1, of which only the best is published.
        method: "composed", or the distribution of the random number: "logarithmic" (often the cheapest of
            these), "geometric" (never cheaper than that) or "poisson" (fewest very long searches; dear for a large
            mean).
    Returns:
        An upper bound on epsilon. It covers the choice of anything tuned this way: learning rate, tol, C.
    Raises:
        ValueError: naming the argument.

    >>> mnist = dict(noise_multiplier=2.0, sample_rate=1 / 300, steps=30_000, delta=1e-5)
    >>> [round(tuned_epsilon(**mnist, runs=r, method=m), 2) for r, m in
    ...  [(1, "composed"), (10, "logarithmic"), (10, "poisson"), (9, "composed")]]
    [1.28, 2.22, 2.94, 4.32]

    Reference: Theorems 2 and 6 of Papernot & Steinke, "Hyperparameter Tuning with Renyi Differential Privacy" (2022),
    as implemented in dp-accounting.
    """
    sigma, q = arguments.noise_multiplier(noise_multiplier), arguments.sample_rate(sample_rate)
    steps, delta = arguments.count("steps", steps), arguments.delta(delta)
    arguments.choice("method", method, ("composed", *RUN_COUNTS))
    runs = arguments.count("runs", runs, low=1) if method == "composed" else arguments.real("runs", runs, low=1.0)
    if steps == 0 or q == 0:
        return 0.0
    if sigma == 0:
        return math.inf
    from adadp.privacy import renyi

    if method == "composed":
        return renyi.rdp_epsilon(sigma, q, steps * int(runs), delta)
    return renyi.best_of_epsilon(sigma, q, steps, delta, runs, RUN_COUNTS[method])

"""Gray-box audit: the randomness is held, so what one record changes can be measured exactly; and the noise alone."""

import itertools
import math

import numpy as np
import torch
from scipy.stats import chi2, norm
from torch import Tensor, nn

from adadp.auditing.harness import MakeGradient, released
from adadp.auditing.report import AuditResult
from adadp.privacy import arguments
from adadp.privacy.gradient import PrivateGradient, cross_entropy

_ROUNDING = 1e-3  # of C: float32 sums of a few hundred clipped gradients
_KEPT = 160_000  # numbers of the noise of one parameter, over all draws


def _default_data(seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A small network with several weights of equal shape, and records between tame and wild."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
    x = torch.randn(64, 6, generator=generator) * 10.0 ** torch.randint(-1, 4, (64, 1), generator=generator)
    return model, x, torch.randint(0, 3, (64,), generator=generator)


def _checked(gradient, model, x, y, loss, seed) -> tuple[nn.Module, Tensor, Tensor]:
    """What to audit on: what was given, or all of the default."""
    arguments.function("gradient", gradient, "that is called like PrivateGradient")
    arguments.function("loss", loss, "(output, y) -> one value an example")
    seed = arguments.count("seed", seed)
    if model is None and x is None and y is None:
        return _default_data(seed)
    if not isinstance(model, nn.Module) or not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise TypeError("model, x and y belong together: a torch.nn.Module and two tensors, or none of the three")
    if len(x) != len(y) or len(x) < 2:
        raise ValueError(f"x and y must hold the same number of records, at least 2, got {len(x)} and {len(y)}")
    return model, x, y


def audit_sensitivity(
    gradient: MakeGradient = PrivateGradient,
    *,
    model: nn.Module | None = None,
    x: Tensor | None = None,
    y: Tensor | None = None,
    loss=cross_entropy,
    max_grad_norm: float = 1.0,
    noise_multiplier: float = 1.0,
    neighbors: str = "add_remove",
    trials: int = 50,
    seed: int = 0,
) -> AuditResult:
    """Release neighbouring batches with the same randomness and compare.

    The noise then cancels, so the released gradients, times the declared batch size, may differ by C in 2-norm (2C when
    a record is replaced), provided that the divisor and the use of random numbers do not depend on the batch. Catches
    clipping that is left out or done per parameter, a divisor that depends on the data, randomness that does.

    Args:
        gradient: called like :class:`adadp.PrivateGradient`.
        model, x, y, loss: what to audit it on, x of shape (N, ...) and y of shape (N, ...); None: a small network and
            records of which some are a thousand times larger than others.
        max_grad_norm: C.
        noise_multiplier: sigma; 0 audits the sums alone.
        neighbors: "add_remove" or "replace_one".
        trials: pairs of neighbouring batches, of 0 to N/4 records beside the one that differs.
    Returns:
        ``bound``: the largest difference seen, over C; ``limit``: 1 or 2. Exact up to rounding. ``evidence``:
        ``differences``, that of each pair over C, (trials,).
    Raises:
        ValueError: naming the argument.

    >>> audit_sensitivity(trials=5).passed
    True
    """
    C, limit = arguments.real("max_grad_norm", max_grad_norm, open_low=True), 1.0
    if arguments.choice("neighbors", neighbors, arguments.NEIGHBORS) == "replace_one":
        limit = 2.0
    trials = arguments.count("trials", trials, low=1)
    model, x, y = _checked(gradient, model, x, y, loss, seed)
    largest = max(1, len(x) // 4)
    grad = gradient(
        model,
        max_grad_norm=C,
        noise_multiplier=arguments.noise_multiplier(noise_multiplier),
        expected_batch_size=(largest + 1) // 2,
        loss=loss,
        generator=(noise := torch.Generator(_home(model))),
    )
    differences, same_use = _compare_pairs(grad, noise, model, x, y, replace=limit == 2, trials=trials, seed=seed)
    differences = differences * (((largest + 1) // 2) / C)
    worst = float(differences.max())  # nan if any is
    passed = worst <= limit * (1 + _ROUNDING) and same_use
    reason = "" if passed else f"one record changed the released sum by {worst:.3g} C with the randomness held"
    if not same_use:
        reason = "the number of random draws depends on the batch"
    evidence = {"differences": differences}
    name = f"sensitivity ({neighbors})"
    return AuditResult(name, passed, worst, limit, "sensitivity / C", 1.0, trials, reason, evidence)


def _compare_pairs(grad, noise: torch.Generator, model, x, y, *, replace: bool, trials: int, seed: int):
    """2-norms of the difference of neighbouring releases, (trials,), and whether both used as many random numbers."""
    draw, largest = torch.Generator().manual_seed(seed), max(1, len(x) // 4)
    differences, same_use = [], True
    for trial in range(trials):
        size = int(torch.randint(0, largest + 1, (), generator=draw)) if trial else 0
        order = torch.randperm(len(x), generator=draw)
        pair = [order[: size + 1], torch.cat([order[:size], order[-1:]]) if replace else order[:size]]
        releases, states = [], []
        for batch in pair:
            noise.manual_seed(seed + trial)
            with torch.random.fork_rng():  # a model may draw, too: dropout
                torch.manual_seed(seed + trial)
                grad.backward(x[batch], y[batch])
            releases.append(released(model))
            states.append(noise.get_state())
        differences.append(float((releases[0] - releases[1]).norm()))
        same_use = same_use and torch.equal(*states)
    return np.array(differences), same_use


def audit_noise(
    gradient: MakeGradient = PrivateGradient,
    *,
    model: nn.Module | None = None,
    x: Tensor | None = None,
    y: Tensor | None = None,
    loss=cross_entropy,
    max_grad_norm: float = 1.0,
    noise_multiplier: float = 1.0,
    expected_batch_size: float = 8.0,
    confidence: float = 0.999,
    seed: int = 0,
) -> AuditResult:
    """Release empty batches, which are noise and nothing else, in pairs like ADADP's G1 and G2, and test the noise.

    Every parameter's noise must have the standard deviation sigma C / expected_batch_size (chi-square limits), and the
    noise of different parameters, and of G1 and G2, must be uncorrelated. The confidence covers all tests together.

    Args:
        gradient, model, x, y, loss, max_grad_norm, noise_multiplier: as for :func:`audit_sensitivity`, sigma > 0.
        expected_batch_size: E, the declared divisor.
        confidence: of the whole audit; so high because right noise fails it in one audit of 1 / (1 - confidence), and
            because faults of noise are plain to see in so many draws.
    Returns:
        ``bound``: the smallest upper confidence limit of any parameter's noise over the declared noise; ``limit``: 1.
    Raises:
        ValueError: naming the argument.
    """
    sigma = arguments.real("noise_multiplier", noise_multiplier, open_low=True)
    C, E = (
        arguments.real("max_grad_norm", max_grad_norm, open_low=True),
        arguments.real("expected_batch_size", expected_batch_size, open_low=True),
    )
    confidence = arguments.real("confidence", confidence, high=1.0, open_low=True, open_high=True)
    model, x, y = _checked(gradient, model, x, y, loss, seed)
    grad = gradient(
        model,
        max_grad_norm=C,
        noise_multiplier=sigma,
        expected_batch_size=E,
        loss=loss,
        generator=torch.Generator(_home(model)).manual_seed(seed),
    )
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    repeats = max(8, min(400, 8000 // min(p.numel() for _, p in named)))
    most = _KEPT // repeats  # of each parameter's noise, in every draw
    draws: dict[str, list[Tensor]] = {f"{name} in {which}": [] for which in ("G1", "G2") for name, _ in named}
    for _ in range(repeats):
        for which in ("G1", "G2"):
            grad.backward(x[:0], y[:0])
            for name, p in named:
                kept = p.grad.detach().double().flatten()[:most] * (E / (sigma * C))
                draws[f"{name} in {which}"].append(kept.clone())
    noise = {name: torch.stack(rows) for name, rows in draws.items()}
    return _judge_noise(noise, confidence)


def _home(model: nn.Module) -> torch.device:
    """Where a model's gradients are, and their noise is drawn."""
    return next((p.device for p in model.parameters() if p.requires_grad), torch.device("cpu"))


def _judge_noise(noise: dict[str, Tensor], confidence: float) -> AuditResult:
    """Scale of each and correlation of any two; each tensor is (repeats, numel), of unit variance if all is well."""
    pairs = list(itertools.combinations(noise, 2))
    share = (1 - confidence) / (len(noise) + len(pairs)) / 2
    problems, smallest, samples = [], math.inf, 0
    for name, values in noise.items():
        n, total = values.numel(), float((values**2).sum())
        low, high = math.sqrt(total / chi2.isf(share, n)), math.sqrt(total / chi2.ppf(share, n))
        smallest, samples = min(smallest, high), samples + n
        if not low <= 1 <= high:
            problems.append(f"noise of {name} is {math.sqrt(total / n):.3g} of the declared")
    for a, b in pairs:
        width = min(noise[a].shape[1], noise[b].shape[1])
        first, second = noise[a][:, :width].flatten(), noise[b][:, :width].flatten()
        scale = float(first.norm() * second.norm())
        correlation = float(first @ second) / scale if scale else 0.0
        if abs(correlation) > norm.isf(share) / math.sqrt(len(first)):
            problems.append(f"noise of {a} and of {b} is correlated ({correlation:.2f})")
    detail = "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
    return AuditResult("noise", not problems, smallest, 1.0, "noise / declared noise", confidence, samples, detail)

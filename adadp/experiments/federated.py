"""The paper's federated experiments: every grid, seeds and tiers in one place.

Configs are written at the paper's size (10000 images a client, 200 rounds); the profiles ``full-data`` and ``laptop``
make them smaller. Tier 1 is what most claims need, tier 2 the other figures and the claims on Adam and on the first
learning rate, tier 3 the other ablations.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import log10

from adadp.experiments.configs import ADADP_FIELDS, ADAM_FIELDS, FederatedRun
from adadp.experiments.plan import SEEDS, Cell, Grid, half_decade

RANDOM = (0.0, 0.33, 0.66, 1.0)
BATCHES = (10, 20, 50, 100)
PAIRS = "1,9|0,8|3,5|2,6|4,7"  # automobile truck, airplane ship, cat dog, bird frog, deer horse
COMMON = dict(
    version="federated-1", dataset="cifar10", model="cifar_cnn", groups=PAIRS, examples_per_client=10000
) | dict(batch_size=10, local_epochs=1, rounds=200, keep_lr=True, reduction="mean", seed=0)
NONE = dict.fromkeys((*ADADP_FIELDS, *ADAM_FIELDS))
OWN = {
    "adadp": dict(lr=0.1, tol=0.1, exponent=1.0, advance="euler", discard=True, relative_error=True)
    | dict(alpha_min=0.9, alpha_max=1.1),
    "adam": dict(beta1=0.9, beta2=0.999, eps=1e-8),
    "sgd": {},
}
SGD_START = (-2.5, -2, -1.5, -1)
ADAM_START = (-4.5, -4, -3.5, -3)


def federated(method: str = "adadp", **changes) -> FederatedRun:
    """A config of the fixed protocol at the paper's size, with the method's own keywords filled in."""
    return FederatedRun(**(NONE | COMMON | OWN[method] | dict(method=method) | changes))


def seeds(role: str, config: FederatedRun, *, tier: int, peeking: bool = False) -> list[Cell]:
    """Three seeds of a point, all in the same tier: the paper averages three runs."""
    return [Cell(role, config.but(seed=s), tier, peeking) for s in SEEDS]


def sgd_search(grid: Grid, tier: int, **fixed) -> tuple[list[Cell], list[float]]:
    """SGD's half-decades at one setting, seed 0, ranked by the final accuracy on the test set (peeking)."""
    return grid.half_decades("sgd grid", lambda lr: federated("sgd", lr=lr, **fixed), SGD_START, tier)


def compared(grid: Grid, tier: int, **fixed) -> list[Cell]:
    """ADADP and tuned SGD at one setting, three seeds each, and the grid behind the tuning."""
    cells = seeds("adadp", federated(**fixed), tier=tier)
    search, ranking = sgd_search(grid, tier, **fixed)
    for lr in ranking[:1]:
        cells += seeds("sgd best", federated("sgd", lr=lr, **fixed), tier=tier, peeking=True)
    return cells + search


def randomness(grid: Grid) -> list[Cell]:
    """Accuracy after the last round by the share of uniformly random data."""
    return [c for p in RANDOM for c in compared(grid, 1, random_fraction=p)]


def rounds(grid: Grid) -> list[Cell]:
    """Accuracy by round, fully pathological and at 33 %; at full-data size SGD's best lr comes from the laptop size."""
    if grid.profile != "full-data":
        return [c for p in RANDOM[:2] for c in compared(grid, 1, random_fraction=p)]
    laptop, cells = Grid(grid.results, "laptop", grid.assume), []
    for p in RANDOM[:2]:
        cells.append(Cell("adadp", federated(random_fraction=p, seed=1)))
        for best in sgd_search(laptop, 1, random_fraction=p)[1][:1]:
            cells += _around(grid, best, p)
    return cells


def _around(grid: Grid, lr: float, fraction: float) -> list[Cell]:
    """SGD at this learning rate and its neighbours, and in tier 2 at further ones until the best one is interior."""
    near = [round(2 * log10(lr)) / 2 + k for k in (-0.5, 0, 0.5)]
    make = partial(federated, "sgd", random_fraction=fraction, seed=1)
    found, _ = grid.half_decades("sgd", lambda lr: make(lr=lr), near)
    return [replace(c, tier=1 if c.config.lr in map(half_decade, near) else 2) for c in found]


def batch(grid: Grid) -> list[Cell]:
    """The fully pathological case for several batch sizes; a local epoch is the same number of examples."""
    return [c for size in BATCHES for c in compared(grid, 1 if size == 10 else 2, random_fraction=0, batch_size=size)]


def initial_lr(grid: Grid) -> list[Cell]:
    """Accuracy by (initial) learning rate, for every share of random data, ADADP and SGD, three seeds a point."""
    cells = []
    for p in RANDOM:
        for k in (-3, -2.5, -2, -1.5, -1, -0.5, 0):
            lr = half_decade(k)
            cells += seeds("adadp by lr", federated(lr=lr, random_fraction=p), tier=2)
            if k <= -1:
                cells += seeds("sgd by lr", federated("sgd", lr=lr, random_fraction=p), tier=2)
    return cells


def adam(grid: Grid) -> list[Cell]:
    """Clients that use Adam, 33 % random: the grid, and the best two learning rates on three fresh seeds."""
    search, ranking = grid.half_decades(
        "adam grid", lambda lr: federated("adam", lr=lr, random_fraction=0.33), ADAM_START, tier=2
    )
    cells = seeds("adadp", federated(random_fraction=0.33), tier=1) + search
    for role, lr in zip(("adam best", "adam second"), ranking, strict=False):
        cells += seeds(role, federated("adam", lr=lr, random_fraction=0.33), tier=2, peeking=True)
    return cells


def discarding(grid: Grid) -> list[Cell]:
    """With and without discarding, fully pathological and at 33 %: the claim that it makes the method more stable."""
    cells = []
    for p in RANDOM[:2]:
        cells += seeds("adadp", federated(random_fraction=p), tier=1)
        cells += seeds("nothing discarded", federated(random_fraction=p, discard=False), tier=1)
    return cells


OPEN = ("lr reset each round", "sum of losses")  # what the paper leaves open: decided by these, so they come earlier
ABLATIONS = {
    "plain error": dict(relative_error=False),
    "half steps": dict(advance="half_steps"),
    "extrapolated": dict(advance="extrapolated"),
    "square root": dict(exponent=0.5),
    "lr reset each round": dict(keep_lr=False),
    "sum of losses": dict(reduction="sum"),
}


def ablations(grid: Grid) -> list[Cell]:
    """One thing changed at a time, fully pathological and at 33 %, one seed."""
    return [
        Cell(role, federated(random_fraction=p, seed=1, **change), 2 if role in OPEN else 3)
        for p in RANDOM[:2]
        for role, change in {"adadp": {}, **ABLATIONS}.items()
    ]


EXPERIMENTS: dict[str, Callable[[Grid], list[Cell]]] = {
    "fed-rounds": rounds,
    "fed-randomness": randomness,
    "fed-discarding": discarding,
    "fed-batch": batch,
    "fed-lr": initial_lr,
    "fed-adam": adam,
    "fed-ablations": ablations,
}

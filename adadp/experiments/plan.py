"""Cells (a config, what it is for, how urgent it is), profiles, and the looking-up of earlier results.

Grids use seed 0; every drawn curve uses seeds 1, 2, 3, winners included, so that no curve shows the run it was chosen
by. Tier 1 holds the grids and the first seed of every curve behind a claim, tier 2 the other seeds and the controls,
tier 3 ablations.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from adadp.experiments.configs import Config, FederatedRun, PrivateRun, TimingRun

SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Cell:
    """One run of an experiment: what it is for (``role``), its config, its tier, and whether its lr was peeked at."""

    role: str
    config: Config
    tier: int = 1
    peeking: bool = False


def _pilot(config: Config) -> Config:
    """Five epochs, with the decay starting inside them."""
    if isinstance(config, PrivateRun):
        return replace(config, epochs=5, decay_from=config.decay_from and 3)
    if isinstance(config, FederatedRun):
        return replace(config, examples_per_client=500, rounds=3)
    return replace(config, repeats=1) if isinstance(config, TimingRun) else config


def _quick(config: Config) -> Config:
    """Two epochs on the embedded images."""
    if isinstance(config, PrivateRun):
        model = "mnist_mlp" if config.model == "cifar_head" else config.model
        small = dict(dataset="mnist-5k", features=None, model=model, expected_batch_size=200, epochs=2)
        return replace(config, **small, holdout=500 if config.holdout else 0, decay_from=config.decay_from and 1)
    if isinstance(config, FederatedRun):
        return replace(config, dataset="mnist-5k", model="mnist_mlp", examples_per_client=200, rounds=3)
    return replace(config, repeats=1, steps_per_epoch=10) if isinstance(config, TimingRun) else config


def _federated(examples: int, rounds: int) -> Callable[[Config], Config]:
    """A size of the federated experiments; the private ones have none but the paper's."""

    def shrink(config: Config) -> Config:
        known = isinstance(config, FederatedRun)
        return replace(config, examples_per_client=examples, rounds=rounds) if known else config

    return shrink


PROFILES: dict[str, Callable[[Config], Config]] = {
    "paper": lambda config: config,
    "full-data": _federated(10000, 40),
    "laptop": _federated(2000, 40),
    "pilot": _pilot,
    "quick": _quick,
}
FEDERATED_SIZES = ("full-data", "laptop")
STORED = ("paper", *FEDERATED_SIZES)  # profiles whose results belong to the package


class Grid:
    """Builds cells for one profile and looks earlier results up.

    Args:
        results: id -> stored record.
        profile: "paper", "full-data" and "laptop" (smaller sizes of the federated experiments), "pilot" (5 epochs of
            every cell) or "quick" (embedded data, seconds).
        assume: pretend that unfinished grids have their best value in the middle, to count the runs that will follow.
    """

    def __init__(self, results: dict, profile: str = "paper", assume: bool = False):
        if profile not in PROFILES:
            raise ValueError(f"profile={profile!r} is unknown; choose one of {', '.join(PROFILES)}")
        self.results, self.profile, self.shrink, self.assume = results, profile, PROFILES[profile], assume

    def final(self, config: Config, guess: float = 0.0) -> float | None:
        """Accuracy after the last epoch; for a run that is not stored None, or `guess` where results are assumed."""
        record = self.results.get(self.shrink(config).id)
        if record is None:
            return guess if self.assume else None
        return record["rows"]["test_accuracy"][-1]

    def drawn(self, role: str, config: Config, *, tier: int = 1, peeking: bool = False) -> list[Cell]:
        """The three seeds of a curve: the first in `tier`, the others not before tier 2."""
        return [Cell(role, config.but(seed=s), tier if s == 1 else max(tier, 2), peeking) for s in SEEDS]

    def half_decades(self, role: str, make: Callable, exponents, tier: int = 1) -> tuple[list[Cell], list[float]]:
        """A grid of lr that grows until its best value is interior; the lr sorted best first once it is complete."""
        exponents = sorted(exponents)
        middle = exponents[len(exponents) // 2]
        while True:
            configs = {k: make(half_decade(k)) for k in exponents}
            cells = [Cell(role, config, tier, True) for config in configs.values()]
            scores = {k: self.final(config, -abs(k - middle)) for k, config in configs.items()}
            if None in scores.values():
                return cells, []
            best = max(scores, key=scores.get)
            if best not in (exponents[0], exponents[-1]) or not -8 < best < 3:
                return cells, [half_decade(k) for k in sorted(scores, key=scores.get, reverse=True)]
            exponents = sorted([*exponents, best - 0.5 if best == exponents[0] else best + 0.5])


def half_decade(exponent: float) -> float:
    """10**exponent to six digits, so that a config does not depend on the last bit of pow.

    >>> half_decade(-3.5)
    0.000316228
    """
    return float(f"{10**exponent:.6g}")

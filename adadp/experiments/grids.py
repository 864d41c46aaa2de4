"""The list of all experiments, and the cells of each: what ``adadp run`` can be asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adadp.experiments import federated, private
from adadp.experiments.configs import Config
from adadp.experiments.plan import FEDERATED_SIZES, STORED, Cell, Grid

EXPERIMENTS = {**private.EXPERIMENTS, **federated.EXPERIMENTS}


@dataclass(frozen=True)
class Job:
    """One run still to do: the experiment that asks first, the lowest tier that asks, the config."""

    experiment: str
    tier: int
    config: Config


def cells(experiment: str, results: dict, profile: str = "paper", *, assume: bool = False) -> list[Cell]:
    """The cells of an experiment that follow from the stored results, lowest tier first.

    Args:
        experiment: a key of :data:`EXPERIMENTS`.
        results: id -> stored record (see :func:`adadp.experiments.results.load`).
        profile: a key of :data:`adadp.experiments.plan.PROFILES`; "pilot" and "quick" keep one seed of a curve;
            "full-data" and "laptop" are sizes of the federated experiments, the others have no cells there.
        assume: count the runs of later stages too, as if unfinished grids had their best value in the middle.

    Raises:
        ValueError: an unknown experiment or profile.
    """
    if experiment not in EXPERIMENTS:
        raise ValueError(f"experiment={experiment!r} is unknown; choose one of {', '.join(EXPERIMENTS)}")
    grid = Grid(results, profile, assume)
    if profile in FEDERATED_SIZES and experiment not in federated.EXPERIMENTS:
        return []
    found = {}
    for cell in EXPERIMENTS[experiment](grid):
        if profile not in STORED and cell.config.seed > 1:
            continue
        cell = replace(cell, config=grid.shrink(cell.config))
        found.setdefault((cell.role, cell.config.id), cell)
    return sorted(found.values(), key=lambda cell: cell.tier)


def of_size(names: Sequence[str] | None, profile: str) -> list[str]:
    """Those of these experiments that a profile has, without names all of them.

    Raises:
        ValueError: an experiment that is named does not come in this size.
    """
    known = federated.EXPERIMENTS if profile in FEDERATED_SIZES else EXPERIMENTS
    if wrong := [name for name in names or () if name not in known]:
        raise ValueError(f"profile={profile!r} is a size of the federated experiments, not of {', '.join(wrong)}")
    return list(known if names is None else names)


def pending(names, known: dict, profile: str, tier: int | None = None, assume: bool = False) -> list[Job]:
    """Runs that are asked for and not stored, each once, lowest tier first, then in the order of the experiments."""
    jobs: dict[str, Job] = {}
    for name in names:
        for cell in cells(name, known, profile, assume=assume):
            key = cell.config.id
            if key in known or (tier is not None and cell.tier > tier):
                continue
            if key not in jobs or cell.tier < jobs[key].tier:
                jobs[key] = Job(jobs[key].experiment if key in jobs else name, cell.tier, cell.config)
    return sorted(jobs.values(), key=lambda job: job.tier)

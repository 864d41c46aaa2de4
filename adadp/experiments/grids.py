"""The list of all experiments, and the cells of each: what ``adadp run`` can be asked for."""

from dataclasses import replace

from adadp.experiments import private
from adadp.experiments.plan import Cell, Grid

EXPERIMENTS = {**private.EXPERIMENTS}  # another family of experiments joins here


def cells(experiment: str, results: dict, profile: str = "paper") -> list[Cell]:
    """The cells of an experiment that follow from the stored results, each config once, lowest tier first.

    Args:
        experiment: a key of :data:`EXPERIMENTS`.
        results: id -> stored record (see :func:`adadp.experiments.results.load`).
        profile: "paper", "pilot" or "quick"; the shorter two keep the first seed of a curve only.

    Raises:
        ValueError: an unknown experiment or profile.
    """
    if experiment not in EXPERIMENTS:
        raise ValueError(f"experiment={experiment!r} is unknown; choose one of {', '.join(EXPERIMENTS)}")
    grid = Grid(results, profile)
    found = {}
    for cell in EXPERIMENTS[experiment](grid):
        cell = replace(cell, config=grid.shrink(cell.config))
        if profile != "paper" and cell.config.seed > 1:
            continue
        found.setdefault((cell.role, cell.config.id), cell)
    return sorted(found.values(), key=lambda cell: cell.tier)

"""One case of an experiment, for a notebook: its settings and seed; said how long, run, kept, continued."""

from pathlib import Path

from adadp.experiments import results
from adadp.experiments.configs import FederatedRun, PrivateRun
from adadp.experiments.estimates import seconds
from adadp.experiments.federated import federated
from adadp.experiments.grids import Job
from adadp.experiments.plan import FEDERATED_SIZES, PROFILES, Grid
from adadp.experiments.private import CANDIDATE, VARIANTS, private, recommended
from adadp.experiments.runner import attempt


def case(
    data: str, variant: str, *, sigma: float, tol: float | None = None, seed: int = 1, profile: str = "paper"
) -> PrivateRun:
    """The config of one ADADP run of the private experiments.

    Args:
        data: "mnist" or "cifar".
        variant: "as_printed", "reference_code", "reference_code_tol1" or "recommended".
        sigma: noise multiplier, 0 or more.
        tol: another tol than the variant's.
        seed: 1, 2 and 3 are the seeds of the stored curves.
        profile: "paper" or "quick" (bundled data, two epochs).

    Raises:
        ValueError: an unknown variant or profile, or a value out of range.
    """
    known = VARIANTS | {"recommended": recommended(Grid(results.load())) or CANDIDATE}
    for name, value, choices in (
        ("data", data, ("mnist", "cifar")),
        ("variant", variant, known),
        ("profile", profile, PROFILES),
    ):
        if value not in choices:
            raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(choices)}")
    keywords = known[variant] if tol is None else known[variant] | dict(tol=tol)
    return PROFILES[profile](private(data, noise_multiplier=sigma, seed=seed, **keywords))


def federated_case(
    method: str, *, percent: float, lr: float | None = None, seed: int = 1, size: str = "laptop"
) -> FederatedRun:
    """The config of one run of the federated experiments.

    Args:
        method: "adadp", "sgd" or "adam".
        percent: share of uniformly random data, 0 to 100.
        lr: (first) learning rate; 0.1 if left out, which only ADADP may.
        seed: 1, 2 and 3 are the seeds of the stored curves.
        size: "laptop", "full-data", "paper" or "quick" (bundled data, three rounds).

    Raises:
        ValueError: an unknown method or size, or a value out of range.

    >>> federated_case("sgd", percent=33, lr=0.1).rounds
    40
    """
    sizes = (*FEDERATED_SIZES, "paper", "quick")
    for name, value, choices in (("method", method, ("adadp", "sgd", "adam")), ("size", size, sizes)):
        if value not in choices:
            raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(choices)}")
    if lr is None and method != "adadp":
        raise ValueError(f"lr is missing: {method} has no first value of its own")
    keywords = {} if lr is None else {"lr": lr}
    return PROFILES[size](federated(method, random_fraction=percent / 100, seed=seed, **keywords))


def run_case(config: PrivateRun | FederatedRun, *, device: str = "auto", folder=None) -> dict:
    """The record of one config: read where it is stored, or else run now.

    The expected minutes on this device are printed first. What was run is kept in the cache folder (`folder`, else
    ``$ADADP_CACHE/cases``), and so is a checkpoint of every epoch: a notebook that was killed continues there.

    Raises:
        RuntimeError: the run failed, or another process is at it.
    """
    from adadp.folders import cache_folder

    place = Path(folder) if folder else cache_folder() / "cases"
    for records in (results.load(), results.load(place)):
        if config.id in records:
            return records[config.id]
    print(f"{config.slug}: about {seconds(config, device) / 60:.1f} minutes on this device")
    _, error = attempt(Job("one", 1, config), place, device)
    records = results.load(place)
    if config.id not in records:
        raise RuntimeError(f"{config.slug}: {error or 'another process runs it; try again when it is done'}")
    return records[config.id]

"""The runner: every run of an experiment that is not stored yet, tier by tier, in one process or many.

It may be killed at any moment and started again, and several runners may work on one folder at once: a run is stored in
one step under the hash of its config, a stored run is never computed again, a lock that the system releases when its
process dies keeps two runners off the same run, and an interrupted run goes on from its last finished epoch. Runs of
full size come after a pilot: a few epochs of every one of their tier, whose numbers must be finite.

``backend`` is joblib's: "loky" (processes on this machine) by default; "dask" sends the runs to the cluster of the
active ``dask.distributed.Client``; "ray" needs ``ray.util.joblib.register_ray()`` called first. Workers write to
the results folder themselves and also return the record, so that a cluster without a shared disk works too.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from adadp.experiments import grids, places, results
from adadp.experiments.configs import Config
from adadp.experiments.estimates import estimate, print_plan, seconds
from adadp.experiments.evidence import data_of, key_of
from adadp.experiments.grids import Job, pending
from adadp.experiments.plan import PROFILES, STORED
from adadp.experiments.tables import reasons
from adadp.folders import data_folder

BACKENDS = ("loky", "dask", "ray")
WAIT = 5.0  # seconds between looks at runs that another runner is at


@dataclass
class Report:
    """What :func:`run` did: ids of new runs, why others failed, by config, and (dry run) the plan by tier."""

    new: list[str] = field(default_factory=list)
    failed: dict[Config, str] = field(default_factory=dict)
    plan: list[dict] = field(default_factory=list)


def run(
    experiment,
    profile: str = "paper",
    *,
    jobs: int = 1,
    backend: str = "loky",
    device: str = "auto",
    dry_run: bool = False,
    tier: int | None = None,
    limit: int | None = None,
    folder=None,
    progress: bool = True,
) -> Report:
    """Compute what an experiment still lacks.

    Args:
        experiment: a name, a list of names, or "all".
        profile: "paper", "full-data" or "laptop" (federated experiments made smaller), "pilot" (five epochs of every
            cell, kept in the cache folder) or "quick".
        jobs, backend: number of parallel runs and joblib's backend, see the module; each run uses one thread.
        device: "auto", "cpu" or "cuda"; looked for once, before the first run.
        dry_run: compute nothing; print the runs and hours of each tier, from step times measured now.
        tier: do the tiers up to this one (None: all).
        limit: stop after so many runs.
        folder: where results lie (see :func:`adadp.experiments.results.stored_folder`).
        progress: show a bar with the time left.

    Raises:
        ValueError: an unknown experiment, profile or backend, a number below 1, a device that is not here.
        RuntimeError: a folder cannot be written to; the data here are not those of an experiment's stored runs; or
            runs failed (the others were carried out and stored).
    """
    _check(jobs=jobs, limit=limit, tier=tier, backend=backend, device=device)
    named = [experiment] if isinstance(experiment, str) else experiment
    names = grids.of_size(None if experiment == "all" else named, profile)
    place = results.stored_folder(profile, folder)
    report = Report()
    if dry_run:
        report.plan = estimate(names, results.load(place), profile, tier, device)
        print_plan(report.plan)
        return report
    places.check_writable(place)
    _check_data(names, results.load(place), profile, tier, backend)
    workers = _Workers(place, device, jobs, backend, progress)
    _loop(report, lambda known: pending(names, known, profile, tier), limit, workers, pilots=profile in STORED)
    if report.failed:
        stored, why = f"{len(report.new)} new ones are stored", reasons(report.failed)
        raise RuntimeError(f"{len(report.failed)} runs failed ({stored}): {why}")
    return report


def _check(*, backend: str, device: str, **least_one) -> None:
    """Refuse what every run would fail on, once and before the first of them."""
    for name, value in least_one.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is unknown; choose one of {', '.join(BACKENDS)}")
    if backend != "loky" and least_one["jobs"] == 1:
        raise ValueError(f"backend={backend!r} needs jobs of 2 or more; a single job runs in this process")
    if backend == "loky" and device != "auto":  # a cluster's machines may have what this one lacks
        from adadp.evaluation import pick_device

        pick_device(device)


def _check_data(names, known: dict, profile: str, tier: int | None, backend: str) -> None:
    """Refuse to add runs to an experiment that has stored ones of the same data set from elsewhere.

    Raises:
        RuntimeError: it has; the message says what to do.
    """
    from adadp.data import DataError, available
    from adadp.experiments import execution

    for name in names:
        cells = grids.cells(name, known, profile)
        stored = data_of(known[cell.config.id] for cell in cells if cell.config.id in known)
        wanted = {
            key_of(c.config.to_dict()): c.config
            for c in cells
            if c.config.id not in known and c.tier <= (tier or c.tier)
        }
        for key in stored.keys() & wanted.keys():
            if backend != "loky" and not available(key[0], features=key[1]):
                continue  # a cluster's machines have them
            try:
                here = execution.provenance(wanted[key])
            except DataError:  # the runs themselves will say so
                continue
            if others := stored[key] - {here}:
                raise RuntimeError(
                    f"stored runs of {name} are of other {key[0]} data ({' and '.join(sorted(others))}) than those "
                    f"here ({here}): put those data into {data_folder()}, or keep new runs apart with --folder"
                )
    execution.dataset.cache_clear()  # with several jobs this process needs none


def _loop(report: Report, lacking: Callable, limit, workers, pilots: bool = False) -> None:
    """Ask what is lacking, have it done, and ask again: finished grids make new stages appear."""
    known, taken = results.load(workers.place), set()
    with workers:
        while limit is None or len(report.new) < limit:
            todo = [job for job in lacking(known) if job.config not in report.failed]
            todo.sort(key=lambda job: job.config in taken)  # what another runner was at comes last
            todo = todo if limit is None else todo[: limit - len(report.new)]
            if pilots and (faults := _pilot([j for j in todo if j.tier == todo[0].tier], workers)):
                report.failed |= faults
                continue
            if not todo:
                return
            workers.expect(todo)
            done_before, taken = len(report.new) + len(report.failed), set()
            for job, record, error in workers.carry_out(todo):
                if error:
                    report.failed[job.config] = error
                elif record:
                    report.new.append(job.config.id)
                else:
                    taken.add(job.config)
            known = results.load(workers.place, known=known)
            if len(report.new) + len(report.failed) == done_before and any(j.config.id not in known for j in todo):
                time.sleep(WAIT)


def _pilot(todo: list[Job], workers) -> dict[Config, str]:
    """A few epochs of every run before the first long one (kept in the cache); what is wrong, by the long run."""
    place = results.stored_folder("pilot")
    short = {job.config.id: replace(job, config=PROFILES["pilot"](job.config)) for job in todo}
    known, tried = results.load(place), Report()
    cells = {job.config.id: job for job in short.values()}
    if any(i not in known for i in cells):
        if workers.progress:
            print("first a short pilot of every run", file=sys.stderr)
        _loop(tried, lambda known: [j for i, j in cells.items() if i not in known], None, workers.at(place))
        known = results.load(place, known=known)
    faults = {i: tried.failed.get(job.config) or _fault(known[job.config.id]) for i, job in short.items()}
    return {job.config: f"its pilot failed: {fault}" for job in todo if (fault := faults[job.config.id])}


def _fault(record: dict) -> str | None:
    """What makes a short run a warning: numbers that are not finite (stored as null)."""
    rows = record["rows"]
    none = {"test_accuracy": 0, "lr": sum(map(len, rows.get("refused", [])))}  # what is no fault
    names = [name for name, count in none.items() if json.dumps(rows.get(name, [])).count("null") > count]
    return f"{' and '.join(names)} not finite, see {record['id']}" if names else None


class _Workers:
    """Carries jobs out, here or through joblib, and keeps the progress bar (in seconds of work)."""

    def __init__(self, place: Path, device: str, jobs: int, backend: str, progress: bool):
        self.place, self.device, self.jobs, self.backend, self.progress = place, device, jobs, backend, progress

    def at(self, place: Path) -> "_Workers":
        """The same workers for another folder of results."""
        return _Workers(place, self.device, self.jobs, self.backend, self.progress)

    def __enter__(self):
        from tqdm import tqdm

        layout = "{l_bar}{bar}| {n:.0f}/{total:.0f} s of work [{elapsed}<{remaining}{postfix}]"
        self.bar = tqdm(disable=not self.progress, total=0, mininterval=2, smoothing=0.05, bar_format=layout)
        self.done = 0.0
        return self

    def __exit__(self, *_):
        self.bar.close()

    def expect(self, todo: list[Job]) -> None:
        """Set the bar's end to what is done and what is known to be left."""
        if self.progress:
            self.bar.total = self.done + sum(seconds(job.config, self.device) for job in todo)
            self.bar.set_postfix_str(f"{len(todo)} runs left, tier {todo[0].tier}")

    def carry_out(self, todo: list[Job]) -> Iterator[tuple[Job, dict | None, str | None]]:
        """Yield (job, record, error); a record of None without error: another runner is at it.

        Alone, it stops after one run, because that run may change the plan; in parallel it does the lowest tier.
        """
        for job, record, error in self._alone(todo) if self.jobs == 1 else self._parallel(todo):
            if record:
                if not _stored(self.place, job):  # a worker on another disk
                    results.save(record, job.experiment, self.place)
                self._advance(job)
            yield job, record, error
            if self.jobs == 1 and (record or error):
                return

    def _alone(self, todo):
        for job in todo:
            share = seconds(job.config, self.device) / job.config.length if self.progress else 0.0
            yield job, *attempt(job, self.place, self.device, lambda share=share: self.bar.update(share))

    def _parallel(self, todo):
        from joblib import Parallel, delayed, parallel_config

        lowest = [job for job in todo if job.tier == todo[0].tier]
        how = "generator_unordered" if self.backend in ("loky", "dask") else "list"
        with parallel_config(backend=self.backend, n_jobs=self.jobs):
            calls = (delayed(_remote)(job, self.place, self.device) for job in lowest)
            yield from Parallel(return_as=how, batch_size=1)(calls)

    def _advance(self, job: Job) -> None:
        """Put the bar where it belongs after a run, also when the run began at a checkpoint."""
        if self.progress:
            self.done += seconds(job.config, self.device)
            self.bar.update(self.done - self.bar.n)


def _remote(job: Job, place: Path, device: str):
    """What a worker process is sent."""
    return job, *attempt(job, place, device)


def attempt(job: Job, place: Path, device: str, on_epoch=None) -> tuple[dict | None, str | None]:
    """Carry one job out and store it, unless it is stored or another process is at it; (record, error message).

    Raises:
        RuntimeError: a disk is full, so that every other run would fail as well.
    """
    from adadp.experiments.execution import execute, forget

    with places.lock(job.config.id) as mine:
        if not mine:
            return None, None
        checkpoint = places.cache("checkpoints") / f"{job.config.id}.pt"
        if _stored(place, job):  # perhaps by a process that was killed before it removed this
            forget(checkpoint)
            return None, None
        try:
            record = execute(job.config, device=device, checkpoint=checkpoint, on_epoch=on_epoch)
        except Exception as error:  # one broken cell must not stop a night of runs; the report names it
            places.stop_if_full(error, checkpoint.parent)
            return None, f"{type(error).__name__}: {error}"
        if _stored(place, job):  # by a runner whose cache, and with it the lock, is another
            forget(checkpoint)
            return None, None
        try:
            results.save(record, job.experiment, place)
        except OSError as error:
            places.stop_if_full(error, place)
            raise
        forget(checkpoint)
        return record, None


def _stored(place: Path, job: Job) -> bool:
    """Whether a job's record is there, under its experiment or another that shares the run."""
    return any(place.glob(f"*/*-{job.config.id}.json"))

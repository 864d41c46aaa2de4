"""What the sub-commands of ``adadp`` do with their parsed arguments: call the package, and print."""

import argparse
import difflib
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from adadp.rounding import round_up

ACCOUNTANTS = ("moments", "rdp", "pld")
NEIGHBORS = ("add_remove", "replace_one")
FAULTS = (
    "noise-divided-twice", "no-noise-on-g2", "one-draw-for-two-parameters", "one-draw-for-g1-and-g2",
    "clipping-ignored", "divisor-is-the-drawn-size", "clipping-per-parameter",
)  # fmt: skip
ACTIONS = ("status", "table", "verify", "claims")
PROFILES = ("paper", "full-data", "laptop", "pilot", "quick")
TEACH = {  # command -> what to know, in its help
    "epsilon": """\
Up to a probability of delta, no outcome of the training becomes more than exp(epsilon)
times as likely through any one record. Smaller is stronger. Epsilon follows from the
noise, the sampling rate and the number of gradients alone, so it is known before
training. All accountants give upper bounds: the smallest is as true as the others. They
hold for Poisson sampling (adadp.PoissonSampling), not for shuffled batches, and cover
one training: choosing settings by looking at the data costs extra. Printed values are
rounded up.""",
    "calibrate": """\
The result is noise_multiplier of adadp.PrivateGradient: the noise has this many times
the clipping norm as its standard deviation. It holds for Poisson sampling and for one
training. More epochs or a larger sampling rate need more noise.""",
    "audit": """\
Gray-box: neighbouring batches under the same randomness, whose sums may differ by the
clipping norm and no more; and the noise by itself. Canaries: thousands of iterations of
ADADP with and without one record, in the first gradient (G1), in the second (G2), and in
both together. One run: a thousand records guessed from a single run. A FAIL shows, up to
the confidence given, that the gradient is less private than declared; a PASS proves
nothing. Exit code 2 if any fails.""",
}


def book(a: argparse.Namespace) -> None:
    """Build, then say where the book is."""
    from adadp.publishing.build import build_book

    index = build_book(
        profile=a.profile, seed=a.seed, device=a.device, strict=a.strict, use_cache=not a.no_cache, workers=a.jobs,
        output=a.output, repository=a.repository, commit=a.commit, pages_branch=a.pages_branch,
        base_url=a.base_url,
    )  # fmt: skip
    folder = shlex.quote(str(index.parent))
    print(f"The book: {index}\nTo read it over http: python -m http.server --directory {folder} 8000")


def run(a: argparse.Namespace) -> None:
    """Compute what is lacking, then say how much that was."""
    from adadp.experiments import grids, results, runner

    names = [choose(name, [*grids.EXPERIMENTS, "all"], "experiment") for name in a.experiment]
    report = runner.run(
        "all" if "all" in names else names, a.profile, jobs=a.jobs, backend=a.backend, device=a.device,
        dry_run=a.dry_run, tier=a.tier, limit=a.limit, folder=a.folder, progress=sys.stderr.isatty(),
    )  # fmt: skip
    if not a.dry_run:
        print(f"{len(report.new)} new runs in {results.stored_folder(a.profile, a.folder)}")


def results(a: argparse.Namespace) -> None:
    """Show what is stored, or check some of it."""
    from adadp.experiments import grids, results, tables
    from adadp.experiments.plan import STORED

    choose(a.action, ACTIONS, "action")
    _check_folder(a.folder)
    if a.action == "claims":
        return _claims(a)
    named = [choose(name, grids.EXPERIMENTS, "experiment") for name in a.experiment]
    names = grids.of_size(named or None, a.profile)
    records = results.load(a.folder, a.profile)
    if a.action == "status":
        _status(tables, records, a.profile, names)
    elif a.action == "table":
        for name in names:
            _table(name, tables.table(name, records, a.profile), a.profile)
        print("accuracy: final, in percent, mean over seeds; range: lowest to highest seed")
    else:
        sizes = STORED if a.profile == "paper" else (a.profile,)
        ids = {cell.config.id for n in names for size in sizes for cell in grids.cells(n, records, size)}
        _verify({i: r for i, r in records.items() if i in ids}, a)


def _check_folder(folder: str | None) -> None:
    """Refuse a results folder that is not there: zeros everywhere would say that nothing was computed yet."""
    named = "--folder" if folder else "ADADP_RESULTS"
    place = folder or os.environ.get("ADADP_RESULTS")
    if place and not Path(place).is_dir():
        raise ValueError(f"{named}: {place} is not a folder; nothing can be stored there yet")


def _status(tables, records: dict, profile: str, names: list[str]) -> None:
    """Stored and planned runs by experiment, then by tier."""
    _print_table([row for row in tables.status(records, profile) if row["experiment"] in names])
    print("\nby tier, runs that several experiments share counted once:")
    _print_table(tables.tiers(records, profile, names))
    print("(`adadp run NAME --dry-run` measures how many hours the missing ones take on this machine)")


def _table(name: str, rows: list[dict], profile: str) -> None:
    """The stored curves of one experiment, and what they were made from."""
    print(name)
    shown = [{n: v for n, v in row.items() if n != "data"} for row in rows]
    for row in shown:
        row |= {k: round_up(row[k], 4) for k in ("epsilon_moments", "epsilon_pld") if row.get(k) is not None}
    if not rows:
        option = "" if profile == "paper" else f" --profile {profile}"
        return print(f"  nothing stored yet; `adadp run {name}{option}` makes it")
    _print_table(shown)
    for line in dict.fromkeys(row["data"] for row in rows):
        print(f"  data: {line}")
    if any("epsilon_pld" in row for row in rows):
        from adadp.privacy.statement import assumptions

        print(f"  epsilon: of one run, rounded up, for {assumptions()}")


def _verify(records: dict, a: argparse.Namespace) -> None:
    """Some runs, computed again and compared."""
    from adadp.evaluation import pick_device
    from adadp.experiments.estimates import seconds
    from adadp.experiments.verification import verify

    pick_device(a.device)

    def say(config) -> None:
        """Such a run takes minutes, in which nothing else is printed."""
        minutes = seconds(config, a.device) / 60
        print(f"computing {config.slug} again, about {minutes:.1f} minutes", file=sys.stderr)

    rows = verify(records, sample=a.sample, seed=a.seed, device=a.device, report=say)
    _print_table(rows)
    if any(row["ok"] is False for row in rows):
        raise RuntimeError("some runs came out differently (ok: False)")
    if all(row["ok"] is None for row in rows):
        raise RuntimeError(
            "none of these runs could be compared: the data here are others than those they were made from"
        )


def _claims(a: argparse.Namespace) -> None:
    """Every claim of the paper with its verdict, as the page Claims shows it."""
    from adadp.experiments.claims import CLAIMS
    from adadp.figures import claims

    if a.profile != "paper":
        raise ValueError("claims are judged at the sizes that their rules name; leave --profile out")
    ids = [choose(name, [c.id for c in CLAIMS], "claim") for name in a.experiment]
    found = claims.stored_reports(a.folder, ids)
    print(claims.Cards(found))
    print(f"\n{len([one for one in found if not one.earlier])} claims: {claims.counts(found)}")


def audit(a: argparse.Namespace) -> None:
    """Every audit's result, then whether all passed."""
    from adadp.auditing import run_audit

    gradient = {}
    if a.plant:
        from adadp.auditing.faults import FAULTS as planted

        gradient = {"gradient": planted[a.plant]}
    found = run_audit(
        **gradient, quick=a.profile == "quick", one_run=not a.no_one_run, noise_multiplier=a.noise_multiplier,
        delta=a.delta, confidence=a.confidence, seed=a.seed, strict=False,
    )  # fmt: skip
    for result in found:
        print(result)
    failed = sum(not result.passed for result in found)
    if failed:
        raise RuntimeError(f"{failed} of {len(found)} audits failed: the gradient is less private than it declares")


def _steps(a: argparse.Namespace) -> int:
    """Gradients of a plan."""
    if a.steps is not None:
        return a.steps
    if not 0 < a.sample_rate <= 1:
        raise ValueError(f"sample_rate must be in (0, 1] to count epochs, got {a.sample_rate!r}")
    return a.epochs * round(1 / a.sample_rate)


def epsilon(a: argparse.Namespace) -> None:
    """One number, or all accountants side by side."""
    from adadp.privacy.accounting import epsilon

    steps = _steps(a)
    plan = {"sample_rate": a.sample_rate, "steps": steps, "delta": a.delta, "neighbors": a.neighbors}
    if a.accountant:
        print(round_up(epsilon(noise_multiplier=a.noise_multiplier, accountant=a.accountant, **plan), 6))
        return
    names = ACCOUNTANTS if a.neighbors == "add_remove" else ("pld",)
    values = {name: epsilon(noise_multiplier=a.noise_multiplier, accountant=name, **plan) for name in names}
    said = f"Poisson sampling at rate {a.sample_rate:.6g}, delta {a.delta:g}, neighbours {a.neighbors}"
    print(f"{steps} gradients, {said}")
    for name, value in values.items():
        note = _last_order(a, steps) if name == "moments" else ""
        print(f"  {name:8} {round_up(value, decimals=4)}{note}")


def _last_order(a: argparse.Namespace, steps: int) -> str:
    """A remark where the moments accountant would do better with more orders."""
    from adadp.privacy.accounting import MomentsAccountant

    accountant = MomentsAccountant()
    accountant.step(noise_multiplier=a.noise_multiplier, sample_rate=a.sample_rate, num_steps=steps)
    last = accountant.orders[-1]
    return f"  (the best order is the last, {last}: pld says more)" if accountant.warning(delta=a.delta) else ""


def calibrate(a: argparse.Namespace) -> None:
    """The noise multiplier and the epsilon it gives."""
    from adadp.privacy.accounting import calibrate_noise_multiplier, epsilon, privacy_statement

    plan = {"sample_rate": a.sample_rate, "steps": _steps(a), "delta": a.delta}
    plan |= {"neighbors": a.neighbors, "accountant": a.accountant}
    sigma = calibrate_noise_multiplier(target_epsilon=a.target_epsilon, **plan)
    print(f"noise_multiplier {sigma!r}  (epsilon {round_up(epsilon(noise_multiplier=sigma, **plan), 6)})")
    print(privacy_statement(noise_multiplier=sigma, **plan, short=True))


def choose(value: str, names: Iterable[str], what: str) -> str:
    """``value`` if it is one of ``names``.

    Raises:
        ValueError: it is not; the message lists the names and the one that was probably meant.

    >>> choose("quikc", ["quick", "paper"], "profile")
    Traceback (most recent call last):
    ValueError: unknown profile 'quikc'; did you mean 'quick'? Valid: quick, paper
    """
    names = list(names)
    if value in names:
        return value
    near = difflib.get_close_matches(value, names, 1, 0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown {what} {value!r}; {hint}Valid: {', '.join(names)}")


def _print_table(rows: list[dict]) -> None:
    """Columns of equal width; nothing stored is said in words."""
    if not rows:
        print("  nothing stored yet")
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    for line in [names, *cells]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value) -> str:
    """A value of a table."""
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    return f"{value:.5g}"

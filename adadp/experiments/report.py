"""What can be said about each claim today: verdict, numbers seed by seed, what went into them, what is still missing.

Nothing here decides anything: the rules stand in :mod:`adadp.experiments.claims` and
:mod:`adadp.experiments.federated_claims`, and :func:`adadp.experiments.evidence.judge` applies them. Where runs are
missing a rule is also asked what it *would* look at, so that they can be counted, and what the seeds stored so far say.
"""

import subprocess
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from adadp.experiments import claims, grids
from adadp.experiments.configs import Config
from adadp.experiments.evidence import VERDICTS, Claim, Evidence, MissingRuns, Verdict, judge, profile_of
from adadp.experiments.federated_execution import PER_CLIENT
from adadp.experiments.plan import SEEDS
from adadp.experiments.results import grouped

RECOMMENDED = "recommended"


@dataclass(frozen=True)
class Report:
    """A claim as a page shows it.

    Args:
        verdict: of :func:`adadp.experiments.evidence.judge`.
        so_far: variant -> what the rule's numbers are with the seeds stored so far; only where runs are missing.
        by_seed: variant -> seed -> the rule's numbers with that seed alone: the spread behind a mean.
        curves: what the rule looks at, see :func:`adadp.experiments.results.curves`, with their experiment; a curve
            may have no stored run yet.
        beside: the same numbers for our own recommended variant, which no verdict rests on; often empty.
        missing, needed: runs that the rule needs for all its variants, and how many of them are not stored.
        earlier: it was judged by a rule that another one replaced.
    """

    verdict: Verdict
    so_far: dict[str, str]
    by_seed: dict[str, dict[int, str]]
    curves: tuple[dict, ...]
    missing: int
    needed: int
    beside: str = ""
    earlier: bool = False


def reports(records: dict) -> list[Report]:
    """All claims, each followed by what its earlier rules say."""
    return [report(c, records, earlier=c is not claim) for claim in claims.CLAIMS for c in (claim, *claim.earlier)]


def report(claim: Claim, records: dict, *, earlier: bool = False) -> Report:
    """What can be said about one claim.

    Args:
        claim: with its rule.
        records: id -> stored record.
        earlier: mark it as judged by a rule that is no longer the valid one.
    """
    verdict = judge(claim, records)
    if claim.rule is None:
        return Report(verdict, {}, {}, (), 0, 0, earlier=earlier)
    evidence, so_far, by_seed, probe = Evidence(records, complete=False), {}, {}, probed(claim, records)
    for variant in claim.variants:
        number = _ask(claim, evidence, variant)
        if number and variant not in verdict.numbers:
            so_far[variant] = number
        if number:
            by_seed[variant] = _seed_by_seed(claim, records, variant)
    missing = len(probe.wanted - set(records))
    by_seed = {variant: seeds for variant, seeds in by_seed.items() if seeds}
    beside, seen = _recommended(claim, records)
    return Report(verdict, so_far, by_seed, (*probe.stored(), *seen), missing, len(probe.wanted), beside, earlier)


def _ask(claim: Claim, evidence: Evidence, variant: str) -> str:
    """The rule's numbers on this evidence; nothing where even that is missing."""
    if claim.rule is None:
        return ""
    try:
        return claim.rule(evidence, variant)[1]
    except MissingRuns:
        return ""


def _recommended(claim: Claim, records: dict) -> tuple[str, list[dict]]:
    """What the rule finds of our own variant, and the curves that only this adds; for claims on several variants."""
    if len(claim.variants) < 2:
        return "", []
    for complete in (True, False):
        evidence = Evidence(records, complete=complete)
        if number := _ask(claim, evidence, RECOMMENDED):
            own = [c | {"experiment": name} for (name, _), c in evidence.seen.items() if c["role"] == RECOMMENDED]
            return number if complete else f"{number} (seeds are missing)", own
    return "", []


def _seed_by_seed(claim: Claim, records: dict, variant: str) -> dict[int, str]:
    """The rule's numbers with one seed of every curve at a time; empty for a rule that rests on single runs."""
    found = {}
    for seed in SEEDS:
        others = set(SEEDS) - {seed}
        evidence = Evidence({i: r for i, r in records.items() if r["config"]["seed"] not in others}, complete=False)
        number = _ask(claim, evidence, variant)
        if number and all(curve["planned"] == len(SEEDS) for curve in evidence.seen.values()):
            found[seed] = number
    return found


def probed(claim: Claim, records: dict) -> "_Probe":
    """What a rule looks at: its ``wanted`` are the ids of all runs that the verdict needs, grids of baselines included.

    Runs of stages whose grids are not complete are counted as if the grids' best value were interior.
    """
    probe = _Probe(records)
    for variant in claim.variants:
        _ask(claim, probe, variant)
    return probe


class _Probe(Evidence):
    """Evidence for the sake of the question: what is not stored is there, with values that mean nothing."""

    def __init__(self, records: dict):
        super().__init__(records)
        self.wanted: set[str] = set()
        self._cells: dict[str, list] = {}

    def _check_data(self, found: list[dict]) -> None:
        """Runs are counted here, whatever their data."""

    def known(self, experiment: str) -> list[dict]:
        """All curves that will ever be asked for, blank ones among them."""
        cells = grids.cells(experiment, self.records, profile_of(experiment), assume=True)
        self._cells[experiment] = cells
        blanks = {c.config.id: _blank(c.config) for c in cells if c.config.id not in self.records}
        return grouped(cells, self.records | blanks)

    def curves(self, experiment, role=None, sigma=None, random_fraction=None) -> list[dict]:
        """The curves, noting their runs and those of the grids they were chosen from."""
        found = super().curves(experiment, role, sigma, random_fraction)
        self.wanted |= {r["id"] for c in found for r in c["records"]}
        tuned = {c["config"]["method"] for c in found if c["peeking"]}
        grids_of = [c.config for c in self._cells[experiment] if c.role.endswith(" grid") and c.config.method in tuned]
        self.wanted |= {g.id for g in grids_of if random_fraction in (None, getattr(g, "random_fraction", None))}
        return found

    def stored(self) -> tuple[dict, ...]:
        """The curves that were looked at, with their stored runs only."""
        return tuple(
            curve | {"experiment": name, "records": [r for r in curve["records"] if r["id"] in self.records]}
            for (name, _), curve in self.seen.items()
        )


def _blank(config: Config) -> dict:
    """A record in which every column is flat."""
    rows: dict = defaultdict(lambda: [1.0] * config.length)
    clients = [1.0] * 5
    if config.kind == "federated":
        rows |= {name: [clients] * config.length for name in PER_CLIENT}
    within = {"round": [config.length], "lr": [[[1.0] * 10] * len(clients)]}
    return {"id": config.id, "config": config.to_dict(), "rows": rows, "within_rounds": within}


def tally(found: list[Report]) -> dict[str, int]:
    """How often each verdict was given, by today's rules, the best one first."""
    counts: dict[str, int] = {}
    for one in found:
        if not one.earlier:
            counts[one.verdict.verdict] = counts.get(one.verdict.verdict, 0) + 1
    return {verdict: counts[verdict] for verdict in VERDICTS if verdict in counts}


def rules_before_runs(found: list[Report]) -> tuple[int, int, int]:
    """How many of the runs behind today's rules were made by code that already held each rule they count for; of how
    many this can be told; and how many others name no commit, or one that this history does not hold. Our own
    variant, which is shown beside them, is not among them.

    Where no rule's commit is known, as outside a checkout, nothing is counted: (0, 0, 0).
    """
    answers: dict[str, set[int]] = {}
    for one in found:
        rule = None if one.earlier else claims.rule_commit(one.verdict.claim)
        judged = [curve for curve in one.curves if curve["role"] != RECOMMENDED]
        for record in (r for curve in judged for r in curve["records"] if rule):
            for part in (record, *([record["begun"]] if record.get("begun") else ())):  # a resumed run has two commits
                answers.setdefault(record["id"], set()).add(_contains((part.get("commit") or "").rstrip("+"), rule))
    told = [known for known in answers.values() if known <= {0, 1}]
    return sum(known == {0} for known in told), len(told), len(answers) - len(told)


@lru_cache
def _contains(later: str, earlier: str) -> int:
    """Git's answer: 0 is yes, 1 is no, anything else that it does not know."""
    if not later:
        return -1
    command = ["git", "merge-base", "--is-ancestor", earlier, later]
    try:
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True).returncode
    except OSError:
        return -1

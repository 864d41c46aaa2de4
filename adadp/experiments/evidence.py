"""What a claim is, the stored results as its rule sees them, and how a verdict follows.

A rule is asked about the method *as printed* first; if that fails, about the reference code's variant.
"""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from adadp.experiments.configs import from_dict
from adadp.experiments.results import curves

HOLDS = "holds"
REFERENCE_ONLY = "holds only in the reference code's variant"
FAILS = "does not hold"
UNTESTABLE = "not testable here"
INCOMPLETE = "not complete yet"
VERDICTS = (HOLDS, REFERENCE_ONLY, FAILS, UNTESTABLE, INCOMPLETE)


def profile_of(experiment: str) -> str:
    """The size an experiment is judged at."""
    return "laptop" if experiment.startswith("fed-") else "paper"


class MissingRuns(Exception):
    """Runs that a rule needs are not stored, or not of one and the same data."""


class Evidence:
    """Stored results as a rule sees them; remembers which curves and runs it used.

    Args:
        records: id -> stored record.
        complete: a curve that lacks a seed counts as missing; otherwise one seed is enough (for a look ahead, never for
            a verdict).
    """

    def __init__(self, records: dict, *, complete: bool = True):
        self.records, self.complete = records, complete
        self.used, self.seen, self._curves = {}, {}, {}

    def curves(
        self, experiment: str, role: str | None = None, sigma: float | None = None, random_fraction: float | None = None
    ) -> list[dict]:
        """Complete curves of that role, sigma and share of random data.

        Raises:
            MissingRuns: there is none, one lacks a seed, or their data are not those of the curves before.
        """
        if experiment not in self._curves:
            self._curves[experiment] = self.known(experiment)
        found = [
            c
            for c in self._curves[experiment]
            if role in (None, c["role"])
            and sigma in (None, c["config"].get("noise_multiplier"))
            and random_fraction in (None, c["config"].get("random_fraction"))
        ]
        if not found or any(len(c["records"]) < (c["planned"] if self.complete else 1) for c in found):
            where = f" at sigma {sigma:g}" if sigma is not None else ""
            where += f" at {100 * random_fraction:g} % random" if random_fraction is not None else ""
            raise MissingRuns(f"{experiment}: {role or 'all'}{where}")
        self._check_data(found)
        for curve in found:
            self.used |= {r["id"]: r for r in curve["records"]}
            self.seen[experiment, from_dict(curve["config"]).id] = curve
        return found

    def _check_data(self, found: list[dict]) -> None:
        """Refuse runs of one data set from several sources: their difference would count as one of methods."""
        records = [*self.used.values(), *(r for c in found for r in c["records"])]
        for (name, *_), sources in data_of(records).items():
            if len(sources) > 1:
                raise MissingRuns(f"stored runs of {name} are of different data: {' and '.join(sorted(sources))}")

    def known(self, experiment: str) -> list[dict]:
        """All curves of an experiment, as far as they are stored."""
        return curves(experiment, self.records, profile_of(experiment))

    def runs(
        self, experiment: str, role: str, sigma: float | None = None, random_fraction: float | None = None
    ) -> list[dict]:
        """The records of one curve, one a seed."""
        return [r for c in self.curves(experiment, role, sigma, random_fraction) for r in c["records"]]

    def final(
        self, experiment: str, role: str, sigma: float | None = None, random_fraction: float | None = None
    ) -> float:
        """Final accuracy of a curve in percent, mean over its seeds."""
        return exactly(mean_final(self.runs(experiment, role, sigma, random_fraction)))

    def gap(self, one: tuple[str, str], other: tuple[str, str], **where: float) -> float:
        """How far one curve (its experiment and role) ends above another at the same place, see :func:`gap`."""
        return gap(self.runs(*one, **where), self.runs(*other, **where))


def mean_final(records: Iterable[dict]) -> float:
    """Final accuracy in percent, mean over records."""
    return statistics.fmean(100 * r["rows"]["test_accuracy"][-1] for r in records)


def alike(*runs: list[dict]) -> list[list[dict]]:
    """Of these lists of records what has a seed that all of them have (everything, where they share none): while seeds
    are still missing, another seed must not pass for another method."""
    seeds = set.intersection(*({r["config"]["seed"] for r in found} for found in runs))
    return [[r for r in found if r["config"]["seed"] in seeds] or found for found in runs]


def gap(one: list[dict], other: list[dict]) -> float:
    """Difference of final accuracies in points, mean over the seeds that both have, see :func:`alike`."""
    first, second = map(mean_final, alike(one, other))
    return exactly(first - second)


def key_of(config: dict) -> tuple:
    """What data a config asks for: the data set, its features, examples held out; both of these are in provenances."""
    return config.get("dataset"), config.get("features"), config.get("holdout")


def data_of(records: Iterable[dict]) -> dict[tuple, set[str]]:
    """Where the data of records come from: :func:`key_of` its config -> provenances."""
    found: dict[tuple, set[str]] = {}
    for record in records:
        if record["config"].get("dataset") and record.get("data"):  # times are taken on synthetic examples
            found.setdefault(key_of(record["config"]), set()).add(record["data"])
    return found


def exactly(points: float) -> float:
    """A number of points without the rounding of binary fractions, so that a limit that is met is met.

    >>> 92.3 - 92.0 >= 0.3, exactly(92.3 - 92.0) >= 0.3
    (False, True)
    """
    return round(points, 6)


@dataclass(frozen=True)
class Claim:
    """A claim in our words, where the paper makes it, and the rule that judges it.

    Args:
        id: a short name.
        text: the claim.
        where: title of the section of the paper.
        criterion: the rule in words.
        rule: (evidence, variant) -> (true or not, numbers); None where nothing can be tested here.
        variants: asked in this order, "as_printed" first.
        earlier: the same claim with rules that this one replaced.
        dated: words of the criterion as they stand in the source, where it is put together from several.
        note: what a reader should know beside the rule.
    """

    id: str
    text: str
    where: str
    criterion: str
    rule: Callable[[Evidence, str], tuple[bool, str]] | None
    variants: tuple[str, ...] = ("as_printed",)
    earlier: tuple["Claim", ...] = ()
    dated: str = ""
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """A judged claim: the verdict, our numbers by variant, the ids of the runs behind them, what is missing."""

    claim: Claim
    verdict: str
    numbers: dict[str, str]
    runs: tuple[str, ...]
    missing: str = ""


def judge(claim: Claim, records: dict) -> Verdict:
    """Compute the verdict on a claim from stored results (id -> record)."""
    if claim.rule is None:
        return Verdict(claim, UNTESTABLE, {}, ())
    evidence, numbers, outcomes, missing = Evidence(records), {}, [], ""
    for variant in claim.variants:
        try:
            holds, numbers[variant] = claim.rule(evidence, variant)
        except MissingRuns as error:
            missing = missing or str(error)
            holds = None
        outcomes.append(holds)
    first, rest = outcomes[0], outcomes[1:]
    if first:
        verdict = HOLDS
    elif first is None or (True not in rest and None in rest):
        verdict = INCOMPLETE
    else:
        verdict = REFERENCE_ONLY if True in rest else FAILS
    return Verdict(claim, verdict, numbers, tuple(sorted(evidence.used)), missing if verdict == INCOMPLETE else "")

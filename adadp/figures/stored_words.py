"""What stands below a figure of stored runs, in words: what was spent, where the data come from, what is missing."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adadp.experiments import results, tables
from adadp.figures import style
from adadp.privacy import assumptions
from adadp.rounding import round_up

ACCOUNTANTS = ("moments", "PLD")  # as readers know them; columns are named in lower case


@dataclass(frozen=True)
class Note:
    """A sentence in the place of a figure that cannot be drawn yet."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<p class="adadp-note">{html.escape(self.text)}</p>'


def not_yet(config) -> Note:
    """What stands in the place of a case that was never run."""
    return Note(f"No run of this case ({config.slug}) is stored yet; with the profile paper this page runs it.")


def missing(*experiments: str, records: dict | None = None, profile: str = "paper") -> str:
    """A sentence for each experiment that says how many of its runs are stored, tier by tier where some are not.

    Args:
        experiments: their names.
        records: stored results; the package's own if left out.
        profile: "paper", or another size of federated experiments.
    """
    said, size = [], "" if profile == "paper" else f" --profile {profile}"
    for name in experiments:
        rows = tables.tiers(results.load() if records is None else records, profile, names=[name])
        stored, planned = (sum(row[key] for row in rows) for key in ("stored", "planned"))
        lacking = [f"{r['planned'] - r['stored']} of tier {r['tier']}" for r in rows if r["stored"] < r["planned"]]
        tail = f"; adadp run {name}{size} makes {' and '.join(lacking)}" if lacking else ""
        count = f"{stored} of {planned}" if stored and lacking else f"{'none' if lacking else 'all'} of the {planned}"
        said.append(f"{name}: {count} runs are stored{tail}.")
    return " ".join(said)


def found(experiment: str, size: str = "paper", folder=None, **fixed) -> tuple[list[dict], str]:
    """Curves of an experiment that have a stored run, and a sentence on what is missing.

    Args:
        experiment: "dp-adam-mnist", "fed-rounds", ...
        size: "paper", or of the federated ones also "laptop" or "full-data".
        folder: of the stored results; the package's own if left out.
        **fixed: fields of the config that must have these values.
    """
    records = results.load(folder)
    curves = [c for c in results.curves(experiment, records, size) if c["records"]]
    curves = [c for c in curves if all(c["config"][name] == value for name, value in fixed.items())]
    return curves, missing(experiment, records=records, profile=size)


def of_a_case(config, stored: int) -> str:
    """What stands below a case of one's own, over the band of so many stored seeds: one alone makes none."""
    return f"The case {config.slug}.{' Band: lowest to highest stored seed.' if stored > 1 else ''}"


def band(seeds: Iterable[int]) -> str:
    """What the curves are, by how many seeds each has.

    >>> band([3, 3]), band([1, 1])
    ('Line: mean over seeds; band: lowest to highest.', 'One seed a curve.')
    >>> band([3, 1])
    'Line: mean over seeds; band, where there are several: lowest to highest.'
    """
    found = set(seeds)
    if found == {1}:
        return "One seed a curve."
    return f"Line: mean over seeds; band{', where there are several' * (1 in found)}: lowest to highest."


def data_line(records: Sequence[dict]) -> str:
    """Where the data of these runs come from, each source once."""
    return "; ".join(dict.fromkeys(r["data"] for r in records))


def spent(records: Sequence[dict]) -> str:
    """The privacy statement of private runs: what each noise multiplier has spent at the end, by both accountants."""
    ends: dict = {}
    for record in records:
        columns, sigma = record["rows"], record["config"].get("noise_multiplier")
        if sigma:
            ends.setdefault(sigma, []).append([columns[f"epsilon_{a.lower()}"][-1] for a in ACCOUNTANTS])
    said = [f"{both([*map(max, zip(*ends[s], strict=True))])} at σ = {s:g}" for s in sorted(ends)]
    delta = records[0]["config"].get("delta", 0) if records else 0
    shuffled = any(record["config"].get("sampler") == "shuffled" for record in records)
    stands_on = assumptions(sampler="partly a shuffled partition" if shuffled else "poisson")
    return f"ε (moments / PLD, δ = {style.number(delta)}) {', '.join(said)}; {stands_on}" if said else ""


def both(epsilons: Sequence[float]) -> str:
    """Epsilon under both accountants, rounded up, with equally many digits."""
    return " / ".join(round_up(value, decimals=2 if max(epsilons) >= 1 else 3) for value in epsilons)

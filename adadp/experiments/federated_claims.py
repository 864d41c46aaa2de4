"""The paper's claims about federated learning, each with the rule that judges it on the ``laptop`` size.

Fixed before their runs (the valid rule of "fed-discarding" before half of them), like those of
:mod:`adadp.experiments.claims`, whose terms they use: an accuracy is the one after the last round, in percent, averaged
over three seeds; SGD is the one tuned at that setting.
"""

import itertools
import statistics

from adadp.experiments.evidence import Claim, Evidence, alike, exactly, mean_final
from adadp.experiments.federated import RANDOM
from adadp.rounding import signed

BROKEN = 12.0  # per cent; guessing one of ten classes is right in 10
WHERE, METHOD = "Federated learning experiments", "Adaptive federated averaging algorithm"


def _keeps(evidence: Evidence, variant: str) -> tuple[bool, str]:
    """Rule: at 33 % random data ADADP is at least 1.0 point above tuned SGD."""
    gap = evidence.gap(("fed-rounds", "adadp"), ("fed-rounds", "sgd best"), random_fraction=0.33)
    return gap >= 1.0, f"{signed(gap)} points at 33 % random"


def _drops_less(evidence: Evidence, variant: str) -> tuple[bool, str]:
    """Rule: from 100 % to 0 % random data tuned SGD loses at least 3.0 points more than ADADP."""
    places = [(role, share) for role in ("adadp", "sgd best") for share in (1.0, 0.0)]
    runs = alike(*(evidence.runs("fed-randomness", role, random_fraction=share) for role, share in places))
    ends = {place: exactly(mean_final(found)) for place, found in zip(places, runs, strict=True)}
    lost, said = {}, []
    for role, name in (("adadp", "ADADP"), ("sgd best", "tuned SGD")):
        uniform, grouped = ends[role, 1.0], ends[role, 0.0]
        lost[role] = exactly(uniform - grouped)
        said.append(f"{name} loses {lost[role]:.1f} points ({uniform:.1f} to {grouped:.1f} %)")
    more = exactly(lost["sgd best"] - lost["adadp"])
    return more >= 3.0, f"from 100 % to 0 % random {', '.join(said)}, a difference of {signed(more, 2)}"


def _unrest(record: dict) -> float:
    """Mean change of the accuracy from round to round after round 5 (the first is that from 6 to 7), in points."""
    accuracy = [100 * a for a in record["rows"]["test_accuracy"]][5:]
    return statistics.fmean(abs(b - a) for a, b in itertools.pairwise(accuracy))


def _discarding(evidence: Evidence, variant: str) -> tuple[bool, str]:
    """Rule: at 0 and 33 % random data, training without discarding breaks down (ends at 12 % or less) and with it does
    not; or discarding lowers the unrest by a quarter or more and loses at most 1.0 point."""
    found = [_stability(evidence, p) for p in RANDOM[:2]]
    return all(calmer or saved for calmer, saved, _ in found), "; ".join(said for *_, said in found)


def _calmer(evidence: Evidence, variant: str) -> tuple[bool, str]:
    """Rule: at 0 and 33 %, discarding lowers the unrest by a quarter or more and loses at most 1.0 point.

    Replaced, before any run without discarding was stored: training that has broken down is calm.
    """
    found = [_stability(evidence, p) for p in RANDOM[:2]]
    return all(calmer for calmer, *_ in found), "; ".join(said for *_, said in found)


def _stability(evidence: Evidence, fraction: float) -> tuple[bool, bool, str]:
    """Whether discarding makes training calmer, and whether it saves it from breaking down, at one share of random
    data; and the numbers."""
    roles = ("adadp", "nothing discarded")
    runs = alike(*(evidence.runs("fed-discarding", role, random_fraction=fraction) for role in roles))
    kept, plain = (statistics.fmean(map(_unrest, found)) for found in runs)
    with_it, without = (exactly(mean_final(found)) for found in runs)
    calmer = plain > 0 and kept <= 0.75 * plain and exactly(with_it - without) >= -1.0
    saved = without <= BROKEN < with_it
    ends = [[100 * r["rows"]["test_accuracy"][-1] for r in found] for found in runs]
    broken, lost = (f"{sum(end <= BROKEN for end in found)} of {len(found)}" for found in ends)
    said = (
        f"at {100 * fraction:.0f} % training breaks down in {broken} with discarding, {lost} without; accuracy "
        f"{with_it:.1f} with, {without:.1f} without; {kept:.2f} points from round to round with, {plain:.2f} without"
    )
    return calmer, saved, said


def _small_first(evidence: Evidence, variant: str) -> tuple[bool, str]:
    """Rule: fully pathological, the median over clients and stored rounds from 2 on of the lr a tenth into the round,
    divided by the lr at its end, is at most 0.8."""
    ratios = [x for r in evidence.runs("fed-rounds", "adadp", random_fraction=0.0) for x in early_ratios(r)]
    return statistics.median(ratios) <= 0.8, f"median ratio {statistics.median(ratios):.2f}"


def early_ratios(record: dict) -> list[float]:
    """The lr a tenth into a round over that at its end, of every client in every round from 2 on that is stored."""
    traced = record["within_rounds"]
    rounds = zip(traced["round"], traced["lr"], strict=True)
    return [lrs[len(lrs) // 10] / lrs[-1] for number, clients in rounds if number >= 2 for lrs in clients if lrs]


def _different_lr(evidence: Evidence, variant: str) -> tuple[bool, str]:
    """Rule: fully pathological, over the last ten rounds the clients' mean end lr differ by a factor 1.5 or more, in
    every run."""
    factors = [*map(end_factor, evidence.runs("fed-rounds", "adadp", random_fraction=0.0))]
    return min(factors) >= 1.5, "factors " + ", ".join(f"{f:.2f}" for f in factors)


def end_factor(record: dict) -> float:
    """Largest over smallest of the clients' learning rates at the end of a round, each a mean over the last ten."""
    ends = zip(*record["rows"]["lr"][-10:], strict=True)  # None in a round that a client was left out of
    means = [statistics.fmean(told) for lrs in ends if (told := [lr for lr in lrs if lr is not None])]
    return max(means) / min(means)


def _adam_poor(evidence: Evidence, variant: str) -> tuple[bool, str]:
    """Rule: at 33 % random data the best Adam is at least 5.0 points below ADADP."""
    gap = evidence.gap(("fed-adam", "adadp"), ("fed-adam", "adam best"), random_fraction=0.33)
    return gap >= 5.0, f"ADADP ends {abs(gap):.1f} points {'below' if gap < 0 else 'above'} the best Adam"


def _lr_hardly_matters(evidence: Evidence, variant: str) -> tuple[bool, str]:
    """Rule: at every share of random data the accuracies over the grid of initial lr lie within 3.0 points."""
    ranges = {}
    for p in RANDOM:
        by_lr: dict[float, list[float]] = {}
        for record in evidence.runs("fed-lr", "adadp by lr", random_fraction=p):
            by_lr.setdefault(record["config"]["lr"], []).append(100 * record["rows"]["test_accuracy"][-1])
        means = [statistics.fmean(values) for values in by_lr.values()]
        ranges[p] = exactly(max(means) - min(means))
    return max(ranges.values()) <= 3.0, ", ".join(f"range {r:.1f} at {100 * p:.0f} %" for p, r in ranges.items())


CALMER = Claim(
    "fed-discarding", "Discarding makes the federated method considerably more stable.", METHOD,
    "round-to-round change after round 5 at least a quarter smaller, at most 1.0 point lost, 0 % and 33 %", _calmer,
)  # fmt: skip
CLAIMS: list[Claim] = [
    Claim("fed-keeps", "With 33 % random data the adaptive method keeps accuracy much better than tuned SGD.", WHERE,
          "at least 1.0 point above, laptop size, three seeds", _keeps),
    Claim("fed-drops-less", "As data become less uniform, tuned SGD drops drastically and the adaptive method adapts.",
          WHERE, "SGD loses at least 3.0 points more from 100 % to 0 % random data, three seeds", _drops_less),
    Claim("fed-discarding", CALMER.text, METHOD,
          "only without discarding training breaks down (12 % or less), or " + CALMER.criterion, _discarding,
          earlier=(CALMER,), dated="breaks down (12 % or less)",
          note="the mean over three seeds has to break down, so that one run that survives prevents it; "
          "a run that has counts as calm; the first change that counts is that from round 6 to 7"),
    Claim("fed-small-first", "Each local training begins with small steps.", METHOD,
          "median of lr a tenth into the round over lr at its end at most 0.8, 0 % random, rounds from 2 on",
          _small_first),
    Claim("fed-different-lr", "Clients end at different learning rates.", METHOD,
          "largest over smallest mean end lr of the last ten rounds at least 1.5, 0 % random, every run",
          _different_lr),
    Claim("fed-adam", "Adam gives poor results in federated averaging.", WHERE,
          "best Adam at least 5.0 points below ADADP, 33 % random, three seeds", _adam_poor),
    Claim("fed-lr", "The initial lr hardly matters in federated averaging.", WHERE,
          "range of at most 3.0 points over half-decades of the initial lr, every share of random data",
          _lr_hardly_matters, note="our reading of a figure's caption; no sentence of the paper says it"),
]  # fmt: skip

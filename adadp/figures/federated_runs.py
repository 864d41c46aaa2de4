"""Stored federated runs as the chapters draw them: what is there, with as many seeds as there are, and in words what
is still missing."""

import math
import statistics
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure

from adadp.experiments.federated import ABLATIONS, OPEN
from adadp.experiments.federated_claims import BROKEN
from adadp.experiments.results import finals, spread
from adadp.figures import federated, plots, style
from adadp.figures.points import by_value, has_course
from adadp.figures.stored import own_and_alike
from adadp.figures.stored_words import Note, data_line, found, not_yet, of_a_case
from adadp.figures.table import Table
from adadp.rounding import signed

SIZE = "laptop"
SIZES = ("laptop", "full-data", "paper")
SEED = 1  # of the runs of one size that are compared with those of another
BY_ROUND = {"x": "round", "y": "test_accuracy"}
ROLES = {  # role of a stored curve -> method name of the house style, or what was changed
    "adadp": "adadp",
    "sgd best": "sgd",
    "adam best": "adam",
    "adam second": "adam_second",
    "nothing discarded": "nothing discarded",
}


def origin(experiment: str = "fed-rounds", *, size: str = SIZE, folder=None) -> str:
    """Where the data of an experiment's stored runs come from."""
    curves, _ = found(experiment, size, folder)
    return data_line([r for c in curves for r in c["records"]]) or "no data: no run is stored"


def rows(record: Mapping) -> list[dict]:
    """The rounds of a stored record as rows; a traced round also has the learning rates within it (lrs). What a client
    that was left out of a round did not tell is nan."""
    columns = record["rows"]
    found = [dict(zip(columns, map(told, values), strict=True)) for values in zip(*columns.values(), strict=True)]
    within = traced(record)
    return [row | ({"lrs": within[row["round"]]} if row["round"] in within else {}) for row in found]


def traced(record: Mapping) -> dict[int, list[list[float]]]:
    """The learning rates within rounds that are stored in detail, a list a client: by round."""
    numbers, rates = record.get("within_rounds", {"round": [], "lr": []}).values()
    lengths = [max(len(lrs) for lrs in clients if lrs) for clients in rates]
    filled = [[lrs or [math.nan] * n for lrs in clients] for clients, n in zip(rates, lengths, strict=True)]
    return dict(zip(numbers, filled, strict=True))


def told(value):
    """The value of a column, with nan in place of None among those of clients."""
    return [math.nan if v is None else v for v in value] if isinstance(value, list) else value


@matplotlib.rc_context(style.RC)
def by_round(experiment: str, percent: float, *, size: str = SIZE, folder=None) -> Figure | Note:
    """Test accuracy of the averaged model by round at one share of random data: mean and spread over seeds."""
    curves, said = found(experiment, size, folder, random_fraction=percent / 100)
    searched = max((c for c in curves if c["role"] == "sgd"), key=_mean, default=None)  # at full-data size
    curves = [c | {"role": "sgd best", "searched": True} if c is searched else c for c in curves]
    curves = [c for c in curves if c["role"] in ROLES]
    if not curves:
        return Note(said)
    runs = {ROLES[c["role"]]: [rows(r) for r in c["records"]] for c in curves}
    fig = plots.curves(runs, **BY_ROUND, ax=style.figure(height=3.3).axes[0])
    (ax,) = fig.axes
    ax.set(xlabel="communication round", ylabel="test accuracy", title=f"{percent:g} % random")
    style.percent_axis(ax)
    ends = ", ".join(f"{_label(c)} {spread(finals(c))}" for c in curves)
    plots.describe(fig, f"Test accuracy by communication round, {percent:g} % random data. At the end: {ends}.")
    return finish(fig, f"After the last round: {ends}. {_tuned(curves)}", curves, said)


@matplotlib.rc_context(style.RC)
def by_randomness(*, size: str = SIZE, folder=None) -> Figure | Note:
    """Accuracy after the last round against the share of random data: mean, lowest and highest seed of each method."""
    curves, said = found("fed-randomness", size, folder)
    curves = [c for c in curves if c["role"] in ROLES]
    points: dict = {}
    for curve in curves:
        at = points.setdefault(ROLES[curve["role"]], {})
        at[100 * curve["config"]["random_fraction"]] = [r["rows"]["test_accuracy"][-1] for r in curve["records"]]
    if not has_course(points):
        return Note(said)
    fig = by_value(points, xlabel="uniformly random data (%)", ax=style.figure(height=3.3).axes[0])
    fig.axes[0].set_xticks(sorted({at for values in points.values() for at in values}))
    return finish(fig, f"After the last round. {_tuned(curves)}", curves, said)


@matplotlib.rc_context(style.RC)
def by_batch_size(*, size: str = SIZE, folder=None) -> Figure | Note:
    """Test accuracy by round at 0 % random data, a panel a batch size: mean and spread over seeds."""
    curves, said = found("fed-batch", size, folder)
    curves = [c for c in curves if c["role"] in ROLES]
    sizes = sorted({c["config"]["batch_size"] for c in curves})
    if len(sizes) < 2:
        return Note(said)
    fig, ends = style.figure(panels=len(sizes), height=3.0, sharey=True), []
    for ax, batch_size in zip(fig.axes, sizes, strict=True):
        shown = [c for c in curves if c["config"]["batch_size"] == batch_size]
        plots.curves({ROLES[c["role"]]: [rows(r) for r in c["records"]] for c in shown}, **BY_ROUND, ax=ax)
        ax.set(xlabel="communication round", ylabel="", title=f"|B| = {batch_size}")
        style.percent_axis(ax)
        ends.append(f"|B| = {batch_size}: " + ", ".join(f"{_label(c)} {spread(finals(c))}" for c in shown))
    fig.axes[0].set_ylabel("test accuracy")
    plots.describe(fig, f"Test accuracy by communication round, 0 % random data. At the end: {'; '.join(ends)}.")
    return finish(fig, _tuned(curves), curves, said)


@matplotlib.rc_context(style.RC)
def by_lr(*, size: str = SIZE, folder=None) -> Figure | Note:
    """Accuracy after the last round against the (first) learning rate, one curve a share of random data: mean, lowest
    and highest seed; ADADP on the left, SGD on the right."""
    curves, said = found("fed-lr", size, folder)
    values: dict = {}  # (method, share of random data) -> learning rate -> final accuracies
    for c in sorted(curves, key=lambda c: c["config"]["lr"]):
        values.setdefault((c["config"]["method"], c["config"]["random_fraction"]), {})[c["config"]["lr"]] = finals(c)
    if not has_course(values):
        return Note(said)
    fig, ranges = style.figure(panels=2, height=3.3, sharey=True), []
    shares = sorted({share for _, share in values})
    looks = style.looks([f"{100 * p:g} % random" for p in reversed(shares)])
    panels = (("adadp", "ADADP", "first learning rate η₀"), ("sgd", "SGD", "learning rate η"))
    for ax, (method, title, xlabel) in zip(fig.axes, panels, strict=True):
        ends = []
        style.log_axis(ax)
        for p in shares:
            points = values.get((method, p), {})
            mean, low, high = ([f(v) / 100 for v in points.values()] for f in (statistics.fmean, min, max))
            look = looks[f"{100 * p:g} % random"]
            ax.fill_between(list(points), low, high, color=look["color"], alpha=0.16, linewidth=0)
            ax.plot(list(points), mean, **look)
            if points:
                ends.append((list(points)[-1], mean[-1], f"{100 * p:g} %", look["color"]))
            if len(mean) > 1:
                ranges.append(f"{title} at {100 * p:g} % {100 * (max(mean) - min(mean)):.1f}")
        ax.set(title=f"{title}, by % random", xlabel=xlabel)
        style.percent_axis(ax)
        plots.label_ends(ax, ends)
    fig.axes[0].set_ylabel("test accuracy")
    words = f"Points from the worst to the best learning rate: {', '.join(ranges)}." if ranges else ""
    plots.describe(fig, f"Test accuracy against the learning rate, by share of random data. {words}")
    return finish(fig, f"After the last round. {words}".strip(), curves, said)


def _mean(curve: Mapping) -> float:
    """Final accuracy in percent, mean over seeds."""
    return statistics.fmean(finals(dict(curve)))


@matplotlib.rc_context(style.RC)
def ablations(percent: float, *, size: str = SIZE, folder=None) -> Figure | Note:
    """Accuracy after the last round with one thing changed at a time, as bars, at the seeds that ADADP has here."""
    curves, said = found("fed-ablations", size, folder, random_fraction=percent / 100)
    seeds = {r["config"]["seed"] for c in curves if c["role"] == "adadp" for r in c["records"]}
    for c in found("fed-discarding", size, folder, random_fraction=percent / 100)[0]:
        alike = [r for r in c["records"] if r["config"]["seed"] in seeds]
        curves += [c | {"records": alike}] if c["role"] == "nothing discarded" and alike else []
    if not curves:
        return Note(said)
    order = ["adadp", "nothing discarded", *ABLATIONS]
    curves = sorted(curves, key=lambda c: order.index(c["role"]))
    values = {ROLES.get(c["role"], c["role"]): [r["rows"]["test_accuracy"][-1] for r in c["records"]] for c in curves}
    fig = plots.bars(values, xlabel=f"test accuracy, {percent:g} % random", percent=True)
    spans = any(len(seeds) > 1 for seeds in values.values())
    line = "; a line reaches from the lowest to the highest seed" if spans else ""
    return finish(fig, f"One thing changed at a time{line}.", curves, said)


def broken(*, size: str = SIZE, folder=None) -> dict[str, int]:
    """How many runs of "fed-discarding" end at chance, with discarding and without, and of how many each."""
    curves, _ = found("fed-discarding", size, folder)
    ends: dict[str, list[float]] = {"adadp": [], "nothing discarded": []}
    for curve in curves:
        ends.setdefault(curve["role"], []).extend(finals(curve))
    counts = {role: sum(end <= BROKEN for end in found) for role, found in ends.items()}
    return counts | {"runs": len(ends["nothing discarded"])}


def switches(percent: float, *, size: str = SIZE, folder=None) -> str:
    """Final accuracy of ADADP with the choices that the paper leaves open, made in the other way; as plain text."""
    curves, said = found("fed-ablations", size, folder, random_fraction=percent / 100)
    values = {c["role"]: f"{statistics.fmean(finals(c)):.1f} %" for c in curves if c["role"] in ("adadp", *OPEN)}
    if not values.keys() & set(OPEN):
        return f"{percent:g} % random: not stored yet. {said}"
    names = {"adadp": "lr kept, mean of losses", **dict(zip(OPEN, OPEN, strict=True))}
    told = ", ".join(f"{name} {values[role]}" for role, name in names.items() if role in values)
    return f"{percent:g} % random, one seed: {told}"


def sizes(percent: float, *, folder=None) -> Table | Note:
    """Final accuracies of one seed of ADADP and of SGD's learning rates, a column a stored size; in the last row how
    far ADADP is from the best of these SGDs."""
    columns, records = _by_size(percent, folder)
    shared = [n for n in columns.get(SIZE, {}) if all(n in column for column in columns.values())]
    if len(columns) < 2 or len(shared) < 2:
        return Note(f"{percent:g} % random: adadp run fed-rounds --profile full-data runs the second size.")
    head = f"{percent:g} % random, accuracy (%)"
    lines = [{head: n} | {size: f"{column[n]:.1f}" for size, column in columns.items()} for n in shared]
    gaps = size_gaps(percent, folder=folder)
    lines.append({head: "ADADP − best SGD"} | {size: signed(gaps[size]) if size in gaps else "–" for size in columns})
    orders = {tuple(sorted(shared, key=column.__getitem__)) for column in columns.values()}
    order = (
        "The methods come in the same order at every size." if len(orders) == 1 else "Their order depends on the size."
    )
    seed = f"One seed each, {SEED} where it is stored, else that of the search"
    notes = [f"{order} {seed}; the best SGD is chosen by test accuracy.", f"Data: {data_line(records)}"]
    return Table(lines, f"Final accuracy by size, {percent:g} % random", notes)


def size_gaps(percent: float, *, folder=None) -> dict[str, float]:
    """Size -> how far ADADP ends from the best of SGD's learning rates that were run, in points; one seed."""
    columns, _ = _by_size(percent, folder)
    found = {}
    for size, column in columns.items():
        rivals = [value for name, value in column.items() if name != "ADADP" and name in columns.get(SIZE, {})]
        if "ADADP" in column and rivals:
            found[size] = column["ADADP"] - max(rivals)
    return found


def search_ends(*percents: float, folder=None) -> str:
    """A sentence on shares of random data at which the best of SGD's learning rates at the full-data size is the first
    or the last of those that are stored; empty where there is none."""
    said = []
    for percent in percents:
        curves, _ = found("fed-rounds", "full-data", folder, random_fraction=percent / 100)
        rates = sorted((c for c in curves if c["role"] == "sgd"), key=lambda c: c["config"]["lr"])
        if rates and (best := max(rates, key=_mean)) in (rates[0], rates[-1]):
            said.append(f"the {'smallest' if best is rates[0] else 'largest'} at {percent:g} %")
    where = " and ".join(said)
    return f"Of SGD's learning rates stored at that size the best is {where}: others may do better." if said else ""


def _by_size(percent: float, folder) -> tuple[dict[str, dict[str, float]], list[dict]]:
    """Size -> method -> final accuracy in percent of one seed, the same where it is stored; and the records."""
    columns: dict[str, dict[str, dict]] = {}
    for size in SIZES:
        for curve in found("fed-rounds", size, folder, random_fraction=percent / 100)[0]:
            name = "ADADP" if curve["role"] == "adadp" else f"SGD {style.number(curve['config']['lr'])}"
            for record in curve["records"]:
                column = columns.setdefault(size, {})
                if name not in column or record["config"]["seed"] == SEED:
                    column[name] = record
    records = [record for column in columns.values() for record in column.values()]
    return {s: {n: 100 * r["rows"]["test_accuracy"][-1] for n, r in c.items()} for s, c in columns.items()}, records


def one_case(config, record: dict | None = None, *, folder=None) -> Figure | Note:
    """Accuracy by round of one case over the band of the stored seeds of that same case.

    Args:
        config: of :func:`adadp.experiments.cases.federated_case`.
        record: of :func:`adadp.experiments.cases.run_case`; None draws the stored band alone.
        folder: of the stored results.
    """
    runs, records = own_and_alike(config, record, folder)
    if not runs:
        return not_yet(config)
    series = {name: [rows(r) for r in found] for name, found in runs.items()}
    fig = federated.accuracy_by_round(series, data=data_line(records))
    plots.caption(fig, of_a_case(config, len(records) - bool(record)))
    return fig


def _label(curve: dict) -> str:
    """Name of a curve's method; of a tuned one with its learning rate."""
    name = ROLES[curve["role"]]
    label = style.METHODS[name]["label"] if name in style.METHODS else name
    return f"{label} (lr {style.number(curve['config']['lr'])})" if curve["peeking"] else label


def _tuned(curves: Sequence[dict]) -> str:
    """A sentence on learning rates that were chosen by looking at the test set."""
    names = dict.fromkeys(_label(c).split(" (lr")[0] for c in curves if c["peeking"])
    searched = any(c.get("searched") for c in curves)
    how = "the same seed, from a grid around the laptop size's best" if searched else "another seed"
    return f"The learning rate of {' and '.join(names)} was chosen by test accuracy on {how}." if names else ""


def finish(fig: Figure, caption: str, curves: Sequence[dict], said: str) -> Figure:
    """Caption with the size of the runs and what is missing, and their data."""
    config, seeds = curves[0]["config"], sorted({len(c["records"]) for c in curves})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    size = f"Stored runs: five clients of {config['examples_per_client']} images, {config['rounds']} rounds"
    plural = "s" * (seeds[-1] > 1)
    broken = sum("diverged" in r for c in curves for r in c["records"])
    said = f"Runs that broke down and count as guessing from there on: {broken}. {said}" if broken else said
    plots.caption(fig, " ".join(filter(None, [f"{size}, {count} seed{plural} a curve.", caption, said])))
    plots.provenance(fig, data_line([r for c in curves for r in c["records"]]))
    return fig

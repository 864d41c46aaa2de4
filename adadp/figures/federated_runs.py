"""Stored federated runs as the chapters draw them: what is there, with as many seeds as there are, and in words what
is still missing."""

import itertools
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure

from adadp.experiments import results
from adadp.experiments.federated import ABLATIONS
from adadp.experiments.report import finals, spread
from adadp.figures import federated, plots, style
from adadp.figures.points import by_value
from adadp.figures.stored import Note, data_line, missing

SIZE = "laptop"
SIZES = ("laptop", "full-data", "paper")
ROLES = {  # role of a stored curve -> method name of the house style, or what was changed
    "adadp": "adadp",
    "sgd best": "sgd",
    "adam best": "adam",
    "adam second": "adam_second",
    "nothing discarded": "nothing discarded",
}


def found(experiment: str, size: str = SIZE, folder=None, **fixed) -> tuple[list[dict], str]:
    """Curves of an experiment that have a stored run, and a sentence on what is missing.

    Args:
        experiment: "fed-rounds", ...
        size: "laptop", "full-data" or "paper".
        folder: of the stored results; the package's own if left out.
        **fixed: fields of the config that must have these values.
    """
    records = results.load(folder)
    curves = [c for c in results.curves(experiment, records, size) if c["records"]]
    curves = [c for c in curves if all(c["config"][name] == value for name, value in fixed.items())]
    return curves, missing(experiment, records=records, profile=size)


def rows(record: Mapping) -> list[dict]:
    """The rounds of a stored record as rows; a traced round also has the learning rates within it (lrs)."""
    columns = record["rows"]
    found = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    within = dict(zip(*record.get("within_rounds", {"round": [], "lr": []}).values(), strict=True))
    return [row | ({"lrs": within[row["round"]]} if row["round"] in within else {}) for row in found]


@matplotlib.rc_context(style.RC)
def by_round(experiment: str, percent: float, *, size: str = SIZE, folder=None) -> Figure | Note:
    """Test accuracy of the averaged model by round at one share of random data: mean and spread over seeds."""
    curves, said = found(experiment, size, folder, random_fraction=percent / 100)
    curves = [c for c in curves if c["role"] in ROLES]
    if not curves:
        return Note(said)
    runs = {ROLES[c["role"]]: [rows(r) for r in c["records"]] for c in curves}
    fig = plots.curves(runs, x="round", y="test_accuracy", ax=style.figure(height=3.3).axes[0])
    (ax,) = fig.axes
    ax.set(xlabel="communication round", ylabel="test accuracy", title=f"{percent:g} % random")
    style.percent_axis(ax)
    ends = ", ".join(f"{_label(c)} {spread(finals(c))}" for c in curves)
    plots.describe(fig, f"Test accuracy by communication round, {percent:g} % random data. At the end: {ends}.")
    return _finish(fig, f"After the last round: {ends}. {_tuned(curves)}", curves, said)


@matplotlib.rc_context(style.RC)
def by_setting(experiment: str, name: str, *, size: str = SIZE, folder=None) -> Figure | Note:
    """Accuracy after the last round against one setting: mean, lowest and highest seed of each method.

    Args:
        experiment: "fed-randomness" or "fed-batch".
        name: field of the config: "random_fraction" or "batch_size".
        size, folder: see :func:`found`.
    """
    curves, said = found(experiment, size, folder)
    curves = [c for c in curves if c["role"] in ROLES]
    if not curves:
        return Note(said)
    scale, xlabel = {"random_fraction": (100, "uniformly random data (%)"), "batch_size": (1, "batch size")}[name]
    points: dict = {}
    for curve in curves:
        at = points.setdefault(ROLES[curve["role"]], {})
        at[scale * curve["config"][name]] = [r["rows"]["test_accuracy"][-1] for r in curve["records"]]
    fig = by_value(points, xlabel=xlabel, log=name == "batch_size", ax=style.figure(height=3.3).axes[0])
    fig.axes[0].set_xticks(sorted({at for values in points.values() for at in values}))
    return _finish(fig, f"After the last round. {_tuned(curves)}", curves, said)


def clients(percent: float, *, size: str = SIZE, folder=None) -> Figure | Note:
    """What each client chose in a stored run: its learning rate by round, and the share of steps it discarded."""
    return _of_one_run(percent, size, folder, federated.client_rates)


def within_round(percent: float, number: int, *, size: str = SIZE, folder=None) -> Figure | Note:
    """The learning rate of each client in the course of one round of a stored run."""

    def draw(rounds, data):
        return federated.within_round(rounds, number, data=data)

    return _of_one_run(percent, size, folder, draw)


def _of_one_run(percent: float, size: str, folder, draw) -> Figure | Note:
    """A figure of the first stored seed of ADADP at one share of random data."""
    curves, said = found("fed-rounds", size, folder, random_fraction=percent / 100)
    curves = [c for c in curves if c["role"] == "adadp"]
    if not curves:
        return Note(said)
    record = curves[0]["records"][0]
    fig = draw(rows(record), data=record["data"])
    one = [curves[0] | {"records": [record]}]
    return _finish(fig, f"{percent:g} % random, seed {record['config']['seed']}.", one, "")


@matplotlib.rc_context(style.RC)
def ablations(percent: float, *, size: str = SIZE, folder=None) -> Figure | Note:
    """Accuracy after the last round with one thing changed at a time, as bars."""
    curves, said = found("fed-ablations", size, folder, random_fraction=percent / 100)
    curves += [
        c
        for c in found("fed-discarding", size, folder, random_fraction=percent / 100)[0]
        if c["role"] == "nothing discarded"
    ]
    if not curves:
        return Note(said)
    order = ["adadp", "nothing discarded", *ABLATIONS]
    curves = sorted(curves, key=lambda c: order.index(c["role"]))
    values = {ROLES.get(c["role"], c["role"]): [r["rows"]["test_accuracy"][-1] for r in c["records"]] for c in curves}
    fig = plots.bars(values, xlabel=f"test accuracy, {percent:g} % random", percent=True)
    return _finish(
        fig, "One thing changed at a time; a line reaches from the lowest to the highest seed.", curves, said
    )


def sizes(percent: float, *, folder=None) -> str:
    """Final accuracies of one seed of ADADP and of SGD's learning rates at every size that is stored, and whether the
    sizes put the methods in the same order; as plain text."""
    columns: dict[str, dict[str, float]] = {}
    for size in SIZES:
        curves, _ = found("fed-rounds", size, folder, random_fraction=percent / 100)
        for curve in curves:
            if curve["role"] != "sgd best":  # (its other seeds)
                name = "ADADP" if curve["role"] == "adadp" else f"SGD {style.number(curve['config']['lr'])}"
                columns.setdefault(size, {})[name] = 100 * curve["records"][0]["rows"]["test_accuracy"][-1]
    shared = [n for n in columns.get(SIZE, {}) if all(n in column for column in columns.values())]
    if len(columns) < 2 or len(shared) < 2:
        return (
            f"{percent:g} % random: a second size is not stored yet; adadp run fed-rounds --profile full-data runs it."
        )
    lines = [f"{percent:g} % random  " + "  ".join(size.rjust(9) for size in columns)]
    lines += [f"{n:13s} " + "  ".join(f"{column[n]:7.1f} %" for column in columns.values()) for n in shared]
    orders = {size: sorted(shared, key=column.__getitem__, reverse=True) for size, column in columns.items()}
    for (one, first), (other, second) in itertools.pairwise(orders.items()):
        verdict = "the same" if first == second else f"{', '.join(first)} against {', '.join(second)}"
        lines.append(f"order at {one} and {other}: {verdict}")
    return "\n".join(lines)


def one_case(config, record: dict | None = None, *, folder=None) -> Figure | Note:
    """Accuracy by round of one case over the band of the stored seeds of that same case.

    Args:
        config: of :func:`adadp.experiments.cases.federated_case`.
        record: of :func:`adadp.experiments.cases.run_case`; None draws the stored band alone.
        folder: of the stored results.
    """
    known = results.load(folder).values()
    alike = [r for r in known if r["config"] | {"seed": 0} == config.to_dict() | {"seed": 0}]
    runs: dict[str, Sequence] = {}
    if alike:
        runs[f"stored, {len(alike)} seed{'s' * (len(alike) > 1)}"] = [rows(r) for r in alike]
    if record:
        runs[f"this run, seed {config.seed}"] = [rows(record)]
    if not runs:
        return Note(f"No run of this case ({config.slug}) is stored yet; the profile paper runs it.")
    data = data_line([*alike, *([record] if record else [])])
    fig = federated.accuracy_by_round(runs, data=data)
    plots.caption(fig, f"The case {config.slug}. Band: lowest to highest stored seed.")
    return fig


def _label(curve: dict) -> str:
    """Name of a curve's method; of a tuned one with its learning rate."""
    name = ROLES[curve["role"]]
    label = style.METHODS[name]["label"] if name in style.METHODS else name
    return f"{label} (lr {style.number(curve['config']['lr'])})" if curve["peeking"] else label


def _tuned(curves: Sequence[dict]) -> str:
    """A sentence on learning rates that were chosen by looking at the test set."""
    names = dict.fromkeys(_label(c).split(" (lr")[0] for c in curves if c["peeking"])
    return f"The learning rate of {' and '.join(names)} was chosen by test accuracy on another seed." if names else ""


def _finish(fig: Figure, caption: str, curves: Sequence[dict], said: str) -> Figure:
    """Caption with the size of the runs and what is missing, and their data."""
    config, seeds = curves[0]["config"], sorted({len(c["records"]) for c in curves})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    size = f"Stored runs: five clients of {config['examples_per_client']} images, {config['rounds']} rounds"
    plural = "s" * (seeds[-1] > 1)
    plots.caption(fig, " ".join(filter(None, [f"{size}, {count} seed{plural} a curve.", caption, said])))
    plots.provenance(fig, data_line([r for c in curves for r in c["records"]]))
    return fig

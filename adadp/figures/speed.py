"""Figures and tables of the chapter *What privacy costs*: time and memory of a private step, its growth, its peers.

What ``make bench BENCH=adadp/figures/measured`` measured with all peers is stored in that folder; the chapter shows it
beside what it measures itself. ``python -m adadp.figures.speed docs/speed.svg`` draws the picture of the README.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from adadp.figures import plots, style
from adadp.figures.table import Table

NETWORKS = {"mnist-mlp": "MNIST network", "cifar-head": "CIFAR-10 head", "cifar-cnn": "CIFAR-10, all layers"}
PEERS = {  # contender -> its name in figures
    "adadp": "this package",
    "opacus ghost": "Opacus, ghost clipping",
    "vmap(grad)": "vmap(grad)",
    "opacus hooks": "Opacus, default (hooks)",
    "opacus functorch": "Opacus, functorch",
}
LINES = {
    "adadp": "this package",
    "opacus ghost": "Opacus, ghost clipping",
    "plain + noise": "plain step + noise",
    "plain SGD": "plain step",
}


def stored(name: str) -> dict:
    """What a benchmark measured: private_step, private_memory, private_growth, optimizer_step or federated_step.

    >>> sorted(stored("private_step"))[:2]
    ['environment', 'ratios']
    """
    file = resources.files("adadp.figures").joinpath("measured", f"{name}.json")
    return json.loads(file.read_text(encoding="utf-8"))


def provenance(measured: Mapping) -> str:
    """Where stored numbers come from, in one line."""
    env = measured["environment"]
    packages = [f"{key} {env[key]}" for key in ("torch", "opacus") if key in env]
    threads = "one thread" if env["threads"] == "1" else f"{env['threads']} threads"
    made = f"medians of {measured['repeats']}; {', '.join(packages)}; {env['processor']}, {threads}"
    return f"{made}; {env['date']}, commit {env['commit']}"


def ratio(measured: Mapping, network: str, kind: str, measure: str = "cpu_median") -> float:
    """A ratio of ``private_step``: "ours / (plain + noise)", "fastest Opacus / ours" or "default Opacus / ours"."""
    (row,) = [r for r in measured["ratios"] if (r["network"], r["measure"]) == (network, measure)]
    return row[kind]


def iterations(measured: Mapping) -> Table:
    """Milliseconds of an iteration of federated training, by optimizer and layout."""
    names = {"iteration": "iteration", "median ms": "ms\nmedian", "cpu ms": "ms\nof a processor"}
    lines = [{names[key]: value for key, value in row.items()} for row in measured["rows"]]
    lines = [line | {"iteration": str(line["iteration"]).replace("adadp", "ADADP")} for line in lines]
    return Table(lines, "Time of an iteration of federated training")


def stacking(measured: Mapping) -> Table:
    """Milliseconds of clients that train one after the other, and all at once with their weights stacked."""
    lines = [
        {
            "network": NETWORKS[row["network"]],
            "clients": row["clients"],
            "one after the other\nms": row["one after the other"],
            "stacked\nms": row["stacked"],
            "stacked takes\ntimes as long": row["stacked"] / row["one after the other"],
        }
        for row in measured["growth"]
    ]
    return Table(lines, "Time of clients one after the other and stacked")


def times(values: Mapping[str, float], what: str, *, ours: str) -> Figure:
    """One row a contender: bars from 0, or where times lie far apart marks on a logarithmic axis.

    Args:
        values: contender -> median, in the unit of ``what``.
        what: label of the axis.
        ours: the contender to point out.
    """
    fig = plots.bars({name: [value] for name, value in values.items()}, xlabel=what)
    (ax,) = fig.axes
    apart = max(values.values()) > 10 * min(values.values())
    for row, (name, bar) in enumerate(zip(values, list(ax.patches), strict=True)):
        color = style.COLORS["blue" if name == ours else "muted"]
        bar.set_color(color)
        if apart:  # a length would depend on where the axis begins
            bar.remove()
            ax.plot([values[name]], [row], "D" if name == ours else "o", color=color, markersize=7)
    if apart:
        style.log_axis(ax)
        ax.set_xlim(0.5 * min(values.values()), 3 * max(values.values()))
    plots.caption(fig, f"Measured on this page: {what}{', logarithmic' * apart}.")
    return fig


@matplotlib.rc_context(style.RC)
def against_floor(measured: Mapping) -> Figure:
    """Time of a private step by every contender and network, as a multiple of a plain step plus its noise.

    Args:
        measured: of ``stored("private_step")``.
    """
    found = {}
    for network in NETWORKS:
        ms = {row["contender"]: row["cpu ms"] for row in measured["rows"] if row["network"] == network}
        floor = ms["plain SGD"] + ms["noise alone"]
        found[network] = {name: ms[name] / floor for name in PEERS if name in ms}
    fig = _dots(found, "time of a step / (plain step + noise)")
    plots.caption(fig, "Processor time of a private step in multiples of the floor. Batches of 200; logarithmic axis.")
    plots.provenance(fig, provenance(measured))
    return fig


@matplotlib.rc_context(style.RC)
def against_plain_memory(measured: Mapping) -> Figure:
    """Peak memory that a private step adds, by every contender and network, as a multiple of a plain step's.

    Args:
        measured: of ``stored("private_memory")``.
    """
    found = {}
    for network in NETWORKS:
        rows = {row["contender"]: row["times plain"] for row in measured["rows"] if row["network"] == network}
        found[network] = {name: rows[name] for name in PEERS if name in rows}
    fig = _dots(found, "peak memory of a step / of a plain step")
    plots.caption(fig, "Memory that steps add at the highest point, in multiples of a plain step's; logarithmic.")
    plots.provenance(fig, provenance(measured))
    return fig


def _dots(found: Mapping[str, Mapping[str, float]], label: str) -> Figure:
    """One row a contender, one mark a network; 1 is a line."""
    fig = style.figure(height=3.1)
    (ax,) = fig.axes
    names = [name for name in PEERS if any(name in values for values in found.values())]
    for (network, values), color, marker in zip(found.items(), style.CYCLE, style.MARKERS, strict=False):
        rows = [names.index(name) for name in values]
        ax.plot(list(values.values()), rows, linestyle="", marker=marker, color=color, label=NETWORKS[network])
    ax.axvline(1, color=style.COLORS["ink"], linewidth=1)
    ax.set_yticks(range(len(names)), [PEERS[name] for name in names])
    ax.invert_yaxis()
    style.log_axis(ax)
    ax.set_xlabel(label)
    fig.legend(loc="outside upper center", ncols=2)
    said = [
        f"{NETWORKS[network]}: " + ", ".join(f"{PEERS[n]} {style.number(v)}" for n, v in values.items())
        for network, values in found.items()
    ]
    plots.describe(fig, f"{label}. {'; '.join(said)}.")
    return fig


@matplotlib.rc_context(style.RC)
def growth(rows: Sequence[Mapping], sweeps: Mapping[str, str], *, data: str = "") -> Figure:
    """Milliseconds of a step against what grows; one panel a sweep, both axes logarithmic.

    Args:
        rows: with the keys "sweep", "value" and the lines' names.
        sweeps: key of a sweep -> label of its axis.
        data: where the numbers come from, if they are stored.
    """
    fig = style.figure(panels=len(sweeps), width=4.4 if len(sweeps) == 1 else 3.9, height=3.2)
    said = []
    for ax, (sweep, label) in zip(fig.axes, sweeps.items(), strict=True):
        points = [row for row in rows if row["sweep"] == sweep]
        names = [name for name in LINES if name in points[0]]
        for name, color, line, marker in zip(names, style.CYCLE, style.LINESTYLES, style.MARKERS, strict=False):
            values = [p[name] for p in points]
            ax.plot([p["value"] for p in points], values, color=color, linestyle=line, marker=marker, label=LINES[name])
            said.append(f"{label}: {LINES[name]} {style.number(values[0])} to {style.number(values[-1])} ms")
        style.log_axis(ax, "xy")
        ax.set_xlabel(label)
    fig.axes[0].set_ylabel("ms a step")
    fig.axes[0].legend(loc="upper left")
    plots.describe(fig, f"Time of a step. {'; '.join(said)}.")
    plots.caption(fig, "Both axes are logarithmic: parallel lines are a constant factor apart.")
    if data:
        plots.provenance(fig, data)
    return fig


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with matplotlib.rc_context(style.RC | {"svg.fonttype": "path"}):
        against_floor(stored("private_step")).savefig(Path(sys.argv[1]), metadata={"Date": None})

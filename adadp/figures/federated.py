"""Figures of the federated chapters: who holds what, accuracy by round, the learning rates that clients choose."""

import statistics
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from adadp.figures import plots, style
from adadp.figures.points import by_value
from adadp.figures.widgets import View, explorer

Rows = Sequence[Mapping]
LABELS = {"adadp": "ADADP", "sgd best": "SGD, tuned", "adam best": "Adam, best", "adam second": "Adam, second"}


@matplotlib.rc_context(style.RC)
def split(counts: Mapping[str, np.ndarray]) -> Figure:
    """Which class lies with which client: one panel a split, the area of a square is the number of examples.

    Args:
        counts: name of the split -> examples, shape (clients, classes).
    """
    fig = style.figure(panels=len(counts), width=3.7, height=2.6)
    largest = max(int(table.max()) for table in counts.values())
    for ax, (name, table) in zip(fig.axes, counts.items(), strict=True):
        clients, classes = table.shape
        at = [(c, k) for k in range(clients) for c in range(classes) if table[k, c]]
        areas = [110 * table[k, c] / largest for c, k in at]
        ax.scatter(*zip(*at, strict=True), s=areas, marker="s", color=style.CYCLE[0])
        ax.set(title=name, xlabel="class", xlim=(-0.7, classes - 0.3), ylim=(clients - 0.4, -0.6))
        ax.set_xticks(range(classes))
        ax.set_yticks(range(clients), [str(k + 1) for k in range(clients)])
    fig.axes[0].set_ylabel("client")
    said = "; ".join(f"{n}: client 1 holds {np.count_nonzero(t[0])} classes" for n, t in counts.items())
    plots.describe(fig, f"Squares for classes by clients. {said}.")
    plots.caption(fig, "Who holds what: the area of a square is the number of examples of a class at a client.")
    return fig


@matplotlib.rc_context(style.RC)
def accuracy_by_round(runs: Mapping[str, Sequence[Rows]], *, data: str, title: str = "") -> Figure:
    """Test accuracy of the averaged model by round; mean and spread over seeds.

    Args:
        runs: method -> one list of rows a seed (``History.rows``, with the keys round and test_accuracy).
        data: the provenance of the data.
        title: of the panel.
    """
    fig = plots.curves(runs, x="round", y="test_accuracy", ax=style.figure(height=3.3).axes[0])
    (ax,) = fig.axes[:1]
    ax.set(xlabel="communication round", ylabel="test accuracy", title=title)
    style.percent_axis(ax)
    ends = {name: statistics.fmean(100 * rows[-1]["test_accuracy"] for rows in seeds) for name, seeds in runs.items()}
    words = ", ".join(f"{name} {end:.1f} %" for name, end in ends.items())
    plots.describe(fig, f"Test accuracy by communication round. After the last: {words}.")
    plots.caption(fig, "Accuracy of the averaged model after each round.")
    plots.provenance(fig, data)
    return fig


@matplotlib.rc_context(style.RC)
def client_rates(rows: Rows, *, data: str) -> Figure:
    """The learning rate each client ends a round with, and the share of its steps that it discards.

    Args:
        rows: of an adaptive run: lr, accepted and discarded hold one value a client.
        data: the provenance of the data.
    """
    fig = style.figure(panels=2, width=4.2, height=3.0)
    left, right = fig.axes
    at = [row["round"] for row in rows]
    for k in range(len(rows[0]["lr"])):
        look = {"color": style.CYCLE[k % 5], "linestyle": style.LINESTYLES[k % 5], "label": f"client {k + 1}"}
        left.plot(at, [row["lr"][k] for row in rows], **look)
        share = [row["discarded"][k] / max(1, row["discarded"][k] + row["accepted"][k]) for row in rows]
        right.plot(at, share, **look)
    style.log_axis(left, "y")
    left.set(xlabel="communication round", ylabel="learning rate at the end", title="learning rate")
    right.set(xlabel="communication round", ylabel="of its iterations", title="discarded", ylim=(0, 1))
    style.percent_axis(right)
    left.get_figure().legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    ends = ", ".join(f"client {k + 1}: {style.number(lr)}" for k, lr in enumerate(rows[-1]["lr"]))
    plots.describe(fig, f"Learning rates and shares of discarded steps by round. Learning rates at the end, {ends}.")
    plots.caption(fig, "What each client chose for itself.")
    plots.provenance(fig, data)
    return fig


@matplotlib.rc_context(style.RC)
def within_round(rows: Rows, number: int, *, data: str) -> Figure:
    """The learning rate of each client in the course of one round.

    Args:
        rows: of an adaptive run made with ``trace``: lrs holds one list a client.
        number: the round.
        data: the provenance of the data.
    """
    fig = style.figure(height=2.9)
    (ax,) = fig.axes
    row = next(row for row in rows if row["round"] == number)
    for k, lrs in enumerate(row["lrs"]):
        at = np.linspace(0, 100, len(lrs))
        ax.plot(at, lrs, color=style.CYCLE[k % 5], linestyle=style.LINESTYLES[k % 5], label=f"client {k + 1}")
    style.log_axis(ax, "y")
    ax.set(xlabel=f"course of round {number} (% of its gradients)", ylabel="learning rate")
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    words = ", ".join(
        f"client {k + 1} from {style.number(v[0])} to {style.number(v[-1])}" for k, v in enumerate(row["lrs"])
    )
    plots.describe(fig, f"Learning rates within round {number}: {words}.")
    plots.caption(fig, "Every round begins far from each client's own optimum.")
    plots.provenance(fig, data)
    return fig


def split_explorer(tables: Mapping[float, np.ndarray]):
    """The split under a slider: share of uniformly random data -> examples, shape (clients, classes)."""
    classes = next(iter(tables.values())).shape[1]

    def draw(percent: float) -> View:
        """The split at one share."""
        table = tables[percent]
        fig = split({f"{percent:g} % random": table})
        own = statistics.fmean(np.sort(row)[-2:].sum() / row.sum() for row in table)
        share = f"{100 * own:.0f} % of a client's data"
        says = f"{percent:g} % dealt out at random: two of the {classes} classes make up {share}."
        return View(fig, {"two most frequent classes": share}, says)

    labels, units = {"percent": "uniformly random"}, {"percent": "%"}
    return explorer(
        draw, {"percent": list(tables)}, labels=labels, units=units, title="Split of the data", between=False
    )


@matplotlib.rc_context(style.RC)
def accuracy_by_lr(points: Mapping[str, Mapping[float, Sequence[float]]], *, xlabel: str, data: str) -> Figure:
    """Final accuracy over a grid of (initial) learning rates, or of anything else: mean, lowest and highest seed.

    Args:
        points: method -> value on the axis -> final accuracies (0..1), one a seed.
        xlabel: of the axis.
        data: the provenance of the data.
    """
    fig = by_value(points, xlabel=xlabel)
    best = ", ".join(f"{n} {100 * max(map(statistics.fmean, v.values())):.1f} %" for n, v in points.items())
    plots.describe(fig, f"Final test accuracy against {xlabel}. Best: {best}.")
    plots.provenance(fig, data)
    return fig


def stored_runs(experiment: str, *, profile: str = "laptop", folder=None, **fixed) -> dict[str, list[Rows]]:
    """Stored federated runs of an experiment: role -> rows of each seed.

    Args:
        experiment: "fed-rounds", ...
        profile: the size, "laptop", "full-data" or "paper".
        folder: of the stored results; the package's own if left out.
        **fixed: fields of the config that must have these values.
    """
    from adadp.experiments import results

    found: dict[str, list[Rows]] = {}
    for curve in results.curves(experiment, results.load(folder), profile):
        if curve["role"] in LABELS and all(curve["config"][name] == value for name, value in fixed.items()):
            for record in curve["records"]:
                found.setdefault(LABELS[curve["role"]], []).append(_rows(record["rows"]))
    return found


def _rows(columns: Mapping[str, Sequence]) -> list[dict]:
    """Columns of a stored record as rows."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def in_words(runs: Mapping[str, Sequence[Rows]], command: str) -> str:
    """Final accuracies in plain text, or which command makes the runs that are not stored."""
    if not runs:
        return f"No runs of this size are stored yet; {command} makes them."
    lines = []
    for name, seeds in runs.items():
        ends = [100 * rows[-1]["test_accuracy"] for rows in seeds]
        spread = f"{min(ends):.1f} to {max(ends):.1f}, {len(ends)} seeds" if len(ends) > 1 else "one seed"
        lines.append(f"{name:14s} {statistics.fmean(ends):5.1f} %  ({spread})")
    return "\n".join(lines)

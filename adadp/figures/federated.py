"""Figures of the federated chapters: who holds what, accuracy by round, the learning rates that clients choose."""

import statistics
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from adadp.figures import plots, style
from adadp.figures.widgets import View, explorer

Rows = Sequence[Mapping]


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
    ends: dict = {left: [], right: []}
    for k in range(len(rows[0]["lr"])):
        share = [row["discarded"][k] / max(1, row["discarded"][k] + row["accepted"][k]) for row in rows]
        for ax, values in ((left, [row["lr"][k] for row in rows]), (right, share)):
            ends[ax].append(_client(ax, k, at, values))
    style.log_axis(left, "y")
    left.set(xlabel="communication round", ylabel="learning rate at the end", title="learning rate")
    right.set(xlabel="communication round", ylabel="of its iterations", title="discarded", ylim=(0, 1))
    style.percent_axis(right)
    for ax, names in ends.items():
        plots.label_ends(ax, names)
    last = ", ".join(f"client {k + 1}: {style.number(lr)}" for k, lr in enumerate(rows[-1]["lr"]))
    plots.describe(fig, f"Learning rates and shares of discarded steps by round. Learning rates at the end, {last}.")
    plots.caption(fig, "What each client chose for itself.")
    plots.provenance(fig, data)
    return fig


def _client(ax, k: int, at: Sequence[float], values: Sequence[float]) -> tuple[float, float, str, str]:
    """Draw one client's line; where it ends, its name and colour."""
    color = style.CYCLE[k % len(style.CYCLE)]
    ax.plot(at, values, color=color, linestyle=style.LINESTYLES[k % len(style.LINESTYLES)])
    return at[-1], values[-1], f"client {k + 1}", color


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
    style.log_axis(ax, "y")
    ends = [_client(ax, k, np.linspace(0, 100, len(lrs)), lrs) for k, lrs in enumerate(row["lrs"])]
    ax.set(xlabel=f"course of round {number} (% of its gradients)", ylabel="learning rate")
    plots.label_ends(ax, ends)
    words = ", ".join(
        f"client {k + 1} from {style.number(v[0])} to {style.number(v[-1])}" for k, v in enumerate(row["lrs"])
    )
    plots.describe(fig, f"Learning rates within round {number}: {words}.")
    plots.caption(fig, "The learning rate of each client in the course of one round.")
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

"""What the clients of stored federated runs chose for themselves: one line a client, a band from seed to seed."""

import statistics
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adadp.experiments.federated_claims import early_ratios, end_factor
from adadp.figures import plots, style
from adadp.figures.federated_runs import SIZE, finish, traced
from adadp.figures.stored_words import Note, found

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@matplotlib.rc_context(style.RC)
def clients(percent: float, *, size: str = SIZE, folder=None) -> Figure | Note:
    """What each client chose: its learning rate at the end of each round, and the share of steps it discarded; mean,
    lowest and highest seed."""
    curves, said = _adaptive(percent, size, folder)
    if not curves:
        return Note(said)
    columns = [record["rows"] for record in curves[0]["records"]]
    rates, lost, kept = (np.array([c[n] for c in columns], float) for n in ("lr", "discarded", "accepted"))
    share = np.ma.masked_invalid(lost / np.maximum(1, lost + kept))  # nothing where a client was left out
    rates = np.ma.masked_invalid(rates)
    fig = style.figure(panels=2, width=5.2, height=3.3)
    style.log_axis(fig.axes[0], "y")
    style.percent_axis(fig.axes[1])
    fig.axes[1].set(ylim=(0, 1), ylabel="of its iterations")
    for ax, values, title in zip(fig.axes, (rates, share), ("learning rate at the end", "discarded"), strict=True):
        ax.set(xlabel="communication round", title=title)
        _lines(ax, columns[0]["round"], values, curves[0]["config"])
    factors = [end_factor(record) for record in curves[0]["records"]]
    words = (
        f"Over the last ten rounds the clients' mean learning rates differ by a factor of {_ends(factors)}; "
        f"{100 * share.mean():.0f} % of all iterations were discarded."
    )
    return _of_clients(fig, f"{percent:g} % random. {words}", curves, said)


@matplotlib.rc_context(style.RC)
def within_round(percent: float, *numbers: int, size: str = SIZE, folder=None) -> Figure | Note:
    """The learning rate of each client in the course of two rounds, mean, lowest and highest seed.

    Args:
        percent: share of random data.
        *numbers: of the rounds, among those that are stored in detail; the second and the last if left out.
        size, folder: see :func:`found`.
    """
    curves, said = _adaptive(percent, size, folder)
    if not curves:
        return Note(said)
    traces = [traced(record) for record in curves[0]["records"]]
    numbers = numbers or (2, max(traces[0]))
    fig = style.figure(panels=len(numbers), width=5.2, height=3.3, sharey=True)
    for ax, number in zip(fig.axes, numbers, strict=True):
        values = np.array([trace[number] for trace in traces], float).swapaxes(1, 2)
        style.log_axis(ax, "y")
        _lines(ax, np.linspace(0, 100, values.shape[1]), values, curves[0]["config"])
        ax.set(xlabel="of the round's gradients (%)", title=f"round {number}")
    fig.axes[0].set_ylabel("learning rate η")
    early = [ratio for record in curves[0]["records"] for ratio in early_ratios(record)]
    words = (
        f"A tenth into a round the learning rate is in the median {statistics.median(early):.2f} times that at its end"
    )
    return _of_clients(fig, f"{percent:g} % random. {words} (rounds from 2 on).", curves, said)


def _adaptive(percent: float, size: str, folder) -> tuple[list[dict], str]:
    """The curve of ADADP at one share of random data."""
    curves, said = found("fed-rounds", size, folder, random_fraction=percent / 100)
    return [c for c in curves if c["role"] == "adadp"], said


def _lines(ax: Axes, at: Sequence[float], values: np.ndarray, config: Mapping) -> None:
    """One line a client, named by its classes, with the band of its seeds; values of shape (seeds, at, clients)."""
    ends = []
    groups = [", ".join(CLASSES[int(c)] for c in group.split(",")) for group in config["groups"].split("|")]
    for k, look in enumerate(style.looks([f"{k}: {group}" for k, group in enumerate(groups, 1)]).values()):
        look |= {"marker": ""}
        mine = np.ma.masked_invalid(values[:, :, k])
        ax.fill_between(at, mine.min(axis=0), mine.max(axis=0), color=look["color"], alpha=0.12, linewidth=0)
        ax.plot(at, mine.mean(axis=0), **look)
        if len(drawn := mine.mean(axis=0).compressed()):
            ends.append((at[-1], drawn[-1], look["label"], look["color"]))
    plots.label_ends(ax, ends)


def _of_clients(fig: Figure, words: str, curves: Sequence[dict], said: str) -> Figure:
    """Words and caption of a figure with one line a client."""
    plots.describe(fig, f"One line a client. {words}")
    return finish(fig, words, curves, said)


def _ends(values) -> str:
    """Lowest and highest of some numbers."""
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"

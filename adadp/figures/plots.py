"""The pictures that several chapters share. Every function takes plain data and returns a ``Figure``.

Rows are dictionaries with the keys of ``History.rows`` (``epsilon``, ``test_accuracy``, ``steps``, ``lr``, ...);
accuracies are fractions. Several seeds of one method are several lists of rows; the line is their mean and the band
reaches from the lowest to the highest seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adadp.figures import style
from adadp.figures.text import caption, describe, provenance, statement
from adadp.privacy import assumptions
from adadp.rounding import round_up

__all__ = [
    "accuracy_against_epsilon",
    "bars",
    "caption",
    "curves",
    "describe",
    "fitted_slope",
    "label_ends",
    "learning_rate",
    "provenance",
    "statement",
]

Rows = Sequence[Mapping[str, float]]
WIDE = 0.5  # of all the values of a method: its seeds part


def _columns(name: str, seeds: Sequence[Rows], x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """x of shape (R,) and y of shape (seeds, R) of one method; says what is wrong with rows that do not fit."""
    if not seeds or not all(seeds):
        raise ValueError(f"runs[{name!r}] must hold at least one list of rows, and no list may be empty")
    try:
        xs, ys = ([[float(row[key]) for row in rows] for rows in seeds] for key in (x, y))
    except KeyError as missing:
        raise ValueError(f"runs[{name!r}]: a row has no {missing} (it has {', '.join(seeds[0][0])})") from None
    if any(len(v) != len(xs[0]) or not np.allclose(v, xs[0], equal_nan=True) for v in xs):
        raise ValueError(
            f"runs[{name!r}]: the seeds were evaluated at different values of {x}; give runs of one setting"
        )
    return np.array(xs[0]), np.array(ys)


def label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]], gap: float = 10.5) -> None:
    """Write names beside the right ends of curves, moved apart where they would overlap.

    Args:
        ends: one (x, y, text, colour) a curve, in data units.
        gap: least distance of two names, points.
    """
    transform, unit = ax.transData, 72 / ax.get_figure(root=True).dpi
    ax.get_figure(root=True).draw_without_rendering()  # the layout decides how far apart two values are
    order = sorted(ends, key=lambda e: e[1])
    wanted = np.array([transform.transform((e[0], e[1]))[1] * unit for e in order])
    placed = wanted.copy()
    for _ in range(50):
        for i in range(1, len(placed)):
            if (lack := gap - (placed[i] - placed[i - 1])) > 0:
                placed[i - 1] -= lack / 2
                placed[i] += lack / 2
    for (x, y, text, color), shift in zip(order, placed - wanted, strict=True):
        ax.annotate(text, (x, y), xytext=(7, shift), textcoords="offset points", va="center", color=color, fontsize=8.5)


def _meet(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> bool:
    """Whether three or more curves end in one place, so that names beside it would not say which is which."""
    ax.get_figure(root=True).draw_without_rendering()
    heights = [ax.transData.transform((x, y))[1] * 72 / ax.get_figure(root=True).dpi for x, y, *_ in ends]
    return len(ends) > 2 and max(heights) - min(heights) < 10.5  # the height of a name


def name_curves(ax: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Names at the ends of the curves where they are short and the ends apart, else a legend above the panel."""
    longest = max(len(end[2]) for end in ends)
    if longest <= 18 and len(ends) <= 6 and not _meet(ax, ends):
        label_ends(ax, ends)
    else:
        figure = ax.get_figure()
        columns = 3 if longest <= 10 else 2 if longest <= 24 else 1
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=columns)


@matplotlib.rc_context(style.RC)
def curves(runs: Mapping[str, Sequence[Rows]], *, x: str, y: str, ax: Axes | None = None) -> Figure:
    """Mean over seeds of column ``y`` against column ``x``, one curve a method, in a band from lowest to highest seed.
    Where a band ends far apart, a thin line shows every seed.

    Args:
        runs: method name (a key of ``style.METHODS``, or any text) -> one list of rows a seed.
        x, y: keys of the rows.
        ax: where to draw; a new figure where left out.

    Raises:
        ValueError: if there is no run, a row lacks a key, or seeds of a method do not share ``x``.

    >>> rows = [{"steps": s, "lr": 0.1 / s} for s in (1, 2, 3)]
    >>> fig = curves({"adadp": [rows]}, x="steps", y="lr")
    """
    if not runs:
        raise ValueError("runs must name at least one method")
    ax = ax or style.figure().axes[0]
    ends, looks = [], style.looks(runs)
    for index, (name, seeds) in enumerate(runs.items()):
        look = looks[name]
        at, values = _columns(name, seeds, x, y)
        mean = values.mean(axis=0)
        every = max(1, len(at) // 8)
        if len(values) > 1:
            ax.fill_between(at, values.min(axis=0), values.max(axis=0), color=look["color"], alpha=0.16, linewidth=0)
            if np.ptp(values[:, -1]) > WIDE * np.ptp(values):  # a mean of runs that part is like none of them
                ax.plot(at, values.T, color=look["color"], linewidth=0.8)
        ax.plot(at, mean, **look, markevery=(index * every // max(1, len(runs)), every))
        last = int(np.flatnonzero(np.isfinite(mean))[-1]) if np.isfinite(mean).any() else 0
        ends.append((at[last], mean[last], look["label"], look["color"]))
    name_curves(ax, ends)
    return ax.get_figure(root=True)


@matplotlib.rc_context(style.RC)
def accuracy_against_epsilon(
    runs: Mapping[str, Sequence[Rows]], *, delta: float = 1e-5, ax: Axes | None = None
) -> Figure:
    """Test accuracy (percent) against the epsilon spent, one curve a method; see :func:`curves`.

    The figure carries a general privacy statement; a caller who knows the accountant sets a better one.

    Raises:
        ValueError: as :func:`curves`.
    """
    fig = curves(runs, x="epsilon", y="test_accuracy", ax=ax)
    ax = ax or fig.axes[0]
    ax.set(xlabel=f"ε at δ = {style.number(delta)}", ylabel="test accuracy")
    style.percent_axis(ax)
    if describe(fig) == "":
        looks = style.looks(runs)
        ends = [
            f"{looks[n]['label']} {100 * np.mean([r[-1]['test_accuracy'] for r in s]):.1f} %" for n, s in runs.items()
        ]
        at = max(rows[-1]["epsilon"] for seeds in runs.values() for rows in seeds)
        describe(fig, f"Test accuracy against epsilon. At the end (epsilon up to {round_up(at)}): {', '.join(ends)}.")
    if statement(fig) == "":
        statement(fig, f"ε for {assumptions()}")
    return fig


@matplotlib.rc_context(style.RC)
def learning_rate(runs: Mapping[str, Rows], *, ax: Axes | None = None) -> Figure:
    """Learning rate over gradients on a logarithmic scale, one curve a run.

    Args:
        runs: name -> rows with keys step and lr (``History.first_epoch``).
        ax: where to draw; a new figure where left out.

    Raises:
        ValueError: as :func:`curves`.
    """
    ax = ax or style.figure().axes[0]
    style.log_axis(ax, "y")
    ax.set(xlabel="gradients used", ylabel="learning rate η")
    fig = curves({name: [rows] for name, rows in runs.items()}, x="step", y="lr", ax=ax)
    if describe(fig) == "":
        ends = ", ".join(f"{name} ends at {style.number(rows[-1]['lr'])}" for name, rows in runs.items())
        describe(fig, f"Learning rate over gradients: {ends}.")
    return fig


def fitted_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of the least-squares line through (log x, log y).

    >>> round(fitted_slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)[0])


@matplotlib.rc_context(style.RC)
def bars(
    values: Mapping[str, Sequence[float]], *, xlabel: str, percent: bool = False, ax: Axes | None = None
) -> Figure:
    """Horizontal bars of means over seeds, with a line from the lowest to the highest seed and the mean written beside.

    Args:
        values: name -> one value a seed; fractions where ``percent`` is true.
        xlabel: what is measured, with its unit.

    Raises:
        ValueError: if there is no bar, or a bar has no value.

    >>> fig = bars({"adadp": [0.91, 0.93], "sgd": [0.9]}, xlabel="test accuracy", percent=True)
    """
    if not values or not all(len(v) for v in values.values()):
        raise ValueError("values must name at least one bar, and every bar needs at least one value")
    ax = ax or style.figure(height=0.7 + 0.34 * len(values)).axes[0]
    show = (lambda v: f"{100 * v:.1f} %") if percent else style.number
    labels, looks = [], style.looks(values)
    for row, (name, seeds) in enumerate(values.items()):
        look, v = looks[name], np.asarray(seeds, float)
        ax.barh(row, v.mean(), height=0.62, color=look["color"], alpha=0.85)
        if len(v) > 1:
            ax.errorbar(
                v.mean(),
                row,
                xerr=[[v.mean() - v.min()], [v.max() - v.mean()]],
                color=style.COLORS["ink"],
                capsize=3,
                linewidth=1.2,
            )
        ax.annotate(
            show(v.mean()), (v.max(), row), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8.5
        )
        labels.append(look["label"])
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    ax.tick_params(axis="y", length=0)
    ax.margins(x=0.14)
    ax.set_xlabel(xlabel)
    if percent:
        style.percent_axis(ax, "x")
    fig = ax.get_figure(root=True)
    if describe(fig) == "":
        pairs = zip(labels, values.values(), strict=True)
        describe(fig, f"{xlabel}: " + ", ".join(f"{n} {show(float(np.mean(v)))}" for n, v in pairs) + ".")
    return fig

"""Final accuracies against something that was varied: mean, lowest and highest seed at each value."""

import statistics
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adadp.figures import plots, style

Points = Mapping[str, Mapping[float, Sequence[float]]]


def has_course(points: Mapping[object, Mapping[float, Sequence[float]]]) -> bool:
    """Whether a curve has two values on the axis: while each has one, nothing shows how accuracy depends on them.

    >>> has_course({"adadp": {10: [0.9]}, "sgd": {10: [0.8]}}), has_course({"adadp": {10: [0.9], 50: [0.8]}})
    (False, True)
    """
    return any(len(values) > 1 for values in points.values())


@matplotlib.rc_context(style.RC)
def by_value(
    points: Points, *, xlabel: str, log: bool = False, labels: Mapping[str, str] | None = None, ax: Axes | None = None
) -> Figure:
    """One curve a method over a grid of values.

    Args:
        points: method (a key of ``style.METHODS``, or any text) -> value on the axis -> final accuracies (0..1), one a
            seed.
        xlabel: of the axis.
        log: draw the values on a logarithmic axis.
        labels: method -> another name than that of the house style.
        ax: where to draw; a new figure where left out.

    Raises:
        ValueError: there is nothing to draw.

    >>> by_value({"adadp": {1: [0.9, 0.8], 2: [0.7]}}, xlabel="σ").axes[0].get_xlabel()
    'σ'
    """
    if not points or not all(points.values()):
        raise ValueError("points must name at least one method, and each needs a value")
    ax = ax or style.figure(height=3.3).axes[0]
    if log:
        style.log_axis(ax)
    ends, said, looks = [], [], style.looks(points)
    for name, values in points.items():
        at, look = sorted(values), looks[name]
        look["label"] = (labels or {}).get(name, look["label"])
        mean = [statistics.fmean(values[v]) for v in at]
        low, high = ([f(values[v]) for v in at] for f in (min, max))
        ax.fill_between(at, low, high, color=look["color"], alpha=0.16, linewidth=0)
        ax.plot(at, mean, **look)
        ends.append((at[-1], mean[-1], look["label"], look["color"]))
        said.append(
            f"{look['label']} "
            + ", ".join(f"{100 * m:.1f} % at {style.number(v)}" for v, m in zip(at, mean, strict=True))
        )
    plots.name_curves(ax, ends)
    ax.set(xlabel=xlabel, ylabel="test accuracy")
    style.percent_axis(ax)
    fig = ax.get_figure(root=True)
    plots.describe(fig, f"Final test accuracy against {xlabel}. {'; '.join(said)}.")
    return fig

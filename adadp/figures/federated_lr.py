"""Federated averaging under sliders: the share of random data and the clients' (first) learning rate."""

import statistics
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure

from adadp.figures import plots, style
from adadp.figures.federated import Rows
from adadp.figures.federated_runs import rows as rounds
from adadp.figures.step_doubling import LOOKS

Runs = Mapping[float, Mapping[str, Mapping[float, Sequence[Rows]]]]  # % random -> method -> lr -> rows of each seed
EXPERIMENT = "fed-lr"
ROLES = {"adadp by lr": "ADADP", "sgd by lr": "SGD"}


def stored(profile: str = "laptop", folder=None) -> tuple[Runs | None, str, str]:
    """The stored runs by learning rate, a sentence on them, and their data; no runs while one is missing.

    Args:
        profile: the size, "laptop", "full-data" or "paper".
        folder: of the stored results; the package's own if left out.
    """
    from adadp.experiments import results

    curves = results.curves(EXPERIMENT, results.load(folder), profile)
    known, planned = (sum(n) for n in zip(*((len(c["records"]), c["planned"]) for c in curves), strict=True))
    if known < planned:
        command = f"adadp run {EXPERIMENT} --profile {profile}"
        return None, f"{known} of the {planned} runs of size {profile} are stored; {command} makes the others.", ""
    found: dict = {}
    for curve in curves:
        config = curve["config"]
        methods = found.setdefault(100 * config["random_fraction"], {})
        rows = [rounds(record) for record in curve["records"]]
        methods.setdefault(ROLES[curve["role"]], {})[config["lr"]] = rows
    return found, f"{planned} stored runs of size {profile}.", curves[0]["records"][0]["data"]


@matplotlib.rc_context(style.RC)
def explorer(runs: Runs, *, origin: str, data: str):
    """Sliders for the share of uniformly random data and the learning rate.

    Args:
        runs: share in per cent -> method -> learning rate -> one list of rows a seed (round, test_accuracy). A method
            with a single learning rate is shown wherever the slider stands.
        origin: one sentence: where the runs come from.
        data: the provenance of the data.
    """
    from adadp.figures.widgets import View, explorer

    names = list(dict.fromkeys(name for methods in runs.values() for name in methods))
    lrs = sorted({lr for methods in runs.values() for points in methods.values() for lr in points})
    fig = _frame(names, lrs, runs, origin, data)
    left, right = fig.axes

    def draw(percent: float, lr: float) -> View:
        """Both panels at one position."""
        numbers, said = {}, []
        for k, name in enumerate(names):
            points = runs[percent].get(name, {})
            at = lr if lr in points else next(iter(points)) if len(points) == 1 else None
            curve = _mean(points[at]) if at is not None else []
            left.lines[k].set_data(range(1, len(curve) + 1), curve)
            order = sorted(points)
            right.lines[2 * k].set_data(order, [_mean(points[v])[-1] for v in order])
            right.lines[2 * k + 1].set_data([at] if curve else [], curve[-1:])
            label = f"{name} from {style.number(at)}" if at is not None and at != lr else name
            numbers[name] = f"{100 * curve[-1]:.1f} %" if curve else "–"
            said.append(f"{label} ends at {numbers[name]}" if curve else f"no run of {name}")
        says = f"{percent:g} % random data, learning rate {style.number(lr)}: {', '.join(said)}."
        return View(fig, numbers, says)

    axes = {"percent": sorted(runs), "lr": lrs}
    labels = {"percent": "uniformly random", "lr": "learning rate η"}
    title = "Accuracy for the share of random data and the learning rate"
    return explorer(draw, axes, labels=labels, units={"percent": "%"}, title=title, between=False)


def _mean(seeds: Sequence[Rows]) -> list[float]:
    """Test accuracy after each round, over seeds."""
    return [
        statistics.fmean(values)
        for values in zip(*([row["test_accuracy"] for row in rows] for rows in seeds), strict=True)
    ]


def _frame(names: Sequence[str], lrs: Sequence[float], runs: Runs, origin: str, data: str) -> Figure:
    """Two panels with an empty line for each method; on the right also its chosen point."""
    fig = style.figure(panels=2, height=3.1)
    left, right = fig.axes
    curves = [_mean(seeds) for methods in runs.values() for points in methods.values() for seeds in points.values()]
    for look, name in zip(LOOKS, names, strict=False):
        left.plot([], [], **(look | {"markersize": 3}), label=name)
        right.plot([], [], **(look | {"markersize": 3}))
        right.plot([], [], **(look | {"markersize": 9, "linestyle": "none"}))
    style.log_axis(right, "x")
    last = max(map(len, curves))
    left.set(title="test accuracy by round", xlabel="communication round", xlim=(0.5, last + 0.5), ylim=(0, 1))
    right.set(title="after the last round", xlabel="(first) learning rate η", ylim=(0, 1))
    right.set_xlim(min(lrs) / 1.6, max(lrs) * 1.6)
    for ax in (left, right):
        style.percent_axis(ax)
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    plots.caption(fig, origin)
    plots.provenance(fig, data)
    return fig

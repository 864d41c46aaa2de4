"""Figures of the chapter *Step doubling*: paths in the plane, orders on logarithmic paper, learning rates over time."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adadp.figures import plots, style
from adadp.figures.gradient_flow import Problem, Run, adapt, descend, local_errors, one_iteration

LOOKS = [
    {"color": style.COLORS[color], "linestyle": line, "marker": marker}
    for color, line, marker in zip(("blue", "orange", "green", "purple"), style.LINESTYLES, style.MARKERS, strict=False)
]
LINES = [look | {"marker": ""} for look in LOOKS]
FLOW = {"color": style.COLORS["muted"], "linestyle": "-", "linewidth": 5, "alpha": 0.45}
LIMIT = {"color": style.COLORS["muted"], "linestyle": "-", "linewidth": 1, "zorder": 1}


def draw_landscape(ax: Axes, problem: Problem) -> None:
    """Level lines of the loss, evenly spaced in the square root of the loss, and its minimum as a star."""
    left, right, bottom, top = problem.window
    x, y = np.meshgrid(np.linspace(left, right, 220), np.linspace(bottom, top, 180))
    height = np.sqrt(problem.loss(np.stack([x, y], axis=-1)))
    ax.contour(x, y, height, levels=14, colors=style.COLORS["grid"], linewidths=0.8)
    ax.plot(*problem.minimum, marker="*", markersize=11, color=style.COLORS["muted"], linestyle="none", zorder=3)
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal", xlabel="first weight", ylabel="second weight")
    ax.grid(False)


def draw_flow(ax: Axes, problem: Problem, time: float) -> None:
    """The gradient flow from the problem's start over the given time, as a broad grey line."""
    times = time * np.linspace(0, 1, 50)[1:] ** 2
    ax.plot(*np.array([problem.start, *(problem.flow(problem.start, t) for t in times)]).T, **FLOW, label="flow")


def flow_and_descent(problems: Sequence[Problem], rates: Sequence[Sequence[float]], steps: int) -> Figure:
    """The gradient flow and gradient descent beside it, on one landscape a panel.

    Args:
        problems: one a panel.
        rates: for each panel, the learning rates to draw.
        steps: how many steps each run takes.
    """
    fig = style.figure(panels=len(problems), height=3.4)
    for ax, problem, etas in zip(fig.axes, problems, rates, strict=True):
        draw_landscape(ax, problem)
        draw_flow(ax, problem, 6.0)
        for look, eta in zip(LOOKS, etas, strict=False):
            path = descend(problem, eta, steps).path
            ax.plot(*path.T, **look, markersize=3.2, linewidth=1, label=f"η = {style.number(eta)}")
        ax.set_title(problem.name)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=8)
    plots.describe(
        fig,
        "Level lines of two losses, a turned oval bowl and a bent valley. A broad grey line, the gradient flow, runs"
        " smoothly down to the minimum; gradient descent stays on it for the smallest learning rate and zigzags about"
        " it for the largest.",
    )
    plots.caption(
        fig, "Gradient descent is a walk along the gradient flow in straight strides; a star marks the minimum."
    )
    return fig


POINTS = {  # point -> (its name, where the name stands relative to it in points)
    "theta_0": (r"$\theta_0$", (-12, 4)),
    "theta_half": (r"$\theta_{1/2}$", (-18, -4)),
    "theta_1": (r"$\theta_1$, one step", (-50, -4)),
    "theta_hat": (r"$\widehat{\theta}_1$, two half steps", (60, -3)),
    "extrapolated": (r"$2\widehat{\theta}_1-\theta_1$, extrapolated", (66, 8)),
    "flow": (r"$\theta(\eta)$, the flow", (54, -2)),
}


def one_step(problem: Problem, lr: float) -> Figure:
    """The points of one iteration: one step, two half steps, the extrapolated point, and where the flow really goes."""
    at = one_iteration(problem, problem.start, lr)
    fig = style.figure(height=3.4)
    (ax,) = fig.axes
    draw_flow(ax, problem, lr)
    for look, stops in zip(LOOKS, (("theta_1",), ("theta_half", "theta_hat")), strict=False):
        ax.plot(*np.array([at["theta_0"], *(at[s] for s in stops)]).T, **look)
    line = np.array([at["theta_1"], at["extrapolated"]]).T
    ax.plot(*line, **LOOKS[2], markevery=[1], markersize=7, linewidth=1.2, zorder=1)
    ax.plot(*at["flow"], marker="o", color=style.COLORS["muted"], markersize=7, linestyle="none")
    for name, (text, shift) in POINTS.items():
        ax.annotate(text, at[name], xytext=shift, textcoords="offset points", ha="center", va="center")
    ax.set(xlabel="first weight", ylabel="second weight", aspect="equal")
    ax.margins(x=0.75, y=0.15)
    miss = {name: np.linalg.norm(at[name] - at["flow"]) for name in ("theta_1", "theta_hat", "extrapolated")}
    plots.describe(
        fig,
        f"One iteration with learning rate {lr:g}. The full step ends {miss['theta_1']:.3f} from the end of the flow,"
        f" the two half steps {miss['theta_hat']:.3f}, and the extrapolated point, on the line through both,"
        f" {miss['extrapolated']:.3f}.",
    )
    plots.caption(
        fig, "One iteration of step doubling. The dotted line runs through both end points and past the flow."
    )
    return fig


def orders(problems: Sequence[Problem], step_sizes: Sequence[float]) -> Figure:
    """Local error, its estimate and what the estimate misses against the step size, with the measured slopes."""
    fig = style.figure(panels=len(problems), height=3.3, sharey=True)
    names = {"local error": "error of the step", "estimate": "estimate", "missed": "what the estimate misses"}
    said = []
    for ax, problem in zip(fig.axes, problems, strict=True):
        for look, (key, values) in zip(LOOKS, local_errors(problem, step_sizes).items(), strict=False):
            look = look | ({"markerfacecolor": "none", "markersize": 8} if key == "estimate" else {})
            label = f"{names[key]}: slope {plots.fitted_slope(step_sizes, values):.2f}"
            ax.plot(step_sizes, values, **look, label=label)
            said.append(f"{problem.name}, {label}")
        style.log_axis(ax, "xy")
        ax.set(title=problem.name, xlabel="learning rate η")
        ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), fontsize=8)
    fig.axes[0].set_ylabel("distance")
    plots.describe(fig, f"Distances against the learning rate on logarithmic axes. {'; '.join(said)}.")
    plots.caption(fig, "The error of a step, the estimate of it, and the distance between the two.")
    return fig


def race(problem: Problem, runs: Mapping[str, Run]) -> Figure:
    """Runs on the landscape, and their loss against the number of gradients they took."""
    fig = style.figure(panels=2, height=3.5)
    ground, ax = fig.axes
    draw_landscape(ground, problem)
    said = []
    for look, (label, run) in zip(LOOKS, runs.items(), strict=False):
        ground.plot(*run.path.T, **look, markersize=2.6, linewidth=0.9)
        loss = problem.loss(run.path) - problem.loss(problem.minimum)
        ax.plot(np.linspace(0, run.gradients, len(loss)), loss, **(look | {"marker": ""}), label=label)
        said.append(f"{label} ends at loss {loss[-1]:.2g}")
    style.log_axis(ax, "y")
    ax.set(title="loss", xlabel="gradients taken")
    ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), fontsize=8)
    ground.set_title("paths")
    ground.set_anchor("N")
    plots.describe(fig, f"Paths on the {problem.name} and loss against gradients: {'; '.join(said)}.")
    plots.caption(fig, "Fixed learning rates and Algorithm 1 with the same number of gradients.")
    return fig


def learning_rates(runs: Mapping[str, Run], limits: Mapping[str, float]) -> Figure:
    """The learning rate of each run over its iterations; crosses mark the steps that were discarded.

    Args:
        runs: label -> run.
        limits: label -> height of a horizontal line.
    """
    fig = style.figure(height=3.6)
    (ax,) = fig.axes
    said = []
    for look, (label, run) in zip(LINES, runs.items(), strict=False):
        steps, text = np.arange(len(run.lr)), f"{label}, {(~run.kept).sum()} discarded"
        ax.plot(steps, run.lr, **look, label=text)
        ax.plot(steps[~run.kept], run.lr[~run.kept], color=look["color"], linestyle="none", marker="x", markersize=3.5)
        said.append(f"{text}, ends at {run.lr[-1]:.3g}")
    for label, value in limits.items():
        ax.axhline(value, **LIMIT)
        ax.annotate(label, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8.5)
    style.log_axis(ax, "y")
    ax.set(xlabel="iteration (two gradients each)", ylabel="learning rate η")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2 if len(runs) > 3 else 1)
    plots.describe(fig, f"Learning rate over iterations on a logarithmic axis: {'; '.join(said)}.")
    plots.caption(fig, "The learning rate that Algorithm 1 chooses; crosses are discarded steps.")
    return fig


def settling(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Learning rates that the update rule chooses while theta is held still: panel title -> label -> rates."""
    fig = style.figure(panels=len(panels), height=2.9, sharey=True)
    said = []
    for ax, (title, curves) in zip(fig.axes, panels.items(), strict=True):
        for look, (label, rates) in zip(LINES, curves.items(), strict=False):
            ax.plot(rates, **look, label=label)
            tail = np.log(rates[len(rates) // 2 :])
            said.append(f"{title}, {label}: spread {np.exp(tail.max() - tail.min()):.2f} in the second half")
        style.log_axis(ax, "y")
        ax.set(title=title, xlabel="iteration")
        ax.legend(loc="lower right")
    fig.axes[0].set_ylabel("learning rate η")
    plots.describe(
        fig, f"The learning rate while theta is held still. {'; '.join(said)} (largest over smallest value)."
    )
    plots.caption(fig, "The update rule alone, theta held still, with the exponents 1 and 1/2.")
    return fig


def first_rates(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], limits: Mapping[str, float]) -> Figure:
    """Loss at the end against the first learning rate: where a method forgives a bad choice and where it does not.

    Args:
        curves: label -> (first learning rates, losses at the end; a run that diverged has no finite or a huge loss).
        limits: label -> place of a vertical line.
    """
    fig = style.figure(height=3.1)
    (ax,) = fig.axes
    said = []
    for look, (label, (rates, losses)) in zip(LOOKS, curves.items(), strict=False):
        losses = np.where(np.nan_to_num(losses, nan=np.inf) < 1e3, losses, np.nan)
        ax.plot(rates, losses, **look, label=label)
        lost = np.isnan(losses).sum()
        said.append(f"{label}: between {np.nanmin(losses):.2g} and {np.nanmax(losses):.2g}, {lost} diverge")
    for label, value in limits.items():
        ax.axvline(value, **LIMIT)
        ax.annotate(
            label,
            (value, 0),
            xycoords=("data", "axes fraction"),
            xytext=(3, 3),
            textcoords="offset points",
            fontsize=8.5,
        )
    style.log_axis(ax, "xy")
    ax.set(xlabel="first learning rate", ylabel="loss at the end")
    ax.legend(loc="best")
    plots.describe(fig, f"Loss at the end against the first learning rate. {'; '.join(said)}.")
    plots.caption(fig, "What a bad first guess costs. Where a curve stops, the runs diverged.")
    return fig


def explorer(problem: Problem, first_rates: Sequence[float], tols: Sequence[float], iterations: int = 120, **choices):
    """Sliders for the first learning rate and tol: the path of Algorithm 1, its learning rate, its errors.

    Args:
        problem: the loss.
        first_rates, tols: positions of the sliders.
        iterations: how many.
        **choices: as for :func:`adadp.figures.gradient_flow.adapt`.
    """
    from adadp.figures.widgets import View, explorer

    fig = style.figure(panels=3, width=3.6, height=2.8)
    ground, right, below = fig.axes
    draw_landscape(ground, problem)
    ground.set_title("path")
    (path,) = ground.plot([], [], **LOOKS[0], markersize=2.6, linewidth=0.9)
    rate, lost_rate = _with_crosses(right, iterations, (min(first_rates) / 2, max(first_rates) * 2), "learning rate")
    error, lost_error = _with_crosses(below, iterations, (1e-6, 1e3), "error of each step")
    limit = 2 / problem.lipschitz
    right.axhline(limit, **LIMIT)
    right.annotate("2 / L", (1, limit), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8.5)
    level = below.axhline(tols[0], **LIMIT)
    note = below.annotate(
        "tol", (1, tols[0]), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8.5
    )

    def draw(lr: float, tol: float) -> View:
        """All panels at one position."""
        run = adapt(problem, lr, tol, iterations, **choices)
        steps, out = np.arange(len(run.lr)), ~run.kept
        path.set_data(*run.path.T)
        for line, lost, values in ((rate, lost_rate, run.lr), (error, lost_error, np.clip(run.error, 1e-6, 1e3))):
            line.set_data(steps, values)
            lost.set_data(steps[out], values[out])
        level.set_ydata([tol, tol])
        note.set(y=tol)
        note.xy = (1, tol)
        loss = float(problem.loss(run.path[-1]) - problem.loss(problem.minimum))
        numbers = {
            "loss at the end": style.number(loss),
            "accepted": f"{run.kept.sum()} of {len(out)} steps",
            "discarded": f"{out.sum()}",
        }
        says = (
            f"From a learning rate of {style.number(lr)} with tol {style.number(tol)}, {len(out)} iterations end at a"
            f" loss of {loss:.2g} with a learning rate of {run.lr[-1]:.2g}; {run.kept.sum()} steps were accepted,"
            f" {out.sum()} discarded. err is {np.median(run.error):.2g} in the median."
        )
        return View(fig, numbers, says)

    labels = {"lr": "first learning rate η₀"}
    return explorer(draw, {"lr": first_rates, "tol": tols}, labels=labels, title="Algorithm 1 for any η₀ and tol")


def _with_crosses(ax: Axes, iterations: int, limits: tuple[float, float], title: str) -> list:
    """An empty curve over the iterations on a logarithmic axis, and crosses for those that are discarded."""
    curve = ax.plot([], [], **LINES[0]) + ax.plot([], [], color=LINES[1]["color"], linestyle="none", marker="x", ms=4)
    style.log_axis(ax, "y")
    ax.set(title=title, xlabel="iteration", xlim=(0, iterations), ylim=limits)
    return curve

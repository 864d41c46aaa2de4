"""Figures of the chapter *Choosing tol*: errors, learning rates and accumulated noise beside what the analysis says."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adadp.figures import plots, style
from adadp.figures.noise_analysis import noise_error, noise_only, noise_per_weight
from adadp.figures.step_doubling import LIMIT, LINES, LOOKS
from adadp.step_size import predicted_lr

MEASURED = "No ε is claimed for these runs: they measure what noise does, on public data."


def error_law(measured: Mapping[float, Sequence[tuple[float, float]]], **private) -> Figure:
    """Measured errors against the learning rate, one look a noise multiplier, and the law of the analysis as lines.

    Args:
        measured: noise multiplier -> (learning rate, error) pairs.
        **private: max_grad_norm, num_parameters, expected_batch_size.
    """
    fig = style.figure(height=3.3)
    (ax,) = fig.axes
    said = []
    for look, (sigma, pairs) in zip(LOOKS, measured.items(), strict=False):
        lr, error = np.array(pairs).T
        ax.plot(lr, error, color=look["color"], marker=look["marker"], linestyle="none", label=f"σ = {sigma:g}")
        if sigma > 0:
            law = noise_error(lr, noise_multiplier=sigma, **private)
            ax.plot(lr, law, color=look["color"], linestyle="-", linewidth=1)
            low, high = np.min(error / law), np.max(error / law)
            said.append(f"σ = {sigma:g}: measured over predicted {low:.3f} to {high:.3f}")
    style.log_axis(ax, "xy")
    ax.set(xlabel="learning rate η", ylabel="error of one iteration")
    ax.legend(loc="upper left")
    plots.describe(fig, f"Error against learning rate: lines of slope 1 on logarithmic axes. {'; '.join(said)}.")
    plots.caption(fig, "Points: measured on the MNIST network. Lines: the law for pure noise.")
    plots.statement(fig, MEASURED)
    return fig


def settling(runs: Mapping[str, tuple[Sequence[float], float]]) -> Figure:
    """Learning rates over iterations, and where the closed form says they settle (thin lines).

    Args:
        runs: label -> (learning rates, predicted learning rate).
    """
    fig = style.figure(height=3.6)
    (ax,) = fig.axes
    said = []
    for look, (label, (rates, predicted)) in zip(LINES, runs.items(), strict=False):
        ax.axhline(predicted, **(LIMIT | {"color": look["color"], "linewidth": 0.8}))
        ax.plot(rates, **look, label=label)
        said.append(f"{label}: ends at {rates[-1]:.4g}, predicted {predicted:.4g}")
    style.log_axis(ax, "y")
    ax.set(xlabel="iteration (two gradients each)", ylabel="learning rate η")
    ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.18), ncols=2, fontsize=8)
    plots.describe(fig, f"Learning rate over iterations on a logarithmic axis. {'; '.join(said)}.")
    plots.caption(fig, "ADADP on the MNIST network. Thin horizontal lines: the closed form.")
    plots.statement(fig, MEASURED)
    return fig


def accumulated(measured: Mapping[str, Sequence[tuple[int, float]]], *, tol: float, num_parameters: int) -> Figure:
    """Root-mean-square distance of the weights from their start, per weight, against iterations; lines are the law.

    Args:
        measured: what `advance` was -> (iterations, distance per weight) pairs.
        tol, num_parameters: as for ``predicted_lr``.
    """
    fig = style.figure(height=3.2)
    (ax,) = fig.axes
    said = []
    for look, (advance, pairs) in zip(LOOKS, measured.items(), strict=False):
        iterations, distance = np.array(pairs).T
        law = noise_per_weight(iterations, tol=tol, num_parameters=num_parameters, advance=advance)
        ax.plot(iterations, distance, color=look["color"], marker=look["marker"], linestyle="none", label=advance)
        ax.plot(iterations, law, color=look["color"], linestyle="-", linewidth=1)
        said.append(f"{advance}: measured over predicted {np.mean(distance / law):.3f}")
    style.log_axis(ax, "xy")
    ax.set(xlabel="iterations T", ylabel="distance per weight", ylim=_decades(ax.get_ylim()))
    ax.legend(loc="upper left", title="advance")
    plots.describe(fig, f"Distance from the start per weight, growing like the root of T. {'; '.join(said)}.")
    plots.caption(fig, "Points: how far training moved each weight. Lines: what noise alone predicts.")
    plots.statement(fig, MEASURED)
    return fig


def other_extreme(rows: Sequence[Mapping[str, float]]) -> Figure:
    """Where the learning rate of a small model settles, against tol, and what that does to its loss.

    Args:
        rows: one dictionary a run, with keys tol, lr, predicted, limit (2 / L) and loss.
    """
    keys = ("tol", "lr", "predicted", "limit", "loss")
    tol, lr, predicted, limit, loss = np.array([[row[key] for row in rows] for key in keys])
    fig = style.figure(panels=2, height=3.3)
    left, right = fig.axes
    left.plot(tol, predicted, **LINES[1], label="noise alone")
    left.plot(tol, limit, **LINES[2], label="stability limit 2 / L")
    left.plot(tol, lr, **LOOKS[0], label="ADADP")
    right.plot(tol, loss, **LOOKS[0])
    style.log_axis(left, "xy")
    style.log_axis(right, "x")
    left.set(title="where η settles", xlabel="tol", ylabel="learning rate η")
    right.set(title="training loss", xlabel="tol")
    left.legend(loc="upper left", fontsize=8)
    first, last = np.argmin(tol), np.argmax(tol)
    plots.describe(
        fig,
        f"Softmax regression. For tol {tol[first]:g} the learning rate settles at {lr[first]:.3g} where noise alone"
        f" would give {predicted[first]:.3g}; for tol {tol[last]:g} at {lr[last]:.3g}, noise alone"
        f" {predicted[last]:.3g}, the stability limit {limit[last]:.3g}. The training loss is least for tol"
        f" {tol[np.argmin(loss)]:g}.",
    )
    plots.caption(
        fig,
        "A small model: the learning rate stays below the noise law, in parallel to it, and for large tol bends away"
        " past the stability limit.",
    )
    plots.statement(fig, MEASURED)
    return fig


def explorer(
    tols: Sequence[float],
    sigmas: Sequence[float],
    *,
    lr: float = 0.1,
    iterations: int = 150,
    epochs: int = 100,
    **private,
):
    """Sliders for tol and sigma: the learning rate in the first epoch, and the noise in each weight over all epochs.

    Args:
        tols, sigmas: positions of the sliders.
        lr: the first learning rate.
        iterations: of one epoch.
        epochs: how many the right panel shows.
        **private: max_grad_norm, num_parameters, expected_batch_size.
    """
    from adadp.figures.widgets import View, explorer

    fig = style.figure(panels=2, height=3.1)
    left, right = fig.axes
    whole = np.geomspace(1, iterations * epochs, 40)
    (rate,) = left.plot(np.arange(iterations + 1), np.full(iterations + 1, lr), **LINES[0], label="under pure noise")
    (target,) = left.plot([0, iterations], [lr, lr], **LINES[1], label="closed form")
    noise = [right.plot(whole, whole, **LINES[i], label=name)[0] for i, name in enumerate(("euler", "half_steps"))]
    _frame(left, right, [lr, *(predicted_lr(tol=t, noise_multiplier=s, **private) for t in tols for s in sigmas)])
    reach = noise_per_weight([0.3, 2 * whole[-1]], tol=1.0, num_parameters=private["num_parameters"])
    right.set_ylim(min(tols) * reach[0], max(tols) * reach[1])

    def draw(tol: float, sigma: float) -> View:
        """Both panels at one position."""
        settings = private | {"noise_multiplier": sigma}
        rate.set_ydata(noise_only(tol, lr, iterations, np.random.default_rng(0), **settings))
        closed = predicted_lr(tol=tol, **settings)
        target.set_ydata([closed, closed])
        for line in noise:
            advance = line.get_label()
            line.set_ydata(noise_per_weight(whole, tol=tol, num_parameters=private["num_parameters"], advance=advance))
        euler, halves = (line.get_ydata()[-1] for line in noise)
        says = (
            f"With tol {tol:.3g} and σ {sigma:.3g} the learning rate settles at {closed:.3g}. After {epochs} epochs"
            f" each weight carries noise of {euler:.2g} (euler) or {halves:.2g} (half_steps)."
        )
        names = ("learning rate", f"noise after {epochs} epochs, euler", "half_steps")
        return View(fig, {n: style.number(v) for n, v in zip(names, (closed, euler, halves), strict=True)}, says)

    title = "Learning rate and accumulated noise for tol and σ"
    return explorer(draw, {"tol": tols, "sigma": sigmas}, labels={"sigma": "noise multiplier σ"}, title=title)


def _decades(limits: tuple[float, float]) -> tuple[float, float]:
    """Limits of a logarithmic axis widened to whole decades, so that at least two of them are labelled."""
    low, high = np.log10(limits)
    return float(10 ** np.floor(low)), float(10 ** np.ceil(high))


def _frame(left: Axes, right: Axes, rates: Sequence[float]) -> None:
    """Scales, labels and legends of the explorer's two panels."""
    style.log_axis(left, "y")
    style.log_axis(right, "xy")
    left.set(title="learning rate in the first epoch", xlabel="iteration", ylabel="learning rate η")
    left.set_ylim(min(rates) / 1.5, max(rates) * 1.5)
    right.set(title="noise in each weight", xlabel="iterations T", ylabel="standard deviation")
    for ax in (left, right):
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=8)

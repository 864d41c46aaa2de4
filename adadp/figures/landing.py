"""The picture on the book's first page: tol and noise decide which learning rate ADADP finds, its start does not."""

from collections.abc import Sequence

import matplotlib
import numpy as np

from adadp.figures import plots, style
from adadp.figures.noise_analysis import noise_only
from adadp.figures.step_doubling import LIMIT, LINES
from adadp.step_size import predicted_lr

SETTLED = 20  # iterations at the end whose geometric mean is called the learning rate found


@matplotlib.rc_context(style.RC)
def explorer(
    tols: Sequence[float],
    sigmas: Sequence[float],
    *,
    starts: Sequence[float] = (1e-3, 0.03, 1.0),
    iterations: int = 90,
    seed: int = 0,
    **private,
):
    """Sliders for tol and the noise multiplier over learning rates that start apart and meet.

    Args:
        tols, sigmas: positions of the sliders.
        starts: first learning rates, one line each.
        iterations: how many are drawn; enough for the farthest start to arrive.
        seed: of the noise.
        **private: max_grad_norm, num_parameters, expected_batch_size.
    """
    from adadp.figures.widgets import View, explorer

    fig = style.figure(height=2.9)
    (ax,) = fig.axes
    lines = [ax.plot([], [], **look, label=f"from {style.number(lr)}") for look, lr in zip(LINES, starts, strict=False)]
    level = ax.axhline(starts[0], **LIMIT)
    note = ax.annotate("", (1, 1), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    style.log_axis(ax, "y")
    closed = [predicted_lr(tol=t, noise_multiplier=s, **private) for t in tols for s in sigmas]
    ax.set(xlabel="iteration (two gradients each)", ylabel="learning rate η", xlim=(0, iterations))
    ax.set_ylim(min(*closed, *starts) / 2, max(*closed, *starts) * 2)
    ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=len(starts))
    plots.caption(fig, "ADADP under the noise of private gradients on the MNIST network, from three first guesses.")

    def draw(tol: float, sigma: float) -> View:
        """The lines at one position."""
        settings = private | {"noise_multiplier": sigma}
        ends = []
        for (line,), lr in zip(lines, starts, strict=True):
            rates = noise_only(tol, lr, iterations, np.random.default_rng(seed), **settings)
            line.set_data(np.arange(len(rates)), rates)
            ends.append(rates[-SETTLED:])
        found, known = float(np.exp(np.log(ends).mean())), predicted_lr(tol=tol, **settings)
        level.set_ydata([known, known])
        note.set(y=known, text=f"found: {style.number(found)}")
        note.xy = (1, known)
        says = (
            f"With tol {style.number(tol)} and σ {style.number(sigma)}, runs from {_listed(starts)} all find the"
            f" learning rate {style.number(found)}; the formula says {style.number(known)}."
        )
        return View(fig, {"found": style.number(found), "predicted": style.number(known)}, says)

    labels = {"tol": "tolerance tol", "sigma": "noise multiplier σ"}
    start = {"tol": 1.0, "sigma": 2}
    start = {name: value for name, value in start.items() if value in {"tol": tols, "sigma": sigmas}[name]}
    title = "The learning rate that ADADP finds for tol and σ"
    return explorer(draw, {"tol": tols, "sigma": sigmas}, labels=labels, start=start, title=title)


def _listed(values: Sequence[float]) -> str:
    """Numbers in a sentence."""
    *first, last = map(style.number, values)
    return f"{', '.join(first)} and {last}" if first else last

"""Figures and tables of the chapter *Accounting*: orders, losses, accountants, samplers, the price of tuning."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from adadp.figures import plots, style
from adadp.figures.step_doubling import LIMIT, LINES, LOOKS
from adadp.figures.table import Table
from adadp.privacy import (
    MomentsAccountant,
    assumptions,
    epsilon,
    shuffled_lower_bound,
    shuffled_upper_bound,
    tuned_epsilon,
)
from adadp.rounding import round_down, round_up

COLUMNS = {  # heading -> arguments of `adadp.epsilon`
    "moments": {"accountant": "moments"},
    "RDP": {"accountant": "rdp"},
    "PLD": {"accountant": "pld"},
    "PLD, replace": {"accountant": "pld", "neighbors": "replace_one"},
}
HEADS = {  # of a table, where they are not the key
    "sigma": "σ",
    "PLD, replace": "PLD\nreplace one",
    "Poisson, PLD": "Poisson\nPLD",
    "shuffled, at least": "shuffled\nat least",
    "shuffled, at most": "shuffled\nat most",
    "~10 runs, logarithmic": "~10 runs\nlogarithmic",
    "~10 runs, Poisson": "~10 runs\nPoisson",
    "grid of 9, composed": "grid of 9\ncomposed",
}
SEARCHES = {  # heading -> arguments of `adadp.privacy.tuned_epsilon`
    "one run": {"method": "composed", "runs": 1},
    "~10 runs, logarithmic": {"method": "logarithmic", "runs": 10},
    "~10 runs, Poisson": {"method": "poisson", "runs": 10},
    "grid of 9, composed": {"method": "composed", "runs": 9},
}


def paper_table(data: Mapping[str, tuple[float, int]], sigmas: Sequence[float], delta: float) -> list[dict]:
    """Epsilon under each accountant and adjacency: one row a data set and noise multiplier.

    Args:
        data: name -> (sample rate, gradients).
        sigmas: noise multipliers.
        delta: of every row.

    >>> round(paper_table({"MNIST": (1 / 300, 30_000)}, [2], 1e-5)[0]["moments"], 3)
    1.536
    """
    rows = []
    for name, (rate, steps) in data.items():
        for sigma in sigmas:
            cost = {"noise_multiplier": sigma, "sample_rate": rate, "steps": steps, "delta": delta}
            rows.append({"data": name, "sigma": sigma} | {key: epsilon(**cost, **how) for key, how in COLUMNS.items()})
    return rows


def tuning_table(sigmas: Sequence[float], **cost) -> list[dict]:
    """Epsilon with the search for a learning rate counted: one row a noise multiplier.

    Args:
        sigmas: noise multipliers.
        **cost: sample_rate, steps, delta of one training.
    """
    return [
        {"sigma": sigma} | {key: tuned_epsilon(noise_multiplier=sigma, **cost, **how) for key, how in SEARCHES.items()}
        for sigma in sigmas
    ]


def table(rows: Sequence[Mapping], label: str) -> Table:
    """Epsilons, a column a key; rounded up, and down where they are "at least".

    >>> table([{"data": "MNIST", "sigma": 2, "moments": 1.53611}], "epsilon")
    data   σ  moments
    MNIST  2    1.537
    """
    return Table([{HEADS.get(key, key): _cell(key, value) for key, value in row.items()} for row in rows], label)


def _cell(key: str, value) -> str:
    """One value as text."""
    if isinstance(value, str) or key == "sigma":
        return value if isinstance(value, str) else f"{value:g}"
    return (round_down if "at least" in key else round_up)(value, decimals=3)


def orders(sigmas: Sequence[float], *, sample_rate: float, steps: int, delta: float, last: int = 32) -> Figure:
    """What each order makes of the moments, for several noise multipliers; a large marker at the smallest epsilon.

    Args:
        sigmas: noise multipliers.
        sample_rate, steps, delta: of the training.
        last: the last order of the accountant; a line shows its floor log(1 / delta) / last.
    """
    fig = style.figure(height=3.3)
    (ax,) = fig.axes
    said = []
    for look, sigma in zip(LOOKS, sigmas, strict=False):
        accountant = MomentsAccountant(range(1, last + 1))
        accountant.step(noise_multiplier=sigma, sample_rate=sample_rate, num_steps=steps)
        found = (accountant.log_moments - np.log(delta)) / np.array(accountant.orders)
        best = accountant.best_order(delta=delta)
        ax.plot(accountant.orders, found, **(look | {"marker": ""}), label=f"σ = {sigma:g}")
        ax.plot(best, found[best - 1], color=look["color"], marker=look["marker"], markersize=8, linestyle="none")
        said.append(f"σ = {sigma:g}: smallest epsilon {round_up(found[best - 1])} at order {best}")
    ax.axhline(-np.log(delta) / last, **LIMIT)
    style.log_axis(ax, "y")
    ax.set(xlabel="order λ", ylabel="epsilon", ylim=(None, 20))
    ax.legend(loc="upper right")
    plots.describe(fig, f"Epsilon that each order gives. {'; '.join(said)}.")
    plots.caption(fig, f"The accountant takes the lowest point. Thin line: log(1/δ)/{last}, where it cannot get below.")
    plots.statement(fig, f"δ = {style.number(delta)}; ε for {assumptions(accountant='moments')}")
    return fig


def summed_losses(*, noise_multiplier: float, sample_rate: float, steps: int, samples: int, seed: int) -> np.ndarray:
    """Draws of the privacy loss of ``steps`` releases with the record present: (samples,), float64.

    Args:
        noise_multiplier, sample_rate, steps: of the training.
        samples: number of draws.
        seed: of numpy's generator.

    Reference: the pair of distributions that dominates a Poisson-sampled Gaussian under add/remove.
    """
    rng, variance = np.random.default_rng(seed), noise_multiplier**2
    total = np.zeros(samples)
    for _ in range(steps):
        outcome = noise_multiplier * rng.standard_normal(samples) + (rng.random(samples) < sample_rate)
        total += np.log1p(sample_rate * np.expm1((2 * outcome - 1) / (2 * variance)))
    return total


def delta_of(losses: np.ndarray, epsilon: float) -> float:
    """Delta at ``epsilon`` estimated from draws of the privacy loss.

    >>> delta_of(np.array([0.0, 1.0]), 1.0)
    0.0
    """
    return float(np.mean(np.maximum(0.0, -np.expm1(np.minimum(epsilon - losses, 0.0)))))


def losses(draws: np.ndarray, epsilon: float) -> Figure:
    """How the privacy loss is distributed, and which part of it lies beyond epsilon.

    Args:
        draws: of the privacy loss, (samples,).
        epsilon: where a line is drawn.
    """
    fig = style.figure(height=2.9)
    (ax,) = fig.axes
    ax.hist(draws, bins=80, color=style.COLORS["blue"], histtype="stepfilled", alpha=0.55)
    ax.axvline(epsilon, color=style.COLORS["orange"], linestyle="--")
    ax.annotate(f"ε = {round_up(epsilon)}", (epsilon, 0.9), xycoords=("data", "axes fraction"), xytext=(4, 0),
                textcoords="offset points")  # fmt: skip
    ax.set(xlabel="privacy loss", ylabel="draws", yscale="log")
    style.log_axis(ax, "y")
    beyond = float(np.mean(draws > epsilon))
    plots.describe(
        fig,
        f"Histogram of the privacy loss: mean {draws.mean():.3f}, standard deviation {draws.std():.3f};"
        f" {100 * beyond:.2f} per cent lie beyond epsilon {round_up(epsilon)}.",
    )
    plots.caption(fig, "Privacy loss of one epoch, drawn at random. Only what lies right of ε costs δ.")
    plots.statement(fig, f"ε for {assumptions(accountant='pld')}")
    return fig


def profile(deltas: Sequence[float], **cost) -> Figure:
    """Epsilon against delta by the three accountants: one guarantee, described more and less closely.

    Args:
        deltas: where epsilon is computed.
        **cost: noise_multiplier, sample_rate, steps.
    """
    fig = style.figure(height=3.2)
    (ax,) = fig.axes
    said = []
    for look, (label, how) in zip(LINES, list(COLUMNS.items())[:3], strict=False):
        values = [epsilon(delta=delta, **cost, **how) for delta in deltas]
        ax.plot(deltas, values, **look, label=label)
        said.append(f"{label} {round_up(values[0])} to {round_up(values[-1])}")
    style.log_axis(ax, "x")
    ax.set(xlabel="δ", ylabel="ε", ylim=(0, None))
    ax.legend(loc="upper right")
    plots.describe(fig, f"Epsilon from delta {deltas[0]:.0e} to {deltas[-1]:.0e}: {'; '.join(said)}.")
    plots.caption(fig, "Each curve is a set of guarantees that hold together. The lower one is the sharper account.")
    plots.statement(fig, f"ε for {assumptions()}")
    return fig


def sampler_rows(sigmas: Sequence[float], *, steps: int, delta: float) -> list[dict[str, float]]:
    """One epoch: epsilon for Poisson sampling (PLD), and what shuffling costs at least and at most.

    Args:
        sigmas: noise multipliers.
        steps: batches an epoch.
        delta: of both.
    """
    known = {"sample_rate": 1 / steps, "steps": steps, "delta": delta, "accountant": "pld"}
    return [
        {
            "sigma": sigma,
            "Poisson, PLD": epsilon(noise_multiplier=sigma, **known),
            "shuffled, at least": shuffled_lower_bound(sigma, steps, delta),
            "shuffled, at most": shuffled_upper_bound(sigma, 1, delta),
        }
        for sigma in sigmas
    ]


def samplers(rows: Sequence[Mapping[str, float]]) -> Figure:
    """Epsilon of one epoch against the noise multiplier, sampled and shuffled.

    Args:
        rows: of :func:`sampler_rows`.
    """
    fig = style.figure(height=3.2)
    (ax,) = fig.axes
    sigmas = [row["sigma"] for row in rows]
    for look, key in zip(LOOKS, [key for key in rows[0] if key != "sigma"], strict=False):
        ax.plot(sigmas, [row[key] for row in rows], **look, label=key)
    style.log_axis(ax, "y")
    ax.set(xlabel="noise multiplier σ", ylabel="ε of one epoch")
    ax.legend(loc="upper right")
    said = "; ".join(
        f"σ = {r['sigma']:g}: {round_up(r['Poisson, PLD'])}, shuffled at least {round_down(r['shuffled, at least'])}"
        f" and at most {round_up(r['shuffled, at most'])}"
        for r in rows
    )
    plots.describe(fig, f"Epsilon of one epoch, Poisson sampling and shuffled batches. {said}.")
    plots.caption(fig, "The same noise and batch size. The epsilon of shuffled batches lies between the upper two.")
    plots.statement(fig, f"Lowest curve: ε for {assumptions(accountant='pld')}")
    return fig


def explorer(
    sigmas: Sequence[float],
    epochs: Sequence[int],
    batch_sizes: Sequence[int],
    deltas: Sequence[float],
    *,
    records: int,
):
    """Sliders for noise, epochs, batch size and delta: epsilon by the moments accountant and by PLD.

    Args:
        sigmas, epochs, batch_sizes, deltas: positions of the sliders.
        records: number of training examples.
    """
    from adadp.figures.widgets import View, explorer

    fig = style.figure(height=3.3)
    (ax,) = fig.axes
    names = ("moments", "PLD")
    lines = [ax.plot(epochs, epochs, **look, label=name)[0] for look, name in zip(LINES, names, strict=False)]
    points = [ax.plot(epochs[:1], [1], **(look | {"markersize": 8}))[0] for look in LOOKS[:2]]
    style.log_axis(ax, "xy")
    ax.set(xlabel="epochs", ylabel="ε", ylim=(0.02, 30))
    ax.legend(loc="upper left")
    plots.statement(fig, f"ε for {assumptions()}")

    def value(sigma: float, many: int, batch: int, delta: float, name: str) -> float:
        """Epsilon after some epochs."""
        steps = round(many * records / batch)
        known = {"noise_multiplier": sigma, "sample_rate": batch / records, "steps": steps, "delta": delta}
        return epsilon(**known, **COLUMNS[name])

    def draw(sigma: float, epochs_done: int, batch: int, delta: float) -> View:
        """Both curves and the chosen point on them."""
        found = []
        for line, point, name in zip(lines, points, names, strict=True):
            line.set_ydata([value(sigma, e, batch, delta, name) for e in epochs])
            found.append(value(sigma, epochs_done, batch, delta, name))
            point.set_data([epochs_done], found[-1:])
        moments, pld = found
        shown = [round_up(value, decimals=3) for value in found]
        says = (
            f"With σ {sigma:.3g}, batches of {batch:g} and δ {style.number(delta)}, {epochs_done:g} epochs cost"
            f" ε {shown[0]} by the moments accountant and {shown[1]} by PLD, {moments / pld:.2f} times smaller."
        )
        return View(fig, {"moments": f"ε = {shown[0]}", "PLD": f"ε = {shown[1]}"}, says)

    axes = {"sigma": sigmas, "epochs_done": epochs, "batch": batch_sizes, "delta": deltas}
    labels = {"sigma": "noise multiplier σ", "epochs_done": "epochs", "batch": "batch size", "delta": "δ"}
    start = {"sigma": 2, "epochs_done": 100, "batch": 200, "delta": 1e-5}
    start = {key: first for key, first in start.items() if first in axes[key]}
    title = "Epsilon for σ, epochs, batch size and δ"
    return explorer(draw, axes, labels=labels, start=start, title=title, between=False)

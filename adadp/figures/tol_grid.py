"""The grid of tol and sigma under sliders: the learning rate measured against the formula, accuracy, noise, epsilon."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import matplotlib
from matplotlib.figure import Figure

from adadp.figures import plots, style
from adadp.figures.noise_analysis import noise_per_weight
from adadp.figures.step_doubling import LINES, LOOKS
from adadp.privacy import assumptions, epsilon
from adadp.rounding import round_up
from adadp.step_size import predicted_lr

EXPERIMENT = "tol-grid"
COLUMNS = ("epoch", "steps", "test_accuracy", "lr")


@dataclass(frozen=True)
class Grid:
    """Private trainings that differ in tol and the noise multiplier alone.

    Attributes:
        runs: (tol, noise multiplier) -> one row an epoch, with epoch, steps, test_accuracy and lr.
        data: the provenance of the data.
        origin: one sentence: where the runs come from.
        private: max_grad_norm, num_parameters, expected_batch_size.
        sample_rate, delta: for epsilon.
    """

    runs: Mapping[tuple[float, float], Sequence[Mapping[str, float]]]
    data: str
    origin: str
    private: Mapping[str, float]
    sample_rate: float
    delta: float

    @property
    def tols(self) -> list[float]:
        """The values of tol, rising."""
        return sorted({tol for tol, _ in self.runs})

    @property
    def sigmas(self) -> list[float]:
        """The noise multipliers, rising."""
        return sorted({sigma for _, sigma in self.runs})

    @property
    def farthest(self) -> float:
        """The largest relative distance of a run's last learning rate from the prediction."""
        known = {(t, s): predicted_lr(tol=t, noise_multiplier=s, **self.private) for t, s in self.runs}
        return max(abs(rows[-1]["lr"] / known[key] - 1) for key, rows in self.runs.items())


def stored(num_parameters: int, *, records: int = 60_000, folder=None) -> tuple[Grid | None, str]:
    """The stored full-size grid, and one sentence on it; no grid while a single run of it is missing.

    Args:
        num_parameters: of the network that the experiment trains.
        records: training examples.
        folder: of the stored results; the package's own if left out.
    """
    from adadp.experiments import results

    curves = results.curves(EXPERIMENT, results.load(folder))
    known = [curve for curve in curves if curve["records"]]
    if len(known) < len(curves):
        command = f"adadp run {EXPERIMENT}"
        return None, f"{len(known)} of the {len(curves)} full-size runs are stored; {command} makes the others."
    runs = {}
    for curve in curves:
        columns = curve["records"][0]["rows"]
        key = (curve["config"]["tol"], curve["config"]["noise_multiplier"])
        runs[key] = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*(columns[c] for c in COLUMNS), strict=True)]
    config = curves[0]["config"]
    private = {key: config[key] for key in ("max_grad_norm", "expected_batch_size")}
    origin = f"{len(runs)} stored runs of {config['epochs']} epochs, one seed each."
    private["num_parameters"] = num_parameters
    rate = config["expected_batch_size"] / records
    return Grid(runs, curves[0]["records"][0]["data"], origin, private, rate, config["delta"]), origin


@matplotlib.rc_context(style.RC)
def explorer(grid: Grid):
    """Sliders for tol and the noise multiplier over the runs of a grid.

    Raises:
        ValueError: a combination of the grid's values is missing.
    """
    from adadp.figures.widgets import View, explorer

    missing = [(t, s) for t in grid.tols for s in grid.sigmas if (t, s) not in grid.runs]
    if missing:
        raise ValueError(f"the grid lacks (tol, noise multiplier) {', '.join(map(str, missing[:3]))}")
    fig = _frame(grid)
    rate, level, accuracy = (fig.axes[i].lines[j] for i, j in ((0, 0), (0, 1), (1, 0)))

    def draw(tol: float, sigma: float) -> View:
        """Both panels at one position."""
        rows, known = grid.runs[tol, sigma], grid.private | {"noise_multiplier": sigma}
        epochs, rates = [row["epoch"] for row in rows], [row["lr"] for row in rows]
        closed, end = predicted_lr(tol=tol, **known), rows[-1]
        rate.set_data(epochs, rates)
        level.set_data([0, epochs[-1]], [closed, closed])
        accuracy.set_data(epochs, [row["test_accuracy"] for row in rows])
        noise = noise_per_weight(end["steps"] / 2, tol=tol, num_parameters=grid.private["num_parameters"])
        cost = {"noise_multiplier": sigma, "sample_rate": grid.sample_rate, "delta": grid.delta}
        eps = {a: epsilon(**cost, steps=int(end["steps"]), accountant=a) for a in ("moments", "pld")}
        numbers = {
            "predicted": style.number(closed), "measured": style.number(rates[-1]),
            "accuracy": f"{100 * end['test_accuracy']:.1f} %", "noise in each weight": style.number(noise),
            "ε": f"{round_up(eps['moments'])} (moments), {round_up(eps['pld'])} (PLD)",
        }  # fmt: skip
        says = (
            f"With tol {style.number(tol)} and σ {style.number(sigma)} the learning rate is {numbers['measured']} after"
            f" {end['epoch']} epochs, predicted {numbers['predicted']}; test accuracy {numbers['accuracy']}, noise"
            f" {numbers['noise in each weight']} in each weight, ε {numbers['ε']}."
        )
        return View(fig, numbers, says)

    axes = {"tol": grid.tols, "sigma": grid.sigmas}
    start = {name: value for name, value in (("tol", 1.0), ("sigma", 2)) if value in axes[name]}
    labels = {"sigma": "noise multiplier σ"}
    return explorer(draw, axes, labels=labels, start=start, title="Trainings for tol and σ", between=False)


def _frame(grid: Grid) -> Figure:
    """Two panels wide enough for every run of the grid."""
    fig = style.figure(panels=2, height=3.1)
    left, right = fig.axes
    rows = [row for run in grid.runs.values() for row in run]
    last = max(row["epoch"] for row in rows)
    closed = [predicted_lr(tol=t, noise_multiplier=s, **grid.private) for t, s in grid.runs]
    rates = [*closed, *(row["lr"] for row in rows)]
    left.plot([], [], **(LOOKS[0] | {"markevery": ceil(last / 20)}), label="measured")
    left.plot([], [], **LINES[1], label="predicted")
    right.plot([], [], **(LOOKS[0] | {"markevery": ceil(last / 20)}))
    style.log_axis(left, "y")
    left.set(title="learning rate", xlabel="epoch", ylabel="learning rate η", xlim=(0, last))
    left.set_ylim(min(rates) / 1.5, max(rates) * 1.5)
    right.set(title="test accuracy", xlabel="epoch", ylabel="test accuracy", xlim=(0, last), ylim=(0, 1))
    style.percent_axis(right)
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    plots.caption(fig, grid.origin)
    plots.statement(fig, f"ε at the end, δ = {style.number(grid.delta)}, for {assumptions()}")
    plots.provenance(fig, grid.data)
    return fig

"""Figures of the private-training chapters: accuracy against epsilon, learning rates, accountants, stored results."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from adadp.figures import plots, style
from adadp.figures.step_doubling import LIMIT
from adadp.privacy import assumptions, epsilon
from adadp.rounding import round_up

Rows = Sequence[Mapping[str, float]]
ACCOUNTINGS = {  # label -> arguments of `adadp.epsilon`
    "PLD, add/remove": {"accountant": "pld"},
    "moments, add/remove": {"accountant": "moments"},
    "PLD, replace-one": {"accountant": "pld", "neighbors": "replace_one"},
}


def accuracy(runs: Mapping[str, Sequence[Rows]], *, delta: float, statement: str, data: str) -> Figure:
    """Test accuracy against epsilon of several methods, with the privacy statement below.

    Args:
        runs: method name -> one list of rows a seed (``History.rows``).
        delta: of epsilon.
        statement: the privacy statement, one line.
        data: the provenance of the data.
    """
    fig = plots.accuracy_against_epsilon(runs, delta=delta, ax=style.figure(height=3.6).axes[0])
    plots.caption(fig, "Accuracy after each epoch against what has been spent by then.")
    plots.statement(fig, f"At the end {statement}")
    plots.provenance(fig, data)
    return fig


def rate_rows(history) -> list[dict[str, float]]:
    """Learning rates of a run, (step, lr): every iteration of the first epoch, then one value an epoch."""
    points = [{"step": p["step"], "lr": p["lr"]} for p in history.first_epoch]
    done = points[-1]["step"] if points else 0
    return points + [{"step": r["steps"], "lr": r["lr"]} for r in history.rows if r["steps"] > done]


def learning_rates(
    runs: Mapping[str, Rows], predicted: Mapping[str, float], *, data: str, statement: str = ""
) -> Figure:
    """Learning rates over gradients, with a thin line where the closed form says they settle.

    Args:
        runs: method name -> rows of :func:`rate_rows`.
        predicted: label -> learning rate.
        data: the provenance of the data.
        statement: the privacy statement of each of the trainings, one line.
    """
    fig = plots.learning_rate(runs, ax=style.figure(height=3.4).axes[0])
    (ax,) = fig.axes
    for label, value in predicted.items():
        ax.axhline(value, **LIMIT)
        above = {"xycoords": ("axes fraction", "data"), "xytext": (0, 3), "textcoords": "offset points"}
        ax.annotate(label, (1, value), **above, ha="right", va="bottom", fontsize=8)  # clear of the markers
    words = ", ".join(f"{label}: {style.number(value)}" for label, value in predicted.items())
    plots.describe(fig, f"{plots.describe(fig)} Closed form: {words}.")
    plots.caption(fig, "The learning rates that ADADP chose. Thin lines: the closed form.")
    plots.statement(fig, f"Each training {statement}" if statement else "")
    plots.provenance(fig, data)
    return fig


def with_epsilon(rows: Rows, *, noise_multiplier: float, sample_rate: float, delta: float, **accounting) -> list[dict]:
    """The same rows with epsilon by another accountant or for other neighbours.

    Args:
        rows: with the key ``steps``.
        noise_multiplier, sample_rate, delta: of the training.
        **accounting: ``accountant`` and ``neighbors`` of :func:`adadp.epsilon`.
    """
    known = {"noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "delta": delta, **accounting}
    return [{**row, "epsilon": epsilon(steps=int(row["steps"]), **known)} for row in rows]


def accountings(rows: Rows, *, data: str, **privacy) -> Figure:
    """One training, three epsilons: the same accuracies against epsilon under each accounting.

    Args:
        rows: of one run.
        data: the provenance of the data.
        **privacy: noise_multiplier, sample_rate, delta.
    """
    runs = {label: [with_epsilon(rows, **privacy, **how)] for label, how in ACCOUNTINGS.items()}
    fig = plots.accuracy_against_epsilon(runs, delta=privacy["delta"])
    ends = ", ".join(f"{label}: {round_up(seeds[0][-1]['epsilon'])}" for label, seeds in runs.items())
    plots.describe(fig, f"Three curves of equal heights, shifted along epsilon. Epsilon at the end, {ends}.")
    plots.caption(fig, "One and the same run. The guarantee depends on who computes it, and against what.")
    plots.statement(fig, f"ε for {assumptions(neighbors=None)}; neighbours and accountant as written at the curves")
    plots.provenance(fig, data)
    return fig

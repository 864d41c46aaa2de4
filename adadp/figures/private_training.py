"""Figures of the private-training chapters: accuracy against epsilon, learning rates, accountants, stored results."""

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from adadp.figures import plots, style
from adadp.figures.step_doubling import LIMIT
from adadp.privacy import assumptions, epsilon
from adadp.rounding import round_up

Rows = Sequence[Mapping[str, float]]
ROLES = {  # role of a stored curve -> method name of the house style
    "recommended": "recommended",
    "as_printed": "as_printed",
    "reference_code": "reference_code",
    "adam best": "adam",
    "adam second": "adam_second",
    "sgd tuned at 2": "sgd_transferred",
}
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
        ax.annotate(label, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
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


def stored_runs(data: str, *, accountant: str = "moments", folder=None) -> dict[float, dict[str, list[Rows]]]:
    """The stored full-size runs behind the comparisons: noise multiplier -> method name -> rows of each seed.

    Args:
        data: "mnist" or "cifar".
        accountant: "moments" or "pld": whose epsilon the rows carry.
        folder: of the stored results; the package's own if left out.
    """
    from adadp.experiments import results

    records, found = results.load(folder), {}
    for experiment in (f"dp-adam-{data}", f"dp-sgd-{data}") if records else ():
        for curve in results.curves(experiment, records):
            name, sigma = ROLES.get(curve["role"]), curve["config"].get("noise_multiplier")
            seeds = [_rows(record["rows"], accountant) for record in curve["records"]]
            if name and seeds:
                found.setdefault(sigma, {}).setdefault(name, seeds)
    return {sigma: {n: found[sigma][n] for n in ROLES.values() if n in found[sigma]} for sigma in sorted(found)}


def _rows(columns: Mapping[str, Sequence[float]], accountant: str) -> list[dict[str, float]]:
    """Columns of a stored record as rows; epsilon is that of the accountant."""
    keys = {"steps": "steps", "test_accuracy": "test_accuracy", "lr": "lr", "epsilon": f"epsilon_{accountant}"}
    return [dict(zip(keys, values, strict=True)) for values in zip(*(columns[k] for k in keys.values()), strict=True)]


def in_words(runs: Mapping[float, Mapping[str, Sequence[Rows]]]) -> str:
    """A table in plain text: final accuracy of each method at each noise multiplier, mean and spread over seeds."""
    if not runs:
        return "No full-size runs are stored yet; `adadp run dp-adam-mnist dp-sgd-mnist` makes them."
    lines = []
    for sigma, methods in runs.items():
        for name, seeds in methods.items():
            ends = [100 * rows[-1]["test_accuracy"] for rows in seeds]
            spread = f"{min(ends):.1f} to {max(ends):.1f}" if len(ends) > 1 else "one seed"
            label = style.METHODS[name]["label"]
            lines.append(f"σ = {sigma:<3g} {label:25s} {statistics.fmean(ends):5.1f} %  ({spread})")
    return "\n".join(lines)


def stored_explorer(data: str, *, delta: float = 1e-5, folder=None):
    """Sliders over the stored runs: noise multiplier and accountant; a plain figure where only one sigma is stored.

    Args:
        data: "mnist" or "cifar".
        delta: of the stored runs.
        folder: of the stored results.

    Returns:
        An explorer, a figure, or None where nothing is stored.
    """
    from adadp.figures.widgets import View, explorer

    runs = {accountant: stored_runs(data, accountant=accountant, folder=folder) for accountant in ("moments", "pld")}
    sigmas = list(runs["moments"])

    def draw(sigma: float, accountant: str) -> View:
        """The curves of one noise multiplier under one accountant."""
        shown = runs[accountant][sigma]
        fig = plots.accuracy_against_epsilon(shown, delta=delta, ax=style.figure(height=3.8).axes[0])
        plots.statement(fig, f"ε for {assumptions()}; accountant as chosen")
        numbers = {
            style.METHODS[name]["label"]: f"{100 * statistics.fmean(r[-1]['test_accuracy'] for r in seeds):.1f} %"
            for name, seeds in shown.items()
        }
        return View(fig, numbers, f"σ = {sigma:g}, {accountant}. {plots.describe(fig)}")

    if len(sigmas) < 2:
        return draw(sigmas[0], "moments").figure if sigmas else None
    axes = {"sigma": sigmas, "accountant": ["moments", "pld"]}
    title = "Stored full-size runs: accuracy against epsilon"
    return explorer(draw, axes, labels={"sigma": "noise multiplier σ"}, title=title, between=False)

"""Full-size results as the chapters of private training draw them: what is stored, and in words what is still missing.

Every function draws the runs that are there, with as many seeds as there are, and says how many are not: finished runs
appear without a change of code. Where nothing is stored a :class:`Note` stands in the figure's place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adadp.experiments import results
from adadp.experiments.evidence import gap
from adadp.experiments.results import finals, spread
from adadp.figures import plots, style
from adadp.figures.points import by_value
from adadp.figures.stored_words import ACCOUNTANTS, Note, band, both, data_line, missing, not_yet, of_a_case, spent
from adadp.figures.table import Table
from adadp.figures.widgets import Explorer, View, explorer
from adadp.privacy import assumptions
from adadp.rounding import points, round_up

ROLES = {  # what ADADP is compared with -> role of a stored curve -> method name of the house style
    "adam": {
        "recommended": "recommended",
        "as_printed": "as_printed",
        "reference_code": "reference_code",
        "reference_code_tol1": "reference_code_tol1",
        "adam best": "adam",
        "adam second": "adam_second",
    },
    "sgd": {
        "recommended": "recommended",
        "as_printed": "as_printed",
        "reference_code": "reference_code",
        "sgd tuned at 2": "sgd_transferred",
        "sgd second": "sgd_second",
        "sgd rescaled": "sgd_rescaled",
        "predicted lr, tol 1": "predicted_tol1",
        "predicted lr, tol 0.316": "predicted",
        "predicted lr, recommended tol": "predicted_recommended",
    },
}
LEFT_TO_THE_TABLE = {"predicted": "predicted_recommended", "reference_code": "sgd_transferred"}  # beside these
PEEKED = {"adam": "Adam", "adam_second": "Adam", "sgd_transferred": "SGD", "sgd_second": "SGD", "sgd_rescaled": "SGD"}


@dataclass(frozen=True)
class Comparison:
    """The stored runs of one comparison: noise multiplier -> method name -> records, one a seed.

    Args:
        experiment: its name.
        runs: the records.
        missing: a sentence that says what is not stored yet.
    """

    experiment: str
    runs: Mapping[float, Mapping[str, Sequence[dict]]]
    missing: str
    data: str = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "data", data_line([r for m in self.runs.values() for s in m.values() for r in s]))

    def __repr__(self) -> str:
        return repr(table(self))

    def _repr_html_(self) -> str:
        return table(self)._repr_html_()


def comparison(data: str, against: str, *, folder=None) -> Comparison:
    """The stored full-size runs of ADADP against "adam" or "sgd" on "mnist" or "cifar".

    Args:
        data, against: which comparison.
        folder: of the stored results; the package's own if left out.
    """
    experiment, records = f"dp-{against}-{data}", results.load(folder)
    found: dict = {}
    for curve in results.curves(experiment, records):
        name, sigma = ROLES[against].get(curve["role"]), curve["config"]["noise_multiplier"]
        if name and curve["records"]:
            found.setdefault(sigma, {})[name] = curve["records"]
    runs = {s: {n: found[s][n] for n in ROLES[against].values() if n in found[s]} for s in sorted(found)}
    return Comparison(experiment, runs, missing(experiment, records=records))


def rows(record: Mapping, accountant: str = "moments") -> list[dict[str, float]]:
    """Columns of a stored record as rows; epsilon is that of the accountant."""
    columns = record["rows"]
    keys = {"epoch": "epoch", "steps": "steps", "test_accuracy": "test_accuracy", "lr": "lr"}
    keys |= {"epsilon": f"epsilon_{accountant.lower()}"}
    return [dict(zip(keys, values, strict=True)) for values in zip(*(columns[k] for k in keys.values()), strict=True)]


def epochs(record: Mapping) -> list[dict[str, float]]:
    """Accuracy after each epoch of a stored record, as rows; all there is of a run without noise."""
    columns = [record["rows"][name] for name in ("epoch", "test_accuracy")]
    return [{"epoch": epoch, "test_accuracy": accuracy} for epoch, accuracy in zip(*columns, strict=True)]


def accuracy_by_epoch(runs: Mapping[str, Sequence[Sequence[Mapping]]], ax: Axes) -> Figure:
    """Test accuracy by epoch, for runs without noise.

    Args:
        runs: name -> one list of :func:`epochs` a seed.
        ax: where to draw.
    """
    fig = plots.curves(runs, x="epoch", y="test_accuracy", ax=ax)
    ax.set(xlabel="epoch", ylabel="test accuracy")
    style.percent_axis(ax)
    ends = ", ".join(f"{n} {100 * fmean(s[-1]['test_accuracy'] for s in seeds):.1f} %" for n, seeds in runs.items())
    plots.describe(fig, f"Test accuracy without noise by epoch. At the end: {ends}.")
    return fig


def gaps(compared: Comparison, baseline: str) -> dict[str, tuple[float, float]]:
    """How far each method ends from a baseline, in points: smallest and largest over the noise multipliers.

    Args:
        compared: of :func:`comparison`.
        baseline: a method's name in the house style, such as "adam" or "sgd_transferred".
    """
    found: dict[str, list[float]] = {}
    for methods in compared.runs.values():
        for name in methods.keys() - {baseline} if baseline in methods else ():
            found.setdefault(name, []).append(gap(methods[name], methods[baseline]))
    return {name: (min(values), max(values)) for name, values in sorted(found.items())}


def in_points(compared: Comparison, baseline: str) -> dict[str, str]:
    """:func:`gaps` in words."""
    return {name: points(*gap) for name, gap in gaps(compared, baseline).items()}


def peeking(compared: Comparison) -> str:
    """A sentence on learning rates that were chosen by looking at the test set; empty where none was."""
    names = dict.fromkeys(PEEKED[name] for methods in compared.runs.values() for name in methods if name in PEEKED)
    return f"The learning rate of {' and '.join(names)} was chosen by test accuracy, on another seed." if names else ""


def ends(methods: Mapping[str, Sequence[dict]]) -> dict[str, str]:
    """Label of each method -> final accuracy with its spread over seeds; of a baseline with its learning rate."""
    found = {}
    for name, records in methods.items():
        label, rate = style.METHODS[name]["label"], style.number(records[0]["config"]["lr"])
        number = spread(finals({"records": records}))
        found[label] = number if label.startswith("ADADP") else f"{number}, lr {rate}"
    return found


def drawn(methods: Mapping[str, Sequence[dict]]) -> dict[str, Sequence[dict]]:
    """The curves of a figure: without what is another curve, or looks like it and is left to the table."""
    hidden = {name for name, other in LEFT_TO_THE_TABLE.items() if other in methods}
    first, again = (methods.get(name, ()) for name in ("sgd_transferred", "sgd_rescaled"))
    if [r["id"] for r in first] == [r["id"] for r in again]:  # at the noise at which it was tuned
        hidden.add("sgd_rescaled")
    return {name: records for name, records in methods.items() if name not in hidden}


def table(compared: Comparison) -> Table:
    """Final accuracy of every method, a column a noise multiplier, with epsilon under both accountants in its head;
    below it the learning rates of the baselines and how they were chosen, the data, what is missing."""
    together = {name: records for methods in compared.runs.values() for name, records in methods.items()}
    lines = {name: {"accuracy (%)": style.METHODS[name]["label"]} for name in together}
    rates: dict[str, dict[float, str]] = {}
    for sigma, methods in compared.runs.items():
        last = next(iter(methods.values()))[0]["rows"]
        head = f"σ = {sigma:g}\nε = {both([last[f'epsilon_{a.lower()}'][-1] for a in ACCOUNTANTS])}"
        for name, line in lines.items():
            line[head] = _cell(finals({"records": methods[name]})) if name in methods else "–"
            if name in methods and not line["accuracy (%)"].startswith("ADADP"):
                rates.setdefault(name, {})[sigma] = style.number(methods[name][0]["config"]["lr"])
    notes = [
        "ε: moments accountant / PLD. One number is one seed; else the mean, and below it the lowest and highest seed.",
        f"Learning rates: {'; '.join(_rates(*pair) for pair in rates.items())}." if rates else "",
        peeking(compared),
        f"Data: {compared.data}" if compared.data else "",
        compared.missing,
    ]
    return Table(list(lines.values()), "Final accuracies of all methods", list(filter(None, notes[not lines :])))


def _cell(values: Sequence[float]) -> str:
    """Mean of accuracies in percent, and in small print their range."""
    return f"{fmean(values):.1f}" + (f"\n{min(values):.1f} to {max(values):.1f}" if len(values) > 1 else "")


def _rates(name: str, found: Mapping[float, str]) -> str:
    """The learning rates of a method by noise multiplier, once where they are the same."""
    same = len(set(found.values())) == 1 < len(found)
    told = ", ".join(f"{lr} at σ = {sigma:g}" for sigma, lr in found.items())
    return f"{style.METHODS[name]['label']} {next(iter(found.values())) + ' at every σ' if same else told}"


def accuracy_explorer(compared: Comparison, *, delta: float = 1e-5) -> Explorer | Figure | Note:
    """Accuracy against epsilon under sliders for the noise multiplier and the accountant.

    Args:
        compared: of :func:`comparison`.
        delta: of the stored runs.

    Returns:
        An explorer; a figure where only one noise multiplier is stored; a note where none is.
    """

    seeds = band(len(found) for methods in compared.runs.values() for found in drawn(methods).values())

    def draw(sigma: float, accountant: str) -> View:
        """The curves of one noise multiplier under one accountant."""
        methods = drawn(compared.runs[sigma])
        runs = {name: [rows(r, accountant) for r in records] for name, records in methods.items()}
        fig = plots.accuracy_against_epsilon(runs, delta=delta, ax=style.figure(height=3.8).axes[0])
        _look_closer(fig, runs)
        told = f"{peeking(compared)} {compared.missing}".strip()
        plots.caption(fig, f"Stored full-size runs. {seeds} {told}")
        plots.statement(fig, f"ε for {assumptions()}; accountant as chosen")
        plots.provenance(fig, compared.data)
        spent = max(found[0][-1]["epsilon"] for found in runs.values())
        return View(
            fig, ends(methods), f"σ = {sigma:g}: accuracy up to ε = {round_up(spent)} ({accountant} accountant)."
        )

    sigmas = list(compared.runs)
    if len(sigmas) < 2:
        return draw(sigmas[0], "moments").figure if sigmas else Note(compared.missing)
    title = "Stored full-size runs: accuracy against epsilon"
    names = {"sigma": "noise multiplier σ"}
    return explorer(draw, {"sigma": sigmas, "accountant": ACCOUNTANTS}, labels=names, title=title, between=False)


def _look_closer(fig: Figure, runs: Mapping[str, Sequence[Sequence[Mapping[str, float]]]]) -> None:
    """Leave out the steep first tenth of the training, in which all methods look alike."""
    shown = [row["test_accuracy"] for seeds in runs.values() for seed in seeds for row in seed[len(seed) // 10 :]]
    fig.axes[0].set_ylim(bottom=min(shown) - 0.05 * (max(shown) - min(shown)))


@matplotlib.rc_context(style.RC)
def accuracy_by_sigma(compared: Comparison) -> Figure | Note:
    """Final accuracy of each method against the noise multiplier: mean, lowest and highest seed."""
    if not compared.runs:
        return Note(compared.missing)
    ends: dict[str, dict[float, list[float]]] = {}
    together = drawn({name: records for methods in compared.runs.values() for name, records in methods.items()})
    for sigma, methods in compared.runs.items():
        for name in methods.keys() & together.keys() - {"sgd_second"}:  # (stored at one noise multiplier only)
            ends.setdefault(name, {})[sigma] = [r["rows"]["test_accuracy"][-1] for r in methods[name]]
    ends = {name: ends[name] for name in together if name in ends}
    fig = by_value(ends, xlabel="noise multiplier σ", ax=style.figure(height=3.8).axes[0])
    plots.caption(fig, f"Stored full-size runs, after the last epoch. {peeking(compared)} {compared.missing}")
    plots.statement(fig, spent([r for m in compared.runs.values() for s in m.values() for r in s]))
    plots.provenance(fig, compared.data)
    return fig


def one_case(config, record: dict | None = None, *, folder=None) -> Figure | Note:
    """Accuracy against epsilon of one case over the band of the stored seeds of that same case.

    Args:
        config: of :func:`adadp.experiments.cases.case`.
        record: of :func:`adadp.experiments.cases.run_case`; None draws the stored band alone.
        folder: of the stored results.
    """
    runs, records = own_and_alike(config, record, folder)
    if not runs:
        return not_yet(config)
    ax = style.figure(height=3.4).axes[0]
    if config.noise_multiplier:
        series = {name: [rows(r) for r in found] for name, found in runs.items()}
        fig = plots.accuracy_against_epsilon(series, delta=config.delta, ax=ax)
        plots.statement(fig, f"ε for {assumptions()}; moments accountant")
    else:  # epsilon is infinite
        fig = accuracy_by_epoch({name: [epochs(r) for r in found] for name, found in runs.items()}, ax=ax)
    plots.caption(fig, of_a_case(config, len(records) - bool(record)))
    plots.provenance(fig, data_line(records))
    return fig


def own_and_alike(config, record: dict | None, folder) -> tuple[dict[str, list[dict]], list[dict]]:
    """The stored seeds of a case and a run of one's own, by their names in a figure; and all these records."""
    alike = [r for r in results.load(folder).values() if r["config"] | {"seed": 0} == config.to_dict() | {"seed": 0}]
    own = [record] if record else []
    named = {f"stored, {len(alike)} seed{'s' * (len(alike) > 1)}": alike, f"this run, seed {config.seed}": own}
    return {name: found for name, found in named.items() if found}, [*alike, *own]

"""What else the stored runs of private training show: lr paths, other starts, one thing changed, time, small models."""

import itertools
import statistics
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure

from adadp.experiments import results
from adadp.experiments.claims import lr_factor
from adadp.experiments.configs import Config, from_dict
from adadp.experiments.private import DATA
from adadp.figures import plots, style
from adadp.figures.points import by_value, has_course
from adadp.figures.stored import accuracy_by_epoch, epochs, rows
from adadp.figures.stored_words import Note, data_line, found, spent
from adadp.rounding import points, round_up, signed

VARIANTS = ("as_printed", "reference_code", "recommended")
LABELS = {name: style.METHODS[name]["label"] for name in VARIANTS}
SHORT = {name: name.replace("_", " ") for name in VARIANTS}
CHANGES = {  # experiment -> (before, after, the change undone)
    "scaled-error": ("relative error", "plain norm", dict(relative_error=True)),
    "discarding": ("every step kept", "too large an error discarded", dict(discard=False)),
    "decay-control": ("constant lr", "lr decays from epoch 50 on", dict(decay_from=None, decay_rate=None)),
    "sampling-control": ("Poisson samples", "shuffled batches", dict(sampler="poisson")),
    "clip-control": ("clipped at 10", "clipped at 1", dict(max_grad_norm=DATA["mnist"]["max_grad_norm"])),
}


def _finish(fig: Figure, caption: str, curves: Sequence[dict]) -> Figure:
    """Caption, privacy statement and data of a figure."""
    records = [r for c in curves for r in c["records"]]
    plots.caption(fig, caption)
    plots.statement(fig, spent(records))
    plots.provenance(fig, data_line(records))
    return fig


def _seeds(curves: Sequence[dict]) -> str:
    """How many seeds a point has, in words."""
    counts = sorted({len(c["records"]) for c in curves})
    if counts == [1]:
        return "One seed a point."
    return f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds a point."


def _ends(curve: dict) -> list[float]:
    """Final accuracies (0..1), one a seed."""
    return [r["rows"]["test_accuracy"][-1] for r in curve["records"]]


@matplotlib.rc_context(style.RC)
def lr_by_epoch(predicted: Mapping[float, float], *, data: str = "mnist", role: str = "as_printed", folder=None):
    """The learning rate after every epoch at each noise multiplier, and where the closed form says it settles.

    Args:
        predicted: noise multiplier -> learning rate.
        data: "mnist" or "cifar".
        role: a variant of ADADP.
        folder: of the stored results.

    Returns:
        a figure, or a note where nothing is stored.
    """
    curves, said = found(f"dp-adam-{data}", folder=folder)
    curves = sorted((c for c in curves if c["role"] == role), key=lambda c: c["config"]["noise_multiplier"])
    if not curves:
        return Note(said)
    fig = style.figure(height=3.2)
    (ax,) = fig.axes
    runs = {f"σ = {c['config']['noise_multiplier']:g}": [rows(r) for r in c["records"]] for c in curves}
    style.log_axis(ax, "y")
    for sigma, lr in predicted.items():
        if f"σ = {sigma:g}" in runs:
            ax.axhline(lr, color=style.COLORS["muted"], linewidth=0.8)
    plots.curves(runs, x="epoch", y="lr", ax=ax)
    ax.set(xlabel="epoch", ylabel="learning rate η")
    largest = max(lr_factor(r) for c in curves for r in c["records"])
    words = f"Over epochs 2 to 50 the lr of a run changes by a factor of at most {largest:.2f}."
    plots.describe(fig, f"Learning rate of {LABELS[role]} by epoch. {words}")
    return _finish(fig, f"{LABELS[role]}; thin lines: the closed form. {words}", curves)


def course(*, data: str = "mnist", sigma: float = 2, role: str = "as_printed", folder=None) -> dict[str, float]:
    """Accuracies in percent on the way: the best of the first ten epochs, epoch 50, the end; mean over seeds."""
    curves, _ = found(f"dp-adam-{data}", folder=folder)
    for c in curves:
        if c["role"] == role and c["config"]["noise_multiplier"] == sigma:
            percent = [[100 * a for a in r["rows"]["test_accuracy"]] for r in c["records"]]
            marks = {"early": lambda a: max(a[:10]), "middle": lambda a: a[49], "end": lambda a: a[-1]}
            return {name: statistics.fmean(map(take, percent)) for name, take in marks.items()}
    return {}


@matplotlib.rc_context(style.RC)
def first_lr(*, folder=None):
    """Final accuracy after ten epochs against the first learning rate, one panel a noise multiplier."""
    curves, said = found("eta0", folder=folder)
    found_ends: dict = {}  # (noise multiplier, role) -> first learning rate -> final accuracies
    for c in curves:
        found_ends.setdefault((c["config"]["noise_multiplier"], c["role"]), {})[c["config"]["lr"]] = _ends(c)
    if not has_course(found_ends):
        return Note(said)
    sigmas = sorted({sigma for sigma, _ in found_ends})
    fig = style.figure(panels=len(sigmas), height=3.2, sharey=True)
    ranges = []
    for ax, sigma in zip(fig.axes, sigmas, strict=True):
        ends = {role: values for (at, role), values in found_ends.items() if at == sigma}
        by_value(ends, xlabel="first learning rate η₀", log=True, labels=SHORT, ax=ax)
        ax.set_title(f"σ = {sigma:g}")
        ax.set_xticks([1e-4, 1e-2, 1])
        for role, values in ends.items():
            means = [100 * statistics.fmean(v) for v in values.values()]
            ranges.append(f"{SHORT[role]} {max(means) - min(means):.1f} points at σ = {sigma:g}")
    words = f"Accuracies over the whole range lie within: {', '.join(ranges)}."
    plots.describe(fig, f"Test accuracy after ten epochs against the first learning rate. {words}")
    return _finish(fig, f"{words} {_seeds(curves)} {said}", curves)


@matplotlib.rc_context(style.RC)
def lr_paths(*, sigma: float = 2, role: str = "as_printed", folder=None):
    """The learning rate in the course of the first epoch, from every first value."""
    curves, said = found("eta0", folder=folder)
    curves = [c for c in curves if c["role"] == role and c["config"]["noise_multiplier"] == sigma]
    if not curves:
        return Note(said)
    runs = {}
    for curve in sorted(curves, key=lambda c: c["config"]["lr"]):
        first = curve["records"][0]["first_epoch"]
        runs[f"η₀ = {style.number(curve['config']['lr'])}"] = [
            {"step": s, "lr": lr} for s, lr in zip(first["step"], first["lr"], strict=True)
        ]
    fig = plots.learning_rate(runs, ax=style.figure(height=3.2).axes[0])
    ends = [points[-1]["lr"] for points in runs.values()]
    words = f"After one epoch they lie within a factor of {max(ends) / min(ends):.2f}."
    return _finish(
        fig, f"{LABELS[role]}, σ = {sigma:g}: the learning rate within the first epoch. {words} {said}", curves
    )


def by_tol(experiment: str = "small-d", *, folder=None):
    """Final accuracy against tol, one curve a noise multiplier: the case of few weights and large batches."""
    curves, said = found(experiment, folder=folder)
    ends: dict = {}
    for c in sorted(curves, key=lambda c: c["config"]["noise_multiplier"]):
        ends.setdefault(f"σ = {c['config']['noise_multiplier']:g}", {})[c["config"]["tol"]] = _ends(c)
    if not has_course(ends):
        return Note(said)
    fig = by_value(ends, xlabel="tol", log=True)
    best = {name: max(v, key=lambda tol: statistics.fmean(v[tol])) for name, v in ends.items()}
    words = ", ".join(f"{tol:g} at {name}" for name, tol in best.items())
    return _finish(fig, f"Best tol: {words}. {_seeds(curves)} {said}", curves)


def by_batch_size(*, folder=None):
    """Final accuracy against the batch size, the same epsilon everywhere."""
    curves, said = found("batch-size", folder=folder)
    ends: dict = {}
    for c in curves:
        ends.setdefault(c["role"].split(" |B|")[0], {})[c["config"]["expected_batch_size"]] = _ends(c)
    if not has_course(ends):
        return Note(said)
    fig = by_value({n: ends[n] for n in VARIANTS if n in ends}, xlabel="|B|", log=True, labels=SHORT)
    epsilon = max(c["records"][0]["rows"]["epsilon_pld"][-1] for c in curves)
    return _finish(fig, f"100 epochs at ε = {round_up(epsilon)} (PLD), whatever the batch size. {said}", curves)


@matplotlib.rc_context(style.RC)
def without_noise(*, target: float = 0.96, folder=None):
    """Test accuracy by epoch without noise, and the accuracy that the paper reports."""
    curves, said = found("no-noise", folder=folder)
    if not curves:
        return Note(said)
    runs = {}
    for c in curves:
        variant, tol = c["role"].split(" tol ")
        runs[f"{SHORT[variant]}, tol {tol}"] = [epochs(record) for record in c["records"]]
    fig = accuracy_by_epoch(runs, style.figure(height=3.2).axes[0])
    fig.axes[0].axhline(target, color=style.COLORS["muted"], linewidth=0.8)
    ends = plots.describe(fig).split("At the end: ")[1]
    falls = ", ".join(f"{n} {100 * max(map(_fall, seeds)):.1f}" for n, seeds in runs.items())
    told = f"Largest fall within one epoch, in points: {falls}. Thin line: the paper's {100 * target:g} %."
    return _finish(fig, f"σ = 0. At the end: {ends} {told} {said}", curves)


def _fall(rows: Sequence[Mapping[str, float]]) -> float:
    """Largest loss of accuracy from one epoch to the next."""
    return max(max(a["test_accuracy"] - b["test_accuracy"], 0.0) for a, b in itertools.pairwise(rows))


def seconds_an_epoch(*, folder=None):
    """Seconds of an epoch of ADADP, SGD and Adam on both networks, lowest to highest of the turns."""
    curves, said = found("timing", folder=folder)
    if not curves:
        return Note(said)
    networks = {"mnist_mlp": "MNIST network", "cifar_head": "CIFAR-10 head"}
    fig, told = style.figure(panels=len(curves), height=1.9), []
    for ax, c in zip(fig.axes, curves, strict=True):
        columns, name = c["records"][0]["rows"], networks.get(c["config"]["model"], c["config"]["model"])
        plots.describe(fig, "")  # each panel describes itself
        plots.bars({m: columns[m] for m in ("adadp", "sgd", "adam")}, xlabel="seconds an epoch", ax=ax)
        ax.set_title(name)
        told.append(f"{name}, {plots.describe(fig)}")
    plots.describe(fig, " ".join(told))
    device = ", ".join(dict.fromkeys(c["records"][0]["device"] for c in curves))
    return _finish(fig, f"The methods were timed in turns on {device}. {said}", curves)


@matplotlib.rc_context(style.RC)
def one_change(experiment: str, *, folder=None):
    """Final accuracy before and after one thing was changed, method by method and noise multiplier by noise multiplier.

    Args:
        experiment: a key of :data:`CHANGES`.
        folder: of the stored results.
    """
    records = results.load(folder)
    curves, said = found(experiment, folder=folder)
    first, second, _ = CHANGES[experiment]
    pairs = _pairs(experiment, curves, records)
    if not pairs:
        return Note(said)
    fig = style.figure(height=1.0 + 0.3 * len(pairs))
    (ax,) = fig.axes
    ink, blue = style.COLORS["ink"], style.COLORS["blue"]
    for k, (_, before, after) in enumerate(pairs):
        ax.plot([statistics.fmean(before), statistics.fmean(after)], [k, k], "-", color=ink, linewidth=1)
        named = (first, second) if k == 0 else (None, None)
        ax.plot(before, [k] * len(before), "o", color=ink, markersize=9, markerfacecolor="none", label=named[0])
        ax.plot(after, [k] * len(after), "s", color=blue, label=named[1])
    ax.set_yticks(range(len(pairs)), [name for name, *_ in pairs])
    ax.invert_yaxis()
    ax.margins(x=0.08, y=0.15)
    ax.set_xlabel("test accuracy, one mark a seed")
    style.percent_axis(ax, "x")
    fig.legend(loc="outside upper left", ncols=2)
    words = "; ".join(f"{name}: {signed(gain)}" for name, gain in _gains(pairs).items())
    plots.describe(fig, f"Test accuracy: {first} (rings) against {second} (squares). Change in points: {words}.")
    peeked = (
        "Learning rates of Adam and SGD were chosen by test accuracy. " if any(c["peeking"] for c in curves) else ""
    )
    return _finish(fig, f"From {first} to {second}, in points: {words}. {peeked}{said}", curves)


def gain(experiment: str, *, folder=None) -> str:
    """What a change brought, from the least to the most over its rows, in words."""
    records = results.load(folder)
    gains = _gains(_pairs(experiment, found(experiment, folder=folder)[0], records)).values()
    return points(min(gains), max(gains)) if gains else "not stored yet"


def _pairs(experiment: str, curves: Sequence[dict], records: Mapping) -> list[tuple[str, list[float], list[float]]]:
    """A row a curve that has a counterpart: its name, final accuracies before the change and after it, seed by seed;
    a seed that only one of them has would shift a difference."""
    pairs = []
    for curve in curves:
        undone = _counterparts(curve, CHANGES[experiment][-1])
        both = [(records[i], r) for i, r in zip(undone, curve["records"], strict=True) if i in records]
        if both:
            before, after = (_ends({"records": side}) for side in zip(*both, strict=True))
            pairs.append((_row_name(curve), before, after))
    return pairs


def _gains(pairs: Sequence[tuple[str, list[float], list[float]]]) -> dict[str, float]:
    """Row -> change of the mean accuracy, in points."""
    return {name: 100 * (statistics.fmean(after) - statistics.fmean(before)) for name, before, after in pairs}


def _row_name(curve: dict) -> str:
    """Method and noise multiplier of a row."""
    sigma = curve["config"]["noise_multiplier"]
    sgd = "SGD, best" if sigma == 2 else "SGD, lr from σ = 2"  # it is tuned there only
    names = {"adam best": "Adam, best", "sgd best": sgd, "plain error": "as printed"}
    role = names.get(curve["role"], curve["role"].split(",")[0].replace("_", " "))
    return f"{role}, σ = {sigma:g}"


def _counterparts(curve: dict, undone: Mapping) -> list[str]:
    """Ids of the runs that differ from a curve's stored ones, in their order, in the change alone; SGD's lr goes with
    the norm."""
    found = []
    for record in curve["records"]:
        config: Config = from_dict(record["config"])
        changes = dict(undone)
        if "max_grad_norm" in undone and config.method == "sgd":
            changes["lr"] = float(f"{config.lr * config.max_grad_norm / undone['max_grad_norm']:.6g}")
        found.append(config.but(**changes).id)
    return found

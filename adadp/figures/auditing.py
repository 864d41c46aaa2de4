"""Figures of the chapter *Auditing ADADP*, drawn from the evidence that audits keep (`AuditResult.evidence`)."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from adadp.figures import plots, style
from adadp.figures.step_doubling import LIMIT, LINES, LOOKS
from adadp.figures.table import Table
from adadp.rounding import round_down, round_up

SHOWN = 300  # points of a scatter plot: enough to see, and light on a page
AUDITS = {  # heading of the table -> name of the audit
    "pairs": "sensitivity (add_remove)",
    "noise": "noise",
    "G1": "canary in G1",
    "G2": "canary in G2",
    "both": "independence of G1 and G2",
}


@matplotlib.rc_context(style.RC)
def sensitivity(audits: Mapping[str, object]) -> Figure:
    """How far one record moved the released sum, pair by pair.

    Args:
        audits: label -> result of :func:`adadp.auditing.audit_sensitivity`.
    """
    fig = style.figure(height=3.3)
    (ax,) = fig.axes
    said = []
    for look, (label, audit) in zip(LOOKS, audits.items(), strict=False):
        differences = audit.evidence["differences"]
        pairs = np.arange(1, len(differences) + 1)
        ax.plot(pairs, differences, **(look | {"linestyle": "none"}), label=label)
        said.append(f"{label}: largest {differences.max():.3f} C, allowed {audit.limit:g} C")
    for limit in sorted({audit.limit for audit in audits.values()}):
        ax.axhline(limit, **LIMIT)
        ax.annotate(f"{limit:g} C", (1, limit), xycoords=("axes fraction", "data"), xytext=(4, 0),
                    textcoords="offset points", va="center", fontsize=8)  # fmt: skip
    ax.set(xlabel="pair of neighbouring batches", ylabel="difference of the sums / C", ylim=(0, None))
    ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=2, fontsize=8)
    plots.describe(fig, f"Difference of the released sums of neighbouring batches, by pair. {'; '.join(said)}.")
    plots.caption(fig, "Each point: two batches that differ in one record, released with the same noise.")
    return fig


@matplotlib.rc_context(style.RC)
def scores(looks: Sequence, *, sigma: float, statement: str) -> Figure:
    """What a distinguisher saw with the canary in the batch and without, a panel a release, and its threshold.

    Args:
        looks: results of :func:`adadp.auditing.audit_releases`, those of G1 and of G2.
        sigma: the declared noise multiplier.
        statement: of the declared epsilon.
    """
    fig, said = style.figure(panels=len(looks), height=3.1, sharey=True), []
    for ax, look in zip(fig.axes, looks, strict=True):
        score, inside, cut = (look.evidence[key] for key in ("scores", "inside", "threshold"))
        edges = np.linspace(0.5 - 4 * sigma, 0.5 + 4 * sigma, 41)
        for line, (label, values) in zip(
            LINES, {"without": score[~inside], "with": score[inside]}.items(), strict=False
        ):
            ax.stairs(
                np.histogram(values, edges)[0], edges, color=line["color"], linestyle=line["linestyle"], label=label
            )
        ax.axvline(cut, **LIMIT)
        ax.set(title=look.name, xlabel="score")
        alarms, misses = np.mean(score[~inside] > cut), np.mean(score[inside] <= cut)
        said.append(
            f"{look.name}: {100 * alarms:.1f} per cent of the runs without it lie above the threshold,"
            f" {100 * misses:.1f} of those with it below; mu at least {round_down(look.bound)}, declared {look.limit:g}"
        )
    fig.axes[0].set_ylabel("runs")
    fig.axes[0].legend(loc="upper left", title="canary", fontsize=8)
    plots.describe(
        fig, f"Histograms of the score with the canary and without, two bells that overlap. {'; '.join(said)}."
    )
    plots.caption(fig, "Runs of ADADP with one crafted record and without. Thin line: the threshold, fixed beforehand.")
    plots.statement(fig, f"Declared for one gradient: {statement}")
    return fig


@matplotlib.rc_context(style.RC)
def noise_pairs(audits: Mapping[str, object]) -> Figure:
    """The noise of G2 against that of G1 in the same iteration, one panel a gradient.

    Args:
        audits: title -> the third result of :func:`adadp.auditing.audit_releases`.
    """
    fig, said = style.figure(panels=len(audits), height=3.1, sharey=True), []
    reach = 1.05 * max(
        np.abs(audit.evidence[key][:SHOWN]).max() for audit in audits.values() for key in ("first", "second")
    )
    for ax, (title, audit) in zip(fig.axes, audits.items(), strict=True):
        first, second = audit.evidence["first"], audit.evidence["second"]
        ax.plot(first[:SHOWN], second[:SHOWN], **(LOOKS[0] | {"linestyle": "none", "markersize": 3}))
        ax.set(title=title, xlabel="noise in G1 / C", xlim=(-reach, reach), ylim=(-reach, reach))
        said.append(f"{title}: correlation {np.corrcoef(first, second)[0, 1]:.2f}")
    fig.axes[0].set_ylabel("noise in G2 / C")
    plots.describe(fig, f"Noise in the second gradient against noise in the first. {'; '.join(said)}.")
    plots.caption(fig, "One point an iteration. Whoever knows one gradient's noise must learn nothing of the other's.")
    return fig


@matplotlib.rc_context(style.RC)
def ranking(result, *, statement: str) -> Figure:
    """The canaries of a single run by rank: which share of them was in, and the two ends that are guessed.

    Args:
        result: of :func:`adadp.auditing.audit_one_run`, with at least twenty canaries.
        statement: of the declared epsilon.
    """
    score, inside, each = (result.evidence[key] for key in ("scores", "inside", "each"))
    inside = inside[np.argsort(-score, kind="stable")]
    edges = np.linspace(0, len(inside), 21).round().astype(int)
    share = np.add.reduceat(inside.astype(float), edges[:-1]) / np.diff(edges)
    fig = style.figure(height=3.2)
    (ax,) = fig.axes
    ax.stairs(100 * share, edges, fill=True, color=style.COLORS["blue"], alpha=0.55)
    ax.axhline(50, color=style.COLORS["muted"], linestyle="--", linewidth=1)
    for edge, outer, text, side in ((each, 0, "in", "left"), (len(inside) - each, len(inside), "out", "right")):
        ax.axvline(edge, **LIMIT)
        ax.annotate(f"guessed {text}", (outer, 1.02), xycoords=("data", "axes fraction"), ha=side, fontsize=8)
    ax.set(xlabel="canaries by score, highest first", ylabel="were in", ylim=(0, 100))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    right = int(inside[:each].sum()), int((~inside[-each:]).sum())
    plots.describe(
        fig,
        f"{len(inside)} canaries sorted by score. Of the {each} highest {right[0]} were in, of the {each} lowest"
        f" {right[1]} were out: epsilon is at least {round_down(result.bound)}, declared {round_up(result.limit)}.",
    )
    plots.caption(
        fig, f"One run. The {each} canaries left of the first line are guessed in, those right of the second out."
    )
    plots.statement(fig, f"Declared for the run: {statement}")
    return fig


@matplotlib.rc_context(style.RC)
def bounds(found: Mapping[str, Sequence[tuple[int, float]]], declared: float, *, statement: str) -> Figure:
    """Lower bounds on epsilon by the number of observations, and the declared epsilon above them.

    Args:
        found: kind of audit -> (observations, epsilon) pairs.
        declared: epsilon.
        statement: of it.
    """
    fig = style.figure(height=3.3)
    (ax,) = fig.axes
    said = []
    for look, (label, pairs) in zip(LOOKS, found.items(), strict=False):
        ax.plot(*zip(*pairs, strict=True), **look, label=label)
        said.append(f"{label}: " + ", ".join(f"{round_down(value)} from {n}" for n, value in pairs))
    ax.axhline(declared, **LIMIT)
    ax.annotate(f"declared {round_up(declared)}", (0, declared), xycoords=("axes fraction", "data"), xytext=(3, 3),
                textcoords="offset points", fontsize=8)  # fmt: skip
    style.log_axis(ax, "x")
    ax.set(xlabel="observations", ylabel="ε is at least", ylim=(0, 1.15 * declared))
    ax.legend(loc="lower right", fontsize=8)
    plots.describe(fig, f"Lower bounds on epsilon, declared {round_up(declared)}. {'; '.join(said)}.")
    plots.caption(fig, "What an audit has shown is below the declared value and comes closer with more observations.")
    plots.statement(fig, f"Declared: {statement}")
    return fig


def table(found: Mapping[str, Sequence]) -> Table:
    """Which audit saw which fault.

    Args:
        found: name -> results of :func:`adadp.auditing.run_audit`.
    """
    lines = []
    for name, results in found.items():
        passed = {result.name: result.passed for result in results}
        lines.append(
            {"released": name} | {head: "✓ ok" if passed[audit] else "✗ fails" for head, audit in AUDITS.items()}
        )
    return Table(lines, "Which audit saw which fault")

"""Shared by every benchmark: what numbers depend on, a table, a picture, and where they are written.

How contenders are timed is in ``adadp/timing.py``, which the book uses too.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from adadp import timing
from adadp.checkpoint import write_atomic
from adadp.figures import style

OUT = Path("_build/benchmarks")


def arguments(description: str | None, *, repeats: int = timing.REPEATS) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes; ``--help`` shows the whole docstring."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=(description or "").replace("``", ""), formatter_class=kind)
    parser.add_argument("--repeats", type=int, default=repeats, help=f"timings of each contender ({repeats})")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder of the table, the picture and the data ({OUT})")
    return parser


def environment(*packages: str) -> dict[str, str]:
    """Threads, processor, versions, the commit and the day."""
    command = ["git", "describe", "--always", "--dirty"]
    described = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    found = {"commit": described.stdout.strip() or "unknown", "date": time.strftime("%Y-%m-%d", time.gmtime())}
    return timing.environment(*packages) | found


def table(rows: Sequence[Mapping]) -> str:
    """Rows as a Markdown table; floats with three digits."""
    heads = list(dict.fromkeys(key for row in rows for key in row))

    def cell(value):
        return f"{value:#.3g}".rstrip(".") if isinstance(value, float) else str(value)

    body = [[cell(row.get(head, "")) for head in heads] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in [heads, ["---"] * len(heads), *body])


def write(out: Path, name: str, text: str, data: dict, figure: Figure | None = None) -> None:
    """Print the text, write NAME.md, NAME.json and NAME.svg, and say where."""
    print(text)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / f"{name}.md", text + "\n")
    write_atomic(out / f"{name}.json", json.dumps(_short(data), indent=1) + "\n")
    if figure is not None:
        figure.savefig(out / f"{name}.svg", metadata={"Date": None})
    print(f"written: {out / name}.md, .json" + (", .svg" if figure is not None else ""), file=sys.stderr)


def _short(data):
    """The same with four digits a number: more are noise."""
    if isinstance(data, Mapping):
        return {key: _short(value) for key, value in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [_short(value) for value in data]
    return float(f"{data:.4g}") if isinstance(data, float) else data


@matplotlib.rc_context(style.RC)
def bars(groups: Mapping[str, Mapping[str, float]], *, label: str) -> Figure:
    """A picture: one panel a group, one horizontal bar a contender, logarithmic."""
    figure = Figure(figsize=(7, 1.0 + 0.26 * sum(len(g) + 2 for g in groups.values())), layout="constrained")
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=[len(g) for g in groups.values()])[:, 0]
    for ax, (title, values) in zip(axes, groups.items(), strict=True):
        names = list(values)[::-1]
        colors = [style.COLORS["blue" if n.startswith("adadp") else "muted"] for n in names]
        bar = ax.barh(names, [values[n] for n in names], color=colors)
        ax.bar_label(bar, fmt="%.3g", padding=3, fontsize=8)
        ax.set(title=title)
        style.log_axis(ax)
        ax.grid(axis="y", visible=False)
        ax.margins(x=0.15)
    axes[-1].set_xlabel(label)
    return figure


@matplotlib.rc_context(style.RC)
def curves(panels: Mapping[str, tuple[Sequence[float], Mapping[str, Sequence[float]]]], *, label: str) -> Figure:
    """A picture: one panel for each quantity that grows, both axes logarithmic; a line looks alike in all panels.

    Args:
        panels: quantity -> (its values, name of a line -> one number a value).
        label: of the vertical axes.
    """
    figure = Figure(figsize=(1 + 2.7 * len(panels), 3.4), layout="constrained")
    names = list(dict.fromkeys(name for _, lines in panels.values() for name in lines))
    free = zip(style.CYCLE, style.LINESTYLES, style.MARKERS, strict=True)
    looks = {n: {"color": c, "linestyle": line, "marker": m} for n, (c, line, m) in zip(names, free, strict=False)}
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, (values, lines)) in zip(axes, panels.items(), strict=True):
        for name, numbers in lines.items():
            ax.plot(values, numbers, label=name, **looks[name])
        style.log_axis(ax, "xy")
        ax.set(xlabel=title)
    axes[0].set_ylabel(label)
    handles = {line.get_label(): line for ax in axes for line in ax.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles))
    return figure

"""Shared by every benchmark: alternating contenders in one process, medians, a table and a picture.

Contenders take turns, so that whatever else the machine does hits all of them. Beside the wall clock there is the
processor time of the process, which hardly changes when the machine is busy; ratios are given for both.
"""

import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

REPEATS, WARM_UP = 20, 3


@dataclass
class Timing:
    """Seconds a call, one entry a repeat."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median wall time in milliseconds."""
        return 1e3 * statistics.median(self.wall)

    @property
    def least(self) -> float:
        """Least wall time in milliseconds."""
        return 1e3 * min(self.wall)

    @property
    def cpu_median(self) -> float:
        """Median processor time in milliseconds."""
        return 1e3 * statistics.median(self.cpu)


def alternate(contenders: dict[str, Callable], *, repeats: int = REPEATS, warm_up: int = WARM_UP) -> dict[str, Timing]:
    """Call every contender ``warm_up + repeats`` times, in turns, and return the timings after the warm-up."""
    timings = {name: Timing() for name in contenders}
    names = list(contenders)
    gc.collect()
    gc.disable()
    try:
        for turn in range(-warm_up, repeats):
            names = names[1:] + names[:1]  # no contender always follows the same one
            for name in names:
                wall, cpu = _once(contenders[name])
                if turn >= 0:
                    timings[name].wall.append(wall)
                    timings[name].cpu.append(cpu)
    finally:
        gc.enable()
    return timings


def _once(call: Callable) -> tuple[float, float]:
    """Wall and processor seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def environment(*packages: str) -> dict[str, str]:
    """What the numbers depend on: thread count, processor, versions."""
    found = {"threads": str(torch.get_num_threads()), "processor": _processor(), "python": platform.python_version()}
    for package in ("torch", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def table(rows: list[dict]) -> str:
    """Rows as a Markdown table; floats with three digits."""
    heads = list(dict.fromkeys(key for row in rows for key in row))

    def cell(value):
        return f"{value:#.3g}".rstrip(".") if isinstance(value, float) else str(value)

    body = [[cell(row.get(head, "")) for head in heads] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in [heads, ["---"] * len(heads), *body])


def write(out: Path, name: str, text: str, data: dict, figure=None) -> None:
    """Write NAME.md, NAME.json and NAME.png, and say where."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.md").write_text(text + "\n")
    (out / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    if figure is not None:
        figure.savefig(out / f"{name}.png", dpi=150)
    print(f"written: {out / name}.md, .json" + (", .png" if figure is not None else ""), file=sys.stderr)


def bars(groups: dict[str, dict[str, float]], *, ylabel: str):
    """A picture: one panel a group, one horizontal bar a contender, logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.0 + 0.26 * sum(len(g) + 2 for g in groups.values())), layout="constrained")
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=[len(g) for g in groups.values()])[:, 0]
    for ax, (title, values) in zip(axes, groups.items(), strict=True):
        names = list(values)[::-1]
        bar = ax.barh(
            names, [values[n] for n in names], color=["#a85a08" if n == "adadp" else "#59636e" for n in names]
        )
        ax.bar_label(bar, fmt="%.3g", padding=3, fontsize=8)
        ax.set(xscale="log", title=title)
        ax.margins(x=0.15)
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel(ylabel)
    return figure

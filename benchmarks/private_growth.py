"""How a private step grows with the batch, the width and the depth: ``python -m benchmarks.private_growth``.

Depth is the unkind direction: layers of 100 x 100 weights, so that a step is made of many small calls.
"""

import argparse
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from benchmarks.common import alternate, environment, table, write
from benchmarks.private_step import BATCH, noise, opacus, ours, plain

SWEEPS = {
    "batch": (16, 64, 256, 1024, 4096),
    "width": (64, 256, 1024, 4096),
    "parameters": (10_000, 100_000, 1_000_000, 10_000_000),
}
LINES = {
    "plain SGD": {"color": "#1f2328", "linestyle": ":"},
    "plain + noise": {"color": "#59636e", "linestyle": "--", "marker": "s"},
    "adadp": {"color": "#a85a08", "marker": "o"},
    "opacus ghost": {"color": "#1a5fe0", "linestyle": "-.", "marker": "^"},
}


def network(sweep: str, value: int) -> tuple[nn.Module, int]:
    """The network of one point and its batch size."""
    torch.manual_seed(0)
    if sweep == "parameters":
        layers = [layer for _ in range(value // 10_000) for layer in (nn.Linear(100, 100, bias=False), nn.ReLU())]
        return nn.Sequential(*layers[:-1]), BATCH
    width = value if sweep == "width" else 256
    sizes = [784, width, width, 10]
    layers = [x for a, b in pairwise(sizes) for x in (nn.Linear(a, b, bias=False), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), value if sweep == "batch" else BATCH


def contenders(sweep: str, value: int) -> dict[str, Callable]:
    """What is compared at one point."""
    model, size = network(sweep, value)
    x = torch.randn(size, model[0].in_features, generator=torch.Generator().manual_seed(1))
    y = torch.arange(size) % 10
    found = {"plain SGD": plain(model, x, y), "noise alone": noise(model)}
    found["adadp"] = ours(network(sweep, value)[0], x, y)
    found["opacus ghost"] = opacus(network(sweep, value)[0], x, y, "ghost")
    return found


def figure(rows: list[dict]):
    """One panel a sweep, both axes logarithmic."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9, 3.2), layout="constrained")
    for ax, sweep in zip(picture.subplots(1, len(SWEEPS)), SWEEPS, strict=True):
        points = [row for row in rows if row["sweep"] == sweep]
        for name, style in LINES.items():
            ax.plot([p["value"] for p in points], [p[name] for p in points], label=name, **style)
        ax.set(xscale="log", yscale="log", xlabel=sweep, title=sweep)
        ax.spines[["top", "right"]].set_visible(False)
    picture.axes[0].set_ylabel("ms a step")
    picture.axes[0].legend(frameon=False, fontsize=8)
    return picture


def main(argv=None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweep", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("_build/benchmarks"))
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = []
    for sweep in args.sweep:
        for value in SWEEPS[sweep]:
            t = alternate(contenders(sweep, value), repeats=args.repeats, warm_up=2)
            row = {"sweep": sweep, "value": value, **{k: v.median for k, v in t.items()}}
            row["plain + noise"] = row["plain SGD"] + row["noise alone"]
            row["ours / (plain + noise)"] = row["adadp"] / row["plain + noise"]
            row["the same, cpu"] = t["adadp"].cpu_median / (t["plain SGD"].cpu_median + t["noise alone"].cpu_median)
            rows.append(row)
    env = environment("opacus")
    text = f"ms a step, {args.repeats} repeats; {', '.join(f'{k} {v}' for k, v in env.items())}\n\n{table(rows)}"
    print(text)
    write(args.out, "private_growth", text, {"environment": env, "rows": rows}, figure(rows))


if __name__ == "__main__":
    main()

"""How a private step grows with the batch, the width and the depth: ``python -m benchmarks.private_growth``.

Depth is the unkind direction: layers of 100 x 100 weights, so that a step is made of many small calls.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

from adadp.timing import alternate
from benchmarks.common import arguments, curves, environment, table, write
from benchmarks.private_step import BATCH, noise, opacus, ours, plain

SWEEPS = {
    "batch": (16, 64, 256, 1024, 4096),
    "width": (64, 256, 1024, 4096),
    "parameters": (10_000, 100_000, 1_000_000, 10_000_000),
}
LINES = ("adadp", "opacus ghost", "plain + noise", "plain SGD")


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


def main(argv=None) -> None:
    """Measure, print, write."""
    parser = arguments(__doc__)
    parser.add_argument("--sweep", nargs="+", choices=SWEEPS, default=list(SWEEPS), help="what grows (all)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows, env = [], environment("opacus")
    for sweep in args.sweep:
        for value in SWEEPS[sweep]:
            t = alternate(contenders(sweep, value), repeats=args.repeats, warm_up=2)
            row = {"sweep": sweep, "value": value, **{k: v.cpu_median for k, v in t.items()}}
            row["plain + noise"] = row["plain SGD"] + row["noise alone"]
            row["ours / (plain + noise)"] = row["adadp"] / row["plain + noise"]
            row["the same, wall"] = t["adadp"].median / (t["plain SGD"].median + t["noise alone"].median)
            rows.append(row)
    text = (
        f"processor ms a step, {args.repeats} repeats; {', '.join(f'{k} {v}' for k, v in env.items())}\n\n{table(rows)}"
    )
    panels = {}
    for sweep in args.sweep:
        points = [row for row in rows if row["sweep"] == sweep]
        panels[sweep] = [p["value"] for p in points], {name: [p[name] for p in points] for name in LINES}
    data = {"environment": env, "repeats": args.repeats, "rows": rows}
    write(args.out, "private_growth", text, data, curves(panels, label="processor ms a step"))


if __name__ == "__main__":
    main()

"""One step of ADADP beside other optimizers: ``python -m benchmarks.optimizer_step [--quick]``.

A timing is one iteration of ADADP, that is two steps, and as many of the others; the table gives half of it. Contenders
take turns in one process, on one thread, each with its own tensors: as in training, a step finds its data out of cache.
"""

import torch
from torch import nn

from adadp import ADADP
from adadp.timing import alternate
from benchmarks.common import arguments, bars, environment, table, write

PARAMETERS, TENSORS, TARGET = 10**6, 20, 2.0
PEER = "SGD, momentum, foreach"
STILL = {
    "lr": 1e-3,
    "alpha_min": 1.0,
    "alpha_max": 1.0,
}  # a constant lr: the same work, and weights stay where they are


def tensors(parameters: int, count: int, scale: float = 0.05) -> list[nn.Parameter]:
    """Parameters with gradients, of equal size."""
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter(scale * torch.randn(parameters // count, generator=generator)) for _ in range(count)]
    for p in params:
        p.grad = 0.01 * torch.randn(p.shape, generator=generator)
    return params


def contenders(parameters: int, count: int, everything: bool) -> dict:
    """Two steps of every optimizer."""
    new = lambda **scale: tensors(parameters, count, **scale)  # noqa: E731
    optimizers = {
        PEER: torch.optim.SGD(new(), lr=1e-3, momentum=0.9, foreach=True),
        "adadp": ADADP(new(), **STILL),
    }
    if everything:
        optimizers |= {
            "SGD, plain, foreach": torch.optim.SGD(new(), lr=1e-3, foreach=True),
            "Adam, foreach": torch.optim.Adam(new(), lr=1e-6, foreach=True),
            "adadp, half_steps": ADADP(new(), advance="half_steps", **STILL),
            "adadp, extrapolated": ADADP(new(), advance="extrapolated", **STILL),
            "adadp, weights above 1": ADADP(new(scale=2.0), **STILL),
            "adadp, plain norm": ADADP(new(), relative_error=False, **STILL),
            "adadp, all discarded": ADADP(new(), tol=1e-9, discard=True, **STILL),
            "adadp, frozen": ADADP(new(), **STILL),
        }
        optimizers["adadp, frozen"].freeze()
    return {name: lambda o=o: (o.step(), o.step()) for name, o in optimizers.items()}


def rows_of(timings: dict, **more) -> list[dict]:
    """A row for each contender, with its ratio to the peer by three measures."""
    rows, peer = [], timings[PEER]
    for name, t in timings.items():
        row = {**more, "contender": name, "median ms a step": t.median / 2}
        for measure in ("median", "least", "cpu_median"):
            row[f"x {PEER}, {measure.removesuffix('_median')}"] = getattr(t, measure) / getattr(peer, measure)
        rows.append(row)
    return rows


def main(argv=None) -> None:
    """Measure, print, write."""
    parser = arguments(__doc__, repeats=100)
    parser.add_argument("--quick", action="store_true", help="20 repeats, and no growth with the number of parameters")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    env, repeats = environment(), 20 if args.quick else args.repeats
    timings = alternate(contenders(PARAMETERS, TENSORS, everything=True), repeats=repeats, warm_up=5)
    rows, growth = rows_of(timings), []
    for parameters in () if args.quick else (10**4, 10**5, 10**6, 10**7):
        for count in (4, 100):
            some = alternate(contenders(parameters, count, everything=False), repeats=max(20, repeats // 2), warm_up=5)
            growth += rows_of(some, parameters=parameters, tensors=count)[1:]
    header = ", ".join(f"{k} {v}" for k, v in env.items())
    text = f"{PARAMETERS} parameters in {TENSORS} tensors, {repeats} repeats; {header}\n\n{table(rows)}"
    text += f"\n\nadadp: at most {TARGET:g} x {PEER}"
    text += f"\n\n{table(growth)}" if growth else ""
    figure = bars({"one step": {n: t.median / 2 for n, t in timings.items()}}, label="ms a step")
    data = {"environment": env, "repeats": repeats, "rows": rows, "growth": growth}
    write(args.out, "optimizer_step", text, data, figure)


if __name__ == "__main__":
    main()

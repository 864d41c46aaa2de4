"""The inner loop of a federated round: ``python -m benchmarks.federated_step``.

An iteration of ADADP takes two gradients of a batch of 10, one of SGD takes one. All contenders run the product's own
loop over some gradients of each client; the growth table gives the processor time of one iteration of all.
"""

from collections.abc import Callable

import torch
from torch import nn

from adadp import ADADP
from adadp.federated import FederatedAveraging, client_update
from adadp.models import cifar_cnn, mnist_mlp
from adadp.timing import Timing, alternate
from adadp.training import cross_entropy
from benchmarks.common import arguments, bars, curves, environment, table, write

BATCH, CLIENTS = 10, 5
LONG, BRIEF = 40, 10  # gradients of a client in one timing: what a round costs once should not count
NETWORKS = {"cifar-cnn": (cifar_cnn, (3, 32, 32)), "mnist-mlp": (mnist_mlp, (1, 28, 28))}
GROWTH = (1, 5, 20, 100)
AT_MOST, AT_LEAST = 2.2, 1.2  # ADADP over SGD; NCHW over channels last


def adadp(parameters) -> ADADP:
    """As in the paper's federated experiment; a constant learning rate keeps the weights where they are."""
    return ADADP(parameters, lr=1e-4, alpha_min=1.0, alpha_max=1.0, tol=0.1, discard=True)


def sgd(parameters) -> torch.optim.SGD:
    """The paper's baseline."""
    return torch.optim.SGD(parameters, lr=1e-4, foreach=True)


def data(network: str, clients: int, gradients: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random examples, as many as make the ``gradients``, for each client."""
    generator = torch.Generator().manual_seed(1)
    size = BATCH * gradients
    inputs = [torch.randn(size, *NETWORKS[network][1], generator=generator) for _ in range(clients)]
    return [(x, torch.arange(size) % 10) for x in inputs]


def model(network: str) -> nn.Module:
    """The network from a fixed seed."""
    return NETWORKS[network][0](generator=torch.Generator().manual_seed(0))


def alone(network: str, optimizer: Callable, memory_format: torch.memory_format) -> Callable:
    """One client in a chosen memory layout."""
    net = model(network).to(memory_format=memory_format)
    (x, y), *_ = data(network, 1, LONG)
    x = x.to(memory_format=memory_format)

    def update():
        client_update(net, x, y, optimizer(net.parameters()), batch_size=BATCH, local_epochs=1, loss=cross_entropy,
                      generator=torch.Generator().manual_seed(0))  # fmt: skip

    return update


def together(network: str, clients: int, *, stacked: bool) -> Callable:
    """All clients, as ``FederatedAveraging`` trains them in a round, without the averaging."""
    fed = FederatedAveraging(model(network), data(network, clients, BRIEF), adadp, batch_size=BATCH, stacked=stacked,
                             generator=torch.Generator().manual_seed(0))  # fmt: skip

    def update():
        for _ in fed._updates(list(range(clients)), 1):
            pass

    return update


def layouts(repeats: int) -> dict[str, Timing]:
    """``LONG`` gradients of one client of the CIFAR CNN."""
    found = {
        "SGD": alone("cifar-cnn", sgd, torch.channels_last),
        "adadp": alone("cifar-cnn", adadp, torch.channels_last),
        "adadp, NCHW": alone("cifar-cnn", adadp, torch.contiguous_format),
    }
    return alternate(found, repeats=repeats, warm_up=2)


def growth(network: str, numbers, repeats: int) -> list[dict]:
    """Median processor ms of one iteration of all clients, one after the other and stacked; a row each number."""
    rows = []
    for clients in numbers:
        found = {
            "one after the other": together(network, clients, stacked=False),
            "stacked": together(network, clients, stacked=True),
        }
        t = alternate(found, repeats=repeats, warm_up=1)
        row = {"network": network, "clients": clients}
        row |= {name: 2 * timing.cpu_median / BRIEF for name, timing in t.items()}
        rows.append(row | {"times faster stacked": t["one after the other"].cpu_median / t["stacked"].cpu_median})
    return rows


def main(argv=None) -> None:
    """Measure, print, write."""
    args = arguments(__doc__).parse_args(argv)
    torch.set_num_threads(1)
    env = environment()
    timings = layouts(args.repeats)
    per = {"SGD": LONG, "adadp": LONG / 2, "adadp, NCHW": LONG / 2}
    times = []
    for name, t in timings.items():
        times.append({"iteration": name, "median ms": t.median / per[name], "cpu ms": t.cpu_median / per[name]})
    ratios = []
    for measure in ("median", "least", "cpu_median"):
        ms = {name: getattr(t, measure) / per[name] for name, t in timings.items()}
        ratios.append({"measure": measure, "adadp / SGD": ms["adadp"] / ms["SGD"], "at most": AT_MOST,
                       "NCHW / channels last": ms["adadp, NCHW"] / ms["adadp"], "at least": AT_LEAST})  # fmt: skip
    rows = growth("mnist-mlp", GROWTH, args.repeats) + growth("cifar-cnn", (1, CLIENTS), args.repeats)
    header = ", ".join(f"{k} {v}" for k, v in env.items())
    text = f"batch {BATCH}, {args.repeats} repeats; {header}\n\n{table(times)}\n\n{table(ratios)}\n\n{table(rows)}"
    stored = {"environment": env, "repeats": args.repeats, "rows": times, "ratios": ratios, "growth": rows}
    shown = {"CIFAR CNN, one client": {row["iteration"]: row["cpu ms"] for row in times}}
    write(args.out, "federated_step", text, stored, bars(shown, label="processor ms an iteration"))
    points = [row for row in rows if row["network"] == "mnist-mlp"]
    lines = {name: [p[name] for p in points] for name in ("one after the other", "stacked")}
    picture = curves({"clients": ([p["clients"] for p in points], lines)}, label="processor ms an iteration of all")
    write(args.out, "federated_growth", table(points), {"environment": env, "rows": points}, picture)


if __name__ == "__main__":
    main()

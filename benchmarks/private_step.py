"""One private step side by side with its floor and its peers: ``python -m benchmarks.private_step``.

The floor of a private step is a plain SGD step plus the Gaussian noise that it must draw. Peers: Opacus in its three
modes, and vmap(grad). All contenders of a network run in one process, in turns, on one thread, on the same batch.
"""

import torch
import torch.nn.functional as F
from torch import nn

from adadp.models import cifar_cnn, cifar_head, mnist_mlp
from adadp.privacy import PrivateGradient
from adadp.timing import alternate
from benchmarks.common import arguments, bars, environment, table, write

BATCH, LR, C, SIGMA = 200, 0.1, 1.0, 1.0
NETWORKS = {
    "mnist-mlp": (mnist_mlp, (784,)),
    "cifar-head": (cifar_head, (1600,)),
    "cifar-cnn": (cifar_cnn, (3, 32, 32)),
}
TARGETS = {"mnist-mlp": (1.15, 1.8, 40), "cifar-head": (1.15, 1.5, 80), "cifar-cnn": (1.25, 1.0, 5)}
OPACUS = {"opacus hooks": "hooks", "opacus functorch": "functorch", "opacus ghost": "ghost"}


def make(network: str) -> nn.Module:
    """The network from a fixed seed; convolutions ``channels_last``, for every contender."""
    torch.manual_seed(0)
    return NETWORKS[network][0]().to(memory_format=torch.channels_last)


def batch(network: str, size: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs and labels."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, *NETWORKS[network][1], generator=generator)
    x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
    return x, torch.randint(0, 10, (size,), generator=generator)


def plain(model: nn.Module, x, y, kind=torch.optim.SGD):
    """An ordinary step."""
    optimizer = kind(model.parameters(), lr=LR * 1e-3 if kind is torch.optim.Adam else LR)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def noise(model: nn.Module):
    """The Gaussian noise of one step, alone."""
    buffers = [torch.empty(p.shape) for p in model.parameters()]

    def step():
        for b in buffers:
            b.normal_(0.0, SIGMA)

    return step


def ours(model: nn.Module, x, y, **options):
    """A step with PrivateGradient."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    grad = PrivateGradient(model, max_grad_norm=C, noise_multiplier=SIGMA, expected_batch_size=len(y), **options)

    def step():
        grad.backward(x, y)
        optimizer.step()

    return step


def opacus(model: nn.Module, x, y, mode: str):
    """A step of Opacus in one of its modes."""
    from opacus import PrivacyEngine

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=len(y))
    parts = PrivacyEngine().make_private(
        module=model.train(), optimizer=torch.optim.SGD(model.parameters(), lr=LR), data_loader=loader,
        criterion=nn.CrossEntropyLoss(), noise_multiplier=SIGMA, max_grad_norm=C, poisson_sampling=False,
        grad_sample_mode=mode,
    )  # fmt: skip
    model, optimizer = parts[:2]
    criterion = parts[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return step


def vmapped(model: nn.Module, x, y):
    """A step with per-example gradients from vmap(grad)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    params = dict(model.named_parameters())

    def one_loss(values, x_one, y_one):
        return F.cross_entropy(torch.func.functional_call(model, values, (x_one[None],)), y_one[None])

    each = torch.func.vmap(torch.func.grad(one_loss), in_dims=(None, 0, 0))

    def step():
        grads = each({k: p.detach() for k, p in params.items()}, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factors = (C / norms).clamp(max=1)
        for k, p in params.items():
            p.grad = torch.einsum("b,b...->...", factors, grads[k]).add_(torch.randn_like(p), alpha=C * SIGMA) / len(y)
        optimizer.step()

    return step


def contenders(network: str, *, peers: bool = True) -> dict:
    """Every contender on its own copy of the network."""
    x, y = batch(network)
    found = {
        "plain SGD": plain(make(network), x, y),
        "plain Adam": plain(make(network), x, y, torch.optim.Adam),
        "noise alone": noise(make(network)),
        "adadp": ours(make(network), x, y),
    }
    if peers:
        found["vmap(grad)"] = vmapped(make(network), x, y)
        found |= {name: opacus(make(network), x, y, mode) for name, mode in OPACUS.items()}
    return found


def ratios(network: str, timings: dict, measure: str) -> dict:
    """The three ratios that matter, with their targets, from one measure of the timings."""
    ms = {name: getattr(t, measure) for name, t in timings.items()}
    row = {
        "network": network,
        "measure": measure,
        "ours / (plain + noise)": ms["adadp"] / (ms["plain SGD"] + ms["noise alone"]),
    }
    row["at most"] = TARGETS[network][0]
    theirs = [ms[name] for name in OPACUS if name in ms]
    if theirs:
        row |= {"fastest Opacus / ours": min(theirs) / ms["adadp"], "at least": TARGETS[network][1]}
        row |= {"default Opacus / ours": ms["opacus hooks"] / ms["adadp"], "at least ": TARGETS[network][2]}
    return row


def main(argv=None) -> None:
    """Measure, print, write."""
    parser = arguments(__doc__)
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS), help="whose step (all)")
    parser.add_argument("--no-peers", action="store_true", help="only the floor and adadp")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    env = environment("opacus")
    rows, summary, groups = [], [], {}
    for network in args.network:
        timings = alternate(contenders(network, peers=not args.no_peers), repeats=args.repeats)
        for name, t in timings.items():
            times = {"median ms": t.median, "least ms": t.least, "cpu ms": t.cpu_median}
            rows.append({"network": network, "contender": name, **times})
        summary += [ratios(network, timings, m) for m in ("median", "least", "cpu_median")]
        groups[network] = {name: t.cpu_median for name, t in timings.items()}
    header = ", ".join(f"{k} {v}" for k, v in env.items())
    text = f"batch {BATCH}, {args.repeats} repeats; {header}\n\n{table(rows)}\n\n{table(summary)}"
    data = {"environment": env, "repeats": args.repeats, "rows": rows, "ratios": summary}
    write(args.out, "private_step", text, data, bars(groups, label="processor ms a step"))


if __name__ == "__main__":
    main()

"""Peak memory of one step, each contender in a process of its own: ``python -m benchmarks.private_memory``.

What is counted is the resident memory that the steps add to a process that already holds the model and the batch, at
its highest: activations, gradients, scratch, and what the allocator keeps of them. On Linux only (/proc).
"""

import json
import re
import subprocess
import sys
from argparse import SUPPRESS
from pathlib import Path

import torch
from torch import nn

from benchmarks.common import arguments, bars, environment, table, write
from benchmarks.private_step import BATCH, NETWORKS, OPACUS, batch, make, opacus, ours, plain, vmapped

STEPS = 4
CONTENDERS = {
    "plain SGD": plain,
    "adadp": ours,
    "vmap(grad)": vmapped,
    **{name: (lambda model, x, y, mode=mode: opacus(model, x, y, mode)) for name, mode in OPACUS.items()},
}


def resident(field: str) -> int:
    """VmRSS (now) or VmHWM (highest since the last reset) of this process, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def peak(network: str, contender: str) -> int:
    """Bytes that ``STEPS`` steps add, at the highest point."""
    torch.set_num_threads(1)
    x, y = batch(network)
    step = CONTENDERS[contender](make(network), x, y)
    tiny = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 10, bias=False))
    CONTENDERS[contender](tiny, torch.randn(4, 1, 4, 4), torch.arange(4))()  # code is loaded when it is first used
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest point so far
    before = resident("VmRSS")
    for _ in range(STEPS):
        step()
    return resident("VmHWM") - before


def measure(network: str, contender: str, repeats: int) -> float:
    """Median peak in MiB over fresh processes."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.private_memory", "--child", network, contender]
    found = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(repeats)
    ]
    return sorted(found)[len(found) // 2] / 2**20


def main(argv=None) -> None:
    """Measure, print, write."""
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--child", nargs=2, metavar=("NETWORK", "CONTENDER"), help=SUPPRESS)
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS), help="whose step (all)")
    parser.add_argument("--no-peers", action="store_true", help="only plain SGD and adadp")
    args = parser.parse_args(argv)
    if args.child:
        print(peak(*args.child))
        return
    names = list(CONTENDERS)[:2] if args.no_peers else list(CONTENDERS)
    groups = {n: {c: measure(n, c, args.repeats) for c in names} for n in args.network}
    rows = [
        {"network": n, "contender": c, "peak MiB": mib, "times plain": mib / found["plain SGD"]}
        for n, found in groups.items()
        for c, mib in found.items()
    ]
    env = environment("opacus")
    text = f"batch {BATCH}, {STEPS} steps; {', '.join(f'{k} {v}' for k, v in env.items())}\n\n{table(rows)}"
    data = {"environment": env, "repeats": args.repeats, "rows": rows}
    write(args.out, "private_memory", text, data, bars(groups, label="MiB that a step adds"))


if __name__ == "__main__":
    main()

"""Where the time of a private step goes: ``python -m benchmarks.private_profile``.

Shares of torch's operations in a private step, one network after the other. What is neither a product nor a random
number is all that privacy costs beyond a plain step and its noise, and more than that: a plain step has such parts too.
"""

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import arguments, bars, environment, table, write
from benchmarks.private_step import NETWORKS, batch, make, ours

SHOWN = 8


def shares(network: str, repeats: int) -> list[dict]:
    """The operations that take most of the time: ms a step, per cent of it."""
    step = ours(make(network), *batch(network))
    for _ in range(5):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(repeats):
            step()
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return [
        {"network": network, "operation": event.key, "ms a step": event.self_cpu_time_total / repeats / 1e3}
        | {"per cent": 100 * event.self_cpu_time_total / total}
        for event in events[:SHOWN]
    ]


def main(argv=None) -> None:
    """Measure, print, write."""
    args = arguments(__doc__).parse_args(argv)
    torch.set_num_threads(1)
    env = environment()
    rows = [row for network in NETWORKS for row in shares(network, args.repeats)]
    text = f"{args.repeats} steps; {', '.join(f'{k} {v}' for k, v in env.items())}\n\n{table(rows)}"
    shown = {n: {r["operation"]: r["ms a step"] for r in rows if r["network"] == n} for n in NETWORKS}
    stored = {"environment": env, "repeats": args.repeats, "rows": rows}
    write(args.out, "private_profile", text, stored, bars(shown, label="processor ms a step"))


if __name__ == "__main__":
    main()

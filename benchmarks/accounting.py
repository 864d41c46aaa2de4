"""Median milliseconds of one epsilon for the paper's settings, nothing cached: wall clock and processor time.

Run: ``python -m benchmarks.accounting``.
"""

import statistics
import time

from adadp.privacy.composition import checked_epsilon, epsilon
from adadp.privacy.moments import log_moments
from benchmarks.common import arguments, bars, environment, table, write

SETTINGS = {"MNIST": (1 / 300, 30_000), "CIFAR-10": (1 / 250, 25_000)}
BUDGET = {"moments": 10, "rdp": None, "pld": 100}  # milliseconds


def median_ms(repeats: int, **settings) -> tuple[float, float]:
    """Median wall-clock and processor time of a call with empty caches, after one that loads the libraries."""
    epsilon(**settings)
    wall, processor = [], []
    for _ in range(repeats):
        checked_epsilon.cache_clear()
        log_moments.cache_clear()
        start, spent = time.perf_counter(), time.process_time()
        epsilon(**settings)
        wall.append(1e3 * (time.perf_counter() - start))
        processor.append(1e3 * (time.process_time() - spent))
    return statistics.median(wall), statistics.median(processor)


def main(argv=None) -> None:
    """Measure, print, write."""
    args = arguments(__doc__).parse_args(argv)
    ways = [("moments", "add_remove"), ("rdp", "add_remove"), ("pld", "add_remove"), ("pld", "replace_one")]
    rows, groups = [], {}
    for data, (rate, steps) in SETTINGS.items():
        for sigma in (1.0, 2.0, 4.0, 6.0, 8.0):
            for accountant, neighbors in ways:
                settings = {"noise_multiplier": sigma, "sample_rate": rate, "steps": steps, "delta": 1e-5}
                settings |= {"accountant": accountant, "neighbors": neighbors}
                name = accountant if neighbors == "add_remove" else f"{accountant}, replace-one"
                wall, processor = median_ms(args.repeats, **settings)
                row = {"data": data, "sigma": sigma, "accountant": name, "epsilon": epsilon(**settings)}
                rows.append(row | {"median ms": wall, "cpu ms": processor, "below": BUDGET[accountant] or ""})
                groups.setdefault(f"{data}, sigma {sigma:g}", {})[name] = wall
    env = environment("dp-accounting")
    text = f"{args.repeats} repeats; {', '.join(f'{k} {v}' for k, v in env.items())}\n\n{table(rows)}"
    write(args.out, "accounting", text, {"environment": env, "repeats": args.repeats, "rows": rows},
          bars(groups, label="ms an epsilon"))  # fmt: skip


if __name__ == "__main__":
    main()

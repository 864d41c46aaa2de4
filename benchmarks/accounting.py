"""Median milliseconds of one epsilon for the paper's settings, nothing cached: wall clock and processor time.

Run: python benchmarks/accounting.py
"""

import statistics
import time

from adadp.privacy.composition import checked_epsilon, epsilon
from adadp.privacy.moments import log_moments

SETTINGS = {"MNIST": (1 / 300, 30_000), "CIFAR-10": (1 / 250, 25_000)}
BUDGET = {"moments": 10, "rdp": None, "pld": 100}  # milliseconds


def median_ms(repeats: int = 9, **settings) -> tuple[float, float]:
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


def main() -> None:
    """Print one line a setting and accountant."""
    print(f"{'data':10}{'sigma':>6}  {'accountant':20}{'epsilon':>9}{'wall':>8}{'cpu':>8}  budget")
    for data, (rate, steps) in SETTINGS.items():
        for sigma in (1.0, 2.0, 4.0, 6.0, 8.0):
            for accountant, neighbors in [
                ("moments", "add_remove"),
                ("rdp", "add_remove"),
                ("pld", "add_remove"),
                ("pld", "replace_one"),
            ]:
                settings = {"noise_multiplier": sigma, "sample_rate": rate, "steps": steps, "delta": 1e-5}
                settings |= {"accountant": accountant, "neighbors": neighbors}
                name = accountant if neighbors == "add_remove" else f"{accountant}, replace-one"
                limit = f"< {BUDGET[accountant]}" if BUDGET[accountant] else ""
                value, took = epsilon(**settings), median_ms(**settings)
                print(f"{data:10}{sigma:6g}  {name:20}{value:9.3f}{took[0]:8.2f}{took[1]:8.2f}  {limit}")


if __name__ == "__main__":
    main()

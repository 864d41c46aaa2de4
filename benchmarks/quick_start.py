"""Accuracy of the README's quick start beside SGD and Adam, whose learning rates are picked by test accuracy.

The code is the README's own; for a competitor its line that makes the optimizer is replaced and nothing else, so noise,
batches, number of gradients and epsilon are the same. A seed draws the weights, the batches and the noise.

Run: ``python -m benchmarks.quick_start`` (three minutes).
"""

import contextlib
import io
import re
from pathlib import Path

import torch

from benchmarks.common import arguments, environment, table, write

README = Path(__file__).resolve().parents[1] / "README.md"
OWN, LONG = "ADADP, suggested tol", "ADADP, tol of the variant"
GRID = {"SGD": [10**-1.5, 10**-1.0, 10**-0.5, 1.0, 10**0.5], "Adam": [10**-3.5, 10**-3.0, 10**-2.5, 10**-2.0, 10**-1.5]}


def quick_start() -> str:
    """The first piece of Python in the README."""
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)[0]


def competitor(code: str, kind: str, lr: float) -> str:
    """The quick start with one of torch's optimizers in the place of ADADP.

    >>> competitor("optimizer = adadp.ADADP(p)\\nstep()", "SGD", 0.1)
    'import torch\\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\\nstep()'
    """
    line = f"optimizer = torch.optim.{kind}(model.parameters(), lr={lr!r})"
    changed, times = re.subn(r"^optimizer = .*$", line, code, flags=re.M)
    if times != 1:
        raise ValueError(f"the README's code must make its optimizer in one line, found {times}")
    return f"import torch\n{changed}"


def accuracy(code: str, seed: int) -> float:
    """Test accuracy at the end, in per cent."""
    torch.manual_seed(seed)
    names: dict = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, names)
    return 100 * names["accuracy"]


def measure(code: str, seeds: int) -> list[dict]:
    """One row an optimizer and learning rate: the lowest and the highest accuracy over the seeds."""
    codes = {(OWN, "found"): code, (LONG, "found"): code.replace(' | {"tol": tol}', "")}
    codes |= {(kind, f"{lr:.3g}"): competitor(code, kind, lr) for kind, lrs in GRID.items() for lr in lrs}
    rows = []
    for (name, lr), text in codes.items():
        found = [accuracy(text, seed) for seed in range(seeds)]
        rows.append({"optimizer": name, "lr": lr, "lowest %": min(found), "highest %": max(found)})
    return rows


def main(argv=None) -> None:
    """Measure, print, write."""
    args = arguments(__doc__, repeats=3).parse_args(argv)
    rows, env = measure(quick_start(), args.repeats), environment()
    text = f"{args.repeats} seeds; {', '.join(f'{k} {v}' for k, v in env.items())}\n\n{table(rows)}"
    write(args.out, "quick_start", text, {"environment": env, "seeds": args.repeats, "rows": rows})


if __name__ == "__main__":
    main()

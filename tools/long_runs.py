"""``adadp`` with faster noise: ``python tools/long_runs.py run dp-adam-cifar --tier 1``.

Much of a private step on a processor goes into normal numbers, most of that into random bits. ``normal.cpp`` makes the
same numbers faster (``time`` in place of a command of ``adadp`` measures it); it is compiled once, and before every use
it must give the very bits of torch, or nothing runs. It needs g++ and a processor with AVX2, and works within one
process: start it once a core, not with ``--jobs``.
"""

import ctypes
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

SOURCE = Path(__file__).with_name("normal.cpp")
FOLDER = SOURCE.parents[1] / "_build" / "long_runs"
FLAGS = ("-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-DCPU_CAPABILITY_AVX2")
LEAST = 4096  # fewer numbers are not worth a copy of the generator's state
PLAIN = Tensor.normal_

Fill = Callable[[Tensor, float, float, torch.Generator], Tensor]


def compiled(folder: Path | None = None) -> Fill:
    """``fill(x, mean, std, generator)``: what ``x.normal_(mean, std, generator=generator)`` does, faster.

    Args:
        folder: where the compiled library lies, by source, torch and processor; None: ``FOLDER``.

    Raises:
        RuntimeError: there is no compiler, or it refuses.
    """
    include = Path(torch.__file__).parent / "include"
    processor = next((s for s in Path("/proc/cpuinfo").read_text().splitlines() if s.startswith("flags")), "")
    key = hashlib.sha256("\n".join((SOURCE.read_text(), torch.__version__, processor)).encode()).hexdigest()[:12]
    library = (folder or FOLDER) / f"normal-{key}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        new = library.with_suffix(f".{os.getpid()}")
        try:
            command = ["g++", *FLAGS, "-I", str(include), str(SOURCE), "-o", str(new)]
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise RuntimeError("g++ is missing; install it, or use plain `adadp run`") from error
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{SOURCE.name} does not compile here; use plain `adadp run`\n{error.stderr}") from error
        new.replace(library)
    function = ctypes.CDLL(str(library)).fill_normal
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_double]
    function.restype = None

    def fill(x: Tensor, mean: float, std: float, generator: torch.Generator) -> Tensor:
        state = generator.get_state()
        function(state.data_ptr(), x.data_ptr(), x.numel(), mean, std)
        generator.set_state(state)
        return x

    return fill


def check(fill: Fill, sizes=(16, 17, 623, 624, 625, 4096, 5001, 100_003)) -> None:
    """Compare with torch, bit for bit, numbers and states.

    Raises:
        RuntimeError: they differ for one of the ``sizes``.
    """
    for size in sizes:
        a, b = (torch.Generator().manual_seed(size) for _ in range(2))
        for mean, std in ((0.0, 1.0), (0.0, 20.0), (0.3, 2.5)):
            same = torch.equal(PLAIN(torch.empty(size), mean, std, generator=a), fill(torch.empty(size), mean, std, b))
            if not same or not torch.equal(a.get_state(), b.get_state()):
                raise RuntimeError(f"{size} numbers differ from those of torch here; use plain `adadp run`")


def install(fill: Fill) -> None:
    """Let ``Tensor.normal_`` use it where it can."""

    def normal_(self, mean=0.0, std=1.0, *, generator=None):
        suits = self.dtype is torch.float32 and self.device.type == "cpu" and self.is_contiguous()
        if suits and generator is not None and self.numel() >= LEAST and not self.requires_grad:
            return fill(self, mean, std, generator)
        return PLAIN(self, mean, std, generator=generator)

    Tensor.normal_ = normal_


def measure(fill: Fill, turns: int = 3) -> None:
    """Print the milliseconds of a private step on both networks, with torch's numbers and with these, in turns."""
    from adadp.experiments.execution import step_seconds

    for turn in range(turns):
        for name in ("torch", "faster"):
            Tensor.normal_ = PLAIN
            if name == "faster":
                install(fill)
            ms = [1e3 * step_seconds.__wrapped__(model, "adadp", 200) for model in ("mnist_mlp", "cifar_head")]
            print(f"turn {turn + 1}, {name}: MNIST {ms[0]:.1f} ms, CIFAR-10 features {ms[1]:.1f} ms")


def main() -> int:
    """Check, install, and be ``adadp``."""
    try:
        fill = compiled()
        check(fill)
    except RuntimeError as error:
        print(f"long_runs: {error}", file=sys.stderr)
        return 2
    if sys.argv[1:] == ["time"]:
        measure(fill)
        return 0
    install(fill)
    from adadp.cli import main as adadp

    return adadp()


if __name__ == "__main__":
    raise SystemExit(main())

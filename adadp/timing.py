"""Timing contenders side by side: in one process, in turns, with what the numbers depend on.

Contenders take turns, so that whatever else the machine does hits all of them. A short call is timed after another call
of the same contender: in training a step follows a step of its own kind, not one of a competitor that has just emptied
the caches. If the system takes the processor away meanwhile, it is made again. Beside the wall clock there is the
processor time of the process, which changes less when the machine is busy.
"""

import gc
import platform
import statistics
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

REPEATS, WARM_UP = 20, 3
TRIES, SHORT = 5, 0.03  # longer calls, in seconds, are interrupted anyway


@dataclass
class Timing:
    """Seconds a call, one entry a repeat."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median wall time in milliseconds."""
        return 1e3 * statistics.median(self.wall)

    @property
    def least(self) -> float:
        """Least wall time in milliseconds."""
        return 1e3 * min(self.wall)

    @property
    def cpu_median(self) -> float:
        """Median processor time in milliseconds."""
        return 1e3 * statistics.median(self.cpu)


def alternate(contenders: dict[str, Callable], *, repeats: int = REPEATS, warm_up: int = WARM_UP) -> dict[str, Timing]:
    """Give every contender ``warm_up + repeats`` turns, and return the timings after the warm-up.

    Args:
        contenders: name -> a call without arguments.
        repeats: timings kept of each.
        warm_up: turns before them.

    >>> timings = alternate({"sum": lambda: sum(range(10)), "nothing": lambda: None}, repeats=3)
    >>> len(timings["sum"].wall), timings["sum"].median > 0
    (3, True)
    """
    timings = {name: Timing() for name in contenders}
    names = list(contenders)
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for turn in range(-warm_up, repeats):
            names = names[1:] + names[:1]  # no contender always follows the same one
            for name in names:
                wall, cpu = _undisturbed(contenders[name])
                if turn >= 0:
                    timings[name].wall.append(wall)
                    timings[name].cpu.append(cpu)
    finally:
        if collects:
            gc.enable()
    return timings


def _undisturbed(call: Callable) -> tuple[float, float]:
    """Wall and processor seconds of a call; a short one follows another, and was not interrupted if that can be had."""
    for _ in range(TRIES):
        wall, cpu = _once(call)
        if cpu > SHORT:
            break
        before = _interruptions()
        wall, cpu = _once(call)
        if _interruptions() == before:
            break
    return wall, cpu


def _interruptions() -> int:
    """How often the system has taken the processor away from this process."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _once(call: Callable) -> tuple[float, float]:
    """Wall and processor seconds of one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def environment(*packages: str) -> dict[str, str]:
    """What the numbers depend on: thread count, processor, versions of Python, torch and other packages.

    >>> list(environment("numpy"))
    ['threads', 'processor', 'python', 'torch', 'numpy']
    """
    found = {"threads": str(torch.get_num_threads()), "processor": _processor(), "python": platform.python_version()}
    for package in ("torch", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


class PeakMemory(TorchDispatchMode):
    """How many bytes of new tensors exist at the worst moment while this is entered; read ``peak`` afterwards.

    Memory that an operation uses and gives back within itself is not seen.

    >>> with PeakMemory() as memory:
    ...     small = (torch.zeros(1000) + 1).sum()
    >>> memory.peak  # two times 1000 float32, then one sum beside one of them
    8000
    """

    def __init__(self):
        super().__init__()
        self.peak = self._held = 0
        self._known = WeakIdKeyDictionary()  # storages that were there before, and those that are counted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor):
                self._known.setdefault(tensor.untyped_storage(), 0)
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage()) not in self._known:
                self._known[storage] = size = storage.nbytes()
                weakref.finalize(storage, self._release, size)
                self._held += size
                self.peak = max(self.peak, self._held)
        return result

    def _release(self, size: int) -> None:
        """A storage is gone."""
        self._held -= size

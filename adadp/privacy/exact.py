"""Full precision for norms and sums, whatever the training around them does to be fast."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from operator import attrgetter

import torch

_BACKENDS = torch.backends
FULL = ("ieee", "none")  # a switch that leaves float32 alone


@contextmanager
def exact(device: torch.device | None) -> Iterator[None]:
    """No graph, no autocast, no shortened products: norms and sums are taken in the parameters' own precision.

    A card multiplies single-precision numbers with ten bits (TF32) where that is allowed, and for convolutions it is by
    default. A norm found so may be too small, and a sum may hold more of an example than its norm says.
    """
    kind = device.type if device is not None else "cpu"
    autocast = kind != "meta" and torch.is_autocast_enabled(kind)
    cudnn = nullcontext() if kind == "cpu" else _CUDNN
    with torch.no_grad(), torch.autocast(kind, enabled=False) if autocast else nullcontext(), _PRODUCTS, cudnn:
        yield


@contextmanager
def full_products(device: torch.device) -> Iterator[None]:
    """No shortened products; the rest as it is."""
    with _PRODUCTS, nullcontext() if device.type == "cpu" else _CUDNN:
        yield


class _Setting:
    """A setting of the whole process that is changed while at least one thread is inside, and then as it was.

    torch has old settings, and since 2.9 a new switch for each kind of product; it objects to reading an old one where
    the new ones say something else. So both are changed, in an order that it likes.
    """

    def __init__(self, read: Callable, write: Callable, full: object, switches: list[tuple[object, str]]):
        self.read, self.write, self.full = read, write, full  # of the old setting, and its value that shortens nothing
        self.switches = switches
        self.lock, self.inside = threading.Lock(), 0
        self.before: list = []
        self.old: object = full

    def __enter__(self):
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self._change()

    def __exit__(self, *_):
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self._restore()

    def _change(self) -> None:
        self.before = [getattr(*switch) for switch in self.switches]
        try:
            self.old = self.read()
        except RuntimeError:  # torch will not say, because the user has set the switches; then they are enough
            self.old = self.full
        if self.old != self.full:
            self.write(self.full)
        for switch in self.switches:
            if getattr(*switch) not in FULL:
                setattr(*switch, "ieee")

    def _restore(self) -> None:
        if self.old != self.full:
            self.write(self.old)
        for switch, value in zip(self.switches, self.before, strict=True):
            if getattr(*switch) != value:
                setattr(*switch, value)


def _switches(*parts: str) -> list[tuple[object, str]]:
    """The new switches, as (object, attribute), of operations like "cudnn.conv"; none before torch 2.9."""
    if not hasattr(_BACKENDS.cudnn, "conv"):
        return []
    return [(attrgetter(part)(_BACKENDS), "fp32_precision") for part in parts]


def _allow_tf32(value: bool) -> None:
    """Set the old setting of cuDNN."""
    _BACKENDS.cudnn.allow_tf32 = value


_PRODUCTS = _Setting(  # matrix products of every device, and convolutions of a CPU
    torch.get_float32_matmul_precision,
    torch.set_float32_matmul_precision,
    "highest",
    _switches("cuda.matmul", "mkldnn.matmul", "mkldnn.conv"),
)
_CUDNN = _Setting(lambda: _BACKENDS.cudnn.allow_tf32, _allow_tf32, False, _switches("cudnn.conv", "cudnn.rnn"))
SWITCHES = [*_PRODUCTS.switches, *_CUDNN.switches]

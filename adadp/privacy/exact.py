"""Full precision for norms and sums, whatever the training around them does to be fast."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

_BACKENDS = torch.backends
_NEW = hasattr(_BACKENDS.cudnn, "conv")  # torch 2.9 brought a switch for each kind of operation


@contextmanager
def exact(device: torch.device | None) -> Iterator[None]:
    """No graph, no autocast, no shortened products: norms and sums are taken in the parameters' own precision.

    A card multiplies single-precision numbers with ten bits (TF32) where that is allowed, and for convolutions it is by
    default. A norm found so may be too small, and a sum may hold more of an example than its norm says.
    """
    kind = device.type if device is not None else "cpu"
    autocast = kind != "meta" and torch.is_autocast_enabled(kind)
    with torch.no_grad(), torch.autocast(kind, enabled=False) if autocast else nullcontext():
        full = _FULL["cpu" if kind == "cpu" else "card"]
        full.enter()
        try:
            yield
        finally:
            full.leave()


class _FullFloat32:
    """Products of float32 in float32 between ``enter`` and ``leave``; then the user's settings are there again.

    The settings belong to the process: with several threads the first one inside changes them, the last one restores.
    """

    def __init__(self, switches: list[tuple[object, str]]):
        self.switches = switches  # (object, attribute)
        self.lock, self.inside = threading.Lock(), 0
        self.before: list = []
        self.matmul = "highest"

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside > 1:
                return
            self.before, self.matmul = [getattr(*s) for s in self.switches], torch.get_float32_matmul_precision()
            if self.matmul != "highest":
                torch.set_float32_matmul_precision("highest")  # also sets the switches of matrix products
            for switch, value in zip(self.switches, self.before, strict=True):
                if value not in ("ieee", "none", False):
                    setattr(*switch, "ieee" if _NEW else False)

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside:
                return
            if self.matmul != "highest":
                torch.set_float32_matmul_precision(self.matmul)
            for switch, value in zip(self.switches, self.before, strict=True):
                if getattr(*switch) != value:
                    setattr(*switch, value)


def _switches(backend) -> list[tuple[object, str]]:
    """What decides about the products of a backend."""
    if _NEW:
        products = _BACKENDS.cuda.matmul if backend is _BACKENDS.cudnn else backend.matmul
        return [(products, "fp32_precision"), (backend.conv, "fp32_precision")]
    return [(backend, "allow_tf32")] if backend is _BACKENDS.cudnn else []


_FULL = {"cpu": _FullFloat32(_switches(_BACKENDS.mkldnn)), "card": _FullFloat32(_switches(_BACKENDS.cudnn))}

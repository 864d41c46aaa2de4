"""Full precision for norms and sums, whatever the training around them does to be fast."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

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
    with torch.no_grad(), torch.autocast(kind, enabled=False) if autocast else nullcontext():
        _FULL.enter()
        try:
            yield
        finally:
            _FULL.leave()


class _FullFloat32:
    """Products of float32 in float32 between ``enter`` and ``leave``; then the user's settings are there again.

    The settings belong to the process: with several threads the first one inside changes them, the last one restores.
    torch has an old setting for matrix products and one for cuDNN, and a new switch for each kind of product, and
    objects to reading an old one where the new ones say something else. So all are changed, in an order that it likes.
    """

    def __init__(self):
        self.lock, self.inside = threading.Lock(), 0
        self.before: list = []
        self.cudnn, self.matmul = False, "highest"

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside > 1:
                return
            self.before, self.cudnn = [getattr(*switch) for switch in SWITCHES], _cudnn_shortens()
            if self.cudnn:
                _BACKENDS.cudnn.allow_tf32 = False
            for switch in SWITCHES:
                if getattr(*switch) not in FULL:
                    setattr(*switch, "ieee")
            self.matmul = torch.get_float32_matmul_precision()
            if self.matmul != "highest":
                torch.set_float32_matmul_precision("highest")

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside:
                return
            if self.matmul != "highest":
                torch.set_float32_matmul_precision(self.matmul)
            if self.cudnn:
                _BACKENDS.cudnn.allow_tf32 = True
            for switch, value in zip(SWITCHES, self.before, strict=True):
                if getattr(*switch) != value:
                    setattr(*switch, value)


def _cudnn_shortens() -> bool:
    """The old setting for cuDNN; where torch will not say, since the user has set new switches, these are enough."""
    try:
        return _BACKENDS.cudnn.allow_tf32
    except RuntimeError:
        return False


def _switches() -> list[tuple[object, str]]:
    """(object, attribute) of what decides how many bits products of float32 have, from torch 2.9 on."""
    if not hasattr(_BACKENDS.cudnn, "conv"):
        return []
    cudnn, mkldnn = _BACKENDS.cudnn, _BACKENDS.mkldnn
    return [
        (part, "fp32_precision") for part in (_BACKENDS.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv)
    ]


SWITCHES, _FULL = _switches(), _FullFloat32()

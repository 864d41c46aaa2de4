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
        _FULL.enter()
        try:
            yield
        finally:
            _FULL.leave()


class _FullFloat32:
    """Products of float32 in float32 between ``enter`` and ``leave``; then the user's settings are there again.

    The settings belong to the process: with several threads the first one inside changes them, the last one restores.
    torch has an old setting for matrix products and a new switch for each kind of product, and objects to reading the
    old one while the new ones say something else; so switches are changed first and restored last.
    """

    def __init__(self):
        self.lock, self.inside = threading.Lock(), 0
        self.before: list[tuple[object, str, object]] = []
        self.matmul = "highest"

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside > 1:
                return
            found = [(*switch, getattr(*switch)) for switch in SWITCHES]
            self.before = [switch for switch in found if switch[2] not in ("ieee", "none", False)]
            for owner, name, _ in self.before:
                setattr(owner, name, "ieee" if _NEW else False)
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
            for switch in self.before:
                setattr(*switch)


def _switches() -> list[tuple[object, str]]:
    """(object, attribute) of what decides how many bits products of float32 have."""
    if not _NEW:
        return [(_BACKENDS.cudnn, "allow_tf32")]
    owners = (_BACKENDS.cuda.matmul, _BACKENDS.cudnn.conv, _BACKENDS.mkldnn.matmul, _BACKENDS.mkldnn.conv)
    return [(owner, "fp32_precision") for owner in owners]


SWITCHES, _FULL = _switches(), _FullFloat32()

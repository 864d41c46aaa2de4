"""Image data as tensors: MNIST, CIFAR-10 and 5000 bundled MNIST images, with a line that says where they come from.

Data are looked for in ``$ADADP_DATA`` (else ``~/.cache/adadp``): first in torchvision's own layout, then as
``<name>.npz`` in Keras' layout, then downloaded by torchvision. What is computed once is kept in ``$ADADP_CACHE``.
"""

import difflib
import io
import socket
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from adadp.checkpoint import write_atomic
from adadp.evaluation import TOKENS
from adadp.features import load_features, weights_source
from adadp.folders import cache_folder, data_folder
from adadp.readers import (
    DataError,
    RawData,
    read_bundled_mnist,
    read_cifar_folder,
    read_mnist_folder,
    read_npz,
    reason,
)

__all__ = ["NAMES", "DataError", "Dataset", "available", "cache_folder", "data_folder", "load"]

NAMES = ("mnist", "cifar10", "mnist-5k")
IMAGE_SHAPES = {"mnist": (28, 28), "mnist-5k": (28, 28), "cifar10": (32, 32, 3)}
MEAN_STD = {
    "mnist": ((0.1307,), (0.3081,)),
    "mnist-5k": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}
# the checksum (RawData.checksum) of the four official MNIST files
OFFICIAL_MNIST = "2f6dc9b6c10f51819a845a7b909d9fe67f369d4207aa05ba0be846a5651a00e8"


@dataclass(frozen=True)
class Dataset:
    """Training and test examples as tensors.

    Args:
        x_train: examples, (N, ...) floating point, images normalised, (N, channels, height, width); or tokens, int64 or
            int32.
        y_train: class labels (N,) of any integer type, kept as int64; or floating-point targets (N, ...), with which a
            loss of one's own goes, and which have no accuracy.
        x_test: as ``x_train``; may be empty.
        y_test: as ``y_train``.
        name: a short name for tables.
        provenance: one line on the origin, printed under each figure.

    Raises:
        TypeError: a part is not a tensor or a numpy array.
        ValueError: lengths differ, examples are neither floating point nor tokens, labels are not a row of integers, or
            training and test targets are of different kinds.

    >>> data = Dataset(torch.zeros(3, 2), np.array([0, 1, 1], np.uint8), torch.zeros(1, 2), np.array([0]))
    >>> data.y_train
    tensor([0, 1, 1])
    """

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor
    name: str = "data"
    provenance: str = "origin not stated"

    def __post_init__(self):
        for split in ("train", "test"):
            x, y = (_tensor(getattr(self, part), part) for part in (f"x_{split}", f"y_{split}"))
            if not x.is_floating_point() and x.dtype not in TOKENS:
                raise ValueError(
                    f"x_{split} must be floating point, or tokens of type int64 or int32, got {x.dtype}; convert and "
                    "normalise it first"
                )
            labels = not (y.is_floating_point() or y.is_complex())
            if y.is_complex() or not y.dim() or len(y) != len(x) or (labels and y.dim() != 1):
                raise ValueError(
                    f"y_{split} must be {len(x)} integer labels, shape ({len(x)},), or as many floating-point targets, "
                    f"got {y.dtype} {tuple(y.shape)}"
                )
            object.__setattr__(self, f"x_{split}", x)
            object.__setattr__(self, f"y_{split}", y.to(torch.int64) if labels else y)
        if self.y_train.is_floating_point() != self.y_test.is_floating_point():
            raise ValueError(f"y_train and y_test must both be labels or both be floating-point targets, got "
                             f"{self.y_train.dtype} and {self.y_test.dtype}")  # fmt: skip
        if len(self.x_train) == 0:
            raise ValueError("x_train is empty")


def load(name: str, *, features: str | None = None) -> Dataset:
    """Load a data set as normalised tensors.

    A source that is sorted by class is shuffled once, always in the same way. The provenance says "official" only
    where the content is that of the official files, and always ends with a checksum of it.

    Args:
        name: "mnist" (60000 + 10000), "cifar10" (50000 + 10000) or "mnist-5k" (4000 + 1000, always available).
        features: "conv" replaces CIFAR-10's images by the (N, 1600) features of the reference network's convolutions.

    Returns:
        Images float32 (N, channels, height, width), or features float32 (N, 1600); labels int64 (N,).

    Raises:
        ValueError: ``name`` or ``features`` is none of these.
        DataError: the data cannot be read or downloaded; one line names the file and says what to do.
    """
    if name not in NAMES:
        near = difflib.get_close_matches(str(name), NAMES, 1, 0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}{hint}")
    if features not in (None, "conv") or (features and name != "cifar10"):
        raise ValueError(f"features must be None, or 'conv' for cifar10; got {features!r} for {name}")
    raw = _shuffled(_read(name))
    provenance = f"{raw.provenance} (sha256 {raw.checksum()[:12]})"
    if features:
        folders = {"data_folder": data_folder(), "cache_folder": cache_folder()}
        x_train, x_test, said = load_features(raw, lambda images: normalised(images, name), **folders)
        provenance = f"{provenance}; {said}"
    else:
        x_train, x_test = normalised(raw.x_train, name), normalised(raw.x_test, name)
    y_train, y_test = (torch.from_numpy(y.astype(np.int64)) for y in (raw.y_train, raw.y_test))
    return Dataset(x_train, y_train, x_test, y_test, name, provenance)


def available(name: str, *, features: str | None = None) -> bool:
    """Whether :func:`load` has everything on this machine, and would download nothing.

    >>> available("mnist-5k")
    True
    """
    here = name == "mnist-5k" or _own_folder(name) is not None or (data_folder() / f"{name}.npz").exists()
    return here and (features is None or bool(weights_source(data_folder(), cache_folder())))


def _own_folder(name: str) -> Path | None:
    """Folder of a data set in torchvision's own layout, where it is there."""
    folder = data_folder()
    own = {"mnist": folder / "MNIST" / "raw", "cifar10": folder / "cifar-10-batches-py"}.get(name)
    there = own is not None and own.is_dir() and any(own.glob("*-ubyte" if name == "mnist" else "*_batch*"))
    return own if there else None


def _read(name: str) -> RawData:
    """The first source that is there: torchvision's layout, ``<name>.npz``, what is bundled, a download."""
    folder = data_folder()
    if own := _own_folder(name):
        raw = read_mnist_folder(own) if name == "mnist" else read_cifar_folder(folder)
    elif (folder / f"{name}.npz").exists():
        raw = read_npz(folder / f"{name}.npz", IMAGE_SHAPES[name])
    elif name == "mnist-5k":
        return _bundled()
    else:
        raw = _download(name, folder)
    if name == "mnist" and raw.checksum() == OFFICIAL_MNIST:
        raw = RawData(raw.x_train, raw.y_train, raw.x_test, raw.y_test, "MNIST, official files")
    return raw


def _bundled() -> RawData:
    """mnist-5k from the cache; reading it from its package takes a second, so it is kept."""
    path = cache_folder() / "mnist-5k-bundled.npz"
    if path.exists():
        try:
            return read_npz(path, IMAGE_SHAPES["mnist-5k"])
        except DataError:
            path.unlink()  # only a copy: made again
    raw = read_bundled_mnist()
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **vars(raw))
    write_atomic(path, buffer.getvalue())
    return raw


def _download(name: str, folder: Path) -> RawData:
    """torchvision's download into ``folder``; a connection that says nothing for 30 s counts as none."""
    wanted = folder / ("MNIST/raw" if name == "mnist" else "cifar-10-batches-py")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)
    try:
        if name == "cifar10":
            return read_cifar_folder(folder, download=True)
        from torchvision.datasets import MNIST

        MNIST(str(folder), download=True)
    except ImportError as error:
        raise DataError(f"{name} is not in {folder} and its download needs torchvision; pip install it") from error
    except DataError:
        raise
    except (OSError, RuntimeError) as error:
        npz = folder / f"{name}.npz"
        raise DataError(
            f"{name} cannot be downloaded ({reason(error)}); put its files into {wanted}, or {npz} in Keras' layout"
        ) from error
    finally:
        socket.setdefaulttimeout(before)
    return read_mnist_folder(wanted)


def _shuffled(raw: RawData) -> RawData:
    """``raw``, its training and test examples each put into one fixed random order if they come sorted by class."""
    arrays, said = {}, raw.provenance
    for split, seed in (("train", 0), ("test", 1)):
        x, y = getattr(raw, f"x_{split}"), getattr(raw, f"y_{split}")
        if len(y) > 1 and (y[1:] >= y[:-1]).all():
            order = np.random.default_rng(seed).permutation(len(y))
            x, y = x[order], y[order]
            said = f"{raw.provenance}, shuffled once"
        arrays |= {f"x_{split}": x, f"y_{split}": y}
    return RawData(**arrays, provenance=said)


def normalised(images: np.ndarray, name: str) -> torch.Tensor:
    """uint8 (N, height, width[, 3]) -> float32 (N, channels, height, width) with the usual mean and deviation."""
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in MEAN_STD[name])
    pixels = torch.from_numpy(np.array(images))  # a copy: arrays read from bytes are not writable
    pixels = pixels.unsqueeze(1) if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)
    return pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255).sub_(mean).div_(std)


def _tensor(value, name: str) -> torch.Tensor:
    """``value`` as a tensor; numpy arrays are taken too."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a tensor or a numpy array, got {type(value).__name__}")
    return value

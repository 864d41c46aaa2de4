"""Convolution features of CIFAR-10: what the paper's private training starts from.

The two convolution layers of the reference network, pre-trained on CIFAR-100 (public data), are applied once and
frozen; only the fully connected head is trained privately. Features are (N, 1600) and kept in the cache folder.
"""

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from adadp.checkpoint import write_atomic
from adadp.readers import DataError, RawData

WEIGHTS_NPZ = "cifar100_conv_layers.npz"
WEIGHTS_PT = "conv_layers.pt"  # the published file, in the cache
OWN_NPZ = "own_conv_layers.npz"  # weights that adadp.pretraining made, in the cache
WEIGHTS_URL = "https://github.com/DPBayes/ADADP/raw/master/CIFAR_tests/conv_layers.pt"
WEIGHTS_SHA256 = "5ab9cbbc36cf8c65b0e1debd5f95cf6a5105faa87f6f9b547a7c3fa0beb4b11e"
SHAPES = {
    "conv1.weight": (64, 3, 3, 3),
    "conv1.bias": (64,),
    "conv2.weight": (64, 64, 3, 3),
    "conv2.bias": (64,),
}
Weights = dict[str, torch.Tensor]


def convolution_features(images: torch.Tensor, weights: Weights) -> torch.Tensor:
    """What :func:`adadp.models.cifar_cnn` computes before its head: (B, 3, 32, 32) -> (B, 1600)."""
    for layer in ("conv1", "conv2"):
        images = F.relu(F.conv2d(images, weights[f"{layer}.weight"], weights[f"{layer}.bias"]))
        images = F.max_pool2d(images, 3, stride=2)
    return images.flatten(1)


def load_features(
    raw: RawData, normalise: Callable[[np.ndarray], torch.Tensor], *, data_folder: Path, cache_folder: Path
) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Features of the training and the test images, computed once for each pair of data and weights.

    Args:
        raw: the images, uint8.
        normalise: uint8 images (B, 32, 32, 3) -> float32 (B, 3, 32, 32).
        data_folder: where the weights are looked for.
        cache_folder: where features, and weights once downloaded, are kept.

    Returns:
        float32 (N_train, 1600), float32 (N_test, 1600), and the weights' provenance.

    Raises:
        DataError: there are no weights, or they are damaged.
    """
    weights, key, said = load_weights(data_folder, cache_folder)
    path = cache_folder / "features" / f"cifar10-{raw.checksum()[:16]}-{key[:16]}.npz"
    sizes = {"x_train": len(raw.x_train), "x_test": len(raw.x_test)}
    arrays = _cached(path, sizes)
    if arrays is None:
        arrays = {part: _compute(getattr(raw, part), normalise, weights) for part in sizes}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
        write_atomic(path, buffer.getvalue())
    return torch.from_numpy(arrays["x_train"]), torch.from_numpy(arrays["x_test"]), said


def weights_source(data_folder: Path, cache_folder: Path) -> Path | None:
    """The file that :func:`load_weights` would read without a download; None where there is none."""
    files = (data_folder / WEIGHTS_NPZ, cache_folder / WEIGHTS_PT, cache_folder / OWN_NPZ)
    return next((path for path in files if path.exists()), None)


def load_weights(data_folder: Path, cache_folder: Path) -> tuple[Weights, str, str]:
    """Convolution weights, a checksum of their values, and their provenance.

    The first that is there: the prepared copy of the reference network's in ``data_folder``, its published file in the
    cache, weights that :mod:`adadp.pretraining` made. Else the published file is downloaded and checked.

    Raises:
        DataError: as :func:`load_features`.
    """
    source = weights_source(data_folder, cache_folder) or cache_folder / WEIGHTS_PT
    arrays = _published(source) if source.name == WEIGHTS_PT else _read_npz(source)
    for name, shape in SHAPES.items():
        value = arrays.get(name)
        if value is None or value.shape != shape or value.dtype != np.float32 or not np.isfinite(value).all():
            raise DataError(f"{source}: {name} must be finite float32 values of shape {shape}; replace it or delete it")
    key = checksum(arrays)
    weights = {name: torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in SHAPES}
    whose = "convolutions pre-trained here" if source.name == OWN_NPZ else "the reference network's convolutions"
    return weights, key, f"features of {whose} (sha256 {key[:12]})"


def checksum(arrays: dict[str, np.ndarray]) -> str:
    """sha256 of the values of convolution weights."""
    digest = hashlib.sha256()
    for name in SHAPES:
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def save_weights(weights: Weights, cache_folder: Path) -> Path:
    """Keep own weights where :func:`load_weights` looks for them."""
    path, buffer = cache_folder / OWN_NPZ, io.BytesIO()
    np.savez(buffer, **{name: weights[name].detach().cpu().numpy() for name in SHAPES})  # pyright: ignore
    write_atomic(path, buffer.getvalue())
    return path


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz without pickled objects."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: np.asanyarray(archive[name]) for name in archive.files}
    except Exception as error:  # as in `readers`
        raise DataError(f"{path} cannot be read as npz; replace it or delete it") from error


def _published(path: Path) -> dict[str, np.ndarray]:
    """The published file, from the cache or its public home; believed only if its sha256 is the known one."""
    data = path.read_bytes() if path.exists() else _download(path)
    if hashlib.sha256(data).hexdigest() != WEIGHTS_SHA256:
        raise DataError(f"{path} is not the published file (wrong sha256); delete it and let it be downloaded")
    if not path.exists():
        write_atomic(path, data)
    tensors = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return {name: tensor.numpy() for name, tensor in zip(SHAPES, tensors, strict=True)}


def _download(path: Path) -> bytes:
    """The published weights, 155 kB."""
    from urllib.request import urlopen

    try:
        with urlopen(WEIGHTS_URL, timeout=30) as reply:
            return reply.read()
    except OSError as error:
        own = "or make weights of your own: python -m adadp.pretraining"
        raise DataError(
            f"{WEIGHTS_URL} cannot be reached; download it elsewhere and save it as {path}, {own}"
        ) from error


@torch.no_grad()
def _compute(
    images: np.ndarray, normalise: Callable[[np.ndarray], torch.Tensor], weights: Weights, batch: int = 500
) -> np.ndarray:
    """Features of all images, a batch at a time so that the float images never exist all at once."""
    features = np.empty((len(images), 1600), np.float32)
    for start in range(0, len(images), batch):
        part = convolution_features(normalise(images[start : start + batch]), weights)
        features[start : start + batch] = part.numpy()
    return features


def _cached(path: Path, sizes: dict[str, int]) -> dict[str, np.ndarray] | None:
    """Cached features, or None where there are none that are whole (they are computed again)."""
    try:
        arrays = _read_npz(path)
    except DataError:
        return None
    fits = all(part in arrays and arrays[part].shape == (size, 1600) for part, size in sizes.items())
    return arrays if fits else None

"""Own convolution weights, pre-trained on CIFAR-100, for machines that cannot have those of the reference network.

``python -m adadp.pretraining`` trains the CIFAR-10 network's convolutions, under a head for 100 classes, on the public
CIFAR-100 training images, and keeps them in the cache folder: from then on ``adadp.data.load("cifar10",
features="conv")`` uses them wherever the reference network's weights are not found, and says so in its provenance.
Nothing here is private, and nothing needs to be: the private data are CIFAR-10's.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from adadp.data import normalised
from adadp.evaluation import pick_device
from adadp.features import SHAPES, Weights, save_weights
from adadp.folders import cache_folder, data_folder
from adadp.models import cifar_cnn
from adadp.progress import progress_bar
from adadp.readers import DataError, reason

CLASSES = 100


def pretrain(
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    classes: int = CLASSES,
    epochs: int = 10,
    batch_size: int = 100,
    lr: float = 0.02,
    generator: torch.Generator | None = None,
    device: str = "auto",
    progress: bool = True,
) -> tuple[Weights, float]:
    """Train the convolutions and a head by SGD with momentum on images that are flipped at random.

    Args:
        images: normalised, float32 (N, 3, 32, 32).
        labels: int64 (N,), from 0 to ``classes`` - 1.
        classes: of the head, which is thrown away afterwards.
        epochs, batch_size, lr: of the training; the lr falls to zero along a cosine.
        generator: of initial weights, order and flips (on the CPU).
        device: "auto", "cpu" or "cuda".
        progress: show a bar.

    Returns:
        The weights, as :func:`adadp.features.load_weights` gives them, and the training accuracy of the last epoch.

    Raises:
        ValueError: images and labels do not fit each other, or there are labels outside the classes.
    """
    if len(images) != len(labels) or len(images) == 0 or labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels must be {len(images)} values from 0 to {classes - 1}, one for each image")
    generator = generator or torch.Generator().manual_seed(0)
    model = cifar_cnn(generator=generator)
    model.fc3 = nn.Linear(500, classes, bias=False)
    nn.init.uniform_(model.fc3.weight, -(500**-0.5), 500**-0.5, generator=generator)
    model.to(where := pick_device(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    right = 0
    shown = progress_bar(epochs, show=progress, unit="epoch")
    for _ in range(epochs):
        right = 0
        for part in torch.randperm(len(images), generator=generator).split(batch_size):
            x, y = images[part], labels[part].to(where)
            flipped = torch.rand(len(part), generator=generator) < 0.5
            output = model(torch.where(flipped[:, None, None, None], x.flip(3), x).to(where))
            optimizer.zero_grad()
            F.cross_entropy(output, y).backward()
            optimizer.step()
            right += int((output.argmax(1) == y).sum())
        schedule.step()
        shown.update()
    shown.close()
    weights = {name: model.get_parameter(name).detach().cpu().clone() for name in SHAPES}
    return weights, right / len(images)


def read_cifar100(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """CIFAR-100's training images, normalised as CIFAR-10's are, and their fine labels.

    Looked for in ``folder``: ``cifar100.npz`` in Keras' layout, torchvision's own files, else torchvision's download.

    Raises:
        DataError: they cannot be read or downloaded.
    """
    npz = folder / "cifar100.npz"
    try:
        if npz.exists():
            with np.load(npz, allow_pickle=False) as archive:
                images, labels = (np.asanyarray(archive[name]) for name in ("x_train", "y_train"))
                labels = labels.reshape(-1)
        else:
            from torchvision.datasets import CIFAR100

            there = (folder / CIFAR100.base_folder).is_dir()
            data = CIFAR100(str(folder), train=True, download=not there)
            images, labels = data.data, np.asarray(data.targets)
    except Exception as error:  # as in `readers`
        raise DataError(
            f"CIFAR-100 cannot be read ({reason(error)}); put {npz.name} or its files into {folder}"
        ) from error
    whole = labels.dtype.kind in "iu"
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or len(labels) != len(images) or not whole:
        raise DataError(f"{folder}: CIFAR-100 must be uint8 images (N, 32, 32, 3) with a whole label each; replace it")
    return normalised(np.array(images), "cifar10"), torch.from_numpy(labels.astype(np.int64))


def main() -> None:
    """Pre-train, keep the weights, say where they are."""
    weights, accuracy = pretrain(*read_cifar100(data_folder()))
    path = save_weights(weights, cache_folder())
    print(f"{path}: training accuracy {100 * accuracy:.1f} % on CIFAR-100's {CLASSES} classes")


if __name__ == "__main__":
    main()

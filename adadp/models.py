"""The paper's networks, with exactly its parameter counts.

All of them are ReLU networks whose fully connected layers have no biases (that is what the counts say). Images are
(B, channels, height, width); the output is (B, 10), one logit a class.
"""

from collections import OrderedDict
from itertools import pairwise
from math import sqrt

import torch
from torch import nn

INITS = ("torch", "reference_code")


def mnist_mlp(*, init: str = "torch", generator: torch.Generator | None = None) -> nn.Sequential:
    """784-256-256-256-10 without biases: 334336 parameters.

    The paper says two hidden layers (Section "Datasets and test architectures"); its count is that of three.

    Args:
        init: "torch" draws U(-b, b) with b = 1/sqrt(fan_in), as torch does; "reference_code" takes b = 1/sqrt(fan_out).
        generator: draws the weights; torch's global generator if None.

    Raises:
        ValueError: ``init`` is neither of the two.

    >>> count_parameters(mnist_mlp())
    334336
    """
    layers = [("flatten", nn.Flatten()), *_fully_connected(784, 256, 256, 256, 10)]
    return _finish(layers, 334_336, init, generator)


def cifar_cnn(*, init: str = "torch", generator: torch.Generator | None = None) -> nn.Sequential:
    """The CIFAR-10 network, all layers trainable: 1093720 parameters.

    Two 3x3 convolutions (64 channels, with biases: 38720 parameters), each with ReLU and a 3x3 maximum pool of
    stride 2, give 64 x 5 x 5 = 1600 features; :func:`cifar_head` follows. Arguments as :func:`mnist_mlp`.

    >>> count_parameters(cifar_cnn())
    1093720
    """
    layers = [*_convolutions(), *_fully_connected(1600, 500, 500, 10)]
    return _finish(layers, 1_093_720, init, generator)


def cifar_head(*, init: str = "torch", generator: torch.Generator | None = None) -> nn.Sequential:
    """1600-500-500-10 without biases on convolution features (B, 1600): 1055000 parameters.

    This is the part that the paper trains privately on CIFAR-10. Arguments as :func:`mnist_mlp`.

    >>> count_parameters(cifar_head())
    1055000
    """
    return _finish(_fully_connected(1600, 500, 500, 10), 1_055_000, init, generator)


def count_parameters(model: nn.Module) -> int:
    """Number of trainable values in ``model``: the d of the paper's tol analysis."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _convolutions() -> list[tuple[str, nn.Module]]:
    """Named convolution layers, (B, 3, 32, 32) -> (B, 1600)."""
    layers: list[tuple[str, nn.Module]] = []
    for number, channels in enumerate((3, 64), start=1):
        layers += [
            (f"conv{number}", nn.Conv2d(channels, 64, 3)),
            (f"conv{number}_relu", nn.ReLU()),
            (f"conv{number}_pool", nn.MaxPool2d(3, stride=2)),
        ]
    return [*layers, ("flatten", nn.Flatten())]


def _fully_connected(*widths: int) -> list[tuple[str, nn.Module]]:
    """Named linear layers without biases, ReLU between them."""
    layers: list[tuple[str, nn.Module]] = []
    for number, (wide, narrow) in enumerate(pairwise(widths), start=1):
        layers += [(f"fc{number}", nn.Linear(wide, narrow, bias=False)), (f"fc{number}_relu", nn.ReLU())]
    return layers[:-1]  # logits are not rectified


def _finish(layers: list, expected: int, init: str, generator: torch.Generator | None) -> nn.Sequential:
    """Put the layers together, check the paper's count, draw the weights."""
    if init not in INITS:
        raise ValueError(f"init must be one of {', '.join(INITS)}, got {init!r}")
    model = nn.Sequential(OrderedDict(layers))
    assert count_parameters(model) == expected
    if generator is not None or init != "torch":
        _draw(model, init, generator)
    return model


@torch.no_grad()
def _draw(model: nn.Module, init: str, generator: torch.Generator | None) -> None:
    """Weights and biases from U(-b, b), b = 1/sqrt(fan) of their layer."""
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            window = layer.weight[0, 0].numel()
            fan = layer.weight.shape[1 if init == "torch" else 0] * window
            for parameter in layer.parameters():
                parameter.uniform_(-1 / sqrt(fan), 1 / sqrt(fan), generator=generator)

"""A model whose per-example gradients are whatever one wants, so that records can be crafted without search."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from adadp.optimizer import ADADP
from adadp.privacy.gradient import PrivateGradient

MakeGradient = Callable[..., PrivateGradient]  # called like PrivateGradient; returns an object with backward(x, y)


class LinearModel(nn.Module):
    """The sum of linear maps over slices of the input; with the output as its loss, an input IS its own gradient.

    Args:
        widths: size of every slice, each with its own weight of shape (1, width).
    """

    def __init__(self, widths: tuple[int, ...]):
        super().__init__()
        self.widths = widths
        self.parts = nn.ModuleList(nn.Linear(width, 1, bias=False) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        """(B, sum of widths) -> (B, 1)."""
        return sum(part(piece) for part, piece in zip(self.parts, x.split(self.widths, dim=1), strict=True))


def output_as_loss(output: Tensor, y: Tensor) -> Tensor:
    """The model's output itself, (B, 1) -> (B,); ``y`` is not looked at."""
    return output.squeeze(1)


def released(model: nn.Module) -> Tensor:
    """All gradients that the model now shows, as one float64 vector (a copy)."""
    return torch.cat([p.grad.detach().double().flatten() for p in model.parameters() if p.grad is not None])


def prepared(gradient: MakeGradient, widths: tuple[int, ...], C: float, sigma: float, E: float, seed: int):
    """A model with weights drawn from ``seed``, ADADP on it, and its private gradient."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = LinearModel(widths)
    source = torch.Generator().manual_seed(seed)
    settings = {"max_grad_norm": C, "noise_multiplier": sigma, "expected_batch_size": E, "loss": output_as_loss}
    return model, ADADP(model.parameters(), lr=0.1), gradient(model, **settings, generator=source)

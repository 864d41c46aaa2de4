"""Private gradients with a fault planted in them, one each: what an audit must see, to be shown that it does.

They are no straw men: mistakes like these are found in published code, and training looks right with them, since the
accuracy is as good or better. ``FAULTS`` maps a name to a class that is called like :class:`adadp.PrivateGradient`.
"""

import math

import torch

from adadp.privacy.gradient import PrivateGradient


class Separate:
    """A right private gradient, put together from clean clipped sums and noise; every fault changes one of its parts.

    Args:
        model, max_grad_norm, noise_multiplier, expected_batch_size, loss, generator: as for
            :class:`adadp.PrivateGradient`.
    """

    def __init__(self, model, *, max_grad_norm, noise_multiplier, expected_batch_size, loss, generator):
        self.params = list(model.parameters())
        self.C, self.E, self.generator, self.calls = max_grad_norm, expected_batch_size, generator, 0
        self.std = noise_multiplier * max_grad_norm / expected_batch_size
        self.inner = PrivateGradient(
            model, max_grad_norm=self.clip(), noise_multiplier=0, expected_batch_size=expected_batch_size, loss=loss
        )

    def clip(self) -> float:
        """The bound that gradients are in fact clipped to."""
        return self.C

    def sums(self, x, y) -> None:
        """Set ``grad`` to the sum of clipped gradients over the expected batch size."""
        self.inner.backward(x, y)

    def noise(self) -> list[torch.Tensor]:
        """One draw of noise for each parameter."""
        return [self.std * torch.randn(p.shape, generator=self.generator) for p in self.params]

    def backward(self, x, y) -> None:
        """Set ``grad`` to the private gradient."""
        self.sums(x, y)
        for p, z in zip(self.params, self.noise(), strict=True):
            p.grad = p.grad + z
        self.calls += 1


class NoiseDividedTwice(Separate):
    """The noise is made for the mean, and divided by the batch size once more."""

    def noise(self):
        return [z / self.E for z in super().noise()]


class NoNoiseOnG2(Separate):
    """Only the first gradient of an iteration gets noise."""

    def noise(self):
        return [z * (self.calls % 2 == 0) for z in super().noise()]


class OneDrawForTwoParameters(Separate):
    """Parameters share one draw, so that a difference of two of them is free of noise."""

    def noise(self):
        draw = self.std * torch.randn(max(p.numel() for p in self.params), generator=self.generator)
        return [draw[: p.numel()].view_as(p) for p in self.params]


class OneDrawForG1AndG2(Separate):
    """Both gradients of an iteration get the same draw, so that their difference is free of noise."""

    def noise(self):
        if self.calls % 2 == 0:
            self.last = super().noise()
        return self.last


class ClippingIgnored(Separate):
    """The noise is made for C, but nothing is clipped."""

    def clip(self):
        return math.inf


class DivisorIsTheDrawnSize(Separate):
    """The sum is divided by the size of the batch that was drawn."""

    def backward(self, x, y):
        super().backward(x, y)
        for p in self.params:
            p.grad *= self.E / max(1, len(x))


class ClippingPerParameter(Separate):
    """Each parameter's part of a gradient is clipped to C by itself: together they may be longer."""

    def sums(self, x, y):
        totals = [torch.zeros_like(p) for p in self.params]
        for i in range(len(x)):
            loss = self.inner.loss(self.inner.model(x[i : i + 1]), y[i : i + 1]).sum()
            for total, g in zip(totals, torch.autograd.grad(loss, self.params), strict=True):
                total += g * min(1.0, self.C / max(float(g.norm()), 1e-30))
        for p, total in zip(self.params, totals, strict=True):
            p.grad = total / self.E


FAULTS = {
    "noise-divided-twice": NoiseDividedTwice,
    "no-noise-on-g2": NoNoiseOnG2,
    "one-draw-for-two-parameters": OneDrawForTwoParameters,
    "one-draw-for-g1-and-g2": OneDrawForG1AndG2,
    "clipping-ignored": ClippingIgnored,
    "divisor-is-the-drawn-size": DivisorIsTheDrawnSize,
    "clipping-per-parameter": ClippingPerParameter,
}

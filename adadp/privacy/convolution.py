"""Per-example gradients of convolution weights: 1, 2 or 3 dimensions, groups, stride, padding, dilation.

A convolution is a linear map applied to patches: position t of the output sees a patch a_t of K = I/groups * window
values. All patches are many times larger than the input, so they are made for a few examples at a time.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from adadp.privacy.terms import Dense, chunks, gram_norms, row_norms, scale_rows, zero_rows


class Convolution:
    """Weight of a convolution. ``x``: (B, I, *size), ``g``: (B, O, *positions), ``shape``: the weight's."""

    def __init__(self, x: Tensor, g: Tensor, shape: torch.Size, stride, padding, dilation, groups: int):
        n = len(shape) - 2
        self.stride, self.dilation = _tuple(stride, n), _tuple(dilation, n)
        before, after = _padding(padding, shape[2:], self.dilation)
        if before != after:  # padding="same" with an even window
            x, before = F.pad(x, [p for pair in zip(before[::-1], after[::-1], strict=True) for p in pair]), [0] * n
        self.x, self.g, self.shape, self.padding, self.groups = x, g, shape, before, groups
        self.channels_last = n == 2 and x.is_contiguous(memory_format=torch.channels_last)
        self.made: Tensor | None = None

    def norm(self) -> Tensor:
        """2-norms, shape (B,), from Gram matrices or from the gradients themselves, whichever is cheaper."""
        t, k, o = self.g[0, 0].numel(), self.shape[1:].numel(), self.shape[0] // self.groups
        if t * (k + o) < k * o:
            norms = torch.cat([gram_norms(a, g) for a, g in self._pairs(2 * t * t)])
            return norms if self.groups == 1 else row_norms(norms.view(-1, self.groups))
        if self.shape.numel() * len(self.x) <= 4 * (self.x.numel() + self.g.numel()):  # no burden beside these
            self.made = self._made()
            return row_norms(self.made)
        return torch.cat([row_norms(_products(a, g).view(-1, self.shape.numel())) for a, g in self._pairs(k * o)])

    def per_example(self) -> Tensor:
        """The per-example gradients, shape (B, *shape)."""
        return self._in_shape(self._made())

    def add_sum(self, out: Tensor, factors: Tensor, keep: Tensor | None) -> None:
        """Add sum_i factors_i grads_i to ``out``: from the gradients if they exist, else as a plain weight gradient."""
        if self.made is not None:
            rows = zero_rows(self.made, keep).flatten(1)
            out.add_(self._in_shape((factors @ rows).view(1, *self.made.shape[1:]))[0])
            return
        x, g = zero_rows(self.x, keep), scale_rows(self.g, factors, keep)
        n = len(self.shape) - 2
        weight = out.new_empty(1).expand(self.shape)
        geometry = (self.stride, self.padding, self.dilation, False, [0] * n, self.groups)
        out.add_(torch.ops.aten.convolution_backward(g, x, weight, None, *geometry, [False, True, False])[1])

    def _made(self) -> Tensor:
        """Per-example gradients (B * groups, O / groups, K), in the order of the patches."""
        made = [_products(a, g) for a, g in self._pairs()]
        return torch.cat(made).view(len(self.x), self.shape[0], -1)

    def _in_shape(self, made: Tensor) -> Tensor:
        """(B, O, K) as (B, O, I / groups, *window)."""
        if self.channels_last:
            return made.view(-1, self.shape[0], *self.shape[2:], self.shape[1]).movedim(-1, 2)
        return made.view(-1, *self.shape)

    def _pairs(self, scratch: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Patches (b * groups, T, K) and output gradients (b * groups, T, O / groups), a few examples at a time."""
        each = self.g[0, 0].numel() * self.shape[1:].numel() * self.groups + scratch * self.groups
        for c in chunks(len(self.x), each, self.x.device):
            yield self._patches(self.x[c]), self._positions(self.g[c])

    def _positions(self, g: Tensor) -> Tensor:
        """Output gradients (b * groups, T, O / groups)."""
        if self.groups == 1:
            return g.flatten(2).mT
        return g.reshape(len(g) * self.groups, self.shape[0] // self.groups, -1).mT

    def _patches(self, x: Tensor) -> Tensor:
        """What each output position sees, (b * groups, T, K): K counts channels last if memory does."""
        n = len(self.shape) - 2
        if any(self.padding):
            x = F.pad(x, [p for p in self.padding[::-1] for _ in range(2)])
        for i in range(n):
            span = self.dilation[i] * (self.shape[2 + i] - 1) + 1
            x = x.unfold(2 + i, span, self.stride[i])[..., :: self.dilation[i]]
        x = x.unflatten(1, (self.groups, -1))  # (b, G, I/G, *positions, *window)
        positions = x.shape[3 : 3 + n].numel()
        if self.channels_last:
            return x.movedim(2, -1).reshape(len(x) * self.groups, positions, -1)
        return x.movedim(tuple(range(3, 3 + n)), tuple(range(-n, 0))).reshape(len(x) * self.groups, -1, positions).mT


def convolution(g, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1) -> dict:
    """Terms of ``F.conv1d``, ``F.conv2d`` and ``F.conv3d`` (``F.pad`` has already seen to other padding modes)."""
    x, g_weight = input.to(weight.dtype), g.to(weight.dtype)
    return {
        "weight": lambda: Convolution(x, g_weight, weight.shape, stride, padding, dilation, groups),
        "bias": lambda: Dense(g.flatten(2).sum(2).to(bias.dtype)),
    }


def _products(a: Tensor, g: Tensor) -> Tensor:
    """Gradients (b, O, K) from (b, T, K) and (b, T, O); matrix libraries like the longer side last."""
    return torch.bmm(g.mT, a) if a.shape[2] >= g.shape[2] else torch.bmm(a.mT, g).mT


def _tuple(value, n: int) -> tuple[int, ...]:
    """An int for every dimension."""
    value = (value,) if isinstance(value, int) else tuple(value)
    return value * n if len(value) == 1 else value


def _padding(padding, window, dilation) -> tuple[list[int], list[int]]:
    """Zeros before and after each dimension."""
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(window, dilation, strict=True)]
        return [t // 2 for t in total], [t - t // 2 for t in total]
    both = [0] * len(window) if padding == "valid" else list(_tuple(padding, len(window)))
    return both, both

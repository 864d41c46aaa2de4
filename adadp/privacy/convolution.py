"""Per-example gradients of convolution weights: 1, 2 or 3 dimensions, groups, stride, padding, dilation.

A convolution is a linear map applied to patches: position t of the output sees a patch a_t of K = I/groups * window
values. All patches are many times larger than the input, so they are made for a few examples at a time.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from adadp.privacy.terms import (
    Dense,
    chunks,
    doubt,
    gram_norms,
    lengths,
    products,
    root,
    row_norms,
    scale_rows,
    zero_rows,
)


class Convolution:
    """Weight of a convolution. ``x``: (B, I, *size), ``g``: (B, O, *positions), ``shape``: the weight's."""

    def __init__(self, x: Tensor, g: Tensor, shape: torch.Size, stride, padding, dilation, groups: int):
        n = len(shape) - 2
        self.stride, self.dilation = _tuple(stride, n), _tuple(dilation, n)
        before, after = _padding(padding, shape[2:], self.dilation)
        if before != after:  # padding="same" with an even window
            x, before = F.pad(x, [p for pair in zip(before[::-1], after[::-1], strict=True) for p in pair]), [0] * n
        self.x, self.g, self.shape, self.padding, self.groups = x, g, shape, before, groups
        self.positions, self.outputs, self.window = g[0, 0].numel(), shape[0] // groups, shape[1:].numel()
        self.channels_last = n == 2 and x.is_contiguous(memory_format=torch.channels_last)
        # Matrix libraries like the longer side last; with groups the transposed order could not be undone by a view.
        self.transposed = groups == 1 and self.window < self.outputs
        self.made: Tensor | None = None

    def norm(self) -> Tensor:
        """2-norms, shape (B,), from Gram matrices or from the gradients themselves, whichever is cheaper."""
        t, k, o = self.positions, self.window, self.outputs
        if t * (k + o) < k * o:
            norms = torch.cat([gram_norms(a, g) for _, a, g in self._pairs(2 * t * t)])
            return norms if self.groups == 1 else row_norms(norms.view(-1, self.groups))
        if self.shape.numel() * len(self.x) <= 4 * (self.x.numel() + self.g.numel()):  # no burden beside these
            self.made = self._made()
            return row_norms(self.made)
        return torch.cat([self._norms_of(a, g) for _, a, g in self._pairs(k * o)])

    def _norms_of(self, a: Tensor, g: Tensor) -> Tensor:
        """Norms of a few examples' gradients, which are made and forgotten: the sum will add in another order."""
        norms = row_norms(products(g.mT, a.mT).view(-1, self.shape.numel()))
        length = (lengths(a) * lengths(g)).view(len(norms), -1).sum(1)
        return root(norms.square() + doubt(length, self.positions, self.positions))  # a square has the product twice

    def per_example(self) -> Tensor:
        """The per-example gradients, shape (B, *shape)."""
        return self._in_shape(self._made())

    def add_sum(self, out: Tensor, factors: Tensor, keep: Tensor | None) -> None:
        """Add sum_i factors_i grads_i to ``out``: from the gradients if they exist, else as a plain weight gradient."""
        if self.made is not None:
            out.add_(self._in_shape((factors @ zero_rows(self.made, keep)).unsqueeze(0))[0])
            return
        x, g = zero_rows(self.x, keep), scale_rows(self.g, factors, keep)
        n = len(self.shape) - 2
        weight = out.new_empty(1).expand(self.shape)
        geometry = (self.stride, self.padding, self.dilation, False, [0] * n, self.groups)
        out.add_(torch.ops.aten.convolution_backward(g, x, weight, None, *geometry, [False, True, False])[1])

    def _made(self) -> Tensor:
        """Per-example gradients as rows (B, numel), in an order that :meth:`_in_shape` undoes."""
        made = self.x.new_empty(len(self.x), self.shape.numel())
        for c, a, g in self._pairs():
            if self.transposed:
                torch.bmm(a.mT, g, out=made[c].view(-1, self.window, self.outputs))
            else:
                torch.bmm(g.mT, a, out=made[c].view(-1, self.outputs, self.window))
        return made

    def _in_shape(self, rows: Tensor) -> Tensor:
        """Rows (b, numel) as (b, O, I / groups, *window)."""
        if self.transposed:
            rows = rows.view(-1, self.window, self.outputs).mT
        if self.channels_last:
            return rows.view(-1, self.shape[0], *self.shape[2:], self.shape[1]).movedim(-1, 2)
        return rows.view(-1, *self.shape)

    def _pairs(self, scratch: int = 0) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """A few examples at a time: their patches (b * groups, T, K) and output gradients (b * groups, T, O / groups).

        The patches lie in one buffer that is used again and again: fresh memory would cost more than filling it.
        """
        windows, b, t = self._windows(), len(self.x), self.positions
        parts = chunks(b, (t * self.window + scratch) * self.groups, self.x.device)
        buffer = self.x.new_empty(min(b, parts[0].stop) if parts else 0, *windows.shape[1:])
        for c in parts:
            a = buffer[: min(b, c.stop) - c.start].copy_(windows[c])
            g = self.g[c].reshape(len(a) * self.groups, self.outputs, t).mT
            shape = (len(a) * self.groups, t, self.window)
            yield c, a.view(shape) if self.channels_last else a.view(shape[0], self.window, t).mT, g

    def _windows(self) -> Tensor:
        """What each output position sees, as a view of the padded input.

        (B, G, *positions, *window, I/G) where channels lie last in memory, else (B, G, I/G, *window, *positions).
        """
        n, x = len(self.shape) - 2, self.x
        if any(self.padding):
            x = F.pad(x, [p for p in self.padding[::-1] for _ in range(2)])
        for i in range(n):
            span = self.dilation[i] * (self.shape[2 + i] - 1) + 1
            x = x.unfold(2 + i, span, self.stride[i])[..., :: self.dilation[i]]
        x = x.unflatten(1, (self.groups, -1))
        return x.movedim(2, -1) if self.channels_last else x.movedim(tuple(range(3, 3 + n)), tuple(range(-n, 0)))


def convolution(g, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1) -> dict:
    """Terms of ``F.conv1d``, ``F.conv2d`` and ``F.conv3d`` (``F.pad`` has already seen to other padding modes)."""
    x, g_weight = input.to(weight.dtype), g.to(weight.dtype)
    return {
        "weight": lambda: Convolution(x, g_weight, weight.shape, stride, padding, dilation, groups),
        "bias": lambda: Dense(g.flatten(2).sum(2).to(bias.dtype)),
    }


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

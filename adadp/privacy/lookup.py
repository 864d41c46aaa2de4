"""Per-example gradients of an embedding: sparse, so neither made nor turned into a matrix.

Shapes: B examples, T positions an example, V rows of the embedding, D its width.
"""

import torch
from torch import Tensor

from adadp.privacy.terms import Outer, as_3d, chunks, doubt, lengths, products, root, row_norms, scale_rows


class Lookup:
    """Weight of an embedding: row ids_it of grads_i gains g_it. ``ids``: (B, T), ``g``: (B, T, D), V rows."""

    def __init__(self, ids: Tensor, g: Tensor, rows: int):
        self.ids, self.g, self.rows = ids, g, rows

    def norm(self) -> Tensor:
        """2-norms, shape (B,): pairs of positions that look up the same row, or the V rows if they are fewer."""
        b, t, d = self.g.shape
        if t == 1:
            return row_norms(self.g)
        if self.rows <= t:
            exactly = self.g.double()  # many positions are added to few rows, one after the other
            made = torch.cat(
                [row_norms(self._scatter(c, exactly)) for c in chunks(b, 2 * self.rows * d, self.g.device)]
            )
            return root(made.to(self.g.dtype).square() + doubt(lengths(self.g).sum(1)))
        parts = []
        for c in chunks(b, 2 * t * t, self.g.device):
            same = self.ids[c].unsqueeze(2) == self.ids[c].unsqueeze(1)
            squares = (products(self.g[c], self.g[c]) * same).sum((1, 2))
            parts.append(squares + doubt(lengths(self.g[c]).sum(1), d))
        return root(torch.cat(parts))

    def _scatter(self, c: slice, g: Tensor) -> Tensor:
        """Per-example gradients of the examples ``c``, from their ``g`` in whatever precision."""
        g, ids = g[c], self.ids[c].unsqueeze(2).expand_as(g[c])
        return g.new_zeros(len(g), self.rows, g.shape[2]).scatter_add_(1, ids, g)

    def per_example(self) -> Tensor:
        """The per-example gradients, shape (B, V, D)."""
        return self._scatter(slice(None), self.g)

    def dot(self, outer: Outer) -> tuple[Tensor, Tensor]:
        """Inner products with the contributions of a linear map that shares the parameter, and their doubt, (B,) each.

        sum over t, s of g^out_s[ids_t] * (g_t . a_s): the output gradient is read at the rows that were looked up.
        """
        a, g = as_3d(outer.a), as_3d(outer.g)
        at_rows = torch.gather(g, 2, self.ids.unsqueeze(1).expand(-1, g.shape[1], -1))  # (B, S, T)
        found = (at_rows * products(a, self.g)).sum((1, 2))
        length = lengths(a).unsqueeze(2) * lengths(self.g).unsqueeze(1)
        return found, doubt((at_rows.abs() * length).sum((1, 2)).sqrt(), a.shape[2])

    def add_sum(self, out: Tensor, factors: Tensor, keep: Tensor | None) -> None:
        """Add sum_i factors_i grads_i to ``out``, row by row."""
        g = scale_rows(self.g, factors, keep)
        out.index_add_(0, self.ids.flatten(), g.flatten(0, 1))

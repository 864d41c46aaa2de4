"""Per-example gradients without making them: norms and weighted sums from inputs and output gradients.

A term is what one or more uses of one parameter contribute to every example's gradient. It answers how long each
contribution is (``norm``) and what their weighted sum is (``add_sum``). For a weight neither needs the
(B, *parameter) tensor of all per-example gradients, which is what makes private steps slow; where that tensor is the
smaller one, it is made after all (ghost norms: Goodfellow, arXiv 1510.01799; Li et al., arXiv 2110.05679; the choice:
Bu et al., arXiv 2210.00038).

Shapes: B examples, T positions an example (time, pixels), I inputs, O outputs.
"""

import math

import torch
from torch import Tensor

GUARD = 8  # roundings that a sum of squares is trusted with, besides those inside of products
BLOCK = 256  # terms of a product that are added in a row: what is small beside the sum so far gets lost
LONG = 4096  # elements of a row whose squares are added in a row
CHUNK = {"cpu": 1 << 18, "cuda": 1 << 26}  # elements of scratch: a core's cache, a small part of a card


class Dense:
    """Per-example gradients that exist: biases, scales of norms, the vmap fallback. ``grads``: (B, *parameter)."""

    def __init__(self, grads: Tensor):
        self.grads = grads

    def norm(self) -> Tensor:
        """2-norm of each example's gradient, shape (B,)."""
        return row_norms(self.grads)

    def per_example(self) -> Tensor:
        """The per-example gradients, shape (B, *parameter)."""
        return self.grads

    def add_sum(self, out: Tensor, factors: Tensor, keep: Tensor | None) -> None:
        """Add sum_i factors_i grads_i to ``out``, in place; rows where ``keep`` is False do not enter at all."""
        out.add_((factors @ as_rows(zero_rows(self.grads, keep))).view(out.shape))


class Outer:
    """Weight of a linear map: grads_i = sum_t g_it a_it^T, ``a``: (B, T, I) or (B, I), ``g``: (B, T, O) or (B, O)."""

    def __init__(self, a: Tensor, g: Tensor):
        self.a, self.g = a, g
        self.made: Tensor | None = None

    def norm(self) -> Tensor:
        """2-norms, shape (B,), from Gram matrices or from the gradients themselves, whichever is cheaper."""
        if self.a.dim() == 2:
            return row_norms(self.a).mul_(row_norms(self.g))
        (b, t, i), o = self.a.shape, self.g.shape[2]
        if t * (i + o) < i * o:
            return torch.cat([gram_norms(self.a[c], self.g[c]) for c in chunks(b, 2 * t * t, self.a.device)])
        self.made = self.per_example()  # no larger than the two that are kept anyway
        return row_norms(self.made)

    def per_example(self) -> Tensor:
        """The per-example gradients, shape (B, O, I)."""
        if self.a.dim() == 2:
            return self.g.unsqueeze(2) * self.a.unsqueeze(1)
        return torch.bmm(self.g.mT, self.a)

    def add_sum(self, out: Tensor, factors: Tensor, keep: Tensor | None) -> None:
        """Add sum_i factors_i grads_i to ``out`` by one matrix product over examples and positions."""
        if self.made is not None:
            return Dense(self.made).add_sum(out, factors, keep)
        g, a = scale_rows(self.g, factors, keep), zero_rows(self.a, keep)
        if a.dim() == 3:
            g, a = g.flatten(0, 1), a.flatten(0, 1)
        out.addmm_(g.t(), a)


def joint_norms(terms: list) -> Tensor:
    """2-norm of each example's whole gradient, all parameters together, shape (B,), in the parameters' widest type."""
    norms = [term.norm() for term in terms]
    dtype = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack([n.to(dtype) for n in norms]), dim=0)


def chunks(n: int, elements: int, device: torch.device) -> list[slice]:
    """Slices of n examples, each with at most CHUNK elements of scratch at ``elements`` an example."""
    step = max(1, CHUNK.get(device.type, CHUNK["cuda"]) // max(1, elements))
    return [slice(i, i + step) for i in range(0, n, step)]


def row_norms(rows: Tensor) -> Tensor:
    """2-norm over everything but the first dimension, shape (B,); of a long row from the norms of its parts."""
    rows = as_rows(rows)
    if rows.shape[1] <= LONG:
        return lengths(rows)
    whole = rows.shape[1] // LONG * LONG
    return lengths(torch.cat([lengths(rows[:, :whole].unflatten(1, (-1, LONG))), lengths(rows[:, None, whole:])], 1))


def lengths(rows: Tensor) -> Tensor:
    """2-norms along the last dimension, with what the squares of tiny numbers, which vanish, may have been."""
    return torch.linalg.vector_norm(rows, dim=-1) + math.sqrt(torch.finfo(rows.dtype).tiny * rows.shape[-1])


def as_rows(values: Tensor) -> Tensor:
    """One row an example, (B, n); n is 1 for a parameter that is a single number."""
    return values if values.dim() == 2 else values.flatten(1) if values.dim() > 2 else values.unsqueeze(1)


def gram_norms(a: Tensor, g: Tensor) -> Tensor:
    """|sum_t g_t a_t^T|, shape (B,): its square is the sum over t, s of (a_t . a_s)(g_t . g_s)."""
    aa, gg = products(a, a), products(g, g)
    tiny, (i, o) = torch.finfo(a.dtype).tiny, (a.shape[2], g.shape[2])
    along = [(x.diagonal(dim1=1, dim2=2) + tiny * n).sqrt() for x, n in ((aa, i), (gg, o))]  # as in lengths
    return root(aa.mul_(gg).sum((1, 2)) + doubt((along[0] * along[1]).sum(1), i, o))


def products(a: Tensor, b: Tensor) -> Tensor:
    """Products of all rows of ``a``, (B, T, n), with all of ``b``, (B, S, n), added up block by block: (B, T, S)."""
    step = _block(a.shape[2])
    found = torch.bmm(a[..., :step], b[..., :step].mT)
    for i in range(step, a.shape[2], step):
        found += torch.bmm(a[..., i : i + step], b[..., i : i + step].mT)
    return found


def _block(terms: int) -> int:
    """How many terms of a product are added in a row: few, and few such sums."""
    return max(BLOCK, math.isqrt(terms))


def zero_rows(rows: Tensor, keep: Tensor | None) -> Tensor:
    """``rows`` with zeros where ``keep`` is False: a product with the factor 0 would leave nan and inf as they are."""
    return rows if keep is None else torch.where(keep.view(-1, *[1] * (rows.dim() - 1)), rows, 0)


def scale_rows(rows: Tensor, factors: Tensor, keep: Tensor | None) -> Tensor:
    """factors_i rows_i, and zeros where ``keep`` is False."""
    return zero_rows(rows, keep) * factors.view(-1, *[1] * (rows.dim() - 1))


def doubt(length: Tensor, *terms: int) -> Tensor:
    """What rounding may have taken from a squared norm, when the parts that it was summed from are so long together.

    Where an example's positions cancel each other, the squares are differences of large numbers, and without this the
    norm could come out as zero while the sum, which is not squared, holds a gradient far longer than C.

    Args:
        length: 2-norms of the parts, added up.
        *terms: how many each of the :func:`products` added that are factors of the square; every addition can lose half
            a unit of the last digit.
    """
    inside = sum(min(n, _block(n)) + n / _block(n) for n in terms) / 2
    return length.square() * ((GUARD + inside) * torch.finfo(length.dtype).eps)


def root(squares: Tensor) -> Tensor:
    """Square root of what rounding may have made slightly negative."""
    return squares.clamp_(min=0).sqrt_()


def as_3d(rows: Tensor) -> Tensor:
    """(B, n) as (B, 1, n)."""
    return rows.unsqueeze(1) if rows.dim() == 2 else rows

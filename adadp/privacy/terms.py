"""Per-example gradients without making them: norms and weighted sums from inputs and output gradients.

A term is what one or more uses of one parameter contribute to every example's gradient. It answers how long each
contribution is (``norm``) and what their weighted sum is (``add_sum``). For a weight neither needs the
(B, *parameter) tensor of all per-example gradients, which is what makes private steps slow; where that tensor is the
smaller one, it is made after all (ghost norms: Goodfellow, arXiv 1510.01799; Li et al., arXiv 2110.05679; the choice:
Bu et al., arXiv 2210.00038).

Shapes: B examples, T positions an example (time, pixels), I inputs, O outputs, V rows of an embedding, D its width.
"""

from contextlib import contextmanager

import torch
from torch import Tensor

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
        rows = zero_rows(self.grads, keep).reshape(len(factors), -1)
        out.add_((factors @ rows).view(out.shape))


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
        if i * o <= t * (i + o):  # no larger than what is kept anyway
            self.made = self.per_example()
            return row_norms(self.made)
        parts = chunks(b, i * o, self.a.device)
        return torch.cat([row_norms(torch.bmm(self.g[c].mT, self.a[c])) for c in parts])

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
            return torch.cat([row_norms(self._scatter(c)) for c in chunks(b, self.rows * d, self.g.device)])
        parts = []
        for c in chunks(b, 2 * t * t, self.g.device):
            same = self.ids[c].unsqueeze(2) == self.ids[c].unsqueeze(1)
            parts.append((torch.bmm(self.g[c], self.g[c].mT) * same).sum((1, 2)))
        return _root(torch.cat(parts))

    def _scatter(self, c: slice) -> Tensor:
        """Per-example gradients of the examples ``c``."""
        g, ids = self.g[c], self.ids[c].unsqueeze(2).expand_as(self.g[c])
        return g.new_zeros(len(g), self.rows, g.shape[2]).scatter_add_(1, ids, g)

    def per_example(self) -> Tensor:
        """The per-example gradients, shape (B, V, D)."""
        return self._scatter(slice(None))

    def dot(self, outer: Outer) -> Tensor:
        """Inner products with the contributions of a linear map that shares the parameter, shape (B,).

        sum over t, s of g^out_s[ids_t] * (g_t . a_s): the output gradient is read at the rows that were looked up.
        """
        a, g = _as_3d(outer.a), _as_3d(outer.g)
        at_rows = torch.gather(g, 2, self.ids.unsqueeze(1).expand(-1, g.shape[1], -1))  # (B, S, T)
        return (at_rows * torch.bmm(a, self.g.mT)).sum((1, 2))

    def add_sum(self, out: Tensor, factors: Tensor, keep: Tensor | None) -> None:
        """Add sum_i factors_i grads_i to ``out``, row by row."""
        g = scale_rows(self.g, factors, keep)
        out.index_add_(0, self.ids.flatten(), g.flatten(0, 1))


class Tied:
    """An embedding and a linear map that share one parameter: their gradients add up before the norm is taken."""

    def __init__(self, lookup: Lookup, outer: Outer):
        self.lookup, self.outer = lookup, outer

    def norm(self) -> Tensor:
        """|e + l|, shape (B,), from |e|^2 + |l|^2 + 2 e.l."""
        squares = self.lookup.norm().square_() + self.outer.norm().square_()
        return _root(squares + 2 * self.lookup.dot(self.outer))

    def per_example(self) -> Tensor:
        """The per-example gradients, shape (B, V, D)."""
        return self.lookup.per_example() + self.outer.per_example()

    def add_sum(self, out: Tensor, factors: Tensor, keep: Tensor | None) -> None:
        """Add both weighted sums to ``out``."""
        self.lookup.add_sum(out, factors, keep)
        self.outer.add_sum(out, factors, keep)


@contextmanager
def exact(device: torch.device | None):
    """No graph and no autocast: norms and sums are taken in the parameters' own precision."""
    with torch.no_grad():
        if device is not None and torch.is_autocast_enabled(device.type):
            with torch.autocast(device.type, enabled=False):
                yield
        else:
            yield


def joint_norms(terms: list, dtype: torch.dtype) -> Tensor:
    """2-norm of each example's whole gradient, all parameters together, shape (B,)."""
    norms = [term.norm().to(dtype) for term in terms]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)


def merge(terms: list):
    """One term for a parameter that was used several times."""
    if len(terms) == 1:
        return terms[0]
    outers = [t for t in terms if isinstance(t, Outer)]
    lookups = [t for t in terms if isinstance(t, Lookup)]
    if len(outers) + len(lookups) < len(terms):
        return Dense(sum(term.per_example() for term in terms))
    found = []  # several uses of one kind are more positions of the same map
    if lookups:
        ids, g = torch.cat([t.ids for t in lookups], 1), torch.cat([t.g for t in lookups], 1)
        found.append(Lookup(ids, g, lookups[0].rows))
    if outers:
        found.append(Outer(*(torch.cat([_as_3d(getattr(t, k)) for t in outers], 1) for k in "ag")))
    return found[0] if len(found) == 1 else Tied(*found)


def chunks(n: int, elements: int, device: torch.device) -> list[slice]:
    """Slices of n examples, each with at most CHUNK elements of scratch at ``elements`` an example."""
    step = max(1, CHUNK.get(device.type, CHUNK["cuda"]) // max(1, elements))
    return [slice(i, i + step) for i in range(0, n, step)]


def row_norms(rows: Tensor) -> Tensor:
    """2-norm over everything but the first dimension, shape (B,)."""
    return torch.linalg.vector_norm(rows if rows.dim() == 2 else rows.flatten(1), dim=1)


def gram_norms(a: Tensor, g: Tensor) -> Tensor:
    """|sum_t g_t a_t^T|, shape (B,): its square is the sum over t, s of (a_t . a_s)(g_t . g_s)."""
    return _root(torch.bmm(a, a.mT).mul_(torch.bmm(g, g.mT)).sum((1, 2)))


def zero_rows(rows: Tensor, keep: Tensor | None) -> Tensor:
    """``rows`` with zeros where ``keep`` is False: a product with the factor 0 would leave nan and inf as they are."""
    return rows if keep is None else torch.where(keep.view(-1, *[1] * (rows.dim() - 1)), rows, 0)


def scale_rows(rows: Tensor, factors: Tensor, keep: Tensor | None) -> Tensor:
    """factors_i rows_i, and zeros where ``keep`` is False."""
    return zero_rows(rows, keep) * factors.view(-1, *[1] * (rows.dim() - 1))


def _root(squares: Tensor) -> Tensor:
    """Square root of what rounding may have made slightly negative."""
    return squares.clamp_(min=0).sqrt_()


def _as_3d(rows: Tensor) -> Tensor:
    """(B, n) as (B, 1, n)."""
    return rows.unsqueeze(1) if rows.dim() == 2 else rows

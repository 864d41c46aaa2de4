"""A parameter that a forward pass uses more than once: its contributions add up before the norm is taken."""

import torch
from torch import Tensor

from adadp.privacy.lookup import Lookup
from adadp.privacy.terms import Dense, Outer, as_3d, doubt, root


class Tied:
    """An embedding and a linear map that share one parameter: their gradients add up before the norm is taken."""

    def __init__(self, lookup: Lookup, outer: Outer):
        self.lookup, self.outer = lookup, outer

    def norm(self) -> Tensor:
        """|e + l|, shape (B,), from |e|^2 + |l|^2 + 2 e.l."""
        squares = self.lookup.norm().square_() + self.outer.norm().square_()
        products, unsure = self.lookup.dot(self.outer)
        return root(squares + 2 * products + 2 * unsure + doubt(squares.sqrt()))

    def add_sum(self, out: Tensor, factors: Tensor, keep: Tensor | None) -> None:
        """Add both weighted sums to ``out``."""
        self.lookup.add_sum(out, factors, keep)
        self.outer.add_sum(out, factors, keep)


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
        found.append(Outer(*(torch.cat([as_3d(getattr(t, k)) for t in outers], 1) for k in "ag")))
    return found[0] if len(found) == 1 else Tied(*found)

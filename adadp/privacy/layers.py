"""Per-example gradients without making them: what one use of one parameter contributes.

A layer call on a batch leaves its input a and, after the backward pass, the gradient g of the loss with respect to its
output. Both know which example each row belongs to, and together they determine every per-example gradient of the
layer's parameters. A term answers two questions about them: how long is each (``sqnorm``), and what is their weighted
sum (``add_sum``)? Neither needs the (B, *parameter) tensor of all per-example gradients, which is what makes private
steps slow (ghost norms: Goodfellow, arXiv 1510.01799; Li et al., arXiv 2110.05679; book-keeping: Bu et al., arXiv
2210.00038).

Shapes: B examples, T positions an example (time, pixels), I inputs, O outputs.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


class Dense:
    """Per-example gradients that exist: biases, norms' scales, the vmap fallback. ``grads``: (B, *parameter)."""

    def __init__(self, grads: Tensor):
        self.grads = grads

    def sqnorm(self) -> Tensor:
        """Squared norm of each example's gradient, shape (B,)."""
        return _sqnorm(self.grads)

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

    def sqnorm(self) -> Tensor:
        """Squared norms, shape (B,), from Gram matrices or from the gradients themselves, whichever is cheaper."""
        if self.a.dim() == 2:
            return _sqnorm(self.a) * _sqnorm(self.g)
        t, i, o = self.a.shape[1], self.a.shape[2], self.g.shape[2]
        if t * (i + o) < i * o:
            grams = torch.bmm(self.a, self.a.mT).mul_(torch.bmm(self.g, self.g.mT))
            return grams.sum((1, 2)).clamp_(min=0)
        return _sqnorm(self.per_example())

    def per_example(self) -> Tensor:
        """The per-example gradients, shape (B, O, I)."""
        if self.a.dim() == 2:
            return self.g.unsqueeze(2) * self.a.unsqueeze(1)
        return torch.bmm(self.g.mT, self.a)

    def add_sum(self, out: Tensor, factors: Tensor, keep: Tensor | None) -> None:
        """Add sum_i factors_i grads_i to ``out`` by one matrix product over examples and positions."""
        g = zero_rows(self.g, keep) * factors.view(-1, *[1] * (self.g.dim() - 1))
        a = zero_rows(self.a, keep)
        out.addmm_(g.reshape(-1, g.shape[-1]).t(), a.reshape(-1, a.shape[-1]))


def merge(terms: list) -> "Dense | Outer":
    """One term for a parameter that was used several times: gradients add up before the norm is taken."""
    if len(terms) == 1:
        return terms[0]
    if all(isinstance(term, Outer) for term in terms):  # more positions of the same map
        return Outer(torch.cat([_as_3d(t.a) for t in terms], 1), torch.cat([_as_3d(t.g) for t in terms], 1))
    return Dense(sum(term.per_example() for term in terms))


def zero_rows(rows: Tensor, keep: Tensor | None) -> Tensor:
    """``rows`` with zeros where ``keep`` is False: a product with the factor 0 would leave nan and inf as they are."""
    return rows if keep is None else torch.where(keep.view(-1, *[1] * (rows.dim() - 1)), rows, 0)


def linear(g: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> dict[str, Callable]:
    """Terms of ``F.linear``: any number of dimensions between the first and the last."""
    a = input if input.dim() == 2 else input.reshape(len(input), -1, input.shape[-1])
    g = g if g.dim() == 2 else g.reshape(len(g), -1, g.shape[-1])
    return {
        "weight": lambda: Outer(a.to(weight.dtype), g.to(weight.dtype)),
        "bias": lambda: Dense((g if g.dim() == 2 else g.sum(1)).to(bias.dtype)),
    }


# Function -> (positions of weight and bias among its arguments, terms). A call of anything else goes to the fallback.
RULES: dict[Callable, tuple[dict[str, int], Callable]] = {F.linear: ({"weight": 1, "bias": 2}, linear)}


def _sqnorm(rows: Tensor) -> Tensor:
    """Squared 2-norm over everything but the first dimension, shape (B,)."""
    return torch.linalg.vector_norm(rows.flatten(1), dim=1).square_()


def _as_3d(rows: Tensor) -> Tensor:
    """(B, n) as (B, 1, n)."""
    return rows.unsqueeze(1) if rows.dim() == 2 else rows

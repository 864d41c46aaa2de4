"""Optimizers for many models at once: row k of every tensor is model k's, and nothing is ever read.

A block holds one parameter group of all models, (K, d). Decisions that the optimizer makes with ``if`` on a CPU are
made here row by row with ``torch.where``: the same operations serve every outcome, as a CUDA graph demands.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from adadp.multi_tensor import move
from adadp.optimizer import ADADP, ZERO_ERRORS
from adadp.param_groups import largest_lr
from adadp.step_size import Controller

Gradient = Callable[[int], list[Tensor]]
LAW = ("tol", "alpha_min", "alpha_max", "exponent", "discard")


class AdaptiveRows:
    """One ADADP a row: ``advance`` is one iteration of all of them, two gradients each.

    Args:
        template: has the settings of all rows.
        blocks: the parameters, one (K, d) a parameter group; changed in place.

    Attributes:
        lr: learning rates, float64, shape (groups, K).
        error: err of the last iteration, shape (K,).
        accepted, discarded: numbers of iterations, int64, shape (K,).

    Reference: Alg. 2, Koskela & Honkela, with the discarding of Alg. 1.
    """

    gradients = 2

    def __init__(self, template: ADADP, blocks: list[Tensor]):
        self.blocks, self.kept = blocks, [torch.empty_like(b) for b in blocks]
        head = template.param_groups[0]
        self.law = Controller(**{name: head[name] for name in LAW})
        self.advance_by, self.relative = head["advance"], head["relative_error"]
        self.signs = [-1.0 if group["maximize"] else 1.0 for group in template.param_groups]
        real = {"device": blocks[0].device, "dtype": torch.float32 if blocks[0].is_mps else torch.float64}
        rows = len(blocks[0])
        self.lr, self.error = torch.zeros(len(blocks), rows, **real), torch.zeros(rows, **real)
        counts = torch.zeros(3, rows, dtype=torch.int64, device=blocks[0].device)
        self.accepted, self.discarded, self.zero_errors = counts

    def start(self, lrs: Sequence[Sequence[float]]) -> None:
        """Begin anew with these learning rates, one list a group."""
        self.lr.copy_(torch.tensor(lrs, dtype=self.lr.dtype))
        self.error.fill_(math.nan)
        for count in (self.accepted, self.discarded, self.zero_errors):
            count.zero_()

    def advance(self, gradient: Gradient, active: Tensor) -> None:
        """One iteration of the rows that are ``active``, bool, (K,); ``gradient(0)`` and ``gradient(1)`` are called."""
        torch._foreach_copy_(self.kept, self.blocks)
        for p, step in zip(self.blocks, self._steps(gradient(0)), strict=True):
            p.sub_(step)
        parts = move(self.blocks, self.kept, self._steps(gradient(1)), self.advance_by, self.relative)
        square = torch.zeros_like(self.error)
        for p, part in zip(self.blocks, parts, strict=True):
            square += torch.linalg.vector_norm(part, dim=1).to(square.dtype).square()
            square += 0 * torch.linalg.vector_norm(p, 1, dim=1)  # 0 * inf = nan
        error = square.sqrt()
        accept = self.law.accepts(error)
        for p, a in zip(self.blocks, self.kept, strict=True):
            torch.where((accept & active)[:, None], p, a, out=p)
        self._conclude(error, accept, active)

    def _steps(self, grads: list[Tensor]) -> list[Tensor]:
        """eta/2 times the gradient, for each group."""
        halves = [0.5 * sign * lr for sign, lr in zip(self.signs, self.lr, strict=True)]
        return [g * half[:, None].to(g.dtype) for g, half in zip(grads, halves, strict=True)]

    def _conclude(self, error: Tensor, accept: Tensor, active: Tensor) -> None:
        """Change learning rates and counters of the active rows, as ``ADADP`` does."""
        zero_errors = (self.zero_errors + 1) * (error == 0)
        factor = torch.where(zero_errors > ZERO_ERRORS, 1.0, self.law.factor(error))
        self.lr.mul_(torch.where(active, factor, 1.0)).clamp_(max=largest_lr(self.blocks))
        self.accepted.add_(accept & active)
        self.discarded.add_(~accept & active)
        for held, new in ((self.error, error), (self.zero_errors, zero_errors)):
            torch.where(active, new.to(held.dtype), held, out=held)


class TorchRows:
    """An optimizer of torch that treats every element by itself (SGD, Adam, AdamW): a block is one large parameter.

    Args:
        template: has the settings, and the learning rates that all rows share.
        blocks: the parameters, one (K, d) a parameter group; changed in place.
        ragged: rows may stop early, so that they have to be held still from then on.
    """

    gradients = 1
    error = accepted = discarded = None

    def __init__(self, template: torch.optim.Optimizer, blocks: list[Tensor], *, ragged: bool):
        self.blocks, self.ragged = blocks, ragged
        groups = []
        for group, block in zip(template.param_groups, blocks, strict=True):
            groups.append({name: value for name, value in group.items() if name != "param_names"} | {"params": [block]})
            if block.is_cuda and "capturable" in group:
                groups[-1]["capturable"] = True
        self.optimizer = type(template)(groups, lr=template.defaults["lr"])
        self.lr = torch.tensor([[float(group["lr"])] * len(blocks[0]) for group in groups], dtype=torch.float64)

    def start(self, lrs: Sequence[Sequence[float]]) -> None:
        """Begin anew. Moments and step counts of zero are what a new optimizer has (see `check_optimizers`)."""
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()

    def advance(self, gradient: Gradient, active: Tensor) -> None:
        """One step of the rows that are ``active``, bool, (K,)."""
        before = [p.clone() for p in self.blocks] if self.ragged else []
        for p, g in zip(self.blocks, gradient(0), strict=True):
            p.grad = g
        self.optimizer.step()
        for p, old in zip(self.blocks, before, strict=False):
            torch.where(active[:, None], p, old, out=p)

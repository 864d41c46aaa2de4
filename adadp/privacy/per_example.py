"""One forward and one backward pass that learn everything about every example's gradient.

recording.py watches the forward pass, layers.py turns what it saw into terms, fallback.py handles what has no rule.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from adadp.privacy import fallback
from adadp.privacy.recording import Recorder
from adadp.privacy.terms import Dense, exact
from adadp.privacy.tied import merge


class PerExample:
    """Per-example gradients of a model under a loss, as terms (terms.py).

    Which parameters a rule can handle is found out by use, not by the types of modules: a pass in which some operation
    without a rule reaches a parameter, or in which a layer does not see the examples in its first dimension, is made
    again with that parameter left to the fallback, and from then on it stays there.
    """

    def __init__(self, model: nn.Module, loss: Callable):
        self.model, self.loss = model, loss
        self.without_rule: set[int] = set()  # ids of parameters
        self._layouts: dict[tuple, tuple[set, bool]] = {}

    def terms(self, params: list[Tensor], x, y: Tensor) -> tuple[Tensor, dict[int, object]]:
        """Losses, shape (B,), and a term for each of ``params`` that was used, by the parameter's id."""
        while True:
            ruled = [p for p in params if id(p) not in self.without_rule]
            losses, terms, strange = self._forward_backward(ruled, x, y)
            if not strange:
                break
            self.without_rule |= strange
        if len(ruled) < len(params):
            rest = {id(p) for p in params} & self.without_rule
            named = {name: p for name, p in self.model.named_parameters() if id(p) in rest}
            with torch.no_grad():
                grads = fallback.per_example_gradients(self.model, self.loss, named, x, y)
            terms |= {id(p): Dense(grads[name]) for name, p in named.items()}
        return losses.detach(), terms

    def _forward_backward(self, ruled: list[Tensor], x, y: Tensor) -> tuple[Tensor, dict, set[int]]:
        """Losses, terms by parameter, and the ids of parameters that turned out to need the fallback."""
        with torch.set_grad_enabled(bool(ruled)):
            with Recorder(ruled) as recorder:
                output = fallback.call(self.model, x)
            losses = fallback.per_example_losses(self.loss, output, y, len(y))
        if not losses.requires_grad:
            return losses, {}, set()
        calls = recorder.calls
        found = torch.autograd.grad(losses, [c.edge for c in calls] + ruled, torch.ones_like(losses), allow_unused=True)
        strange = {id(p) for p, g in zip(ruled, found[len(calls) :], strict=True) if g is not None}
        used = [(c, g) for c, g in zip(calls, found, strict=False) if g is not None]
        strange |= self._strange(used, ruled, x, len(y), bool(strange))
        return losses, {} if strange else _terms_by_parameter(used), strange

    def _strange(self, used, ruled, x, size: int, others: bool) -> set[int]:
        """Ids of parameters whose layers do not see the examples in their first dimension."""
        known, random = self._layout_of_one(ruled, x)
        found = set()
        for call, g in used:
            if call.layout not in known or len(call.input) != size or len(g) != size or g.dim() < 2:
                found |= set(map(id, call.params.values()))
        if random and (others or found or self.without_rule):  # rules and fallback would see different dropout masks
            found = {id(p) for p in ruled}
        return found

    def _layout_of_one(self, ruled, x) -> tuple[set, bool]:
        """The calls that one example makes with a first dimension of 1, and whether the model draws random numbers.

        A layer may see the examples in another dimension (time first) or folded into one (B*T rows). A ghost norm would
        then mix them up, silently if the sizes happen to agree; such layers go to the fallback. One forward pass of one
        example, once for every shape of input.
        """
        key = (self.model.training, len(ruled), *((t.shape[1:], t.dtype) for t in fallback.leaves(x)))
        if key not in self._layouts:
            devices = list({p.device for p in ruled if p.is_cuda})
            with torch.random.fork_rng(devices), torch.no_grad(), Recorder(ruled, differentiable=False) as recorder:
                before = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
                fallback.call(self.model, fallback.part(x, slice(0, 1)))
                after = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
            random = not all(map(torch.equal, before, after))
            self._layouts[key] = ({c.layout for c in recorder.calls if len(c.input) == 1}, random)
        return self._layouts[key]


def _terms_by_parameter(used: list) -> dict[int, object]:
    """Each parameter's term; several uses of one are merged."""
    found: dict[int, list] = {}
    with exact(used[0][1].device if used else None):
        for call, g in used:
            for param, term in call.terms(g):
                found.setdefault(id(param), []).append(term)
        return {key: merge(terms) for key, terms in found.items()}

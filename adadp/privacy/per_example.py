"""One forward and one backward pass that learn everything about every example's gradient.

recording.py watches the forward pass, layers.py turns what it saw into terms, fallback.py handles what has no rule.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from adadp.privacy import fallback
from adadp.privacy.exact import exact
from adadp.privacy.recording import Recorder
from adadp.privacy.terms import Dense, as_rows
from adadp.privacy.tied import merge

FEW = 8  # examples with which a model is tried out


class PerExample:
    """Per-example gradients of a model under a loss, as terms (terms.py).

    Which parameters a rule can handle is found out by use, not by the types of modules: a pass in which some operation
    without a rule reaches a parameter, or in which a layer does not see the examples in its first dimension, is made
    again with that parameter left to the fallback, and from then on it stays there. A model whose examples see each
    other, or change places on the way, goes there as a whole: the fallback runs every example by itself.
    """

    def __init__(self, model: nn.Module, loss: Callable):
        self.model, self.loss = model, loss
        self.without_rule: set[int] = set()  # ids of parameters
        self._layouts: dict[tuple, tuple[set, bool]] = {}
        self._mixing: dict[tuple, bool] = {}

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
        if strange:
            _refuse_penalty(self.loss, output, y, ruled)
        used = [(c, g) for c, g in zip(calls, found, strict=False) if g is not None]
        strange |= self._strange(used, ruled, x, y, bool(strange))
        return losses, {} if strange else _terms_by_parameter(used), strange

    def _strange(self, used, ruled, x, y, others: bool) -> set[int]:
        """Ids of parameters whose layers do not see the examples, in their order, in the first dimension."""
        size = len(y)
        known, random = self._layout_of_one(ruled, x)
        if size > 1 and self._mixes(ruled, x, y):
            return {id(p) for p in ruled}
        found = set()
        for call, g in used:
            if call.layout in known and len(call.input) != size:  # it sees the batch as a whole
                return {id(p) for p in ruled}
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
        key = self._situation(ruled, x)
        if key not in self._layouts:
            devices = list({p.device for p in ruled if p.is_cuda})
            with torch.random.fork_rng(devices), torch.no_grad(), Recorder(ruled, differentiable=False) as recorder:
                before = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
                fallback.call(self.model, fallback.part(x, slice(0, 1)))
                after = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
            random = not all(map(torch.equal, before, after))
            self._layouts[key] = ({c.layout for c in recorder.calls if len(c.input) == 1}, random)
        return self._layouts[key]

    def _mixes(self, ruled, x, y) -> bool:
        """Whether examples see each other or change places inside the model; tried with a few, once for every shape.

        The gradient at a layer's output must be scaled row by row when the examples' losses are. Sorting a batch, or a
        batch statistic written by hand, would else give an example's gradient to another one and break the clipping.
        """
        few = slice(0, min(FEW, len(y)))
        key = (few.stop, *self._situation(ruled, x))
        if key not in self._mixing:
            devices = list({p.device for p in ruled if p.is_cuda})
            with torch.random.fork_rng(devices), torch.enable_grad():
                with Recorder(ruled) as recorder:
                    output = fallback.call(self.model, fallback.part(x, few))
                losses = fallback.per_example_losses(self.loss, output, y[few], few.stop)
            edges = [c.edge for c in recorder.calls]
            self._mixing[key] = bool(edges) and not losses.is_meta and _crosses(losses, edges)
        return self._mixing[key]

    def _situation(self, ruled, x) -> tuple:
        """What decides which layers run, and how: the parameters, the modules' modes, the inputs' shapes and types."""
        modes = tuple(module.training for module in self.model.modules())
        return (tuple(map(id, ruled)), modes, *((t.shape[1:], t.dtype) for t in fallback.leaves(x)))


def _crosses(losses: Tensor, edges: list) -> bool:
    """Whether the loss of one example depends on another's row at one of the ``edges``."""
    numbers = torch.arange(len(losses), device=losses.device, dtype=losses.dtype)
    weights = 0.5**numbers  # multiplying by them rounds nothing
    grad = partial(torch.autograd.grad, losses, edges, retain_graph=True, allow_unused=True)
    for g, scaled in zip(grad(torch.ones_like(losses)), grad(weights), strict=True):
        if g is None or len(g) != len(losses):  # the latter: by its shape already known to be strange
            continue
        g, scaled = as_rows(g).float(), as_rows(scaled).float()
        wrong, whole = (scaled - weights.float()[:, None] * g).norm(dim=1), g.norm(dim=1).nan_to_num()
        if bool((wrong > 1e-3 * whole + 1e-4 * whole.amax()).any()):
            return True
    return False


def _refuse_penalty(loss: Callable, output, y: Tensor, params: list[Tensor]) -> None:
    """Refuse a loss that reaches the parameters by itself: the fallback would not see that part of the gradient."""
    leaves, spec = tree_flatten(output)
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        return
    with torch.enable_grad():
        losses = loss(tree_unflatten([leaf.detach() for leaf in leaves], spec), y)
    if losses.requires_grad and any(
        g is not None for g in torch.autograd.grad(losses.sum(), params, allow_unused=True)
    ):
        raise ValueError("loss must depend on the output and y alone, but it uses the model's parameters; a penalty on "
                         "weights needs no privacy: add its gradient to grad after backward")  # fmt: skip


def _terms_by_parameter(used: list) -> dict[int, object]:
    """Each parameter's term; several uses of one are merged."""
    found: dict[int, list] = {}
    with exact(used[0][1].device if used else None):
        for call, g in used:
            for param, term in call.terms(g):
                found.setdefault(id(param), []).append(term)
        return {key: merge(terms) for key, terms in found.items()}

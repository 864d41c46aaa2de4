"""One forward and one backward pass that learn everything about every example's gradient.

recording.py watches the forward pass, layers.py turns what it saw into terms, fallback.py handles what has no rule, and
trial.py finds out whether the examples stay apart.
"""

import contextlib
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from adadp.evaluation import per_example_losses
from adadp.privacy import fallback
from adadp.privacy.exact import exact
from adadp.privacy.recording import Recorder
from adadp.privacy.terms import Dense
from adadp.privacy.tied import merge
from adadp.privacy.trial import layout_of_one, mixes

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

    def terms(self, params: list[Tensor], x, y: Tensor, keep: Tensor | None) -> tuple[Tensor, dict[int, object]]:
        """Losses, shape (B,), and a term for each of ``params`` that was used, by the parameter's id.

        ``keep``: which examples are none of padding (None: all).
        """
        while True:
            ruled = [p for p in params if id(p) not in self.without_rule]
            tried = self._try(ruled, x, y, keep)
            losses, terms, strange = self._forward_backward(ruled, x, y, tried)
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

    def _forward_backward(self, ruled: list[Tensor], x, y: Tensor, tried: tuple) -> tuple[Tensor, dict, set[int]]:
        """Losses, terms by parameter, and the ids of parameters that turned out to need the fallback."""
        with torch.set_grad_enabled(bool(ruled)):
            with Recorder(ruled) as recorder:
                output = fallback.call(self.model, x)
            losses = per_example_losses(self.loss, output, y, len(y))
        if not losses.requires_grad:
            return losses, {}, set()
        calls = recorder.calls
        found = torch.autograd.grad(losses, [c.edge for c in calls] + ruled, torch.ones_like(losses), allow_unused=True)
        strange = {id(p) for p, g in zip(ruled, found[len(calls) :], strict=True) if g is not None}
        if strange:
            _refuse_penalty(self.loss, output, y, ruled)
        used = [(c, g) for c, g in zip(calls, found, strict=False) if g is not None]
        strange |= self._strange(used, ruled, len(y), tried, bool(strange))
        return losses, {} if strange else _terms_by_parameter(used), strange

    def _strange(self, used, ruled, size: int, tried: tuple[set, bool, bool], others: bool) -> set[int]:
        """Ids of parameters whose layers do not see the examples, in their order, in the first dimension."""
        known, random, mixing = tried
        if mixing:
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

    def _try(self, ruled: list[Tensor], x, y: Tensor, keep: Tensor | None) -> tuple[set, bool, bool]:
        """What trial.py finds, once for every shape of input: layouts of one example, randomness, mixing.

        A trial that could not see whether examples mix is made again at the next step: where a gradient was zero, or
        the few were all alike, as padding is.
        """
        key, few = self._situation(ruled, x), min(FEW, len(y))
        known = few < 2 or (few, *key) in self._mixing
        if not known or key not in self._layouts:
            _refuse_recording()
        if key not in self._layouts:
            self._layouts[key] = layout_of_one(self.model, ruled, x)
        if known:
            return *self._layouts[key], self._mixing.get((few, *key), False)
        first = slice(0, few) if keep is None or keep.is_meta else keep.sort(descending=True, stable=True)[1][:few]
        part = fallback.part(x, first), y[first]
        with _uncompiled():
            mixing, seen = mixes(self.model, self.loss, ruled, *part, self._layouts[key])
        if seen and (y.is_meta or any(bool((t[1:] != t[:1]).any()) for t in fallback.leaves(part[0]))):
            self._mixing[few, *key] = mixing
        return *self._layouts[key], mixing

    def _situation(self, ruled, x) -> tuple:
        """What decides which layers run, and how: the parameters, the modules' modes, the inputs' shapes and types."""
        modes = tuple(module.training for module in self.model.modules())
        return (tuple(map(id, ruled)), modes, *((t.shape[1:], t.dtype) for t in fallback.leaves(x)))


def _refuse_recording() -> None:
    """A trial reads values, which nobody can while a CUDA graph is recorded."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "the model has to be tried out before a CUDA graph is recorded: call backward a few times with batches of "
            "this shape, and take a step where a layer's gradient is zero (a last layer of zeros?), for only a "
            "gradient shows whether examples stay apart"
        )


def _uncompiled():
    """A compiled model has only one backward pass to give; a trial takes two, and runs the model as it was written."""
    if "torch._dynamo" in sys.modules:
        return torch.compiler.set_stance("force_eager")
    return contextlib.nullcontext()


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

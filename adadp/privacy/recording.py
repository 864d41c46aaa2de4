"""Watching a model's forward pass: which operations consumed which parameters, without touching the model.

A ``TorchFunctionMode`` sees every torch function that the forward pass calls. Where a known layer function
(``F.linear``, ``F.conv2d``, ...) takes one of the model's parameters, it is called with the parameter detached, and its
input and the place of its output in the graph are written down. The backward pass then asks for gradients at those
places only, so no weight gradient is computed in vain, and no hook or attribute is ever left on the model. What reaches
a parameter on another way (a bare parameter in an expression, an unknown layer) shows up as its ordinary gradient.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from adadp.privacy.layers import RULES


@dataclass
class Call:
    """One call: the function, its arguments, the parameters among them, where the gradient of its output arrives."""

    func: object
    args: tuple
    kwargs: dict
    params: dict[str, Tensor]
    edge: object
    version: int

    @property
    def input(self) -> Tensor:
        """The layer's input."""
        return self.args[0] if self.args else self.kwargs["input"]

    @property
    def layout(self) -> tuple:
        """What must not depend on the batch: which parameters, and the input's shape without its first dimension."""
        return (*map(id, self.params.values()), self.input.shape[1:])

    def terms(self, g: Tensor) -> list[tuple[Tensor, object]]:
        """(parameter, term) pairs, given the gradient with respect to the output."""
        if self.input._version != self.version:
            raise RuntimeError("the input of a layer was changed in place after the layer had used it; "
                               "write the operation out of place")  # fmt: skip
        makers = RULES[self.func][1](g, *self.args, **self.kwargs)
        return [(param, makers[name]()) for name, param in self.params.items()]


class Recorder(TorchFunctionMode):
    """Records the calls that use the ``wanted`` parameters while it is entered.

    With ``differentiable`` only those that gradients flow through: a part of a model may run under ``no_grad``.
    """

    def __init__(self, wanted: list[Tensor], *, differentiable: bool = True):
        super().__init__()
        self.wanted, self.differentiable = {id(p) for p in wanted}, differentiable
        self.calls: list[Call] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if (
            func in (F.embedding, F.embedding_bag)
            and (args[3] if len(args) > 3 else kwargs.get("max_norm")) is not None
        ):
            raise ValueError(
                "model: an embedding is called with max_norm, which rescales the rows that the data look up, without "
                "noise; use max_norm=None"
            )
        if func is torch.autograd.grad and not _transformed():
            raise ValueError(
                "model: the forward pass calls torch.autograd.grad, and what that does with the parameters cannot be "
                "followed; use torch.func.grad there"
            )
        if func not in RULES or not RULES[func][2](*args, **kwargs) or _transformed():
            return func(*args, **kwargs)
        return self._layer(func, args, kwargs)

    def _layer(self, func, args, kwargs):
        """Call the layer with its parameters detached and write the call down."""
        params, plain, plain_kw = {}, list(args), dict(kwargs)
        for name, place in RULES[func][0].items():
            value = args[place] if place < len(args) else kwargs.get(name)
            if id(value) in self.wanted:
                params[name] = value
                # It still asks for a gradient, so that what is saved for the backward pass is what a checkpointed block
                # saves when it runs again without this mode; nobody wants that gradient, so it is never computed.
                other = value.detach().requires_grad_()
                (plain, plain_kw)[place >= len(args)][place if place < len(args) else name] = other
        out = func(*plain, **plain_kw)
        if not params:
            return out
        edge = None
        if torch.is_grad_enabled():
            if out._base is not None:
                out = _Root.apply(out, _TOKEN)
            edge = torch.autograd.graph.get_gradient_edge(out)
        elif self.differentiable:
            return out
        call = Call(func, args, kwargs, params, edge, 0)
        call.version = call.input._version
        self.calls.append(call)
        return out


def _transformed() -> bool:
    """Whether one of torch.func's transforms is at work, which calls by itself what it then differentiates."""
    try:
        torch.empty(0).requires_grad_()
    except RuntimeError:  # forbidden there
        return True
    return False


_TOKEN = torch.zeros((), requires_grad=True)  # makes a root need a gradient; receives none


class _Root(torch.autograd.Function):
    """The same values as a graph node of their own, no copy.

    An output that is a view needs one because a later in-place operation (``ReLU(inplace=True)``) would move it to
    another place in the graph.
    """

    @staticmethod
    def forward(ctx, out, token):
        return out.data

    @staticmethod
    def backward(ctx, grad):
        return grad, None

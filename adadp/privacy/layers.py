"""Layer functions whose per-example gradients are known from their input and the gradient of their output.

A rule takes ``g``, the gradient of the loss with respect to the output, and then the function's own arguments; it
returns for each parameter a function that makes its term (terms.py). The first dimension counts examples.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from adadp.privacy.convolution import convolution
from adadp.privacy.lookup import Lookup
from adadp.privacy.terms import Dense, Outer


def linear(g: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> dict[str, Callable]:
    """Terms of ``F.linear``: any number of dimensions between the first and the last."""
    a = input if input.dim() == 2 else input.reshape(len(input), -1, input.shape[-1])
    g = g if g.dim() == 2 else g.reshape(len(g), -1, g.shape[-1])
    return {
        "weight": lambda: Outer(a.to(weight.dtype), g.to(weight.dtype)),
        "bias": lambda: Dense((g if g.dim() == 2 else g.sum(1)).to(bias.dtype)),
    }


def embedding(g: Tensor, input: Tensor, weight: Tensor, padding_idx=None, *_, **__) -> dict[str, Callable]:
    """Terms of ``F.embedding``; the options that cannot be private were refused with the model."""
    if padding_idx is not None:
        g = g.masked_fill((input == padding_idx % len(weight)).unsqueeze(-1), 0)
    ids = input.reshape(len(input), -1)
    return {"weight": lambda: Lookup(ids, g.reshape(*ids.shape, -1).to(weight.dtype), len(weight))}


def layer_norm(g: Tensor, input: Tensor, normalized_shape, weight=None, bias=None, eps=1e-5) -> dict[str, Callable]:
    """Terms of ``F.layer_norm``: scale and shift act on every position alike."""
    middle = tuple(range(1, g.dim() - len(normalized_shape)))
    return {
        "weight": lambda: Dense(_sum(g * F.layer_norm(input, normalized_shape, None, None, eps), middle, weight)),
        "bias": lambda: Dense(_sum(g, middle, bias)),
    }


def group_norm(g: Tensor, input: Tensor, num_groups, weight=None, bias=None, eps=1e-5) -> dict[str, Callable]:
    """Terms of ``F.group_norm``: one scale and one shift a channel."""
    places = tuple(range(2, g.dim()))
    return {
        "weight": lambda: Dense(_sum(g * F.group_norm(input, num_groups, None, None, eps), places, weight)),
        "bias": lambda: Dense(_sum(g, places, bias)),
    }


def _sum(values: Tensor, dims: tuple[int, ...], param: Tensor) -> Tensor:
    """Sum over ``dims`` in the parameter's type."""
    return values.sum(dims, dtype=param.dtype) if dims else values.to(param.dtype)


def _map(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether ``F.linear`` has a matrix and a bias for each output; a vector or a shared bias has other gradients."""
    return weight.dim() == 2 and (bias is None or bias.numel() == len(weight))


def _batched(input: Tensor, weight: Tensor, *_, **__) -> bool:
    """Whether a convolution's input has a first dimension for examples."""
    return input.dim() == weight.dim()


def _always(*_, **__) -> bool:
    """No form of the arguments is special."""
    return True


# Function -> (where weight and bias stand among its arguments, rule, whether the rule is made for such arguments).
# What other functions and forms use goes to the fallback.
_FIRST, _LATER = {"weight": 1, "bias": 2}, {"weight": 2, "bias": 3}
RULES: dict[Callable, tuple[dict[str, int], Callable, Callable]] = {
    F.linear: (_FIRST, linear, _map),
    F.conv1d: (_FIRST, convolution, _batched),
    F.conv2d: (_FIRST, convolution, _batched),
    F.conv3d: (_FIRST, convolution, _batched),
    F.embedding: ({"weight": 1}, embedding, _always),
    F.layer_norm: (_LATER, layer_norm, _always),
    F.group_norm: (_LATER, group_norm, _always),
}

"""What has no ghost-norm rule: gradients of single examples by vmap or a loop, and the models that are refused.

Also the few helpers that both ways share: how a model is called and what a batch of inputs is.
"""

import contextlib
import warnings
from collections.abc import Callable, Mapping
from textwrap import shorten

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DistributedDataParallel

from adadp.evaluation import per_example_losses


def check_model(model: nn.Module) -> None:
    """Refuse modules whose training cannot be private, or whose gradient cannot be taken one example at a time.

    Raises:
        ValueError: names the module, the reason and the usual replacement.
    """
    for name, module in model.named_modules():
        reason = None
        if isinstance(module, _InstanceNorm):
            if module.track_running_stats and module.training:
                reason = (
                    "keeps running statistics of the data without noise; use track_running_stats=False or nn.GroupNorm"
                )
        elif isinstance(module, _BatchNorm):
            if module.training or module.running_mean is None:
                reason = ("mixes the examples of a batch, so that no example's influence can be bounded; replace it by "
                          "nn.GroupNorm, or freeze its statistics with .eval()")  # fmt: skip
        elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            reason = _embedding_reason(module)
        elif isinstance(module, DistributedDataParallel):
            reason = ("averages gradients over processes in loss.backward(), which does not run here, so the copies of "
                      "the model would drift apart; train in one process, with model.module")  # fmt: skip
        if reason:
            raise ValueError(f"model: {type(module).__name__} at {name or 'the top'!r} {reason}")


def trainable(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters that get a gradient, and those that do not.

    Raises:
        ValueError: one of them is in half precision, or shared out.
    """
    params, frozen = [], []
    for p in model.parameters():
        (params if p.requires_grad else frozen).append(p)
    for p in params:
        if hasattr(p, "full_tensor"):
            raise ValueError("model: a parameter is sharded over processes (a DTensor), of which none sees the norm of "
                             "an example's whole gradient; train in one process")  # fmt: skip
        if p.dtype not in (torch.float32, torch.float64):
            why = "rounding would break the bound on their norm; keep parameters in float32 and use torch.autocast"
            if p.is_complex():
                why = "they are made of real numbers; keep real and imaginary parts as parameters in float32"
            raise ValueError(f"model: a parameter of type {p.dtype} cannot carry private gradients, since {why}")
    return params, frozen


def _embedding_reason(module) -> str | None:
    """Why an embedding is refused, or None."""
    if module.max_norm is not None:  # a frozen one too
        return "has max_norm, which rescales the rows that the data look up, without noise; use max_norm=None"
    if not module.weight.requires_grad:
        return None
    if module.sparse:
        return "has sparse=True, but noise falls on every row, so the gradient is dense; use sparse=False"
    if module.scale_grad_by_freq:
        return "has scale_grad_by_freq=True, which mixes the examples of a batch; use scale_grad_by_freq=False"
    return None


def call(model: nn.Module, x):
    """The model's output: a tuple or list is passed on as positional, a dictionary as keyword arguments."""
    if isinstance(x, (tuple, list)):
        return model(*x)
    return model(**x) if isinstance(x, Mapping) else model(x)


def leaves(x) -> list[Tensor]:
    """The tensors of an input."""
    found = list(x.values()) if isinstance(x, Mapping) else list(x) if isinstance(x, (tuple, list)) else [x]
    if not found or not all(isinstance(t, Tensor) and t.dim() for t in found):
        raise TypeError("x must be a tensor with a batch dimension, or a tuple, list or dictionary of such tensors")
    return found


def part(x, index: slice | Tensor):
    """The examples ``index`` of an input."""
    if isinstance(x, Mapping):
        return {key: value[index] for key, value in x.items()}
    return [value[index] for value in x] if isinstance(x, (tuple, list)) else x[index]


def batch_size(x, y: Tensor, mask: Tensor | None) -> int:
    """The common length of everything; ValueError names what differs."""
    sizes = {len(t) for t in leaves(x)}
    if len(sizes) > 1:
        raise ValueError(f"x: its tensors hold different numbers of examples: {sorted(sizes)}")
    size = sizes.pop()
    if not isinstance(y, Tensor) or not y.dim():
        kind = "one number" if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"y must be a tensor with a batch dimension, got {kind}")
    if len(y) != size:
        raise ValueError(f"y holds {len(y)} examples and x holds {size}")
    if mask is not None and not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a bool tensor of shape ({size},), got {type(mask).__name__}")
    if mask is not None and (mask.shape != (size,) or mask.dtype != torch.bool):
        raise ValueError(f"mask must be a bool tensor of shape ({size},), got {mask.dtype} {tuple(mask.shape)}")
    return size


def places(model: nn.Module, params: dict[str, Tensor]) -> dict[str, str]:
    """Where a model holds the named parameters: place -> name, each module once, whatever the number of its names.

    For ``functional_call``, which ties parameters by their names: of a module with two names it would put back, after
    the call, what it had put there itself under the other one.
    """
    names = {id(p): name for name, p in params.items()}
    return {
        f"{prefix}.{name}" if prefix else name: names[id(p)]
        for prefix, module in model.named_modules()
        for name, p in module._parameters.items()
        if id(p) in names
    }


def per_example_gradients(
    model: nn.Module, loss: Callable, params: dict[str, Tensor], x, y: Tensor
) -> dict[str, Tensor]:
    """Per-example gradients of the named parameters, each (B, *parameter): by vmap(grad), or, where an operation
    cannot be batched, by a loop over the examples, with a warning, because that is slower still.
    """
    tensors, everything = leaves(x), dict(model.named_parameters())
    held = places(model, everything)

    def one_loss(values, others, y_one, *x_one):
        batch = [t.unsqueeze(0) for t in x_one]
        if isinstance(x, Mapping):
            args, kwargs = (), dict(zip(x, batch, strict=True))
        else:
            args, kwargs = tuple(batch), {}
        values = values | others
        everywhere = {place: values[name] for place, name in held.items() if name in values}
        output = functional_call(model, everywhere, args, kwargs, tie_weights=False)
        return per_example_losses(loss, output, y_one.unsqueeze(0), 1).squeeze(0)

    values = {name: p.detach() for name, p in params.items()}
    shared = vmap(grad(one_loss), in_dims=(None, None, 0, *[0] * len(tensors)), randomness="different")
    try:
        return shared(values, {}, y, *tensors)
    except RuntimeError as error:
        reason = shorten(str(error), 160, placeholder=" …")  # the error itself would keep its tensors in memory
    # Some operations (GRU) write into a tensor made from a parameter: all must be batched from the start.
    copies = {name: p.detach().expand(len(y), *p.shape) for name, p in everything.items()}
    others = {name: copies.pop(name) for name in everything.keys() - values.keys()}
    with contextlib.suppress(RuntimeError):
        return vmap(grad(one_loss), randomness="different")(copies, others, y, *tensors)
    found = _one_by_one(one_loss, values, y, *tensors)
    warnings.warn(
        "model: the examples of a batch run one after the other, which is slow, because of an operation that uses "
        f"{_few(list(params))}: {reason}",
        stacklevel=2,
    )
    return found


def _one_by_one(one_loss: Callable, values: dict[str, Tensor], *data: Tensor) -> dict[str, Tensor]:
    """Gradients of one example after the other, for what vmap cannot batch, such as operations that look at values."""
    found = {name: value.new_zeros(len(data[0]), *value.shape) for name, value in values.items()}
    values = {name: value.requires_grad_() for name, value in values.items()}  # detached: no hook of a parameter is met
    with torch.enable_grad():
        for i, example in enumerate(zip(*data, strict=True)):
            if not (value := one_loss(values, {}, *example)).requires_grad:
                continue
            grads = torch.autograd.grad(value, list(values.values()), allow_unused=True)
            for rows, g in zip(found.values(), grads, strict=True):
                if g is not None:
                    rows[i] = g
    return found


def _few(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

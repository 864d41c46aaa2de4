"""Whether clients can be trained all at once: what the model, the loss and the optimizers have to be like.

Nothing is guessed from the types of modules: two made-up clients are run, and what happens is looked at.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from adadp.evaluation import per_example_losses
from adadp.federated.client import Loss
from adadp.optimizer import ADADP
from adadp.privacy.fallback import places

ELEMENTWISE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


class NotStackable(ValueError):
    """Why clients cannot be trained all at once."""


def used_parameters(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> set[str]:
    """Names of the trainable parameters on which the loss depends, found out with two clients of two examples.

    Raises:
        NotStackable: the model draws random numbers, changes its buffers, or has an operation that cannot be stacked.
    """
    model = copy.deepcopy(model)
    stacks = {n: p.detach().expand(2, *p.shape).clone() for n, p in model.named_parameters() if p.requires_grad}
    leaves = {name: p.requires_grad_() for name, p in stacks.items()}
    versions = [b._version for b in model.buffers()]
    again = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
    try:
        losses, padded = (losses_of(model, loss, leaves, *(t.expand(2, *t.shape) for t in d)) for d in ((x, y), again))
        grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
    except (RuntimeError, ValueError, TypeError) as error:
        raise NotStackable(
            f"the model cannot be run for several clients at once ({str(error).splitlines()[0]})"
        ) from error
    if losses.shape != (2, len(x)):
        raise NotStackable(f"loss must return one value an example, shape ({len(x)},), got {tuple(losses.shape[1:])}")
    if versions != [b._version for b in model.buffers()]:
        raise NotStackable("the model changes its buffers while it trains")
    if not torch.allclose(losses, padded[:, : len(x)], rtol=1e-4, equal_nan=True):
        raise NotStackable("an example's loss depends on the rest of its batch (a batch norm does that)")
    return {name for name, g in zip(leaves, grads, strict=True) if g is not None}


def check_optimizers(optimizers: Sequence[torch.optim.Optimizer]) -> tuple:
    """What the optimizers have in common; learning rates are left out of it where each row has its own.

    Raises:
        NotStackable: of a kind that cannot be stacked, no longer new, or with different settings.
    """
    keys = [_settings(optimizer) for optimizer in optimizers]
    if any(key != keys[0] for key in keys):
        raise NotStackable("client_optimizer gives clients different settings")
    return keys[0]


def _settings(optimizer: torch.optim.Optimizer) -> tuple:
    """Kind and settings of an optimizer."""
    kind, groups = type(optimizer), optimizer.param_groups
    if kind is not ADADP and kind not in ELEMENTWISE:
        known = ", ".join(k.__name__ for k in (ADADP, *ELEMENTWISE))
        raise NotStackable(f"client_optimizer must give one of {known}, got {kind.__name__}")
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if optimizer.state or hooked or any("initial_lr" in g or g.get("frozen") for g in groups):
        raise NotStackable("client_optimizer must give a new optimizer, without state, hooks, scheduler or freeze()")
    if any(g.get("dampening") and g["momentum"] for g in groups):
        raise NotStackable("client_optimizer: dampening starts a momentum in a way of its own")
    apart = ("params", "param_names", "lr") if kind is ADADP else ("params", "param_names")
    settings = [tuple((n, str(v)) for n, v in sorted(g.items()) if n not in apart) for g in groups]
    return kind, *settings, *(len(g["params"]) for g in groups)


def losses_of(model: nn.Module, loss: Loss, stacks: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Loss of every client's every example, (K, B), by each client's own parameters."""
    held = places(model, {name: p for name, p in model.named_parameters() if name in stacks})

    def one(values, x_one, y_one):
        everywhere = {place: values[name] for place, name in held.items()}
        output = functional_call(model, everywhere, (x_one,), tie_weights=False)
        return per_example_losses(loss, output, y_one, len(y_one))

    return vmap(one)(stacks, x, y)

"""What an optimizer's parameter groups hold: learning rates, and the values that all groups share.

On a CPU they are plain numbers. Where reading a number would make the host wait for a device they are 0-dim tensors,
changed in place, so that a CUDA graph finds them. As everything lives in the groups, ``state_dict`` needs no help.
"""

import math

import torch
from torch import Tensor

from adadp.step_size import Scalar, number

CPU = torch.device("cpu")
FOREIGN = ("weight_decay", "momentum", "nesterov", "dampening")  # which groups of other optimizers have


def checked(group: dict, defaults: dict, shared: tuple[str, ...]) -> dict:
    """The group with its own lr, if it is valid.

    Raises:
        ValueError: naming lr, maximize, foreach, something shared that differs from ``defaults``, or what other
            optimizers take.
    """
    for name in shared:
        if group[name] != defaults[name]:
            raise ValueError(f"{name} is shared by all parameter groups: give it to the optimizer, not to a group")
    for name in FOREIGN:
        if group.get(name):
            instead = "; add weight_decay * p to p.grad before each step" if name == "weight_decay" else ""
            raise ValueError(f"{name}={group[name]!r} in a group: ADADP has none{instead}")
    if not isinstance(group["maximize"], bool):
        raise ValueError(f"maximize must be True or False, got {group['maximize']!r}")
    if group["foreach"] not in (None, True, False):
        raise ValueError(f"foreach must be True, False or None, got {group['foreach']!r}")
    lr = group["lr"]
    if not isinstance(lr, Tensor):
        return {**group, "lr": number("lr", lr, above=0)}
    if lr.numel() != 1 or not lr.is_floating_point():
        raise ValueError(f"lr must be a number or a floating-point tensor with one element, got {lr!r}")
    number("lr", lr.item(), above=0)
    return {**group, "lr": lr.detach().clone().reshape(())}


def complete(groups: list[dict], defaults: dict, shared: tuple[str, ...]) -> None:
    """Fill in what groups lack: from the first group, or else the defaults.

    Raises:
        ValueError: groups disagree in something that they share, or lr was set to something that is no learning rate.
    """
    for group in groups:
        for name, value in defaults.items():
            if name not in group and name != "differentiable":  # which torch adds to the defaults
                group[name] = groups[0].get(name, value)
        if not isinstance(group["lr"], Tensor) and not 0 <= group["lr"] < math.inf:
            raise ValueError(f"lr must be a finite number and not negative, got {group['lr']!r}")
    for group in groups[1:]:
        for name in shared:
            if group[name] != groups[0][name]:
                raise ValueError(f"{name} must be the same in all parameter groups")


def gradients(groups: list[dict], state: dict) -> list[tuple[dict, list[Tensor], list[Tensor]]]:
    """What to work on: for each group, device and type, the parameters that have a gradient, and their gradients.

    In phase 1, a gradient that only the first half had counts as zero.

    Raises:
        RuntimeError: for a sparse gradient.
    """
    work = []
    for group in groups:
        alike: dict = {}
        for p in group["params"]:
            grad = p.grad
            if grad is None and group["phase"] == 1 and "theta_l" in state.get(p, ()):
                grad = torch.zeros_like(p)
            if grad is None or grad.numel() == 0:
                continue
            if grad.layout != torch.strided:
                raise RuntimeError("ADADP takes dense gradients only: make the layer with sparse=False")
            params, grads = alike.setdefault((p.device, p.dtype), ([], []))
            params.append(p)
            grads.append(grad)
        work += [(group, *lists) for lists in alike.values()]
    return work


def unfit(p: Tensor) -> str:
    """Why a parameter cannot be adapted; empty if it can."""
    if not p.is_floating_point():
        return f"of {p.dtype}"
    return "sharded over processes (a DTensor), of which none sees the whole err" if hasattr(p, "full_tensor") else ""


def on_device(groups: list[dict]) -> bool:
    """Whether learning rates are tensors, or must be: beside other tensors, or where parameters are not on a CPU."""
    tensors = any(isinstance(group.get(name), Tensor) for group in groups for name in ("lr", "error"))
    return tensors or any(p.device != CPU for group in groups for p in group["params"])


def home(group: dict) -> torch.device:
    """Where a group's parameters are."""
    params = group["params"]
    return params[0].device if params else CPU


def to_device(groups: list[dict], names: tuple[str, ...]) -> None:
    """Make each group's lr a tensor beside its parameters, and each of ``names`` one tensor that all groups hold."""
    for group in groups:
        lr = group["lr"]  # a number, maybe a whole one, where it was set by hand
        group["lr"] = _tensor(lr if isinstance(lr, Tensor) else float(lr), home(group))
    for name in names:
        value = _tensor(groups[0][name], home(groups[0]))
        for group in groups:
            group[name] = value


def to_host(groups: list[dict]) -> None:
    """Make plain numbers of all tensors."""
    for group in groups:
        group.update({name: value.item() for name, value in group.items() if isinstance(value, Tensor)})


def write(groups: list[dict], **values) -> None:
    """Give values that all groups share."""
    for name, value in values.items():
        if isinstance(groups[0][name], Tensor):
            groups[0][name].copy_(value)
        else:
            for group in groups:
                group[name] = value


def scale_lr(groups: list[dict], factor: Scalar) -> None:
    """Multiply every learning rate by the same factor, up to the largest of its group; a shared tensor, once."""
    if isinstance(factor, Tensor):
        scaled: list[Tensor] = []
        for group in groups:
            lr = group["lr"]
            if not any(lr is other for other in scaled):
                largest = min(largest_lr(group["params"]), torch.finfo(lr.dtype).max)
                lr.mul_(factor.to(lr.device)).clamp_(max=largest)
                scaled.append(lr)
    else:
        for group in groups:
            group["lr"] *= factor
            if group["lr"] > 1e4:  # which float16 holds
                group["lr"] = min(group["lr"], largest_lr(group["params"]))


def largest_lr(params: list[Tensor]) -> float:
    """What all types of these parameters can hold: training that has broken down would let lr grow out of them."""
    return min((torch.finfo(dtype).max for dtype in {p.dtype for p in params}), default=math.inf)


def signed_lr(group: dict) -> Scalar:
    """The group's learning rate, negative if it climbs."""
    return -group["lr"] if group["maximize"] else group["lr"]


def select(condition: bool | Tensor, yes: Scalar, no: Scalar) -> Scalar:
    """``torch.where`` for tensors and for plain numbers."""
    return torch.where(condition, yes, no) if isinstance(condition, Tensor) else (yes if condition else no)


def copied(value):
    """A number, or a copy of a tensor: later steps change the original."""
    return value.clone() if isinstance(value, Tensor) else value


def _tensor(value, device: torch.device) -> Tensor:
    """A number as a 0-dim tensor on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    real = torch.float32 if device.type == "mps" else torch.float64
    return torch.tensor(value, device=device, dtype=torch.int64 if isinstance(value, int) else real)

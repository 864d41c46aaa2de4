"""What two runs must share to be one run, as plain values for a checkpoint, and what differs where they do not."""

import hashlib

import torch

# what training changes in an optimizer's groups; the rest is as it was given
_MOVING = {"params", "param_names", "lr", "initial_lr", "betas", "momentum"}
_MOVING |= {"phase", "frozen", "error", "accepted", "discarded", "zero_errors"}


def text(value) -> str:
    """A number or a word, alike for 2 and 2.0; on a device some numbers are tensors. A function gives its name.

    >>> text(2), text(torch.tensor(2.0)), text(None), text(text)
    ('2', '2', 'None', 'text')
    """
    if isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1):
        return f"{float(value):.9g}"
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return str(value)


def of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Class and settings of an optimizer as they were given, whatever schedules and steps have made of them since.

    >>> of_optimizer(torch.optim.SGD([torch.zeros(1)], lr=0.5))["lr"]
    '0.5'
    """
    running, defaults = _MOVING - {"lr", "betas", "momentum"}, getattr(optimizer, "defaults", {})
    moving = {id(v) for group in optimizer.param_groups for v in group.values() if isinstance(v, torch.Tensor)}
    given = {n: v for n, v in defaults.items() if n not in running and id(v) not in moving}
    own = [  # what a group was given for itself
        {n: text(v) for n, v in sorted(group.items()) if n in defaults and n not in _MOVING and v != defaults[n]}
        for group in optimizer.param_groups
    ]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    found = {"optimizer": type(optimizer).__name__, **{n: text(v) for n, v in given.items()}}
    return found | {"parameter groups": str((own, sizes))}


def checksum(*tensors: torch.Tensor) -> str:
    """Of values, wherever they are.

    >>> checksum(torch.zeros(3)) == checksum(torch.zeros(4))
    False
    """
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:32]


def differing(mine: dict, theirs: dict) -> list[str]:
    """Names of what differs, those inside nested dictionaries too; what an older version did not store counts as alike.

    >>> differing({"a": 1, "b": {"c": 2, "d": 3}, "e": 4}, {"a": 0, "b": {"c": 0, "d": 3}})
    ['a', 'c']
    """
    found: list[str] = []
    for name, value in mine.items():
        other = theirs.get(name, value)
        if isinstance(value, dict) and isinstance(other, dict):
            found += differing(value, other)
        elif other != value:
            found.append(name)
    return found

"""What the optimizer's tests share: parameters, gradients, and the ways through its arithmetic."""

import itertools

import pytest
import torch
from torch import nn

from adadp.multi_tensor import ADVANCE

SWITCHES = [
    dict(zip(("advance", "relative_error", "discard", "exponent"), values, strict=True))
    for values in itertools.product(ADVANCE, (True, False), (True, False), (1.0, 0.5))
]
PATHS = [{"lr": lr, "foreach": foreach} for lr in ("float", "tensor") for foreach in (None, True, False)]


def path_id(path):
    return f"{path['lr']} lr, foreach={path['foreach']}"


every_path = pytest.mark.parametrize("path", PATHS, ids=path_id)


def lr_of(path, lr=0.1):
    return torch.tensor(lr, dtype=torch.float64) if path["lr"] == "tensor" else lr


def params_of(*shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(2 * torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]


def feed(opt, *gradients):
    """One step for each list of gradients (None: no gradient)."""
    params = [p for group in opt.param_groups for p in group["params"]]
    for grads in gradients:
        for p, g in zip(params, grads, strict=True):
            p.grad = None if g is None else g.clone()
        opt.step()


def noise(params, count, seed=1):
    """``count`` lists of gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params] for _ in range(count)]


def values(params):
    return [p.detach().clone() for p in params]


def assert_same(one, other):
    """Equal bit for bit."""
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        assert torch.equal(a.isnan(), b.isnan())


def lr(opt, group=0):
    return float(opt.param_groups[group]["lr"])

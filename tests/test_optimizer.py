"""ADADP: the twin test against reference.py, the contract, and the faults that comparable optimizers had."""

import itertools
import math

import numpy as np
import pytest
import torch

from adadp import ADADP, reference

SWITCHES = list(itertools.product(("euler", "half_steps", "extrapolated"), (True, False), (True, False), (1.0, 0.5)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("tensor_lr", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("foreach", [None, True, False], ids=lambda f: f"foreach={f}")
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_twin(dtype, tensor_lr, foreach, switches):
    shapes = [(3, 4), (5,), (), (5000,)]
    names = dict(zip(("advance", "relative_error", "discard", "exponent"), switches, strict=True))
    numpy_type = {torch.float32: np.float32, torch.float64: np.float64}[dtype]
    rng = np.random.default_rng(0)
    sizes = np.cumsum([math.prod(s) for s in shapes])
    theta = (2 * rng.standard_normal(sizes[-1])).astype(numpy_type)
    gradients = rng.standard_normal((12, sizes[-1])).astype(numpy_type)

    def tensors(flat):
        return [torch.tensor(part).reshape(s) for part, s in zip(np.split(flat, sizes[:-1]), shapes, strict=True)]

    params = [torch.nn.Parameter(t) for t in tensors(theta)]
    lr = torch.tensor(0.3, dtype=torch.float64) if tensor_lr else 0.3
    optimizer = ADADP(params, lr, tol=10.0, foreach=foreach, **names)
    names["scaled"] = names.pop("relative_error")
    eta, rtol = 0.3, {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    for pair in gradients.reshape(6, 2, -1):
        stream = iter(pair)
        theta, eta, err, _ = reference.iteration(theta, eta, lambda _: next(stream), tol=10.0, **names)  # noqa: B023
        for gradient in pair:
            for p, g in zip(params, tensors(gradient), strict=True):
                p.grad = g
            optimizer.step()
        flat = torch.cat([p.detach().flatten() for p in params]).numpy()
        np.testing.assert_allclose(flat, theta, rtol=rtol, atol=rtol)
        assert float(optimizer.error) == pytest.approx(err, rel=rtol)
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(eta, rel=10 * rtol)

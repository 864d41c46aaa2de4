"""A small federation for tests, and the same for every machine that takes part."""

import torch
from torch import nn

import adadp
from adadp.federated import Task

PRIVACY = {"max_grad_norm": 1.0, "noise_multiplier": 2.0}
SIZES = (24, 40, 16, 32)


def net():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    for p in model.parameters():
        nn.init.uniform_(p, -0.5, 0.5, generator=torch.Generator().manual_seed(7))
    return model


def data(client):
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(SIZES[client], 4, generator=generator)
    return x, torch.randint(3, (len(x),), generator=generator)


def sgd(parameters, lr=0.1):
    return torch.optim.SGD(parameters, lr=lr)


def adaptive(parameters, lr=0.05):
    return adadp.ADADP(parameters, lr=lr, tol=0.1, discard=True)


def make(**choices):
    settings = dict(model=net, data=data, clients=3, client_optimizer=adaptive, batch_size=4, seed=3)
    return Task(**settings | {"test_data": lambda: data(3)} | choices)

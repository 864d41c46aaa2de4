"""The weighted mean of models: what the server of federated averaging does."""

import math
from collections.abc import Mapping, Sequence

import torch

State = dict[str, torch.Tensor]


def average(states: Sequence[Mapping[str, torch.Tensor]], weights: Sequence[float]) -> State:
    """The weighted mean of model states, summed in double precision in the order given.

    Integer buffers (counters) are taken from the first state.

    Args:
        states: one state_dict a client, equal names, shapes and dtypes.
        weights: not negative, not all zero; scaled to sum one.

    Raises:
        ValueError: no state, other names, shapes or dtypes, or weights that cannot be scaled.

    >>> average([{"w": torch.tensor(2.0)}, {"w": torch.tensor(-1.0)}], [1, 3])
    {'w': tensor(-0.2500)}
    """
    if len(states) == 0 or len(states) != len(weights):
        raise ValueError(f"states and weights must be equally many and at least one, got {len(states)}, {len(weights)}")
    total = float(sum(weights))
    if not 0 < total < math.inf or min(weights) < 0:
        raise ValueError(f"weights must be finite, must not be negative and not all zero, got {list(weights)}")
    first = states[0]
    for state in states[1:]:
        if state.keys() != first.keys() or any(_kind(state[name]) != _kind(value) for name, value in first.items()):
            raise ValueError("states must have the same names and shapes, and the same dtypes")
    mean: State = {}
    for name, value in first.items():
        if not (value.is_floating_point() or value.is_complex()):
            mean[name] = value.clone()
            continue
        acc = torch.zeros_like(value, dtype=torch.complex128 if value.is_complex() else torch.float64)
        for state, weight in zip(states, weights, strict=True):
            acc.add_(state[name], alpha=weight / total)
        mean[name] = acc.to(value.dtype)
    return mean


def _kind(value: torch.Tensor) -> tuple:
    """What two tensors must share to be averaged."""
    return value.shape, value.dtype

"""What federated averaging accepts as arguments."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from adadp.privacy import arguments

PRIVACY = {"max_grad_norm", "noise_multiplier", "clipping", "max_physical_batch_size"}


def check_settings(privacy, *, reduction, **values) -> None:
    """Refuse settings with which nothing can be run, naming them.

    Raises:
        ValueError, TypeError: see :class:`adadp.federated.FederatedAveraging`.
    """
    arguments.function("client_optimizer", values["client_optimizer"], "parameters -> optimizer")
    arguments.function("loss", values["loss"], "(output, y) -> one value an example")
    for name, low in (("batch_size", 1), ("local_epochs", 1), ("trace", 0)):
        arguments.count(name, values[name], low=low)
    arguments.real("participation", values["participation"], high=1, open_low=True)
    arguments.flag("keep_lr", values["keep_lr"])
    arguments.delta(values["delta"])
    arguments.choice("reduction", reduction, ("mean", "sum"))
    if privacy is not None:
        _check_privacy(privacy)
        if reduction != "mean":
            raise ValueError("reduction='sum' has no meaning with privacy: private gradients are averaged")


def clients_data(clients) -> list[tuple[Tensor, Tensor]]:
    """The examples of each client, as tensors.

    Raises:
        ValueError: it is no list, there is no client, or one's data are refused by :func:`pair`.
    """
    if not isinstance(clients, Sequence) or isinstance(clients, str):
        hint = "; give list(clients.values())" if isinstance(clients, dict) else ""
        raise ValueError(f"clients must be a list with the data of each client, got {type(clients).__name__}{hint}")
    if len(clients) == 0:
        raise ValueError("clients must hold at least one (x, y)")
    return [pair(f"clients[{number}]", data) for number, data in enumerate(clients)]


def pair(name: str, data, must: str = "must be") -> tuple[Tensor, Tensor]:
    """Examples and labels as two tensors of one length.

    Args:
        name: what to call them in an error.
        data: (x, y), tensors or numpy arrays (which are copied), or a TensorDataset, whose first two tensors count.
        must: what goes before the hint in an error.

    Raises:
        ValueError: something else; no examples, or not as many labels. In one line that begins with ``name``.
    """
    parts = data.tensors[:2] if isinstance(data, TensorDataset) else data
    if (
        not isinstance(parts, tuple | list)
        or len(parts) != 2
        or not all(isinstance(p, Tensor | np.ndarray) for p in parts)
    ):
        raise ValueError(
            f"{name} {must} (x, y), two tensors or numpy arrays, or a TensorDataset of them, got {_described(data)}"
        )
    x, y = (_tensor(name, part) for part in parts)
    if x.dim() == 0 or y.dim() == 0:
        raise ValueError(f"{name} {must} rows of examples and labels, got a single number")
    if len(x) == 0:
        raise ValueError(f"{name} has no data: leave it out")
    if len(x) != len(y):
        raise ValueError(f"{name} has {len(x)} inputs but {len(y)} labels")
    return x, y


def _tensor(name: str, part: Tensor | np.ndarray) -> Tensor:
    """A tensor; an array is copied, since torch takes none that is read-only or runs backwards."""
    if isinstance(part, Tensor):
        return part
    try:
        return torch.from_numpy(np.array(part, order="C"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} holds an array of {part.dtype}, which is no type of torch: convert it") from error


def _described(data) -> str:
    """What was given instead of a pair."""
    kind = type(data).__name__
    if not isinstance(data, tuple | list):
        return kind
    return f"{kind} of {len(data)} ({', '.join(type(part).__name__ for part in data[:3])}{', ...' * (len(data) > 3)})"


def _check_privacy(privacy) -> None:
    """Known keywords only; their values are those of :class:`adadp.PrivateGradient`, which checks the rest."""
    if set(privacy) - PRIVACY:
        raise ValueError(f"privacy takes {', '.join(sorted(PRIVACY))}, got {', '.join(sorted(privacy))}")
    if not {"max_grad_norm", "noise_multiplier"} <= set(privacy):
        raise ValueError("privacy needs max_grad_norm and noise_multiplier")
    arguments.noise_multiplier(privacy["noise_multiplier"])
    arguments.max_grad_norm(privacy["max_grad_norm"])

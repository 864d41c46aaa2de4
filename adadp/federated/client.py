"""What one client does in one round: an ordinary training loop on its own data.

Both engines call this function: the loop in one process (:mod:`adadp.federated.rounds`) and real clients on a network.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from adadp.evaluation import Loss, per_example_losses
from adadp.privacy.gradient import PrivateGradient
from adadp.privacy.sampling import PoissonSampling, ShuffledPartition


@dataclass(frozen=True)
class ClientReport:
    """What a client tells about its round, besides its weights.

    Attributes:
        examples: size of its data, the weight in the average.
        steps: gradients taken.
        lr: learning rate at the end (of the first parameter group).
        error: last step-doubling error; None for optimizers that have none.
        accepted, discarded: iterations kept and thrown away; 0 for optimizers that do not count them.
        lrs: learning rate after each gradient of the round, thinned to at most ``trace`` values.
        epsilon: what a private client on a machine of its own has spent by its own ledger; else None.
    """

    examples: int
    steps: int
    lr: float
    error: float | None = None
    accepted: int = 0
    discarded: int = 0
    lrs: list[float] = field(default_factory=list)
    epsilon: float | None = None


def draw_seed(generator: torch.Generator | None) -> int:
    """The one number on which all draws of a federation depend."""
    return int(torch.randint(2**62, (), generator=generator))


def client_generator(seed: int, round_number: int, client: int) -> torch.Generator:
    """The source of randomness of one client in one round; it depends on these three numbers and nothing else.

    >>> client_generator(0, 1, 2).initial_seed() == client_generator(0, 1, 2).initial_seed()
    True
    """
    words = np.random.SeedSequence([seed, round_number, client]).generate_state(2, np.uint32)
    return torch.Generator().manual_seed((int(words[0]) << 31) ^ int(words[1]))


def client_update(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    *,
    batch_size: int,
    local_epochs: int,
    loss: Loss,
    generator: torch.Generator,
    gradient: PrivateGradient | None = None,
    reduction: str = "mean",
    trace: int = 0,
) -> ClientReport:
    """Train ``model`` in place for ``local_epochs`` on one client's data.

    An ADADP iteration takes two batches. Where their number is odd the last iteration stays open: the client goes back
    to where that iteration began, so that it never sends a half step.

    Args:
        model: the client's copy of the global model; trained in place, its modules in the modes that they have.
        x, y: the client's examples, first dimension N, on the device of the model.
        optimizer: an optimizer over the parameters of ``model``.
        batch_size: examples a gradient; the last batch of an epoch may be smaller.
        local_epochs: passes over the data.
        loss: (output, y) -> one value an example, shape (B,).
        generator: source of the order of the examples.
        gradient: sets private gradients; then batches are drawn by Poisson sampling at rate batch_size / N, as the
            privacy ledger assumes, for as many steps as the epochs would have batches.
        reduction: "mean" or "sum" over the batch; only without ``gradient``, which always averages.
        trace: at most so many learning rates in the report.

    Reference: ClientUpdate in Algorithm 1, McMahan et al. (2017), with the update of Algorithm 2, Koskela & Honkela.
    """
    lrs = []
    for indices in client_batches(len(x), batch_size, local_epochs, generator, private=gradient is not None):
        indices = indices.to(x.device)
        if gradient is not None:
            gradient.backward(x[indices], y[indices])
        else:
            optimizer.zero_grad()
            losses = per_example_losses(loss, model(x[indices]), y[indices], len(indices))
            (losses.mean() if reduction == "mean" else losses.sum()).backward()
        optimizer.step()
        if trace:
            lrs.append(float(optimizer.param_groups[0]["lr"]))
    if getattr(optimizer, "phase", 0) == 1:
        optimizer.rewind()
    return _report(optimizer, len(x), num_steps(len(x), batch_size, local_epochs), thin(lrs, trace))


def num_steps(examples: int, batch_size: int, local_epochs: int) -> int:
    """Gradients of one client in one round."""
    return local_epochs * math.ceil(examples / batch_size)


def thin(values: list, most: int) -> list:
    """At most ``most`` of the values, evenly spread, first and last among them.

    >>> thin([0.0, 1.0, 2.0, 3.0, 4.0], 3)
    [0.0, 2.0, 4.0]
    """
    if len(values) <= most:
        return values
    return [values[i] for i in np.linspace(0, len(values) - 1, most).round().astype(int)]


def client_batches(
    examples: int, batch_size: int, local_epochs: int, generator: torch.Generator, *, private: bool = False
):
    """Index tensors of one client's round: a shuffled partition, or Poisson draws for a private client."""
    if not private:
        return ShuffledPartition(batch_size, local_epochs).batches(examples, generator)
    rate = min(1.0, batch_size / examples)
    return PoissonSampling(rate, num_steps(examples, batch_size, local_epochs)).batches(examples, generator)


def _report(optimizer: torch.optim.Optimizer, examples: int, steps: int, lrs: list[float]) -> ClientReport:
    """Read the optimizer's state; one synchronisation with the device at the end of the round."""
    error = getattr(optimizer, "error", None)
    return ClientReport(
        examples=examples,
        steps=steps,
        lr=float(optimizer.param_groups[0]["lr"]),
        error=None if error is None else float(error),
        accepted=int(getattr(optimizer, "accepted", 0)),
        discarded=int(getattr(optimizer, "discarded", 0)),
        lrs=lrs,
    )

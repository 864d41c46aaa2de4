"""What a federation agrees on before it starts, in one object that every machine makes for itself."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path

import torch
from torch import Tensor, nn

from adadp.federated.arguments import check_settings, pair
from adadp.federated.client import Loss, draw_seed
from adadp.federated.continuing import agreed
from adadp.federated.local import LocalTraining
from adadp.federated.rounds import FederatedAveraging
from adadp.privacy import arguments
from adadp.training import cross_entropy


@dataclass(frozen=True, kw_only=True)
class Task:
    """One federation: the model, how clients train, and where each of them finds its own data.

    Server and clients make it independently of each other, by the same code or by their own; what does not fit is
    noticed when a client joins. ``data`` is called on the machine of the client alone, ``test_data`` on the server's.

    Args:
        model: makes the global model with its initial weights (the server's count).
        data: client number -> (x, y), its examples, as for :class:`adadp.federated.FederatedAveraging`.
        clients: how many there are; they are numbered from 0.
        client_optimizer, batch_size, local_epochs, participation, keep_lr, loss, reduction, privacy, delta, trace: as
            for :class:`adadp.federated.FederatedAveraging`.
        test_data: makes (x, y) on which the server evaluates the global model after each round.
        seed: all draws depend on it.

    Raises:
        ValueError, TypeError: a bad argument, named.

    >>> data = lambda client: (torch.ones(4, 2) * client, torch.tensor([0, 1, 0, 1]))
    >>> sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    >>> task = Task(model=lambda: nn.Linear(2, 2), data=data, clients=3, client_optimizer=sgd, batch_size=2)
    >>> task.in_process(device="cpu").run(1, progress=False).rows[0]["clients"]
    [0, 1, 2]
    """

    model: Callable[[], nn.Module]
    data: Callable[[int], tuple[Tensor, Tensor]]
    clients: int
    client_optimizer: Callable[..., torch.optim.Optimizer]
    batch_size: int
    local_epochs: int = 1
    participation: float = 1.0
    keep_lr: bool = True
    loss: Loss = cross_entropy
    reduction: str = "mean"
    test_data: Callable[[], tuple[Tensor, Tensor]] | None = None
    privacy: Mapping[str, float] | None = None
    delta: float = 1e-5
    trace: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.model, nn.Module):
            raise TypeError("model must be a function () -> module, which makes it anew, got a module")
        arguments.function("model", self.model, "() -> module")
        arguments.function("data", self.data, "client number -> (x, y)")
        if self.test_data is not None:
            arguments.function("test_data", self.test_data, "() -> (x, y)")
        arguments.count("clients", self.clients, low=1)
        arguments.count("seed", self.seed, low=0)
        names = "client_optimizer batch_size local_epochs participation keep_lr loss trace delta reduction"
        check_settings(self.privacy, **{name: getattr(self, name) for name in names.split()})

    @property
    def training(self) -> LocalTraining:
        """The settings of local training."""
        return LocalTraining(
            self.client_optimizer, self.batch_size, self.local_epochs, self.loss, self.reduction, self.privacy,
            self.trace,
        )  # fmt: skip

    def draws(self) -> int:
        """The number that a loop in one process takes from a generator with this seed."""
        return draw_seed(torch.Generator().manual_seed(self.seed))

    def client_data(self, client: int) -> tuple[Tensor, Tensor]:
        """One client's examples.

        Raises:
            ValueError: there are none, not as many labels, or something else than a client's data may be.
        """
        return pair(f"data({client})", self.data(client), "must give")

    def evaluation_data(self) -> tuple[Tensor, Tensor] | None:
        """The examples on which the server evaluates, if there are any.

        Raises:
            ValueError: as for :meth:`client_data`.
        """
        return None if self.test_data is None else pair("test_data()", self.test_data(), "must give")

    def agreement(self, model: nn.Module) -> str:
        """What server and clients must have in common, as JSON; ``model`` is one that the task made."""
        own = {"clients": self.clients, "keep_lr": self.keep_lr, "delta": self.delta if self.privacy else None}
        return json.dumps(agreed(self.training, model) | own)

    def in_process(self, device: str | torch.device = "auto") -> FederatedAveraging:
        """The same federation in this process, on data that all lie here."""
        training = self.training
        return FederatedAveraging(
            self.model(), [self.client_data(client) for client in range(self.clients)], training.client_optimizer,
            batch_size=training.batch_size, local_epochs=training.local_epochs, participation=self.participation,
            keep_lr=self.keep_lr, loss=training.loss, reduction=training.reduction,
            test_data=self.evaluation_data(), privacy=training.privacy, delta=self.delta, trace=training.trace,
            generator=torch.Generator().manual_seed(self.seed), device=device,
        )  # fmt: skip


def load_task(name: str) -> Task:
    """The task that ``module:name`` stands for: a :class:`Task`, or a function without arguments that makes one.

    The folder where the program was started is looked through, too.

    Raises:
        ValueError: nothing of that name can be had, or it is no task.
    """
    module, _, attribute = name.partition(":")
    if not module.strip(".") or module.startswith(".") or not attribute:
        raise ValueError(f"task {name!r} must be MODULE:NAME, such as adadp.experiments.tasks:quick")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(import_module(module), attribute)
    except ImportError as error:
        own = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        hint = "start in the folder where that module lies" if own else f"{module} needs it"
        raise ValueError(f"task {name!r}: {error}; {hint}") from error
    except (AttributeError, TypeError) as error:
        raise ValueError(f"task {name!r}: {error}") from error
    if callable(found):
        try:
            signature(found).bind()
        except TypeError as error:
            raise ValueError(f"task {name!r} must be made without arguments, but: {error}") from error
    task = found() if callable(found) else found
    if not isinstance(task, Task):
        raise ValueError(f"task {name!r} must be an adadp.federated.Task, or make one, got {type(task).__name__}")
    return task

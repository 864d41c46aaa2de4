"""How every client of a federation trains: the same settings wherever the client is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adadp.evaluation import memory_format, placed
from adadp.federated.client import ClientReport, Loss, client_generator, client_update, num_steps
from adadp.optimizer import ADADP
from adadp.privacy.gradient import PrivateGradient
from adadp.sources import numbered_generator
from adadp.training import cross_entropy


@dataclass(frozen=True)
class LocalTraining:
    """The settings of local training, and one client's round with them.

    Attributes:
        client_optimizer, batch_size, local_epochs, loss, reduction, privacy, trace: as for
            :class:`adadp.federated.FederatedAveraging`.
    """

    client_optimizer: Callable[..., torch.optim.Optimizer]
    batch_size: int
    local_epochs: int = 1
    loss: Loss = cross_entropy
    reduction: str = "mean"
    privacy: Mapping[str, float] | None = None
    trace: int = 0

    def optimizer(self, model: nn.Module, lrs: Sequence[float] | None = None) -> torch.optim.Optimizer:
        """A new optimizer over a model; ``lrs``, one a parameter group, take the place of its own learning rates."""
        optimizer = self.client_optimizer(model.parameters())
        for group, lr in zip(optimizer.param_groups, lrs or (), strict=bool(lrs)):
            group["lr"] = torch.as_tensor(lr).to(group["lr"]) if torch.is_tensor(group["lr"]) else lr
        return optimizer

    def check_sizes(self, model: nn.Module, sizes: Mapping[int, int]) -> None:
        """Refuse clients whose round is one gradient where an iteration takes two: they would send back what they were
        given.

        Args:
            model: of which an optimizer can be made.
            sizes: examples by client number.

        Raises:
            ValueError: names them.
        """
        one = [c for c, size in sizes.items() if num_steps(size, self.batch_size, self.local_epochs) == 1]
        if one and isinstance(optimizer := self.optimizer(model), ADADP) and not optimizer.param_groups[0]["frozen"]:
            raise ValueError(
                f"clients {one}: a round of one batch is half an iteration of ADADP, which leaves the weights where "
                "they were: make batch_size smaller than each client's data, or local_epochs larger"
            )

    def gradient(self, model: nn.Module, examples: int, noise: torch.Generator | None) -> PrivateGradient | None:
        """The private gradient of a client with so many examples; its noise is drawn from ``noise``."""
        if self.privacy is None:
            return None
        size = min(self.batch_size, examples)
        return PrivateGradient(model, expected_batch_size=size, loss=self.loss, generator=noise, **dict(self.privacy))

    def rate(self, examples: int) -> float:
        """The rate at which a private client of that size samples its examples."""
        return min(1.0, self.batch_size / examples)

    def train(
        self, model: nn.Module, x: Tensor, y: Tensor, *, lrs: Sequence[float] | None, order: torch.Generator,
        noise: torch.Generator | None = None,
    ) -> tuple[ClientReport, list[float]]:  # fmt: skip
        """One client's round: train ``model``, which holds the global weights, in place.

        Args:
            model: the client's working copy.
            x, y: the client's examples, as :func:`place` lays them out.
            lrs: learning rates to begin with; None: the optimizer's own.
            order, noise: sources of the order of examples and of privacy noise. What layers draw (dropout) follows
                from the seed of ``order``, which it leaves as it is.

        Returns:
            The report, and the learning rates at the end, one a parameter group.
        """
        optimizer = self.optimizer(model, lrs)
        with drawing_from(order, x.device):
            report = client_update(
                model, x, y, optimizer, batch_size=self.batch_size, local_epochs=self.local_epochs, loss=self.loss,
                generator=order, gradient=self.gradient(model, len(x), noise), reduction=self.reduction,
                trace=self.trace,
            )  # fmt: skip
        return report, [float(group["lr"]) for group in optimizer.param_groups]


@contextmanager
def drawing_from(order: torch.Generator, device: torch.device) -> Iterator[None]:
    """Let torch's own generators draw what a seed decides, and put them back afterwards."""
    on_card = device.type == "cuda"
    with torch.random.fork_rng([device] if on_card else []):
        seed = client_generator(order.initial_seed(), 0, 0).initial_seed()  # not the order's own draws once more
        torch.default_generator.manual_seed(seed)
        if on_card:
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        yield


def noise_generator(seed: int, round_number: int, client: int, clients: int, device: torch.device) -> torch.Generator:
    """The source of one client's noise in one round of a simulation; never that of an order of examples."""
    return numbered_generator([seed, round_number, clients + client], device)


def place(x: Tensor, y: Tensor, model: nn.Module, device: torch.device) -> tuple[Tensor, Tensor]:
    """Examples on the device, of the types that :func:`adadp.train` gives them, in the memory layout of the model."""
    x, y = (part.to(device) for part in placed(model, x, y))
    return (x.contiguous(memory_format=memory_format(model)) if x.dim() == 4 else x), y

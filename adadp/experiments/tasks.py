"""The paper's federated experiment as a task for real clients: five pairs of classes, a third of the data at random."""

from functools import cache

from adadp.experiments.cases import federated_case
from adadp.experiments.federated_execution import task
from adadp.federated import Task

SIZES = ("quick", "laptop", "full-data", "paper")


def named(size: str, *, method: str = "adadp", percent: float = 33, lr: float | None = None, seed: int = 1) -> Task:
    """One case of the experiments as a task; arguments as for :func:`adadp.experiments.cases.federated_case`.

    >>> named("quick").clients
    5
    """
    from adadp.experiments.execution import dataset

    config = federated_case(method, percent=percent, lr=lr, seed=seed, size=size)
    return task(config, cache(lambda: dataset(config.dataset, None, 0)))


def quick() -> Task:
    """Five clients of 200 bundled images, the fully connected network: seconds a round."""
    return named("quick")


def laptop() -> Task:
    """Five clients of 2000 images of CIFAR-10, the convolutional network."""
    return named("laptop")


def paper() -> Task:
    """Five clients of 10000 images of CIFAR-10, the paper's size."""
    return named("paper")

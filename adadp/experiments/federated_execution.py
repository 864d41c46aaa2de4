"""Carrying out a federated run: data, split, rounds, and what of their history is stored."""

import math
import time
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import torch

from adadp import models
from adadp.data import Dataset
from adadp.experiments.configs import FederatedRun
from adadp.federated import FederatedAveraging, NoUsableClient, Task, split_by_groups

COLUMNS = ("round", "test_accuracy", "test_loss")
PER_CLIENT = ("lr", "error", "accepted", "discarded")
TRACED_ROUNDS = (1, 2, 3, 5, 10, 20, 40, 100, 200)
TRACE = 25  # learning rates kept of each traced round and client, where they change at all


def groups_of(config: FederatedRun) -> list[tuple[int, ...]]:
    """The classes of each client.

    >>> from adadp.experiments.federated import federated
    >>> groups_of(federated(random_fraction=0.0))[:2]
    [(1, 9), (0, 8)]
    """
    return [tuple(int(c) for c in group.split(",")) for group in config.groups.split("|")]


def held(data: Dataset, config: FederatedRun) -> torch.Tensor:
    """Indices of the examples that all clients hold together: the first of each class, equally many of each.

    Raises:
        ValueError: a class has too few examples.
    """
    groups = groups_of(config)
    chosen = []
    for group in groups:
        each = config.examples_per_client / len(group)
        for c in group:
            found = (data.y_train == c).nonzero().flatten()
            if each != int(each) or len(found) < each:
                raise ValueError(
                    f"examples_per_client={config.examples_per_client}: class {c} has {len(found)} examples, "
                    f"a client of {len(group)} classes needs {each:g} of each"
                )
            chosen.append(found[: int(each)])
    return torch.cat(chosen).sort().values


def task(config: FederatedRun, load: Callable[[], Dataset]) -> Task:
    """The federation of a config: initial weights, split and order from three streams of its seed.

    Args:
        config: of the run.
        load: gives the data set; called only where examples are needed.
    """
    from adadp.experiments.execution import build_optimizer

    weights, split, order = (int(s) for s in np.random.SeedSequence(config.seed).generate_state(3))

    @cache
    def parts() -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Which examples all clients hold together, and which of those each of them holds."""
        indices, groups = held(load(), config), groups_of(config)
        generator = torch.Generator().manual_seed(split)
        return indices, split_by_groups(load().y_train[indices], groups, config.random_fraction, generator)

    def own(client: int) -> tuple[torch.Tensor, torch.Tensor]:
        indices, clients = parts()
        mine = indices[clients[client]]
        return load().x_train[mine], load().y_train[mine]

    return Task(
        model=lambda: getattr(models, config.model)(generator=torch.Generator().manual_seed(weights)),
        data=own,
        clients=len(groups_of(config)),
        client_optimizer=lambda parameters: build_optimizer(config, parameters),
        batch_size=config.batch_size,
        local_epochs=config.local_epochs,
        keep_lr=config.keep_lr,
        reduction=config.reduction,
        test_data=lambda: (load().x_test, load().y_test),
        trace=TRACE if config.method == "adadp" else 0,
        seed=order,
    )


def build(config: FederatedRun, data: Dataset, device: str) -> FederatedAveraging:
    """The loop of a config in this process."""
    return task(config, lambda: data).in_process(device)


def run_federated(config: FederatedRun, *, device: str, checkpoint: Path | None, on_epoch: Callable) -> dict:
    """Run all rounds; accuracy after each, what every client reports, and the learning rates within some rounds.

    A run in which no client has finite weights any more is a result too (a grid of learning rates has an end where
    training breaks down): its rounds from there on count as guessing, and ``diverged`` names the first of them. Where
    single clients were left out of the average, ``refused`` names them by round, and None stands for what they report.
    """
    from adadp.experiments.execution import dataset

    data = dataset(config.dataset, None, 0)
    loop, found = build(config, data, device), {}
    try:
        known = {"checkpoint": checkpoint, "keep_checkpoint": True, "callbacks": [lambda **_: on_epoch()]}
        history = loop.run(config.rounds, progress=False, **known)
    except NoUsableClient as error:
        history, found = error.history, {"diverged": len(error.history.rows) + 1}
    rounds = [_of_all(row, len(groups_of(config))) for row in history.rows]
    done = rounds + [_guess(config, n) for n in range(len(history.rows) + 1, config.rounds + 1)]
    columns = COLUMNS + ("refused",) * any(row["refused"] for row in done)
    columns += PER_CLIENT if config.method == "adadp" else PER_CLIENT[:1]
    traced = [row for row in done if row.get("lrs") and row["round"] in (*TRACED_ROUNDS, config.rounds)]
    within = {"round": [row["round"] for row in traced], "lr": [row["lrs"] for row in traced]}
    rows = {name: [row[name] for row in done] for name in columns}
    return {"rows": rows, "within_rounds": within, "first_epoch": {}, "data": data.provenance} | found


def _of_all(row: dict, clients: int) -> dict:
    """A round with an entry for every client in its lists, None for those left out of the average."""
    lists = {name: dict(zip(row["clients"], row[name], strict=True)) for name in (*PER_CLIENT, "lrs") if row.get(name)}
    return row | {name: [known.get(client) for client in range(clients)] for name, known in lists.items()}


def _guess(config: FederatedRun, number: int) -> dict:
    """The row of a round in which there are no weights to speak of."""
    groups = groups_of(config)
    row = {"round": number, "test_accuracy": 1 / sum(map(len, groups)), "test_loss": None, "refused": []}
    return row | {"lr": [config.lr] * len(groups)} | {n: [None] * len(groups) for n in PER_CLIENT[1:]}


@lru_cache(maxsize=16)
def gradient_seconds(model: str, method: str, batch_size: int, device: str = "cpu") -> float:
    """Seconds of one gradient and one client step, measured now on made-up data: the fastest of three looks."""
    from adadp.experiments.federated import federated

    torch.set_num_threads(1)
    shape = (3, 32, 32) if model == "cifar_cnn" else (1, 28, 28)
    y = torch.arange(10).repeat_interleave(2 * batch_size)
    x = torch.randn(len(y), *shape, generator=torch.Generator().manual_seed(0))
    data = Dataset(x, y, x[:1], y[:1], name="synthetic", provenance="synthetic")
    lr = {} if method == "adadp" else {"lr": 1e-3}
    size = dict(examples_per_client=4 * batch_size, batch_size=batch_size, rounds=4)
    loop = build(federated(method, model=model, random_fraction=0.0, **lr, **size), data, device)
    looks = []
    for _ in range(3):
        started = time.perf_counter()
        loop.run(1, progress=False)
        looks.append((time.perf_counter() - started) / (5 * 4))
    return min(looks[1:])


def gradients(config: FederatedRun) -> int:
    """Gradients of all clients in all rounds."""
    steps = math.ceil(config.examples_per_client / config.batch_size) * config.local_epochs
    return config.rounds * len(groups_of(config)) * steps

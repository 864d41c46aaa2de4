"""Carrying out one run: from a config to the record that is stored.

Everything random comes from the config's seed: three independent streams for the initial weights, the noise and the
batches. The same config gives the same record on the same machine, whatever ran before it and whether or not it was
interrupted.
"""

import json
import math
import os
import platform
import re
import time
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from torch import nn

import adadp.data
from adadp import git, models
from adadp.checkpoint import write_atomic
from adadp.data import Dataset
from adadp.evaluation import pick_device
from adadp.experiments.configs import ADADP_FIELDS, Config, PrivateRun, TimingRun
from adadp.experiments.federated_execution import run_federated
from adadp.federated.client import thin as evenly
from adadp.optimizer import ADADP
from adadp.privacy import PoissonSampling, PrivateGradient, ShuffledPartition, epsilon
from adadp.training import AdaptThenDecay, train

INPUT_SHAPES = dict.fromkeys(("mnist_mlp", "mnist_logistic"), (1, 28, 28))
INPUT_SHAPES |= {"cifar_head": (1600,), "cifar_cnn": (3, 32, 32)}
FIRST_EPOCH_POINTS = 60
BEGUN = ".begun.json"  # what lies beside a checkpoint
COLUMNS = ("epoch", "steps", "test_accuracy", "test_loss", "lr", "error", "discarded")


def execute(config, *, device: str = "auto", checkpoint: Path | None = None, on_epoch: Callable | None = None) -> dict:
    """Carry a config out on one thread.

    Args:
        config: a run of a kind in :data:`EXECUTORS`.
        device: "auto" takes CUDA where there is one.
        checkpoint: file to continue from, and to leave behind: who has stored the record lets :func:`forget` delete it.
        on_epoch: called with no argument after every epoch (progress).

    Returns:
        the record: config, columns of rows, first epoch, data provenance, versions, device, seconds, commit; ``begun``
        holds the last three of where an interrupted run began, if they were others there.
    """
    torch.set_num_threads(1)
    device = pick_device(device).type if device == "auto" else device
    resumed, now = bool(checkpoint and Path(checkpoint).exists()), circumstances(device)  # others may commit meanwhile
    begun = _begun(Path(checkpoint), now, resumed) if checkpoint else now
    started = time.perf_counter()
    results = EXECUTORS[config.kind](config, device=device, checkpoint=checkpoint, on_epoch=on_epoch or (lambda: None))
    seconds = time.perf_counter() - started
    found = {"config": config.to_dict(), **results, "seconds": seconds, "resumed": resumed, **now}
    return found | ({"begun": begun} if begun != now else {})


def _begun(checkpoint: Path, now: dict, resumed: bool) -> dict:
    """The circumstances in which a run began, kept beside its checkpoint; those of now where nothing tells others."""
    beside = checkpoint.with_suffix(BEGUN)
    if not resumed:
        write_atomic(beside, json.dumps(now))
    try:
        return json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # an earlier version wrote the checkpoint
        return now


def forget(checkpoint: Path) -> None:
    """Remove a checkpoint and what was kept beside it, as far as they are there."""
    checkpoint.unlink(missing_ok=True)
    checkpoint.with_suffix(BEGUN).unlink(missing_ok=True)


def circumstances(device: str) -> dict:
    """What a number may depend on besides its config: versions, libraries preloaded under them, device, commit."""
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor() or platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    for package in ("adadp", "dp-accounting"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = adadp.__version__ if package == "adadp" else None
    if preloaded := os.environ.get("LD_PRELOAD"):
        versions["preloaded"] = " ".join(Path(name).name for name in re.split("[ :]+", preloaded.strip()))
    return {"versions": versions, "device": f"{device.split(':')[0]} ({name})", "commit": commit()}


@lru_cache
def commit() -> str | None:
    """The commit of the checkout the package is of, with "+" when tracked files differ; None outside a checkout."""
    folder = Path(__file__).parent
    head = git.answer(folder, "rev-parse", "HEAD") if git.tracks(Path(__file__)) else None
    return head and head + ("+" if git.answer(folder, "status", "--porcelain", "--untracked-files=no") else "")


@lru_cache(maxsize=2)
def dataset(name: str, features: str | None, holdout: int) -> Dataset:
    """The data of a config; with a holdout, that many training examples (always the same) become the test set."""
    data = adadp.data.load(name, features=features) if features else adadp.data.load(name)
    if not holdout:
        return data
    order = torch.randperm(len(data.y_train), generator=torch.Generator().manual_seed(0))
    kept, held = order[holdout:], order[:holdout]
    provenance = f"{data.provenance}; {holdout} training examples held out"
    parts = (data.x_train[kept], data.y_train[kept], data.x_train[held], data.y_train[held])
    return Dataset(*parts, name=data.name, provenance=provenance)


def provenance(config: Config) -> str:
    """Where the data of a run would come from here (features that are not kept yet are computed for it)."""
    return dataset(config.dataset, getattr(config, "features", None), getattr(config, "holdout", 0)).provenance


def build_model(name: str, init: str, generator: torch.Generator) -> nn.Module:
    """A network of the experiments with its initial weights drawn from the generator."""
    if name != "mnist_logistic":
        return getattr(models, name)(init=init, generator=generator)
    layer = nn.Linear(784, 10, bias=False)
    bound = 1 / math.sqrt(layer.in_features if init == "torch" else layer.out_features)
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    return nn.Sequential(nn.Flatten(), layer)


def build_optimizer(config: PrivateRun, parameters) -> torch.optim.Optimizer:
    """The optimizer of a config, every keyword spelled out."""
    if config.method == "adadp":
        return ADADP(parameters, lr=config.lr, **{name: getattr(config, name) for name in ADADP_FIELDS})
    if config.method == "adam":
        betas = (config.beta1, config.beta2)
        return torch.optim.Adam(parameters, lr=config.lr, betas=betas, eps=config.eps, fused=True)  # torch's fastest
    return torch.optim.SGD(parameters, lr=config.lr)


def build(config: PrivateRun, device: str) -> tuple[nn.Module, PrivateGradient, torch.optim.Optimizer, torch.Generator]:
    """Model, private gradient, optimizer and the generator of the batches, from three streams of the config's seed."""
    weights, noise, batches = (int(s) for s in np.random.SeedSequence(config.seed).generate_state(3))
    model = build_model(config.model, config.init, torch.Generator().manual_seed(weights)).to(device)
    gradient = PrivateGradient(
        model,
        max_grad_norm=config.max_grad_norm,
        noise_multiplier=config.noise_multiplier,
        expected_batch_size=config.expected_batch_size,
        clipping=config.clipping,
        generator=torch.Generator(device).manual_seed(noise),
    )
    optimizer = build_optimizer(config, model.parameters())
    return model, gradient, optimizer, torch.Generator().manual_seed(batches)


def sampling_of(config: PrivateRun, num_examples: int):
    """The sampler of a config; an epoch is round(N / |B|) batches."""
    if config.sampler == "shuffled":
        return ShuffledPartition(batch_size=config.expected_batch_size, epochs=config.epochs)
    steps = config.epochs * round(num_examples / config.expected_batch_size)
    return PoissonSampling(sample_rate=config.expected_batch_size / num_examples, steps=steps)


def run_private(config: PrivateRun, *, device: str, checkpoint: Path | None, on_epoch: Callable) -> dict:
    """Train privately; an evaluation, and epsilon under both accountants, after every epoch."""
    data = dataset(config.dataset, config.features, config.holdout)
    model, gradient, optimizer, batches = build(config, device)
    callbacks: list = [] if config.decay_from is None else [AdaptThenDecay(config.decay_from, config.decay_rate)]
    callbacks.append(lambda **_: on_epoch())
    history = train(
        model,
        data,
        optimizer,
        sampling=sampling_of(config, len(data.y_train)),
        gradient=gradient,
        delta=config.delta,
        evaluate_every=1,
        generator=batches,
        device=device,
        progress=False,
        callbacks=callbacks,
        checkpoint=checkpoint,
        keep_checkpoint=True,
    )
    rows = {name: [row.get(name) for row in history.rows] for name in COLUMNS}
    rate = config.expected_batch_size / len(data.y_train)
    for accountant in ("moments", "pld"):
        spent = epsilons(config.noise_multiplier, rate, tuple(rows["steps"]), config.delta, accountant)
        rows[f"epsilon_{accountant}"] = list(spent)
    return {"rows": rows, "first_epoch": thin(history.first_epoch), "data": data.provenance}


@lru_cache(maxsize=64)
def epsilons(sigma: float, rate: float, steps: tuple, delta: float, accountant: str) -> tuple[float, ...]:
    """Epsilon after each of these numbers of gradients under Poisson sampling at this rate (also for a partition,
    whose own epsilon it is not); runs that differ in nothing else share it."""
    if sigma == 0:
        return (math.inf,) * len(steps)
    known = dict(noise_multiplier=sigma, sample_rate=rate, delta=delta, accountant=accountant)
    return tuple(epsilon(steps=n, **known) for n in steps)


def thin(points: list[dict]) -> dict:
    """At most 60 of the first epoch's iterations as columns, first and last among them."""
    kept = evenly(points, FIRST_EPOCH_POINTS)
    return {name: [point[name] for point in kept] for name in ("step", "lr", "error")} if kept else {}


def run_timing(config: TimingRun, *, device: str, checkpoint: Path | None, on_epoch: Callable) -> dict:
    """Seconds of an epoch of each method, taken in turn on synthetic examples (time depends on shapes only)."""
    from adadp.experiments.private import PRINTED, private

    data = "cifar" if config.model == "cifar_head" else "mnist"
    size = dict(expected_batch_size=config.expected_batch_size, model=config.model, seed=config.seed)
    runs = {"adadp": private(data, noise_multiplier=2, **PRINTED | size)}
    runs |= {m: private(data, method=m, lr=1e-3, noise_multiplier=2, **size) for m in ("sgd", "adam")}
    built = {name: build(run, device) for name, run in runs.items()}
    for name in built:
        _seconds(built[name], config, device, 5)  # memory is allocated and kernels are chosen here
    rows: dict = {"epoch": [], **{name: [] for name in built}}
    for repeat in range(config.repeats):
        rows["epoch"].append(repeat + 1)
        for name in built:
            rows[name].append(_seconds(built[name], config, device, config.steps_per_epoch))
        on_epoch()
    return {"rows": rows, "first_epoch": {}, "data": "synthetic"}


def _seconds(built, config, device: str, steps: int) -> float:
    """Wall seconds of so many private gradients and optimizer steps."""
    _, gradient, optimizer, generator = built
    x = torch.randn(config.expected_batch_size, *INPUT_SHAPES[config.model], generator=generator).to(device)
    y = torch.randint(10, (config.expected_batch_size,), generator=generator).to(device)
    wait = torch.cuda.synchronize if device.startswith("cuda") else (lambda: None)
    wait()
    started = time.perf_counter()
    for _ in range(steps):
        gradient.backward(x, y)
        optimizer.step()
    wait()
    return time.perf_counter() - started


@lru_cache(maxsize=64)
def step_seconds(model: str, method: str, batch: int, device: str = "cpu") -> float:
    """Seconds of one private gradient and one optimizer step, measured now: the fastest of twenty."""
    from adadp.experiments.private import PRINTED, private

    keywords = PRINTED if method == "adadp" else dict(method=method, lr=1e-3)
    data = "cifar" if model == "cifar_head" else "mnist"
    config = private(data, noise_multiplier=2, **keywords | dict(model=model, expected_batch_size=batch))
    torch.set_num_threads(1)
    built = build(config, device)
    _seconds(built, config, device, 3)
    return min(_seconds(built, config, device, 1) for _ in range(20))  # busy moments must not count


EXECUTORS: dict[str, Callable[..., dict]] = {
    "private": run_private,
    "federated": run_federated,
    "timing": run_timing,
}

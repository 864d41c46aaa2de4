"""How long runs will take: from step times measured now, on the device at hand."""

import time
from functools import lru_cache

import torch

from adadp.experiments.configs import Config
from adadp.experiments.grids import pending

EXAMPLES = {"mnist": 60000, "cifar10": 50000, "mnist-5k": 4000}
TESTED = {"mnist": 10000, "cifar10": 10000, "mnist-5k": 1000}


def seconds(config: Config, device: str) -> float:
    """Expected seconds of a run, from step times measured now on this device."""
    from adadp.evaluation import pick_device
    from adadp.experiments.execution import step_seconds

    where = pick_device(device).type if device == "auto" else device
    evaluation = 0 if config.kind == "timing" else TESTED[config.dataset] * evaluation_seconds(config.model, where)
    if config.kind == "private":
        steps = round((EXAMPLES[config.dataset] - config.holdout) / config.expected_batch_size)
        step = step_seconds(config.model, config.method, config.expected_batch_size, where)
        return config.epochs * (steps * step + evaluation)
    if config.kind == "federated":
        from adadp.experiments.federated_execution import gradient_seconds, gradients

        step = gradient_seconds(config.model, config.method, config.batch_size, where)
        return gradients(config) * step + config.rounds * evaluation
    steps = config.repeats * config.steps_per_epoch
    return steps * sum(
        step_seconds(config.model, m, config.expected_batch_size, where) for m in ("adadp", "sgd", "adam")
    )


@lru_cache
def evaluation_seconds(model: str, device: str) -> float:
    """Seconds of evaluating one example among many, measured now on made-up data: the fastest of three looks."""
    from adadp.evaluation import evaluate, memory_format
    from adadp.experiments.execution import INPUT_SHAPES, build_model
    from adadp.training import cross_entropy

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    network = build_model(model, "torch", generator).to(device)
    x, y = torch.randn(1000, *INPUT_SHAPES[model], generator=generator), torch.zeros(1000, dtype=torch.int64)
    if model == "cifar_cnn":  # as the federated loop lays it out
        layout = memory_format(network)
        network, x = network.to(memory_format=layout), x.contiguous(memory_format=layout)
    looks = []
    for _ in range(3):
        started = time.perf_counter()
        evaluate(network, x, y, loss=cross_entropy)
        looks.append((time.perf_counter() - started) / len(x))
    return min(looks)


def estimate(names, known: dict, profile: str, tier: int | None, device: str) -> list[dict]:
    """Runs and hours left by experiment and tier, later stages counted as if their grids were interior."""
    plan: dict = {}
    for job in pending(names, known, profile, tier, assume=True):
        row = plan.setdefault(
            (job.tier, job.experiment), dict(tier=job.tier, experiment=job.experiment, runs=0, hours=0.0)
        )
        row["runs"] += 1
        row["hours"] += seconds(job.config, device) / 3600
    return list(plan.values())


def print_plan(plan: list[dict]) -> None:
    """The table that ``--dry-run`` shows, with a total for every tier."""
    print(f"{'tier':>4}  {'experiment':<18}{'runs':>6}{'hours':>8}")
    for tier in sorted({row["tier"] for row in plan}):
        rows = [row for row in plan if row["tier"] == tier]
        for row in rows:
            print(f"{tier:>4}  {row['experiment']:<18}{row['runs']:>6}{row['hours']:>8.2f}")
        print(f"{tier:>4}  {'total':<18}{sum(r['runs'] for r in rows):>6}{sum(r['hours'] for r in rows):>8.2f}")
    print("hours are those of one process, one thread a run; runs of stages not known yet are guessed")

"""How long runs will take: from step times measured now, on the device at hand."""

from adadp.experiments.configs import Config
from adadp.experiments.grids import pending

EXAMPLES = {"mnist": 60000, "cifar10": 50000, "mnist-5k": 4000}
EVALUATION = {
    "mnist_mlp": 0.07,
    "cifar_head": 0.2,
    "cifar_cnn": 1.5,
    "mnist_logistic": 0.02,
}  # seconds an evaluation takes, roughly


def seconds(config: Config, device: str) -> float:
    """Expected seconds of a run, from step times measured now on this device."""
    from adadp.evaluation import pick_device
    from adadp.experiments.execution import step_seconds

    where = pick_device(device).type if device == "auto" else device
    if config.kind == "private":
        steps = round((EXAMPLES[config.dataset] - config.holdout) / config.expected_batch_size)
        step = step_seconds(config.model, config.method, config.expected_batch_size, where)
        return config.epochs * (steps * step + EVALUATION[config.model])
    if config.kind == "federated":
        from adadp.experiments.federated_execution import gradient_seconds, gradients

        step = gradient_seconds(config.model, config.method, config.batch_size, where)
        return gradients(config) * step + config.rounds * EVALUATION[config.model]
    steps = config.repeats * config.steps_per_epoch
    return steps * sum(
        step_seconds(config.model, m, config.expected_batch_size, where) for m in ("adadp", "sgd", "adam")
    )


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

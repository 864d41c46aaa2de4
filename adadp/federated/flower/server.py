"""The server's side: make the task, run the strategy, keep what came out of it."""

from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from adadp.federated.flower.records import tell
from adadp.federated.flower.strategy import CheckedAveraging
from adadp.federated.keeping import folder_for_one, kept_run
from adadp.federated.task import load_task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, by its configuration: ``app/pyproject.toml`` lists the keys."""
    config = context.run_config
    task, folder = load_task(str(config["task"])), Path(str(config["output"]))
    with folder_for_one(folder):
        strategy = CheckedAveraging(
            task, min_clients=int(config["min-clients"]) or None, join_timeout=float(config["join-timeout"]),
            device=str(config["device"]),
        )  # fmt: skip
        settings = {"num_rounds": int(config["rounds"]), "timeout": float(config["timeout"])}
        kept_run(
            lambda **kept: strategy.start(grid, **settings, **kept), strategy, folder, lambda s: tell(INFO, "%s", s)
        )

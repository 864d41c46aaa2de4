"""What a run of a task leaves in its folder: the checkpoint while it lasts, the model and the history for good."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from adadp import checkpoint as checkpoints
from adadp.federated.coordinator import Coordinator, NoUsableClient
from adadp.federated.statements import client_statements
from adadp.federated.task import Task
from adadp.history import History
from adadp.locks import locked

CHECKPOINT, MODEL, HISTORY = "checkpoint.pt", "model.pt", "history.json"
Say = Callable[[str], None]


def run_in_process(task: Task, *, rounds: int, output: Path, device: str = "auto", say: Say = print) -> None:
    """Run a task in this process, kept and told like one with real clients.

    Raises:
        ValueError, RuntimeError: as for :func:`kept_run` and :meth:`adadp.federated.FederatedAveraging.run`.
    """
    with folder_for_one(output):
        loop = task.in_process(device)
        kept_run(lambda **kept: loop.run(rounds, progress=False, **kept), loop, output, say)


def kept_run(start: Callable, coordinator: Coordinator, folder: Path, say: Say) -> None:
    """Run rounds, keep the model and the history after each, and say how it went, and what private clients spent.

    Args:
        start: called with ``checkpoint`` and ``callbacks``, which it hands to ``Coordinator.run``.
        coordinator: whose rounds they are.
        folder: where to keep them; an interrupted run there is continued.
        say: receives a line a round.

    Raises:
        ValueError: the folder holds a finished run.
    """
    check_unfinished(folder)
    before, last = time.monotonic(), History()

    def keep(*, round: int, model: nn.Module, history: History) -> None:
        nonlocal before, last
        last = history
        _write(folder, model.state_dict(), history.to_json())
        now = time.monotonic()
        say(f"{sentence(history.rows[-1])}, {now - before:.1f} s")
        before = now

    if (folder / CHECKPOINT).exists():
        say("continuing an interrupted run")
        held = checkpoints.load(folder / CHECKPOINT)
        if {"model", "history"} <= held.keys():  # it was perhaps ended before these were written
            _write(folder, held["model"], held["history"])
            last = History.from_json(held["history"])
    try:
        start(checkpoint=folder / CHECKPOINT, callbacks=[keep])
    except NoUsableClient as error:  # the round that failed may have cost its clients something
        if error.history is not None and error.history.rows:
            _write(folder, coordinator.model.state_dict(), error.history.to_json())
        _say_spent(error.history, say)
        raise
    say(f"finished: weights {fingerprint(coordinator.model.state_dict())}")
    _say_spent(last, say)


def _say_spent(history: History | None, say: Say) -> None:
    """What private clients have spent, a line each."""
    for line in client_statements(history, short=True) if history and history.privacy else ():
        say(line)


def _write(folder: Path, model: dict[str, Tensor], history: str) -> None:
    """Keep the model and the history of the rounds so far."""
    checkpoints.save(folder / MODEL, model)
    checkpoints.write_atomic(folder / HISTORY, history)


def sentence(row: dict) -> str:
    """A round in words.

    >>> sentence({"round": 2, "test_accuracy": 0.5, "clients": [0, 2], "missing": [1], "refused": []})
    'round 2: accuracy 50.00 %, 2 clients (missing: 1)'
    """
    accuracy = "" if row["test_accuracy"] is None else f"accuracy {100 * row['test_accuracy']:.2f} %, "
    lacking = [f"{n}: {', '.join(map(str, row[n]))}" for n in ("missing", "refused") if row.get(n)]
    note = f" ({'; '.join(lacking)})" if lacking else ""
    return f"round {row['round']}: {accuracy}{len(row['clients'])} client{'s' * (len(row['clients']) != 1)}{note}"


def check_unfinished(folder: Path) -> None:
    """Refuse a folder that holds a finished run: it would be written over.

    Raises:
        ValueError: it does.
    """
    if (folder / HISTORY).exists() and not (folder / CHECKPOINT).exists():
        raise ValueError(f"{folder} holds a finished run: name another folder with --output, or remove it")


@contextmanager
def folder_for_one(folder: Path) -> Iterator[None]:
    """Keep other runs off a folder; the system forgets it when the process dies.

    Raises:
        RuntimeError: another run is at work there.
    """
    with locked(folder / ".lock", wait=False) as mine:
        if not mine:
            raise RuntimeError(f"another run is at work in {folder}; wait for it, or name another folder")
        yield


def fingerprint(state: dict[str, Tensor]) -> str:
    """A short name of weights: equal for equal weights, whatever made them.

    >>> fingerprint({"w": torch.zeros(2)}) == fingerprint({"w": torch.zeros(2)})
    True
    """
    digest = hashlib.sha256()
    for name, value in state.items():
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]

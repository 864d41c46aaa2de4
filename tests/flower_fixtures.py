"""Fixtures of the tests of Flower, which name this module in ``pytest_plugins``."""

import flower_helpers
import pytest
from federated_helpers import make
from flower_helpers import Clock, FakeGrid, again
from flwr.supercore.task_identity import TaskIdentity

from adadp.federated.flower import records, roster


@pytest.fixture
def clock(monkeypatch):
    """Flower's idea of who we are, and a time of our own."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(roster, "time", clock := Clock())
    return clock


@pytest.fixture
def log(monkeypatch):
    """Lines of the log, as they are told."""
    lines = []
    monkeypatch.setattr(records, "log", lambda level, text, *values: lines.append(text % values))
    return lines


@pytest.fixture
def federation(monkeypatch, clock):
    """Make a task known to nodes, with a strategy and a grid for it."""

    def build(nodes=None, *, min_clients=None, join_timeout=120.0, ledger=None, **choices):
        task = make(**choices)
        monkeypatch.setattr(flower_helpers, "task", task, raising=False)
        grid = FakeGrid(clock=clock)
        for client in range(task.clients) if nodes is None else nodes:
            grid.join(100 + client, client, **({"ledger": str(ledger / f"{client}")} if ledger else {}))
        return again(task, min_clients=min_clients, join_timeout=join_timeout), grid, task

    return build

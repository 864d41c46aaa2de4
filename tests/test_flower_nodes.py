"""Who is there, over Flower: late, too few, back on another node, twice, with another task."""

import flower_helpers as helpers
import pytest
from federated_helpers import PRIVACY, adaptive, make, sgd
from flower_helpers import average_without, failed, in_process, run, weights, without
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from torch import nn

from adadp.federated import NoUsableClient
from adadp.federated.flower import roster

pytest_plugins = ["flower_fixtures"]
pytestmark = pytest.mark.engine


def test_too_few_nodes_fail_after_the_join_timeout_with_reasons(federation, monkeypatch, clock):
    strategy, grid, _ = federation([0], min_clients=2, join_timeout=40)
    monkeypatch.setattr(helpers, "other", make(batch_size=8), raising=False)
    grid.join(7, 1, task="flower_helpers:other")
    grid.join(8, 2, task="flower_helpers:nowhere")
    with pytest.raises(NoUsableClient) as info:
        run(strategy, grid, 1)
    for part in (
        "1 of 3 clients came within 40 s, min_clients is 2",
        "client 1: it runs another task",
        "ValueError, which",
    ):
        assert part in str(info.value)
    assert 40 <= clock.now < 42 and grid.orders == []
    assert sorted(grid.asked) == [7, 8, 100], "asked once each"


def test_no_node_at_all(federation, clock):
    strategy, grid, _ = federation([], join_timeout=5)
    with pytest.raises(NoUsableClient, match="0 of 3 clients came within 5 s"):
        run(strategy, grid, 1)
    assert 5 <= clock.now < 7


def test_clients_that_come_late_but_in_time_are_waited_for(federation, clock):
    strategy, grid, task = federation([])
    for client in range(3):
        clock.at(30 * (client + 1), lambda client=client: grid.join(50 - client, client))
    assert (without(run(strategy, grid)), weights(strategy)) == in_process(task)
    assert 90 <= clock.now < 92


def test_after_the_join_timeout_those_who_are_there_go_on_and_later_rounds_do_not_wait(federation, clock, log):
    strategy, grid, _ = federation([0, 2])
    rows = run(strategy, grid, 3)
    assert [row["clients"] for row in rows] == [[0, 2]] * 3 and [row["missing"] for row in rows] == [[1]] * 3
    assert 120 <= clock.now < 122 and "round 1: client 1 is missing: not there" in "\n".join(log)


def test_a_client_that_returns_on_another_node_is_the_same_and_gets_its_learning_rate(federation, log):
    strategy, grid, task = federation()

    def move(round, **_):
        if round == 1:
            del grid.nodes[101]
            grid.join(555, 1)

    rows = run(strategy, grid, 3, callbacks=[move])
    assert (without(rows), weights(strategy)) == in_process(task, 3)
    assert sum("client 1 is back, on another node" in line for line in log) == 1
    assert dict(grid.orders[3:6])[1]["lrs"] == [rows[0]["lr"][1]]


def test_a_killed_node_that_is_still_listed_gives_way_to_its_successor(federation):
    strategy, grid, task = federation()

    def replace(round, **_):
        grid.silent.add(101)
        grid.join(55, 1)

    assert (without(run(strategy, grid, 2, callbacks=[replace])), weights(strategy)) == in_process(task)


def test_a_killed_node_that_was_never_asked_gives_way_as_well(federation):
    strategy, grid, task = federation()
    grid.silent.add(99)
    grid.join(99, 1)
    assert without(run(strategy, grid)) == in_process(task)[0]


def test_two_nodes_that_come_as_one_client_are_refused_until_one_is_gone(federation, clock, log):
    strategy, grid, task = federation()
    grid.join(55, 1)
    clock.at(50, lambda: grid.nodes.pop(101))
    rows = run(strategy, grid)
    assert (without(rows), weights(strategy)) == in_process(task) and 50 <= clock.now < 52
    assert sum("client 1: 2 nodes say that they are it; stop all but one" in line for line in log[:2]) == 1


def test_two_nodes_that_stay_one_client_leave_it_out_with_the_reason(federation, log):
    strategy, grid, task = federation()
    grid.join(55, 1)
    (row,) = run(strategy, grid, 1)
    assert row["missing"] == [1] and weights(strategy) == average_without(task, 1)
    assert "round 1: client 1 is missing: 2 nodes say that they are it; stop all but one" in "\n".join(log)


def wider():
    return nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))


OTHER = {
    "batch_size": {"batch_size": 8},
    "local_epochs": {"local_epochs": 2},
    "reduction": {"reduction": "sum"},
    "optimizer": {"client_optimizer": sgd},
    "model": {"model": wider},
    "privacy": {"privacy": PRIVACY},
    "keep_lr": {"keep_lr": False},
    "clients": {"clients": 4},
    "batch_size, optimizer": {"batch_size": 8, "client_optimizer": lambda p: adaptive(p, lr=0.07)},
}


@pytest.mark.parametrize("name", OTHER)
def test_a_node_with_another_task_is_refused_with_what_differs(federation, monkeypatch, log, name):
    strategy, grid, _ = federation([0, 2])
    monkeypatch.setattr(helpers, "other", make(**OTHER[name]), raising=False)
    grid.join(55, 1, task="flower_helpers:other")
    (row,) = run(strategy, grid, 1)
    reason = f"it runs another task (other {'delta, ' if name == 'privacy' else ''}{name})"
    assert row["missing"] == [1] and f"round 1: client 1 is missing: {reason}" in "\n".join(log)


def test_a_task_that_changes_in_mid_run_is_noticed_before_training(federation, monkeypatch, log):
    strategy, grid, _ = federation(min_clients=1)

    def edit(round, **_):
        monkeypatch.setattr(helpers, "other", make(batch_size=8), raising=False)
        grid.nodes[101]["task"] = "flower_helpers:other"
        grid.nodes[102]["client"] = 0

    rows = run(strategy, grid, 2, callbacks=[edit])
    assert rows[1]["clients"] == [0] and rows[1]["missing"] == [1, 2]
    assert "task is another than the server's by now (other batch_size)" in "\n".join(log)
    assert "the order is for client 2, and this node is client 0 by now" in "\n".join(log)


STRANGERS = {
    "client 3 does not exist: the task has 3": {"client": 3},
    "client must be a whole number": {"client": -1},
    "client must be a whole number >= 0, got 'one'": {"client": "one"},
    "ValueError, which its own terminal shows": {"client": 1, "task": "flower_helpers:needs_what_is_not_there"},
}


@pytest.mark.parametrize("reason", STRANGERS)
def test_nodes_that_are_no_client_are_named(federation, log, reason):
    strategy, grid, _ = federation([0, 2])
    grid.join(55, **STRANGERS[reason])
    (row,) = run(strategy, grid, 1)
    assert row["clients"] == [0, 2] and grid.asked.count(55) == 1
    assert sum(line.startswith("adadp: a node cannot take part: ") and reason in line for line in log) == 1


def test_a_node_without_configuration_is_named(federation, log):
    strategy, grid, _ = federation([0, 2])
    grid.nodes[55] = {}
    run(strategy, grid, 1)
    assert "this node has no task or client; start it with: adadp federated join" in "\n".join(log)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "answered with something else"),
        (RecordDict({"about": ConfigRecord({"client": 1, "agreement": "[]"})}), "answered with something else"),
        (RecordDict({"about": ConfigRecord({"client": 1, "agreement": "{"})}), "answered with something else"),
        (RecordDict({"about": ConfigRecord({"client": [1], "agreement": "{}"})}), "answered with something else"),
        (RecordDict({"about": MetricRecord({"client": 1})}), "answered with something else"),
        (RecordDict({"about": ConfigRecord({"client": 9, "agreement": "AGREED"})}), "says that it is client 9, of 3"),
        (RecordDict({"about": ConfigRecord({"client": -1, "agreement": "AGREED"})}), "says that it is client -1"),
    ],
)
def test_introductions_that_are_none(federation, log, content, reason):
    strategy, grid, task = federation([0, 2])
    grid.join(55, 1)
    if "about" in content and content["about"].get("agreement") == "AGREED":
        content["about"]["agreement"] = task.agreement(task.model())
    ordinary = grid.call

    def call(message, node):
        (reply,) = ordinary(message, node)
        if node == 55:
            reply.content = content
        return [reply]

    grid.call = call
    assert run(strategy, grid, 1)[0]["clients"] == [0, 2]
    assert any(reason in line for line in log)


def test_a_node_that_is_unreachable_for_a_moment_is_asked_again(federation, clock, log):
    strategy, grid, task = federation()
    ordinary = grid.call

    def call(message, node):
        if node == 101 and clock.now < 20:
            return [failed(message, "Node Unavailable", ErrorCode.NODE_UNAVAILABLE)]
        return ordinary(message, node)

    grid.call = call
    assert without(run(strategy, grid)) == in_process(task)[0] and 20 <= clock.now < 22
    assert sum(line.startswith("adadp: a node cannot take part: Node Unavailable") for line in log) == 1


def test_a_node_that_was_away_introduces_itself_anew(federation, monkeypatch, log):
    strategy, grid, _ = federation()
    monkeypatch.setattr(helpers, "other", make(batch_size=8), raising=False)
    steps = {
        1: lambda: grid.nodes.pop(101),
        2: lambda: grid.join(101, 1, task="flower_helpers:other"),
    }
    rows = run(strategy, grid, 3, callbacks=[lambda round, **_: steps.get(round, int)()])
    assert [row["clients"] for row in rows] == [[0, 1, 2], [0, 2], [0, 2]]
    assert [client for client, _ in grid.orders] == [0, 1, 2, 0, 2, 0, 2]
    assert grid.asked.count(101) == 2 and "client 1: it runs another task" in "\n".join(log)


def test_a_newcomer_that_does_not_answer_holds_no_round_up_for_the_whole_join_timeout(federation, clock):
    strategy, grid, _ = federation(join_timeout=3600)

    def hang(round, **_):
        grid.silent.add(55)
        grid.join(55, 1)

    run(strategy, grid, 2, callbacks=[hang])
    assert clock.now == roster.PATIENCE


def test_all_drawn_clients_away_is_an_error_and_no_message_is_sent(federation):
    strategy, grid, _ = federation(min_clients=1, join_timeout=5)
    with pytest.raises(NoUsableClient, match="round 2: 0 of 3 clients came within 5 s, min_clients is 1"):
        run(strategy, grid, 2, callbacks=[lambda **_: grid.nodes.clear()])

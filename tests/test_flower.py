"""Federated averaging over Flower, clients in this process: equality, bad answers, lost answers, continuing."""

import math

import pytest
import torch
from federated_helpers import data, make, net, sgd
from flower_helpers import (
    again,
    average_without,
    breaks,
    changed,
    in_process,
    kept,
    no_answer,
    poisoned,
    run,
    stop_after,
    weights,
    without,
)
from flwr.app import Array, ConfigRecord, Context, RecordDict
from torch import nn

from adadp import checkpoint as checkpoints
from adadp.federated import NoUsableClient
from adadp.federated.flower import records, server
from adadp.federated.flower.strategy import CheckedAveraging
from adadp.federated.keeping import check_unfinished, fingerprint, kept_run

pytest_plugins = ["flower_fixtures"]
pytestmark = pytest.mark.engine


# equality


def buffered():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    for p in model.parameters():
        nn.init.uniform_(p, -0.5, 0.5, generator=torch.Generator().manual_seed(7))
    return model


class Masked(nn.Linear):
    """With a mask of -inf among the weights, as causal attention has, and one value that is not known yet."""

    def __init__(self):
        super().__init__(4, 3)
        nn.init.uniform_(self.weight, -0.5, 0.5, generator=torch.Generator().manual_seed(7))
        nn.init.zeros_(self.bias)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, -math.inf]))
        self.register_buffer("seen", torch.tensor([math.nan, 1.0]))

    def forward(self, x):
        return super().forward(x) + self.mask.clamp(min=-5.0)


def dropping():
    model = net()
    model.insert(1, nn.Dropout(0.5))
    return model


CHOICES = {
    "adaptive": {},
    "dropout": {"model": dropping},
    "mask": {"model": Masked},
    "lr anew": {"keep_lr": False},
    "some": {"participation": 0.5, "clients": 4},
    "sgd": {"client_optimizer": sgd},
    "buffers": {"model": buffered},
    "no test data": {"test_data": None, "trace": 3, "local_epochs": 3},
}


@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("shuffled", [False, True])
def test_weights_and_history_are_those_of_one_process_to_the_last_bit(federation, choices, shuffled):
    strategy, grid, task = federation(**choices)
    grid.shuffled = shuffled
    rows = run(strategy, grid, 4)
    assert (without(rows), weights(strategy)) == in_process(task, 4)
    assert all(row["missing"] == row["refused"] == [] for row in rows)


def test_convolutions_keep_their_memory_layout_and_their_bits(federation):
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 3))

    def images(client):
        x, y = data(client)
        return x.reshape(-1, 1, 2, 2), y

    strategy, grid, task = federation(model=model, data=images, test_data=None)
    run(strategy, grid)
    assert weights(strategy) == in_process(task)[1]


# answers that cannot be used


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_left_out_and_named(federation, log, value):
    strategy, grid, task = federation()
    grid.faults[101] = changed(arrays=poisoned(value))
    with pytest.warns(UserWarning, match=r"weights of clients \[1\] are not finite"):
        (row,) = run(strategy, grid, 1)
    assert (row["clients"], row["refused"], row["missing"]) == ([0, 2], [1], [])
    assert weights(strategy) == average_without(task, 1)
    assert "client 1 is refused: weights that are not finite" in "\n".join(log)


SHAPES = {
    "other shape": lambda s: s | {"0.bias": torch.zeros(7)},
    "broadcastable": lambda s: s | {"0.bias": torch.zeros(1)},
    "one row more": lambda s: s | {"0.bias": torch.zeros(1, 6)},
    "other dtype": lambda s: s | {"0.bias": s["0.bias"].double()},
    "missing": lambda s: {name: value for name, value in s.items() if name != "0.bias"},
    "too many": lambda s: s | {"extra": torch.zeros(1)},
    "none": lambda s: {},
}


@pytest.mark.parametrize("arrays", SHAPES.values(), ids=SHAPES)
def test_weights_of_another_model_are_refused_named_and_not_averaged(federation, log, arrays):
    strategy, grid, task = federation()
    grid.faults[101] = changed(arrays=arrays)
    (row,) = run(strategy, grid, 1)
    assert (row["clients"], row["refused"], row["missing"]) == ([0, 2], [1], [])
    assert weights(strategy) == average_without(task, 1)
    assert "client 1 is refused: weights of another model" in "\n".join(log)


def test_names_in_another_order_are_the_same_model(federation):
    strategy, grid, task = federation()
    grid.faults[101] = changed(arrays=lambda state: dict(reversed(state.items())))
    assert (without(run(strategy, grid)), weights(strategy)) == in_process(task)


def garbage(order, answer):
    (reply,) = answer()
    array = reply.content["arrays"]["0.bias"]
    reply.content["arrays"]["0.bias"] = Array("float32", array.shape, array.stype, b"\x93NUMPY" + bytes(9))
    return [reply]


def empty(order, answer):
    (reply,) = answer()
    array = reply.content["arrays"]["0.bias"]
    reply.content["arrays"]["0.bias"] = Array("float32", array.shape, array.stype, b"")
    return [reply]


def swapped(order, answer):
    (reply,) = answer()
    reply.content["arrays"], reply.content["metrics"] = reply.content["metrics"], reply.content["arrays"]
    return [reply]


FORGED = {
    "no examples": changed({"num-examples": 0}),
    "negative examples": changed({"num-examples": -5}),
    "examples and a half": changed({"num-examples": 2.5}),
    "a list of examples": changed({"num-examples": [1]}),
    "no steps": changed({"steps": 0}),
    "negative discarded": changed({"discarded": -1}),
    "lr nan": changed({"end-lrs": [math.nan]}),
    "lr negative": changed({"end-lrs": [-0.1]}),
    "lr infinite": changed({"end-lrs": [math.inf]}),
    "two lrs": changed({"end-lrs": [0.1, 0.1]}),
    "no lr": changed({"end-lrs": []}),
    "an lr without its list": changed({"end-lrs": 0.1}),
    "told lr nan": changed({"lr": math.nan}),
    "a list as error": changed({"error": [0.1]}),
    "a number as trace": changed({"lrs": 0.1}),
    "negative epsilon": changed({"epsilon": -1.0}),
    "epsilon nan": changed({"epsilon": math.nan}),
    "other round": changed({"round": 7}),
    "other client": changed({"client": 0}),
    "something else": changed({"surprise": 1}),
    "no client": changed(drop=["client"]),
    "no size": changed(drop=["num-examples"]),
    "no lr told": changed(drop=["lr"]),
    "no metrics": changed(drop=["metrics"]),
    "no arrays": changed(drop=["arrays"]),
    "nothing": changed(drop=["metrics", "arrays"]),
    "records swapped": swapped,
    "garbage": garbage,
    "empty": empty,
}


@pytest.mark.parametrize("fault", FORGED.values(), ids=FORGED)
def test_forged_and_damaged_answers_are_refused_and_named(federation, log, fault):
    strategy, grid, task = federation()
    grid.faults[101] = fault
    (row,) = run(strategy, grid, 1)
    assert (row["clients"], row["refused"], row["missing"]) == ([0, 2], [1], [])
    assert weights(strategy) == average_without(task, 1) and strategy._lrs[1] is None
    assert sum("client 1 is refused: " in line for line in log) == 1


def test_a_learning_rate_of_nought_is_none_of_these(federation):
    def frozen(parameters):
        first, *others = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.0}, {"params": others}], lr=0.1)

    strategy, grid, task = federation(client_optimizer=frozen)
    assert (without(run(strategy, grid)), weights(strategy)) == in_process(task)


def test_a_client_or_a_server_with_bad_data_is_named(federation, log):
    strategy, grid, _ = federation(data=lambda client: data(client) if client else None)
    assert run(strategy, grid, 1)[0]["missing"] == [0]
    assert "round 1: client 0 is missing: ValueError, which its own terminal shows" in "\n".join(log)
    with pytest.raises(ValueError, match=r"test_data\(\) has 3 inputs but 2 labels"):
        again(make(test_data=lambda: (torch.zeros(3, 4), torch.zeros(2))))


@pytest.mark.parametrize("where", ["data", "model", "loss"])
def test_the_words_of_a_clients_error_stay_with_it(federation, log, where):
    """They may quote a line of its data."""

    def broken(*_):
        return int("Jane Doe, 1970")

    made = []

    def model():
        made.append(1)
        return broken() if len(made) > 1 else net()

    faulty = {"data": broken, "model": model, "loss": broken}[where]
    strategy, grid, _ = federation(**{where: faulty}, join_timeout=1, test_data=None)
    with pytest.raises(NoUsableClient) as caught:
        run(strategy, grid, 1)
    everything = "\n".join(log) + str(caught.value)
    assert "ValueError, which its own terminal shows" in everything and "Jane" not in everything


# answers that do not come


LOST = {"no answer in time": no_answer, "the disk is full": breaks}


@pytest.mark.parametrize("reason", LOST)
def test_a_client_without_answer_is_missing_and_keeps_its_learning_rate(federation, log, reason):
    strategy, grid, _ = federation()
    stop = {1: lambda: grid.faults.update({101: LOST[reason]}), 2: grid.faults.clear}
    rows = run(strategy, grid, 3, callbacks=[lambda round, **_: stop.get(round, int)()])
    assert [row["missing"] for row in rows] == [[], [1], []] and rows[1]["clients"] == [0, 2]
    assert f"round 2: client 1 is missing: {reason}" in "\n".join(log)
    third = dict(grid.orders[-3:])[1]
    assert third["server-round"] == 3 and third["lrs"] == [rows[0]["lr"][1]]


def test_what_a_client_tells_of_a_stale_round_changes_nothing(federation):
    strategy, grid, _ = federation()
    held = []

    def late(order, answer):
        held.extend(answer())
        return held[-2:-1]  # that of the round before

    grid.faults[101] = late
    rows = run(strategy, grid, 2)
    assert [row["missing"] for row in rows] == [[1], []] and rows[1]["refused"] == [1]
    assert strategy._lrs[1] is None and strategy._lrs[0] == [rows[1]["lr"][0]]


def test_answers_of_unknown_nodes_and_second_answers_are_ignored(federation, log):
    strategy, grid, task = federation()

    def twice(order, answer):
        (first,), (second,) = answer(), answer()
        (stranger,) = answer()
        second.content["metrics"]["num-examples"] = 1000
        stranger.metadata.__dict__["_src_node_id"] = 999
        return [stranger, first, second]

    grid.faults[101] = twice
    assert (without(run(strategy, grid)), weights(strategy)) == in_process(task)
    assert sum("an answer that nobody waits for is ignored" in line for line in log) == 4


def test_a_round_in_which_all_fail_leaves_model_and_checkpoint_of_the_round_before(federation, tmp_path):
    strategy, grid, task = federation()
    file = tmp_path / "checkpoint.pt"
    spoil = lambda round, **_: grid.faults.update(dict.fromkeys(grid.nodes, breaks))  # noqa: E731
    with pytest.raises(NoUsableClient, match=r"round 2: 0 of 3 clients .*client 0: the disk is full; client 1") as info:
        run(strategy, grid, 3, checkpoint=file, callbacks=[spoil])
    assert len(info.value.history.rows) == 1
    assert weights(strategy) == in_process(task, 1)[1] == fingerprint(checkpoints.load(file)["model"])
    grid.faults.clear()
    run(fresh := again(task), grid, 3, checkpoint=file)
    assert weights(fresh) == in_process(task, 3)[1]


def test_weights_of_all_clients_not_finite(federation):
    strategy, grid, _ = federation()
    before = weights(strategy)
    grid.faults = dict.fromkeys(grid.nodes, changed(arrays=poisoned(math.nan)))
    with pytest.warns(UserWarning), pytest.raises(NoUsableClient, match="no client sent finite weights"):
        run(strategy, grid, 1)
    assert weights(strategy) == before


def test_fewer_than_min_clients_fail_the_round_with_the_numbers(federation):
    strategy, grid, _ = federation(min_clients=3)
    before = weights(strategy)
    grid.faults[101] = no_answer
    with pytest.raises(NoUsableClient, match=r"2 of 3 clients .*min_clients is 3 \(client 1: no answer in time\)"):
        run(strategy, grid, 1)
    assert weights(strategy) == before and strategy._lrs == [None] * 3
    grid.faults[101] = changed(arrays=poisoned(math.nan))
    with pytest.warns(UserWarning), pytest.raises(NoUsableClient, match=r"2 of 3 clients .*min_clients is 3"):
        run(strategy, grid, 1)
    assert weights(strategy) == before and strategy._lrs == [None] * 3


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError("no network")])
def test_interrupted_in_a_round_nothing_of_it_is_kept(federation, tmp_path, fault):
    strategy, grid, task = federation()
    file = tmp_path / "checkpoint.pt"

    def interrupt(order, answer):
        raise fault

    with pytest.raises(fault if isinstance(fault, type) else type(fault)):
        run(
            strategy, grid, 3, checkpoint=file, callbacks=[lambda round, **_: grid.faults.update({102: interrupt})]
        )  # fmt: skip
    grid.faults.clear()
    run(fresh := again(task), grid, 3, checkpoint=file)
    assert weights(fresh) == in_process(task, 3)[1]


def test_an_evaluation_that_fails_leaves_the_checkpoint_of_the_round_before(federation, tmp_path):
    strategy, grid, task = federation()
    file = tmp_path / "checkpoint.pt"
    spoil = lambda round, **_: setattr(strategy, "test_data", (torch.zeros(5, 9), torch.zeros(5).long()))  # noqa: E731
    with pytest.raises(RuntimeError):
        run(strategy, grid, 3, checkpoint=file, callbacks=[spoil])
    run(fresh := again(task), grid, 3, checkpoint=file)
    assert weights(fresh) == in_process(task, 3)[1]


# checkpoints and folders


@pytest.mark.parametrize("choices", [{}, {"participation": 0.5, "clients": 4}, {"client_optimizer": sgd}])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_interrupted_after_any_round_the_result_is_the_same(federation, tmp_path, number, choices):
    strategy, grid, task = federation(**choices)
    file = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run(strategy, grid, 4, checkpoint=file, callbacks=[stop_after(number)])
    assert file.exists()
    rows = run(fresh := again(task), grid, 4, checkpoint=file)
    assert (without(rows), weights(fresh)) == in_process(task, 4) and not file.exists()


def test_a_run_that_is_continued_waits_for_all_clients_again(federation, tmp_path, clock):
    strategy, grid, task = federation()
    file = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run(strategy, grid, 3, checkpoint=file, callbacks=[stop_after(1)])
    config = grid.nodes.pop(101)
    clock.at(clock.now + 30, lambda: grid.nodes.update({77: config}))
    run(fresh := again(task), grid, 3, checkpoint=file)
    assert weights(fresh) == in_process(task, 3)[1]


def test_a_damaged_checkpoint_is_named_and_that_of_another_task_refused(federation, tmp_path):
    strategy, grid, task = federation()
    file = tmp_path / "checkpoint.pt"
    with pytest.raises(KeyboardInterrupt):
        run(strategy, grid, 3, checkpoint=file, callbacks=[stop_after(1)])
    kept = file.read_bytes()
    for choices, name in (({"batch_size": 8}, "batch_size"), ({"seed": 4}, "seed"), ({"keep_lr": False}, "keep_lr")):
        with pytest.raises(RuntimeError, match=f"another run .other {name}"):
            run(again(make(**choices)), grid, 3, checkpoint=file)
    with pytest.raises(ValueError, match="rounds=0 is less than the 1"):
        run(again(task), grid, 0, checkpoint=file)
    assert file.read_bytes() == kept
    file.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(RuntimeError, match=r"checkpoint\.pt is not a whole checkpoint"):
        run(again(task), grid, 3, checkpoint=file)


def test_model_and_history_are_whole_after_every_round(federation, tmp_path):
    strategy, grid, task = federation()
    expected = {number: in_process(task, number)[1] for number in (1, 2, 3)}
    said, seen = [], []

    def say(line):
        said.append(line)
        if line.startswith("round"):
            seen.append(kept(tmp_path))

    kept_run(lambda **files: strategy.start(grid, num_rounds=3, **files), strategy, tmp_path, say)
    assert seen == [(expected[number], number) for number in (1, 2, 3)]
    assert said[-1] == f"finished: weights {expected[3]}" and not (tmp_path / "checkpoint.pt").exists()
    with pytest.raises(ValueError, match="holds a finished run: name another folder"):
        check_unfinished(tmp_path)


def test_a_run_ended_between_checkpoint_and_model_leaves_both_whole_in_the_end(federation, tmp_path, monkeypatch):
    strategy, grid, task = federation()
    start = lambda s: lambda **files: s.start(grid, num_rounds=2, **files)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr("adadp.federated.keeping._write", stop_after_calls(1))
        with pytest.raises(OSError, match="no space"):
            kept_run(start(strategy), strategy, tmp_path, str)
    assert (tmp_path / "checkpoint.pt").exists()
    said = []
    kept_run(start(fresh := again(task)), fresh, tmp_path, said.append)
    assert kept(tmp_path) == (in_process(task, 2)[1], 2) and said[0] == "continuing an interrupted run"


def stop_after_calls(number):
    from adadp.federated.keeping import _write

    calls = []

    def write(*arguments):
        calls.append(1)
        if len(calls) > number:
            raise OSError("no space")
        _write(*arguments)

    return write


def serve(grid, **config):
    settings = {"task": "flower_helpers:task", "rounds": 2, "timeout": 60.0, "join-timeout": 9.0, "min-clients": 0}
    settings |= {"device": "cpu"} | config
    server.app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings))


def test_the_server_app_keeps_what_comes_out(federation, tmp_path, log):
    _, grid, task = federation()
    serve(grid, output=str(tmp_path / "out"))
    assert kept(tmp_path / "out") == (in_process(task, 2)[1], 2)
    assert any("round 2: accuracy" in line for line in log) and any("finished: weights" in line for line in log)
    with pytest.raises(ValueError, match="holds a finished run"):
        serve(grid, output=str(tmp_path / "out"))
    with pytest.raises(ValueError, match="min_clients must be 1 to 3"):
        serve(grid, output=str(tmp_path / "out"), **{"min-clients": 4})
    with pytest.raises(ValueError, match="join_timeout"):
        serve(grid, output=str(tmp_path / "out"), **{"join-timeout": math.nan})


# arguments


@pytest.mark.parametrize(
    "choices",
    [
        *({"min_clients": value} for value in (0, -1, 4, 1.5, True, math.nan, "2")),
        *({"join_timeout": value} for value in (0, -1.0, math.nan, math.inf, "9", True)),
        {"device": "nowhere"},
    ],
)
def test_bad_arguments_are_named(choices):
    (name,) = choices
    with pytest.raises(ValueError, match=name):
        CheckedAveraging(make(), **{"device": "cpu"} | choices)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, "9"])
def test_a_bad_timeout_is_named(federation, timeout):
    strategy, grid, _ = federation()
    with pytest.raises(ValueError, match="timeout"):
        strategy.start(grid, num_rounds=1, timeout=timeout)
    with pytest.raises(ValueError, match="rounds"):
        strategy.start(grid, num_rounds=1.5)


@pytest.mark.parametrize(("participation", "clients", "enough"), [(1.0, 1, 1), (1.0, 5, 3), (0.5, 4, 1), (0.1, 3, 1)])
def test_by_default_half_of_the_clients_are_enough(participation, clients, enough):
    task = make(participation=participation, clients=clients, data=lambda client: data(0))
    assert again(task).min_clients == enough


def test_start_returns_a_result_of_flower(federation):
    strategy, grid, _ = federation()
    result = strategy.start(grid, num_rounds=2)
    assert fingerprint(result.arrays.to_torch_state_dict()) == weights(strategy)
    assert set(result.train_metrics_clientapp) == {1, 2}
    assert set(result.train_metrics_clientapp[2]) == {"test_accuracy", "test_loss", "clients"}
    assert list(strategy.configure_evaluate(1, result.arrays, ConfigRecord(), grid)) == []
    assert strategy.aggregate_evaluate(1, []) is None


def test_initial_arrays_are_where_it_begins(federation):
    strategy, grid, _ = federation(client_optimizer=lambda p: sgd(p, lr=0.0))
    begin = {name: torch.full_like(value, 0.25) for name, value in net().state_dict().items()}
    strategy.start(grid, records.pack_state(begin), num_rounds=1)
    assert weights(strategy) == fingerprint(begin)
    for bad in ({"w": torch.ones(1)}, begin | {"0.bias": torch.zeros(1)}):
        with pytest.raises(ValueError, match="initial_arrays: weights of another model"):
            strategy.start(grid, records.pack_state(bad), num_rounds=1)

"""Private clients over Flower: ledgers and secret noise; and what travels to and from clients."""

import math

import pytest
import torch
from federated_helpers import PRIVACY, SIZES, net, sgd
from flower_helpers import again, changed, in_process, poisoned, run, stop_after, weights
from flwr.app import ConfigRecord, MetricRecord

import adadp
from adadp import checkpoint as checkpoints
from adadp import locks
from adadp.federated import NoUsableClient, client_statements
from adadp.federated.client import ClientReport
from adadp.federated.flower import ledger, records
from adadp.federated.keeping import fingerprint
from adadp.federated.local import LocalTraining
from adadp.history import History
from adadp.rounding import round_up

pytest_plugins = ["flower_fixtures"]
pytestmark = pytest.mark.engine


# privacy


def spent(task, client, rounds):
    plan = dict(sample_rate=4 / SIZES[client], steps=rounds * SIZES[client] // 4, delta=task.delta)
    return pytest.approx(adadp.epsilon(noise_multiplier=2.0, **plan))


def test_a_private_task_without_ledger_is_refused(federation, log):
    strategy, grid, _ = federation(privacy=PRIVACY)
    with pytest.raises(NoUsableClient, match="start its clients with --ledger FILE"):
        run(strategy, grid, 1)


def test_epsilon_is_that_of_the_steps_so_far_and_two_runs_add_up(federation, tmp_path):
    strategy, grid, task = federation(privacy=PRIVACY, ledger=tmp_path / "new", delta=1e-4)
    rows = run(strategy, grid, 2)
    for number, row in enumerate(rows, 1):
        assert row["epsilon"] == [spent(task, client, number) for client in range(3)]
    assert run(again(task), grid, 1)[0]["epsilon"] == [spent(task, client, 3) for client in range(3)]


def test_a_history_says_that_clients_keep_their_own_ledgers(federation, tmp_path):
    strategy, grid, _ = federation(privacy=PRIVACY, ledger=tmp_path, delta=1e-4, min_clients=1)
    grid.silent.add(102)
    kept = []
    run(strategy, grid, 2, callbacks=[lambda history, **_: kept.append(History.from_json(history.to_json()))])
    privacy = kept[1].privacy
    assert privacy["ledgers"] == "each client's own" and privacy["steps"] is None
    assert privacy["sample_rate"] == [4 / SIZES[0], 4 / SIZES[1], None]
    assert [len(row["clients"]) for row in kept[1].rows] == [2, 2]
    texts = [text.splitlines() for text in client_statements(kept[1])]
    value = adadp.epsilon(noise_multiplier=2.0, sample_rate=4 / SIZES[1], steps=2 * SIZES[1] // 4, delta=1e-4)
    assert texts[1] == [
        f"epsilon = {round_up(value)} at delta = 0.0001",
        "ledger: the client's own, over all runs that use it, as told in its last answer",
        "sampler: rate 0.1, noise multiplier 2",
        "assumptions: one training example of client 1, add/remove, Poisson, moments; tuning not included",
    ]
    assert texts[2][0] == "epsilon unknown (none was told) at delta = 0.0001" and "rate" not in texts[2][2]
    assert client_statements(kept[1], short=True)[1] == (
        f"ε = {round_up(value)}, δ = 10⁻⁴ (by the client's own ledger; one training example of client 1, add/remove, "
        "Poisson, moments; tuning not included)"
    )


def test_a_client_whose_weights_are_refused_has_spent_what_it_told(federation, tmp_path):
    strategy, grid, task = federation(privacy=PRIVACY, ledger=tmp_path, min_clients=1)
    kept = []
    spoil = lambda round, **_: grid.faults.update({101: changed(arrays=poisoned(math.nan))})  # noqa: E731
    rows = run(strategy, grid, 2, callbacks=[spoil, lambda history, **_: kept.append(history)])
    assert rows[1]["refused"] == [1] and dict(rows[1]["spent"])[1] == spent(task, 1, 2)
    told = adadp.epsilon(
        noise_multiplier=2.0, sample_rate=4 / SIZES[1], steps=2 * SIZES[1] // 4, delta=kept[1].privacy["delta"]
    )
    assert client_statements(kept[1], short=True)[1].startswith(f"ε = {round_up(told)},")


def last_round(grid, fault):
    """A callback that makes client 1's answers wrong from the second round on."""
    return lambda round, **_: grid.faults.update({101: fault})


def statement(history):
    """Of client 1, by the history as it is kept."""
    kept = History.from_json(history.to_json())
    return client_statements(kept)[1].splitlines(), client_statements(kept, short=True)[1]


def test_an_answer_of_another_model_still_tells_what_it_cost(federation, tmp_path):
    strategy, grid, task = federation(privacy=PRIVACY, ledger=tmp_path, min_clients=1)
    kept = []
    fault = last_round(grid, changed(arrays=lambda state: {"other": torch.zeros(1)}))
    rows = run(strategy, grid, 2, callbacks=[fault, lambda history, **_: kept.append(history)])
    assert rows[1]["refused"] == [1] and dict(rows[1]["spent"])[1] == spent(task, 1, 2)
    assert "or more" not in str(statement(kept[1]))


@pytest.mark.parametrize("fault", [changed(drop=["epsilon"]), lambda order, answer: answer()[:0]])
def test_a_round_whose_cost_is_not_told_makes_epsilon_a_lower_bound(federation, tmp_path, fault):
    strategy, grid, task = federation(privacy=PRIVACY, ledger=tmp_path, min_clients=1)
    kept = []
    run(strategy, grid, 2, callbacks=[last_round(grid, fault), lambda history, **_: kept.append(history)])
    told = round_up(dict(kept[0].rows[0]["spent"])[1])
    assert dict(kept[1].rows[1]["spent"])[1] is None
    (first, second, *_), short = statement(kept[1])
    assert first.startswith(f"epsilon = {told} or more at") and second.endswith(
        "; what a later round cost was not told"
    )
    assert short.startswith(f"ε = {told} or more, ") and "before a round of which nothing was heard" in short
    assert "or more" not in str(client_statements(kept[1])[0])
    grid.faults.clear()
    run(again(task), grid, 1, callbacks=[lambda history, **_: kept.append(history)])
    assert "or more" not in str(statement(kept[2])) and kept[2].rows[0]["epsilon"][1] == spent(task, 1, 3)


def test_a_round_that_fails_makes_every_epsilon_a_lower_bound(federation, tmp_path):
    strategy, grid, _ = federation(privacy=PRIVACY, ledger=tmp_path, min_clients=3)
    with pytest.raises(NoUsableClient) as failed:
        run(strategy, grid, 2, callbacks=[last_round(grid, lambda order, answer: answer()[:0])])
    history = failed.value.history
    assert len(history.rows) == 1 and history.privacy["unheard"] == [0, 1, 2]
    assert [" or more, " in text for text in client_statements(history, short=True)] == [True] * 3


def cut_off(grid, how):
    """A callback: the next round fails, or the server is killed in it, when the clients have trained."""
    clients, ordinary = dict.fromkeys((100, 101), lambda order, answer: answer()[:0]), grid.send_and_receive

    def killed(messages, **choices):
        ordinary(messages, **choices)
        raise KeyboardInterrupt

    return lambda **_: grid.faults.update(clients) if how == "fails" else setattr(grid, "send_and_receive", killed)


@pytest.mark.parametrize("how", ["fails", "killed"])
def test_a_server_that_comes_back_knows_whom_it_had_told_to_train(federation, tmp_path, monkeypatch, how):
    strategy, grid, task = federation(privacy=PRIVACY, ledger=tmp_path, min_clients=2)
    file, kept = tmp_path / "checkpoint.pt", []
    with pytest.raises(NoUsableClient if how == "fails" else KeyboardInterrupt):
        run(strategy, grid, 3, checkpoint=file, callbacks=[cut_off(grid, how)])
    grid.faults.clear()
    grid.__dict__.pop("send_and_receive", None)
    del grid.nodes[100]  # gone for good: what the round cut off cost it is never told
    keep = lambda history, **_: kept.append(History.from_json(history.to_json()))  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        run(again(task, min_clients=2, join_timeout=1.0), grid, 3, checkpoint=file, callbacks=[keep, stop_after(2)])
    run(again(task, min_clients=2, join_timeout=1.0), grid, 3, checkpoint=file, callbacks=[keep])
    assert [len(history.rows) for history in kept] == [2, 3]
    for history in kept:
        assert history.privacy["unheard"] == [0]
        assert [" or more, " in text for text in client_statements(history, short=True)] == [True, False, False]
    assert dict(kept[0].rows[1]["spent"])[1] == spent(task, 1, 3), "its own ledger counts the round cut off"


def test_a_checkpoint_without_a_round_is_not_written(federation, tmp_path):
    """Without a seed in the task it would keep a server that starts again from its own run."""
    strategy, grid, _ = federation(privacy=PRIVACY, ledger=tmp_path, min_clients=3)
    grid.silent.add(101)
    with pytest.raises(NoUsableClient):
        run(strategy, grid, 2, checkpoint=tmp_path / "checkpoint.pt")
    assert not (tmp_path / "checkpoint.pt").exists()


def test_a_client_that_crashes_in_training_or_whose_answer_is_lost_has_spent(federation, tmp_path):
    class Crash(Exception):
        pass

    def loss(output, y):
        if broken:
            raise Crash("out of memory")
        return adadp.training.cross_entropy(output, y)

    broken = True
    strategy, grid, task = federation(privacy=PRIVACY, ledger=tmp_path, loss=loss, min_clients=1, test_data=None)
    with pytest.raises(NoUsableClient, match="Crash, which its own terminal shows"):
        run(strategy, grid, 1)
    broken = False
    grid.faults[101] = lambda order, answer: answer()[:0]
    run(again(task), grid, 1)
    grid.faults.clear()
    assert run(again(task), grid, 1)[0]["epsilon"] == [spent(task, client, 3) for client in range(3)]


def test_an_order_that_is_refused_spends_nothing(federation, tmp_path, monkeypatch):
    strategy, grid, _ = federation(privacy=PRIVACY, ledger=tmp_path, min_clients=1)
    grid.faults[101] = lambda order, answer: (order.content["config"].update({"client": 2}), answer())[1]
    assert run(strategy, grid, 1)[0]["missing"] == [1] and not (tmp_path / "1").exists()


def test_a_round_of_half_an_iteration_spends_nothing(federation, tmp_path, log):
    strategy, grid, _ = federation(privacy=PRIVACY, ledger=tmp_path, min_clients=1, batch_size=SIZES[2])
    row = run(strategy, grid, 1)[0]
    assert row["missing"] == [2] and not (tmp_path / "2").exists() and (tmp_path / "0").exists()


def test_an_answer_that_hides_what_was_spent_is_refused(federation, tmp_path):
    strategy, grid, _ = federation(privacy=PRIVACY, ledger=tmp_path)
    grid.faults[101] = changed(drop=["epsilon"])
    assert run(strategy, grid, 1)[0]["refused"] == [1]


def damage(path, how):
    if how == "cut":
        path.write_bytes(path.read_bytes()[:40])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "another file":
        checkpoints.save(path, net().state_dict())
    elif how == "other accountant":
        checkpoints.save(path, checkpoints.load(path) | {"accountant": "pld"})
    elif how == "negative":
        checkpoints.save(path, checkpoints.load(path) | {"releases": [(2.0, 0.1, -5)]})
    elif how == "a link to nowhere":
        path.unlink()
        path.symlink_to(path.parent / "not mounted" / "ledger")
    elif how == "folder":
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    "how", ["cut", "empty", "another file", "other accountant", "negative", "a link to nowhere", "folder"]
)
def test_a_damaged_ledger_is_an_error_and_never_a_fresh_start(tmp_path, how):
    path, training = tmp_path / "ledger", LocalTraining(sgd, 4, privacy=PRIVACY)
    ledger.spend(path, training, 40, delta=1e-5)
    damage(path, how)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(RuntimeError, match="ledger is not a privacy ledger that can be read: what was spent is unk"):
        ledger.spend(path, training, 40, delta=1e-5)
    assert before is None or path.read_bytes() == before


def test_all_names_of_a_ledger_are_one_ledger(tmp_path):
    real, link, training = tmp_path / "disk" / "ledger", tmp_path / "link", LocalTraining(sgd, 4, privacy=PRIVACY)
    link.symlink_to(real)
    spend = lambda path: ledger.spend(path, training, 40, delta=1e-5)  # noqa: E731
    values = [spend(path) for path in (real, link, real)]
    assert values == [spend(tmp_path / "other") for _ in range(3)] and link.is_symlink()
    with locks.locked(real.with_name(".ledger.lock"), wait=False) as free:
        assert free and not (tmp_path / ".link.lock").exists()


def test_a_folder_that_is_not_there_now_is_an_error_and_nothing_is_made_in_its_place(tmp_path):
    (tmp_path / "ledgers").symlink_to(tmp_path / "not mounted")
    (tmp_path / "ledger").symlink_to(tmp_path / "not mounted" / "ledger")
    for path in (tmp_path / "ledgers" / "mine", tmp_path / "ledger"):
        with pytest.raises((RuntimeError, OSError)):
            ledger.spend(path, LocalTraining(sgd, 4, privacy=PRIVACY), 40, delta=1e-5)
    assert not (tmp_path / "not mounted").exists()


def test_two_that_spend_at_once_lose_no_entry(tmp_path, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    path, training = tmp_path / "ledger", LocalTraining(sgd, 4, privacy=PRIVACY)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: ledger.spend(path, training, 40, delta=1e-5), range(12)))
    assert sum(times for *_, times in checkpoints.load(path)["releases"]) == 120


SOURCES = {
    "noise": {"batch_size": max(SIZES)},  # every step takes all examples, so that nothing but the noise differs
    "order": {"privacy": PRIVACY | {"noise_multiplier": 0.0}},
}


@pytest.mark.parametrize("choices", SOURCES.values(), ids=SOURCES)
def test_neither_noise_nor_order_follows_from_what_the_server_knows(federation, tmp_path, choices):
    settings, results = {"privacy": PRIVACY, "client_optimizer": sgd} | choices, set()
    for number in range(2):
        strategy, grid, task = federation(ledger=tmp_path / str(number), **settings)
        run(strategy, grid, 1)
        results.add(weights(strategy))
    assert len(results | {in_process(task, 1)[1]}) == 3


def test_a_ledger_s_name_stays_with_its_client(federation, log, tmp_path):
    """A folder may be called after a patient: of a damaged file the server gets to see the kind of the error alone."""
    place = tmp_path / "ward 7"
    strategy, grid, _ = federation(ledger=place, privacy=PRIVACY, min_clients=1)
    place.mkdir()
    for client in range(3):
        (place / str(client)).write_bytes(b"x")
    with pytest.raises(NoUsableClient):
        run(strategy, grid, 1)
    assert any("RuntimeError, which its own terminal shows" in line for line in log)
    assert not any("ward" in line for line in log)


# records


def test_states_survive_the_wire_to_the_last_bit():
    state = {
        "double": torch.randn(3, 2, dtype=torch.float64),
        "half": torch.randn(5).half(),
        "count": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(0.1),
        "complex": torch.randn(2, dtype=torch.complex64),
        "none": torch.zeros(0, 3),
        "odd": torch.tensor([math.nan, -0.0, math.inf, 1e-45]),
        "view": torch.arange(12.0).view(3, 4).T,
        "image": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    back = records.unpack_state(records.pack_state(state), state)
    assert list(records.unpack_state(records.pack_state(dict(reversed(state.items()))), state)) == list(state)
    assert list(back) == list(state) and fingerprint(back) == fingerprint(state)
    assert all(back[name].dtype == value.dtype and back[name].shape == value.shape for name, value in state.items())


def test_bfloat16_is_refused_in_words(federation):
    with pytest.raises(TypeError, match=r"weights cannot be sent .*use a float32 model"):
        records.pack_state({"w": torch.zeros(2, dtype=torch.bfloat16)})
    strategy, grid, _ = federation(model=lambda: net().bfloat16(), test_data=None)
    with pytest.raises(TypeError, match="use a float32 model"):
        run(strategy, grid, 1)
    assert grid.asked == [], "nobody has been waited for"


@pytest.mark.parametrize(
    "told", [{"lr": "fast"}, {"epsilon": "none"}, {"num-examples": True}, {"lrs": ["a"]}, {"error": b"x"}, {}]
)
def test_an_answer_that_tells_something_else_than_numbers_is_refused(federation, tmp_path, log, told):
    strategy, grid, _ = federation(privacy=PRIVACY, ledger=tmp_path)

    def odd(order, answer):
        (reply,) = answer()
        reply.content["metrics"] = ConfigRecord(dict(reply.content["metrics"]) | told)
        return [reply]

    grid.faults[101] = odd
    (row,) = run(strategy, grid, 1)
    assert row["refused"] == [1] and row["clients"] == [0, 2]
    assert any("client 1 is refused: the reply is not one of adadp" in line for line in log)


def test_reports_survive_the_wire_and_flower_can_read_them():
    report = ClientReport(24, 6, 0.1, math.nan, 2, 1, [0.1, 1 / 3], None)
    content = records.pack_reply({"w": torch.ones(2)}, report, [1 / 3, 0.2], 5, 1)
    assert content["metrics"]["num-examples"] == 24 and isinstance(content["metrics"], MetricRecord)
    state, back, lrs = records.unpack_reply(content, {"w": torch.zeros(2)}, 5, 1)
    assert lrs == [1 / 3, 0.2] and torch.equal(state["w"], torch.ones(2)) and math.isnan(back.error)
    assert (back.examples, back.steps, back.lr, back.lrs, back.epsilon) == (24, 6, 0.1, [0.1, 1 / 3], None)


def test_averages_of_flower_itself_accept_an_answer():
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

    contents = [
        records.pack_reply({"w": torch.ones(1)}, ClientReport(n, 1, lr), [lr], 1, 0) for n, lr in ((1, 0.1), (3, 0.3))
    ]
    assert aggregate_metricrecords(contents, "num-examples")["lr"] == pytest.approx(0.25)

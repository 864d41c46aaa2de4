"""What a private federation's history says of its epsilons, and each client's statement in words."""

import pytest
import torch
from federated_helpers import PRIVACY, SIZES, data, make, net, sgd

import adadp
from adadp import checkpoint as checkpoints
from adadp.federated import FederatedAveraging, client_statements
from adadp.federated.continuing import settings
from adadp.history import History
from adadp.rounding import round_up


def loop(optimizer=sgd, **choices):
    known = {"batch_size": 4, "privacy": PRIVACY, "delta": 1e-4, "generator": torch.Generator().manual_seed(5)}
    return FederatedAveraging(net(), [data(k) for k in range(3)], optimizer, **known | choices)


def stop_after_one(round, **_):
    if round == 1:
        raise KeyboardInterrupt


def test_the_history_says_what_its_epsilons_assume():
    history = loop().run(2, progress=False)
    assert history.privacy == {
        "sampler": "poisson",
        "assumed_sampler": "poisson",
        "matches": True,
        "neighbors": "add_remove",
        "accountant": "moments",
        "delta": 1e-4,
        "noise_multiplier": 2.0,
        "max_grad_norm": 1.0,
        "sample_rate": [4 / size for size in SIZES[:3]],
        "steps": [2 * size // 4 for size in SIZES[:3]],
        "ledgers": "one a client, in this process",
    }
    assert History.from_json(history.to_json()) == history


def test_every_epsilon_of_the_rows_follows_from_it():
    history = loop(participation=0.67, local_epochs=2).run(5, progress=False)
    assert len(set(history.privacy["steps"])) > 1 and any(len(row["clients"]) < 3 for row in history.rows)
    for client, (rate, steps) in enumerate(zip(history.privacy["sample_rate"], history.privacy["steps"], strict=True)):
        last = [dict(zip(row["clients"], row["epsilon"], strict=True)).get(client) for row in history.rows]
        last = [value for value in last if value is not None][-1]
        assert adadp.epsilon(noise_multiplier=2.0, sample_rate=rate, steps=steps, delta=1e-4) == pytest.approx(last)


def test_statements_are_those_of_each_clients_own_numbers():
    history = loop().run(2, progress=False)
    for short in (True, False):
        wanted = [
            adadp.privacy_statement(
                noise_multiplier=2.0, sample_rate=4 / size, steps=2 * size // 4, delta=1e-4,
                record=f"one training example of client {client}", short=short,
            )
            for client, size in enumerate(SIZES[:3])
        ]  # fmt: skip
        assert client_statements(history, short=short) == wanted
        assert client_statements(History.from_json(history.to_json()), short=short) == wanted
    for text, value in zip(client_statements(history), history.rows[-1]["epsilon"], strict=True):
        assert text.startswith(f"epsilon = {round_up(value)} at delta = 0.0001\n")


def test_steps_count_refused_rounds_earlier_calls_and_clients_not_yet_drawn():
    made = []

    def optimizer(parameters):
        made.append(1)
        return sgd(parameters, lr=3e38 if len(made) == 2 else 0.1)

    fed = loop(optimizer, keep_lr=False)
    with pytest.warns(UserWarning, match="round 1"):
        history = fed.run(1, progress=False)
    assert history.rows[0]["refused"] == [1] and history.privacy["steps"] == [size // 4 for size in SIZES[:3]]
    assert fed.run(1, progress=False).privacy["steps"] == [2 * size // 4 for size in SIZES[:3]]
    none_yet = loop().run(0, progress=False)
    assert none_yet.privacy["steps"] == [0, 0, 0]
    assert client_statements(none_yet, short=True)[2].startswith("ε = 0, δ = 10⁻⁴ (one training example of client 2,")


def test_callbacks_and_checkpoints_see_it_and_a_continued_run_fills_it(tmp_path):
    file, whole, seen = tmp_path / "fed.pt", loop().run(2, progress=False), []
    with pytest.raises(KeyboardInterrupt):
        keep = lambda history, **_: seen.append(history.privacy["steps"])  # noqa: E731
        loop().run(2, progress=False, checkpoint=file, callbacks=[keep, stop_after_one])
    assert seen == [[size // 4 for size in SIZES[:3]]]
    state = checkpoints.load(file)
    held = History.from_json(state["history"])
    assert held.privacy["steps"] == seen[0]
    held.privacy = {}  # as earlier versions wrote it
    checkpoints.save(file, state | {"history": held.to_json()})
    assert loop().run(2, progress=False, checkpoint=file) == whole


def test_what_tells_runs_apart_is_as_it_was():
    """Checkpoints of long runs hold it: another entry would make them another run's. What they lack counts as alike."""
    plain, private = settings(loop(privacy=None)), settings(loop())
    head = {"participation": 1.0, "keep_lr": True, "delta": 1e-4, "clients": list(SIZES[:3]), "batch_size": 4}
    head |= {"local_epochs": 1, "reduction": "mean"}
    assert {name: plain[name] for name in head} == head
    assert set(plain) == {*head, "model", "privacy", "optimizer", "loss", "data"} and len(plain["data"]) == 3
    assert plain["privacy"] == {} and private["privacy"] == {"max_grad_norm": "1", "noise_multiplier": "2"}


def test_the_statement_of_one_training_leads_to_those_of_clients():
    with pytest.raises(ValueError, match=r"adadp\.federated\.client_statements$"):
        adadp.privacy_statement(loop().run(1, progress=False))


def test_without_privacy_there_is_nothing_to_state():
    history = loop(privacy=None).run(1, progress=False)
    assert history.privacy == {}
    for other in (history, History(), None, History(privacy={"sample_rate": 0.1})):
        with pytest.raises(ValueError, match="history must be that of a federation with privacy"):
            client_statements(other)


def test_a_folder_keeps_it(tmp_path):
    from adadp.federated.keeping import run_in_process

    run_in_process(make(privacy=PRIVACY), rounds=1, output=tmp_path / "out", device="cpu", say=lambda line: None)
    kept = History.from_json((tmp_path / "out" / "history.json").read_text())
    assert kept.privacy["steps"] == [size // 4 for size in SIZES[:3]] and len(client_statements(kept)) == 3

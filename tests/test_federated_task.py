"""Tasks: their arguments, their data, the names that stand for them, and what a run of one leaves in its folder."""

import math
import sys

import numpy as np
import pytest
import torch
from federated_helpers import PRIVACY, make, net, sgd

from adadp import checkpoint as checkpoints
from adadp.federated import NoUsableClient
from adadp.federated.keeping import fingerprint, folder_for_one, run_in_process
from adadp.federated.statements import client_statements
from adadp.federated.task import load_task
from adadp.history import History


@pytest.mark.parametrize(
    ("choices", "error"),
    [
        *(({name: 5}, TypeError) for name in ("model", "data", "client_optimizer", "loss", "test_data")),
        *(({"clients": value}, ValueError) for value in (0, -1, 2.0, True)),
        *(({"batch_size": value}, ValueError) for value in (0, 1.5)),
        *(({"local_epochs": value}, ValueError) for value in (0, 1.5)),
        *(({"participation": value}, ValueError) for value in (0, 1.1, math.nan)),
        *(({"seed": value}, ValueError) for value in (-1, 0.5)),
        *(({"delta": value}, ValueError) for value in (0, 1)),
        ({"keep_lr": 1}, ValueError),
        ({"reduction": "max"}, ValueError),
        ({"trace": -1}, ValueError),
        ({"privacy": {"max_grad_norm": 1.0}}, ValueError),
    ],
)
def test_bad_arguments_of_a_task_are_named(choices, error):
    (name,) = choices
    with pytest.raises(error, match=name):
        make(**choices)


BAD_DATA = {
    "has no data": (torch.zeros(0, 4), torch.zeros(0)),
    "has 3 inputs but 2 labels": (torch.zeros(3, 4), torch.zeros(2)),
    "must give .x, y., two tensors or numpy arrays, .*, got tuple of 2 .list, ndarray.": ([[0.0]], np.zeros(1)),
    "must give .x, y., .*, got NoneType": None,
    "must give .x, y., .*, got Tensor": torch.zeros(2, 3),
}


@pytest.mark.parametrize("reason", BAD_DATA)
def test_data_that_are_none_are_named(reason):
    with pytest.raises(ValueError, match=rf"data\(1\) {reason}"):
        make(data=lambda client: BAD_DATA[reason]).client_data(1)
    with pytest.raises(ValueError, match=rf"data\(0\) {reason}"):
        make(data=lambda client: BAD_DATA[reason]).in_process("cpu")
    with pytest.raises(ValueError, match=rf"test_data\(\) {reason}"):
        make(test_data=lambda: BAD_DATA[reason]).in_process("cpu")


MODULES = {
    "good": "from federated_helpers import make\ntask = make()\n",
    "needy": "import a_module_that_nobody_has\n",
    "narrow": "from math import no_such_name\n",
    "odd": "number = 5\ndef more(x):\n    return x\ndef text():\n    return 'text'\n",
}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("good", "must be MODULE:NAME"),
        (":task", "must be MODULE:NAME"),
        ("good:", "must be MODULE:NAME"),
        ("", "must be MODULE:NAME"),
        (".good:task", "must be MODULE:NAME"),
        ("no_such_module:task", "No module named 'no_such_module'; start in the folder"),
        ("good.inner:task", "is not a package; start in the folder"),
        ("good:other", "has no attribute 'other'"),
        ("good:task:more", "has no attribute 'task:more'"),
        ("needy:task", "No module named 'a_module_that_nobody_has'; needy needs it"),
        ("narrow:task", "cannot import name 'no_such_name' .*; narrow needs it"),
        ("odd:number", "must be an adadp.federated.Task, or make one, got int"),
        ("odd:text", "got str"),
        ("odd:more", "must be made without arguments, but: missing a required argument: 'x'"),
    ],
)
def test_names_that_stand_for_no_task(tmp_path, monkeypatch, name, reason):
    for module, text in MODULES.items():
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for module in MODULES:
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ValueError, match=reason):
        load_task(name)
    assert load_task("good:task").clients == 3 and load_task("federated_helpers:make").clients == 3
    for module in MODULES:
        sys.modules.pop(module, None)


def test_two_runs_in_one_folder_are_refused(tmp_path):
    with folder_for_one(tmp_path / "out"):
        with pytest.raises(RuntimeError, match=r"another run is at work in .*out"), folder_for_one(tmp_path / "out"):
            pass
        with folder_for_one(tmp_path / "other"):
            pass
    with folder_for_one(tmp_path / "out"):
        pass


def test_a_run_in_one_process_is_kept_told_and_not_written_over(tmp_path):
    said = []
    run_in_process(make(), rounds=2, output=tmp_path / "out", device="cpu", say=said.append)
    loop = make().in_process("cpu")
    rows = loop.run(2, progress=False).rows
    assert History.from_json((tmp_path / "out" / "history.json").read_text()).rows == rows
    name = fingerprint(checkpoints.load(tmp_path / "out" / "model.pt"))
    assert name == fingerprint(loop.model.state_dict()) and said[-1] == f"finished: weights {name}" and len(said) == 3
    with pytest.raises(ValueError, match="holds a finished run: name another folder"):
        run_in_process(make(), rounds=2, output=tmp_path / "out", device="cpu", say=said.append)
    with folder_for_one(tmp_path / "out"), pytest.raises(RuntimeError, match="another run is at work"):
        run_in_process(make(), rounds=2, output=tmp_path / "out", device="cpu", say=said.append)


def test_two_and_two_point_zero_are_the_same_setting():
    agreed = make(privacy=PRIVACY | {"noise_multiplier": 2}).agreement(net())
    assert agreed == make(privacy=PRIVACY | {"noise_multiplier": 2.0}).agreement(net())
    assert agreed != make(privacy=PRIVACY | {"noise_multiplier": 2.5}).agreement(net())
    whole, broken = (make(client_optimizer=lambda p, lr=lr: sgd(p, lr)).agreement(net()) for lr in (1, 1.0))
    assert whole == broken


def test_a_private_run_ends_with_what_each_client_has_spent(tmp_path):
    said = []
    run_in_process(make(privacy=PRIVACY), rounds=2, output=tmp_path / "out", device="cpu", say=said.append)
    history = History.from_json((tmp_path / "out" / "history.json").read_text())
    assert said[-3:] == client_statements(history, short=True) and len(said) == 6
    assert said[-1].startswith("ε = ") and "client 2" in said[-1]


def test_a_private_run_that_was_ended_after_its_last_round_tells_what_was_spent(tmp_path):
    out, said = tmp_path / "out", []
    with pytest.raises(KeyboardInterrupt):
        run_in_process(make(privacy=PRIVACY), rounds=2, output=out, device="cpu", say=stop_at("round 2"))
    assert (out / "checkpoint.pt").exists()
    run_in_process(make(privacy=PRIVACY), rounds=2, output=out, device="cpu", say=said.append)
    history = History.from_json((out / "history.json").read_text())
    assert len(history.rows) == 2 and said[-3:] == client_statements(history, short=True)


@pytest.mark.filterwarnings("ignore:round 2")
def test_a_private_run_that_fails_tells_what_its_last_round_cost(tmp_path):
    rate, said = [0.1], []

    def say(line):
        said.append(line)
        rate[0] = 3e38

    failing = make(privacy=PRIVACY, client_optimizer=lambda p: sgd(p, rate[0]), keep_lr=False)
    with pytest.raises(NoUsableClient):
        run_in_process(failing, rounds=2, output=tmp_path / "out", device="cpu", say=say)
    history = History.from_json((tmp_path / "out" / "history.json").read_text())
    assert history.privacy["steps"] == [2 * steps for steps in history.rows[0]["steps"]]
    assert said[-3:] == client_statements(history, short=True)


def stop_at(start):
    """Says nothing, and ends a run at the line that starts so."""

    def say(line):
        if line.startswith(start):
            raise KeyboardInterrupt

    return say

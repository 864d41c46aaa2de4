"""The benchmarks run, write what they promise, and time what they say."""

import gc
import json
import re

import pytest
import torch

from adadp import timing
from benchmarks import (
    accounting,
    common,
    federated_step,
    optimizer_step,
    private_growth,
    private_profile,
    private_step,
    quick_start,
)


def test_contenders_take_turns_and_the_warm_up_is_dropped():
    seen = []
    calls = {name: lambda name=name: seen.append(name) for name in "abc"}
    found = timing.alternate(calls, repeats=4, warm_up=2)
    assert all(len(t.wall) == len(t.cpu) == 4 for t in found.values())
    order = [name for i, name in enumerate(seen) if i == 0 or name != seen[i - 1]]
    assert order[:3] == ["b", "c", "a"] and {tuple(order[i : i + 2]) for i in range(len(order) - 1)} >= {("a", "b")}
    assert all(min(t.wall) <= t.least / 1e3 <= t.median / 1e3 for t in found.values())


def test_an_interrupted_short_call_is_made_again_and_a_long_one_is_not(monkeypatch):
    count, calls = iter(range(100)), []
    monkeypatch.setattr(timing, "_interruptions", lambda: next(count))
    timing.alternate({"a": lambda: calls.append(0)}, repeats=1, warm_up=0)
    assert len(calls) == 2 * timing.TRIES
    monkeypatch.setattr(timing, "SHORT", -1.0)
    timing.alternate({"a": lambda: calls.append(0)}, repeats=1, warm_up=0)
    assert len(calls) == 2 * timing.TRIES + 1


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_as_it_was(enabled):
    def fail():
        assert not gc.isenabled()
        raise KeyError

    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(KeyError):
            timing.alternate({"a": fail}, repeats=1)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_tables_and_pictures(tmp_path):
    rows = [{"name": "one", "ms": 1.23456}, {"name": "two", "more": 3}]
    assert common.table(rows).splitlines()[2:] == ["| one | 1.23 |  |", "| two |  | 3 |"]
    picture = common.curves({"clients": ([1, 10], {"adadp": [1.0, 9.0], "peer": [2.0, 30.0]})}, label="ms")
    common.write(tmp_path, "some", "text", {"rows": rows, "env": {"n": 1 / 3}}, picture)
    assert json.loads((tmp_path / "some.json").read_text())["env"]["n"] == 0.3333
    assert "<svg" in (tmp_path / "some.svg").read_text() and (tmp_path / "some.md").read_text() == "text\n"
    assert {"threads", "processor", "torch", "opacus", "commit", "date"} <= common.environment("opacus").keys()


def test_the_private_step(tmp_path):
    private_step.main(["--network", "mnist-mlp", "--no-peers", "--repeats", "2", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "private_step.json").read_text())
    assert [row["contender"] for row in found["rows"]] == ["plain SGD", "plain Adam", "noise alone", "adadp"]
    assert all(0 < row["least ms"] <= row["median ms"] for row in found["rows"]) and len(found["ratios"]) == 3


@pytest.mark.filterwarnings("ignore")
def test_every_contender_of_a_private_step_moves_the_weights():
    pytest.importorskip("opacus")
    x, y = torch.randn(6, 784), torch.arange(6)
    makers = [private_step.plain, private_step.ours, private_step.vmapped]
    makers += [lambda m, x, y, mode=mode: private_step.opacus(m, x, y, mode) for mode in private_step.OPACUS.values()]
    for make in makers:
        model = private_step.make("mnist-mlp")
        before = [p.detach().clone() for p in model.parameters()]
        make(model, x, y)()
        assert all(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_the_optimizer_step(tmp_path, monkeypatch):
    monkeypatch.setattr(optimizer_step, "PARAMETERS", 2000)
    optimizer_step.main(["--quick", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "optimizer_step.json").read_text())
    assert found["repeats"] == 20 and found["rows"][0]["contender"] == optimizer_step.PEER


def test_growth(tmp_path, monkeypatch):
    pytest.importorskip("opacus")
    monkeypatch.setattr(private_growth, "SWEEPS", {"batch": (2, 4), "width": (8,), "parameters": (10_000,)})
    private_growth.main(["--repeats", "1", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "private_growth.json").read_text())["rows"]
    assert [(row["sweep"], row["value"]) for row in rows] == [
        ("batch", 2),
        ("batch", 4),
        ("width", 8),
        ("parameters", 10_000),
    ]
    assert all(row["plain + noise"] > row["plain SGD"] for row in rows)


def test_the_federated_step(tmp_path, monkeypatch):
    monkeypatch.setattr(federated_step, "GROWTH", (1, 2))
    monkeypatch.setattr(federated_step, "CLIENTS", 2)
    monkeypatch.setattr(federated_step, "LONG", 2)
    monkeypatch.setattr(federated_step, "BRIEF", 2)
    federated_step.main(["--repeats", "1", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "federated_step.json").read_text())
    assert [(row["network"], row["clients"]) for row in found["growth"]] == [
        ("mnist-mlp", 1), ("mnist-mlp", 2), ("cifar-cnn", 1), ("cifar-cnn", 2),
    ]  # fmt: skip
    assert (tmp_path / "federated_growth.svg").exists()


def test_accounting(tmp_path, monkeypatch):
    monkeypatch.setattr(accounting, "SETTINGS", {"tiny": (0.1, 10)})
    accounting.main(["--repeats", "1", "--out", str(tmp_path)])
    assert len(json.loads((tmp_path / "accounting.json").read_text())["rows"]) == 20


def test_the_profile_of_a_private_step(tmp_path, monkeypatch):
    monkeypatch.setattr(private_profile, "NETWORKS", ["mnist-mlp"])
    private_profile.main(["--repeats", "2", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "private_profile.json").read_text())["rows"]
    assert {"aten::mm", "aten::normal_"} <= {row["operation"] for row in rows[:4]}
    assert 50 < sum(row["per cent"] for row in rows) <= 100


@pytest.mark.parametrize(
    "module", [accounting, federated_step, optimizer_step, private_growth, private_profile, private_step]
)
def test_help_explains_what_is_measured(module, capsys):
    with pytest.raises(SystemExit, match="0"):
        module.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert " ".join(module.__doc__.replace("``", "").split()) in text


def test_the_quick_start_is_compared_with_nothing_but_the_optimizer_changed(tmp_path, monkeypatch, capsys):
    code = quick_start.quick_start()
    other = quick_start.competitor(code, "SGD", 0.25).splitlines()
    assert [line for line in other if line not in code.splitlines()] == [
        "import torch", "optimizer = torch.optim.SGD(model.parameters(), lr=0.25)"
    ]  # fmt: skip
    assert len(other) == len(code.splitlines()) + 1
    with pytest.raises(ValueError, match="one line, found 0"):
        quick_start.competitor("nothing", "SGD", 0.25)
    assert ' | {"tol": tol}' in code
    short, times = re.subn(r'"steps": 200', '"steps": 2', code)
    assert times == 1
    monkeypatch.setattr(quick_start, "quick_start", lambda: short)
    monkeypatch.setattr(quick_start, "GRID", {"Adam": [0.01]})
    quick_start.main(["--repeats", "2", "--out", str(tmp_path)])
    kept = json.loads((tmp_path / "quick_start.json").read_text())
    assert kept["seeds"] == 2 and [row["optimizer"] for row in kept["rows"]] == [
        quick_start.OWN,
        quick_start.LONG,
        "Adam",
    ]
    assert all(0 <= row["lowest %"] <= row["highest %"] <= 100 for row in kept["rows"])
    assert "| Adam | 0.01 |" in capsys.readouterr().out

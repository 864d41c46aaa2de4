"""The federated experiments: configs, data of a run, records, resumption, profiles."""

import math

import pytest
import torch

from adadp.data import Dataset
from adadp.experiments import federated_execution, grids, results, runner, tables
from adadp.experiments.configs import FederatedRun, from_dict
from adadp.experiments.execution import execute
from adadp.experiments.federated import EXPERIMENTS, RANDOM, federated
from adadp.experiments.federated_execution import build, gradients, groups_of, held
from adadp.experiments.plan import PROFILES

TINY = dict(dataset="mnist-5k", model="mnist_mlp", examples_per_client=40, rounds=2)


def test_protocol_is_the_papers():
    config = federated(random_fraction=0.33)
    assert (config.tol, config.discard, config.advance, config.exponent) == (0.1, True, "euler", 1.0)
    assert (config.batch_size, config.rounds, config.examples_per_client) == (10, 200, 10000)
    assert sorted(c for group in groups_of(config) for c in group) == list(range(10))
    assert gradients(config) == 1_000_000
    assert from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"random_fraction": 1.5}, "random_fraction"),
        ({"random_fraction": float("nan")}, "random_fraction"),
        ({"rounds": 0}, "rounds"),
        ({"beta1": 0.9}, "belong to method"),
        ({"tol": None}, "belong to method"),
        ({"reduction": "max"}, "reduction"),
        ({"model": "resnet"}, "model"),
    ],
)
def test_wrong_fields_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        federated(**{"random_fraction": 0.0} | change)


def test_profiles_make_the_runs_smaller_and_change_nothing_else():
    config = federated(random_fraction=0.33)
    laptop, full = PROFILES["laptop"](config), PROFILES["full-data"](config)
    assert laptop == config.but(examples_per_client=2000, rounds=40)
    assert full == config.but(examples_per_client=10000, rounds=40)
    assert PROFILES["quick"](config).dataset == "mnist-5k"


def test_every_experiment_has_cells_with_ids_of_their_own():
    for name in EXPERIMENTS:
        cells = grids.cells(name, {}, "laptop", assume=True)
        assert cells
        by_id = {}
        for cell in cells:
            assert by_id.setdefault(cell.config.id, cell.config) == cell.config
    fractions = {c.config.random_fraction for c in grids.cells("fed-randomness", {}, "laptop")}
    assert fractions == set(RANDOM)


def test_tier_one_has_the_seeds_that_the_claims_need():
    cells = [c for c in grids.cells("fed-randomness", {}, "laptop", assume=True) if c.role in ("adadp", "sgd best")]
    assert {c.tier for c in cells} == {1} and len(cells) == 2 * 4 * 3


def test_at_full_data_size_the_grid_grows_until_its_best_is_inside():
    """Around the laptop size's best lr: that and its neighbours in tier 1, what the results ask for in tier 2."""
    known: dict = {}

    def finish(size, best):
        """Store what is asked for, the better the nearer its lr is to this one."""
        while todo := [c.config for c in grids.cells("fed-rounds", known, size) if c.config.id not in known]:
            for config in todo:
                score = 0.5 - 0.1 * abs(math.log10(config.lr / best))
                known[config.id] = {"config": config.to_dict(), "rows": {"test_accuracy": [score]}}

    finish("laptop", 10**-1.5)
    finish("full-data", 10**-2.5)
    cells = [c for c in grids.cells("fed-rounds", known, "full-data") if c.role == "sgd"]
    tiers = {tier: sorted({c.config.lr for c in cells if c.tier == tier}) for tier in (1, 2)}
    assert tiers == {1: [0.01, 0.0316228, 0.1], 2: [0.001, 0.00316228]}
    assert len(cells) == 2 * 5 and {c.config.seed for c in cells} == {1}


def test_private_experiments_have_no_cells_at_federated_sizes():
    assert grids.cells("dp-adam-mnist", {}, "laptop") == []
    with pytest.raises(ValueError, match="size of the federated experiments"):
        runner.run("dp-adam-mnist", "laptop")


def test_clients_hold_equally_many_of_each_class():
    y = torch.arange(10).repeat(30)
    data = Dataset(torch.zeros(300, 1), y, torch.zeros(1, 1), y[:1], name="toy", provenance="toy")
    indices = held(data, federated(random_fraction=0.0, examples_per_client=20))
    assert torch.bincount(y[indices]).tolist() == [10] * 10
    with pytest.raises(ValueError, match="class 1 has 30 examples"):
        held(data, federated(random_fraction=0.0, examples_per_client=80))


@pytest.fixture(scope="module")
def record():
    return execute(federated(random_fraction=0.33, **TINY), device="cpu")


def test_record_holds_what_figures_need(record):
    rows = record["rows"]
    assert rows["round"] == [1, 2] and len(rows["test_accuracy"]) == 2
    assert all(len(row) == 5 for name in ("lr", "error", "accepted", "discarded") for row in rows[name])
    assert record["within_rounds"]["round"] == [1, 2]
    assert all(0 < lr < 1 for client in record["within_rounds"]["lr"][0] for lr in client)


def test_record_is_saved_and_summed_up(record, tmp_path):
    results.save(record, "fed-rounds", tmp_path)
    loaded = results.load(tmp_path)
    (stored,) = loaded.values()
    assert isinstance(from_dict(stored["config"]), FederatedRun)
    assert stored["rows"]["lr"][1][4] == pytest.approx(record["rows"]["lr"][1][4], rel=1e-5)


def test_same_config_same_record_interrupted_or_not(record, tmp_path):
    calls = []

    def stop():
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    config, file = federated(random_fraction=0.33, **TINY), tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        execute(config, device="cpu", checkpoint=file, on_epoch=stop)
    again = execute(config, device="cpu", checkpoint=file)
    assert again["resumed"] and again["rows"] == record["rows"]
    assert again["within_rounds"] == record["within_rounds"]


@pytest.mark.filterwarnings("ignore:round")
def test_a_run_that_breaks_down_is_stored_as_guessing(tmp_path):
    """So that a grid of lr has an end; a run that only raised would keep the grid from ever being complete."""
    config = federated("sgd", random_fraction=0.0, lr=1e6, **TINY | {"rounds": 3})
    broken = execute(config, device="cpu")
    assert 1 <= broken["diverged"] <= 2
    assert broken["rows"]["round"] == [1, 2, 3] and broken["rows"]["test_accuracy"][-1] == 0.1
    results.save(broken, "fed-lr", tmp_path)
    (stored,) = results.load(tmp_path).values()
    assert stored["diverged"] == broken["diverged"] and stored["rows"]["lr"][-1] == [1e6] * 5
    assert runner._fault(stored) is None


@pytest.mark.filterwarnings("ignore:round")
def test_clients_that_were_left_out_are_stored_and_the_others_keep_their_places(record, tmp_path, monkeypatch):
    def poisoned(config, data, device):
        loop = build(config, data, device)
        ordinary = loop._update

        def update(client, report, lrs):
            found = ordinary(client, report, lrs)
            if client == 2 and loop._done == 1:
                next(iter(found.state.values())).fill_(float("nan"))
            return found

        loop._update = update
        return loop

    assert "refused" not in record["rows"]
    monkeypatch.setattr(federated_execution, "build", poisoned)
    results.save(execute(federated(random_fraction=0.33, **TINY), device="cpu"), "fed-rounds", tmp_path)
    (stored,) = results.load(tmp_path).values()
    rows = stored["rows"]
    assert rows["refused"] == [[], [2]]
    for name in ("lr", "error", "accepted", "discarded"):
        assert [value is None for value in rows[name][1]] == [False, False, True, False, False]
        assert rows[name][0] == results.compact(record["rows"][name][0], results.FEWER.get(name, 6))
    assert [value is None for value in stored["within_rounds"]["lr"][1]] == [False, False, True, False, False]
    assert runner._fault(stored) is None
    rows["lr"][0][1] = None
    assert "lr not finite" in runner._fault(stored)


def test_a_constant_lr_is_not_traced_within_rounds():
    """Hundreds of runs are stored, and the store travels with the package."""
    record = execute(federated("sgd", random_fraction=0.0, lr=0.01, **TINY), device="cpu")
    assert record["within_rounds"] == {"round": [], "lr": []} and "error" not in record["rows"]


def test_runner_carries_out_the_quick_profile(tmp_path, cache):
    report = runner.run("fed-rounds", "quick", limit=2, folder=tmp_path, progress=False, device="cpu")
    assert len(report.new) == 2
    rows = tables.table("fed-rounds", results.load(tmp_path), "quick")
    assert rows and rows[0]["random"] == 0.0 and rows[0]["batch_size"] == 10


def test_a_config_decides_the_loop():
    y = torch.arange(10).repeat(40)
    data = Dataset(torch.zeros(400, 1, 28, 28), y, torch.zeros(1, 1, 28, 28), y[:1], name="toy", provenance="toy")
    small = TINY | dict(batch_size=5, local_epochs=3, keep_lr=False, reduction="sum")
    loop = build(federated(random_fraction=0.0, **small), data, "cpu")
    training = loop.training
    assert (training.batch_size, training.local_epochs, loop.keep_lr, training.reduction) == (5, 3, False, "sum")
    assert [sorted(labels.unique().tolist()) for _, labels in loop.clients] == [[1, 9], [0, 8], [3, 5], [2, 6], [4, 7]]
    mixed = build(federated(random_fraction=1.0, **small), data, "cpu")
    assert all(len(labels.unique()) > 2 and len(labels) == 40 for _, labels in mixed.clients)

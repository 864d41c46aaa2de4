"""Stored files: whole or absent, small, readable, and what is computed from them."""

import json
import math
from pathlib import Path

import pytest

from adadp.experiments import execution, grids, results, tables
from adadp.experiments.configs import from_dict
from adadp.experiments.plan import Grid
from adadp.experiments.private import PRINTED, private, recommended
from adadp.experiments.verification import verify
from adadp.optimizer import VARIANTS


def record(config, accuracy=(0.5, 0.9), **changes) -> dict:
    """A record as the runner makes it."""
    n = len(accuracy)
    rows = {
        "epoch": list(range(1, n + 1)),
        "steps": [300 * k for k in range(1, n + 1)],
        "test_accuracy": list(accuracy),
    }
    rows |= {"epsilon_moments": [1 / 3] * n, "epsilon_pld": [math.inf] * n}
    return {"config": config.to_dict(), "rows": rows, "first_epoch": {}, "data": "MNIST", "device": "cpu (x)"} | changes


@pytest.fixture
def config():
    return private("mnist", noise_multiplier=2, **PRINTED)


def test_save_and_load(tmp_path, config):
    path = results.save(record(config), "dp-adam-mnist", tmp_path)
    assert path.name == f"{config.slug}-{config.id}.json" and path.parent.name == "dp-adam-mnist"
    (loaded,) = results.load(tmp_path).values()
    assert loaded["id"] == config.id and loaded["experiment"] == "dp-adam-mnist"
    assert from_dict(loaded["config"]) == config
    assert loaded["rows"]["epsilon_moments"] == [0.333334] * 2, "six significant digits, and never less than it was"
    assert loaded["rows"]["epsilon_pld"] == [None] * 2, "what is not finite is null"


def test_diagnostics_are_stored_in_few_digits_or_not_at_all(tmp_path, config):
    with_error = record(config)
    with_error["rows"] |= {"error": [1.234567, math.nan], "test_loss": [0.987654, 2.0], "discarded": [None, None]}
    results.save(with_error, "x", tmp_path)
    rows = next(iter(results.load(tmp_path).values()))["rows"]
    assert rows["error"] == [1.235, None] and rows["test_loss"] == [0.9877, 2.0] and "discarded" not in rows
    assert rows["epsilon_pld"] == [None, None], "an infinite epsilon is told from a missing one"


def test_config_is_stored_to_the_last_digit(tmp_path):
    exact = private("mnist", noise_multiplier=1 / 3, **PRINTED)
    results.save(record(exact), "x", tmp_path)
    (loaded,) = results.load(tmp_path).values()
    assert loaded["config"]["noise_multiplier"] == 1 / 3


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"config": {"kind": "private"}}', '{"config": 3}', "[" * 100000]
)
def test_a_damaged_file_is_named(tmp_path, config, text):
    path = results.save(record(config), "x", tmp_path)
    path.write_text(text)
    with pytest.raises(RuntimeError, match=path.name):
        results.load(tmp_path)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b'{"id": "x"'])
def test_bytes_that_are_no_text_are_named(tmp_path, config, data):
    path = results.save(record(config), "x", tmp_path)
    path.write_bytes(data)
    with pytest.raises(RuntimeError, match=rf"{path.name}.*run its experiment again"):
        results.load(tmp_path)


def test_a_file_that_cannot_be_opened_is_named(tmp_path, config):
    path = results.save(record(config), "x", tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(RuntimeError, match=rf"{path.name} cannot be read .*make it readable"):
        results.load(tmp_path)


@pytest.mark.parametrize(
    "rows",
    [None, [], {}, {"epoch": []}, {"epoch": [1, 2], "test_accuracy": [0.5]}, {"epoch": 1}, {"epoch": [1], "lr": 2}],
)
def test_rows_of_unequal_length_are_a_damaged_file(tmp_path, config, rows):
    path = results.save(record(config), "x", tmp_path)
    text = json.loads(path.read_text())
    for change in ({"rows": rows}, {"rows": text["rows"], "id": None}):
        path.write_text(json.dumps(text | change))
        with pytest.raises(RuntimeError, match=path.name):
            results.load(tmp_path)
    del text["rows"]
    path.write_text(json.dumps(text))
    with pytest.raises(RuntimeError, match="'rows' is missing"):
        results.load(tmp_path)


def test_a_changed_config_is_noticed(tmp_path, config):
    path = results.save(record(config), "x", tmp_path)
    text = json.loads(path.read_text())
    text["config"]["noise_multiplier"] = 3.0
    path.write_text(json.dumps(text))
    with pytest.raises(RuntimeError, match="disagree"):
        results.load(tmp_path)


def test_leftovers_of_killed_writes_are_not_results(tmp_path, config):
    path = results.save(record(config), "x", tmp_path)
    path.with_name(f".{path.name}.123.tmp").write_text("{")
    (tmp_path / "x" / "notes.json").write_text("{")
    assert list(results.load(tmp_path)) == [config.id]


def test_known_records_are_not_read_again(tmp_path, config):
    path = results.save(record(config), "x", tmp_path)
    known = results.load(tmp_path)
    path.write_text("damaged meanwhile")
    assert results.load(tmp_path, known=known) == known


def test_folders_of_profiles(tmp_path, monkeypatch):
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path))
    monkeypatch.delenv("ADADP_RESULTS", raising=False)
    assert results.stored_folder() == results.PACKAGED
    assert results.stored_folder("quick") == tmp_path / "quick"
    monkeypatch.setenv("ADADP_RESULTS", str(tmp_path / "mine"))
    assert results.stored_folder() == tmp_path / "mine"
    assert results.stored_folder(folder="other") == Path("other")


@pytest.fixture
def three_seeds(config):
    """The printed curve at sigma 2 with seeds 1, 2, 3 ending at 90, 91 and 93 percent."""
    found = {}
    for seed, final in ((1, 0.90), (2, 0.91), (3, 0.93)):
        one = config.but(seed=seed)
        found[one.id] = record(one, (0.5, final)) | {"id": one.id}
    return found


def test_curves_and_their_ends(three_seeds):
    found = [c for c in results.curves("dp-adam-mnist", three_seeds) if c["records"]]
    (curve,) = found
    assert curve["role"] == "as_printed" and curve["planned"] == 3 and not curve["peeking"]
    assert results.finals(curve) == pytest.approx([90, 91, 93])
    assert results.spread(results.finals(curve)) == "91.3 % (90.0 to 93.0, 3 seeds)"
    assert results.finals({"records": []}) == []


def test_table(three_seeds):
    (row,) = tables.table("dp-adam-mnist", three_seeds)
    assert (
        row["accuracy"] == 91.33
        and row["range"] == "90.00 to 93.00"
        and row["seeds"] == "3/3"
        and row["sigma"] == 2
        and row["data"] == "MNIST"
    )
    (row,) = tables.table("dp-sgd-mnist", three_seeds)
    assert row["role"] == "as_printed", "a run counts in every experiment that names it"


def test_status_counts_planned_and_stored(three_seeds):
    rows = {(r["experiment"], r["tier"]): r for r in tables.status(three_seeds)}
    assert rows["dp-adam-mnist", 1]["stored"] == 1 and rows["dp-adam-mnist", 2]["stored"] == 2
    assert rows["dp-adam-mnist", 1]["planned"] == 40
    assert rows["tol-grid", 1] == {"experiment": "tol-grid", "tier": 1, "stored": 0, "planned": 63}


def test_a_shared_run_counts_once_by_tier(three_seeds):
    alone, together = (
        {r["tier"]: r for r in tables.tiers(three_seeds, names=names)}
        for names in (["dp-adam-mnist"], ["dp-adam-mnist", "dp-sgd-mnist"])
    )
    assert alone[1]["stored"] == together[1]["stored"] == 1 and alone[2]["stored"] == together[2]["stored"] == 2
    both = sum(r["planned"] for r in tables.status(three_seeds) if r["experiment"] in ("dp-adam-mnist", "dp-sgd-mnist"))
    assert sum(r["planned"] for r in together.values()) < both


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The data on this machine."""
    monkeypatch.setattr(execution, "provenance", lambda config: "MNIST")


@pytest.mark.parametrize(
    "accuracy, data, device, ok",
    [
        (0.9049, "MNIST", "cpu (y)", True),
        (0.9051, "MNIST", "cpu (y)", False),
        (0.9149, "MNIST", "cuda (y)", True),
        (0.9151, "MNIST", "cuda (y)", False),
        (0.9, "another MNIST", "cpu (y)", None),
    ],
)
def test_verify_compares_equal_data_only(three_seeds, monkeypatch, accuracy, data, device, ok):
    one = {i: r for i, r in three_seeds.items() if r["config"]["seed"] == 1}
    computed = []

    def execute(config, device=None, _d=device):
        computed.append(config)
        return record(config, (0.5, accuracy), data=data, device=_d)

    monkeypatch.setattr(execution, "execute", execute)
    monkeypatch.setattr(execution, "provenance", lambda config: data)
    (row,) = verify(one, sample=5)
    assert row["ok"] is ok and row["id"] in one
    assert bool(computed) == (data == "MNIST"), "what cannot be compared is not computed"


@pytest.mark.parametrize("accuracy, device, ok", [(0.929, "cuda (y)", True), (0.931, "cuda (y)", False)])
def test_across_devices_the_spread_of_the_seeds_decides(three_seeds, monkeypatch, accuracy, device, ok):
    """The three stored seeds lie three points apart, and the run drawn ended at 90 %."""
    monkeypatch.setattr(
        execution, "execute", lambda config, device=None, _d=device: record(config, (0.5, accuracy), device=_d)
    )
    rows = {r["id"]: r for r in verify(three_seeds, sample=3)}
    (first,) = (r for i, r in rows.items() if three_seeds[i]["config"]["seed"] == 1)
    assert first["allowed"] == 3.0 and first["ok"] is ok


def test_verify_tells_each_run_and_refuses_an_empty_draw(three_seeds, monkeypatch):
    monkeypatch.setattr(execution, "execute", lambda config, device=None: record(config))
    told = []
    verify(three_seeds, sample=2, report=told.append)
    assert len(told) == 2
    with pytest.raises(ValueError, match="no run is stored"):
        verify({})
    with pytest.raises(ValueError, match="sample=-2"):
        verify(three_seeds, sample=-2)


def test_verify_draws_by_seed(three_seeds, monkeypatch):
    monkeypatch.setattr(execution, "execute", lambda config, device=None: record(config))
    draws = {seed: verify(three_seeds, sample=1, seed=seed)[0]["id"] for seed in range(20)}
    assert set(draws.values()) == set(three_seeds)
    assert verify(three_seeds, sample=1, seed=3)[0]["id"] == draws[3]


PACKAGED = sorted(results.PACKAGED.glob("*/*.json"))


def test_packaged_results_are_small_and_whole():
    assert sum(p.stat().st_size for p in PACKAGED) < 5e6
    for run in results.load(results.PACKAGED).values():
        assert len({len(column) for column in run["rows"].values()}) == 1, run["id"]
        assert run["experiment"] in grids.EXPERIMENTS and run["data"] and run["commit"]
        if run["config"]["kind"] == "private":
            assert len(run["rows"]["epoch"]) == run["config"]["epochs"], run["id"]
            assert all(0 <= a <= 1 for a in run["rows"]["test_accuracy"])
            assert len(run["first_epoch"].get("lr", [])) <= 60


def test_packaged_epsilons_are_those_of_the_accountants_now():
    from adadp.privacy import epsilon

    families = {}
    for run in results.load(results.PACKAGED).values():
        if run["config"]["kind"] == "private" and run["config"]["noise_multiplier"] > 0:
            config, last = run["config"], {k: v[-1] for k, v in run["rows"].items()}
            examples = {"mnist": 60000, "cifar10": 50000}[config["dataset"]] - config["holdout"]
            key = (config["noise_multiplier"], config["expected_batch_size"] / examples, last["steps"], config["delta"])
            families.setdefault(key, set()).add((last["epsilon_moments"], last["epsilon_pld"]))
    for (sigma, rate, steps, delta), stored in families.items():
        known = dict(noise_multiplier=sigma, sample_rate=rate, steps=steps, delta=delta)
        now = tuple(epsilon(**known, accountant=a) for a in ("moments", "pld"))
        assert len(stored) == 1, f"runs at sigma {sigma:g} disagree about epsilon"
        assert next(iter(stored)) == pytest.approx(now, rel=1e-3)
        assert min(told / true for told, true in zip(next(iter(stored)), now, strict=True)) > 1 - 1e-9


def test_the_recommended_variant_is_the_one_that_the_stored_selection_chose():
    chosen = recommended(Grid(results.load(results.PACKAGED)))
    assert chosen == VARIANTS["recommended"]


def test_a_table_tells_the_curves_of_a_role_apart():
    rows = tables.table("recommended", results.load(results.PACKAGED))
    assert len({(r["sigma"], r["tol"], r["advance"], r["discard"], r["decay_from"]) for r in rows}) == len(rows) > 4

"""Configs, grids and the runner: hashes, stages, resuming after kill -9, two runners at once."""

import dataclasses
import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from adadp.data import DataError
from adadp.experiments import execution, grids, places, results, runner
from adadp.experiments.cases import case, run_case
from adadp.experiments.configs import KINDS, PrivateRun, from_dict
from adadp.experiments.federated import federated
from adadp.experiments.grids import Job
from adadp.experiments.plan import PROFILES, Cell, Grid, half_decade
from adadp.experiments.private import EQUAL_EPSILON, PRINTED, REFERENCE, private, selection
from adadp.experiments.runner import attempt, run

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def config():
    return private("mnist", noise_multiplier=2, **PRINTED)


# ---------------------------------------------------------------- configs


def test_no_field_of_a_config_has_a_default():
    for kind in KINDS.values():
        for field in dataclasses.fields(kind):
            assert field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING, field.name


def test_the_id_of_a_known_config_never_changes(config):
    assert json.loads(config.canonical())["tol"] == 1.0
    assert config.id == "992a7e0cc0e0"


def test_numbers_that_are_equal_are_the_same_config(config):
    assert private("mnist", noise_multiplier=2.0, **PRINTED).id == config.id
    assert config.but(max_grad_norm=10).id == config.but(max_grad_norm=10.0).id


@pytest.mark.parametrize(
    "change",
    [
        dict(seed=1),
        dict(noise_multiplier=2.5),
        dict(tol=0.5),
        dict(discard=True),
        dict(init="reference_code"),
        dict(delta=1e-6),
    ],
)
def test_every_change_is_another_run(config, change):
    assert config.but(**change).id != config.id


@pytest.mark.parametrize(
    "change, name",
    [
        (dict(dataset="imagenet"), "dataset"),
        (dict(method="rmsprop"), "method"),
        (dict(lr=0), "lr"),
        (dict(lr=float("nan")), "lr"),
        (dict(noise_multiplier=-1), "noise_multiplier"),
        (dict(noise_multiplier=float("inf")), "noise_multiplier"),
        (dict(epochs=0), "epochs"),
        (dict(tol=None), "tol"),
        (dict(beta1=0.9), "beta1"),
        (dict(advance="backwards"), "advance"),
        (dict(sampler="without"), "sampler"),
    ],
)
def test_a_bad_config_names_its_field(config, change, name):
    with pytest.raises(ValueError, match=name):
        config.but(**change)


def test_reading_a_config_back(config):
    assert from_dict(config.to_dict()) == config
    for broken in ({}, {"kind": "private"}, config.to_dict() | {"kind": "other"}, config.to_dict() | {"more": 1}):
        with pytest.raises(ValueError):
            from_dict(broken)


# ---------------------------------------------------------------- grids


def scored(configs, score) -> dict:
    return {c.id: {"rows": {"test_accuracy": [score(c)]}} for c in configs}


def test_a_grid_grows_until_its_best_is_interior():
    stored: dict = {}
    for _ in range(20):
        cells, ranking = Grid(stored).half_decades(
            "g", lambda lr: private("mnist", method="sgd", lr=lr, noise_multiplier=2), (-3, -2)
        )
        if ranking:
            break
        stored |= scored([c.config for c in cells], lambda c: -abs(c.lr - 0.3))
    assert ranking[0] == half_decade(-0.5) and min(ranking) < 0.3 < max(ranking)
    assert all(cell.peeking for cell in cells)


def test_winners_are_redrawn_on_fresh_seeds():
    stored: dict = {}
    for _ in range(10):
        cells = grids.cells("dp-adam-mnist", stored)
        stored |= scored([c.config for c in cells if c.role == "adam grid"], lambda c: -abs(c.lr - 3e-4))
    best = [c for c in cells if c.role == "adam best" and c.config.noise_multiplier == 4]
    assert {c.config.seed for c in best} == {1, 2, 3} and {c.config.lr for c in best} == {half_decade(-3.5)}
    assert {c.config.seed for c in cells if c.role == "adam grid"} == {0}
    assert {c.config.lr for c in cells if c.role == "adam second"} == {half_decade(-4)}
    assert [c.tier for c in sorted(best, key=lambda c: c.config.seed)] == [1, 2, 2]


def test_recommended_is_chosen_on_held_out_data_only():
    stored: dict = {}
    for _ in range(5):
        cells, chosen = selection(Grid(stored))
        assert {c.config.holdout for c in cells} == {5000}
        stored |= scored([c.config for c in cells], lambda c: c.tol == 0.1778)
    assert chosen["tol"] == 0.1778 and chosen["advance"] == "half_steps"
    curves = [c for c in grids.cells("dp-adam-mnist", stored) if c.role == "recommended"]
    assert len(curves) == 12 and {c.config.holdout for c in curves} == {0}


@pytest.mark.parametrize("wanted", [0.05, 1.0, 1.7])
def test_the_best_tol_of_the_selection_is_interior(wanted):
    stored: dict = {}
    for _ in range(12):
        cells, chosen = selection(Grid(stored))
        stored |= scored([c.config for c in cells], lambda c: -abs(c.tol - wanted))
    tols = {c.config.tol for c in cells}
    assert min(tols) < chosen["tol"] < max(tols) and abs(chosen["tol"] - wanted) < 0.3 * wanted


def test_each_paper_cell_follows_the_protocol():
    for name in grids.EXPERIMENTS:
        for cell in grids.cells(name, {}, assume=True):
            if isinstance(cell.config, PrivateRun) and name not in ("small-d", "batch-size"):
                assert cell.config.expected_batch_size == 200 and cell.config.delta == 1e-5
                norm = 3 if cell.config.dataset == "cifar10" else 1 if name == "clip-control" else 10
                assert cell.config.max_grad_norm == norm


def test_shorter_profiles_keep_every_kind_of_cell_and_one_seed():
    paper = {c.role for c in grids.cells("dp-sgd-mnist", {}, assume=True)}
    for profile, epochs in (("pilot", 5), ("quick", 2)):
        cells = grids.cells("dp-sgd-mnist", {}, profile, assume=True)
        assert {c.role for c in cells} == paper
        assert {c.config.epochs for c in cells} == {epochs} and {c.config.seed for c in cells} == {0, 1}
        assert all(c.config.decay_from is None or c.config.decay_from < epochs for c in cells)


@pytest.mark.parametrize("arguments", [("nothing", {}), ("tol-grid", {}, "fast")])
def test_unknown_names_are_refused(arguments):
    with pytest.raises(ValueError, match="unknown; choose one of"):
        grids.cells(*arguments)


@pytest.mark.slow
def test_batch_sizes_are_compared_at_equal_epsilon():
    from adadp.privacy import calibrate_noise_multiplier, epsilon

    target = epsilon(noise_multiplier=2, sample_rate=200 / 60000, steps=30000, delta=1e-5, accountant="pld")
    for size, sigma in EQUAL_EPSILON.items():
        steps = 100 * round(60000 / size)
        found = calibrate_noise_multiplier(target_epsilon=target, delta=1e-5, sample_rate=size / 60000, steps=steps)
        assert found == pytest.approx(sigma, rel=0.01)


# ---------------------------------------------------------------- the runner, with a cheap kind of run


def cheap(config, **_):
    """Stands for training: the accuracy is the closeness of lr to 3e-4."""
    if config.seed == 99:
        raise FloatingPointError("on purpose")
    rows = {"epoch": [1], "steps": [300], "test_accuracy": [1 / (1 + abs(config.lr - 3e-4))]}
    return {
        "config": config.to_dict(),
        "rows": rows,
        "first_epoch": {},
        "data": "none",
        "device": "cpu (x)",
        "commit": "c",
    }


@pytest.fixture
def cheap_runs(monkeypatch, cache):
    """Counts what is carried out."""
    done = []

    def count(config, **keywords):
        done.append(config.id)
        return cheap(config, **keywords)

    monkeypatch.setattr(execution, "execute", count)
    monkeypatch.setattr(execution, "provenance", lambda config: cheap(config.but(seed=0))["data"])
    monkeypatch.setattr(runner, "WAIT", 0.01)
    return done


def quick_run(folder, experiment="dp-adam-mnist", **keywords):
    return run(experiment, "quick", folder=folder, progress=False, **keywords)


def test_everything_is_done_once_and_stages_follow(tmp_path, cheap_runs):
    report = quick_run(tmp_path)
    stored = results.load(tmp_path)
    assert sorted(cheap_runs) == sorted(stored) == sorted(report.new) and len(set(cheap_runs)) == len(cheap_runs)
    roles = {c.role for c in grids.cells("dp-adam-mnist", stored, "quick")}
    assert {"adam best", "adam second", "adam grid", "as_printed"} <= roles
    assert not runner.pending(["dp-adam-mnist"], stored, "quick")
    assert quick_run(tmp_path).new == [] and len(cheap_runs) == len(stored)


def test_a_run_shared_by_experiments_is_done_once(tmp_path, cheap_runs):
    quick_run(tmp_path, "dp-adam-mnist")
    before = len(cheap_runs)
    quick_run(tmp_path, ["dp-sgd-mnist", "discarding"])
    assert len(set(cheap_runs)) == len(cheap_runs) > before


def test_tiers_finish_in_order_and_can_be_chosen(tmp_path, cheap_runs):
    known: dict = {}
    tiers = [
        job.tier
        for job in runner.pending(["decay-control", "dp-adam-mnist", "batch-size"], known, "paper", assume=True)
    ]
    assert tiers == sorted(tiers) and set(tiers) == {1, 2, 3}
    assert {j.tier for j in runner.pending(["dp-adam-mnist", "batch-size"], known, "paper", 1)} == {1}


def test_limit_and_bad_numbers(tmp_path, cheap_runs):
    assert len(quick_run(tmp_path, limit=3).new) == 3
    for bad in (dict(jobs=0), dict(limit=0), dict(experiment="nothing")):
        with pytest.raises(ValueError):
            quick_run(tmp_path, **bad)


def test_a_failing_run_does_not_stop_the_others(tmp_path, cheap_runs, monkeypatch):
    broken = private("mnist", noise_multiplier=2, **PRINTED | dict(seed=99))
    fine = [broken.but(seed=s) for s in (0, 1)]
    monkeypatch.setitem(grids.EXPERIMENTS, "three", lambda grid: [Cell("r", c) for c in (fine[0], broken, fine[1])])
    with pytest.raises(RuntimeError, match=r"1 runs failed.*on purpose"):
        run("three", folder=tmp_path, progress=False)
    assert set(results.load(tmp_path)) == {c.id for c in fine}


@pytest.mark.parametrize("while_running", [True, False])
def test_a_full_disk_stops_the_runner_and_says_where(tmp_path, cheap_runs, monkeypatch, while_running):
    """The runs that would follow would be computed for as long, and fail alike."""
    full, ordinary = OSError(errno.ENOSPC, "No space left on device"), execution.execute

    def no_room(*_, **__):
        raise full

    if while_running:
        monkeypatch.setattr(execution, "execute", lambda config, **kw: ordinary(config, **kw) and no_room())
    else:
        monkeypatch.setattr(results, "save", no_room)
    folder = "checkpoints" if while_running else str(tmp_path)
    with pytest.raises(RuntimeError, match=rf"{folder} cannot be written to \(no space left on device\); make room"):
        run("tol-grid", "quick", folder=tmp_path, progress=False)
    assert len(cheap_runs) == 1


def test_a_disk_without_room_is_noticed_before_anything_is_computed(tmp_path, cheap_runs, monkeypatch):
    def no_room(path, data):
        if len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(places, "write_atomic", no_room)
    with pytest.raises(RuntimeError, match="no space left on device"):
        run("tol-grid", "quick", folder=tmp_path, progress=False)
    assert not cheap_runs


def test_a_reason_that_stops_all_runs_is_told_once(tmp_path, cheap_runs, monkeypatch):
    def missing(*_, **__):
        raise DataError("mnist is not here")

    monkeypatch.setattr(execution, "execute", missing)
    with pytest.raises(RuntimeError, match=r"^63 runs failed \(0 new ") as told:
        run("tol-grid", folder=tmp_path, progress=False, limit=1)
    assert str(told.value).count("mnist is not here") == 1 and " and 62 more: its pilot failed: " in str(told.value)


@pytest.fixture
def lengths(cheap_runs, monkeypatch):
    """(seed, epochs) of what is carried out; seed 7 has no finite lr."""
    done, ordinary = [], execution.execute

    def note(config, **keywords):
        record = ordinary(config, **keywords)
        record["rows"]["lr"] = [math.nan if config.seed == 7 else 0.1]
        done.append((config.seed, config.epochs))
        return record

    monkeypatch.setattr(execution, "execute", note)
    return done


def asked(monkeypatch, *seeds):
    """An experiment with a full-size run a seed; returns the ids."""
    configs = [private("mnist", noise_multiplier=2, **PRINTED | dict(seed=s)) for s in seeds]
    monkeypatch.setitem(grids.EXPERIMENTS, "some", lambda grid: [Cell("r", c) for c in configs])
    return {c.id for c in configs}


def test_pilots_come_before_the_first_long_run(tmp_path, lengths, monkeypatch):
    ids = asked(monkeypatch, 0, 1, 2)
    run("some", folder=tmp_path, progress=False, limit=2)
    assert lengths == [(0, 5), (1, 5), (0, 100), (1, 100)]
    run("some", folder=tmp_path, progress=False)
    assert lengths[4:] == [(2, 5), (2, 100)], "pilots are kept"
    assert set(results.load(tmp_path)) == ids, "but not among the results"


def test_no_long_run_follows_a_pilot_without_finite_numbers(tmp_path, lengths, monkeypatch):
    asked(monkeypatch, 7, 0)
    with pytest.raises(RuntimeError, match=r"1 runs failed \(1 new.*pilot failed: lr not finite"):
        run("some", folder=tmp_path, progress=False)
    assert lengths == [(7, 5), (0, 5), (0, 100)]


def test_a_run_another_process_is_at_is_left_alone(tmp_path, cheap_runs):
    jobs = runner.pending(["tol-grid"], {}, "quick")
    with places.lock(jobs[0].config.id) as mine:
        assert mine
        assert runner.attempt(jobs[0], tmp_path, "cpu") == (None, None)
        assert runner.attempt(jobs[1], tmp_path, "cpu")[0]
    assert runner.attempt(jobs[0], tmp_path, "cpu")[0], "the lock is free again"
    assert runner.attempt(jobs[0], tmp_path, "cpu") == (None, None), "stored meanwhile"


def test_a_run_that_another_cache_stored_meanwhile_is_not_stored_twice(tmp_path, cheap_runs, monkeypatch):
    """The lock lies in the cache; a runner with another one is not kept off, and may ask for another experiment."""
    (job,) = runner.pending(["tol-grid"], {}, "quick")[:1]
    ordinary = execution.execute

    def slower(config, *, checkpoint, **keywords):
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_text("")
        record = ordinary(config, checkpoint=checkpoint, **keywords)
        results.save(record, "other", tmp_path)
        return record

    monkeypatch.setattr(execution, "execute", slower)
    assert runner.attempt(job, tmp_path, "cpu") == (None, None)
    assert [path.parent.name for path in tmp_path.glob("*/*.json")] == ["other"]
    assert not list(places.cache("checkpoints").glob("*.pt"))


def test_what_a_killed_runner_left_of_a_stored_run_is_removed(tmp_path, cheap_runs):
    (job,) = runner.pending(["tol-grid"], {}, "quick")[:1]
    assert runner.attempt(job, tmp_path, "cpu")[0]
    left = places.cache("checkpoints") / f"{job.config.id}.pt"
    left.write_text("")
    with places.lock(job.config.id):
        runner.attempt(job, tmp_path, "cpu")
        assert left.exists(), "another runner may be at it"
    assert runner.attempt(job, tmp_path, "cpu") == (None, None) and not left.exists()


def test_runs_of_other_data_are_not_added_to_an_experiment(tmp_path, cheap_runs, monkeypatch):
    quick_run(tmp_path, "dp-adam-mnist", limit=3)
    monkeypatch.setattr(execution, "provenance", lambda config: "a copy")
    with pytest.raises(RuntimeError) as told:
        quick_run(tmp_path, "dp-adam-mnist")
    text = str(told.value)
    assert "dp-adam-mnist are of other mnist-5k data (none) than those here (a copy)" in text
    assert "--folder" in text and "\n" not in text and len(cheap_runs) == 3
    assert len(quick_run(tmp_path, "small-d", limit=1).new) == 1, "an experiment without stored runs may begin"
    monkeypatch.setattr(execution, "provenance", lambda config: "none")
    assert quick_run(tmp_path, "dp-adam-mnist").new


def test_data_that_are_not_here_are_told_by_the_runs(tmp_path, cheap_runs, monkeypatch):
    def missing(config):
        raise DataError("not here")

    quick_run(tmp_path, limit=1)
    monkeypatch.setattr(execution, "provenance", missing)
    quick_run(tmp_path, limit=1)
    assert len(cheap_runs) == 2


def test_a_limited_runner_does_not_wait_for_another_one(tmp_path, cheap_runs):
    first = runner.pending(["tol-grid"], {}, "quick")[0].config
    with places.lock(first.id):
        (done,) = quick_run(tmp_path, "tol-grid", limit=1).new
    assert done != first.id


def copied(folder):
    """The package in somebody's own repository, and what git says of that: its head."""
    shutil.copytree(ROOT / "adadp", folder / "lib" / "adadp", ignore=shutil.ignore_patterns("stored", "__pycache__"))
    git = ["git", "-c", "user.name=x", "-c", "user.email=x"]
    (folder / "own.txt").write_text("")
    for command in (["init", "-q"], ["add", "own.txt"], ["commit", "-qm", "own"]):
        subprocess.run([*git, *command], cwd=folder, check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_package_below_another_repository_has_no_commit(tmp_path):
    head = copied(tmp_path).strip()
    code = "from adadp.experiments.execution import commit; print(commit())"

    def told():
        where = dict(cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path / "lib")})
        return subprocess.run([sys.executable, "-c", code], **where, capture_output=True, text=True).stdout.strip()

    assert told() == "None"
    subprocess.run(["git", "add", "lib"], cwd=tmp_path, check=True)
    assert told() == f"{head}+", "now it is part of it"


def test_a_record_tells_where_an_interrupted_run_began(tmp_path, few, cache, monkeypatch):
    config, calls = few[0].but(epochs=2, decay_from=1), []

    def stop():
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    def started(commit, on_epoch=None):
        monkeypatch.setattr(execution, "commit", lambda: commit)
        return attempt(Job("few", 1, config), tmp_path, "cpu", on_epoch)[0]

    for end in ("old", "same", "earlier version"):
        calls.clear()
        with pytest.raises(KeyboardInterrupt):
            started("new" if end == "same" else "old", stop)
        (beside,) = cache.glob("checkpoints/*.begun.json")
        if end == "earlier version":
            beside.unlink()
        started("new")
        (path,) = tmp_path.glob("few/*.json")
        record = results.read(path)
        assert record["resumed"] and record["commit"] == "new"
        assert record.get("begun", {}).get("commit") == ("old" if end == "old" else None)
        assert not list(cache.glob("checkpoints/*"))
        path.unlink()


def test_a_record_names_the_commit_of_the_code_that_ran(monkeypatch, cache):
    """Somebody may commit, or check something else out, while a long run goes on."""
    asked = []
    execution.commit.cache_clear()
    monkeypatch.setattr(execution, "commit", lambda: asked.append("now") or "x")
    monkeypatch.setitem(execution.EXECUTORS, "private", lambda *_, **__: asked.append("run") or {"rows": {}})
    execution.execute(private("mnist", noise_multiplier=2, **PRINTED), device="cpu", checkpoint=None)
    assert asked[:2] == ["now", "run"]


def test_the_bar_ends_at_its_total(tmp_path, cheap_runs, monkeypatch, capsys):
    monkeypatch.setattr(runner, "seconds", lambda config, device: 10.0)
    run("small-d", "quick", folder=tmp_path, limit=2)
    assert "20/" in capsys.readouterr().err


def test_dry_run_computes_nothing(tmp_path, cheap_runs, monkeypatch, capsys):
    monkeypatch.setattr("adadp.experiments.estimates.seconds", lambda config, device: 36.0)
    report = run(["dp-adam-mnist", "decay-control"], folder=tmp_path, dry_run=True)
    text = capsys.readouterr().out
    assert not cheap_runs and not list(tmp_path.iterdir())
    assert {r["tier"] for r in report.plan} == {1, 2} and "total" in text
    first = next(r for r in report.plan if r["tier"] == 1)
    assert first["runs"] == 40 and first["hours"] == pytest.approx(0.4) and "0.40" in text


# ---------------------------------------------------------------- trust before compute: what the runs are built of


def flat_gradient(config, x, y) -> torch.Tensor:
    """The averaged private gradient that a fresh run of this config computes on one batch."""
    model, gradient, *_ = execution.build(config, "cpu")
    gradient.backward(x, y)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


PAPER_CELLS = [
    private(data, noise_multiplier=2, **dict(model=model) | keywords)
    for data, model in (("mnist", "mnist_mlp"), ("cifar", "cifar_head"), ("mnist", "mnist_logistic"))
    for keywords in (PRINTED, REFERENCE, dict(method="adam", lr=1e-3))
]


@pytest.mark.parametrize("config", PAPER_CELLS, ids=lambda c: f"{c.model}-{c.slug}")
def test_neighbouring_batches_differ_by_at_most_c_before_noise(config):
    config = config.but(noise_multiplier=0)
    x = 30 * torch.randn(40, *execution.INPUT_SHAPES[config.model], generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 10
    with_all = flat_gradient(config, x, y)
    for record in (0, 17, 39):
        others = [i for i in range(40) if i != record]
        distance = config.expected_batch_size * (with_all - flat_gradient(config, x[others], y[others])).norm()
        assert distance <= config.max_grad_norm * (1 + 1e-4)
        assert distance > 0.9 * config.max_grad_norm, "large examples are clipped to C, not below it"


@pytest.mark.parametrize("config", PAPER_CELLS, ids=lambda c: f"{c.model}-{c.slug}")
def test_noise_of_a_run_has_the_scale_that_is_accounted(config):
    x, y = torch.zeros(0, *execution.INPUT_SHAPES[config.model]), torch.zeros(0, dtype=torch.int64)
    noise = flat_gradient(config, x, y)
    wanted = config.noise_multiplier * config.max_grad_norm / config.expected_batch_size
    assert noise.std() == pytest.approx(wanted, rel=0.03 if noise.numel() < 1e4 else 0.01)


def test_seeds_of_weights_noise_and_batches_are_three_streams():
    config = PAPER_CELLS[0]
    _, gradient, _, batches = execution.build(config, "cpu")
    assert gradient.generator.initial_seed() != batches.initial_seed()
    firsts = {execution.build(config.but(seed=s), "cpu")[1].generator.initial_seed() for s in range(4)}
    assert len(firsts) == 4


# ---------------------------------------------------------------- real runs on the embedded images


def comparable(folder) -> dict:
    """What must not depend on interruptions: rows and first epoch by id."""
    return {i: (r["rows"], r["first_epoch"], r["data"]) for i, r in results.load(folder).items()}


@pytest.fixture(scope="module")
def few():
    """An experiment of two quick runs, one with the decay, long enough to be interrupted."""
    long = dict(dataset="mnist-5k", epochs=8)
    a = private("mnist", noise_multiplier=2, **PRINTED | long | dict(decay_from=4))
    b = private("mnist", noise_multiplier=2, method="adam", lr=1e-3, **long)
    return [a, b]


SCRIPT = """
import sys, json
from adadp.experiments import grids, runner
from adadp.experiments.configs import from_dict
from adadp.experiments.plan import Cell
configs = [from_dict(c) for c in json.loads(sys.argv[2])]
grids.EXPERIMENTS["few"] = lambda grid: [Cell("r", c) for c in configs]
{extra}
runner.run("few", folder=sys.argv[1], progress=False, device="cpu")
"""


def start(folder, few, cache, extra=""):
    """A runner in a process of its own."""
    environment = os.environ | {"ADADP_CACHE": str(cache), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    arguments = [str(folder), json.dumps([c.to_dict() for c in few])]
    return subprocess.Popen([sys.executable, "-c", SCRIPT.replace("{extra}", extra), *arguments], env=environment)


def wait_for(condition, process, seconds=60):
    """Poll until something is there, or fail when the process is gone."""
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert process.poll() is None, "the runner ended too early"
        assert time.monotonic() < limit
        time.sleep(0.005)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, few):
    """The results of the two runs without an interruption."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert start(folder / "stored", few, folder / "cache").wait(120) == 0
    return comparable(folder / "stored")


@pytest.mark.slow
def test_kill_in_the_middle_of_a_run(tmp_path, few, undisturbed):
    stored, cache = tmp_path / "stored", tmp_path / "cache"
    process = start(stored, few, cache)
    wait_for(lambda: any((cache / "checkpoints" / f"{c.id}.pt").exists() for c in few), process)  # after the pilots
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(stored.glob("*/*.json")), "nothing half-written"
    assert start(stored, few, cache).wait(120) == 0
    assert comparable(stored) == undisturbed
    assert any(r["resumed"] for r in results.load(stored).values())
    assert not list(cache.glob("checkpoints/*.pt"))


@pytest.mark.slow
def test_kill_in_the_middle_of_a_write(tmp_path, few, undisturbed):
    stored, cache = tmp_path / "stored", tmp_path / "cache"
    slow = "import pathlib, time\nwas = pathlib.Path.replace\ndef hang(self, target):\n"
    slow += "    if str(target).startswith(sys.argv[1]) and str(target).endswith('.json'): time.sleep(600)\n"
    slow += "    return was(self, target)\n"
    slow += "pathlib.Path.replace = hang"
    process = start(stored, few, cache, slow)
    wait_for(lambda: list(stored.glob("*/.*.tmp")), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert results.load(stored) == {}, "a write that did not end is not a result"
    assert start(stored, few, cache).wait(120) == 0
    assert comparable(stored) == undisturbed
    assert any(r["resumed"] for r in results.load(stored).values()), "what was computed by then is not lost"


@pytest.mark.parametrize("kind", ["private", "federated"])
def test_a_finished_run_that_could_not_be_stored_is_not_computed_again(kind, tmp_path, few, monkeypatch, cache):
    config = (
        few[0].but(epochs=2, decay_from=1) if kind == "private" else PROFILES["quick"](federated(random_fraction=0.33))
    )
    job, epochs, save = Job("few", 1, config), [], results.save

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results, "save", full)
    with pytest.raises(RuntimeError, match="no space left"):
        attempt(job, tmp_path, "cpu", lambda: epochs.append(1))
    first = len(epochs)
    monkeypatch.setattr(results, "save", save)
    record, error = attempt(job, tmp_path, "cpu", lambda: epochs.append(1))
    assert error is None and record["resumed"] and len(epochs) == first >= 2
    assert len(results.load(tmp_path)) == 1 and not list(cache.glob("checkpoints/*.pt"))


def test_a_run_that_another_experiment_has_stored_is_not_computed_again(tmp_path, few, cache):
    config = few[0].but(epochs=1, decay_from=None, decay_rate=None)
    assert attempt(Job("one", 1, config), tmp_path, "cpu")[0]
    assert attempt(Job("other", 1, config), tmp_path, "cpu") == (None, None)
    assert len(list(tmp_path.glob("*/*.json"))) == 1


@pytest.mark.slow
def test_two_runners_at_once_share_the_work(tmp_path, few, undisturbed):
    stored, cache = tmp_path / "stored", tmp_path / "cache"
    pair = [start(stored, few, cache) for _ in range(2)]
    assert [p.wait(120) for p in pair] == [0, 0]
    assert comparable(stored) == undisturbed
    assert len(list(stored.glob("*/*"))) == 2, "nothing doubled, nothing left over"


@pytest.mark.slow
def test_parallel_processes_give_the_same(tmp_path, few, undisturbed, monkeypatch, cache):
    pytest.importorskip("joblib")
    monkeypatch.setitem(grids.EXPERIMENTS, "few", lambda grid: [Cell("r", c) for c in few])
    report = run("few", folder=tmp_path / "stored", jobs=2, device="cpu", progress=False)
    assert sorted(report.new) == sorted(c.id for c in few)
    assert comparable(tmp_path / "stored") == undisturbed


@pytest.mark.engine
@pytest.mark.slow
def test_a_dask_cluster_gives_the_same(tmp_path, few, undisturbed, monkeypatch, cache):
    distributed = pytest.importorskip("dask.distributed")
    monkeypatch.setitem(grids.EXPERIMENTS, "few", lambda grid: [Cell("r", c) for c in few])
    options = dict(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
        report = run("few", folder=tmp_path / "stored", jobs=2, backend="dask", device="cpu", progress=False)
    assert sorted(report.new) == sorted(c.id for c in few)
    assert comparable(tmp_path / "stored") == undisturbed


def test_seed_decides_everything(few):
    one, again, other = (execution.execute(c, device="cpu")["rows"] for c in (few[1], few[1], few[1].but(seed=5)))
    assert one == again and one["test_accuracy"] != other["test_accuracy"]


def test_rows_of_a_run(few):
    record = execution.execute(few[0], device="cpu")
    rows = record["rows"]
    assert rows["epoch"] == list(range(1, 9)) and rows["steps"] == [20 * k for k in range(1, 9)]
    assert all(a < b for a, b in zip(rows["epsilon_moments"], rows["epsilon_moments"][1:], strict=False))
    assert all(p < m for p, m in zip(rows["epsilon_pld"], rows["epsilon_moments"], strict=True))
    assert record["first_epoch"]["step"][-1] == 20 and len(record["first_epoch"]["lr"]) == 10
    for k in (5, 6, 7, 8):  # decay_from = 4
        assert rows["lr"][k - 1] == pytest.approx(rows["lr"][3] / (1 + 0.1 * (k - 4)), rel=1e-6)
    assert "mnist" in record["data"].lower() and record["device"].startswith("cpu") and record["seconds"] > 0


def test_no_noise_has_no_finite_epsilon(few):
    rows = execution.execute(few[1].but(noise_multiplier=0, epochs=1), device="cpu")["rows"]
    assert results.compact(rows)["epsilon_pld"] == [None]


def test_reference_code_starts_from_its_own_weights():
    own = private("mnist", noise_multiplier=2, **REFERENCE)
    for config, bound in ((own, 10**-0.5), (own.but(init="torch"), 1 / 16)):
        model = execution.build(config, "cpu")[0]
        largest = list(model.parameters())[-1].abs().max()
        assert 0.9 * bound < largest <= bound


def test_held_out_examples_are_not_trained_on():
    data, whole = execution.dataset("mnist-5k", None, 500), execution.dataset("mnist-5k", None, 0)
    assert len(data.y_train) == 3500 and len(data.y_test) == 500 and "held out" in data.provenance
    both = torch.cat([data.x_train, data.x_test]).flatten(1).sum(1).sort().values
    assert torch.equal(both, whole.x_train.flatten(1).sum(1).sort().values)


def test_timing_takes_turns():
    (cell, _) = grids.cells("timing", {}, "quick")
    rows = execution.execute(cell.config, device="cpu")["rows"]
    assert rows["epoch"] == [1] and all(rows[m][0] > 0 for m in ("adadp", "sgd", "adam"))


def test_thinning_keeps_both_ends():
    points = [{"step": 2 * k, "lr": 0.1, "error": 1.0} for k in range(1, 151)]
    thin = execution.thin(points)
    assert len(thin["step"]) == 60 and thin["step"][0] == 2 and thin["step"][-1] == 300
    assert execution.thin([]) == {}


def test_one_case_is_run_once_and_kept(cache, capsys):
    config = case("mnist", "reference_code", sigma=2, tol=0.5, seed=7, profile="quick")
    assert (config.tol, config.seed, config.dataset, config.init) == (0.5, 7, "mnist-5k", "reference_code")
    record = run_case(config, device="cpu")
    assert "minutes on this device" in capsys.readouterr().out and len(record["rows"]["epoch"]) == 2
    assert run_case(config, device="cpu") == record and not capsys.readouterr().out
    assert len(list(cache.glob("cases/*/*.json"))) == 1


def test_a_stored_run_is_not_run_again_for_a_case(cache, tmp_path, monkeypatch):
    config = case("cifar", "as_printed", sigma=4)
    monkeypatch.setenv("ADADP_RESULTS", str(tmp_path))
    results.save(cheap(config), "dp-adam-cifar", tmp_path)
    assert run_case(config)["id"] == config.id


@pytest.mark.parametrize(
    "change", [dict(data="svhn"), dict(variant="best"), dict(profile="fast"), dict(sigma=-1), dict(tol=0)]
)
def test_a_bad_case_is_refused(change):
    known = dict(data="mnist", variant="recommended", sigma=2) | change
    with pytest.raises(ValueError, match="noise_multiplier" if "sigma" in change else next(iter(change))):
        case(known.pop("data"), known.pop("variant"), **known)


def test_a_failing_case_says_why(cache):
    config = case("mnist", "as_printed", sigma=2, profile="quick")
    with places.lock(config.id), pytest.raises(RuntimeError, match="another process"):
        run_case(config, device="cpu")


def test_preloaded_libraries_are_noted_by_name(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert "preloaded" not in execution.circumstances("cpu")["versions"]
    monkeypatch.setenv("LD_PRELOAD", "/some/folder/kernels.so:allocator.so")
    assert execution.circumstances("cpu")["versions"]["preloaded"] == "kernels.so allocator.so"


def test_an_evaluation_is_timed_on_the_device_at_hand(monkeypatch):
    from adadp.experiments import estimates

    seen = []
    monkeypatch.setattr("adadp.evaluation.evaluate", lambda network, x, y, loss: seen.append((len(x), *x.shape[1:])))
    for model, shape in execution.INPUT_SHAPES.items():
        seen.clear()
        assert 0 <= estimates.evaluation_seconds.__wrapped__(model, "cpu") < 1
        assert seen == [(1000, *shape)] * 3
    monkeypatch.setattr(estimates, "evaluation_seconds", lambda model, device: 1.0)
    monkeypatch.setattr(execution, "step_seconds", lambda *a: 0.0)
    config = private("mnist", noise_multiplier=2, **PRINTED)
    assert estimates.seconds(config, "cpu") == config.epochs * 10_000

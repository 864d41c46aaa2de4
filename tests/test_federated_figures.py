"""Figures of stored federated runs: they draw what is there, name what is missing, and change when results change."""

import re

import pytest
from matplotlib.figure import Figure

from adadp.experiments import grids, results
from adadp.experiments.cases import federated_case
from adadp.experiments.federated import EXPERIMENTS
from adadp.experiments.federated_execution import PER_CLIENT, TRACED_ROUNDS
from adadp.figures import federated, federated_clients, federated_runs, plots, stored_words
from adadp.figures.show import to_html
from adadp.figures.stored import Note
from adadp.rounding import signed

JPEG = "CIFAR-10 (JPEG copy)"
LR = {"adadp": 0.1, "sgd": 0.0316, "adam": 1e-3}


def record(config) -> dict:
    """A made-up run: better with more random data, a higher seed, and near the method's own learning rate."""
    final = 0.4 + 0.1 * config.random_fraction + 0.01 * config.seed - 0.05 * (config.method != "adadp")
    final -= 0.02 * abs(config.lr - LR[config.method]) / (config.lr + LR[config.method])
    rounds = list(range(1, config.rounds + 1))
    rows = {"round": rounds, "test_accuracy": [final - 0.2 / r for r in rounds[:-1]] + [final]}
    rows |= {"test_loss": [1.0] * len(rounds)}
    rows |= {name: [[0.01 * k for k in range(1, 6)]] * len(rounds) for name in PER_CLIENT}
    traced = [r for r in TRACED_ROUNDS if r <= config.rounds] if config.method == "adadp" else []
    within = {"round": traced, "lr": [[[0.01, 0.02, 0.03]] * 5 for _ in traced]}
    run = {"config": config.to_dict(), "rows": rows, "within_rounds": within, "first_epoch": {}}
    return run | {"data": JPEG, "device": "cpu (x)"}


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """Every run of every experiment, at both sizes, stage after stage."""
    folder, known = tmp_path_factory.mktemp("full"), {}
    while todo := [
        (name, cell.config)
        for size in ("laptop", "full-data")
        for name in EXPERIMENTS
        for cell in grids.cells(name, known, size)
        if (size == "laptop" or name == "fed-rounds") and cell.config.id not in known
    ]:
        for name, config in todo:
            if config.id not in known:
                results.save(record(config), name, folder)
                known[config.id] = record(config) | {"id": config.id}
    return folder


DRAWN = {
    "rounds": lambda folder: federated_runs.by_round("fed-rounds", 33, folder=folder),
    "adam": lambda folder: federated_runs.by_round("fed-adam", 33, folder=folder),
    "discarding": lambda folder: federated_runs.by_round("fed-discarding", 0, folder=folder),
    "randomness": lambda folder: federated_runs.by_randomness(folder=folder),
    "batch": lambda folder: federated_runs.by_batch_size(folder=folder),
    "clients": lambda folder: federated_clients.clients(0, folder=folder),
    "within": lambda folder: federated_clients.within_round(0, 5, 20, folder=folder),
    "lr": lambda folder: federated_runs.by_lr(folder=folder),
    "ablations": lambda folder: federated_runs.ablations(0, folder=folder),
}


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_says_what_it_shows_and_from_what(name, full):
    fig = DRAWN[name](full)
    assert isinstance(fig, Figure)
    caption = plots.caption(fig)
    assert "five clients of 2000 images, 40 rounds" in caption and "makes" not in caption
    assert plots.provenance(fig) == JPEG and len(plots.describe(fig)) > 20
    assert JPEG in to_html(fig)


@pytest.mark.parametrize("name", DRAWN)
def test_without_runs_a_note_names_the_command(name, tmp_path):
    note = DRAWN[name](tmp_path)
    assert isinstance(note, Note) and "none of the" in repr(note)
    assert "adadp run fed-" in repr(note) and "--profile laptop makes" in repr(note)


def test_numbers_are_those_of_the_runs(full):
    described = plots.describe(federated_runs.by_round("fed-rounds", 33, folder=full))
    assert "33 % random" in described and "ADADP 45.3 % (44.3 to 46.3, 3 seeds)" in described
    assert "SGD (lr 0.0316) 40.3" in described
    points = plots.describe(federated_runs.by_randomness(folder=full))
    assert "ADADP 42.0 % at 0, 45.3 % at 33, 48.6 % at 66, 52.0 % at 100" in points


def test_what_clients_chose_is_said_over_all_seeds(full):
    caption = plots.caption(fig := federated_clients.clients(0, folder=full))
    assert "differ by a factor of 5.00" in caption and "3 % of all iterations" in caption and "3 seeds" in caption
    assert "3: cat, dog" in [text.get_text() for text in fig.axes[1].texts]
    assert "in the median 0.33 times" in plots.caption(federated_clients.within_round(0, folder=full))


def test_clients_that_were_left_out_of_rounds_are_drawn_with_gaps(tmp_path):
    for cell in [c for c in grids.cells("fed-rounds", {}, "laptop") if c.role == "adadp"]:
        run = record(cell.config)
        run["rows"] |= {name: [*run["rows"][name][:-1], [None, *run["rows"][name][-1][1:]]] for name in PER_CLIENT}
        run["rows"] |= {"refused": [[]] * (cell.config.rounds - 1) + [[0]]}
        run["within_rounds"]["lr"][-1][0] = None
        results.save(run, "fed-rounds", tmp_path)
    assert "differ by a factor of 5.00" in plots.caption(federated_clients.clients(0, folder=tmp_path))
    assert "in the median 0.33 times" in plots.caption(federated_clients.within_round(0, folder=tmp_path))
    rows = federated_runs.rows(next(iter(results.load(tmp_path).values())))
    for draw in (federated.client_rates(rows, data=JPEG), federated.within_round(rows, 40, data=JPEG)):
        assert "client 2" in to_html(draw)


def test_ranges_over_learning_rates_are_said(full):
    caption = plots.caption(federated_runs.by_lr(folder=full))
    assert "ADADP at 33 % 2.0" in caption and "SGD at 0 % 1.9" in caption


def test_at_full_data_size_the_best_learning_rate_of_sgd_is_drawn(full):
    caption = plots.caption(federated_runs.by_round("fed-rounds", 0, size="full-data", folder=full))
    assert "SGD (lr 0.0316) 36.0 % (one seed)" in caption and "10000 images" in caption
    assert "chosen by test accuracy on the same seed, from a grid around the laptop size's best" in caption


def test_a_best_learning_rate_at_the_end_of_its_grid_is_told(full, tmp_path):
    assert federated_runs.search_ends(0, 33, folder=full) == federated_runs.search_ends(0, folder=tmp_path) == ""
    for path in full.glob("fed-rounds/*.json"):
        run = results.read(path)
        config = run["config"]
        if (config["method"], config["examples_per_client"], config["random_fraction"]) == ("sgd", 10000, 0):
            run["rows"]["test_accuracy"][-1] = 0.9 - config["lr"]
        results.save({k: v for k, v in run.items() if k not in ("id", "experiment")}, "fed-rounds", tmp_path)
    said = federated_runs.search_ends(0, 33, folder=tmp_path)
    assert said.endswith("the best is the smallest at 0 %: others may do better.")


def test_runs_that_broke_down_are_counted(full, tmp_path):
    assert "broke down" not in plots.caption(federated_runs.by_round("fed-rounds", 0, folder=full))
    (cell, *_) = [c for c in grids.cells("fed-rounds", {}, "laptop") if c.role == "adadp"]
    results.save(record(cell.config) | {"diverged": 3}, "fed-rounds", tmp_path)
    assert "from there on: 1." in plots.caption(federated_runs.by_round("fed-rounds", 0, folder=tmp_path))


def test_what_was_chosen_by_the_test_set_is_said(full):
    tuned = "The learning rate of SGD was chosen by test accuracy on another seed."
    assert tuned in plots.caption(federated_runs.by_round("fed-rounds", 0, folder=full))
    assert "chosen" not in plots.caption(federated_runs.by_round("fed-discarding", 0, folder=full))


def test_seeds_that_are_there_are_drawn_and_the_others_counted(full, tmp_path):
    (cell, *_) = [c for c in grids.cells("fed-rounds", {}, "laptop") if c.role == "adadp"]
    results.save(record(cell.config), "fed-rounds", tmp_path)
    caption = plots.caption(federated_runs.by_round("fed-rounds", 0, folder=tmp_path))
    assert "1 seed a curve" in caption and "fed-rounds: 1 of 20 runs are stored" in caption


def test_sizes_are_compared_by_order(full, tmp_path):
    text = repr(federated_runs.sizes(0, folder=full))
    assert text.splitlines()[0].split()[-2:] == ["laptop", "full-data"]
    assert "in the same order at every size" in text and "Data: CIFAR-10 (JPEG copy)" in text
    assert isinstance(federated_runs.sizes(0, folder=tmp_path), Note) and not federated_runs.size_gaps(
        0, folder=tmp_path
    )
    worse = {}
    for path in full.glob("*/*.json"):
        run = results.read(path)
        if run["config"]["examples_per_client"] == 10000 and run["config"]["method"] == "adadp":
            run["rows"]["test_accuracy"][-1] = 0.0
            worse[run["id"]] = run
        results.save({k: v for k, v in run.items() if k not in ("id", "experiment")}, path.parent.name, tmp_path)
    said = repr(federated_runs.sizes(0, folder=tmp_path))
    assert worse and "Their order depends on the size." in said
    best = max(float(line.split()[-1]) for line in said.splitlines() if line.startswith("SGD"))
    assert said.split("ADADP − best SGD")[1].split()[1] == signed(-best)
    assert federated_runs.size_gaps(0, folder=tmp_path)["full-data"] == pytest.approx(-best, abs=0.05)


def test_sizes_are_compared_at_one_seed(full, tmp_path):
    """The best SGD has a run at the seed of its search and, at one size, others; seeds change the split as well."""
    for path in full.glob("*/*.json"):
        run = results.read(path)
        if run["config"]["method"] == "sgd" and run["config"]["seed"] == federated_runs.SEED:
            run["rows"]["test_accuracy"][-1] = 0.1
        results.save({k: v for k, v in run.items() if k not in ("id", "experiment")}, path.parent.name, tmp_path)
    curves, _ = stored_words.found("fed-rounds", "laptop", tmp_path, random_fraction=0.0)
    (best,) = (c["config"]["lr"] for c in curves if c["role"] == "sgd best")
    lines = repr(federated_runs.sizes(0, folder=tmp_path)).splitlines()
    assert next(line.split()[-2:] for line in lines if line.startswith(f"SGD {best:.3g}")) == ["10.0", "10.0"]


def test_a_size_without_adadp_has_no_gap(full, tmp_path):
    for path in full.glob("*/*.json"):
        run = results.read(path)
        if run["config"]["examples_per_client"] != 10000 or run["config"]["method"] != "adadp":
            results.save({k: v for k, v in run.items() if k not in ("id", "experiment")}, path.parent.name, tmp_path)
    assert repr(federated_runs.sizes(0, folder=tmp_path)).split("ADADP − best SGD")[1].split()[1] == "–"


def test_runs_that_break_down_are_counted(full, tmp_path):
    counts = federated_runs.broken(folder=full)
    assert counts == {"adadp": 0, "nothing discarded": 0, "runs": 6}
    for number, path in enumerate(sorted(full.glob("fed-discarding/*.json"))):
        run = results.read(path)
        if not run["config"]["discard"]:
            run["rows"]["test_accuracy"][-1] = 0.1 if number % 2 else 0.5
        results.save({k: v for k, v in run.items() if k not in ("id", "experiment")}, path.parent.name, tmp_path)
    counts = federated_runs.broken(folder=tmp_path)
    assert 0 < counts["nothing discarded"] < 6 == counts["runs"]


def test_a_case_is_drawn_over_its_stored_band(full, tmp_path):
    config = federated_case("adadp", percent=33, seed=7)
    fig = federated_runs.one_case(config, record(config), folder=full)
    assert {"stored, 3 seeds", "this run, seed 7"} <= {t.get_text() for t in fig.axes[0].texts}
    assert isinstance(federated_runs.one_case(config, folder=tmp_path), Note)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"method": "rmsprop"}, "method"), ({"size": "huge"}, "size"), ({"method": "sgd"}, "lr is missing"),
     ({"percent": 150}, "random_fraction")],
)  # fmt: skip
def test_wrong_cases_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        federated_case(**{"method": "adadp", "percent": 0} | change)


def test_what_the_paper_leaves_open_is_told_in_numbers(full, tmp_path):
    said = federated_runs.switches(0, folder=full)
    assert said.startswith("0 % random, one seed: lr kept, mean of losses ")
    assert all(re.search(rf"{name} \d+\.\d %", said) for name in ("lr reset each round", "sum of losses"))
    assert "not stored yet" in federated_runs.switches(0, folder=tmp_path)


def some_runs(full, folder, keep):
    """A folder with those of the stored runs whose config is to be kept."""
    for path in full.glob("*/*.json"):
        run = results.read(path)
        if keep(run["config"]):
            results.save({k: v for k, v in run.items() if k not in ("id", "experiment")}, path.parent.name, folder)
    return folder


@pytest.mark.parametrize(
    ("name", "axis", "first"), [("lr", "lr", 0.1), ("batch", "batch_size", 10), ("randomness", "random_fraction", 0)]
)
def test_one_value_on_the_axis_is_no_curve(name, axis, first, full, tmp_path):
    """While no curve has a second value, a note says what is missing in the place of a figure of single points."""
    note = DRAWN[name](some_runs(full, tmp_path / "one", lambda config: config[axis] == first))
    assert isinstance(note, Note) and "--profile laptop makes" in repr(note)
    second = lambda config: config[axis] == first or config["method"] == "adadp"  # noqa: E731
    assert isinstance(DRAWN[name](some_runs(full, tmp_path / "two", second)), Figure)


def test_ablations_are_compared_at_the_seeds_of_adadp(full, tmp_path):
    """Without discarding there are three seeds, of everything else one: another seed must not pass for a change."""
    for path in full.glob("*/*.json"):
        run = results.read(path)
        if run["config"]["discard"] is False and run["config"]["seed"] > 1:
            run["rows"]["test_accuracy"][-1] = 0.0
        results.save({k: v for k, v in run.items() if k not in ("id", "experiment")}, path.parent.name, tmp_path)
    fig = federated_runs.ablations(0, folder=tmp_path)
    told = plots.describe(fig)
    assert re.search(r"ADADP (\d+\.\d) %, nothing discarded \1 %", told), told
    assert "1 seed a curve. One thing changed at a time." in plots.caption(fig)


def test_without_adadp_nothing_stands_in_for_a_comparison(full, tmp_path):
    folder = some_runs(full, tmp_path, lambda config: False in (config["discard"], config["keep_lr"]))
    told = plots.describe(federated_runs.ablations(0, folder=folder))
    assert "lr reset each round" in told and "nothing discarded" not in told


def test_one_seed_makes_no_band(full, tmp_path):
    config, band = federated_case("adadp", percent=33, seed=7), "Band: lowest to highest stored seed."
    assert plots.caption(federated_runs.one_case(config, record(config), folder=full)).endswith(band)
    folder = some_runs(full, tmp_path, lambda found: found["seed"] == 1)
    for own in (record(config), None):
        assert "Band" not in plots.caption(federated_runs.one_case(config, own, folder=folder))

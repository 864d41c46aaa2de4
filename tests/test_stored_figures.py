"""Figures of stored results: they draw what is there, name what is missing, and change when results change."""

import pytest
from matplotlib.figure import Figure

from adadp.experiments import grids, results
from adadp.experiments.cases import case
from adadp.figures import ablations, claims, plots, points, stored, style
from adadp.figures.show import to_html
from adadp.figures.widgets import Explorer
from adadp.rounding import points as in_words

PRIVATE = [name for name in grids.EXPERIMENTS if not name.startswith("fed-")]
JPEG = "CIFAR-10 (JPEG copy)"


def record(role: str, config) -> dict:
    """A made-up run: ten rows, worse with more noise, better with a higher seed."""
    if config.kind == "timing":
        rows = {"epoch": [1, 2], "adadp": [2.0, 2.1], "sgd": [1.9, 2.0], "adam": [2.2, 2.3]}
        return {"config": config.to_dict(), "rows": rows, "first_epoch": {}, "data": "synthetic", "device": "cpu (x)"}
    final = (
        0.9 - 0.01 * config.noise_multiplier + 0.01 * config.seed - 0.01 * abs(config.lr - 3e-4) / (config.lr + 3e-4)
    )
    final -= 0.02 * (config.tol or 0.3) ** 0.5
    rows = {"epoch": list(range(1, 11)), "steps": [300 * k for k in range(1, 11)]}
    rows |= {"test_accuracy": [final - 0.3 / k for k in range(1, 10)] + [final], "lr": [0.02] * 10}
    known = config.noise_multiplier > 0
    rows |= {
        f"epsilon_{a}": [n * k / 10 if known else None for k in range(1, 11)]
        for a, n in (("moments", 1.0), ("pld", 0.8))
    }
    first = {"step": [2, 4, 6], "lr": [config.lr, 0.02, 0.02], "error": [1.0] * 3} if config.tol else {}
    data = JPEG if config.dataset == "cifar10" else "MNIST"
    return {"config": config.to_dict(), "rows": rows, "first_epoch": first, "data": data, "device": "cpu (x)"}


def fill(folder, names, keep=lambda cell: True):
    """Store everything that experiments ask for, stage after stage."""
    known: dict = {}
    while True:
        todo = [(n, c) for n in names for c in grids.cells(n, known) if c.config.id not in known and keep(c)]
        if not todo:
            return folder
        for name, cell in todo:
            if cell.config.id not in known:
                run = record(cell.role, cell.config)
                results.save(run, name, folder)
                known[cell.config.id] = run | {"id": cell.config.id}


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("full"), PRIVATE)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """One seed of two variants at two noise multipliers."""

    def keep(cell):
        config = cell.config
        return cell.role in ("as_printed", "reference_code") and config.noise_multiplier in (2, 4) and config.seed == 1

    return fill(tmp_path_factory.mktemp("few"), ["dp-adam-mnist"], keep)


FIGURES = {
    "lr_by_epoch": lambda folder: ablations.lr_by_epoch({2: 0.02}, folder=folder),
    "first_lr": lambda folder: ablations.first_lr(folder=folder),
    "lr_paths": lambda folder: ablations.lr_paths(folder=folder),
    "by_tol": lambda folder: ablations.by_tol(folder=folder),
    "by_batch_size": lambda folder: ablations.by_batch_size(folder=folder),
    "without_noise": lambda folder: ablations.without_noise(folder=folder),
    "seconds_an_epoch": lambda folder: ablations.seconds_an_epoch(folder=folder),
    "by_sigma": lambda folder: stored.accuracy_by_sigma(stored.comparison("cifar", "sgd", folder=folder)),
    "one_case": lambda folder: stored.one_case(case("mnist", "as_printed", sigma=2), folder=folder),
} | {name: lambda folder, name=name: ablations.one_change(name, folder=folder) for name in ablations.CHANGES}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_from_full_results(name, full):
    fig = FIGURES[name](full)
    assert isinstance(fig, Figure)
    assert len(plots.describe(fig)) > 40 and plots.caption(fig) and plots.provenance(fig)
    assert not any(word in plots.describe(fig) + plots.caption(fig) for word in ("nan", "inf"))
    assert to_html(fig).count("<svg") >= 1


@pytest.mark.parametrize("name", FIGURES)
def test_without_results_a_sentence_says_which_command_makes_them(name, tmp_path):
    note = FIGURES[name](tmp_path)
    assert isinstance(note, stored.Note)
    assert "adadp run" in note.text or "the profile paper" in note.text
    assert note.text in note._repr_html_()


def test_a_jpeg_copy_is_called_that_in_every_figure_and_table(full):
    compared = stored.comparison("cifar", "adam", folder=full)
    assert JPEG in repr(compared)
    assert JPEG in plots.provenance(stored.accuracy_by_sigma(compared))
    assert JPEG in stored.accuracy_explorer(compared).html
    assert plots.provenance(ablations.lr_by_epoch({}, data="cifar", folder=full)) == JPEG


@pytest.mark.parametrize("against", ["adam", "sgd"])
def test_all_curves_of_a_comparison_are_there(full, against):
    compared = stored.comparison("mnist", against, folder=full)
    assert list(compared.runs) == [2, 4, 6, 8]
    every = list(stored.ROLES[against].values())
    later = [name for name in every if name != "sgd_second"]  # tuned at σ = 2 only
    assert [list(methods) for methods in compared.runs.values()] == [every, later, later, later]
    assert all(len(seeds) == 3 for methods in compared.runs.values() for seeds in methods.values())
    assert "all of the" in compared.missing and "adadp run" not in compared.missing


def test_what_was_chosen_by_test_accuracy_is_marked_and_has_its_learning_rate(full):
    for against, name in (("adam", "Adam"), ("sgd", "SGD")):
        compared = stored.comparison("mnist", against, folder=full)
        said = f"The learning rate of {name} was chosen by test accuracy, on another seed."
        assert said in repr(compared) and said in plots.caption(stored.accuracy_by_sigma(compared))
        assert said in stored.accuracy_explorer(compared).html
    rates = {r["config"]["lr"] for r in compared.runs[4]["sgd_rescaled"]}
    ends = stored.ends(compared.runs[4])
    assert (
        ends[style.METHODS["sgd_rescaled"]["label"]].endswith(f"seeds), lr {style.number(rates.pop())}") and not rates
    )
    assert ends["ADADP (as printed)"].endswith("seeds)")
    assert not stored.peeking(stored.Comparison("x", {2: {"as_printed": compared.runs[2]["as_printed"]}}, ""))


def test_a_figure_draws_no_curve_twice(full):
    runs = stored.comparison("mnist", "sgd", folder=full).runs
    assert "sgd_second" in stored.drawn(runs[2]) and "sgd_rescaled" not in stored.drawn(runs[2])  # it is the tuned one
    assert "sgd_rescaled" in stored.drawn(runs[4])
    for left_to_the_table in ("predicted", "reference_code"):
        assert all(left_to_the_table in m and left_to_the_table not in stored.drawn(m) for m in runs.values())
    assert all(
        "reference_code" in stored.drawn(m) for m in stored.comparison("mnist", "adam", folder=full).runs.values()
    )
    before = {name: records for name, records in runs[4].items() if name != "predicted_recommended"}
    assert "predicted" in stored.drawn(before)
    for methods in runs.values():
        looks = [(m["color"], str(m["linestyle"]), m["marker"]) for m in map(style.METHODS.get, stored.drawn(methods))]
        assert len(set(looks)) == len(looks)


def test_sgd_in_a_control_is_called_best_only_where_it_was_tuned(full):
    said = plots.caption(ablations.one_change("decay-control", folder=full))
    assert "SGD, best, σ = 2" in said and "SGD, lr from σ = 2, σ = 8" in said and "SGD, best, σ = 8" not in said
    assert "chosen by test accuracy" in said
    assert "chosen by test accuracy" not in plots.caption(ablations.one_change("scaled-error", folder=full))


def test_points_of_one_seed_say_so(full):
    assert "One seed a point." in plots.caption(ablations.by_tol(folder=full))
    assert "One seed a point." in plots.caption(ablations.first_lr(folder=full))


def test_few_runs_are_drawn_and_the_others_named(few):
    compared = stored.comparison("mnist", "adam", folder=few)
    assert {s: list(m) for s, m in compared.runs.items()} == {
        sigma: ["as_printed", "reference_code"] for sigma in (2, 4)
    }
    text = repr(compared)
    assert "One number is one seed" in text and "4 of 88 runs are stored" in text and "adadp run dp-adam-mnist" in text
    assert "σ = 2 ε = 1.01 / 0.81" in text, "stored as 1 and 0.8, which may have been a little more"


def test_numbers_in_words_are_means_and_ranges(full):
    compared = stored.comparison("mnist", "adam", folder=full)
    finals = [100 * r["rows"]["test_accuracy"][-1] for r in compared.runs[4]["as_printed"]]
    (line,) = [line for line in repr(compared).splitlines() if line.startswith("ADADP (as printed)")]
    wanted = f"{sum(finals) / 3:.1f} {min(finals):.1f} to {max(finals):.1f}"
    assert wanted in line and wanted.replace(" ", "<small>", 1) + "</small>" in compared._repr_html_()
    low, high = stored.gaps(compared, "adam")["as_printed"]
    assert stored.in_points(compared, "adam")["as_printed"] == in_words(low, high)


def test_a_table_has_one_row_a_method_and_says_where_learning_rates_come_from(full):
    table = stored.table(stored.comparison("mnist", "sgd", folder=full))
    labels = [row["accuracy (%)"] for row in table.rows]
    assert labels == list(dict.fromkeys(labels)) and len(labels) == len(stored.ROLES["sgd"])
    row = next(row for row in table.rows if row["accuracy (%)"] == style.METHODS["sgd_second"]["label"])
    assert list(row.values())[2:] == ["–", "–", "–"], "it is tuned at σ = 2 alone"
    (rates,) = [note for note in table.notes if note.startswith("Learning rates: ")]
    assert "at σ = 2, " in rates and " at every σ" in rates and "ADADP" not in rates


def test_stored_runs_get_sliders(full, few, tmp_path):
    for folder, methods in ((full, 6), (few, 2)):
        explorer = stored.accuracy_explorer(stored.comparison("mnist", "adam", folder=folder))
        assert isinstance(explorer, Explorer) and explorer.html.count('type="range"') == 2
        views = [explorer.view(sigma=2, accountant=a) for a in ("moments", "PLD")]
        assert views[0].numbers == views[1].numbers and len(views[0].numbers) == methods
        assert "ε = 1.01 " in views[0].says and "ε = 0.801 " in views[1].says
    assert isinstance(stored.accuracy_explorer(stored.comparison("mnist", "adam", folder=tmp_path)), stored.Note)


def test_one_case_lies_over_the_band_of_its_own_seeds(full):
    config = case("mnist", "as_printed", sigma=2, seed=9)
    run = record("as_printed", config)
    fig = stored.one_case(config, run, folder=full)
    labels = [t.get_text() for ax in fig.axes for t in ax.texts] + [t.get_text() for g in fig.legends for t in g.texts]
    assert "stored, 3 seeds" in labels and "this run, seed 9" in labels
    alone = stored.one_case(case("mnist", "as_printed", sigma=2, tol=0.77), run, folder=full)
    assert "stored" not in plots.describe(alone) and "this run" in plots.describe(alone)


def test_a_case_without_noise_is_drawn_by_epoch(full):
    config = case("mnist", "as_printed", sigma=0.0, tol=0.1, seed=9)
    fig = stored.one_case(config, record("as_printed tol 0.1", config), folder=full)
    assert fig.axes[0].get_xlabel() == "epoch" and not plots.statement(fig)
    assert "without noise" in plots.describe(fig) and "this run, seed 9" in plots.describe(fig)


def test_one_change_compares_like_with_like(full):
    """Three seeds before and after; SGD's lr goes along with the clipping norm, so that it finds its counterpart."""
    fig = ablations.one_change("clip-control", folder=full)
    rows = [t.get_text() for t in fig.axes[0].get_yticklabels()]
    assert "SGD, best, σ = 2" in rows and "as printed, σ = 8" in rows and len(rows) == 10
    assert all(len(line.get_xdata()) in (2, 3) for line in fig.axes[0].lines)


def test_differences_are_taken_at_the_seeds_that_both_have(full, tmp_path):
    """A seed that only one side has, with an accuracy of its own, changes no difference."""
    for run in results.load(full).values():
        changed, seed = run["config"].get("relative_error") is False, run["config"]["seed"]
        adam = run["config"].get("method") == "adam"
        if seed > 1 and (changed or adam):
            run["rows"]["test_accuracy"][-1] = 0.0
        if seed == 1 or changed or adam:
            results.save({k: v for k, v in run.items() if k not in ("id", "experiment")}, run["experiment"], tmp_path)
    for line in ablations.one_change("scaled-error", folder=tmp_path).axes[0].lines:
        assert len(line.get_xdata()) in (1, 2) and min(line.get_xdata()) > 0
    compared = stored.comparison("mnist", "adam", folder=tmp_path)
    assert any(len(methods["adam"]) > 1 for methods in compared.runs.values())
    assert max(map(abs, stored.gaps(compared, "adam")["as_printed"])) < 40


def test_a_changed_result_changes_the_caption(full, tmp_path):
    before = plots.caption(ablations.first_lr(folder=full))
    for run in results.load(full).values():
        if run["config"].get("lr") == 10:
            run["rows"]["test_accuracy"][-1] -= 0.2
        results.save({k: v for k, v in run.items() if k not in ("id", "experiment")}, run["experiment"], tmp_path)
    assert plots.caption(ablations.first_lr(folder=tmp_path)) != before


def test_points_need_a_value():
    for bad in ({}, {"adadp": {}}):
        with pytest.raises(ValueError, match="points"):
            points.by_value(bad, xlabel="x")


def test_verdicts_of_a_chapter_lead_to_the_page_of_claims():
    page = claims.Overview(claims.stored_reports(ids=["eta0"]), page="claims.html")._repr_html_()
    assert 'href="claims.html#claim-eta0"' in page and page.count("<li>") == 1


def test_a_statement_over_shuffled_runs_says_that_sampling_is_only_assumed():
    rows = {"epsilon_moments": [1.0], "epsilon_pld": [0.5]}
    sampled, shuffled = (
        {"config": {"noise_multiplier": 2.0, "delta": 1e-5, "sampler": s}, "rows": rows}
        for s in ("poisson", "shuffled")
    )
    assert "Poisson assumed" in stored.spent([sampled, shuffled]) and "Poisson assumed" not in stored.spent([sampled])


def test_gaps_are_those_of_the_means():
    def ended(accuracy, seed=1):
        return {"rows": {"test_accuracy": [0.1, accuracy]}, "data": "made up", "config": {"seed": seed}}

    runs = {
        2: {"recommended": [ended(0.91), ended(0.99, 2)], "adam": [ended(0.90)]},
        4: {"recommended": [ended(0.85)], "adam": [ended(0.87)], "as_printed": [ended(0.5)]},
        8: {"recommended": [ended(0.7)]},
    }
    found = stored.gaps(stored.Comparison("dp-adam-mnist", runs, ""), "adam")
    assert found == {"as_printed": pytest.approx((-37, -37)), "recommended": pytest.approx((-2, 1))}
    assert stored.gaps(stored.Comparison("dp-adam-mnist", {}, ""), "adam") == {}


def some_runs(full, folder, keep):
    """A folder with those of the stored runs whose config is to be kept."""
    for run in results.load(full).values():
        if keep(run["config"]):
            results.save({k: v for k, v in run.items() if k not in ("id", "experiment")}, run["experiment"], folder)
    return folder


@pytest.mark.parametrize(
    ("name", "axis", "first"),
    [("by_batch_size", "expected_batch_size", 200), ("by_tol", "tol", 1.0), ("first_lr", "lr", 0.1)],
)
def test_one_value_on_the_axis_is_no_curve(name, axis, first, full, tmp_path):
    """While no curve has a second value, a note says what is missing in the place of a figure of single points."""
    note = FIGURES[name](some_runs(full, tmp_path / "one", lambda config: config.get(axis) == first))
    assert isinstance(note, stored.Note) and "adadp run" in note.text
    second = lambda config: config.get(axis) == first or config.get("method") == "adadp"  # noqa: E731
    assert isinstance(FIGURES[name](some_runs(full, tmp_path / "two", second)), Figure)


def test_the_text_alternative_of_a_figure_tells_every_panel(full):
    fig = ablations.seconds_an_epoch(folder=full)
    told = plots.describe(fig)
    assert len(fig.axes) == 2 and all(ax.get_title() in told for ax in fig.axes)
    assert told.count("ADADP 2.05, SGD 1.95, Adam 2.25") == 2


def test_a_method_is_named_once(full):
    said = plots.describe(ablations.lr_by_epoch({2: 0.02}, folder=full))
    assert said.startswith("Learning rate of ADADP (as printed) by epoch.")


def test_one_seed_makes_no_band(full, few):
    config = case("mnist", "as_printed", sigma=2, seed=9)
    run, band = record("as_printed", config), "Band: lowest to highest stored seed."
    assert plots.caption(stored.one_case(config, run, folder=full)).endswith(band)
    for own in (run, None):
        assert "Band" not in plots.caption(stored.one_case(config, own, folder=few))
    said = [stored.accuracy_explorer(stored.comparison("mnist", "adam", folder=f)).html for f in (full, few)]
    assert ["band: lowest to highest" in page for page in said] == [True, False] and "One seed a curve." in said[1]


def test_a_caption_holds_at_every_noise_multiplier(tmp_path):
    """Three seeds at one, a single one at the others: said once, for wherever the slider stands."""
    grown = fill(tmp_path, ["dp-adam-mnist"], lambda cell: cell.config.seed < 2 or cell.config.noise_multiplier == 2)
    page = stored.accuracy_explorer(stored.comparison("mnist", "adam", folder=grown)).html
    assert "band, where there are several: lowest to highest." in page and "One seed a curve" not in page

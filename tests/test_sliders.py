"""The sliders of the chapters and of the first page: what they show is what the package computes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import adadp
from adadp.experiments import grids, results
from adadp.figures import accounting, federated_lr, landing, step_doubling, tol_grid
from adadp.figures.gradient_flow import adapt, valley
from adadp.rounding import round_up

PRIVATE = {"max_grad_norm": 10.0, "num_parameters": 334_336, "expected_batch_size": 200}


# --- the first page -------------------------------------------------------------------------------------------------


def test_the_first_page_finds_what_the_formula_says():
    tols, sigmas = [0.1, 1.0, 3.16], [1, 2, 8]
    it = landing.explorer(tols, sigmas, **PRIVATE)
    for tol in tols:
        for sigma in sigmas:
            view = it.view(tol=tol, sigma=sigma)
            known = adadp.predicted_lr(tol=tol, noise_multiplier=sigma, **PRIVATE)
            found = float(view.numbers["found"])
            assert found == pytest.approx(known, rel=0.01) and float(view.numbers["predicted"]) == pytest.approx(
                known, rel=0.01
            )
            rates = [line.get_ydata() for line in view.figure.axes[0].lines[:3]]
            assert [r[0] for r in rates] == [1e-3, 0.03, 1.0] and all(
                r[-1] == pytest.approx(known, 0.02) for r in rates
            )
    assert it.start == {"tol": 1.0, "sigma": 2}


def test_the_first_page_is_small_and_starts_at_the_papers_setting():
    grid = [round(10 ** (k / 4), 3) for k in range(-4, 3)], [1, 1.5, 2, 3, 4, 6, 8]
    page = landing.explorer(*grid, **PRIVATE).html
    assert len(page) < 60_000 and page.count("<input") == 2
    assert "found: 0.0245" in page


# --- Step doubling --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lr", "tol"), [(0.001, 0.3), (10, 0.003), (0.1, 0.03)])
def test_step_doubling_shows_path_rate_errors_and_what_is_discarded(lr, tol):
    bend = valley()
    it = step_doubling.explorer(bend, [0.001, 0.1, 10], [0.003, 0.03, 0.3], iterations=40, advance="half_steps")
    run = adapt(bend, lr, tol, 40, advance="half_steps")
    view = it.view(lr=lr, tol=tol)
    ground, rate, error = view.figure.axes
    assert np.array_equal(np.array(ground.lines[-1].get_data()).T, run.path)
    assert np.array_equal(rate.lines[0].get_ydata(), run.lr)
    assert np.array_equal(error.lines[0].get_ydata(), np.clip(run.error, 1e-6, 1e3))
    for ax in (rate, error):
        assert np.array_equal(ax.lines[1].get_xdata(), np.flatnonzero(~run.kept))
    assert list(error.lines[2].get_ydata()) == [tol, tol]
    accepted, lost = int(run.kept.sum()), int((~run.kept).sum())
    assert (
        view.numbers["accepted"] == f"{accepted} of {accepted + lost} steps" and view.numbers["discarded"] == f"{lost}"
    )
    assert f"{accepted} steps were accepted, {lost} discarded" in view.says


# --- Choosing tol ---------------------------------------------------------------------------------------------------


def made_up(tols=(0.1, 1.0), sigmas=(1, 2), epochs=4):
    """A grid without training."""
    runs = {}
    for tol in tols:
        for sigma in sigmas:
            known = adadp.predicted_lr(tol=tol, noise_multiplier=sigma, **PRIVATE)
            runs[tol, sigma] = [
                {"epoch": e, "steps": 300 * e, "test_accuracy": 0.1 * e + 0.01 * sigma, "lr": known * (1 + 0.1 / e)}
                for e in range(1, epochs + 1)
            ]
    return tol_grid.Grid(runs, "made up", "A few runs.", PRIVATE, 1 / 300, 1e-5)


def test_choosing_tol_sets_the_measured_beside_the_predicted():
    grid = made_up()
    view = tol_grid.explorer(grid).view(tol=0.1, sigma=2)
    left, right = view.figure.axes
    rows = grid.runs[0.1, 2]
    known = adadp.predicted_lr(tol=0.1, noise_multiplier=2, **PRIVATE)
    assert list(left.lines[0].get_ydata()) == [row["lr"] for row in rows]
    assert list(left.lines[1].get_ydata()) == [known, known]
    assert list(right.lines[0].get_ydata()) == [row["test_accuracy"] for row in rows]
    cost = {"noise_multiplier": 2, "sample_rate": 1 / 300, "steps": 1200, "delta": 1e-5}
    moments, pld = (adadp.epsilon(**cost, accountant=a) for a in ("moments", "pld"))
    noise = 0.1 * (2 * 600 / 334_336) ** 0.5
    assert float(view.numbers["predicted"]) == pytest.approx(known, rel=0.01)
    assert float(view.numbers["measured"]) == pytest.approx(rows[-1]["lr"], rel=0.01)
    assert float(view.numbers["noise in each weight"]) == pytest.approx(noise, rel=0.01)
    assert (
        view.numbers["accuracy"] == "42.0 %"
        and view.numbers["ε"] == f"{round_up(moments)} (moments), {round_up(pld)} (PLD)"
    )
    assert all(value in view.says for value in view.numbers.values())
    assert grid.farthest == pytest.approx(0.025)


def test_a_grid_with_a_hole_is_refused():
    grid = made_up()
    runs = {key: rows for key, rows in grid.runs.items() if key != (1.0, 2)}
    with pytest.raises(ValueError, match=r"lacks \(tol, noise multiplier\) \(1.0, 2\)"):
        tol_grid.explorer(tol_grid.Grid(runs, "made up", "", PRIVATE, 1 / 300, 1e-5))


def store(experiment, folder, profile="paper", leave=0):
    """Made-up results of an experiment, all but a few."""
    cells = grids.cells(experiment, {}, profile)
    for cell in cells[: len(cells) - leave]:
        n = range(1, 4)
        rows = {"epoch": [*n], "round": [*n], "steps": [300 * k for k in n], "lr": [0.1, 0.05, 0.02]}
        rows["test_accuracy"] = [0.2 * k + 0.01 * cell.config.seed for k in n]
        results.save({"config": cell.config.to_dict(), "rows": rows, "data": "made up"}, experiment, folder)
    return cells


def test_the_stored_grid_is_taken_once_it_is_whole(tmp_path):
    cells = store("tol-grid", tmp_path, leave=1)
    grid, said = tol_grid.stored(334_336, folder=tmp_path)
    assert grid is None and said == "62 of the 63 full-size runs are stored; adadp run tol-grid makes the others."
    store("tol-grid", tmp_path)
    grid, said = tol_grid.stored(334_336, folder=tmp_path)
    assert said == "63 stored runs of 20 epochs, one seed each."
    assert set(grid.runs) == {(c.config.tol, c.config.noise_multiplier) for c in cells}
    assert grid.private == PRIVATE and grid.sample_rate == pytest.approx(1 / 300) and grid.data == "made up"
    page = tol_grid.explorer(grid).html
    assert len(page) < 300_000 and "63 stored runs" in page and "made up" in page


# --- Accounting -----------------------------------------------------------------------------------------------------


def test_accounting_moves_all_four_and_says_epsilon():
    axes = {"sigmas": [1, 2], "epochs": [3, 100], "batch_sizes": [200, 800], "deltas": [1e-5, 1e-7]}
    it = accounting.explorer(**axes, records=60_000)
    assert [a.name for a in it.axes] == ["sigma", "epochs_done", "batch", "delta"]
    for sigma, epochs, batch, delta in ((1, 3, 200, 1e-5), (2, 100, 800, 1e-7)):
        view = it.view(sigma=sigma, epochs_done=epochs, batch=batch, delta=delta)
        cost = {"noise_multiplier": sigma, "sample_rate": batch / 60_000, "steps": round(epochs * 60_000 / batch)}
        for name, accountant in (("moments", "moments"), ("PLD", "pld")):
            exact = adadp.epsilon(**cost, delta=delta, accountant=accountant)
            assert view.numbers[name] == f"ε = {round_up(exact, decimals=3)}"


def test_every_point_of_the_chapter_s_epsilons_lies_on_the_axis():
    """The calmest and the most spent corner of the sliders in the chapter on accounting."""
    text = (Path(__file__).parents[1] / "notebooks" / "accounting.ipynb").read_text(encoding="utf-8")
    (cell,) = ["".join(c["source"]) for c in json.loads(text)["cells"] if c["id"] == "explorer"]
    it = eval(cell, {"draw": accounting})
    axes = {a.name: a.values for a in it.axes}
    for pick in ((max, min, min, max), (min, max, max, min)):
        view = it.view(**{name: f(values) for f, (name, values) in zip(pick, axes.items(), strict=True)})
        ax = view.figure.axes[0]
        low, high = ax.get_ylim()
        heights = [y for line in ax.lines if len(line.get_xdata()) == 1 for y in line.get_ydata()]
        assert len(heights) == 2 and all(low < y < high for y in heights)


# --- Federated ------------------------------------------------------------------------------------------------------


def rounds(*accuracies):
    """Rows of one seed."""
    return [{"round": n, "test_accuracy": a} for n, a in enumerate(accuracies, start=1)]


def test_federated_shows_the_chosen_run_and_the_grid_beside_it():
    runs = {
        p: {
            "ADADP": {0.1: [rounds(0.3, 0.6), rounds(0.5, 0.8)]},
            "SGD": {0.01: [rounds(0.1, 0.2)], 0.1: [rounds(0.2, p / 100)]},
        }
        for p in (0, 33)
    }
    it = federated_lr.explorer(runs, origin="Two runs.", data="made up")
    view = it.view(percent=33, lr=0.01)
    left, right = view.figure.axes
    assert list(left.lines[0].get_ydata()) == pytest.approx([0.4, 0.7])
    assert list(left.lines[1].get_ydata()) == [0.1, 0.2]
    assert list(right.lines[2].get_ydata()) == [0.2, 0.33] and list(right.lines[3].get_xdata()) == [0.01]
    assert view.numbers == {"ADADP": "70.0 %", "SGD": "20.0 %"}
    assert "ADADP from 0.1 ends at 70.0 %" in view.says
    other = it.view(percent=33, lr=0.1)
    assert other.numbers["SGD"] == "33.0 %" and it.view(percent=0, lr=0.1).numbers["SGD"] == "0.0 %"


def test_federated_says_where_there_is_no_run():
    runs = {0: {"ADADP": {0.1: [rounds(0.5)], 1.0: [rounds(0.6)]}, "SGD": {0.01: [rounds(0.1)], 0.1: [rounds(0.2)]}}}
    runs[33] = runs[0]
    view = federated_lr.explorer(runs, origin="", data="").view(percent=0, lr=1.0)
    assert view.numbers == {"ADADP": "60.0 %", "SGD": "–"} and "no run of SGD" in view.says


def test_stored_federated_runs_are_taken_once_they_are_whole(tmp_path):
    store("fed-lr", tmp_path, "laptop", leave=2)
    runs, said, _ = federated_lr.stored(folder=tmp_path)
    assert runs is None and re.match(r"142 of the 144 runs of size laptop are stored; adadp run fed-lr --pro", said)
    store("fed-lr", tmp_path, "laptop")
    runs, said, data = federated_lr.stored(folder=tmp_path)
    assert said == "144 stored runs of size laptop." and data == "made up"
    assert set(runs) == {0, 33, 66, 100} and len(runs[33]["ADADP"]) == 7 and len(runs[33]["SGD"]) == 5
    page = federated_lr.explorer(runs, origin=said, data=data).html
    assert len(page) < 300_000

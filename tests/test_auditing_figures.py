"""The chapter *Auditing ADADP*: its figures say what was found, and every figure with an epsilon says of what."""

import re
from functools import cache

import numpy as np
import pytest

from adadp import auditing
from adadp.auditing.faults import FAULTS
from adadp.experiments import grids, results
from adadp.figures import accounting, plots, private_training, show, stored, tol_grid
from adadp.figures import auditing as draw
from adadp.privacy import assumptions
from adadp.rounding import round_down

COST = {"noise_multiplier": 2.0, "sample_rate": 0.05, "delta": 1e-5}
ROWS = [{"steps": 20 * k, "test_accuracy": 0.2 * k, "lr": 0.1, "epsilon": 0.5 * k} for k in (1, 2, 3)]
STATEMENT = "ε = 4.38, δ = 1e-05 (one training example)"


@cache
def releases(observations=200, fault=None):
    return auditing.audit_releases(*([FAULTS[fault]] if fault else []), observations=observations)


def test_sensitivity_says_the_largest_difference():
    pairs = {"right": auditing.audit_sensitivity(trials=5)}
    pairs["wrong"] = auditing.audit_sensitivity(FAULTS["clipping-per-parameter"], trials=5, neighbors="replace_one")
    fig = draw.sensitivity(pairs)
    assert "right: largest 1.000 C, allowed 1 C; wrong: largest" in plots.describe(fig)
    assert len(fig.axes[0].lines[0].get_xdata()) == 5
    assert {text.get_text() for text in fig.axes[0].texts} == {"1 C", "2 C"}


def test_scores_say_errors_and_bound():
    looks = releases()[:2]
    fig = draw.scores(looks, sigma=1.0, statement=STATEMENT)
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["canary in G1", "canary in G2"]
    for look in looks:
        assert f"mu at least {round_down(look.bound)}, declared 1" in plots.describe(fig)
    said = re.search(r"(\d+\.\d) per cent of the runs without", plots.describe(fig))
    assert float(said[1]) == pytest.approx(
        100 * np.mean(looks[0].evidence["scores"][~looks[0].evidence["inside"]] > 0.5)
    )


def test_noise_pairs_say_the_correlation():
    fig = draw.noise_pairs({"right": releases()[2], "reused": releases(100, "one-draw-for-g1-and-g2")[2]})
    assert re.search(r"right: correlation -?0\.[01]\d; reused: correlation 1\.00", plots.describe(fig))


def test_ranking_says_how_many_guesses_were_right():
    run = auditing.audit_one_run(canaries=200)
    said = plots.describe(draw.ranking(run, statement=STATEMENT))
    right = [int(n) for n in re.findall(r"(\d+) were", said)]
    assert run.detail.startswith(f"{sum(right)} of") and f"at least {round_down(run.bound)}, declared 4.38" in said


def test_bounds_lie_below_what_is_declared():
    fig = draw.bounds({"many runs": [(30, 1.859), (100, 2.9)], "one run": [(30, 0.5)]}, 4.3711, statement=STATEMENT)
    assert "declared 4.38. many runs: 1.85 from 30, 2.9 from 100; one run: 0.5 from 30" in plots.describe(fig)


def test_the_table_of_faults():
    found = {"right": auditing.run_audit(observations=20, one_run=False)}
    found["no noise on g2"] = auditing.run_audit(
        FAULTS["no-noise-on-g2"], observations=100, one_run=False, strict=False
    )
    first, second, third = repr(draw.table(found)).splitlines()
    assert first.split() == ["released", *draw.AUDITS] and second.split() == ["right", *5 * ["✓", "ok"]]
    assert third.startswith("no noise on g2 ") and third.split()[6:12] == ["✗", "fails", "✓", "ok", "✗", "fails"]
    assert draw.table(found)._repr_html_().count("<td>") == 10


# --- what epsilons stand on -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_epsilons(tmp_path_factory):
    """Every kind of figure that shows an epsilon, as a page shows it: name -> HTML."""
    folder = tmp_path_factory.mktemp("stored")
    for cell in grids.cells("dp-adam-mnist", {}):
        if cell.role == "as_printed" and cell.config.noise_multiplier in (2, 4):
            rows = {"epoch": [1, 2], "steps": [300, 600], "test_accuracy": [0.5, 0.6], "lr": [0.1, 0.02]}
            rows |= {"epsilon_moments": [0.4, 0.5], "epsilon_pld": [0.2, 0.3]}
            results.save({"config": cell.config.to_dict(), "rows": rows, "data": "made up"}, "dp-adam-mnist", folder)
    mnist = {"sample_rate": 1 / 300, "steps": 300, "delta": 1e-5}
    grid_rows = [{"epoch": 1, "steps": 300, "lr": 0.1, "test_accuracy": 0.5}]
    private = {"max_grad_norm": 10.0, "num_parameters": 334_336, "expected_batch_size": 200}
    grid = tol_grid.Grid(
        {(t, s): grid_rows for t in (0.1, 1.0) for s in (1, 2)}, "made up", "made up", private, 1 / 300, 1e-5
    )
    figures = {
        "accuracy": private_training.accuracy({"as_printed": [ROWS]}, delta=1e-5, statement=STATEMENT, data="made up"),
        "any accuracy": plots.accuracy_against_epsilon({"adadp": [ROWS]}),
        "accountings": private_training.accountings(ROWS, data="made up", **COST),
        "orders": accounting.orders([2, 8], **mnist),
        "losses": accounting.losses(np.linspace(0, 2, 100), 1.0),
        "profile": accounting.profile([1e-2, 1e-5], noise_multiplier=2.0, sample_rate=1 / 300, steps=300),
        "samplers": accounting.samplers(accounting.sampler_rows([1, 2], steps=300, delta=1e-5)),
        "scores": draw.scores(releases()[:2], sigma=1.0, statement=STATEMENT),
        "ranking": draw.ranking(auditing.audit_one_run(canaries=100), statement=STATEMENT),
        "bounds": draw.bounds({"many": [(30, 1.0), (100, 2.0)]}, 4.38, statement=STATEMENT),
    }
    pages = {name: show.to_html(fig) for name, fig in figures.items()}
    pages["stored runs"] = stored.accuracy_explorer(stored.comparison("mnist", "adam", folder=folder)).html
    pages["epsilons"] = accounting.explorer([1, 2], [10, 100], [200, 800], [1e-5, 1e-7], records=60_000).html
    pages["tol grid"] = tol_grid.explorer(grid).html
    return pages


NAMES = ("accuracy", "any accuracy", "accountings", "orders", "losses", "profile", "samplers", "scores", "ranking",
         "bounds", "stored runs", "epsilons", "tol grid")  # fmt: skip


def test_every_name_is_made(with_epsilons):
    assert sorted(with_epsilons) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_with_an_epsilon_carries_a_privacy_statement(with_epsilons, name):
    (said,) = re.findall(r'<p class="ad-privacy">(.*?)</p>', with_epsilons[name])
    assert "one training example" in said
    if name not in ("accuracy", "scores", "ranking", "bounds"):  # those are given theirs
        assert said.count("tuning not included") == 1 and "Poisson" in said


def test_a_statement_that_was_given_stays():
    fig = plots.accuracy_against_epsilon({"adadp": [ROWS]})
    assert assumptions() in plots.statement(fig)
    plots.statement(fig, "another")
    assert plots.statement(fig) == "another" and ">another</p>" in show.notes(fig)


def test_a_figure_without_an_epsilon_needs_none():
    assert show.notes(accounting.style.figure()) == ""

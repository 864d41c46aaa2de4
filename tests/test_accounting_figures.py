"""The chapter *Accounting*: its tables against the frozen values, its losses against PLD, its figures with words."""

import numpy as np
import pytest

from adadp import epsilon
from adadp.figures import accounting, plots

MNIST = {"sample_rate": 1 / 300, "steps": 30_000, "delta": 1e-5}


def test_the_papers_table():
    (row,) = accounting.paper_table({"MNIST": (1 / 300, 30_000)}, [8], 1e-5)
    assert [row[key] for key in accounting.COLUMNS] == pytest.approx([0.447, 0.265, 0.241, 0.509], abs=6e-4)


def test_the_price_of_tuning():
    (row,) = accounting.tuning_table([8], **MNIST)
    assert [row[key] for key in accounting.SEARCHES] == pytest.approx([0.27, 0.50, 0.64, 0.87], abs=6e-3)


def test_drawn_losses_give_the_delta_that_pld_was_asked_for():
    known = {"noise_multiplier": 0.8, "sample_rate": 0.05, "steps": 20}
    draws = accounting.summed_losses(**known, samples=100_000, seed=0)
    at = epsilon(**known, delta=0.05, accountant="pld")
    assert accounting.delta_of(draws, at) == pytest.approx(0.05, rel=0.05)
    assert np.mean(np.exp(-draws)) == pytest.approx(1, rel=0.02)  # the other distribution has mass one


def test_delta_of_a_known_loss():
    assert accounting.delta_of(np.array([0.0, 1.0, 2.0]), 1.0) == pytest.approx((1 - np.exp(-1)) / 3)
    assert accounting.delta_of(np.array([np.inf]), 1.0) == 1.0


def test_tables_in_words_are_aligned():
    rows = [{"data": "MNIST", "sigma": 2, "PLD": 1.17101, "at least": 3.64249}]
    rows.append({"data": "CIFAR-10", "sigma": 10, "PLD": 0.5, "at least": 0.5})
    lines = repr(accounting.table(rows, "epsilons")).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split() == ["MNIST", "2", "1.172", "3.642"]
    assert lines[2].split() == ["CIFAR-10", "10", "0.500", "0.500"]


def test_shuffling_costs_more_than_sampling():
    rows = accounting.sampler_rows([1, 2], steps=300, delta=1e-5)
    assert [row["shuffled, at least"] for row in rows] == pytest.approx([3.64, 0.20], abs=6e-3)
    assert [row["Poisson, PLD"] for row in rows] == pytest.approx([0.33, 0.10], abs=6e-3)
    assert [row["shuffled, at most"] for row in rows] == pytest.approx([4.38, 1.99], abs=6e-3)
    assert "at least 3.64" in plots.describe(accounting.samplers(rows))


def test_the_orders_figure_says_where_the_best_order_is():
    said = plots.describe(accounting.orders([2, 8], **MNIST))
    assert "1.54 at order" in said and "0.447 at order 32" in said


def test_the_other_figures_say_what_they_show():
    cost = {"noise_multiplier": 2.0, "sample_rate": 1 / 300, "steps": 300}
    assert "moments" in plots.describe(accounting.profile([1e-2, 1e-5], **cost))
    assert "beyond epsilon 1." in plots.describe(accounting.losses(np.linspace(0, 2, 100), 1.0))


def test_explorer_agrees_with_epsilon():
    shown = accounting.explorer([2, 8], [10, 100], [200, 800], [1e-5, 1e-7], records=60_000)
    view = shown.view(sigma=8, epochs_done=100, batch=200, delta=1e-5)
    assert view.numbers == {"moments": "ε = 0.447", "PLD": "ε = 0.241"}
    assert shown.start == {"sigma": 2, "epochs_done": 100, "batch": 200, "delta": 1e-5}
    other = shown.view(sigma=8, epochs_done=100, batch=200, delta=1e-7)
    assert float(other.numbers["PLD"][4:]) > 0.241
    assert shown.html.count("<input") == 4

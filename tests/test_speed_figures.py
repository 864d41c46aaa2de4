"""The chapter *What privacy costs*: its stored measurements, its figures with words, its count of bytes."""

import pytest
import torch

from adadp.figures import plots, speed
from adadp.timing import PeakMemory

NAMES = ("private_step", "private_memory", "private_growth", "optimizer_step", "federated_step")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored_says_how_it_was_measured(name):
    measured = speed.stored(name)
    assert {"threads", "processor", "python", "torch", "commit", "date"} <= measured["environment"].keys()
    assert measured["environment"]["threads"] == "1" and "dirty" not in measured["environment"]["commit"]
    assert measured["repeats"] >= (3 if name == "private_memory" else 20)
    said = speed.provenance(measured)
    assert "one thread" in said and f"torch {measured['environment']['torch']}" in said


def test_stored_steps_have_all_peers_and_meet_their_bounds():
    measured = speed.stored("private_step")
    for network in speed.NETWORKS:
        found = {row["contender"]: row for row in measured["rows"] if row["network"] == network}
        assert {"plain SGD", "plain Adam", "noise alone", *speed.PEERS} == found.keys()
        floor = found["plain SGD"]["cpu ms"] + found["noise alone"]["cpu ms"]
        assert speed.ratio(measured, network, "ours / (plain + noise)") == pytest.approx(
            found["adadp"]["cpu ms"] / floor, rel=2e-3
        )
        assert speed.ratio(measured, network, "ours / (plain + noise)") < 1.2
        assert speed.ratio(measured, network, "fastest Opacus / ours") > 1


def test_stored_memory_is_that_of_a_plain_step():
    rows = speed.stored("private_memory")["rows"]
    for network in speed.NETWORKS:
        (ours,) = [row for row in rows if (row["network"], row["contender"]) == (network, "adadp")]
        assert ours["times plain"] <= 1.3


def test_stored_growth_covers_what_was_promised():
    rows = speed.stored("private_growth")["rows"]
    spans = {sweep: [r["value"] for r in rows if r["sweep"] == sweep] for sweep in ("batch", "width", "parameters")}
    ends = {sweep: (values[0], values[-1]) for sweep, values in spans.items()}
    assert ends == {"batch": (16, 4096), "width": (64, 4096), "parameters": (10**4, 10**7)}
    clients = [row["clients"] for row in speed.stored("federated_step")["growth"] if row["network"] == "mnist-mlp"]
    assert (clients[0], clients[-1]) == (1, 100)


def test_figures_say_what_they_show():
    steps = plots.describe(speed.against_floor(speed.stored("private_step")))
    memory = plots.describe(speed.against_plain_memory(speed.stored("private_memory")))
    for said in (steps, memory):
        assert all(name in said for name in (*speed.NETWORKS.values(), *speed.PEERS.values()))
    rows = [{"sweep": "batch", "value": b, "adadp": 2.0 * b, "plain SGD": 1.5 * b} for b in (16, 64)]
    fig = speed.growth(rows, {"batch": "examples"})
    assert "this package 32 to 128 ms" in plots.describe(fig) and "plain step 24 to 96 ms" in plots.describe(fig)
    fig = speed.times({"plain step": 3.0, "private step": 4.0}, "ms a step", ours="private step")
    assert "plain step 3" in plots.describe(fig) and plots.caption(fig)


def test_tables_of_federated_time_have_units():
    measured = speed.stored("federated_step")
    first, second = repr(speed.iterations(measured)), repr(speed.stacking(measured))
    assert "ms median" in first and "ADADP" in first and "adadp" not in first
    assert "stacked ms" in second and "MNIST network" in second
    row, line = measured["growth"][0], second.splitlines()[1]
    assert float(line.split()[-1]) == pytest.approx(row["stacked"] / row["one after the other"], rel=0.01)


@pytest.mark.parametrize(("most", "scale", "marks"), [(9.0, "linear", 0), (30.0, "log", 2)])
def test_times_are_bars_from_zero_or_marks_where_they_lie_far_apart(most, scale, marks):
    (ax,) = speed.times({"plain step": 1.0, "private step": most}, "ms a step", ours="private step").axes
    assert ax.get_xscale() == scale and len(ax.lines) == marks and len(ax.patches) == 2 - marks


def test_peak_memory_counts_what_lives_at_once():
    x = torch.zeros(1000, dtype=torch.float64)
    with PeakMemory() as memory:
        for _ in range(5):
            y = x + 1  # the old one lives until the new one is there
        y.add_(1)
        y.view(10, 100).sum()
    assert memory.peak == 2 * 8000
    with PeakMemory() as memory:
        x.add_(1)
    assert memory.peak == 0


def test_peak_memory_sees_the_backward_pass():
    w = torch.ones(100, 100, requires_grad=True)
    x = torch.ones(50, 100)
    with PeakMemory() as memory:
        (x @ w).square().sum().backward()
    assert w.grad is not None and 2 * 50 * 100 * 4 + 100 * 100 * 4 <= memory.peak <= 6 * 50 * 100 * 4 + 100 * 100 * 4

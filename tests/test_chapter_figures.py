"""What the chapters' figures show: the toy problems against mathematics, and every figure with its words."""

import numpy as np
import pytest
import torch

import adadp
from adadp.figures import choosing_tol, noise_analysis, plots, private_training, step_doubling
from adadp.figures.gradient_flow import (
    adapt,
    descend,
    local_errors,
    noisy,
    one_iteration,
    quadratic,
    settle,
    valley,
)

STEPS = np.geomspace(3e-5, 1e-3, 5)


@pytest.fixture(params=[quadratic, valley], ids=["bowl", "valley"])
def problem(request):
    return request.param()


def test_gradient_and_hessian_are_the_derivatives(problem):
    theta, h = np.array([0.3, -0.7]), 1e-6
    for i in range(2):
        e = h * np.eye(2)[i]
        assert problem.gradient(theta)[i] == pytest.approx(
            (problem.loss(theta + e) - problem.loss(theta - e)) / (2 * h)
        )
        column = (problem.gradient(theta + e) - problem.gradient(theta - e)) / (2 * h)
        assert problem.hessian(theta)[:, i] == pytest.approx(column, rel=1e-6)


def test_the_flow_is_a_flow(problem):
    """Twice t is t and t again, it starts against the gradient, and it ends in the minimum."""
    start = problem.start
    assert problem.flow(problem.flow(start, 0.3), 0.3) == pytest.approx(problem.flow(start, 0.6), abs=1e-10)
    assert (problem.flow(start, 1e-6) - start) / 1e-6 == pytest.approx(-problem.gradient(start), rel=1e-3)
    assert problem.flow(start, 100.0) == pytest.approx(problem.minimum, abs=1e-6)


def test_orders_two_two_three(problem):
    slopes = [plots.fitted_slope(STEPS, values) for values in local_errors(problem, STEPS).values()]
    assert slopes == pytest.approx([2, 2, 3], abs=0.05)


def test_extrapolated_point_is_the_midpoint_rule(problem):
    at = one_iteration(problem, problem.start, 0.01)
    assert at["extrapolated"] == pytest.approx(problem.start - 0.01 * problem.gradient(at["theta_half"]))


def test_a_fixed_step_is_stable_below_two_over_l_only():
    bowl = quadratic()
    assert bowl.lipschitz == pytest.approx(10)
    assert bowl.loss(descend(bowl, 0.99 * 0.2, 2000).path[-1]) < 1e-9
    assert np.abs(descend(bowl, 1.01 * 0.2, 2000).path[-1]).max() > 1e6


@pytest.mark.parametrize("lr", [1e-3, 0.05, 1.0])
def test_algorithm_1_settles_on_the_limit_and_the_plateau(lr):
    bowl = quadratic()
    run = adapt(bowl, lr, 0.1, 400)
    assert np.median(run.lr[-100:]) == pytest.approx(2 / bowl.lipschitz, rel=0.1)
    assert bowl.loss(run.path[-100:]).mean() == pytest.approx(bowl.lipschitz * 0.1**2 / 2, rel=0.2)


def test_discarding_or_noise_keeps_it_near():
    bowl = quadratic()
    assert np.abs(adapt(bowl, 0.05, 0.1, 150, discard=False).path).max() > 1e3
    assert np.abs(adapt(bowl, 0.05, 0.1, 150).path).max() < 2
    blurred = noisy(bowl, 1.0, np.random.default_rng(0))
    assert np.abs(adapt(blurred, 0.05, 0.1, 150, discard=False).path).max() < 2


def test_a_discarded_step_goes_nowhere():
    run = adapt(quadratic(), 1.0, 0.1, 20)
    assert (~run.kept).any() and run.gradients == 40
    assert (run.path[1:][~run.kept] == run.path[:-1][~run.kept]).all()
    assert (run.kept == (run.error <= 0.1)).all()


def test_the_printed_rule_swings_and_the_square_root_lands():
    ratios = [np.ptp(np.log(settle(quadratic(), 0.014, 0.1, p, 80)[40:])) for p in (1, 0.5)]
    assert ratios[0] > 0.01 and ratios[1] < 1e-9


PRIVATE = {"max_grad_norm": 10.0, "num_parameters": 334_336, "expected_batch_size": 200}


def mnist_like(sigma, *, iterations=1, **choices):
    """Errors, learning rates and distance per weight of ADADP on the MNIST network and made-up images."""
    torch.manual_seed(0)
    model = adadp.models.mnist_mlp()
    private = {key: PRIVATE[key] for key in ("max_grad_norm", "expected_batch_size")}
    gradient = adadp.PrivateGradient(model, noise_multiplier=sigma, **private)
    optimizer = adadp.ADADP(model.parameters(), **choices)
    start, rows = [p.detach().clone() for p in model.parameters()], []
    x, y = torch.randn(20, 1, 28, 28), torch.arange(20) % 10
    for _ in range(2 * iterations):
        gradient.backward(x, y)
        optimizer.step()
        if optimizer.phase == 0:
            rows.append((float(optimizer.error), float(optimizer.param_groups[0]["lr"])))
    moved = sum(float((p.detach() - s).square().sum()) for p, s in zip(model.parameters(), start, strict=True))
    return np.array(rows), (moved / PRIVATE["num_parameters"]) ** 0.5


@pytest.mark.parametrize("lr", [1e-3, 0.1])
def test_noise_makes_the_error_of_a_real_network(lr):
    law = noise_analysis.noise_error(lr, noise_multiplier=2, **PRIVATE)
    assert mnist_like(2, lr=lr)[0][0, 0] == pytest.approx(law, rel=0.01)


def test_a_real_network_settles_where_it_is_predicted():
    predicted = adadp.predicted_lr(tol=1.0, noise_multiplier=2, **PRIVATE)
    rows, _ = mnist_like(2, iterations=8, lr=1.3 * predicted, tol=1.0)
    assert rows[-1, 1] == pytest.approx(predicted, rel=0.01)


@pytest.mark.parametrize("advance", ["euler", "half_steps"])
def test_weights_collect_the_predicted_noise(advance):
    lr = adadp.predicted_lr(tol=1.0, noise_multiplier=2, **PRIVATE)
    _, moved = mnist_like(2, iterations=8, lr=lr, tol=1.0, advance=advance)
    law = noise_analysis.noise_per_weight(8, tol=1.0, num_parameters=334_336, advance=advance)
    assert moved == pytest.approx(law, rel=0.02)


def test_noise_per_weight_is_the_papers_number():
    """2 T / d is 0.090 for MNIST: 100 epochs of 150 iterations."""
    assert noise_analysis.noise_per_weight(15_000, tol=1.0, num_parameters=334_336) ** 2 == pytest.approx(
        0.0897, rel=1e-3
    )
    with pytest.raises(ValueError, match="advance"):
        noise_analysis.noise_per_weight(1, tol=1.0, num_parameters=9, advance="extrapolated")


def test_pure_noise_settles_on_the_closed_form():
    settings = PRIVATE | {"noise_multiplier": 4}
    rates = noise_analysis.noise_only(0.3, 0.1, 100, np.random.default_rng(0), **settings)
    assert len(rates) == 101 and rates[1] == pytest.approx(0.09)
    assert rates[-1] == pytest.approx(adadp.predicted_lr(tol=0.3, **settings), rel=0.01)


def test_softmax_curvature_is_the_hessians():
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((30, 3), (4, 3)))
    y = torch.randint(4, (30,), generator=generator)
    loss = lambda flat: torch.nn.functional.cross_entropy(x @ flat.view(4, 3).T, y)  # noqa: E731
    hessian = torch.autograd.functional.hessian(loss, w.flatten())
    assert noise_analysis.softmax_curvature(x, w) == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]))


COST = {"noise_multiplier": 2.0, "sample_rate": 0.05, "delta": 1e-5}
ROWS = [{"steps": 20 * k, "test_accuracy": 0.2 * k, "lr": 0.1, "epsilon": 0.5 * k} for k in (1, 2, 3)]


def test_epsilon_by_another_accountant_is_that_accountants():
    for how in private_training.ACCOUNTINGS.values():
        rows = private_training.with_epsilon(ROWS, **COST, **how)
        assert [row["test_accuracy"] for row in rows] == [row["test_accuracy"] for row in ROWS]
        assert rows[-1]["epsilon"] == adadp.epsilon(steps=60, **COST, **how)


def test_learning_rates_of_a_run_come_iteration_by_iteration_then_epoch_by_epoch():
    first = [{"step": 2, "lr": 0.1, "error": 1.0}, {"step": 4, "lr": 0.09, "error": 1.0}]
    history = adadp.History(rows=[{"steps": 4, "lr": 0.09}, {"steps": 8, "lr": 0.07}], first_epoch=first)
    assert [(row["step"], row["lr"]) for row in private_training.rate_rows(history)] == [(2, 0.1), (4, 0.09), (8, 0.07)]


def explorers():
    yield step_doubling.explorer(valley(), [0.01, 1], [0.01, 0.1], iterations=10)
    yield choosing_tol.explorer([0.1, 1.0], [1, 2], **PRIVATE)


@pytest.mark.parametrize("index", [0, 1])
def test_sliders_speak_at_every_position(index):
    explorer = list(explorers())[index]
    first, second = ([a.values[i] for a in explorer.axes] for i in (0, 1))
    says = [explorer.view(**dict(zip([a.name for a in explorer.axes], v, strict=True))).says for v in (first, second)]
    assert says[0] != says[1] and all(len(s) > 60 for s in says)
    assert explorer.html.count('type="range"') == 2


@pytest.fixture(scope="module")
def figures():
    return list(_figures())


def _figures():
    bowl, bend = quadratic(), valley()
    runs = {"fixed": descend(bowl, 0.05, 20), "adaptive": adapt(bowl, 1.0, 0.1, 10)}
    yield step_doubling.flow_and_descent([bowl, bend], [(0.02,), (0.005,)], 10)
    yield step_doubling.one_step(bowl, 0.05)
    yield step_doubling.orders([bowl, bend], STEPS)
    yield step_doubling.race(bowl, runs)
    yield step_doubling.learning_rates(runs, {"2 / L": 0.2})
    yield step_doubling.settling({"exact": {"exponent 1": settle(bowl, 0.01, 0.1, 1, 5)}})
    yield step_doubling.first_rates({"fixed": ([0.1, 0.2, 0.4], [0.1, 1.0, np.inf])}, {"2 / L": 0.2})
    yield choosing_tol.error_law({0: [(0.1, 0.1), (1, 1.2)], 2: [(0.1, 4.0), (1, 41.0)]}, **PRIVATE)
    yield choosing_tol.settling({"tol 1": ([0.1, 0.09, 0.081], 0.02)})
    yield choosing_tol.accumulated({"euler": [(1, 0.002), (4, 0.004)]}, tol=1.0, num_parameters=334_336)
    row = {"tol": 1.0, "lr": 2.0, "predicted": 3.0, "limit": 4.0, "loss": 0.5}
    yield choosing_tol.other_extreme([row, row | {"tol": 10.0, "lr": 4.0}])
    yield private_training.accuracy({"as_printed": [ROWS]}, delta=1e-5, statement="ε = 1", data="made up")
    yield private_training.learning_rates(
        {"as_printed": [{"step": 1, "lr": 0.1}]}, {"tol 1": 0.02}, data="made up", statement="ε = 1"
    )
    yield private_training.accountings(ROWS, data="made up", **COST)


@pytest.mark.parametrize("index", range(14))
def test_every_figure_has_words(figures, index):
    fig = figures[index]
    assert len(plots.describe(fig)) > 60, "the text alternative says what is seen"
    assert plots.caption(fig)
    assert not any(word in plots.describe(fig) for word in ("nan", "inf"))


def test_every_figure_of_private_training_carries_a_privacy_statement(figures):
    without, private = figures[:7], figures[7:]
    assert not any(plots.statement(fig) for fig in without)
    assert all("ε" in plots.statement(fig) for fig in private)


@pytest.mark.parametrize("curvatures", [(1, -1), (0, 1), (1, 2, 3), (np.nan, 1)])
def test_a_bowl_needs_two_positive_curvatures(curvatures):
    with pytest.raises(ValueError, match="curvatures"):
        quadratic(curvatures)

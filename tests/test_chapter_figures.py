"""What the chapters' figures show: the toy problems against mathematics, and every figure with its words."""

import numpy as np
import pytest

from adadp.figures import plots, step_doubling
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


@pytest.mark.parametrize("index", range(7))
def test_every_figure_has_words(figures, index):
    fig = figures[index]
    assert len(plots.describe(fig)) > 60, "the text alternative says what is seen"
    assert plots.caption(fig)
    assert not any(word in plots.describe(fig) for word in ("nan", "inf"))


@pytest.mark.parametrize("curvatures", [(1, -1), (0, 1), (1, 2, 3), (np.nan, 1)])
def test_a_bowl_needs_two_positive_curvatures(curvatures):
    with pytest.raises(ValueError, match="curvatures"):
        quadratic(curvatures)

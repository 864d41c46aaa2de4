"""The paper's algorithms in their plainest form: against numbers worked out by hand, and against the theory."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from adadp import reference

MATRIX = np.array([[2.0, 0.5], [0.5, 1.0]])
THETA = np.array([1.0, -2.0])


def quadratic(theta):
    return MATRIX @ theta


def slope(etas, errors):
    return np.polyfit(np.log(etas), np.log(errors), 1)[0]


def flow(eta):
    """The exact gradient flow of the quadratic."""
    values, vectors = np.linalg.eigh(MATRIX)
    return vectors @ (np.exp(-eta * values) * (vectors.T @ THETA))


def test_algorithm_1_by_hand():
    # theta 4, eta 0.5, g = theta: theta_1 = 2, theta_half = 3, theta_hat = 2.25, err 0.25.
    theta, eta, err = reference.algorithm_1(np.array([4.0]), 0.5, lambda theta: theta, tol=0.2)
    assert_array_equal(theta, [4.0])  # discarded: 0.25 > 0.2
    assert err == 0.25
    assert eta == 0.9 * 0.5  # tol / err = 0.8, bounded
    theta, eta, _ = reference.algorithm_1(np.array([4.0]), 0.5, lambda theta: theta, tol=0.26)
    assert_array_equal(theta, [2.0])
    assert_allclose(eta, 0.5 * 0.26 / 0.25)


def test_algorithm_2_by_hand():
    # The same step; the error is divided by theta_1 = 2, and nothing is discarded.
    theta, eta, err = reference.algorithm_2(np.array([4.0]), 0.5, lambda theta: theta, tol=0.1)
    assert_array_equal(theta, [2.0])
    assert err == 0.125
    assert_allclose(eta, 0.9 * 0.5)


@pytest.mark.parametrize("tol", [0.001, 0.05, 1.0])
def test_iteration_holds_both_algorithms(tol):
    one, two, both, neither = THETA, THETA, THETA, THETA
    eta_one = eta_two = eta_both = eta_neither = 0.2
    for _ in range(30):
        one, eta_one, err_one = reference.algorithm_1(one, eta_one, quadratic, tol)
        both, eta_both, err_both, _ = reference.iteration(
            both, eta_both, quadratic, tol=tol, scaled=False, discard=True
        )
        two, eta_two, err_two = reference.algorithm_2(two, eta_two, quadratic, tol)
        neither, eta_neither, err_neither, _ = reference.iteration(neither, eta_neither, quadratic, tol=tol)
        assert_array_equal(one, both)
        assert_array_equal(two, neither)
        assert (eta_one, err_one, eta_two, err_two) == (eta_both, err_both, eta_neither, err_neither)


def test_difference_is_half_a_step_along_the_difference_of_gradients():
    G1 = quadratic(THETA)
    theta_hat, G2 = reference.two_half_steps(THETA, 0.3, G1, quadratic)
    assert_allclose(reference.full_step(THETA, 0.3, G1) - theta_hat, 0.15 * (G2 - G1))


def test_estimate_is_of_third_order_and_the_error_of_second():
    etas = np.geomspace(1e-3, 1e-2, 6)
    errors, misses, midpoint = [], [], []
    for eta in etas:
        G1 = quadratic(THETA)
        theta_1 = reference.full_step(THETA, eta, G1)
        theta_hat, _ = reference.two_half_steps(THETA, eta, G1, quadratic)
        errors.append(np.linalg.norm(flow(eta) - theta_1))
        misses.append(np.linalg.norm(flow(eta) - theta_1 - 2 * (theta_hat - theta_1)))
        extrapolated = reference.iteration(THETA, eta, quadratic, advance="extrapolated")[0]
        midpoint.append(np.linalg.norm(flow(eta) - extrapolated))
    assert slope(etas, errors) == pytest.approx(2, abs=0.02)
    assert slope(etas, misses) == pytest.approx(3, abs=0.02)
    assert slope(etas, midpoint) == pytest.approx(3, abs=0.02)


def test_gradient_is_called_twice_and_in_order():
    places = []
    reference.iteration(THETA, 0.5, lambda theta: (places.append(theta), np.ones(2))[1])
    assert_array_equal(places, [THETA, THETA - 0.25])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_not_finite_is_discarded(bad):
    theta, eta, _, kept = reference.iteration(THETA, 0.5, lambda theta: np.array([bad, 1.0]))
    assert_array_equal(theta, THETA)
    assert eta == 0.9 * 0.5
    assert not kept


def test_zero_error_grows_eta():
    assert reference.next_eta(0.5, 0.0, 1.0, 0.9, 1.1) == 1.1 * 0.5

"""The moments accountant against quadrature, closed forms and dp-accounting's Rényi divergences."""

import json
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from adadp.privacy.accounting import (
    MomentsAccountant,
    epsilon,
)
from adadp.privacy.moments import log_moments


def reverse_log_moment(noise_multiplier: float, sample_rate: float, order: float) -> float:
    r"""The other direction, :math:`\log E_{\mu_0}(\mu_0/\mu)^\lambda`, which has no closed form.

    The integrand is strongly log-concave in :math:`u = x/\sigma` with curvature at least 1, so thirteen units around
    its peak hold everything, and the trapezoidal rule converges faster than any power of the spacing.

    """
    q, slope = sample_rate, 1.0 / noise_multiplier
    if q == 1:
        return order * (order + 1) * slope**2 / 2

    def loss(u):  # log(mu / mu_0), through log1p where it is tiny and through logaddexp where exp would overflow
        v = slope * u - slope**2 / 2
        return np.where(v < 1, np.log1p(q * np.expm1(np.minimum(v, 1))), np.logaddexp(math.log1p(-q), math.log(q) + v))

    low, high = -order * slope - 1.0, 1.0  # the derivative is -u - order * slope * s(u) with 0 <= s <= 1
    peak = np.linspace(low, high, 4097)
    centre = peak[np.argmax(-(peak**2) / 2 - order * loss(peak))]
    spacing = min(0.02, noise_multiplier / 4)
    reach = 13.0 + (high - low) / 4096
    u = np.linspace(centre - reach, centre + reach, int(2 * reach / spacing) + 1)
    log_integrand = -(u**2) / 2 - order * loss(u)
    return float(logsumexp(log_integrand) + math.log(u[1] - u[0]) - 0.5 * math.log(2 * math.pi))


def _moments(sigma, q, steps, orders=range(1, 33)):
    accountant = MomentsAccountant(orders)
    accountant.step(noise_multiplier=sigma, sample_rate=q, num_steps=steps)
    return accountant


@pytest.mark.parametrize(
    ("sigma", "q", "order"), [(2, "0.01", 8), (0.7, "0.2", 3), (8, "0.004", 32), (1, "0.999", 5), (50, "0.001", 2)]
)
def test_log_moments_of_both_directions_by_quadrature(sigma, q, order):
    with mpmath.workdps(40):
        s, rate = mpmath.mpf(sigma), mpmath.mpf(q)

        def ratio(x):
            return 1 - rate + rate * mpmath.exp((2 * x - 1) / (2 * s**2))

        def log_mean(power):  # of ratio^power under N(0, sigma^2): every peak lies inside the range
            low, high = -12 * s - order - 1, 12 * s + order + 2
            ends = mpmath.linspace(low, high, 60)
            return mpmath.log(mpmath.quad(lambda x: mpmath.npdf(x, 0, s) * ratio(x) ** power, ends))

        forward, reverse = log_mean(order + 1), log_mean(-order)
    assert float(log_moments(float(sigma), float(q), (order,))[0]) == pytest.approx(float(forward), rel=1e-9)
    assert reverse_log_moment(float(sigma), float(q), order) == pytest.approx(float(reverse), rel=1e-6)
    assert forward >= reverse


@given(sigma=st.floats(0.1, 50), q=st.floats(1e-4, 0.9999), order=st.integers(1, 32))
def test_the_reverse_direction_is_never_the_larger(sigma, q, order):
    forward = log_moments(sigma, q, (order,))[0]
    assert reverse_log_moment(sigma, q, order) <= forward * (1 + 1e-9) + 1e-12


@given(sigma=st.floats(0.3, 20), q=st.floats(1e-3, 1))
def test_log_moment_is_order_times_renyi_divergence(sigma, q):
    orders = tuple(range(1, 33))
    library = RdpAccountant([order + 1 for order in orders])
    library.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)))
    expected = np.array(orders) * library.rdp
    np.testing.assert_allclose(log_moments(sigma, q, orders), expected, rtol=1e-7, atol=1e-12)


def test_log_moments_where_naive_sums_fail():
    tiny = log_moments(1e6, 1e-4, (1, 32))  # lambda (lambda + 1) q^2 / (2 sigma^2), far below double precision of 1
    np.testing.assert_allclose(tiny, [1e-20, 528e-20], rtol=1e-5)
    huge = log_moments(1e-3, 0.5, (32,))  # the last term alone: exp would overflow
    assert huge[0] == pytest.approx(32 * 33 / 2 * 1e6 + 33 * math.log(0.5), rel=1e-12)
    assert np.isposinf(log_moments(1e-160, 0.5, (1,))).all()


def test_moments_at_the_limits():
    assert _moments(2.0, 0.0, 10).get_epsilon(delta=1e-5) == 0 == MomentsAccountant().get_epsilon(delta=1e-5)
    assert _moments(2.0, 0.0, 10).get_delta(epsilon=0.1) == 0
    assert _moments(0.0, 0.0, 10).get_epsilon(delta=1e-5) == 0
    assert _moments(0.0, 0.1, 1).get_epsilon(delta=1e-5) == math.inf
    assert _moments(0.0, 0.1, 1).get_delta(epsilon=1e6) == 1
    assert _moments(0.0, 0.1, 0).get_epsilon(delta=1e-5) == 0
    plain = min((order * (order + 1) / (2 * 3**2) * 7 + math.log(1e5)) / order for order in range(1, 33))
    assert _moments(3.0, 1.0, 7).get_epsilon(delta=1e-5) == pytest.approx(plain, rel=1e-14)
    near_one = math.nextafter(1.0, 0.0)
    assert _moments(3.0, near_one, 7).get_epsilon(delta=1e-5) == pytest.approx(plain, rel=1e-9)


def test_delta_and_epsilon_are_inverse():
    accountant = _moments(1.5, 0.02, 500)
    assert accountant.get_delta(epsilon=accountant.get_epsilon(delta=1e-6)) == pytest.approx(1e-6, rel=1e-9)
    assert accountant.get_delta(epsilon=0.0) == 1


def test_composition_over_changing_settings_adds_up_in_any_order():
    first, second = MomentsAccountant(), MomentsAccountant()
    for sigma, q, steps in [(2.0, 0.01, 10), (1.0, 0.1, 3), (2.0, 0.01, 20)]:
        first.step(noise_multiplier=sigma, sample_rate=q, num_steps=steps)
    second.step(noise_multiplier=1.0, sample_rate=0.1, num_steps=3)
    for _ in range(30):
        second.step(noise_multiplier=2.0, sample_rate=0.01)
    parts = 30 * log_moments(2.0, 0.01, first.orders) + 3 * log_moments(1.0, 0.1, first.orders)
    np.testing.assert_allclose(first.log_moments, parts, rtol=1e-14)
    assert first.get_epsilon(delta=1e-5) == pytest.approx(second.get_epsilon(delta=1e-5), rel=1e-14)
    assert first.steps == second.steps == 33


def test_spent_step_by_step_equals_planned():
    accountant = MomentsAccountant()
    for _ in range(1000):
        accountant.step(noise_multiplier=2.0, sample_rate=0.01)
    assert accountant.get_epsilon(delta=1e-5) == epsilon(noise_multiplier=2.0, sample_rate=0.01, steps=1000, delta=1e-5)


def test_state_goes_through_json_and_only_into_its_own_kind():
    accountant = _moments(2.0, 0.1 / 3, 7, orders=(3, 5, 64))
    restored = MomentsAccountant()
    restored.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert restored.orders == (3, 5, 64) and restored.state_dict() == accountant.state_dict()
    accountant.step(noise_multiplier=1.0, sample_rate=0.5)
    restored.step(noise_multiplier=1.0, sample_rate=0.5)
    assert restored.get_epsilon(delta=1e-5) == accountant.get_epsilon(delta=1e-5)
    before = restored.state_dict()
    for wrong in ({**before, "accountant": "rdp"}, {}, None, {"accountant": "moments"}):
        with pytest.raises(ValueError, match="state"):
            restored.load_state_dict(wrong)
    with pytest.raises(ValueError, match="sample_rate"):
        restored.load_state_dict({**before, "releases": [[1.0, 2.0, 3]]})
    assert restored.state_dict() == before


def test_says_so_when_the_best_order_is_the_last():
    assert "'pld'" in _moments(8.0, 1 / 300, 30_000).warning(delta=1e-5)
    assert _moments(8.0, 1 / 300, 30_000).best_order(delta=1e-5) == 32
    assert _moments(2.0, 1 / 300, 30_000).warning(delta=1e-5) == ""
    assert _moments(8.0, 1 / 300, 30_000, range(1, 257)).warning(delta=1e-5) == ""
    assert MomentsAccountant().warning(delta=1e-5) == "" == _moments(0.0, 1.0, 1).warning(delta=1e-5)
    huge = _moments(1000.0, 1 / 300, 30_000).get_epsilon(delta=1e-5)
    assert math.log(1e5) / 32 < huge < 0.3601  # the floor of the paper's accountant


@pytest.mark.parametrize(
    "orders", [(), (0, 1), (1.5,), (1 + 1e-8,), (1.0, 2), (True,), "12", None, (-3,), (math.nan,), 1.5]
)
def test_orders_are_whole_numbers_from_one(orders):
    with pytest.raises(ValueError, match="orders"):
        MomentsAccountant(orders)


def test_order_one_alone_works():
    expected = math.log1p(0.01**2 * math.expm1(1 / 4)) + math.log(1e5)
    assert _moments(2.0, 0.01, 1, orders=(1,)).get_epsilon(delta=1e-5) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("sigma", "rate"), [(1e100, 0.01), (1.0, 1e-300), (1e90, 1e-200)])
def test_a_release_too_small_for_a_float_is_still_a_release(sigma, rate):
    accountant = MomentsAccountant()
    accountant.step(noise_multiplier=sigma, sample_rate=rate, num_steps=10)
    assert accountant.get_epsilon(delta=1e-5) >= -math.log(1e-5) / 32
    assert accountant.get_delta(epsilon=0.0) > 0


@pytest.mark.parametrize("sigma", [1e-300, 1e-13, 1e101, 1e300])
def test_noise_beyond_the_range_of_its_square_is_refused(sigma):
    with pytest.raises(ValueError, match="noise_multiplier must be 0 or between"):
        MomentsAccountant().step(noise_multiplier=sigma, sample_rate=0.1)

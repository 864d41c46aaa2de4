"""Every epsilon the package prints: against frozen values, quadrature, closed forms, each other and a lower bound."""

import pytest

from adadp.privacy.accounting import (
    MomentsAccountant,
    calibrate_noise_multiplier,
    epsilon,
    shuffled_lower_bound,
    tuned_epsilon,
)

MNIST = {"sample_rate": 1 / 300, "steps": 30_000, "delta": 1e-5}
CIFAR = {"sample_rate": 1 / 250, "steps": 25_000, "delta": 1e-5}
TABLE = [  # data, sigma, moments to 32, moments to 256, RDP, PLD add/remove, PLD replace-one
    (MNIST, 1, 4.022, 4.022, 3.528, 3.246, None),
    (MNIST, 2, 1.536, 1.536, 1.280, 1.171, 2.354),
    (MNIST, 4, 0.717, 0.717, 0.569, 0.519, 1.086),
    (MNIST, 6, 0.515, 0.471, 0.364, 0.331, 0.696),
    (MNIST, 8, 0.447, 0.351, 0.265, 0.241, 0.509),
    (CIFAR, 2, 1.689, 1.689, 1.414, 1.296, 2.608),
    (CIFAR, 4, 0.787, 0.787, 0.629, 0.573, 1.200),
    (CIFAR, 6, 0.546, 0.516, 0.401, 0.365, 0.769),
    (CIFAR, 8, 0.464, 0.385, 0.293, 0.266, 0.562),
]


@pytest.mark.parametrize(("data", "sigma", "to_32", "to_256", "rdp", "pld", "replace"), TABLE)
def test_the_paper_settings(data, sigma, to_32, to_256, rdp, pld, replace):
    near = {"abs": 7e-4}  # the last digit shown
    assert epsilon(noise_multiplier=sigma, **data) == pytest.approx(to_32, **near)
    longer = MomentsAccountant(range(1, 257))
    longer.step(noise_multiplier=sigma, sample_rate=data["sample_rate"], num_steps=data["steps"])
    assert longer.get_epsilon(delta=1e-5) == pytest.approx(to_256, **near)
    assert epsilon(noise_multiplier=sigma, **data, accountant="rdp") == pytest.approx(rdp, **near)
    assert epsilon(noise_multiplier=sigma, **data, accountant="pld") == pytest.approx(pld, **near)
    if replace is not None:
        found = epsilon(noise_multiplier=sigma, **data, accountant="pld", neighbors="replace_one")
        assert found == pytest.approx(replace, **near)


@pytest.mark.parametrize(("sigma", "low"), [(0.5, 9.997), (0.8, 5.522), (1, 3.642), (1.5, 0.834), (2, 0.1995)])
def test_shuffled_lower_bound(sigma, low):
    assert shuffled_lower_bound(sigma, 300, 1e-5) == pytest.approx(low, rel=1e-3)


@pytest.mark.parametrize(
    ("sigma", "one", "logarithmic", "poisson", "grid"),
    [(2, 1.28, 2.22, 2.94, 4.32), (4, 0.57, 1.03, 1.34, 1.88), (8, 0.27, 0.50, 0.64, 0.87)],
)
def test_the_price_of_tuning(sigma, one, logarithmic, poisson, grid):
    found = [
        tuned_epsilon(noise_multiplier=sigma, **MNIST, runs=runs, method=method)
        for runs, method in [(1, "composed"), (10, "logarithmic"), (10, "poisson"), (9, "composed")]
    ]
    assert found == pytest.approx([one, logarithmic, poisson, grid], abs=6e-3)


def test_calibration_meets_the_target():
    for accountant in ("moments", "rdp", "pld"):
        sigma = calibrate_noise_multiplier(target_epsilon=1.5, **MNIST, accountant=accountant)
        assert 1.5 * 0.998 < epsilon(noise_multiplier=sigma, **MNIST, accountant=accountant) <= 1.5

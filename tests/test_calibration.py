"""Noise for a target, the lower bound for shuffled batches, the price of tuning."""

import math
import time

import numpy as np
import pytest

from adadp.privacy.accounting import (
    calibrate_noise_multiplier,
    epsilon,
    shuffled_lower_bound,
    shuffled_upper_bound,
    tuned_epsilon,
)

MNIST = {"sample_rate": 1 / 300, "steps": 30_000, "delta": 1e-5}
ONE = {"noise_multiplier": 2.0, "sample_rate": 0.01, "steps": 100, "delta": 1e-5}


def _random_targets(count, seed=0):
    rng = np.random.default_rng(seed)
    for index in range(count):
        accountant, neighbors = [
            ("moments", "add_remove"),
            ("rdp", "add_remove"),
            ("pld", "add_remove"),
            ("pld", "replace_one"),
        ][index % 4]
        delta = float(10 ** rng.uniform(-8, -3))
        lowest = -math.log(delta) / 32 * 1.05 if accountant == "moments" else 0.05
        yield (
            float(rng.uniform(1, 3) ** 4 * lowest),
            {
                "delta": delta,
                "sample_rate": float(10 ** rng.uniform(-3, 0)),
                "steps": int(10 ** rng.uniform(0, 4.5)),
                "accountant": accountant,
                "neighbors": neighbors,
            },
        )


def _check_target(target, settings):
    sigma = calibrate_noise_multiplier(target_epsilon=target, **settings)
    assert target * (1 - 2e-3) <= epsilon(noise_multiplier=sigma, **settings) <= target, (target, settings)


def test_calibration_never_overshoots():
    for target, settings in _random_targets(16):
        _check_target(target, settings)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_calibration_never_overshoots_in_two_hundred_settings():
    for target, settings in _random_targets(200, seed=1):
        _check_target(target, settings)


@pytest.mark.parametrize(
    ("target", "settings"),
    [
        (0.01, {"sample_rate": 0.1, "steps": 1000}),  # a hundred records
        (0.01, {"sample_rate": 0.01, "steps": 100_000}),
        (0.01, {"sample_rate": 0.01, "steps": 10**6}),
        (1000.0, {"sample_rate": 0.01, "steps": 1000}),
        (1000.0, {"sample_rate": 1.0, "steps": 1}),
    ],
)
def test_calibration_of_extreme_targets(target, settings):
    start = time.process_time()
    _check_target(target, {**settings, "delta": 1e-5, "accountant": "pld", "neighbors": "add_remove"})
    assert time.process_time() - start < 60


def test_calibration_without_an_answer_gives_the_reason():
    settings = {"delta": 1e-5, "sample_rate": 0.01, "steps": 1000}
    with pytest.raises(ValueError, match=r"target_epsilon=0\.3.*0\.36.*'pld'"):
        calibrate_noise_multiplier(target_epsilon=0.3, **settings, accountant="moments")
    with pytest.raises(ValueError, match=r"target_epsilon=0\.01.*'rdp'"):  # its orders end at 1024
        calibrate_noise_multiplier(target_epsilon=0.01, delta=1e-8, sample_rate=0.01, steps=1000, accountant="rdp")
    assert calibrate_noise_multiplier(target_epsilon=0.3, **{**settings, "steps": 0}) == 0
    assert calibrate_noise_multiplier(target_epsilon=0.3, **{**settings, "sample_rate": 0.0}) == 0


@pytest.mark.parametrize(
    ("accountant", "neighbors"), [("pld", "add_remove"), ("pld", "replace_one"), ("rdp", "add_remove")]
)
@pytest.mark.parametrize(
    ("delta", "rate", "steps"), [(1e-2, 0.01, 1), (0.2, 0.01, 10), (1 - 0.99**7, 0.01, 7), (0.52, 0.3, 2)]
)
def test_a_delta_that_needs_no_noise_is_refused_in_one_line(delta, rate, steps, accountant, neighbors):
    settings = {"delta": delta, "sample_rate": rate, "steps": steps, "accountant": accountant, "neighbors": neighbors}
    with pytest.raises(ValueError, match=r"^delta=\S+ is not below [^\n]*without noise[^\n]*$"):
        calibrate_noise_multiplier(target_epsilon=3, **settings)


@pytest.mark.parametrize("share", [0.5, 0.99, 1 - 1e-8])
def test_a_delta_just_below_that_chance_still_gets_its_noise(share):
    settings = {"sample_rate": 0.01, "steps": 1, "accountant": "pld", "neighbors": "add_remove"}
    _check_target(3.0, {**settings, "delta": 0.01 * share})


def test_a_target_that_every_noise_reaches_is_refused_in_one_line():
    for accountant in ("moments", "rdp"):
        with pytest.raises(ValueError, match=r"^target_epsilon=1e\+30 is too large"):
            calibrate_noise_multiplier(target_epsilon=1e30, **{**MNIST, "steps": 10}, accountant=accountant)


@pytest.mark.parametrize(("sigma", "low"), [(0.5, 10.0), (0.8, 5.5), (1, 3.64), (1.5, 0.83), (2, 0.20)])
def test_shuffled_lower_bound(sigma, low):
    assert shuffled_lower_bound(sigma, 300, 1e-5) == pytest.approx(low, rel=0.006)


@pytest.mark.parametrize(("sigma", "poisson"), [(0.5, 4.7), (0.8, 0.75), (1, 0.33), (1.5, 0.15), (2, 0.10)])
def test_the_poisson_value_it_is_shown_beside(sigma, poisson):
    one_epoch = {"noise_multiplier": sigma, "sample_rate": 1 / 300, "steps": 300, "delta": 1e-5}
    assert epsilon(**one_epoch, accountant="pld") == pytest.approx(poisson, rel=0.05)


def test_shuffled_lower_bound_holds_by_sampling():
    """Draw the pair and look at the event: the frequencies must show the epsilon that the formula claims."""
    rng, sigma, steps, delta, trials = np.random.default_rng(0), 1.0, 20, 1e-2, 200_000
    noise = sigma * rng.standard_normal((2, trials, steps))
    noise[0, :, 0] += 2.0
    noise[1, :, 0] += 1.0
    largest = noise.max(axis=2)
    claimed = shuffled_lower_bound(sigma, steps, delta)
    shown = max(
        math.log((np.mean(largest[0] > c) - delta) / np.mean(largest[1] > c))
        for c in np.quantile(largest[1], [0.9, 0.97, 0.99, 0.995])
    )
    assert shown == pytest.approx(claimed, abs=0.05)


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1, 2, 5, 20])
def test_shuffled_bounds_keep_their_order(sigma):
    for batches in (1, 2, 30, 3000):
        for delta in (1e-3, 1e-5, 1e-8):
            low, high = shuffled_lower_bound(sigma, batches, delta), shuffled_upper_bound(sigma, 1, delta)
            assert 0 <= low <= high * (1 + 1e-9) + 1e-9
    assert shuffled_upper_bound(sigma, 2, 1e-5) > shuffled_upper_bound(sigma, 1, 1e-5) > 0
    assert shuffled_upper_bound(sigma, 0, 1e-5) == 0


def test_shuffled_lower_bound_at_the_limits():
    assert shuffled_lower_bound(0.0, 300, 1e-5) == math.inf
    assert shuffled_lower_bound(1e6, 300, 1e-5) == 0
    one_batch = epsilon(noise_multiplier=2.0, sample_rate=1.0, steps=1, delta=1e-5, accountant="pld")
    assert shuffled_lower_bound(2.0, 1, 1e-5) == pytest.approx(one_batch, rel=1e-3)  # one batch is a plain Gaussian


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


def test_the_price_of_tuning_at_the_limits():
    alone = epsilon(**ONE, accountant="rdp")
    assert tuned_epsilon(**ONE, runs=1) == alone == tuned_epsilon(**ONE, runs=1, method="composed")
    assert alone < tuned_epsilon(**ONE, runs=1, method="poisson")
    assert tuned_epsilon(**{**ONE, "noise_multiplier": 0.0}, runs=5) == math.inf
    assert tuned_epsilon(**{**ONE, "sample_rate": 0.0}, runs=5) == 0
    for bad in ({"runs": 2.5, "method": "composed"}, {"runs": 0.5}, {"runs": True}, {"runs": 3, "method": "grid"}):
        with pytest.raises(ValueError, match=r"runs|method"):
            tuned_epsilon(**ONE, **bad)


@pytest.mark.parametrize("accountant", ["moments", "rdp", "pld"])
@pytest.mark.parametrize("target", [1e-300, 1e9])
def test_absurd_targets_get_an_answer_that_holds_or_a_reason(target, accountant):
    known = {"delta": 1e-5, "sample_rate": 0.01, "steps": 10, "accountant": accountant}
    try:
        sigma = calibrate_noise_multiplier(target_epsilon=target, **known)
    except ValueError as error:
        assert "target_epsilon" in str(error) or "noise_multiplier" in str(error)
    else:
        assert epsilon(noise_multiplier=sigma, **known) <= target

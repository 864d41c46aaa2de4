"""The audits: right numbers on the right mechanism, and a loud failure on every planted fault."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

import adadp
from adadp.auditing import (
    AuditError,
    AuditResult,
    audit_epsilon,
    audit_noise,
    audit_one_run,
    audit_releases,
    audit_sensitivity,
    one_run_epsilon,
    run_audit,
)
from adadp.auditing.canary import mu_lower_bound
from adadp.auditing.faults import (
    FAULTS,
    ClippingIgnored,
    ClippingPerParameter,
    DivisorIsTheDrawnSize,
    NoiseDividedTwice,
    NoNoiseOnG2,
    OneDrawForG1AndG2,
    OneDrawForTwoParameters,
    Separate,
)
from adadp.auditing.one_run import _planned_guesses, one_run_p_value
from adadp.auditing.sensitivity import _KEPT, _home
from adadp.privacy.gradient import PrivateGradient

ADD, REPLACE = "sensitivity (add_remove)", "sensitivity (replace_one)"
G1, G2, BOTH, NOISE, ONE_RUN = "canary in G1", "canary in G2", "independence of G1 and G2", "noise", "one run"
SEEN_BY = [  # the fault, and the audits that must see it
    (NoiseDividedTwice, {NOISE, G1, G2, BOTH}),
    (NoNoiseOnG2, {NOISE, G2}),
    (OneDrawForTwoParameters, {NOISE, G1, G2}),
    (OneDrawForG1AndG2, {NOISE, BOTH}),
    (ClippingIgnored, {ADD, REPLACE, G1, G2}),
    (DivisorIsTheDrawnSize, {ADD, REPLACE, G1, G2}),
    (ClippingPerParameter, {ADD, REPLACE, G1, G2}),
]


def test_every_fault_of_the_package_is_expected_here():
    assert list(FAULTS.values()) == [fault for fault, _ in SEEN_BY]


@pytest.mark.parametrize(("fault", "seen_by"), SEEN_BY)
def test_every_planted_fault_fails_loudly(fault, seen_by):
    with pytest.raises(AuditError, match=r"audits failed") as caught:
        run_audit(fault, one_run=False, observations=600)
    failed = {result.name for result in caught.value.results if not result.passed}
    assert seen_by <= failed, sorted(failed)
    assert all(f"FAIL  {name}" in str(caught.value) for name in failed)


@pytest.mark.parametrize(("gradient", "observations"), [(PrivateGradient, None), (Separate, 200)])
def test_a_right_gradient_passes(gradient, observations):
    results = run_audit(gradient, observations=observations)
    assert [result.name for result in results] == [ADD, REPLACE, NOISE, G1, G2, BOTH, ONE_RUN]
    for result in results:
        assert result.passed and 0 < result.confidence <= 1 and result.sample_size >= 50
        assert str(result).startswith("PASS")
    assert results[0].bound == pytest.approx(1, rel=1e-3)  # tight: some record is clipped
    with pytest.raises(dataclasses.FrozenInstanceError):
        results[0].passed = False


@pytest.mark.parametrize("clipping", ["flat", "automatic"])
def test_other_declarations_pass(clipping):
    def gradient(model, **settings):
        return PrivateGradient(model, clipping=clipping, max_physical_batch_size=3, **settings)

    for sigma, C, seed in [(2.0, 0.01, 1), (0.5, 30.0, 2)]:
        settings = {"noise_multiplier": sigma, "max_grad_norm": C, "seed": seed}
        assert audit_sensitivity(gradient, **settings, trials=20).passed
        assert audit_noise(gradient, **settings).passed
        assert all(result.passed for result in audit_releases(gradient, **settings, observations=100))


def test_strict_off_returns_failures():
    results = run_audit(ClippingIgnored, one_run=False, observations=50, strict=False)
    assert not all(result.passed for result in results)
    assert "C with the randomness held" in str(results[0])


# --- the parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sigma", "observations", "expected"), [(1, 1000, 0.83), (1, 5000, 0.92), (2, 1000, 0.33), (2, 5000, 0.44)]
)
def test_mu_bounds_of_a_gaussian(sigma, observations, expected):
    rng, bounds = np.random.default_rng(0), []
    for _ in range(300):
        out, inside = sigma * rng.standard_normal(observations), 1 + sigma * rng.standard_normal(observations)
        bounds.append(mu_lower_bound(int((out > 0.5).sum()), int((inside <= 0.5).sum()), observations, 0.95))
    assert np.mean(bounds) == pytest.approx(expected, abs=0.025)
    assert np.mean(np.array(bounds) > 1 / sigma) < 0.05


def test_mu_bounds_at_the_limits():
    assert mu_lower_bound(0, 0, 1000, 0.95) == pytest.approx(2 * 2.68, abs=0.02)
    assert mu_lower_bound(1000, 0, 1000, 0.95) == -math.inf == mu_lower_bound(0, 1000, 1000, 0.95)


@pytest.mark.parametrize(("mu", "truth", "expected"), [(1.0, 4.38, 1.7), (2.0, 10.0, 3.5)])
def test_one_run_bounds_of_a_gaussian(mu, truth, expected):
    assert adadp.epsilon(
        noise_multiplier=1 / mu, sample_rate=1.0, steps=1, delta=1e-5, accountant="pld"
    ) == pytest.approx(truth, abs=0.01)
    rng, bounds, each = np.random.default_rng(0), [], _planned_guesses(1000, mu, 1e-5, 0.95)
    for _ in range(100):
        inside = rng.random(1000) < 0.5
        ranking = np.argsort(-(mu * inside + rng.standard_normal(1000)))
        correct = int(inside[ranking[:each]].sum() + (~inside[ranking[-each:]]).sum())
        bounds.append(one_run_epsilon(1000, 2 * each, correct, 1e-5))
    assert np.mean(bounds) == pytest.approx(expected, rel=0.1)
    assert max(bounds) < truth


def test_one_run_p_value_by_enumeration():
    canaries, guesses, correct, epsilon, delta = 50, 12, 10, 1.3, 1e-3
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(guesses, k) * right**k * (1 - right) ** (guesses - k) for k in range(guesses + 1)]
    steepest = max(sum(mass[correct - i : correct]) / i for i in range(1, correct + 1))
    expected = sum(mass[correct:]) + 2 * canaries * delta * steepest
    assert one_run_p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(expected, rel=1e-12)
    found = one_run_epsilon(canaries, guesses, correct, delta, confidence=0.9)
    assert one_run_p_value(canaries, guesses, correct, found, delta) <= 0.1 + 1e-9


def test_one_run_shows_nothing_when_the_guesses_are_no_better_than_coins():
    assert one_run_epsilon(1000, 100, 50, 1e-5) == 0 == one_run_epsilon(1000, 100, 0, 1e-5)


def test_audit_one_run_on_adadp():
    ordinary, louder = audit_one_run(), audit_one_run(noise_multiplier=math.sqrt(2) / 2)
    assert 1.2 < ordinary.bound < 2.3 and ordinary.limit == pytest.approx(4.377, abs=1e-3) and ordinary.passed
    assert 2.8 < louder.bound < 4.2 and louder.limit == pytest.approx(10.0, abs=0.01) and louder.passed
    assert not audit_one_run(NoiseDividedTwice, noise_multiplier=8.0).passed  # 500 times too little noise
    assert audit_one_run(steps=4, noise_multiplier=4.0, canaries=100).sample_size == 100


@pytest.mark.parametrize("canaries", [11, 15, 19, 27])
def test_no_canary_is_guessed_both_in_and_out(canaries):
    """So little noise that guessing all of them looks best; an odd one is passed over."""
    run = audit_one_run(canaries=canaries, noise_multiplier=0.1)
    assert 2 * run.evidence["each"] <= canaries


def test_half_an_iteration_is_refused():
    with pytest.raises(ValueError, match="steps must be even"):
        audit_one_run(steps=3)


def test_audit_epsilon():
    canary = audit_epsilon(noise_multiplier=1.0, observations=500)
    assert 2 < canary.bound < canary.limit == pytest.approx(4.377, abs=1e-3) and canary.unit == "epsilon"
    assert audit_epsilon(method="one_run", noise_multiplier=math.sqrt(2)).limit == pytest.approx(4.377, abs=1e-3)
    failed = audit_epsilon(NoNoiseOnG2, observations=200)
    assert not failed.passed and failed.bound > failed.limit and "G2" in failed.detail


def test_right_noise_is_rarely_called_wrong():
    failed = [seed for seed in range(30) if not audit_noise(seed=seed).passed]
    assert not failed  # expected at the default confidence: one in a thousand


def test_the_audit_takes_ones_own_model():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(2 * 16, 4))
    x, y = torch.randn(40, 1, 6, 6), torch.arange(40) % 4
    own = {"model": model, "x": x, "y": y}
    assert audit_sensitivity(**own, trials=10).passed and audit_noise(**own).passed
    assert not audit_sensitivity(ClippingPerParameter, **own, trials=10).passed
    frozen = nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2))
    assert audit_noise(model=frozen, x=torch.randn(8, 3), y=torch.arange(8) % 2).passed


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
def test_a_model_that_draws_by_itself_is_held_as_well(neighbors):
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
    before = torch.get_rng_state()
    assert audit_sensitivity(model=model, x=x, y=y, trials=20, neighbors=neighbors).passed
    assert torch.equal(before, torch.get_rng_state())


def test_the_noise_of_a_large_model_is_audited_in_little_memory():
    """A small parameter asks for many draws; of a large one only so much of each is kept."""
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 10))
    found = audit_noise(model=model, x=torch.randn(8, 300), y=torch.zeros(8, dtype=torch.long))
    assert found.passed and found.sample_size <= 8 * _KEPT


def test_random_draws_that_depend_on_the_batch_are_seen():
    class DrawsByExample(Separate):
        def noise(self):
            torch.randn(self.size, generator=self.generator)
            return super().noise()

        def backward(self, x, y):
            self.size = len(x)
            super().backward(x, y)

    result = audit_sensitivity(DrawsByExample, trials=5)
    assert not result.passed and "random draws" in result.detail


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_record_that_makes_the_gradient_no_number_is_seen(value):
    class Breaks(Separate):
        def sums(self, x, y):
            super().sums(x, y)
            if len(x) % 2:
                self.params[0].grad = self.params[0].grad * value

    assert not audit_sensitivity(Breaks, trials=3).passed
    assert not audit_releases(Breaks, observations=100)[0].passed


def test_evidence_is_what_the_bounds_were_taken_from():
    pairs = audit_sensitivity(trials=7)
    assert pairs.evidence["differences"].shape == (7,) and pairs.evidence["differences"].max() == pairs.bound
    for look in audit_releases(observations=300, noise_multiplier=0.5):
        said, inside = look.evidence["scores"] > look.evidence["threshold"], look.evidence["inside"]
        assert inside.sum() == 300 == (~inside).sum()
        errors = int((said & ~inside).sum()), int((~said & inside).sum())
        assert mu_lower_bound(*errors, 300, look.confidence) == look.bound
        assert f"epsilon >= {look.evidence['epsilon']:.1f}"[:-1] in look.detail
    both = look.evidence
    assert abs(np.corrcoef(both["first"], both["second"])[0, 1]) < 0.2
    run = audit_one_run(canaries=200)
    each, order = run.evidence["each"], np.argsort(-run.evidence["scores"], kind="stable")
    right = run.evidence["inside"][order[:each]].sum() + (~run.evidence["inside"][order[-each:]]).sum()
    assert run.detail.startswith(f"{right} of {2 * each} guesses")


def test_printed_bounds_are_rounded_to_the_safe_side():
    text = str(AuditResult("one run", True, 1.2399, 4.3711, "epsilon", 0.95, 10))
    assert "epsilon 1.23, declared 4.38" in text


def test_too_much_noise_is_reported_too():
    class TwiceTheNoise(Separate):
        def noise(self):
            return [2 * z for z in super().noise()]

    assert not audit_noise(TwiceTheNoise).passed


def test_the_audit_leaves_global_randomness_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    audit_sensitivity(trials=3)
    audit_releases(observations=20)
    audit_one_run(canaries=20)
    assert torch.equal(before, torch.get_rng_state())


def test_same_seed_same_result():
    assert audit_releases(observations=50, seed=4) == audit_releases(observations=50, seed=4)
    assert audit_releases(observations=50, seed=4) != audit_releases(observations=50, seed=5)


@pytest.mark.parametrize(
    "function", [audit_sensitivity, audit_noise, audit_releases, audit_one_run, audit_epsilon, run_audit]
)
def test_bad_arguments_are_refused_by_name(function):
    bad = {
        "noise_multiplier": [-1.0, math.nan, math.inf, "1", None, True],
        "max_grad_norm": [0.0, -1.0, math.nan, math.inf, "1", None],
        "confidence": [0.0, 1.0, math.nan, "sure", None],
        "delta": [0.0, 1.0, math.nan, None],
        "observations": [0, -1, 2.5, True, "many"],
        "canaries": [0, 2.5, None],
        "trials": [0, 1.5, None],
        "steps": [0, 1.5],
        "neighbors": ["both", None],
        "method": ["both", None],
    }
    named = set(function.__kwdefaults__)
    assert named & set(bad)
    for name in named & set(bad):
        for value in bad[name]:
            with pytest.raises(ValueError, match=name):
                function(**{name: value})


def test_results_print_their_confidence():
    text = str(AuditResult("noise", False, 0.5, 1.0, "noise / declared noise", 0.95, 10, "halved"))
    assert text == "FAIL  noise: noise / declared noise 0.5, declared 1 (95 % confidence, 10 observations): halved"
    assert adadp.auditing.run_audit is run_audit


def test_noise_of_an_audit_is_drawn_where_the_model_is():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2).requires_grad_(False), torch.nn.Linear(2, 2, device="meta"))
    assert _home(model).type == "meta"


@pytest.mark.parametrize("audit", [audit_sensitivity, audit_noise])
def test_audits_ask_where_the_model_is(audit, monkeypatch):
    monkeypatch.setattr("adadp.auditing.sensitivity._home", lambda model: torch.device("meta"))
    with pytest.raises(RuntimeError, match=r"(?i)meta"):  # where no noise can be drawn
        audit(noise_multiplier=1.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_on_a_card_can_be_audited():
    model = torch.nn.Linear(6, 3).cuda()
    x, y = torch.randn(40, 6, device="cuda"), torch.arange(40, device="cuda") % 3
    assert audit_sensitivity(model=model, x=x, y=y, noise_multiplier=1.0, trials=5).passed
    assert audit_noise(model=model, x=x, y=y, noise_multiplier=1.0).passed

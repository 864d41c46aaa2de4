"""What is said about an epsilon, and the refusal of what is no number."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import adadp
from adadp.privacy import shuffling
from adadp.privacy.accounting import (
    MomentsAccountant,
    assumptions,
    calibrate_noise_multiplier,
    epsilon,
    privacy_statement,
    sampler_warning,
    shuffled_lower_bound,
    shuffled_upper_bound,
    tuned_epsilon,
)
from adadp.rounding import round_down, round_up

MNIST = {"sample_rate": 1 / 300, "steps": 30_000, "delta": 1e-5}
ONE = {"noise_multiplier": 2.0, "sample_rate": 0.01, "steps": 100, "delta": 1e-5}


def test_a_statement_carries_everything():
    text = privacy_statement(
        **ONE, accountant="pld", neighbors="replace_one", record="one patient", tuning_included=True
    )
    value = epsilon(**ONE, accountant="pld", neighbors="replace_one")
    for part in (
        f"epsilon = {round_up(value)} ",
        "1e-05",
        "one patient",
        "replace-one",
        "Poisson",
        "0.01",
        "100",
        "privacy loss",
        "is included",
    ):
        assert part in text
    assert "shuffl" not in text


@pytest.mark.parametrize("steps", range(100, 120))
def test_a_stated_epsilon_is_never_below_the_computed(steps):
    cost = {**ONE, "steps": steps}
    value = epsilon(**cost)
    assert value <= float(privacy_statement(**cost).split()[2]) < value * 1.011
    assert value <= float(privacy_statement(**cost, short=True).split()[2].strip(",")) < value * 1.011
    row = {"epoch": 1, "epsilon": value}
    assert value <= float(repr(adadp.History(rows=[row])).split()[-1].strip(")")) < value * 1.0011


def test_what_the_epsilons_of_a_figure_stand_on():
    assert assumptions() == "one training example, add/remove, Poisson; tuning not included"
    for accountant in ("moments", "pld"):
        assert privacy_statement(**ONE, accountant=accountant, short=True).endswith(
            f"({assumptions(accountant=accountant)})"
        )
    replaced = assumptions(accountant="pld", neighbors="replace_one", record="one patient", tuning_included=True)
    assert replaced == "one patient, replace-one, Poisson, pld; tuning included"
    shuffled = assumptions(neighbors=None, sampler="shuffled partition")
    assert shuffled == "one training example, shuffled partition, Poisson assumed; tuning not included"
    one_release = {**ONE, "sample_rate": 1.0, "steps": 1}
    assert "no sampling" in privacy_statement(**one_release, short=True)
    for name, bad in (("neighbors", "both"), ("accountant", "gdp"), ("sampler", 3), ("record", ""), ("record", 3)):
        with pytest.raises(ValueError, match=name):
            assumptions(**{name: bad})


def test_the_lower_bound_of_a_statement_counts_the_short_last_batch():
    sampler = adadp.ShuffledPartition(batch_size=10, epochs=3)
    cost = {"noise_multiplier": 1.0, "sample_rate": sampler.rate(105), "delta": 1e-5, "sampler": sampler}
    bound = round_down(shuffled_lower_bound(1.0, 11, 1e-5))
    assert f"at least {bound}," in privacy_statement(**cost, steps=33)
    part = privacy_statement(**cost, steps=10)
    assert "at least" not in part and f"at most {round_up(shuffled_upper_bound(1.0, 1, 1e-5))} " in part


def test_a_statement_about_shuffled_batches_says_so():
    sampler = adadp.ShuffledPartition(batch_size=200, epochs=100)
    text = privacy_statement(noise_multiplier=1.0, **MNIST, sampler=sampler)
    assert "shuffled partition" in text and "no guarantee" in text and "at least 3.64," in text
    assert f"at most {round_up(shuffled_upper_bound(1.0, 100, 1e-5))} " in text
    assert "no guarantee" in sampler_warning(sampler)
    assert sampler_warning(adadp.PoissonSampling(sample_rate=0.1, steps=1)) == ""
    short = privacy_statement(noise_multiplier=1.0, **MNIST, sampler=sampler, short=True)
    assert "Poisson assumed" in short and "\n" not in short


def test_bounds_of_a_shuffled_partition_are_given_for_that_only():
    """Another way of drawing batches may use a record several times an epoch."""
    assert adadp.ShuffledPartition.name == shuffling.SAMPLER
    cost = {"noise_multiplier": 0.2, "sample_rate": 0.01, "steps": 100, "delta": 1e-5}
    text = privacy_statement(**cost, sampler="fixed-size batches drawn anew each step")
    assert "no guarantee" in text and "at most" not in text and "shuffling" not in text
    assert "shuffling: " in privacy_statement(**cost, sampler=shuffling.SAMPLER)


def test_a_statement_from_a_history():
    privacy = {"sampler": "poisson", "neighbors": "add_remove", "accountant": "rdp", "delta": 1e-5}
    privacy |= {"noise_multiplier": 2.0, "sample_rate": 0.01}
    history = SimpleNamespace(privacy=privacy, rows=[{"steps": 50}, {"steps": 100}])
    assert privacy_statement(history) == privacy_statement(**ONE, accountant="rdp")
    history.privacy = {"noise_multiplier": None}
    with pytest.raises(ValueError, match="history"):
        privacy_statement(history)


def test_a_history_can_be_stated_under_other_assumptions():
    privacy = {"sampler": "poisson", "neighbors": "add_remove", "accountant": "moments", "delta": 1e-5}
    history = SimpleNamespace(privacy={**privacy, "noise_multiplier": 2.0, "sample_rate": 0.01}, rows=[{"steps": 100}])
    other = {"delta": 1e-7, "accountant": "pld", "neighbors": "replace_one"}
    assert privacy_statement(history, **other) == privacy_statement(**{**ONE, **other})
    assert privacy_statement(history, delta=1e-7) == privacy_statement(**{**ONE, "delta": 1e-7})
    with pytest.raises(ValueError, match="neighbors='replace_one'"):
        privacy_statement(history, neighbors="replace_one")
    for name, value in {"noise_multiplier": 9.0, "sample_rate": 0.5, "steps": 1, "sampler": "poisson"}.items():
        with pytest.raises(ValueError, match=f"^{name} cannot be given together with history"):
            privacy_statement(history, **{name: value})


BAD_NUMBERS = [math.nan, math.inf, -math.inf, -1.0, "1", None, True, [1.0], 1j, np.nan]
CALLS = {
    "epsilon": (epsilon, ONE, ("noise_multiplier", "sample_rate", "steps", "delta")),
    "calibrate": (
        calibrate_noise_multiplier,
        {"target_epsilon": 1.0, "delta": 1e-5, "sample_rate": 0.01, "steps": 100},
        ("target_epsilon", "delta", "sample_rate", "steps"),
    ),
    "shuffled": (
        shuffled_lower_bound,
        {"noise_multiplier": 1.0, "steps_per_epoch": 300, "delta": 1e-5},
        ("noise_multiplier", "steps_per_epoch", "delta"),
    ),
    "shuffled, above": (
        shuffled_upper_bound,
        {"noise_multiplier": 1.0, "epochs": 3, "delta": 1e-5},
        ("noise_multiplier", "epochs", "delta"),
    ),
    "tuned": (tuned_epsilon, {**ONE, "runs": 10}, ("noise_multiplier", "sample_rate", "steps", "delta", "runs")),
    "statement": (privacy_statement, ONE, ("noise_multiplier", "sample_rate", "steps", "delta")),
}


@pytest.mark.parametrize(("call", "name"), [(call, name) for call, (_, _, names) in CALLS.items() for name in names])
def test_bad_numbers_are_refused_by_name(call, name):
    function, good, _ = CALLS[call]
    further = {"sample_rate": [1.5], "delta": [0, 0.0, 1, 1.0], "steps": [2.0, 2.5], "target_epsilon": [0.0]}
    for bad in [*BAD_NUMBERS, *further.get(name, [])]:
        with pytest.raises(ValueError, match=name):
            function(**{**good, name: bad})


def test_bad_names_are_refused():
    for function, good in ((epsilon, ONE), (calibrate_noise_multiplier, CALLS["calibrate"][1])):
        for name, bad in [("accountant", "gdp"), ("accountant", None), ("neighbors", "add"), ("neighbors", 1)]:
            with pytest.raises(ValueError, match=name):
                function(**good, **{name: bad})
    with pytest.raises(ValueError, match="sampler"):
        privacy_statement(**ONE, sampler=3)
    with pytest.raises(ValueError, match="record"):
        privacy_statement(**ONE, record="")
    with pytest.raises(ValueError, match="tuning_included"):
        privacy_statement(**ONE, tuning_included="no")


def test_bad_numbers_in_the_moments_accountant():
    accountant = MomentsAccountant()
    for bad in BAD_NUMBERS:
        with pytest.raises(ValueError, match="noise_multiplier"):
            accountant.step(noise_multiplier=bad, sample_rate=0.1)
        with pytest.raises(ValueError, match="sample_rate"):
            accountant.step(noise_multiplier=1.0, sample_rate=bad)
        with pytest.raises(ValueError, match="num_steps"):
            accountant.step(noise_multiplier=1.0, sample_rate=0.1, num_steps=bad)
        with pytest.raises(ValueError, match="delta"):
            accountant.get_epsilon(delta=bad)
        with pytest.raises(ValueError, match="epsilon"):
            accountant.get_delta(epsilon=bad)
    assert accountant.steps == 0


def test_numpy_numbers_are_numbers():
    same = epsilon(
        noise_multiplier=np.float64(2.0), sample_rate=np.float32(0.5), steps=np.int64(3), delta=np.float64(1e-5)
    )
    assert same == epsilon(noise_multiplier=2, sample_rate=0.5, steps=3, delta=1e-5)


def test_public_names():
    for name in ("MomentsAccountant", "epsilon", "calibrate_noise_multiplier", "privacy_statement"):
        assert getattr(adadp, name) is getattr(adadp.privacy, name)
    for name in ("shuffled_lower_bound", "shuffled_upper_bound", "tuned_epsilon", "sampler_warning"):
        assert getattr(adadp.privacy, name) is globals()[name]

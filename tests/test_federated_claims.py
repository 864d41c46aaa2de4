"""Verdicts on the federated claims follow from stored results: made-up results with a known answer are judged here."""

import pytest

from adadp.experiments import grids, report
from adadp.experiments.claims import CLAIMS
from adadp.experiments.configs import from_dict
from adadp.experiments.evidence import FAILS, HOLDS, INCOMPLETE, judge
from adadp.experiments.federated import EXPERIMENTS

BY_ID = {claim.id: claim for claim in CLAIMS}


def record(config, accuracy, role):
    """A stored run that behaves as the paper says: noisier without discarding, small steps first, other lr a client."""
    wobble = 0.03 if role == "nothing discarded" else 0.0
    n = config.rounds
    rows = {
        "round": list(range(1, n + 1)),
        "test_accuracy": [accuracy - wobble * (k % 2) for k in range(n - 1, -1, -1)],
        "lr": [[0.01, 0.02, 0.03, 0.01, 0.02]] * n,
    }
    within = {"round": [1, 2, 40], "lr": [[[0.001 * (1 + k) for k in range(20)]] * 5] * 3}
    return {"id": config.id, "config": config.to_dict(), "rows": rows, "within_rounds": within}


def world(accuracy):
    """Everything the federated experiments ask for at laptop size, stage after stage."""
    records = {}
    while True:
        cells = [c for e in EXPERIMENTS for c in grids.cells(e, records, "laptop") if c.config.id not in records]
        if not cells:
            return records
        for cell in cells:
            records[cell.config.id] = record(cell.config, accuracy(cell.role, cell.config), cell.role)


def as_claimed(role, config):
    if config.method == "adadp":
        return 0.7
    best = 0.55 if config.method == "adam" else 0.62 + 0.08 * config.random_fraction
    middle = 0.001 if config.method == "adam" else 0.03
    return best - 0.01 * abs(config.lr - middle) / middle


@pytest.fixture(scope="module")
def claimed():
    return world(as_claimed)


FEDERATED = [claim.id for claim in CLAIMS if claim.id.startswith("fed-")]


@pytest.mark.parametrize("claim", FEDERATED)
def test_a_world_as_the_paper_says_is_judged_so(claim, claimed):
    verdict = judge(BY_ID[claim], claimed)
    assert verdict.verdict == HOLDS, verdict
    assert verdict.runs and verdict.numbers


@pytest.mark.parametrize("claim", FEDERATED)
def test_without_results_nothing_is_judged(claim):
    assert judge(BY_ID[claim], {}).verdict == INCOMPLETE


def changed(records, match, **parts):
    return {i: r | parts if match(r["config"]) else r for i, r in records.items()}


def test_equal_methods_contradict_the_comparisons(claimed):
    level = world(lambda role, config: 0.7 - (0.01 if role.endswith("grid") and config.lr > 0.05 else 0.0))
    for claim in ("fed-keeps", "fed-drops-less", "fed-adam"):
        assert judge(BY_ID[claim], level).verdict == FAILS


def test_a_close_verdict_shows_by_how_much(claimed):
    """Losses of one decimal may look equal to a limit that their difference exceeds."""

    def accuracy(role, config):
        ends = {0.0: 0.46133, 1.0: 0.62767} if config.method == "sgd" else {0.0: 0.40993, 1.0: 0.54610}
        return ends.get(config.random_fraction, 0.5) - (0.01 if role.endswith("grid") and config.lr > 0.05 else 0.0)

    found = judge(BY_ID["fed-drops-less"], world(accuracy))
    assert found.verdict == HOLDS and found.numbers["as_printed"].endswith("a difference of +3.02")


def test_constant_lr_contradicts_what_is_said_of_it(claimed):
    def flat(r):
        rows = r["rows"] | {"lr": [[0.01] * 5] * len(r["rows"]["round"])}
        return r | {"rows": rows, "within_rounds": {"round": [1, 2], "lr": [[[0.01] * 20] * 5] * 2}}

    same = {i: flat(r) for i, r in claimed.items()}
    assert judge(BY_ID["fed-small-first"], same).verdict == FAILS
    assert judge(BY_ID["fed-different-lr"], same).verdict == FAILS


def test_calm_without_discarding_contradicts_its_use(claimed):
    calm = {i: r | {"rows": r["rows"] | {"test_accuracy": [0.7] * len(r["rows"]["round"])}} for i, r in claimed.items()}
    wild = {i: r | {"rows": r["rows"] | {"test_accuracy": [0.7, 0.6] * 20}} for i, r in claimed.items()}
    assert judge(BY_ID["fed-discarding"], calm).verdict == FAILS
    assert judge(BY_ID["fed-discarding"], wild).verdict == FAILS


def test_sensitivity_to_the_initial_lr_contradicts_its_claim():
    steep = world(lambda role, config: as_claimed(role, config) - (0.1 if config.lr > 0.5 else 0.0))
    assert judge(BY_ID["fed-lr"], steep).verdict == FAILS


@pytest.mark.parametrize("claim", FEDERATED)
def test_one_missing_run_or_another_size_is_no_verdict(claim, claimed):
    used = judge(BY_ID[claim], claimed).runs
    for missing in (used[0], used[-1]):
        rest = {i: r for i, r in claimed.items() if i != missing}
        assert judge(BY_ID[claim], rest).verdict == INCOMPLETE
    larger = {}
    for config in (from_dict(r["config"]).but(examples_per_client=10000) for r in claimed.values()):
        larger[config.id] = record(config, as_claimed("", config), "")
    assert judge(BY_ID[claim], larger).verdict == INCOMPLETE


def with_rows(records, role_of, change):
    """The same world with the rows of some runs changed: ``change(rows)`` -> columns."""
    return {i: r | {"rows": r["rows"] | change(r["rows"])} if role_of(r["config"]) else r for i, r in records.items()}


def test_stability_that_costs_more_than_a_point_contradicts_discarding(claimed):
    def end_two_lower(rows):
        return {"test_accuracy": [a - 0.02 for a in rows["test_accuracy"]]}

    adaptive = lambda c: c["method"] == "adadp" and c["discard"]  # noqa: E731
    assert judge(BY_ID["fed-discarding"], with_rows(claimed, adaptive, end_two_lower)).verdict == FAILS


def test_training_that_breaks_down_without_discarding_is_not_calm(claimed):
    def flat(level):
        return lambda rows: {"test_accuracy": [level] * len(rows["round"])}

    claim, (earlier,) = BY_ID["fed-discarding"], BY_ID["fed-discarding"].earlier
    plain = lambda c: c["method"] == "adadp" and not c["discard"]  # noqa: E731
    broken = with_rows(claimed, plain, flat(0.1))
    assert judge(claim, broken).verdict == HOLDS and judge(earlier, broken).verdict == FAILS
    assert "breaks down" in judge(claim, broken).numbers["as_printed"]
    poor = with_rows(claimed, plain, flat(0.2))
    assert judge(claim, poor).verdict == FAILS, "calm, and far above guessing"
    both = with_rows(claimed, lambda c: c["method"] == "adadp", flat(0.1))
    assert judge(claim, both).verdict == FAILS, "discarding does not save it either"


def test_unrest_of_the_first_rounds_does_not_count(claimed):
    def calm_after_five(rows):
        return {"test_accuracy": [0.1, 0.6, 0.1, 0.6, 0.1] + [0.7] * (len(rows["round"]) - 5)}

    plain = lambda c: c["method"] == "adadp" and not c["discard"]  # noqa: E731
    assert judge(BY_ID["fed-discarding"], with_rows(claimed, plain, calm_after_five)).verdict == FAILS


def test_every_run_must_have_clients_of_different_lr_and_in_the_last_rounds(claimed):
    def level(rows):
        return {"lr": [[0.01] * 5] * len(rows["round"])}

    def level_at_the_end(rows):
        return {"lr": rows["lr"][:-10] + [[0.01] * 5] * 10}

    assert judge(BY_ID["fed-different-lr"], with_rows(claimed, lambda c: c["seed"] == 2, level)).verdict == FAILS
    assert judge(BY_ID["fed-different-lr"], with_rows(claimed, lambda c: True, level_at_the_end)).verdict == FAILS


def test_the_first_round_does_not_count_for_small_steps(claimed):
    within = {"round": [1, 2], "lr": [[[0.001 * (1 + k) for k in range(20)]] * 5, [[0.01] * 20] * 5]}
    same = {i: r | {"within_rounds": within} for i, r in claimed.items()}
    assert judge(BY_ID["fed-small-first"], same).verdict == FAILS


def test_one_share_at_which_the_initial_lr_matters_is_enough():
    def one_share(role, config):
        return as_claimed(role, config) - (0.1 if config.lr > 0.5 and config.random_fraction == 0.66 else 0.0)

    assert judge(BY_ID["fed-lr"], world(one_share)).verdict == FAILS


@pytest.mark.parametrize(("claim", "share"), [("fed-keeps", 0.33), ("fed-small-first", 0.0), ("fed-different-lr", 0.0)])
def test_a_rule_of_one_share_asks_for_no_runs_of_another(claim, share, claimed):
    found = judge(BY_ID[claim], claimed)
    assert {claimed[i]["config"]["random_fraction"] for i in found.runs} == {share}
    mine = {i: r for i, r in claimed.items() if r["config"]["random_fraction"] == share}
    assert judge(BY_ID[claim], mine) == found
    told = report.report(BY_ID[claim], mine)
    assert told.missing == 0 and {c["config"]["random_fraction"] for c in told.curves} == {share}
    others = {i: r for i, r in claimed.items() if r["config"]["random_fraction"] != share}
    assert judge(BY_ID[claim], others).missing == f"fed-rounds: adadp at {100 * share:g} % random"


@pytest.mark.parametrize("claim", ["fed-small-first", "fed-different-lr"])
def test_a_client_that_was_left_out_of_a_round_tells_no_lr_there(claim, claimed):
    def left_out(r):
        n = r["config"]["rounds"]
        rows = r["rows"] | {"lr": [*r["rows"]["lr"][:-1], [0.01, None, 0.03, 0.01, None]], "refused": [[]] * n}
        return r | {"rows": rows, "within_rounds": {"round": [2], "lr": [[None, *r["within_rounds"]["lr"][1][1:]]]}}

    assert judge(BY_ID[claim], {i: left_out(r) for i, r in claimed.items()}).verdict == HOLDS


@pytest.mark.parametrize("claim", ["fed-keeps", "fed-drops-less"])
@pytest.mark.parametrize("share", [0.0, 0.33, 1.0])
def test_a_claim_waits_for_a_grid_of_one_share(claim, share, claimed):
    """SGD is not tuned at a share before its grid is stored: nothing is planned there, and nothing is judged."""
    rest = {
        i: r
        for i, r in claimed.items()
        if not (r["config"]["method"] == "sgd" and r["config"]["random_fraction"] == share)
    }
    needed = share in {"fed-keeps": (0.33,), "fed-drops-less": (0.0, 1.0)}[claim]
    assert judge(BY_ID[claim], rest).verdict == (INCOMPLETE if needed else HOLDS)
    assert report.report(BY_ID[claim], rest).verdict.verdict == judge(BY_ID[claim], rest).verdict


@pytest.mark.parametrize("claim", ["fed-drops-less", "fed-discarding"])
def test_while_a_seed_is_missing_only_the_others_are_compared(claim, claimed):
    """Seed 3 is a bad one for everybody; whoever lacks it must not look better than whoever has it."""

    def worse(rows):
        return {"test_accuracy": [a - 0.3 for a in rows["test_accuracy"]]}

    bad = with_rows(claimed, lambda c: c["seed"] == 3, worse)
    ours = lambda c: c["method"] == "adadp" and c["discard"] and c["seed"] == 3  # noqa: E731
    two = {i: r for i, r in bad.items() if not ours(r["config"])}
    none = {i: r for i, r in bad.items() if r["config"]["seed"] != 3}
    found, expected = (report.report(BY_ID[claim], records) for records in (two, none))
    assert found.verdict.verdict == INCOMPLETE and found.so_far == expected.so_far != {}

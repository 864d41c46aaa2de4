"""The Claims page and `adadp results claims` say what follows from the stored results, and nothing else."""

import html
import re
import subprocess
from dataclasses import replace

import pytest

from adadp.cli import main
from adadp.experiments import claims, grids, report, results
from adadp.experiments.claims import CLAIMS
from adadp.experiments.evidence import FAILS, HOLDS, INCOMPLETE, UNTESTABLE, Claim, Evidence, Verdict
from adadp.experiments.private import SIGMAS
from adadp.figures import claims as draw
from adadp.publishing.sphinx_extension import linked

BY_ID = {claim.id: claim for claim in CLAIMS}
NAMES = ("dp-adam-mnist",)


def record(config, accuracy: float) -> dict:
    """A stored private run with a flat accuracy that depends on the seed a little."""
    n = config.epochs
    rows = {"epoch": list(range(1, n + 1)), "steps": [300 * k for k in range(1, n + 1)], "lr": [0.02] * n}
    rows |= {"test_accuracy": [accuracy + 0.001 * config.seed] * n, "epsilon_moments": [1.0] * n}
    rows |= {"epsilon_pld": [0.5] * n}
    return {"id": config.id, "config": config.to_dict(), "rows": rows, "data": "made up", "experiment": NAMES[0]}


def world(printed: float, seeds=(0, 1, 2, 3)) -> dict:
    """All runs of the comparison with Adam; Adam at 0.9, its second best at 0.88, ADADP as printed where it is put."""
    records: dict = {}
    while True:
        cells = [c for name in NAMES for c in grids.cells(name, records)]
        cells = [c for c in cells if c.config.id not in records and c.config.seed in seeds]
        if not cells:
            return records
        for cell in cells:
            accuracy = {"as_printed": printed, "adam best": 0.9, "adam second": 0.88}.get(cell.role, 0.5)
            if cell.role == "adam grid":
                accuracy = 0.9 - 0.01 * abs(cell.config.lr - 0.0003) / 0.001
            records[cell.config.id] = record(cell.config, accuracy)


@pytest.fixture(scope="module")
def good():
    return world(0.9)


@pytest.fixture(scope="module")
def bad():
    return world(0.8)


def test_needed_is_what_the_verdict_uses(good):
    """A rule that holds once its runs are stored needs exactly those, and the grids behind its baselines."""
    for claim in ("competitive-mnist", "beats-second-mnist", "constant"):
        before = report.report(BY_ID[claim], {})
        after = report.report(BY_ID[claim], good)
        assert before.missing == before.needed == after.needed and after.missing == 0, claim
        used, wanted = set(after.verdict.runs), report.probed(BY_ID[claim], good).wanted
        assert used <= wanted
        assert {good[i]["config"]["seed"] for i in wanted - used} <= {0}, "only grids come on top"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_every_rule_can_be_asked_what_it_needs(claim):
    found = report.report(claim, {})
    assert found.missing == found.needed > 0
    assert not found.so_far and not found.by_seed


def test_one_run_less_is_one_run_missing(good):
    gone = next(i for i, r in good.items() if r["config"]["advance"] == "euler" and r["config"]["seed"] == 3)
    found = report.report(BY_ID["competitive-mnist"], {i: r for i, r in good.items() if i != gone})
    assert found.verdict.verdict == INCOMPLETE and found.missing == 1
    assert found.so_far["as_printed"].count("at σ=") == len(SIGMAS) and "as_printed" not in found.verdict.numbers
    text = draw.in_words(found)
    assert "1 of 64 runs missing" in text and "So far, as printed" in text and "seeds are missing" in text


def test_page_and_program_follow_the_stored_results(good, bad, tmp_path, capsys):
    shown = {}
    for name, records in (("good", good), ("bad", bad)):
        for one in records.values():
            results.save(one, NAMES[0], tmp_path / name)
        assert main(["results", "claims", "competitive-mnist", "--folder", str(tmp_path / name)]) == 0
        printed = capsys.readouterr().out
        card = draw.Cards(draw.stored_reports(tmp_path / name, ["competitive-mnist"]))._repr_html_()
        shown[name] = (printed, card)
    assert f"competitive-mnist: {HOLDS}" in shown["good"][0] and f"competitive-mnist: {FAILS}" in shown["bad"][0]
    assert (
        "ad-holds" in shown["good"][1].split("</style>")[1] and "ad-fails" not in shown["good"][1].split("</style>")[1]
    )
    assert "ad-fails" in shown["bad"][1].split("</style>")[1] and "−10.0 at σ=2" in shown["bad"][0]


def test_a_card_links_every_run_behind_it(good):
    found = report.report(BY_ID["competitive-mnist"], good)
    card = draw._card(found)
    files = set(re.findall(r'href="([^"]+)"', card))
    assert len(files) == 4 * 3 * 4 and all(f.startswith(draw.STORED) for f in files)
    assert {f[-17:-5] for f in files} == set(found.verdict.runs)
    assert "lr chosen by peeking" in card and "made up" in card


def test_numbers_come_with_their_spread(good):
    uneven = dict(good)
    one = next(r for r in good.values() if r["config"]["advance"] == "euler" and r["config"]["seed"] == 2)
    uneven[one["id"]] = one | {"rows": one["rows"] | {"test_accuracy": [0.95] * 100}}
    found = report.report(BY_ID["competitive-mnist"], uneven)
    seeds = found.by_seed["as_printed"]
    assert list(seeds) == [1, 2, 3] and seeds[1] == seeds[3] != seeds[2] and "+4.8" in seeds[2]
    assert "  as printed, seed 2: +4.8" in draw.in_words(found)
    assert "<summary>Seed by seed</summary><ul><li>as printed, seed 1: " in draw._card(found)
    assert "(90.1 to 95.0, 3 seeds)" in draw._card(found)


def test_an_earlier_rule_is_shown_below_the_new_one(monkeypatch, good):
    old = Claim("x", "Old words.", "Experiments", "1", lambda evidence, variant: (False, "0"))
    rule = lambda evidence, variant: (True, f"{evidence.final('dp-adam-mnist', variant, 2):.1f} %")  # noqa: E731
    new = Claim("x", "New words.", "Experiments", "2", rule, earlier=(old,))
    monkeypatch.setattr(claims, "CLAIMS", [new])
    found = report.reports(good)
    assert [(r.verdict.verdict, r.earlier) for r in found] == [(HOLDS, False), (FAILS, True)]
    page = draw.Cards(found)._repr_html_()
    assert page.index("New words") < page.index("By an earlier rule: Old words")
    assert report.tally(found) == {HOLDS: 1}, "only today's rules are counted"
    others = [replace(found[0], verdict=replace(found[0].verdict, verdict=name)) for name in (INCOMPLETE, FAILS, FAILS)]
    assert draw.counts([*others, *found]) == "1 holds, 2 do not hold, 1 still waiting for runs"


def test_a_claim_without_a_rule_is_not_testable_here():
    found = report.report(Claim("x", "t", "Experiments", "c", None), {})
    assert found.verdict.verdict == UNTESTABLE and UNTESTABLE in draw.in_words(found)


def test_words_of_a_claim_are_escaped():
    found = report.report(Claim("x", "a < b & c", "Experiments", "<i>", None), {})
    card = draw._card(found)
    assert html.escape("a < b & c") in card and "<i>" not in card


def test_verdicts_are_told_apart_without_colour():
    assert len(set(draw.SIGNS.values())) == len(draw.SIGNS) == len(draw.KINDS)
    assert {claim.where for claim in CLAIMS} <= set(draw.SECTIONS)


def test_looking_ahead_never_decides(good):
    """A curve of one seed is enough for a look ahead, and never for a verdict."""
    one = {i: r for i, r in good.items() if r["config"]["seed"] in (0, 1)}
    found = report.report(BY_ID["competitive-mnist"], one)
    assert found.verdict.verdict == INCOMPLETE and found.so_far and not found.verdict.numbers
    assert Evidence(one, complete=False).final("dp-adam-mnist", "as_printed", 2) == pytest.approx(90.1)


def test_while_seeds_are_missing_differences_are_those_of_the_same_seeds(good):
    """On the cards as in the chapters: another seed must not pass for another method."""
    cells = {c.config.id for c in grids.cells("dp-adam-mnist", good) if c.role in ("adam best", "recommended")}
    few = {i: r for i, r in good.items() if i not in cells or r["config"]["seed"] < 2}
    found = report.report(BY_ID["competitive-mnist"], few)
    means = [Evidence(few, complete=False).final("dp-adam-mnist", role, 2) for role in ("as_printed", "adam best")]
    assert means[0] - means[1] == pytest.approx(0.1), "three seeds against one"
    assert found.so_far["as_printed"].startswith("+0.0 at σ=2") and found.by_seed["as_printed"][1].startswith("+0.0")


def test_rules_are_older_than_the_runs_that_say_so(monkeypatch):
    answers = {"new": 0, "old": 1, "gone": 128}
    monkeypatch.setattr(claims, "rule_commit", lambda claim: claim.dated)
    monkeypatch.setattr(report, "_contains", lambda later, earlier: answers[later] + (earlier == "late"))

    def told(rule, *commits, earlier=False, role="as_printed"):
        curve = {"role": role, "records": [{"id": f"{rule}{c}" if c == "new" else c, "commit": c} for c in commits]}
        claim = Claim("some", "", "", "", None, dated=rule)
        return report.Report(Verdict(claim, HOLDS, {}, ()), {}, {}, (curve,), 0, 0, earlier=earlier)

    first, second = told("early", "new", "old", "gone"), told("late", "new", "old")
    assert report.rules_before_runs([first]) == (1, 2, 1)
    assert report.rules_before_runs([first, first]) == (1, 2, 1), "a run counts once"
    assert report.rules_before_runs([first, second]) == (1, 2, 2), "the old one is older than both rules"
    assert report.rules_before_runs([first, told("late", "new", earlier=True)]) == (1, 2, 1), "today's rules alone"
    assert report.rules_before_runs([first, told("other", "new", role="recommended")]) == (1, 2, 1), (
        "beside, not judged"
    )
    for commit, counted in (("old", 0), ("gone", None), ("new", 1)):
        (record,) = (begun := told("early", "new")).curves[0]["records"]
        record |= {"begun": {"commit": commit}}
        expected = (0, 0, 1) if counted is None else (counted, 1, 0)
        assert report.rules_before_runs([begun]) == expected, "a resumed run counts from where it began"
    monkeypatch.setattr(claims, "rule_commit", lambda claim: None)
    assert report.rules_before_runs([first]) == (0, 0, 0)


def test_our_own_variant_stands_beside_the_paper_s():
    """From the stored results: no verdict rests on it, but the card shows it with its runs."""
    (card,) = draw.stored_reports(ids=["eta0"])
    assert "recommended" not in card.verdict.numbers and card.beside.startswith("range ")
    assert f"Recommended variant, not judged: {card.beside}" in draw.in_words(card)
    assert any(curve["role"] == "recommended" and curve["records"] for curve in card.curves)
    (single,) = draw.stored_reports(ids=["same-cost"])
    assert single.beside == ""


def test_a_card_names_the_data_and_the_commit_of_its_rule(good, monkeypatch):
    monkeypatch.setattr(draw, "rule_commit", lambda claim: 40 * "a")
    (one,) = [r for r in report.reports(good) if r.verdict.claim.id == "competitive-mnist"]
    facts = dict(draw._facts(one))
    assert f"commit/{40 * 'a'}" in linked(f"<dd>{facts['Rule written in']}</dd>", "https://host/x")
    assert facts["Data"] == next(r["data"] for c in one.curves for r in c["records"])
    assert "commit" in draw.in_words(one) and facts["Data"] in draw.in_words(one)
    monkeypatch.setattr(draw, "rule_commit", lambda claim: None)
    assert "Rule written in" not in dict(draw._facts(one))


def test_a_rule_that_names_its_tol_does_not_get_the_variant_s():
    found = {r.verdict.claim.id: draw.in_words(r) for r in draw.stored_reports(ids=["no-noise", "eta0"])}
    assert "reference code (tol 0.316)" in found["eta0"]
    assert "reference code" in found["no-noise"] and "tol 0.316" not in found["no-noise"]


def test_git_finds_the_commit_of_every_rule():
    """In a checkout with its history; each rule's words stand in the source, so that git can find them."""
    folder = results.PACKAGED.parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*claims.py"))
    for claim in claims.CLAIMS:
        words = claim.dated or claim.criterion
        assert words in source and words in claim.criterion, claim.id
    whole = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=folder, capture_output=True, text=True)
    if whole.stdout.strip() == "false":
        assert all(len(claims.rule_commit(claim) or "") == 40 for claim in claims.CLAIMS)


def test_where_the_history_is_cut_off_no_commit_is_named(tmp_path, monkeypatch):
    """The oldest commit of a shallow clone seems to have added everything."""
    root, copy = results.PACKAGED.parents[2], tmp_path / "copy"
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    subprocess.run(["git", "clone", "-q", "--depth", "1", root.as_uri(), str(copy)], check=True)
    monkeypatch.setattr(claims, "__file__", str(copy / "adadp" / "experiments" / "claims.py"))
    assert {claims.rule_commit.__wrapped__(claim) for claim in claims.CLAIMS} == {None}


def test_a_commit_on_a_page_is_short_and_leads_to_the_public_repository():
    name = 40 * "a1"[:1]
    assert f'<a href="https://host/x/commit/{name}">{name[:12]}</a>' in linked(
        f"<p>in commit {name}.</p>", "https://host/x/"
    )
    assert linked(f"<p>in commit {name}.</p>", "") == f"<p>in commit {name[:12]}.</p>"
    assert linked("<p>a0b1</p>", "https://host/x") == "<p>a0b1</p>"


def test_the_page_types_in_no_verdict():
    text = (results.PACKAGED.parents[2] / "notebooks" / "claims.ipynb").read_text(encoding="utf-8")
    for word in (HOLDS + ".", FAILS, "%  ("):
        assert word not in text, word
    assert not re.search(r"\d (points|%)", text)

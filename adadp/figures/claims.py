"""The claims of the paper with their verdicts, as cards on a page and as text: computed from what is stored."""

import html
import re
import textwrap
from collections.abc import Sequence
from importlib import resources

from adadp.experiments import results
from adadp.experiments.claims import rule_commit
from adadp.experiments.configs import from_dict
from adadp.experiments.evidence import FAILS, HOLDS, INCOMPLETE, REFERENCE_ONLY, UNTESTABLE, Claim
from adadp.experiments.report import Report, reports, tally
from adadp.experiments.results import finals, spread
from adadp.figures.stored_words import data_line

STORED = "../adadp/experiments/stored"  # from a page of the book, and from a notebook in the repository
SIGNS = {HOLDS: "✓", REFERENCE_ONLY: "≈", FAILS: "✗", UNTESTABLE: "–", INCOMPLETE: "…"}
KINDS = {HOLDS: "holds", REFERENCE_ONLY: "variant", FAILS: "fails", UNTESTABLE: "open", INCOMPLETE: "open"}
VARIANTS = {
    "as_printed": "as printed",
    "reference_code": "reference code (tol 0.316)",
    "reference_code_tol1": "reference code (tol 1)",
}
OWN_TOL = ("no-noise",)  # claims whose rule names a tol for every variant
SECTIONS = {  # title of a section of the paper -> its number in the arXiv version
    "Adaptive DP algorithm": "4",
    "Choice of parameter tol": "4.2",
    "Adaptive federated averaging algorithm": "5",
    "Experiments": "6",
    "Datasets and test architectures": "6.1",
    "Federated learning experiments": "6.2",
    "Comparison of ADADP against DP-Adam": "6.3",
    "Experiments for ADADP and SGD": "6.4",
}
WORDS = {INCOMPLETE: "still waiting for runs"}


class Cards:
    """Reports that a notebook shows as cards, and a terminal as text.

    Args:
        found: the reports.
        federated: keep the federated claims, or the private ones; None keeps all.
    """

    def __init__(self, found: Sequence[Report], federated: bool | None = None):
        self.found = [r for r in found if federated in (None, r.verdict.claim.id.startswith("fed-"))]

    def __repr__(self) -> str:
        return "\n\n".join(map(in_words, self.found))

    def _repr_html_(self) -> str:
        return f'<div class="adadp-claims">{_style()}{"".join(map(_card, self.found))}</div>'


class Overview:
    """Every claim in one line with its verdict, each a link to its card.

    Args:
        found: the reports.
        page: where the cards are; empty for the same page.
    """

    def __init__(self, found: Sequence[Report], page: str = ""):
        self.found, self.page = [r for r in found if not r.earlier], page

    def __repr__(self) -> str:
        return "\n".join(f"{SIGNS[r.verdict.verdict]} {r.verdict.claim.text} {_verdict(r)}" for r in self.found)

    def _repr_html_(self) -> str:
        claims = [(r, r.verdict.claim) for r in self.found]
        lines = "".join(
            f'<li>{_badge(r)}: <a href="{self.page}#claim-{c.id}">{html.escape(c.text)}</a></li>' for r, c in claims
        )
        return f'<div class="adadp-claims">{_style()}<ul class="ad-overview">{lines}</ul></div>'


def stored_reports(folder=None, ids: Sequence[str] = ()) -> list[Report]:
    """Reports on all claims, or on some, from the stored results at the sizes the rules ask for."""
    wanted = set(ids)
    return [r for r in reports(results.load(folder)) if not wanted or r.verdict.claim.id in wanted]


def counts(found: Sequence[Report]) -> str:
    """The tally in words.

    >>> counts([])
    'no claim'
    """
    return ", ".join(_counted(*pair) for pair in tally(list(found)).items()) or "no claim"


def _counted(verdict: str, count: int) -> str:
    """A verdict with how often it was given.

    >>> _counted("holds", 1), _counted("does not hold", 2), _counted("not complete yet", 3)
    ('1 holds', '2 do not hold', '3 still waiting for runs')
    """
    words = WORDS.get(verdict, verdict)
    if count != 1:
        words = re.sub(r"^(holds|does)\b", lambda found: {"holds": "hold", "does": "do"}[found[0]], words)
    return f"{count} {words}"


def in_words(report: Report) -> str:
    """One claim as plain text."""
    claim = report.verdict.claim
    title = f"{claim.id}, by an earlier rule" if report.earlier else claim.id
    lines = [f"{SIGNS[report.verdict.verdict]} {title}: {_verdict(report)}", f"  {claim.text}"]
    for name, text in [*_facts(report), *_by_seed(report)]:
        lines += textwrap.wrap(f"{name}: {text}", 110, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def _verdict(report: Report) -> str:
    """The verdict in words; where runs are missing, how many; where all are there, why there is none."""
    if report.verdict.verdict == INCOMPLETE and not report.missing:
        return f"{INCOMPLETE}: {report.verdict.missing}"
    if report.verdict.verdict == INCOMPLETE:
        return f"{report.missing} of {report.needed} runs missing"
    return report.verdict.verdict


def _variant(claim: Claim, variant: str) -> str:
    """What a variant is called on the card of a claim; nothing where it has only one."""
    name = VARIANTS.get(variant, variant) if len(claim.variants) > 1 else ""
    return name.split(" (tol")[0] if claim.id in OWN_TOL else name


def _facts(report: Report) -> list[tuple[str, str]]:
    """What a card says below the claim: (name, text) pairs."""
    claim, numbers = report.verdict.claim, report.verdict.numbers
    where = f"Section {SECTIONS[claim.where]}, {claim.where}" if claim.where in SECTIONS else claim.where
    rule = f"{claim.criterion} ({claim.note})" if claim.note else claim.criterion
    facts = [("In the paper", where), ("Rule", rule)]
    if commit := rule_commit(claim):
        facts.append(("Rule written in", f"commit {commit}"))
    for variant in claim.variants:
        name = _variant(claim, variant)
        if variant in numbers:
            facts.append((f"Ours, {name}" if name else "Ours", numbers[variant]))
        elif variant in report.so_far:
            facts.append((f"So far, {name}" if name else "So far", f"{report.so_far[variant]} (seeds are missing)"))
    if report.beside:
        facts.append(("Recommended variant, not judged", report.beside))
    if data := data_line([r for curve in report.curves for r in curve["records"] if "data" in r]):
        facts.append(("Data", data))
    return facts


def _by_seed(report: Report) -> list[tuple[str, str]]:
    """What each seed says alone, where there are several: (seed, and variant where there are several; numbers)."""
    claim, found = report.verdict.claim, []
    for variant in claim.variants:
        seeds, name = report.by_seed.get(variant, {}), _variant(claim, variant)
        prefix = f"{name}, " if name else ""
        found += [(f"{prefix}seed {seed}", text) for seed, text in seeds.items() if len(seeds) > 1]
    return found


def _badge(report: Report) -> str:
    """The verdict as a coloured word; the sign says it without colour."""
    kind = KINDS[report.verdict.verdict]
    sign = SIGNS[report.verdict.verdict]
    return f'<span class="ad-verdict ad-{kind}"><span aria-hidden="true">{sign}</span> {_verdict(report)}</span>'


def _card(report: Report) -> str:
    """One claim as HTML."""
    claim = report.verdict.claim
    rows = "".join(f"<div><dt>{html.escape(n)}</dt><dd>{html.escape(t)}</dd></div>" for n, t in _facts(report))
    title = f"<h3>{html.escape(claim.text)}</h3>"
    kind, name = "", f"claim-{claim.id}"
    if report.earlier:
        kind, name, title = (
            " ad-earlier",
            f"earlier-{claim.id}",
            f"<h4>By an earlier rule: {html.escape(claim.text)}</h4>",
        )
    return (
        f'<section class="ad-card{kind}" id="{name}">{title}<p>{_badge(report)} <code>{claim.id}</code></p>'
        f"<dl>{rows}</dl>{_seeds(report)}{_runs(report)}</section>"
    )


def _seeds(report: Report) -> str:
    """Every seed's own numbers, folded away; an earlier rule looks at the same ones."""
    found = [] if report.earlier else _by_seed(report)
    lines = "".join(f"<li>{html.escape(f'{name}: {text}')}</li>" for name, text in found)
    return f"<details><summary>Seed by seed</summary><ul>{lines}</ul></details>" if lines else ""


def _runs(report: Report) -> str:
    """The stored runs behind a card, folded away: one line a curve, a link a run."""
    records = [r for curve in report.curves for r in curve["records"]]
    if not records:
        return ""
    lines = "".join(f"<li>{_curve(curve)}</li>" for curve in report.curves if curve["records"])
    count = len({r["id"] for r in records})
    said = f"{count} stored runs behind it" if count > 1 else "1 stored run behind it"
    return f"<details><summary>{said}</summary><ul>{lines}</ul></details>"


def _curve(curve: dict) -> str:
    """Role, setting, final accuracy with its spread, data, and a link a run."""
    config, values = curve["config"], finals(curve)
    setting = [f"lr {config['lr']:.3g}"] if "lr" in config else [config["model"]]
    if config["kind"] == "private":
        setting.insert(0, f"σ = {config['noise_multiplier']:g}")
    elif config["kind"] == "federated":
        setting.insert(0, f"{100 * config['random_fraction']:.0f} % random")
    peeking = ", lr chosen by peeking" if curve["peeking"] else ""
    number = f": {spread(values)}" if values else ""
    data = ", ".join(dict.fromkeys(r.get("data", "") for r in curve["records"]))
    said = html.escape(f"{curve['experiment']}, {curve['role']}, {', '.join(setting)}{peeking}{number}. {data}. ")
    return said + " ".join(map(_link, curve["records"]))


def _link(record: dict) -> str:
    """A stored run: its id, leading to its file."""
    config = from_dict(record["config"])
    file = f"{STORED}/{record.get('experiment', '')}/{config.slug}-{config.id}.json"
    return f'<a href="{html.escape(file)}"><code>{config.id}</code></a>'


def _style() -> str:
    """The cards' own rules."""
    rules = resources.files("adadp.figures").joinpath("claims.css").read_text(encoding="utf-8")
    return f"<style>{rules.replace(chr(10), '')}</style>"

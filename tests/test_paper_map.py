"""The paper map names what there is: experiments, claims, files, chapters."""

import re
from pathlib import Path

import pytest

from adadp.experiments import grids
from adadp.experiments.claims import CLAIMS
from adadp.publishing import toc

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "book" / "paper_map.md").read_text(encoding="utf-8")
CODE = set(re.findall(r"`([^`\n]+)`", TEXT))


def test_every_experiment_and_no_other_is_listed():
    section = TEXT.split("## Experiments")[1].split("## Claims")[0]
    assert set(re.findall(r"^\| `([\w-]+)`", section, re.M)) == set(grids.EXPERIMENTS)


def test_every_row_has_the_columns_of_its_table():
    for table in re.findall(r"(?:^\|.*\n)+", TEXT, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table


def test_every_claim_is_listed():
    section = TEXT.split("## Claims")[1]
    listed = {name for row in re.findall(r"^\| (`[^|]+)\|", section, re.M) for name in re.findall(r"`([\w-]+)`", row)}
    assert listed == {claim.id for claim in CLAIMS}


@pytest.mark.parametrize("path", sorted(name for name in CODE if re.fullmatch(r"[\w/]+\.py", name)))
def test_every_file_exists(path):
    assert (ROOT / "adadp" / path).exists()


@pytest.mark.parametrize("path, name", re.findall(r"`([\w/]+\.py)`: `(\w+)`", TEXT))
def test_every_function_is_in_its_file(path, name):
    assert re.search(rf"^(def|class) {name}\b", (ROOT / "adadp" / path).read_text(encoding="utf-8"), re.M)


def test_every_chapter_is_linked():
    chapters = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert set(re.findall(r"\(\.\./notebooks/(\w+\.ipynb)\)", TEXT)) == chapters


def test_the_first_page_leads_to_every_page():
    first = (ROOT / "book" / "index.md").read_text(encoding="utf-8")
    linked = {(ROOT / "book" / target).resolve() for target in re.findall(r"\]\(([\w./]+)\)", first)}
    assert {path.resolve() for path in toc.pages(ROOT)} <= linked | {ROOT / "book" / "index.md"}


def test_every_numbered_item_of_the_paper_is_listed():
    for number in range(1, 8):
        assert re.search(rf"^\| [^|]*\({number}\)", TEXT, re.M), f"equation ({number})"
    items = "Algorithm 1, Algorithm 2, Definition 1, Definition 2, Definitions 3 to 5, Theorem 1, Theorem 2"
    for item in items.split(", "):
        assert f"| {item}" in TEXT

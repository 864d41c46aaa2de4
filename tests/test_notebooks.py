"""Every committed notebook keeps the house rules, and runs from top to bottom."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from adadp.publishing import notebook as nbk
from adadp.publishing import toc

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "notebooks").rglob("*.ipynb"))
FILES = [p for p in FILES if ".ipynb_checkpoints" not in p.parts]
NAMES = [p.relative_to(ROOT).as_posix() for p in FILES]

each = pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])


def test_there_are_notebooks_and_the_book_lists_them():
    assert len(FILES) >= 1
    assert {p for p in toc.pages(ROOT) if p.suffix == ".ipynb"} == set(FILES)


@each
def test_stored_without_outputs(path):
    nb = nbk.read(path)
    dirty = [n for n, c in enumerate(nbk.code_cells(nb), 1) if c.outputs or c.execution_count is not None]
    assert dirty == [], "strip it: nbstripout --keep-id"
    assert not {"widgets", "papermill"} & set(nb.metadata)
    assert all(set(c.metadata) <= {"tags", "mystnb", "editable", "slideshow"} for c in nb.cells)


@each
def test_format_and_kernel(path):
    nb = nbk.read(path)
    assert (nb.nbformat, nb.nbformat_minor) >= (4, 5)
    assert nb.metadata.kernelspec.name == "python3"
    ids = [c.id for c in nb.cells]
    assert len(set(ids)) == len(ids)


@each
def test_parameters_come_first_and_are_the_quick_defaults(path):
    values = nbk.parameters(nbk.read(path), path.name)
    assert values["profile"] == "quick" and values["seed"] == 0 and values["device"] == "auto"


@each
def test_title_comes_first_and_once(path):
    nb = nbk.read(path)
    assert nb.cells[0].cell_type == "markdown" and nb.cells[0].source.startswith("# ")
    prose = "\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
    assert sum(line.startswith("# ") for line in _outside_fences(prose)) == 1


@each
def test_it_says_which_data_it_shows(path):
    """Under the one name that the footer of the book collects; not where there are none, or each card has its own."""
    names = re.findall(r'record\(\s*"(\w*provenance)"', "\n".join(c.source for c in nbk.code_cells(nbk.read(path))))
    assert set(names) == (set() if path.stem in ("claims", "step_doubling") else {"provenance"})


@each
def test_no_cell_relies_on_a_stored_run(path):
    """A method that is not stored has no entry; its name in brackets would stop the page."""
    source = "\n".join(c.source for c in nbk.code_cells(nbk.read(path)))
    assert not re.search(r"(in_points|gaps)\([^)]*\)\[", source)


@each
def test_thousands_have_commas(path):
    prose = "\n".join(c.source for c in nbk.read(path).cells if c.cell_type == "markdown")
    assert re.findall(r"\d[ \u2009\u202f]\d{3}\b", prose) == []


def _outside_fences(text: str) -> list[str]:
    """Lines of Markdown that are not in a code block or directive."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            lines.append(line)
    return lines


@each
def test_cells_are_short_and_prose_stands_between_them(path):
    nb = nbk.read(path)
    long = [(n, c.source.count("\n") + 1) for n, c in enumerate(nbk.code_cells(nb), 1) if c.source.count("\n") > 14]
    assert long == [], "(cell, lines): fifteen at most; longer code belongs into the package"
    assert all(c.source.strip() for c in nb.cells), "an empty cell"


@each
def test_cells_are_plain_python_without_machine_paths(path):
    for cell in nbk.code_cells(nbk.read(path)):
        ast.parse(cell.source)  # no magics, no shell: papermill, Colab and ruff read the same thing
        for word in ("/home/", "/Users/", "/root/", "/tmp/", "C:\\"):
            assert word not in cell.source


@pytest.mark.book
@pytest.mark.parametrize("name", NAMES)
def test_runs_through_papermill(name, executed):
    (page,) = [p for p in executed if p.name == name]
    assert not page.failure, f"{page}\n{page.failure.get('traceback')}"
    nb = nbk.read(page.path)
    assert nbk.written_to_stderr(nb) == []
    blank = nbformat.v4.new_output("stream", name="stderr", text=" \n")
    cell = nbformat.v4.new_code_cell("print(file=sys.stderr)", outputs=[blank])
    assert nbk.written_to_stderr(nbformat.v4.new_notebook(cells=[cell])) == []
    assert any(c.outputs for c in nbk.code_cells(nb)), "it shows nothing"
    assert "widgets" not in nb.metadata


@pytest.mark.book
@pytest.mark.parametrize("name", NAMES)
def test_every_figure_with_an_epsilon_carries_a_privacy_statement(name, executed):
    (page,) = [p for p in executed if p.name == name]
    shown = [out.get("data", {}).get("text/html", "") for c in nbk.code_cells(nbk.read(page.path)) for out in c.outputs]
    for html in (text for text in shown if "adadp-figure" in text):
        words = re.sub(r"<(style|script)\b.*?</\1>", "", html, flags=re.DOTALL)
        assert not re.search("ε|epsilon", words) or 'class="ad-privacy"' in words, words[:500]

"""One notebook as the book sees it: its parameters, what execution left behind, what it recorded."""

import ast
from pathlib import Path
from typing import Any

import nbformat

PARAMETERS = ("profile", "seed", "device")


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook in ``path``.

    Raises:
        ValueError: the file is not a notebook.
    """
    try:
        return nbformat.read(path, as_version=4)
    except OSError:
        raise
    except Exception as error:  # nbformat has no common base for its complaints
        raise ValueError(f"{path} is not a notebook: {error}") from error


def code_cells(nb: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Code cells of the committed notebook (papermill's own cell is left out)."""
    return [c for c in nb.cells if c.cell_type == "code" and "injected-parameters" not in tags(c)]


def tags(cell: nbformat.NotebookNode) -> list[str]:
    """Tags of a cell."""
    return cell.metadata.get("tags", [])


def parameters(nb: nbformat.NotebookNode, name: str) -> dict[str, Any]:
    """Names and values that the ``parameters`` cell sets.

    Only literals are allowed: papermill sets the three names *after* this cell, so a value derived from them here
    would keep the default without a word.

    Raises:
        ValueError: no such cell, more than one, not the first code cell, a missing name, or not a literal.
    """
    tagged = [c for c in code_cells(nb) if "parameters" in tags(c)]
    if len(tagged) != 1 or code_cells(nb)[0] is not tagged[0]:
        raise ValueError(f"{name}: exactly one code cell, the first, must have the tag 'parameters'")
    values = {}
    try:
        lines = ast.parse(tagged[0].source).body
    except SyntaxError as error:
        raise ValueError(f"{name}: line {error.lineno} of the parameters cell is not Python: {error.msg}") from error
    for line in lines:
        try:
            (target,) = line.targets  # type: ignore[attr-defined]
            values[target.id] = ast.literal_eval(line.value)  # type: ignore[attr-defined]
        except (AttributeError, ValueError) as error:
            raise ValueError(
                f"{name}: line {line.lineno} of the parameters cell must be `name = literal`; "
                "derive values in the next cell"
            ) from error
    missing = [p for p in PARAMETERS if p not in values]
    if missing:
        raise ValueError(f"{name}: the parameters cell does not set {', '.join(missing)}")
    return values


def clean(nb: nbformat.NotebookNode, values: dict[str, Any]) -> nbformat.NotebookNode:
    """Take out what execution adds and no reader needs, in place: times, absolute paths, the widgets' state.

    papermill's cell stays only where it changed something: where ``values`` are the defaults it repeats them.
    """
    nb.metadata.pop("papermill", None)
    nb.metadata.pop("widgets", None)
    if {k: v for k, v in parameters(nb, "notebook").items() if k in values} == values:
        nb.cells = [c for c in nb.cells if "injected-parameters" not in tags(c)]
    for cell in nb.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if not tags(cell):
            cell.metadata.pop("tags", None)
    return nb


def written_to_stderr(nb: nbformat.NotebookNode) -> list[tuple[int, str]]:
    """(number of the code cell, text) for each cell that wrote to stderr: a warning, or a progress bar."""
    found = []
    for number, cell in enumerate(code_cells(nb), start=1):
        text = "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stderr")
        if text.strip():
            found.append((number, text.strip()))
    return found


def recorded(nb: nbformat.NotebookNode) -> dict[str, Any]:
    """What the notebook's calls of `adadp.publishing.record` left in its outputs."""
    values = {}
    for cell in code_cells(nb):
        for output in cell.outputs:
            scrap = output.get("metadata", {}).get("scrapbook")
            if scrap:
                values[scrap["name"]] = ast.literal_eval(output.data[scrap["mime_prefix"] + "text/plain"])
    return values

"""What the book consists of: the files that ``_toc.yml`` lists, and no others."""

from pathlib import Path

import yaml

FOLDERS = ("book", "notebooks")
SUFFIXES = (".md", ".ipynb")
_NESTED = ("parts", "chapters", "sections", "subtrees", "entries")


def listed(toc: dict) -> list[str]:
    """Document names of a table of contents (the Jupyter Book format), in reading order.

    Example:
        >>> listed({"root": "book/index", "chapters": [{"file": "a", "sections": [{"file": "b"}]}, {"url": "u"}]})
        ['book/index', 'a', 'b']
    """
    names = [toc[key] for key in ("root", "file") if key in toc]
    for key in _NESTED:
        for entry in toc.get(key) or []:
            names += listed(entry)
    return names


def pages(root: Path) -> list[Path]:
    """Files of the book below ``root``, in reading order.

    Files whose name begins with an underscore are fragments that pages include: they are not listed.

    Raises:
        ValueError: there is no ``_toc.yml``, it can't be read, it lists a page twice, or it and the folders
            ``book`` and ``notebooks`` differ (Jupyter Book would leave such pages out without a word).
    """
    path = root / "_toc.yml"
    if not path.is_file():
        raise ValueError(f"no _toc.yml in {root}: call this in the repository's root")
    try:
        names = listed(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        raise ValueError(f"_toc.yml is not a table of contents: {error}") from error
    found = {_docname(p, root): p for p in _candidates(root)}
    _compare(names, found)
    return [found[name.removesuffix(".md").removesuffix(".ipynb")] for name in names]


def _docname(path: Path, root: Path) -> str:
    """Path below the root without its suffix."""
    return path.relative_to(root).with_suffix("").as_posix()


def _candidates(root: Path) -> list[Path]:
    """Every file that could be a page."""
    files = (p for folder in FOLDERS for p in sorted((root / folder).rglob("*")))
    return [p for p in files if p.suffix in SUFFIXES and p.name[0] not in "_." and ".ipynb_checkpoints" not in p.parts]


def _compare(names: list[str], found: dict[str, Path]) -> None:
    """Refuse a table of contents that differs from the files."""
    plain = [name.removesuffix(".md").removesuffix(".ipynb") for name in names]
    faults = [f"{n} is listed twice" for n in sorted({n for n in plain if plain.count(n) > 1})]
    faults += [f"{n} is listed but there is no such file" for n in sorted(set(plain) - set(found))]
    faults += [f"{found[n].name} in {found[n].parent.name}/ is not listed" for n in sorted(set(found) - set(plain))]
    if faults:
        raise ValueError("_toc.yml and the files differ: " + "; ".join(faults))

"""Launch copies: every notebook of a published book, with a first cell that gets the package of exactly that commit.

A committed notebook cannot hold its own commit; the copy that lies beside the built pages can. Its first cell calls
`install_missing`, which leaves alone whatever is installed already: a platform such as Colab has tuned its own
versions to each other.
"""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

FOLDER = "launch"  # below the pages
PAGES_BRANCH = "gh-pages"
EXTRA = "book"
TOOLS = {"jupyter-book", "papermill", "sphinx-mathjax-offline", "sphinx-proof", "nbformat", "ipykernel", "pyyaml"}
TAG = "launch"
CELL = """\
# This copy belongs to commit {short}. It gets the package of that commit, and of what the package
# needs only what is not here yet; nothing that is installed already is changed.
import subprocess
import sys

source = "adadp @ git+{repository}@{commit}"
pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
subprocess.run([*pip, "--force-reinstall", source], check=True)

from adadp.publishing import launch

launch.install_missing()"""


def check_address(repository: str, commit: str) -> tuple[str, str]:
    """Repository and commit as buttons and copies need them.

    Raises:
        ValueError: the repository is no address, or the commit is not one (a branch moves on; a commit does not).

    >>> check_address("https://github.com/org/name.git", "0123abcd")
    ('https://github.com/org/name', '0123abcd')
    """
    if not re.fullmatch(r"(https?|file)://[^\s\"'\\@]+", repository):
        raise ValueError(f"repository must be an address such as https://github.com/org/name, got {repository!r}")
    if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        raise ValueError(f"commit must be 7 to 40 hexadecimal digits, got {commit!r}; name it with --commit")
    return repository.rstrip("/").removesuffix(".git"), commit


def write_copies(root: Path, target: Path, notebooks: Iterable[str], repository: str, commit: str) -> list[Path]:
    """Write a launch copy of each committed notebook, without outputs, below ``target``; returns their paths.

    Args:
        root: the repository on this machine.
        target: folder of the copies; a notebook keeps its path below the repository there.
        notebooks: paths below the repository.
        repository, commit: where the first cell gets the package.
    """
    import nbformat

    source = CELL.format(repository=repository, commit=commit, short=commit[:12])
    written = []
    for name in notebooks:
        nb = nbformat.read(root / name, as_version=4)
        cell = nbformat.v4.new_code_cell(source, id="code-launch", metadata={"tags": [TAG]})
        first = next(n for n, c in enumerate(nb.cells) if c.cell_type == "code")
        nb.cells.insert(first, cell)
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(nbformat.writes(nb) + "\n", encoding="utf-8")
        written.append(path)
    return written


def missing(package: str = "adadp", extra: str = EXTRA) -> list[str]:
    """Requirements of an installed package that are not installed, as pip takes them.

    Tools that only build the book are left out. A version outside the range counts as installed, and is reported.
    """
    from packaging.requirements import Requirement

    wanted = []
    for text in metadata.requires(package) or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if requirement.name in TOOLS or (marker and not any(marker.evaluate({"extra": e}) for e in ("", extra))):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wanted.append(f"{requirement.name}{requirement.specifier}")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            print(f"{requirement.name} {version} is here, {package} asks for {requirement.specifier}: left as it is")
    return wanted


def install_missing(package: str = "adadp", extra: str = EXTRA) -> list[str]:
    """Install what `missing` finds, and what that in turn lacks; each by itself, so that pip changes nothing else.

    Returns:
        Names of what was installed.

    Raises:
        RuntimeError: pip could not install one of them.
    """
    done: list[str] = []
    todo = [(package, extra)]
    while todo:
        for requirement in missing(*todo.pop()):
            name = re.split(r"[^A-Za-z0-9._-]", requirement)[0]
            if name in done:
                continue
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", requirement]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode:
                raise RuntimeError(f"pip could not install {requirement}: {result.stderr.strip()[-500:]}")
            importlib.invalidate_caches()
            done.append(name)
            todo.append((name, ""))
    print(f"adadp {metadata.version(package)} is here; installed besides: {', '.join(done) or 'nothing'}")
    return done


def aim(buttons: list[dict], commit: str, branch: str) -> list[dict]:
    """Point the Colab links in a page's header at the launch copies; other links stay at the commit.

    Args:
        buttons: the theme's header buttons; groups hold theirs in "buttons".
        commit: what the theme's links open.
        branch: where the pages and the copies are published.

    >>> url = "https://colab.research.google.com/github/org/name/blob/0123abc/notebooks/a.ipynb"
    >>> aim([{"buttons": [{"text": "Colab", "url": url}]}], "0123abc", "gh-pages")[0]["buttons"][0]["url"]
    'https://colab.research.google.com/github/org/name/blob/gh-pages/launch/notebooks/a.ipynb'
    """
    for group in buttons:
        for button in group.get("buttons", []):
            if button.get("text") == "Colab":
                button["url"] = button["url"].replace(f"/blob/{commit}/", f"/blob/{branch}/{FOLDER}/", 1)
    return buttons

"""The tree that Jupyter Book builds: a copy of the sources with executed notebooks in the committed ones' places."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from adadp.locks import locked
from adadp.publishing import launch, provenance
from adadp.publishing.execute import Page

COLAB, BINDER = "https://colab.research.google.com", "https://mybinder.org"
PUBLISHED = "_published"  # what goes beside the pages as it is


@contextmanager
def lock(build: Path, report: Callable[[str], None]) -> Iterator[None]:
    """One build at a time below ``build``: two would share the mirror, and execute the same notebooks twice."""
    with locked(build / "lock", wait=False) as mine:
        if mine:
            yield
            return
    report("  waiting for another build of this book to finish")
    with locked(build / "lock", wait=True):
        yield


def lay_out(root: Path, src: Path, executed: list[Page], facts: dict[str, Any]) -> None:
    """Copy what pages show and include to ``src``, and write down the facts of this build.

    Every path stays what it is in the repository, so links between pages, to sources and to downloads are right.
    """
    shutil.rmtree(src, ignore_errors=True)
    src.mkdir(parents=True)
    skip = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for folder in ("book", "notebooks", "adadp"):
        if (root / folder).is_dir():
            shutil.copytree(root / folder, src / folder, ignore=skip)
    for path in [*root.glob("_*.yml"), *root.glob("*.md"), *root.glob("*.cff")]:
        shutil.copy2(path, src / path.name)
    for page in executed:
        shutil.copyfile(page.path, src / page.name)
    (src / provenance.FILE).write_text(json.dumps(facts, indent=1), encoding="utf-8")


def add_launch_copies(root: Path, src: Path, notebooks: list[str], address: tuple[str, str]) -> None:
    """Lay launch copies into the mirror, and the mark that keeps GitHub Pages from leaving out ``_static``."""
    published = src / PUBLISHED
    launch.write_copies(root, published / launch.FOLDER, notebooks, *address)
    (published / ".nojekyll").touch()


def set_address(src: Path, address: tuple[str, str] | None, pages_branch: str, base_url: str | None) -> None:
    """Write the public addresses into the mirror's configuration; without them there are no buttons to break.

    Args:
        src: the mirror.
        address: repository and commit; Binder and the source links open that commit, Colab the launch copies, which
            the published pages carry along.
        pages_branch: where the pages are published.
        base_url: the address of the pages.
    """
    config = src / "_config.yml"
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    html = settings.setdefault("html", {})
    if base_url:
        html["baseurl"] = base_url
    if address:
        repository, commit = address
        settings["repository"] = {"url": repository, "branch": commit, "path_to_book": ""}
        settings["launch_buttons"] = {"binderhub_url": BINDER, "notebook_interface": "jupyterlab"}
        if "://github.com/" in repository:
            settings["launch_buttons"]["colab_url"] = COLAB
        html |= {"use_repository_button": True, "use_issues_button": True, "use_edit_page_button": False}
        settings["sphinx"]["config"] |= {"html_extra_path": [PUBLISHED], "adadp_launch": [commit, pages_branch]}
    else:  # Jupyter Book would put its own repository in, and the commits that a page quotes would lead there
        settings["repository"] = {"url": ""}
    config.write_text(yaml.safe_dump(settings, allow_unicode=True, sort_keys=False), encoding="utf-8")

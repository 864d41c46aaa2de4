"""`build_book`: execute the notebooks, lay out a mirror of the sources, let Jupyter Book build it, swap it in."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from adadp.publishing import launch, provenance, toc
from adadp.publishing import notebook as nbk
from adadp.publishing.execute import Page, execute
from adadp.publishing.mirror import add_launch_copies, lay_out, lock, set_address
from adadp.publishing.pages import build_pages, check_output, listing, restore

PROFILES = ("quick", "paper")
DEVICES = ("auto", "cpu", "cuda")


def build_book(
    root: Path | str | None = None,
    *,
    profile: str = "quick",
    seed: int = 0,
    device: str = "auto",
    strict: bool = False,
    output: Path | str | None = None,
    workers: int | None = None,
    use_cache: bool = True,
    repository: str | None = None,
    commit: str | None = None,
    pages_branch: str = launch.PAGES_BRANCH,
    base_url: str | None = None,
    report: Callable[[str], None] = print,
) -> Path:
    """Turn the repository in ``root`` into the executed book and return the path of its ``index.html``.

    Notebooks are executed by papermill with ``profile``, ``seed`` and ``device``, each only if it or anything it
    depends on changed (`adadp.publishing.inputs`), into a copy of the sources; the committed ones are only read.
    The book is built in a new folder that takes the old one's place at the very end: whatever goes wrong before,
    the previous book stays as it was.

    Args:
        root: the repository (default: the current folder).
        profile: "quick" (embedded data, seconds a page) or "paper" (the paper's full size).
        seed: what every notebook gets as its ``seed``.
        device: "auto", "cpu" or "cuda".
        strict: a warning of Sphinx, or a cell that writes to stderr, is an error; otherwise it is listed.
        output: folder of the finished book (default: ``_build/html`` below the root); new, empty, or an older book.
        workers: notebooks executed side by side, at least 1 (default: 2, or 1 on a single core).
        use_cache: False executes every notebook anew.
        repository: address of the public repository; without one the pages have no launch and source buttons.
        commit: what these buttons open (default: the one that is checked out).
        pages_branch: the branch of the repository on which the pages will be published; launch copies of the notebooks
            lie beside them (`adadp.publishing.launch`).
        base_url: address where the pages will be published.
        report: gets the lines that tell about progress.

    Raises:
        ValueError: an unknown profile or device, no worker, a faulty ``_toc.yml``, a notebook without a parameters
            cell, a repository without a commit, an ``output`` that holds something else than a book.
        RuntimeError: a cell failed, or (strict) something warned, or Jupyter Book failed; the message names where.
        OSError: the disk is full or not writable.
    """
    root = Path(root or Path.cwd()).resolve()
    _check(profile, device, workers)
    address = launch.check_address(repository, commit or provenance.full_commit(root)) if repository else None
    pages = toc.pages(root)
    build = root / "_build"
    output = Path(output).resolve() if output else build / "html"
    check_output(root, output)
    with _disk_full_said(build), lock(build, report):
        restore(output)
        executed = execute(
            [p for p in pages if p.suffix == ".ipynb"], root=root, cache=build / "nbcache",
            parameters={"profile": profile, "seed": seed, "device": device},
            workers=workers or min(2, os.cpu_count() or 1), use_cache=use_cache, report=report,
        )  # fmt: skip
        _refuse_failures(executed, output)
        warnings = _stderr(executed) + _differing(root, address, commit)
        if strict and warnings:
            raise RuntimeError(listing("not fit to be published", warnings))
        src = build / "src"
        facts = provenance.collect(root, executed, profile=profile, seed=seed, device=device)
        lay_out(root, src, executed, facts)
        set_address(src, address, pages_branch, base_url)
        if address:
            add_launch_copies(root, src, [page.name for page in executed], address)
        warnings = build_pages(src, build, output, strict=strict, warnings=warnings, report=report)
    for warning in warnings:
        report(f"  warning: {warning}")
    return output / "index.html"


def _check(profile: str, device: str, workers: int | None) -> None:
    """Refuse what no notebook knows."""
    if workers is not None and workers < 1:
        raise ValueError(f"workers (--jobs) must be at least 1, got {workers}")
    if profile not in PROFILES:
        raise ValueError(f"profile must be one of {', '.join(PROFILES)}, got {profile!r}")
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {device!r}")


@contextlib.contextmanager
def _disk_full_said(build: Path) -> Iterator[None]:
    """Say what to do where there is no room."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise OSError(f"no space left for {build}: free some and start again; the previous book is intact") from error


def _refuse_failures(executed: list[Page], output: Path) -> None:
    """Name notebook, cell and traceback of everything that failed."""
    failed = [page for page in executed if page.failure]
    if not failed:
        return
    for page in failed:
        print(f"\n{page}\n{page.failure.get('traceback', '')}\n", file=sys.stderr)
    kept = "; the previous book is left as it was" if output.exists() else ""
    raise RuntimeError("; ".join(str(page) for page in failed) + kept)


def _differing(root: Path, address: tuple[str, str] | None, commit: str | None) -> list[str]:
    """A line where the buttons would open a commit that is not what was built."""
    if address and commit is None and provenance.commit(root).endswith("+"):
        return [f"files differ from commit {address[1]}, which the launch buttons open"]
    return []


def _stderr(executed: list[Page]) -> list[str]:
    """A line for every cell that wrote to stderr."""
    return [
        f"{page.name}, code cell {number} wrote to stderr: {text.splitlines()[0]}"
        for page in executed
        for number, text in nbk.written_to_stderr(nbk.read(page.path))
    ]

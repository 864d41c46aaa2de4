"""`build_book`: execute the notebooks, lay out a mirror of the sources, let Jupyter Book build it, swap it in."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from adadp.publishing import notebook as nbk
from adadp.publishing import provenance, toc
from adadp.publishing.execute import Page, environment, execute

PROFILES = ("quick", "paper")
DEVICES = ("auto", "cpu", "cuda")
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"  # its script may not be on the path
COMPLAINT = r"\b(WARNING|ERROR|CRITICAL|Exception)\b|^\w*Error: "
UNWRITTEN = r"OSError|No space left|File too large|quota exceeded|Permission denied|Failed to copy"
COLAB, BINDER = "https://colab.research.google.com", "https://mybinder.org"


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
    branch: str = "main",
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
        output: folder of the finished book (default: ``_build/html`` below the root).
        workers: notebooks executed side by side (default: 2, or 1 on a single core).
        use_cache: False executes every notebook anew.
        repository: address of the public repository; without one the pages have no launch and source buttons.
        branch: branch or commit that these buttons open.
        base_url: address where the pages will be published.
        report: gets the lines that tell about progress.

    Raises:
        ValueError: an unknown profile or device, a faulty ``_toc.yml``, a notebook without a parameters cell.
        RuntimeError: a cell failed, or (strict) something warned, or Jupyter Book failed; the message names where.
        OSError: the disk is full or not writable.
    """
    root = Path(root or Path.cwd()).resolve()
    _check(profile, device)
    pages = toc.pages(root)
    build = root / "_build"
    output = Path(output).resolve() if output else build / "html"
    with _disk_full_said(build), _lock(build, report):
        executed = execute(
            [p for p in pages if p.suffix == ".ipynb"], root=root, cache=build / "nbcache",
            parameters={"profile": profile, "seed": seed, "device": device},
            workers=workers or min(2, os.cpu_count() or 1), use_cache=use_cache, report=report,
        )  # fmt: skip
        _refuse_failures(executed, output)
        warnings = _stderr(executed)
        if strict and warnings:
            raise RuntimeError(_listing("a cell wrote to stderr", warnings))
        src = build / "src"
        _mirror(root, src, executed)
        _address(src / "_config.yml", repository, branch, base_url)
        facts = provenance.collect(root, executed, profile=profile, seed=seed, device=device)
        (src / provenance.FILE).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        state = _Finished(src, strict)
        if state.matches(output):
            warnings = state.warnings(output)
            report(f"  nothing changed since {output} was built")
        else:
            warnings += _sphinx(src, build, output, strict=strict, report=report, state=state, warnings=warnings)
    for warning in warnings:
        report(f"  warning: {warning}")
    return output / "index.html"


def _check(profile: str, device: str) -> None:
    """Refuse what no notebook knows."""
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


@contextlib.contextmanager
def _lock(build: Path, report: Callable[[str], None]) -> Iterator[None]:
    """One build at a time: two would share the mirror."""
    build.mkdir(parents=True, exist_ok=True)
    with (build / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("  waiting for another build of this book to finish")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _refuse_failures(executed: list[Page], output: Path) -> None:
    """Name notebook, cell and traceback of everything that failed."""
    failed = [page for page in executed if page.failure]
    if not failed:
        return
    for page in failed:
        print(f"\n{page}\n{page.failure.get('traceback', '')}\n", file=sys.stderr)
    kept = "; the previous book is left as it was" if output.exists() else ""
    raise RuntimeError("; ".join(str(page) for page in failed) + kept)


def _stderr(executed: list[Page]) -> list[str]:
    """A line for every cell that wrote to stderr."""
    return [
        f"{page.name}, code cell {number} wrote to stderr: {text.splitlines()[0]}"
        for page in executed
        for number, text in nbk.written_to_stderr(nbk.read(page.path))
    ]


def _listing(what: str, warnings: list[str]) -> str:
    """One error out of several warnings; all of them are on the screen or in the log."""
    more = f"; and {len(warnings) - 5} more" if len(warnings) > 5 else ""
    return f"{what} ({len(warnings)}): " + "; ".join(warnings[:5]) + more


def _mirror(root: Path, src: Path, executed: list[Page]) -> None:
    """Copy what pages show and include, with the executed notebooks in the committed ones' places."""
    shutil.rmtree(src, ignore_errors=True)
    src.mkdir(parents=True)
    skip = shutil.ignore_patterns("__pycache__", "stored", ".ipynb_checkpoints")
    for folder in ("book", "notebooks", "adadp"):
        if (root / folder).is_dir():
            shutil.copytree(root / folder, src / folder, ignore=skip)
    for path in [*root.glob("_*.yml"), *root.glob("*.md"), *root.glob("*.cff")]:
        shutil.copy2(path, src / path.name)
    for page in executed:
        shutil.copyfile(page.path, src / page.name)


def _address(config: Path, repository: str | None, branch: str, base_url: str | None) -> None:
    """Write the public addresses into the mirror's configuration; without them there are no buttons to break."""
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    html = settings.setdefault("html", {})
    if base_url:
        html["baseurl"] = base_url
    if repository:
        settings["repository"] = {"url": repository, "branch": branch, "path_to_book": ""}
        settings["launch_buttons"] = {"colab_url": COLAB, "binderhub_url": BINDER, "notebook_interface": "jupyterlab"}
        html |= {"use_repository_button": True, "use_issues_button": True, "use_edit_page_button": False}
    config.write_text(yaml.safe_dump(settings, allow_unicode=True, sort_keys=False), encoding="utf-8")


class _Finished:
    """The note beside a finished book that says of what, and how strictly, it was built."""

    NAME = "built.json"

    def __init__(self, src: Path, strict: bool):
        h = hashlib.sha256()
        for path in sorted(p for p in src.rglob("*") if p.is_file()):
            h.update(path.relative_to(src).as_posix().encode() + b"\0")
            h.update(provenance.undated(path).encode() if path.name == provenance.FILE else path.read_bytes())
        self.key, self.strict = h.hexdigest(), strict

    def _read(self, output: Path) -> dict[str, Any]:
        """The note in ``output``, empty if there is none that can be read."""
        try:
            return json.loads((output / self.NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def matches(self, output: Path) -> bool:
        """Whether ``output`` already is what would be built now."""
        note = self._read(output)
        return note.get("key") == self.key and (note.get("strict") or not self.strict)

    def warnings(self, output: Path) -> list[str]:
        """What was listed when it was built."""
        return self._read(output).get("warnings", [])

    def write(self, output: Path, warnings: list[str]) -> None:
        """Leave the note in a new book."""
        note = {"key": self.key, "strict": self.strict, "warnings": warnings}
        (output / self.NAME).write_text(json.dumps(note), encoding="utf-8")


def _sphinx(
    src: Path, build: Path, output: Path, *, strict: bool, report: Callable, state: _Finished, warnings: list[str]
) -> list[str]:
    """Let Jupyter Book build the mirror into a new folder and put that in the old one's place; its warnings."""
    new = build / "new"
    shutil.rmtree(new, ignore_errors=True)
    command = [sys.executable, "-c", JUPYTER_BOOK, "build", str(src), "--path-output", str(new), "-n"]
    log, start = build / "sphinx.log", time.perf_counter()
    try:
        with log.open("w", encoding="utf-8") as handle:
            code = subprocess.run(
                [*command, *(["-W", "--keep-going"] if strict else [])],
                stdout=handle, stderr=subprocess.STDOUT, env=environment(src),
            ).returncode  # fmt: skip
        found = complaints(log.read_text(encoding="utf-8", errors="replace"), src)
        html = new / "_build" / "html"
        unwritten = [line for line in found if re.search(UNWRITTEN, line)]
        if unwritten:  # Sphinx only warns where it cannot write a style sheet
            raise RuntimeError(f"the pages could not be written: {unwritten[-1]} (all of it: {log})")
        if code or not (html / "index.html").is_file():
            raise RuntimeError(_listing("Jupyter Book failed", found or _tail(log)) + f" (all of it: {log})")
        state.write(html, warnings + found)
        _swap(html, output)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    report(f"  pages built in {time.perf_counter() - start:.1f} s")
    return found


def complaints(log: str, src: Path) -> list[str]:
    """Warnings and errors in Sphinx's output, once each, with paths as in the repository."""
    log = re.sub(r"\x1b\[[0-9;]*m", "", log)
    lines = [line.strip() for line in log.splitlines() if re.search(COMPLAINT, line)]
    return list(dict.fromkeys(line.replace(f"{src}{os.sep}", "") for line in lines))


def _tail(log: Path) -> list[str]:
    """Last line that says something."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip(" =-")]
    return lines[-1:] or ["no message"]


def _swap(html: Path, output: Path) -> None:
    """Two renames: a reader sees the old book or the new one, never a mixture."""
    output.parent.mkdir(parents=True, exist_ok=True)
    old = output.with_name(output.name + ".old")
    if old.exists() and not output.exists():  # an earlier swap was cut short
        old.rename(output)
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        output.rename(old)
    html.rename(output)
    shutil.rmtree(old, ignore_errors=True)

"""From the mirror to finished pages: Jupyter Book builds into a new folder, which then takes the old book's place."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adadp.publishing import provenance
from adadp.publishing.execute import environment

NOTE = "built.json"
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"  # its script may not be on the path
COMPLAINT = r"\b(WARNING|ERROR|CRITICAL|Exception)\b|^\w*Error: "
WORKSHOP = ("_build/new", "_build/src", "_build/nbcache", "adadp", "book", "notebooks")
UNWRITTEN = r"OSError|No space left|File too large|quota exceeded|Permission denied|Failed to copy"


def build_pages(
    src: Path, build: Path, output: Path, *, strict: bool, warnings: list[str], report: Callable[[str], None]
) -> list[str]:
    """Build the mirror ``src`` into ``output``, unless that already is what would come out.

    Args:
        src: the mirror.
        build: folder for what is made on the way, and for Sphinx's log.
        output: the finished book.
        strict: a warning is an error.
        warnings: what executing the notebooks gave; kept with the book.
        report: gets the lines that tell about progress.

    Returns:
        All warnings of this book, old and new.

    Raises:
        RuntimeError: Jupyter Book failed, or could not write; ``output`` is as it was.
    """
    note = _read_note(output)
    key = _key(src)
    if note.get("key") == key and (note["strict"] or not strict):
        report(f"  nothing changed since {output} was built")
        return note["warnings"]
    new, start = build / "new", time.perf_counter()
    shutil.rmtree(new, ignore_errors=True)
    try:
        html, found = _run(src, new, build / "sphinx.log", strict)
        warnings = warnings + found
        (html / NOTE).write_text(json.dumps({"key": key, "strict": strict, "warnings": warnings}), encoding="utf-8")
        swap(html, output)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    report(f"  pages built in {time.perf_counter() - start:.1f} s")
    return warnings


def _key(src: Path) -> str:
    """Digest of everything in the mirror, but for the date."""
    h = hashlib.sha256()
    for path in sorted(p for p in src.rglob("*") if p.is_file()):
        h.update(path.relative_to(src).as_posix().encode() + b"\0")
        h.update(provenance.undated(path).encode() if path.name == provenance.FILE else path.read_bytes())
    return h.hexdigest()


def _read_note(output: Path) -> dict[str, Any]:
    """The note in a finished book that says of what, and how strictly, it was built; empty if there is none."""
    try:
        return json.loads((output / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _run(src: Path, new: Path, log: Path, strict: bool) -> tuple[Path, list[str]]:
    """Run Jupyter Book; the folder of its pages and its warnings."""
    command = [sys.executable, "-c", JUPYTER_BOOK, "build", str(src), "--path-output", str(new), "-n"]
    command += ["-W", "--keep-going"] if strict else []
    with log.open("w", encoding="utf-8") as handle:
        code = subprocess.run(command, stdout=handle, stderr=subprocess.STDOUT, env=environment(src)).returncode
    text = log.read_text(encoding="utf-8", errors="replace")
    html, found = new / "_build" / "html", complaints(text, src)
    unwritten = [line for line in found if re.search(UNWRITTEN, line)]
    if unwritten:  # Sphinx only warns where it cannot write a style sheet
        raise RuntimeError(f"the pages could not be written: {unwritten[-1]} (all of it: {log})")
    if code or not (html / "index.html").is_file():
        last = [line for line in text.splitlines() if line.strip(" =-")][-1:]
        raise RuntimeError(listing("Jupyter Book failed", found or last or ["no message"]) + f" (all of it: {log})")
    return html, found


def complaints(log: str, src: Path) -> list[str]:
    """Warnings and errors in Sphinx's output, once each, with paths as in the repository."""
    log = re.sub(r"\x1b\[[0-9;]*m", "", log)
    lines = [line.strip() for line in log.splitlines() if re.search(COMPLAINT, line)]
    return list(dict.fromkeys(line.replace(f"{src}{os.sep}", "") for line in lines))


def listing(what: str, warnings: list[str]) -> str:
    """One line out of several warnings; all of them are in the log.

    Example:
        >>> listing("it failed", ["a", "b", "c", "d", "e", "f", "g"])
        'it failed (7): a; b; c; d; e; and 2 more'
    """
    more = [f"and {len(warnings) - 5} more"] if len(warnings) > 5 else []
    return f"{what} ({len(warnings)}): " + "; ".join(warnings[:5] + more)


def swap(html: Path, output: Path) -> None:
    """Put ``html`` in the place of ``output`` by renames: a reader sees the old book or the new, never a mixture."""
    output.parent.mkdir(parents=True, exist_ok=True)
    old, new = _aside(output), output.with_name(f".{output.name}.adadp-new")
    for left in (old, new):
        shutil.rmtree(left, ignore_errors=True)
    try:
        shutil.move(html, new)  # copies where `output` is on another disk: that may fail, and touches no old book
        if output.exists():
            output.rename(old)
        new.rename(output)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


def restore(output: Path) -> None:
    """Bring the old book back where `swap` was cut short between its two renames."""
    old = _aside(output)
    if is_book(old) and not output.exists():
        old.rename(output)


def is_book(folder: Path) -> bool:
    """Whether a folder holds a finished book: our note, or Sphinx's (any other web site has an index.html, too)."""
    return (folder / NOTE).is_file() or (folder / ".buildinfo").is_file()


def check_output(root: Path, output: Path) -> None:
    """Refuse a folder whose place the book must not take.

    Raises:
        ValueError: it holds the repository, or something that is no book; it is a file; or the build works there.
    """
    if root.is_relative_to(output):
        raise ValueError(f"output (--output) {output} holds the repository; the book needs a folder of its own")
    if output == root / "_build" or any(output.is_relative_to(root / place) for place in WORKSHOP):
        raise ValueError(f"output (--output) {output} is where the build works or reads; name another or a new folder")
    if output.exists() and not output.is_dir():
        raise ValueError(f"output (--output) {output} is a file; name a folder")
    if output.is_dir() and any(output.iterdir()) and not is_book(output):
        raise ValueError(f"output (--output) {output} holds something that is no book; name another or a new folder")


def _aside(output: Path) -> Path:
    """Where the old book waits while the new one moves in; a name that nothing else has."""
    return output.with_name(f".{output.name}.adadp-old")

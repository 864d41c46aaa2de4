"""Executes one notebook with papermill in a process of its own: ``python -m adadp.publishing.worker``.

A JSON job comes in on standard input, a JSON answer goes out on standard output. A process and not a thread, so that
several notebooks run side by side and Ctrl-C ends kernel and all.
"""

import contextlib
import json
import re
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adadp.publishing import notebook as nbk

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Execute ``job["source"]`` into ``job["target"]``; the answer is empty, or says which cell failed and how.

    The kernel starts in an empty folder: a chapter must not lean on files that happen to lie around.
    """
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError

    target, start = Path(job["target"]), time.perf_counter()
    with tempfile.TemporaryDirectory() as empty:
        try:
            papermill.execute_notebook(
                job["source"], target, parameters=job["parameters"], kernel_name="python3", cwd=empty,
                progress_bar=False, start_timeout=180, execution_timeout=job["timeout"],
            )  # fmt: skip
        except PapermillExecutionError as error:
            return _failure(target, f"{error.ename}: {error.evalue}", "\n".join(error.traceback))
        except Exception as error:  # a dead kernel, a timeout: papermill lets nbclient's own errors through
            return _failure(target, f"{type(error).__name__}: {error}", "")
    nb = nbk.clean(nbk.read(target), job["parameters"])
    nb.metadata["adadp"] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "seconds": round(time.perf_counter() - start, 1)}
    target.write_text(nbformat.writes(nb) + "\n", encoding="utf-8")
    return {}


def _failure(target: Path, message: str, traceback: str) -> dict[str, Any]:
    """Which code cell of the committed notebook it was, and what happened there."""
    message = _COLOUR.sub("", message).strip().splitlines()[0]
    failure: dict[str, Any] = {"error": message, "traceback": _COLOUR.sub("", traceback), "cell": None}
    with contextlib.suppress(OSError, ValueError):  # no notebook, or half of one, was left behind
        for number, cell in enumerate(nbk.code_cells(nbk.read(target)), start=1):
            if cell.metadata.get("papermill", {}).get("start_time"):  # the last one that was begun
                failure |= {"cell": number, "source": cell.source}
    return failure


if __name__ == "__main__":
    answer = run(json.load(sys.stdin))
    print("\n" + json.dumps(answer))

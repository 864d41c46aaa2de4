"""Execute the notebooks of the book, side by side, and only those that changed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adadp.publishing import inputs
from adadp.publishing import notebook as nbk

KEEP = 8  # executed versions of a notebook that stay in the cache
TIMEOUTS = {"quick": 600, "paper": None}  # seconds a cell; a paper profile may train for hours


@dataclass(frozen=True)
class Page:
    """An executed notebook: ``name`` below the repository, the ``path`` it was executed into, what went wrong."""

    name: str
    path: Path
    seconds: float | None = None  # None: unchanged, taken from the cache
    failure: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """A failure in two parts: one line that says where, then the traceback."""
        where = f", code cell {self.failure['cell']}" if self.failure.get("cell") else ""
        return f"{self.name}{where}: {self.failure.get('error', 'executed')}"


class Executor:
    """Runs worker processes; `close` ends those that still run (Ctrl-C)."""

    def __init__(self, root: Path, cache: Path, *, timeout: int | None, use_cache: bool, report: Callable):
        self.root, self.cache, self.timeout, self.use_cache, self.report = root, cache, timeout, use_cache, report
        self._running: list[subprocess.Popen] = []
        self._closed = False

    def page(self, source: Path, surroundings: str, parameters: dict[str, Any]) -> Page:
        """Execute one notebook, or take it from the cache."""
        name = source.relative_to(self.root).as_posix()
        key = self.cache / f"{source.stem}-{inputs.digest(source, surroundings, parameters)}.ipynb"
        if self.use_cache and key.is_file():
            os.utime(key)  # the cache forgets what was used longest ago
            self.report(f"  {name}: unchanged")
            return Page(name, key)
        start = time.perf_counter()
        part = key.with_suffix(f".{os.getpid()}.part")
        failure = self._work({"source": str(source), "target": str(part), "parameters": parameters})
        seconds = time.perf_counter() - start
        if failure:
            part.unlink(missing_ok=True)
            self.report(f"  {name}: FAILED after {seconds:.1f} s")
            return Page(name, key, seconds, failure)
        part.replace(key)
        self._forget(source.stem)
        self.report(f"  {name}: executed in {seconds:.1f} s")
        return Page(name, key, seconds)

    def _work(self, job: dict[str, Any]) -> dict[str, Any]:
        """Hand one job to a worker process and wait for its answer."""
        if self._closed:
            return {"error": "interrupted"}
        process = subprocess.Popen(
            [sys.executable, "-m", "adadp.publishing.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=environment(self.root), start_new_session=True,
        )  # fmt: skip
        self._running.append(process)
        out, err = process.communicate(json.dumps(job | {"timeout": self.timeout}))
        self._running.remove(process)
        try:
            return json.loads(out.strip().splitlines()[-1])
        except (IndexError, ValueError):
            tail = (err.strip().splitlines() or ["no message"])[-1]
            return {"error": f"the process that executes it ended ({process.returncode}): {tail}", "traceback": err}

    def _forget(self, stem: str) -> None:
        """Keep the newest versions of a notebook only."""
        for old in sorted(self.cache.glob(f"{stem}-*.ipynb"), key=lambda p: p.stat().st_mtime)[:-KEEP]:
            old.unlink(missing_ok=True)

    def close(self) -> None:
        """End what still runs; the workers take their kernels along."""
        self._closed = True
        for process in list(self._running):
            process.terminate()


def environment(root: Path) -> dict[str, str]:
    """Environment of what is started: this repository's package, one thread, no colours, no bytecode."""
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    ours = {
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "JUPYTER_PREFER_ENV_PATH": "1",  # this environment's kernel, not one of the same name in the home folder
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "NO_COLOR": "1",
        "ADADP_PROGRESS": "0",  # bars of adadp.train would stay on the page
        "ADADP_RESULTS": "",  # the book is drawn from the results that it publishes, the package's
    }
    return {"OMP_NUM_THREADS": "1"} | os.environ | ours


def execute(
    notebooks: Iterable[Path],
    *,
    root: Path,
    cache: Path,
    parameters: dict[str, Any],
    workers: int = 2,
    use_cache: bool = True,
    report: Callable[[str], None] = print,
) -> list[Page]:
    """Execute notebooks with papermill, ``workers`` at a time, and return their pages in the order given.

    Args:
        notebooks: committed notebooks below ``root``; they are only read.
        root: the repository; its ``adadp`` is the package that the notebooks import.
        cache: folder of executed notebooks, kept by digest (see `adadp.publishing.inputs`).
        parameters: values of ``profile``, ``seed`` and ``device``.
        workers: processes side by side.
        use_cache: False executes everything anew.
        report: gets a line for every notebook when it is done.

    Returns:
        One page a notebook; a page whose ``failure`` is not empty was not executed to its end.

    Raises:
        ValueError: a notebook without a proper parameters cell.
    """
    sources = list(notebooks)
    for source in sources:
        nbk.parameters(nbk.read(source), source.relative_to(root).as_posix())
    cache.mkdir(parents=True, exist_ok=True)
    around = inputs.surroundings(root, parameters["device"])
    executor = Executor(root, cache, timeout=TIMEOUTS[parameters["profile"]], use_cache=use_cache, report=report)
    pool = ThreadPoolExecutor(max_workers=max(1, workers))
    try:
        return list(pool.map(lambda source: executor.page(source, around, parameters), sources))
    finally:
        executor.close()
        pool.shutdown(cancel_futures=True)

"""Run launch copies of all notebooks, each alone in an empty folder: python3 .ci/colab.py REPOSITORY COMMIT

For Colab's container image (the weekly workflow); needs nothing but what is installed there.
"""

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def execute(path: Path, kernel: str = "python3", last: str = ""):
    """The notebook after its execution in its own folder; ``last`` is the source of one more cell."""
    import nbformat
    from nbclient import NotebookClient

    nb = nbformat.read(path, as_version=4)
    if last:
        nb.cells.append(nbformat.v4.new_code_cell(last))
    NotebookClient(nb, kernel_name=kernel, timeout=1200, resources={"metadata": {"path": str(path.parent)}}).execute()
    return nb


def main(repository: str, commit: str, names: list[str] | None = None, kernel: str = "python3") -> int:
    """Execute the copies; returns how many failed."""
    sys.path.insert(0, str(ROOT))
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    from adadp.publishing import launch, toc

    pages = (p for p in toc.pages(ROOT) if p.suffix == ".ipynb")
    failed = 0
    for name in names if names is not None else [p.relative_to(ROOT).as_posix() for p in pages]:
        start, word = time.perf_counter(), "done"
        with tempfile.TemporaryDirectory() as alone:
            (copy,) = launch.write_copies(ROOT, Path(alone), [name], repository, commit)
            copy = copy.rename(Path(alone) / copy.name)
            (Path(alone) / Path(name).parent).rmdir()
            try:
                execute(copy, kernel)
            except (CellExecutionError, DeadKernelError, TimeoutError) as error:
                failed, word = failed + 1, "FAILED"
                print(error)
        print(f"{name}: {word} in {time.perf_counter() - start:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    raise SystemExit(min(main(*sys.argv[1:]), 1))

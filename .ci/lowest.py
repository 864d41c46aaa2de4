"""Test the package with the oldest releases that pyproject.toml allows (`make lowest`): python3.11 .ci/lowest.py FOLDER

Only what computes and draws: the Sphinx stack, which turns notebooks into pages, is pinned by constraints.txt. The
environment is made in FOLDER and used again the next time. It takes the oldest Python that is supported.
"""

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("jupyter-book", "sphinx-mathjax-offline", "sphinx-proof")
TOOLS = ("pytest>=8", "pytest-timeout", "pytest-xdist", "hypothesis", "mpmath")
TESTS = (
    "accounting", "arguments", "auditing", "calibration", "checkpoint", "claims", "cli", "clipping", "columns", "data",
    "experiments", "federated*", "figures", "lazy", "locks", "models", "moments", "optimizer*", "privacy_statement",
    "private*", "reference", "results", "rounding", "sampling", "splits", "step_size", "table", "training", "widgets",
)  # fmt: skip


def oldest(requirement: str) -> tuple[str, str]:
    """Name, and the series of releases in which a requirement's lower bound lies."""
    name, low = re.match(r"([\w-]+)>=([\w.]+)", requirement).groups()
    return name, f"{low}.*"


def main(folder: Path) -> int:
    """Install and test; returns pytest's exit status."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = project["requires-python"].removeprefix(">=")
    if sys.version_info[:2] != tuple(map(int, python.split("."))):
        raise SystemExit(f"the oldest releases go with Python {python}: make PYTHON=python{python} lowest")
    wanted = [*project["dependencies"], *project["optional-dependencies"]["book"]]
    pins = [f"{name}=={series}" for name, series in map(oldest, wanted) if name not in PAGES]
    if not folder.exists():
        venv.create(folder, with_pip=True)
    command = folder / "bin" / "python"
    subprocess.run([command, "-m", "pip", "install", "-qq", *pins, *TOOLS], check=True)
    files = sorted({f for name in TESTS for f in (ROOT / "tests").glob(f"test_{name}.py") if "opacus" not in f.name})
    tests = [command, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--disable-warnings", *files]
    chosen = ["-m", "not slow and not book and not engine and not browser"]
    return subprocess.run([*tests, *chosen], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    raise SystemExit(main(Path(sys.argv[1])))

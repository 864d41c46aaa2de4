"""What an executed page depends on, as one digest: where it changed the page is executed again, else it is kept."""

import hashlib
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from adadp import git
from adadp.folders import data_folder

VERSIONS = (
    "torch", "torchvision", "numpy", "scipy", "matplotlib", "pandas", "dp-accounting", "mlxtend", "joblib", "flwr",
    "opacus", "ipywidgets", "ipython", "ipykernel", "papermill",
)  # fmt: skip

COMPUTED = {"checkpoints", "locks", "features", "cases", "pilot", "quick"}  # folders of the cache
COMPUTED |= {"mnist-5k-bundled.npz"}  # and a file: the bundled images in a form that is read faster


def digest(notebook: Path, surroundings: str, parameters: dict) -> str:
    """Digest of one executed page: the notebook itself, its `surroundings` and the values papermill gives it."""
    h = hashlib.sha256(notebook.read_bytes())
    h.update(surroundings.encode())
    h.update(json.dumps(parameters, sort_keys=True).encode())
    return h.hexdigest()[:20]


def surroundings(root: Path, device: str) -> str:
    """Digest of what all notebooks share: the package's code and stored results, versions, device and data.

    Args:
        root: the repository.
        device: "cpu", "cuda" or "auto"; "auto" is what this machine has.
    """
    h = hashlib.sha256()
    for path in package_files(root):
        h.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    facts = [sys.version_info[:2], [_version(p) for p in VERSIONS], device_name(device), data_files(data_folder())]
    facts += [rules_written(root)]
    h.update(json.dumps(facts).encode())
    return h.hexdigest()


def package_files(root: Path) -> list[Path]:
    """The package's own files: Python, stored results, what figures bring along; no bytecode."""
    return sorted(p for p in (root / "adadp").rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def data_files(folder: Path) -> list[tuple[str, int, int]]:
    """(name, bytes, time of change) of every data file: cheaper than a checksum of 200 MB at each build.

    What is only kept there because data and cache share a folder is no data.
    """
    inside = ((p, p.relative_to(folder).parts) for p in folder.rglob("*") if p.is_file())
    files = sorted(p for p, parts in inside if not COMPUTED & set(parts) and not parts[-1].startswith("."))
    return [(p.relative_to(folder).as_posix(), p.stat().st_size, p.stat().st_mtime_ns) for p in files]


def rules_written(root: Path) -> str:
    """The last commit of the claims' rules, as far as the history goes back: pages name commits of rules."""
    last = git.answer(root, "log", "-1", "--format=%H", "--", "adadp/experiments/*claims.py")
    return f"{last} {git.answer(root, 'rev-parse', '--is-shallow-repository')}"


def device_name(device: str) -> str:
    """What "auto" stands for here: "cpu", or the name of the first GPU."""
    if device == "cpu":
        return "cpu"
    try:
        import torch
    except ImportError:
        return "cpu"
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"


def _version(package: str) -> str:
    """Version of an installed package, or "absent"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"

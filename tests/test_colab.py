"""Colab, simulated: its published versions, one launch copy alone in an empty folder, executed from outside.

The environment is kept below ``_build/colab`` by what it is made of; making it takes a minute or two, nearly all of it
PyTorch. What the first cell of a copy installs is taken out again, so that every test starts from Colab's own list.
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

import pytest

from adadp.publishing import launch

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / ".ci" / "colab.py"  # what the weekly workflow runs in Colab's own image
VERSIONS = ROOT / ".ci" / "colab-versions.txt"
NOTEBOOKS = ["notebooks/choosing_tol.ipynb"]  # trains, has sliders, needs what Colab lacks; the weekly run takes all
AT_HOME = """import sys, types
sys.modules["google.colab"] = types.ModuleType("google.colab")"""
ASK = """import sys, ipywidgets, torch
print("versions", sys.version.split()[0], torch.__version__.split("+")[0], ipywidgets.__version__)"""


def pins() -> dict[str, str]:
    """Colab's list: name -> version."""
    lines = VERSIONS.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def python_313() -> str:
    """A Python 3.13 of this machine, else the running one."""
    candidates = [shutil.which("python3.13"), *sorted(Path.home().glob(".pyenv/versions/3.13*/bin/python"))]
    for path in map(str, filter(None, candidates)):
        if subprocess.run([path, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            return path
    warnings.warn(f"no Python 3.13 here: Colab is simulated with {sys.version.split()[0]}", stacklevel=2)
    return sys.executable


def pip(python: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run pip in an environment."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "PIP_QUIET"}  # quiet, pip lists nothing
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def frozen(python: Path) -> dict[str, str]:
    """What is installed: name -> version or source."""
    lines = pip(python, "list", "--format", "json").stdout
    return {item["name"].lower(): item["version"] for item in json.loads(lines)}


def make(folder: Path, python: str) -> None:
    """Fill an environment with Colab's versions; without its torch, the running environment lends its own."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    inside = folder / "bin" / "python"
    wanted = [f"{name}=={version}" for name, version in pins().items()]
    done = pip(inside, "install", "--quiet", "--no-compile", *wanted)
    if done.returncode == 0:
        return
    reason = done.stderr[-300:]
    warnings.warn(f"Colab's torch can't be installed, this environment lends its own: {reason}", stacklevel=2)
    shutil.rmtree(folder)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    small = [w for w in wanted if not w.startswith("torch")]
    done = pip(inside, "install", "--quiet", "--no-compile", *small)
    assert done.returncode == 0, done.stderr[-2000:]
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")


@pytest.fixture(scope="module")
def colab():
    """The Python of an environment with Colab's versions."""
    python = python_313()
    version = subprocess.run([python, "-V"], capture_output=True, text=True).stdout
    key = hashlib.sha256((version + VERSIONS.read_text(encoding="utf-8")).encode()).hexdigest()[:12]
    folder = ROOT / "_build" / "colab" / key
    if not (folder / "frozen.json").is_file():
        shutil.rmtree(folder.parent, ignore_errors=True)
        make(folder, python)
        (folder / "frozen.json").write_text(json.dumps(frozen(folder / "bin" / "python")))
    return folder / "bin" / "python"


@pytest.fixture
def fresh(colab):
    """The same, with nothing in it but what Colab has; gives what that is."""
    before = json.loads((colab.parents[1] / "frozen.json").read_text())
    if more := sorted(set(frozen(colab)) - set(before)):
        pip(colab, "uninstall", "--yes", *more)
    assert frozen(colab) == before
    return before


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A git repository with the files of this one as they are now, and its commit."""
    folder = tmp_path_factory.mktemp("repository") / "adadp"
    listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True).stdout
    for name in filter(lambda name: (ROOT / name).is_file(), listed.splitlines()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "as it is now"]):
        subprocess.run([*git, *command], check=True)
    done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return f"file://{folder}", done.stdout.strip()


@pytest.fixture
def kernel(colab, tmp_path, monkeypatch):
    """Name of a kernel in that environment, which thinks it is on Colab and does not see this repository."""
    spec = tmp_path / "jupyter" / "kernels" / "colab"
    spec.mkdir(parents=True)
    argv = [str(colab), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Colab", "language": "python"}))
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00-colab.py").write_text(AT_HOME)
    for name in ("PYTHONPATH", "ADADP_DATA", "MPLBACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # a debugger's complaint about Python 3.13
    return "colab"


def execute(path: Path, kernel: str):
    """The notebook after its execution in its own folder, by the weekly workflow's own function."""
    spec = importlib.util.spec_from_file_location("colab_script", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.execute(path, kernel, ASK)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_launch_copy_runs_alone_and_changes_nothing(name, fresh, colab, kernel, repository, tmp_path):
    (copy,) = launch.write_copies(ROOT, tmp_path / "copies", [name], *repository)
    alone = tmp_path / "content"
    alone.mkdir()
    path = shutil.copy2(copy, alone)
    nb = execute(Path(path), kernel)
    outputs = [output for cell in nb.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    after = frozen(colab)
    added = set(after) - set(fresh)
    assert {key: after[key] for key in fresh} == fresh, "something that was installed has changed"
    assert "adadp" in added and f"installed besides: {', '.join(sorted(added - {'adadp'})) or 'nothing'}" in text
    said = re.search(r"versions (\S+) (\S+) (\S+)", text).groups()
    print(f"Python {said[0]}, torch {said[1]}, ipywidgets {said[2]}")
    assert said[2] == pins()["ipywidgets"]
    assert said[1] == pins()["torch"] or list(colab.parents[1].glob("lib/*/site-packages/lent.pth"))
    widgets = [o for o in outputs if "application/vnd.jupyter.widget-view+json" in o.get("data", {})]
    assert widgets, "the sliders must come as a widget, which recomputes"
    assert all("text/html" not in o.data for o in widgets)
    assert [p.name for p in alone.iterdir()] == [copy.name], "it left files behind"

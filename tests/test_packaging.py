"""The files that make an environment agree: pyproject.toml, constraints.txt, environment.yml, Makefile, CI."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
COMPUTING = {"torch", "torchvision", "numpy", "scipy", "scikit-learn", "mlxtend", "joblib", "triton", "dp-accounting"}


def pins() -> dict[str, Version]:
    """What constraints.txt fixes."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==\S+", line) for line in lines)
    return {name: Version(version) for name, version in (line.split("==") for line in lines)}


def test_pins_lie_inside_the_ranges():
    fixed = pins()
    for text in [*PROJECT["dependencies"], *(r for extra in EXTRAS.values() for r in extra)]:
        requirement = Requirement(text)
        if requirement.name in fixed:
            assert fixed[requirement.name] in requirement.specifier, f"{text}: run `make constraints`"


def test_the_books_stack_is_pinned_and_what_computes_is_free():
    fixed = pins()
    direct = {Requirement(r).name for r in EXTRAS["book"]}
    assert direct - COMPUTING <= set(fixed), "run `make constraints`"
    assert {"sphinx", "myst-nb", "myst-parser", "docutils", "sphinx-book-theme", "pydata-sphinx-theme"} <= set(fixed)
    assert not COMPUTING & set(fixed)
    assert not [name for name in fixed if name.startswith(("nvidia", "cuda"))], "differs from machine to machine"


def test_ranges_have_one_home():
    """A second list of versions would drift: everything else points to pyproject.toml."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in hooks["repos"]] == ["local"]
    assert not list(ROOT.glob("requirements*.txt")) and not (ROOT / "setup.py").exists()


def test_environment_file_points_to_the_project():
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    python = next(d for d in content["dependencies"] if isinstance(d, str) and d.startswith("python"))
    assert Version(python.split("=")[1] + ".0") in SpecifierSet(PROJECT["requires-python"])
    (pip,) = [d["pip"] for d in content["dependencies"] if isinstance(d, dict)]
    assert pip == ["-c constraints.txt", "-e .[book]"]


def test_help_lists_every_target():
    told = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {line.split()[0] for line in told.splitlines()}
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony and names == set(phony[1].split())
    assert {"install", "book", "serve", "test", "test-all", "lint", "results", "bench", "clean"} <= names


def test_wrong_python_is_refused_by_name(tmp_path):
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    command = ["make", "-s", "install", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0 and "Python 3.11 to 3.13 is needed" in done.stdout
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("name", [".ci/run", ".ci/publish"])
def test_scripts_are_executable_and_parse(name):
    assert os.access(ROOT / name, os.X_OK)
    subprocess.run(["bash", "-n", name], cwd=ROOT, check=True)
    assert "set -euo pipefail" in (ROOT / name).read_text()

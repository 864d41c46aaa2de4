"""Every example in a docstring runs, and every public name has a docstring that names its arguments."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest
import torch

import adadp

MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(adadp.__path__, "adadp.")
    if not m.name.endswith(("__main__", "sphinx_extension"))
)
PUBLIC = [name for name in adadp._HOME if callable(getattr(adadp, name))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path))
    torch.manual_seed(0)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert failed == 0


def test_the_public_names_have_examples():
    finder = doctest.DocTestFinder(recurse=False)
    without = [n for n in PUBLIC if not any(t.examples for t in finder.find(getattr(adadp, n), n))]
    assert not without, f"no example in the docstring of {without}"


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_and_signature_name_the_same_arguments(name):
    thing = getattr(adadp, name)
    parameters = [p for p in inspect.signature(thing).parameters if p not in ("self", "args", "kwargs")]
    text = inspect.getdoc(thing) or ""
    assert text, f"{name} has no docstring"
    missing = [p for p in parameters if not re.search(rf"\b{p}\b", text)]
    assert not missing, f"docstring of {name} does not name {missing}"

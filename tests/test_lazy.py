"""Public names are there before and after they are loaded, and nothing else is."""

import importlib
import subprocess
import sys

import pytest

import adadp

PACKAGES = ("adadp", "adadp.privacy", "adadp.federated")
FIRST_USE = """
import importlib, sys
package = importlib.import_module({package!r})
before = len(sys.modules)
assert {name!r} in dir(package) and {name!r} in package.__all__ and len(sys.modules) == before
value = getattr(package, {name!r})
assert vars(package)[{name!r}] is value
"""


@pytest.mark.parametrize(
    ("package", "name"),
    [
        *(("adadp", name) for name in ("evaluate", "AdaptThenDecay", "Dataset", "cross_entropy", "tuned_epsilon")),
        *(("adadp", name) for name in ("training", "rounding", "step_size", "suggested_tol")),
        ("adadp.privacy", "tuned_epsilon"),
        ("adadp.federated", "client_statements"),
    ],
)
def test_a_name_can_be_used_first_thing(package, name):
    subprocess.run([sys.executable, "-c", FIRST_USE.format(package=package, name=name)], check=True)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_listed(package):
    module = importlib.import_module(package)
    assert sorted(dir(module)) == sorted(module.__all__) and len(set(module.__all__)) == len(module.__all__)
    assert set(module._HOME) <= set(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    exec(f"from {package} import *", names := {})
    assert set(module.__all__) <= set(names)


@pytest.mark.parametrize("package", PACKAGES)
def test_other_names_raise_as_in_any_module(package):
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"^module '{package}' has no attribute 'no_such_name'$"):
        _ = module.no_such_name
    with pytest.raises(ImportError, match="no_such_name"):
        exec(f"from {package} import no_such_name")
    assert not hasattr(module, "__wrapped__")


def test_a_name_is_the_one_of_its_home():
    from adadp.data import Dataset
    from adadp.evaluation import evaluate
    from adadp.privacy.tuning import tuned_epsilon

    assert (adadp.Dataset, adadp.evaluate, adadp.tuned_epsilon) == (Dataset, evaluate, tuned_epsilon)

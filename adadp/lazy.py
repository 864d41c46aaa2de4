"""Public names that are loaded when they are first used, so that importing a package costs next to nothing."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module


def names(package: str, home: Mapping[str, str], modules: Iterable[str] = ()) -> tuple[Callable, Callable, list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package (PEP 562).

    Args:
        package: its ``__name__``.
        home: public name -> the module below the package that owns it.
        modules: modules below the package that are public themselves.

    >>> load, listed, public = names("adadp", {"Controller": "step_size"}, ["step_size"])
    >>> load("Controller"), public
    (<class 'adadp.step_size.Controller'>, ['Controller', 'step_size'])
    """
    modules = frozenset(modules)
    public = sorted({*home, *modules})

    def load(name: str):
        """The public name, which from now on is an ordinary attribute of the package."""
        if name in home:
            value = getattr(import_module(f"{package}.{home[name]}"), name)
        elif name in modules:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: public, public

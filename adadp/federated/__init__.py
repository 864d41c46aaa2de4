"""Federated averaging with adaptive clients: the splits of the data, and the rounds."""

from importlib import import_module

_HOME = {
    "split_by_groups": "splits",
    "split_dirichlet": "splits",
    "split_iid": "splits",
    "ClientReport": "client",
    "client_generator": "client",
    "client_update": "client",
    "average": "averaging",
    "FederatedAveraging": "rounds",
    "Task": "task",
    "load_task": "task",
    "NoUsableClient": "coordinator",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    """Load a public name from the module that owns it."""
    if name not in _HOME:
        raise AttributeError(f"module 'adadp.federated' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"adadp.federated.{_HOME[name]}"), name)
    return value

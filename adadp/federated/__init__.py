"""Federated averaging with adaptive clients: the splits of the data, and the rounds."""

from adadp import lazy

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
    "client_statements": "statements",
}
__getattr__, __dir__, __all__ = lazy.names(__name__, _HOME)

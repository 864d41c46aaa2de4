"""The server of a federation."""

from adadp.federated.flower.server import app

__all__ = ["app"]

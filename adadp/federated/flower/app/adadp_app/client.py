"""A client of a federation."""

from adadp.federated.flower.clients import app

__all__ = ["app"]

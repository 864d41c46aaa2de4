"""Federated averaging with real clients, on Flower (extra ``federated``): it carries messages, and keeps who is there.

Nothing here trains or averages: :mod:`~adadp.federated.flower.clients` unpacks a message, calls
:class:`adadp.federated.local.LocalTraining`, and packs the answer; :mod:`~adadp.federated.flower.strategy` hands
the answers to :class:`adadp.federated.coordinator.Coordinator`. So the weights are those of a loop in one process.
"""

"""Federated averaging with adaptive clients."""

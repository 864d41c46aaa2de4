"""Shared by every test: one torch thread (more than the free cores is ten times slower), and a private cache."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("adadp", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("adadp")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    yield


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder for one test."""
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"

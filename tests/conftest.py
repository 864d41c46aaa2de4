"""Shared by every test: one torch thread (more than the free cores is ten times slower), and a private cache."""

import os
import signal
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib
import pytest
import torch
from hypothesis import settings
from torch._subclasses.fake_tensor import FakeTensorMode

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: processes of tests would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
settings.register_profile("adadp", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("adadp")


def pytest_collection_modifyitems(items):
    """Whoever asks for the book first waits for all of its notebooks, which takes its time on a slow machine."""
    for item in items:
        if {"executed", "built"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    yield


@pytest.fixture(autouse=True)
def _style_of_ones_own():
    """No test leaves matplotlib in another style than it found."""
    before = matplotlib.rcParams.copy()
    yield
    dict.update(matplotlib.rcParams, before)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder for one test."""
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fake_card():
    """A card that is made believe: in it, tensors have shapes but no values. Older releases ask the driver for it."""
    with FakeTensorMode() as mode:
        try:
            torch.empty(1, device="cuda").copy_(torch.empty(1, device="cuda"))
        except RuntimeError:
            if torch.__version__ < "2.10":  # which compares numbers
                pytest.skip("this torch makes no card believe where there is none")
            raise
    return mode


ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def executed():
    """Every notebook of the book, executed as `make book` does (and shared with it): a list of pages, failed or not."""
    from adadp.publishing import toc
    from adadp.publishing.execute import execute
    from adadp.publishing.mirror import lock

    notebooks = [p for p in toc.pages(ROOT) if p.suffix == ".ipynb"]
    parameters = {"profile": "quick", "seed": 0, "device": "auto"}
    with lock(ROOT / "_build", print):
        return execute(notebooks, root=ROOT, cache=ROOT / "_build" / "nbcache", parameters=parameters)


@pytest.fixture(scope="session")
def book(executed):
    """Folder of the real book, built strictly: not `make book`'s own, which may be of another profile."""
    from adadp.publishing.build import build_book

    return build_book(ROOT, strict=True, output=ROOT / "_build" / "tested").parent

"""Atomic writes and checkpoints that are whole or refused."""

import errno
import os

import numpy as np
import pytest
import torch

from adadp import checkpoint


def test_write_atomic_replaces_text_and_bytes(tmp_path):
    path = tmp_path / "a" / "b.txt"
    checkpoint.write_atomic(path, "one")
    checkpoint.write_atomic(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["b.txt"]


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failure):
    path = tmp_path / "result.json"
    checkpoint.write_atomic(path, "old")

    def fail(*_):
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(failure)):
        checkpoint.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_link_stays_a_link_and_what_it_leads_to_is_written(tmp_path):
    real, link = tmp_path / "disk" / "real.json", tmp_path / "link.json"
    checkpoint.write_atomic(real, "old")
    link.symlink_to(real)
    checkpoint.write_atomic(link, "new")
    assert link.is_symlink() and real.read_text() == "new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["disk", "link.json", "real.json"]


def test_checkpoint_round_trip_is_exact(tmp_path):
    state = {"w": torch.randn(3, 2), "n": 3, "rows": [{"lr": 0.1, "error": float("inf")}], "rng": torch.get_rng_state()}
    checkpoint.save(tmp_path / "c.pt", state)
    back = checkpoint.load(tmp_path / "c.pt")
    assert torch.equal(back["w"], state["w"]) and torch.equal(back["rng"], state["rng"])
    assert back["rows"] == state["rows"] and back["n"] == 3


def test_a_truncated_or_foreign_checkpoint_is_named(tmp_path):
    path = tmp_path / "c.pt"
    checkpoint.save(path, {"w": torch.randn(1000)})
    whole = path.read_bytes()
    for bad in (whole[: len(whole) // 2], b"", b"not a checkpoint"):
        path.write_bytes(bad)
        with pytest.raises(RuntimeError, match=r"c\.pt"):
            checkpoint.load(path)
    torch.save([1, 2], path)
    with pytest.raises(RuntimeError, match=r"c\.pt"):
        checkpoint.load(path)


class _Opens:
    """A pickle that would make a file if it were trusted."""

    def __reduce__(self):
        return (open, (os.environ["TRAP"], "w"))


def test_code_in_a_checkpoint_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAP", str(tmp_path / "trap"))
    torch.save({"w": _Opens()}, tmp_path / "c.pt")
    with pytest.raises(RuntimeError, match=r"c\.pt"):
        checkpoint.load(tmp_path / "c.pt")
    assert not (tmp_path / "trap").exists()


def test_a_missing_checkpoint_is_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "none.pt")


def test_numbers_of_numpy_are_stored_as_numbers(tmp_path):
    state = {"groups": [{"lr": np.float64(0.1), "betas": (np.float32(0.5), 1)}], "by": {np.int64(3): np.bool_(True)}}
    checkpoint.save(tmp_path / "c.pt", state)
    back = checkpoint.load(tmp_path / "c.pt")
    assert back == {"groups": [{"lr": 0.1, "betas": (0.5, 1)}], "by": {3: True}}
    assert type(back["groups"][0]["lr"]) is float and type(back["groups"][0]["betas"]) is tuple


def test_what_could_not_be_read_again_is_refused_when_it_is_written(tmp_path):
    checkpoint.save(tmp_path / "c.pt", {"n": 1})
    with pytest.raises(TypeError, match="tensors, numbers, strings"):
        checkpoint.save(tmp_path / "c.pt", {"n": 2, "callback": np.zeros(3)})
    assert checkpoint.load(tmp_path / "c.pt") == {"n": 1}, "the older one is still there"

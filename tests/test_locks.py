"""One holder at a time, also after a kill, and drives that have no locks."""

import errno
import subprocess
import sys
import time

import pytest

from adadp.locks import locked

HOLD = """
import sys, time
from pathlib import Path
from adadp.locks import locked
with locked(Path(sys.argv[1]), wait=True):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_holder_lets_go(tmp_path):
    path = tmp_path / "folder" / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with locked(path, wait=False) as mine:
            assert not mine
    finally:
        holder.kill()
        holder.wait()
    started = time.monotonic()
    with locked(path, wait=True) as mine, locked(path, wait=False) as another:
        assert mine and not another
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(("code", "goes_on"), [(errno.ENOLCK, True), (errno.EOPNOTSUPP, True), (errno.EIO, False)])
def test_a_drive_without_locks_is_used_without(tmp_path, monkeypatch, code, goes_on):
    def refuse(file, kind):
        raise OSError(code, "no")

    monkeypatch.setattr("fcntl.flock", refuse)
    if goes_on:
        with locked(tmp_path / "lock", wait=False):
            pass
    else:
        with pytest.raises(OSError, match="no"), locked(tmp_path / "lock", wait=False):
            pass

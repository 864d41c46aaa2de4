"""Folders that runs write to, and locks that keep two runners off the same run."""

import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path

from adadp.checkpoint import write_atomic
from adadp.folders import cache_folder
from adadp.locks import locked
from adadp.readers import reason

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
ROOM = 2**16  # bytes: a file of a few kilobytes may still fit where nothing else does
ADVICE = "make room, or set ADADP_CACHE to another folder"


def check_writable(place: Path) -> None:
    """Refuse folders that cannot be written to before anything is computed.

    Args:
        place: where results will lie; the cache folder is tried as well.

    Raises:
        RuntimeError: results, or checkpoints and locks, have no place; the message names the folder.
    """
    for folder, advice in ((place, "choose another --folder or set ADADP_CACHE"), (cache_folder(), ADVICE)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / f".writable-{os.getpid()}", bytes(ROOM))
            (folder / f".writable-{os.getpid()}").unlink()
        except OSError as error:
            raise RuntimeError(f"{folder} cannot be written to ({reason(error)}); {advice}") from error


def stop_if_full(error: BaseException, folder: Path) -> None:
    """Raise where an error says that a disk is full: what comes next would fail too, after as long a computation.

    Raises:
        RuntimeError: it is; the message names the folder.
    """
    if getattr(error, "errno", None) in FULL:
        text = f"{folder} cannot be written to ({reason(error)}); {ADVICE}, and start again: finished runs are kept"
        raise RuntimeError(text) from error


def cache(name: str) -> Path:
    """A folder below the cache folder, made when it is missing."""
    folder = cache_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def lock(name: str) -> AbstractContextManager[bool]:
    """Whether this process alone holds the lock of that name."""
    return locked(cache("locks") / f"{name}.lock", wait=False)

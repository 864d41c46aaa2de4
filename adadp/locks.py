"""Files that one process holds at a time; the system lets go of them when the process dies, however it does."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # some mounted drives have none


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a file of that name for oneself. The file stays behind: removing it would let two processes hold it.

    Where the system or the drive has no locks, nothing is held: two processes may then do the same work.

    Args:
        path: made, with its folder, where it is missing.
        wait: for another process that holds it.

    Yields:
        whether it is held; False only where another process holds it and ``wait`` is False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield True
        return
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            mine = True
        except BlockingIOError:
            mine = False
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            mine = True
        yield mine

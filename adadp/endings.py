"""How a program meets its surroundings: SIGTERM takes Ctrl-C's way out, so that what it started ends, too; output goes
wherever there is a place for it."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextlib.contextmanager
def termination_raised() -> Iterator[None]:
    """While this is open, SIGTERM raises :class:`Terminated`; by default it would leave child processes running.

    Outside the main thread, where Python allows no handlers, nothing changes.
    """

    def terminate(number, frame):
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def writable_streams() -> None:
    """Let output that has no place go nowhere (``>&-``), and write in ASCII what the place's encoding does not know."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure") and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")

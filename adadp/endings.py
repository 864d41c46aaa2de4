"""How a program is ended from outside: SIGTERM takes Ctrl-C's way out, so that what it started ends, too."""

import contextlib
import signal
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

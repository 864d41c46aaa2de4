"""Terminals on the page *Real clients with Flower*: commands that were run, and what they printed.

``python -m benchmarks.real_clients --out adadp/figures/measured`` runs them all anew and stores what it saw.
"""

import textwrap

from adadp.figures.speed import stored

SESSIONS = ("in_process", "one_machine", "several", "resumed", "secured")
WIDTH = 76  # characters of a line; longer ones go on in the next, indented


def terminal(session: str, command: str, *, most: int = 12) -> str:
    """One terminal of a stored session as text: the command, what it printed, and its exit code if that is not 0.

    Args:
        session: one of ``SESSIONS``.
        command: a part of the command; the first that has it is taken, or the last if ``"...last "`` comes before.
        most: lines at most; the middle of longer ones is left out, and that is said.

    Raises:
        ValueError: there is no such command in it.

    >>> print(terminal("in_process", "quick").splitlines()[0])
    $ adadp federated run quick --rounds 5 --in-process --output one
    """
    last = command.startswith("...last ")
    part = command.removeprefix("...last ")
    found = [shown for shown in stored("real_clients")["sessions"][session] if part in shown["command"]]
    if not found:
        raise ValueError(f"no command of session {session!r} holds {part!r}")
    shown = found[-1 if last else 0]
    lines = shown["lines"]
    if len(lines) > most:
        half = most // 2
        lines = [*lines[:half], f"[{len(lines) - 2 * half} lines]", *lines[-half:]]
    code = [f"(exit code {shown['code']})"] if shown["code"] else []
    wrapped = [
        textwrap.fill(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        for line in [f"$ {shown['command']}", *lines]
    ]
    return "\n".join([*wrapped, *code])


def fixed_cost() -> float:
    """Seconds that a round with five nodes takes longer than the same round in one process."""
    return stored("real_clients")["fixed_cost"]


def origin() -> str:
    """Where the stored terminals come from, in one line."""
    env = stored("real_clients")["environment"]
    return f"Flower {env['flwr']}, torch {env['torch']}, {env['processor']}, one thread each; {env['date']}"

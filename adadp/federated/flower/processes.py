"""Flower's programs, started and ended: the SuperLink (server), SuperNodes (clients), and a run with its outcome.

Nothing here is imported from Flower: its programs are called by their command lines, which are its stable side.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

APP = Path(__file__).parent / "app"
QUIET = {  # nothing leaves for Flower's makers, and nothing is installed when a run starts
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}
MARK = "adadp: "  # begins our own lines among Flower's
GRACE = 15  # seconds to end in, before a program is killed


class Program:
    """A program of Flower's, running; its output is passed on line by line, and its last lines are kept.

    Args:
        command: with its arguments.
        home: folder for Flower's own files.
        say: receives each line; None keeps silent.
        threads: of torch, in everything that it starts; None leaves that to the environment.

    Raises:
        RuntimeError: Flower is not installed.
    """

    def __init__(
        self,
        command: Sequence[str],
        home: Path,
        *,
        say: Callable[[str], None] | None = None,
        threads: int | None = None,
    ) -> None:
        self.last: deque[str] = deque(maxlen=200)
        self._say = say
        env = {**os.environ, **QUIET, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1"}
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), env.get("PYTHONPATH")]))
        if threads is not None:
            env["OMP_NUM_THREADS"] = str(threads)
        program = shutil.which(command[0], path=env["PATH"])
        if program is None:
            raise RuntimeError("Flower is not installed: pip install 'adadp[federated]'")
        guard = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []  # ends with us, even on kill -9
        home.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [*guard, program, *command[1:]], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, text=True, encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Take the output as it comes."""
        for line in self.process.stdout or ():
            self.last.append(line := line.rstrip())
            if self._say:
                self._say(line)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        code = self.process.wait(timeout)
        self._reader.join(5)
        return code

    def ask_to_stop(self) -> None:
        """Let it begin to end."""
        _signal_group(self.process.pid, "SIGTERM")

    def stop(self) -> None:
        """End it and what it started; what does not end in time is killed."""
        for number in ("SIGTERM", "SIGKILL"):
            _signal_group(self.process.pid, number)
            try:
                self.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                continue
            if number == "SIGTERM":
                time.sleep(0.2)
        self._reader.join(5)

    def output(self) -> str:
        """Its last lines."""
        return "\n".join(self.last)


def _signal_group(pid: int, name: str) -> None:
    """Signal a program and its children; that none is left is no fault."""
    with suppress(ProcessLookupError):
        os.killpg(pid, getattr(signal, name))


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def superlink(
    *, host: str, port: int, database: Path, certificates: Path | None = None, registered_only: bool = False
) -> list[str]:
    """The command of a server. Its database keeps runs and nodes over a restart.

    Args:
        host, port: where it listens.
        database: file of Flower's state.
        certificates: folder with ca.crt, server.pem and server.key; None: no encryption.
        registered_only: only nodes with a registered key may join.

    Raises:
        ValueError: a file of the certificates is missing, or keys are wanted without them.
    """
    command = ["flower-superlink", "--host", host, "--port", str(port), "--database", str(database)]
    if certificates is None:
        if registered_only:
            raise ValueError("keys of clients need TLS: give --certificates as well")
        return [*command, "--insecure"]
    for option, name in (("ca-certfile", "ca.crt"), ("certfile", "server.pem"), ("keyfile", "server.key")):
        command += [f"--ssl-{option}", str(existing(certificates / name))]
    return command + ["--enable-supernode-auth"] * registered_only


def told(config: dict) -> str:
    """Settings as Flower's programs take them, on one line.

    Raises:
        ValueError: a text that Flower cannot take.

    >>> told({"client": 0, "ledger": "/tmp/my ledger"})
    'client=0 ledger="/tmp/my ledger"'
    """
    for name, value in config.items():
        if '"' in str(value):
            raise ValueError(f"{name}: Flower takes no double quotes, and {value} has one; use another name")
    return " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in config.items())


def supernode(
    *, superlink: str, task: str, client: int, root_certificates: Path | None = None, key: Path | None = None,
    ledger: Path | None = None, device: str = "auto",
) -> list[str]:  # fmt: skip
    """The command of a client; arguments as for ``adadp federated join``.

    Raises:
        ValueError: a file is missing, or a key is given without a certificate.
    """
    config = {"task": task, "client": client, "device": device} | ({"ledger": str(ledger.absolute())} if ledger else {})
    command = ["flower-supernode", "--superlink", superlink, "--port", str(free_port()), "--node-config", told(config)]
    if root_certificates is None:
        if key is not None:
            raise ValueError("a key needs TLS: give --root-certificates as well")
        return [*command, "--insecure"]
    command += ["--root-certificates", str(existing(root_certificates))]
    return command + (["--auth-supernode-private-key", str(existing(key))] if key else [])


def check_free(host: str, port: int) -> None:
    """Refuse a port that something else listens on, before a server says that it serves there.

    Raises:
        RuntimeError: it is taken, or the host is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError as error:
            raise RuntimeError(f"nothing can listen at {host}:{port} ({error.strerror}); try another --port") from error


def existing(path: Path) -> Path:
    """The path of a file that is there.

    Raises:
        ValueError: it is not.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not there; the page 'Real clients with Flower' says how to make it")
    return path.absolute()


def wait_for_port(address: str, program: Program, timeout: float = 60) -> None:
    """Return once something listens there.

    Raises:
        RuntimeError: the program ended instead, or nothing came in time; with its last words.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if program.process.poll() is not None:
            program.wait()
            raise RuntimeError(f"the server ended at once: {cause(program.output())}")
        try:
            with socket.create_connection((host.strip("[]") or "127.0.0.1", int(port)), timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"nothing listens at {address} after {timeout:g} s")


def cause(text: str) -> str:
    """The line of a program's output that says what went wrong.

    >>> cause("INFO: starting\\nERROR : port is in use\\nINFO: ended")
    'port is in use'
    """
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines()]
    if boxed := [line.strip("│ ") for line in lines if line.startswith("│")]:  # Flower's way to print an error
        return " ".join(boxed)
    said = [line for line in lines if re.search(r"error|exception|failed|refused|invalid|in use", line, re.IGNORECASE)]
    found = (said or list(filter(None, lines)) or ["it said nothing"])[-1]
    return re.sub(r"^(ERROR|WARN(ING)?|INFO)\s*:?\s*", "", found)

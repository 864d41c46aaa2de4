"""A federation from the command line: serve, join, run. Each lasts until its work is done, and ends what it started."""

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from adadp.checkpoint import write_atomic
from adadp.federated.flower import processes
from adadp.federated.flower.processes import APP, MARK, Program

LOOPBACK = ("127.0.0.1", "localhost", "::1")
DATABASE, LET_IN = "superlink.db", "keys.txt"  # the latter: the public keys that the former holds
AGAIN, PATIENCE = 10.0, 120.0  # seconds between two tries to join, and until the last one
FAILURES = 5  # connections in a row after which that is said
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
Say = Callable[[str], None]


def serve(
    *, host: str, port: int, state: Path, certificates: Path | None = None, keys: Path | None = None,
    insecure: bool = False, say: Say = print, verbose: bool = False,
) -> None:  # fmt: skip
    """Run a server until it is interrupted.

    Args:
        host, port: where it listens.
        state: folder of its database, which keeps runs and registered keys over a restart.
        certificates: folder with ca.crt, server.pem and server.key.
        keys: folder with a public key (*.pub) of each client: no other may join.
        insecure: allow other machines without encryption.
        say: receives what happens, line by line.
        verbose: all of Flower's output, too.

    Raises:
        ValueError: no encryption on an address that others can reach, a file is missing, or a key is, whose holder
            the server's database still lets in.
        RuntimeError: the server ended by itself.
    """
    if certificates is None and host not in LOOPBACK and not insecure:
        raise ValueError(f"host {host} is open to other machines: give --certificates FOLDER, or allow --insecure")
    public = sorted(keys.glob("*.pub")) if keys else []
    if keys and not public:
        raise ValueError(f"{keys} holds no public key (*.pub)")
    let_in = _still_there(public, keys, state) if keys else set()
    command = processes.superlink(
        host=host, port=port, database=state / DATABASE, certificates=certificates, registered_only=bool(keys)
    )
    processes.check_free(host, port)
    state.mkdir(parents=True, exist_ok=True)
    with running(Program(command, state / "flower", say=say if verbose else None)) as server:
        reach = f"{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
        processes.wait_for_port(reach, server)
        control = Control(reach, certificates and certificates / "ca.crt", state / "control")
        for path in public:
            let_in.add(_key(path))
            write_atomic(state / LET_IN, "\n".join(sorted(let_in)) + "\n")
            say(f"{path.name}: {control.register(path)}")
        say(f"serving at {host}:{port}; Ctrl-C ends it")
        server.wait()
        raise RuntimeError(f"the server ended by itself: {processes.cause(server.output())}")


def _key(path: Path) -> str:
    """A public key, without its comment."""
    return " ".join(path.read_text(encoding="utf-8").split()[:2])


def _still_there(public: list[Path], keys: Path, state: Path) -> set[str]:
    """The keys that this server let in before. Flower's database keeps them: taken out of the folder, they go on.

    Raises:
        ValueError: one of them is no longer in the folder.
    """
    if not all((state / name).exists() for name in (DATABASE, LET_IN)):
        return set()
    before = set((state / LET_IN).read_text(encoding="utf-8").splitlines())
    if gone := before - set(map(_key, public)):
        names = ", ".join(sorted(key[-12:] for key in gone))
        raise ValueError(
            f"{keys} lacks {len(gone)} of the keys that this server let in before (ending in {names}); its database "
            f"in {state} still lets them in: to shut somebody out, name a new --state; else put the keys back"
        )
    return before


def join(command: list[str], *, home: Path, say: Say = print, verbose: bool = False) -> None:
    """Be a client until interrupted; where the connection is refused or lost, try again for a while.

    A node that was killed is listed for up to a minute longer, and its key is refused for as long.

    Args:
        command: of :func:`adadp.federated.flower.processes.supernode`.
        home: folder for Flower's own files.
        say, verbose: as for :func:`serve`.

    Raises:
        RuntimeError: the server refuses this client for good, with its reason.
    """
    trouble, said = None, ""  # when it began, and what was said of it
    while True:
        started = time.monotonic()
        with running(Program(command, home, say=say if verbose else Translator(say))) as node:
            killed = node.wait() < 0
        text = node.output()
        code = re.search(r"Exit Code: (\d+)\n(.*)", text)
        if code and code[1] != "305":  # of Flower's codes the one for connections
            raise RuntimeError(f"this client cannot join: {code[2]}")
        if trouble is None or time.monotonic() - started > PATIENCE:
            trouble = time.monotonic()
        reason = "its process was killed" if killed else _refusal(text)
        if time.monotonic() - trouble > PATIENCE:
            raise RuntimeError(f"the server refuses this client: {reason}")
        if reason != said or killed:
            say(f"not connected ({reason}); trying again every {AGAIN:g} s")
        said = reason
        time.sleep(AGAIN)


def run(
    task: str, clients: int, *, output: Path, superlink: str | None = None, root_certificates: Path | None = None,
    say: Say = print, verbose: bool = False, **config,
) -> None:  # fmt: skip
    """Run a task's rounds, here or on a server that is there, and return when they are done.

    Args:
        task: ``module:name``.
        clients: how many the task has.
        output: folder, on the server's machine, of model, history and checkpoint; an interrupted run continues there.
        superlink: address of a server; None: start one here, and all clients, for as long as the run takes.
        root_certificates: the file ca.crt of the server.
        say, verbose: as for :func:`serve`.
        config: keys of the run: rounds, timeout, join-timeout, min-clients, device.

    Raises:
        RuntimeError: the run failed, with its reason, or the server is gone.
        ValueError: a setting that Flower cannot take.
    """
    config = {"task": task, "output": str(output.absolute()), **config}
    processes.told(config)  # what Flower cannot take is refused before anything starts
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="adadp-")))
        if superlink is None:
            superlink = stack.enter_context(local(task, clients, home, say=say if verbose else None))
            say(f"a server and {clients} clients are starting on this machine")
        control = Control(superlink, root_certificates, home / "control")
        control.run(config, say=say if verbose else Translator(say, errors=False))


@contextmanager
def running(program: Program) -> Iterator[Program]:
    """A program that is ended at the end."""
    try:
        yield program
    finally:
        program.stop()


@contextmanager
def local(task: str, clients: int, home: Path, *, say: Say | None = None) -> Iterator[str]:
    """A server and all clients on this machine; hands out the server's address."""
    address = f"127.0.0.1:{processes.free_port()}"
    host, port = address.split(":")
    with ExitStack() as stack, ExitStack() as together:
        command = processes.superlink(host=host, port=int(port), database=home / DATABASE)
        server = stack.enter_context(running(Program(command, home / "server", say=say, threads=1)))
        processes.wait_for_port(address, server)
        for client in range(clients):
            command = processes.supernode(superlink=address, task=task, client=client)
            node = stack.enter_context(running(Program(command, home / f"client{client}", say=say, threads=1)))
            together.callback(node.ask_to_stop)
        yield address


class Control:
    """Flower's command line, pointed to one server.

    Args:
        address: host:port of the server.
        root_certificates: its ca.crt; None: no encryption.
        home: folder for the connection's file.
    """

    def __init__(self, address: str, root_certificates: Path | None, home: Path) -> None:
        safe = "insecure = true" if root_certificates is None else (
            f"root-certificates = {json.dumps(str(processes.existing(root_certificates)), ensure_ascii=False)}"
        )  # fmt: skip
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(f'[superlink.adadp]\naddress = "{address}"\n{safe}\n', encoding="utf-8")
        self.address, self.home = address, home

    def _call(self, *arguments: str, say: Say | None = None) -> tuple[int, str]:
        """Exit code and last lines of a call."""
        with running(Program(["flwr", *arguments], self.home, say=say)) as program:
            code = program.wait()
        return code, COLOURS.sub("", program.output())

    def register(self, key: Path) -> str:
        """Let the holder of a key join; one that is registered already stays so."""
        code, text = self._call("supernode", "register", str(key), "adadp")
        if code and "already" not in text:
            raise RuntimeError(f"{key} cannot be registered: {processes.cause(text)}")
        return "registered before" if code else "registered"

    def run(self, config: dict, *, say: Say) -> None:
        """Submit a run, follow it to its end, and see how it ended.

        Raises:
            RuntimeError: it failed, or the server cannot be reached.
        """
        told = processes.told(config)
        number = None

        def listen(line: str) -> None:
            nonlocal number
            if found := re.search(r"started run (\d+)", line):
                number = found[1]
            say(line)

        try:
            _, text = self._call("run", str(APP), "adadp", "--stream", "-c", told, say=listen)
        except BaseException:
            if number:
                self._call("stop", number, "adadp")
            raise
        if number is None:
            raise RuntimeError(f"no run was started at {self.address}: {processes.cause(text)}")
        status, details = self._outcome(number)
        if status != "finished:completed":
            raise RuntimeError(f"the run failed: {details or status}")

    def _outcome(self, number: str) -> tuple[str, str]:
        """How a run ended: status and details. The stream of its log ends a little earlier, or with the server."""
        for _ in range(20):
            code, text = self._call("ls", "--run-id", number, "adadp", "--format", "json")
            found = re.search(r"\{.*\}", text, re.DOTALL)
            about = json.loads(found[0]) if found else {}
            if code or not about.get("runs"):
                break
            (about,) = about["runs"]
            if about["status"].startswith("finished"):
                return about["status"], re.sub(r"^ServerApp failed with exception: ", "", about["status-details"])
            time.sleep(1)
        raise RuntimeError(
            f"the server at {self.address} is gone or does not answer; start it again, then give the same command: "
            "finished rounds are kept"
        )


class Translator:
    """Flower's output in few words: our own lines, what a client does, and errors."""

    def __init__(self, say: Say, *, errors: bool = True) -> None:
        self._say, self._errors, self._round, self._failures = say, errors, "", 0

    def __call__(self, line: str) -> None:
        line = COLOURS.sub("", line)
        if MARK in line:
            self._say(line.partition(MARK)[2])
        elif found := re.search(r"ROUND (\d+)", line):
            self._round = f"round {found[1]}: "
        elif "SuperNode ID" in line:
            self._failures = 0
            self._say("connected; waiting for a run")
        elif "Connection attempt failed" in line:
            self._failures += 1
            if self._failures == FAILURES:  # a program that starts fails once or twice
                self._say("no connection to the server (is it running, at this address, with the same TLS?); trying on")
        elif "Received successfully" in line and self._round:
            self._failures = 0
            self._say(f"{self._round}training")
        elif "Sent successfully" in line and self._round:
            self._say(f"{self._round}sent")
            self._round = ""
        elif self._errors and re.match(r"\w*(Error|Exception)\b", line):
            self._say(line)


def _refusal(text: str) -> str:
    """Why a server refused a client."""
    if re.search(r"\[code: 200[34]\]", text):
        return "its key is not registered there, or its old connection has not lapsed yet, which takes a minute"
    return processes.cause(text)

"""Real servers and clients: what commands print, and what a round costs: ``python -m benchmarks.real_clients``.

Runs every command of *Real clients with Flower* on this machine, one after the other, with its faults made on purpose
(a client is killed in a round, a stranger has no registered key, the server is killed), and keeps what was printed.
The fixed cost of a round is the time of a round with five nodes less that of the same round in one process.
"""

import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.common import arguments, environment, table, write

ROUNDS = 5
MOST = 25.0  # seconds of fixed cost a round that were asked for
KEY = "-newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 365"
CERTIFICATES = (
    f'openssl req -x509 {KEY} -subj "/CN=our federation" -keyout ca.key -out ca.crt',
    f'openssl req -x509 -CA ca.crt -CAkey ca.key {KEY} -subj "/CN=server" '
    '-addext "subjectAltName=DNS:localhost,IP:127.0.0.1" -addext "basicConstraints=critical,CA:FALSE" '
    "-keyout server.key -out server.pem",
)


class Terminals:
    """Commands in a folder, each in a terminal of its own; what they print is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kept, self._running = folder, [], []
        self.env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    def start(self, command: str) -> dict:
        """Start ``adadp ...`` and return its terminal."""
        output = (self.folder / f"terminal{len(self.kept)}").open("w+")
        words = [sys.executable, "-m", *command.split()]
        process = subprocess.Popen(words, cwd=self.folder, env=self.env, stdout=output, stderr=output)
        self.kept.append({"command": command, "process": process, "output": output, "code": None})
        return self.kept[-1]

    def call(self, command: str) -> dict:
        """Run it to its end."""
        terminal = self.start(command)
        terminal["code"] = terminal["process"].wait()
        return terminal

    def wait_for(self, terminal: dict, text: str, seconds: float = 300) -> None:
        """Until a terminal shows the text."""
        deadline = time.monotonic() + seconds
        while text not in shown(terminal):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{text!r} never came:\n{shown(terminal)}")
            time.sleep(0.1)

    def close(self) -> list[dict]:
        """End what still runs; commands with what they printed, and their exit codes."""
        for terminal in self.kept:
            if terminal["process"].poll() is None:
                terminal["process"].send_signal(signal.SIGINT)
        for terminal in self.kept:
            terminal["process"].wait()
        found = [{"command": t["command"], "lines": shown(t).splitlines(), "code": t["code"]} for t in self.kept]
        self.kept = []
        return found


def shown(terminal: dict) -> str:
    """What a terminal shows."""
    return Path(terminal["output"].name).read_text()


def below(pid: int) -> set[int]:
    """A process and all that it started."""
    told = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split()
    parents = dict(zip(map(int, told[::2]), map(int, told[1::2]), strict=True))
    found = {pid}
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def kill(terminal: dict, *, itself: bool) -> None:
    """As a power cut would: everything below, at once."""
    pid = terminal["process"].pid
    for each in below(pid) - (set() if itself else {pid}):
        os.kill(each, signal.SIGKILL)


def several(terminals: Terminals, port: int) -> list[dict]:
    """A server and five clients in terminals of their own; one client is killed in the second round."""
    at = f"--superlink 127.0.0.1:{port}"
    server = terminals.start(f"adadp federated serve --port {port} --state study-server")
    terminals.wait_for(server, "serving at")
    nodes = [terminals.start(f"adadp federated join quick --client {k} {at}") for k in range(5)]
    run = terminals.start(f"adadp federated run quick {at} --rounds 4 --timeout 40 --output study")
    terminals.wait_for(nodes[3], "round 2: training")
    kill(nodes[3], itself=False)
    run["code"] = run["process"].wait()
    return terminals.close()


def resumed(terminals: Terminals, port: int) -> list[dict]:
    """The server is killed after the second round, and started again."""
    at = f"--superlink 127.0.0.1:{port}"
    server = terminals.start(f"adadp federated serve --port {port}")
    terminals.wait_for(server, "serving at")
    for k in range(5):
        terminals.start(f"adadp federated join quick --client {k} {at}")
    run = terminals.start(command := f"adadp federated run quick {at} --rounds 4 --output long")
    terminals.wait_for(run, "round 2:")
    kill(server, itself=True)
    run["code"] = run["process"].wait()
    terminals.wait_for(terminals.start(f"adadp federated serve --port {port}"), "serving at")
    terminals.call(command)
    return terminals.close()


def secured(terminals: Terminals, port: int) -> list[dict]:
    """TLS and registered keys; client 4 has no registered key, and its place stays empty."""
    for name in ("certificates", "keys"):
        (terminals.folder / name).mkdir()
    for command in CERTIFICATES:
        subprocess.run(command, shell=True, cwd=terminals.folder / "certificates", check=True, capture_output=True)
    for k in range(5):
        make = f'ssh-keygen -q -t ecdsa -b 384 -N "" -f client{k}' + (f" && mv client{k}.pub keys/" if k < 4 else "")
        subprocess.run(make, shell=True, cwd=terminals.folder, check=True)
    server = terminals.start(
        f"adadp federated serve --port {port} --certificates certificates --keys keys --state safe"
    )
    terminals.wait_for(server, "serving at")
    at = f"--superlink 127.0.0.1:{port} --root-certificates certificates/ca.crt"
    nodes = [terminals.start(f"adadp federated join quick --client {k} {at} --key client{k}") for k in range(5)]
    terminals.wait_for(nodes[4], "not connected")
    terminals.call(f"adadp federated run quick --superlink 127.0.0.1:{port} --rounds 1 --output open")
    terminals.call(f"adadp federated run quick {at} --rounds 2 --join-timeout 30 --output secure")
    return terminals.close()


def seconds(terminal: dict) -> list[float]:
    """How long each round took."""
    return [float(s) for s in re.findall(r"round \d+: .*, ([\d.]+) s$", "\n".join(terminal["lines"]), re.MULTILINE)]


def free_port() -> int:
    """A port that nothing listens on: the default one, if it is free."""
    for port in (8000, 0):
        with socket.socket() as s, suppress(OSError):
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", port))
            return s.getsockname()[1]
    raise RuntimeError("no port is free")


def main() -> None:
    """All sessions, then the cost of a round."""
    options = arguments(__doc__).parse_args()
    sessions = {}
    with tempfile.TemporaryDirectory() as folder:
        terminals = Terminals(Path(folder))
        try:
            for name, more in (("in_process", "--in-process --output one"), ("one_machine", "--output several")):
                terminals.call(f"adadp federated run quick --rounds {ROUNDS} {more}")
                sessions[name] = terminals.close()
            for name, session in (("several", several), ("resumed", resumed), ("secured", secured)):
                sessions[name] = session(terminals, free_port())
        finally:
            terminals.close()
    alone, together = (statistics.median(seconds(sessions[n][0])[1:]) for n in ("in_process", "one_machine"))
    rows = [{"engine": "one process", "s a round": alone}, {"engine": "Flower, 5 nodes", "s a round": together}]
    cost = together - alone
    said = (
        f"fixed cost of a round: {cost:.1f} s with 5 nodes (asked for: at most {MOST:g}; median of {ROUNDS - 1} rounds)"
    )
    found = {"environment": environment("torch", "flwr"), "fixed_cost": cost, "rounds": ROUNDS - 1, "rows": rows}
    write(options.out, "real_clients", f"{table(rows)}\n\n{said}", found | {"sessions": sessions})


if __name__ == "__main__":
    main()

"""Real servers and clients on this machine: equality, kill and return, resumption, keys. Each test takes a minute."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from adadp.federated import load_task
from adadp.federated.keeping import fingerprint

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[1]
TASK = """
import time
from pathlib import Path
import torch
from torch import nn
from adadp import ADADP
from adadp.federated import Task

HOLD = Path(__file__).with_name("hold")

def data(client):
    while HOLD.exists() and client == 1 and HOLD.read_text() == "client 1":
        time.sleep(0.2)
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(40, 4, generator=generator)
    return x, (x.sum(1) > client / 4).long()

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

def start():
    torch.manual_seed(0)
    return model()

task = Task(
    model=start, data=data, clients=2, client_optimizer=lambda p: ADADP(p, lr=0.1, tol=0.1, discard=True),
    batch_size=10, test_data=lambda: data(7),
)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a task, in which commands run; no process outlives the test."""
    (tmp_path / "small.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    started = []
    yield Place(tmp_path, started)
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in started:
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()


class Place:
    """Commands of the program in one folder."""

    def __init__(self, folder, started):
        self.folder, self.started, self.prefix = folder, started, []

    def start(self, name, *command, program=("-m", "adadp", "federated")):
        env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [*self.prefix, sys.executable, *program, *command], cwd=self.folder, env=env, stdout=log, stderr=log
            )
        self.started.append(process)
        return process

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def wait_for(self, name, text, seconds=120):
        deadline = time.monotonic() + seconds
        while text not in self.log(name):
            assert time.monotonic() < deadline, f"{text!r} never came:\n{self.log(name)}"
            time.sleep(0.1)

    def history(self, output="out"):
        return json.loads((self.folder / output / "history.json").read_text())["rows"]

    def weights(self, output="out"):
        return fingerprint(torch.load(self.folder / output / "model.pt", weights_only=True))


def alone(rounds):
    """Weights after so many rounds in one process."""
    torch.set_num_threads(1)
    sys.modules.pop("small", None)
    loop = load_task("small:task").in_process(device="cpu")
    loop.run(rounds, progress=False)
    return fingerprint(loop.model.state_dict())


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def children(pid):
    """All descendants of a process."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split()
    parent = dict(zip(map(int, found[::2]), map(int, found[1::2]), strict=True))
    below = {pid}
    while more := {p for p, above in parent.items() if above in below} - below:
        below |= more
    return below - {pid}


def offline():
    """What puts a command where no other machine can be reached, if that is allowed here."""
    prefix = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    usable = shutil.which("unshare") and shutil.which("ip")
    return prefix if usable and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else []


def test_one_command_gives_the_weights_of_one_process_offline_and_silent(place):
    place.prefix = offline()
    process = place.start("run", "run", "small:task", "--rounds", "2", "--output", "out")
    place.wait_for("run", "round 1")
    seen = []
    for pid in children(process.pid):
        try:
            command, env = ((Path("/proc") / str(pid) / part).read_text() for part in ("cmdline", "environ"))
        except OSError:  # it has ended meanwhile
            continue
        if re.search(r"flower-|flwr", command):
            seen.append(command)
            for setting in ("FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"):
                assert setting in env, f"{command}: {setting}"
    assert len(seen) >= 5, "a server, two clients, and what they start"
    assert process.wait(240) == 0, place.log("run")
    assert place.weights() == alone(2)
    assert f"finished: weights {alone(2)}" in place.log("run")
    assert [row["clients"] for row in place.history()] == [[0, 1], [0, 1]]
    again = place.start("again", "run", "small:task", "--rounds", "2", "--output", "out")
    assert again.wait(60) == 2 and "holds a finished run" in place.log("again")


def test_a_client_killed_in_a_round_is_missing_there_and_comes_back(place):
    address = f"127.0.0.1:{(number := port())}"
    place.start("serve", "serve", "--port", number)
    place.wait_for("serve", "serving at")
    place.start("client0", "join", "small:task", "--client", "0", "--superlink", address)
    killed = place.start("client1", "join", "small:task", "--client", "1", "--superlink", address)
    (place.folder / "hold").write_text("client 1")
    command = ("run", "small:task", "--superlink", address, "--output", "out", "--timeout", "25")
    run = place.start("run", *command, "--rounds", "4")
    place.wait_for("client1", "round 1: training")
    time.sleep(6)  # until its process is in the middle of it
    for pid in children(killed.pid):
        os.kill(pid, signal.SIGKILL)
    (place.folder / "hold").unlink()
    assert run.wait(400) == 0, place.log("run")
    rows = place.history()
    assert rows[0]["clients"] == [0] and rows[0]["missing"] == [1]
    assert rows[-1]["clients"] == [0, 1] and rows[-1]["missing"] == []
    assert re.search(r"client 1 is missing: (no answer in time|.*[Uu]navailable)", place.log("run"))


def test_a_killed_server_is_started_again_and_nothing_is_lost(place):
    address = f"127.0.0.1:{(number := port())}"
    server = place.start("serve", "serve", "--port", number)
    place.wait_for("serve", "serving at")
    for client in "01":
        place.start(f"client{client}", "join", "small:task", "--client", client, "--superlink", address)
    command = ("run", "small:task", "--superlink", address, "--output", "out", "--rounds", "4")
    run = place.start("run", *command)
    place.wait_for("run", "round 2")
    for pid in {server.pid, *children(server.pid)}:
        os.kill(pid, signal.SIGKILL)
    assert run.wait(120) == 2
    assert "start it again, then give the same command" in place.log("run")
    kept = len(place.history())
    assert 2 <= kept < 4 and (place.folder / "out" / "checkpoint.pt").exists()
    place.start("serve2", "serve", "--port", number)
    place.wait_for("serve2", "serving at")
    assert place.start("run2", *command).wait(300) == 0, place.log("run2")
    assert "continuing" in place.log("run2") and f"round {kept}:" not in place.log("run2")
    assert place.weights() == alone(4)


def certificates(folder):
    """The two commands of the page."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes", "-days", "365"]
    authority = [*key, "-subj", "/CN=our federation", "-keyout", "ca.key", "-out", "ca.crt"]
    own = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    own += ["-subj", "/CN=server", "-keyout", "server.key", "-out", "server.pem"]
    folder.mkdir()
    for options in (authority, ["-CA", "ca.crt", "-CAkey", "ca.key", *key, *own]):
        subprocess.run(["openssl", "req", "-x509", *options], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="openssl or ssh-keygen lacks")
def test_under_tls_a_client_without_a_registered_key_is_kept_out(place):
    certificates(place.folder / "certificates")
    (place.folder / "keys").mkdir()
    for name in ("client0", "client1", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", name], check=True)
    for name in ("client0", "client1"):
        (place.folder / f"{name}.pub").rename(place.folder / "keys" / f"{name}.pub")
    address = f"127.0.0.1:{(number := port())}"
    place.start("serve", "serve", "--port", number, "--certificates", "certificates", "--keys", "keys")
    place.wait_for("serve", "serving at")
    tls = ("--superlink", address, "--root-certificates", "certificates/ca.crt")
    for name, client in (("client0", "0"), ("stranger", "1")):
        place.start(name, "join", "small:task", "--client", client, *tls, "--key", name)
    place.wait_for("stranger", "not connected (its key is not registered there")
    plain = place.start("plain", "run", "small:task", "--superlink", address, "--output", "plain")
    assert plain.wait(60) == 2 and "no run was started" in place.log("plain")
    few = place.start("few", "run", "small:task", *tls, "--output", "out", "--min-clients", "2", "--join-timeout", "20")
    assert few.wait(120) == 2
    assert "1 of 2 clients came within 20 s, min_clients is 2" in place.log("few")
    place.start("client1", "join", "small:task", "--client", "1", *tls, "--key", "client1")
    assert place.start("run", "run", "small:task", *tls, "--output", "out", "--rounds", "1").wait(200) == 0
    assert place.weights() == alone(1) and "connected; waiting" not in place.log("stranger")

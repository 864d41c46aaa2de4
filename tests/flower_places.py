"""Commands of the program in a folder of their own, for the tests of real servers and clients."""

import json
import os
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

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 600  # seconds: a round of real processes takes a minute where other tests run beside it
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

    def wait_for(self, name, text, seconds=PATIENCE):
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

"""Real servers and clients on this machine: equality, kill and return. Each test takes a minute."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from flower_places import PATIENCE, alone, children, offline, port

pytest_plugins = ["flower_places"]
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.slow]


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
    assert process.wait(PATIENCE) == 0, place.log("run")
    assert place.weights() == alone(2)
    assert f"finished: weights {alone(2)}" in place.log("run")
    assert [row["clients"] for row in place.history()] == [[0, 1], [0, 1]]
    again = place.start("again", "run", "small:task", "--rounds", "2", "--output", "out")
    assert again.wait(PATIENCE) == 2 and "holds a finished run" in place.log("again")


def test_a_client_killed_in_a_round_is_missing_there_and_comes_back(place):
    address = f"127.0.0.1:{(number := port())}"
    place.start("serve", "serve", "--port", number)
    place.wait_for("serve", "serving at")
    place.start("client0", "join", "small:task", "--client", "0", "--superlink", address)
    killed = place.start("client1", "join", "small:task", "--client", "1", "--superlink", address)
    (place.folder / "hold").write_text("client 1")
    command = ("run", "small:task", "--superlink", address, "--output", "out", "--timeout", "45")
    run = place.start("run", *command, "--rounds", "4")
    place.wait_for("client1", "round 1: training")
    time.sleep(6)  # until its process is in the middle of it
    for pid in children(killed.pid):
        os.kill(pid, signal.SIGKILL)
    (place.folder / "hold").unlink()
    assert run.wait(PATIENCE) == 0, place.log("run")
    rows = place.history()
    assert rows[0]["clients"] == [0] and rows[0]["missing"] == [1]
    assert rows[-1]["clients"] == [0, 1] and rows[-1]["missing"] == []
    assert re.search(r"client 1 is missing: (no answer in time|.*[Uu]navailable)", place.log("run"))

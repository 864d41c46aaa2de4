"""Real servers and clients on this machine: a killed server, keys and certificates. Each test takes a minute."""

import os
import shutil
import signal
import subprocess

import pytest
from flower_places import PATIENCE, alone, children, port

pytest_plugins = ["flower_places"]
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.slow]


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
    assert run.wait(PATIENCE) == 2
    assert "start it again, then give the same command" in place.log("run")
    kept = len(place.history())
    assert 2 <= kept < 4 and (place.folder / "out" / "checkpoint.pt").exists()
    place.start("serve2", "serve", "--port", number)
    place.wait_for("serve2", "serving at")
    assert place.start("run2", *command).wait(PATIENCE) == 0, place.log("run2")
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
    assert plain.wait(PATIENCE) == 2 and "no run was started" in place.log("plain")
    few = place.start("few", "run", "small:task", *tls, "--output", "out", "--min-clients", "2", "--join-timeout", "20")
    assert few.wait(PATIENCE) == 2
    assert "1 of 2 clients came within 20 s, min_clients is 2" in place.log("few")
    place.start("client1", "join", "small:task", "--client", "1", *tls, "--key", "client1")
    assert place.start("run", "run", "small:task", *tls, "--output", "out", "--rounds", "1").wait(PATIENCE) == 0
    assert place.weights() == alone(1) and "connected; waiting" not in place.log("stranger")

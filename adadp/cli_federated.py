"""``adadp federated``: a federation in one command, or one command for each part of it."""

import argparse
import time
from pathlib import Path

from adadp.commands import choose
from adadp.parsing import Commands, Parser, add, choice, count

DEVICES = ("auto", "cpu", "cuda")
TASKS = {
    "quick": "five clients of 200 bundled images, the fully connected network",
    "laptop": "five clients of 2000 images of CIFAR-10, the convolutional network",
    "paper": "five clients of 10000 images of CIFAR-10, the paper's size",
}
TEACH_TASK = """\
TASK is MODULE:NAME of an adadp.federated.Task, or of a function that makes one; it is
looked for in the folder where the command is given, too. Built in are the paper's
federated experiment at 33 % random data in three sizes:
""" + "\n".join(f"  {name:8} {text}" for name, text in TASKS.items())
TEACH = {
    "run": f"""\
Without --superlink everything runs on this machine: a server, and a process for each
client. An interrupted run continues after its last finished round when the same command
is given again. The exit code says whether the run reached its end.

{TEACH_TASK}""",
    "join": f"""\
The client trains on data of its own, on this machine; only weights, learning rates,
counts and the kinds of errors leave it. The task is named here, not by the server. But the server sends the app
that a node starts: join servers that you trust.

{TEACH_TASK}""",
    "serve": """\
The server relays messages, averages and evaluates. What it knows lies in its state
folder, so that it can be stopped and started again. Other machines reach it only with
--host 0.0.0.0; then give it certificates, and the public keys of those who may join.""",
}


def add_federated(commands) -> None:
    """The sub-command and its three parts."""
    p = add(commands, "federated", _none, "federated averaging with real clients, on Flower (extra: federated)",
            "adadp federated run quick --rounds 3               a server and five clients, here",
            "adadp federated serve                              a server of its own, then in other terminals:",
            "adadp federated join quick --client 0              a client (one for each number)",
            "adadp federated run quick --superlink 127.0.0.1:8000")  # fmt: skip
    parts = p.add_subparsers(metavar="serve|join|run", dest="part", parser_class=Parser)
    for add_part in (_add_serve, _add_join, _add_run):
        add_part(parts)
    parts.choices = Commands(parts.choices)


def _add_serve(parts) -> None:
    p = add(parts, "serve", serve, "run the server, until Ctrl-C",
            "adadp federated serve",
            "adadp federated serve --host 0.0.0.0 --certificates certificates --keys keys",
            teach=TEACH["serve"])  # fmt: skip
    p.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1, this machine only)")
    p.add_argument("--port", type=_port, default=8000, metavar="N", help="(default: 8000)")
    p.add_argument(
        "--state", type=Path, default=Path("federation"), metavar="FOLDER", help="its files (default: federation)"
    )
    p.add_argument("--certificates", type=Path, metavar="FOLDER", help="ca.crt, server.pem and server.key: use TLS")
    p.add_argument(
        "--keys",
        type=Path,
        metavar="FOLDER",
        help="public keys (*.pub): only their holders may join (one that is taken out again needs a new --state)",
    )
    p.add_argument("--insecure", action="store_true", help="let other machines in without encryption")
    _verbose(p)


def _add_join(parts) -> None:
    p = add(parts, "join", join, "be one client, until Ctrl-C",
            "adadp federated join quick --client 0",
            "adadp federated join hospital:task --client 3 --superlink server.example:8000 --root-certificates ca.crt "
            "--key client3", teach=TEACH["join"])  # fmt: skip
    p.add_argument("task", metavar="TASK", help="what to take part in")
    p.add_argument("--client", type=_number, required=True, metavar="K", help="which client this is, from 0")
    _superlink(p, "127.0.0.1:8000")
    p.add_argument("--key", type=Path, metavar="FILE", help="private key of this client")
    p.add_argument("--ledger", type=Path, metavar="FILE", help="what a private client has spent; one a data set")
    choice(p, "--device", DEVICES, "auto", "where to train")
    _verbose(p)


def _add_run(parts) -> None:
    p = add(parts, "run", run, "run a task's rounds",
            "adadp federated run quick",
            "adadp federated run quick --in-process            the same weights, from one process",
            "adadp federated run hospital:task --rounds 20 --superlink 127.0.0.1:8000 --output study",
            teach=TEACH["run"])  # fmt: skip
    p.add_argument("task", metavar="TASK", help="what to run")
    p.add_argument("--rounds", type=count, default=3, metavar="N", help="rounds in all (default: 3)")
    p.add_argument(
        "--output", type=Path, metavar="FOLDER",
        help="model, history and checkpoint, on the server's machine (default: federated-TASK)",
    )  # fmt: skip
    _superlink(p, None)
    p.add_argument("--in-process", action="store_true", help="no server, no other process: for comparison")
    p.add_argument(
        "--timeout", type=_seconds, default=3600.0, metavar="SECONDS", help="for the answers of a round (default: 3600)"
    )
    p.add_argument(
        "--join-timeout", type=_seconds, default=120.0, metavar="SECONDS", help="to wait for clients (default: 120)"
    )
    p.add_argument(
        "--min-clients", type=count, metavar="N", help="with fewer usable answers a round fails (default: half)"
    )
    choice(p, "--device", DEVICES, "auto", "where the server evaluates")
    _verbose(p)


def _superlink(p: argparse.ArgumentParser, default: str | None) -> None:
    """Where the server is, and how to know it."""
    text = f"(default: {default})" if default else "(default: start one here)"
    p.add_argument(
        "--superlink", type=_address, default=default, metavar="HOST:PORT", help=f"address of the server {text}"
    )
    p.add_argument("--root-certificates", type=Path, metavar="FILE", help="ca.crt of the server: use TLS")


def _verbose(p: argparse.ArgumentParser) -> None:
    """All output."""
    p.add_argument("--verbose", action="store_true", help="show all of Flower's output")


def _number(text: str) -> int:
    """A whole number from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def _port(text: str) -> int:
    """A port."""
    if (value := count(text)) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 1 to 65535")
    return value


def _address(text: str) -> str:
    """Where a server is: a name, or an address, and a port."""
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as server.example:8000")
    return text


def _seconds(text: str) -> float:
    """A time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _none(a: argparse.Namespace) -> None:
    """No part was named."""
    raise ValueError("serve, join or run is missing; see: adadp federated --help")


def _task_name(name: str) -> str:
    """A built-in task by its short name; what has no colon must be one."""
    return name if ":" in name else f"adadp.experiments.tasks:{choose(name, TASKS, 'task (or MODULE:NAME)')}"


def _say(line: str) -> None:
    """At once: others wait for these lines."""
    print(line, flush=True)


def serve(a: argparse.Namespace) -> None:
    """A server."""
    from adadp.federated.flower import sessions

    sessions.serve(
        host=a.host, port=a.port, state=a.state.absolute(), certificates=a.certificates and a.certificates.absolute(),
        keys=a.keys, insecure=a.insecure, say=_say, verbose=a.verbose,
    )  # fmt: skip


def join(a: argparse.Namespace) -> None:
    """A client."""
    import tempfile

    from adadp.federated import load_task
    from adadp.federated.flower import processes, sessions

    name = _task_name(a.task)
    task = load_task(name)
    if a.client >= task.clients:
        raise ValueError(f"--client {a.client}: {a.task} has {task.clients} clients, numbered from 0")
    if task.privacy is not None and a.ledger is None:
        raise ValueError(f"{a.task} is private: --ledger FILE, which keeps what this client spends, is missing")
    command = processes.supernode(
        superlink=a.superlink, task=name, client=a.client, root_certificates=a.root_certificates, key=a.key,
        ledger=a.ledger, device=a.device,
    )  # fmt: skip
    _say(f"client {a.client} of {task.clients} of {a.task}, server {a.superlink}")
    with tempfile.TemporaryDirectory(prefix="adadp-") as home:
        sessions.join(command, home=Path(home), say=_say, verbose=a.verbose)


def run(a: argparse.Namespace) -> None:
    """A run; then where its results are."""
    from adadp.federated import load_task
    from adadp.federated.flower import sessions
    from adadp.federated.keeping import check_unfinished

    name, started = _task_name(a.task), time.monotonic()
    task, output = load_task(name), a.output or Path(f"federated-{a.task.replace(':', '-')}")
    if a.in_process:
        if a.superlink or a.root_certificates or a.min_clients:
            raise ValueError("--in-process uses no server; leave out --superlink, --root-certificates, --min-clients")
        import torch

        from adadp.federated.keeping import run_in_process

        torch.set_num_threads(1)  # as clients on one machine have: more would add numbers in another order
        run_in_process(task, rounds=a.rounds, output=output, device=a.device, say=_say)
    else:
        if a.superlink is None:
            if task.privacy is not None:
                raise ValueError(
                    f"{a.task} is private, and each client needs a ledger of its own: start a server (adadp federated "
                    "serve) and clients (join --ledger FILE), then run with --superlink; or simulate with --in-process"
                )
            check_unfinished(output)
        config = {"join-timeout": a.join_timeout, "min-clients": a.min_clients or 0, "device": a.device}
        sessions.run(
            name, task.clients, output=output, superlink=a.superlink, root_certificates=a.root_certificates,
            say=_say, verbose=a.verbose, rounds=a.rounds, timeout=a.timeout, **config,
        )  # fmt: skip
    _say(f"{time.monotonic() - started:.0f} s; model and history: {output}")

"""``adadp federated``: commands, refusals and translations, without starting a process of Flower's."""

import json
from types import SimpleNamespace

import pytest

from adadp.cli import main
from adadp.federated import keeping
from adadp.federated.flower import processes, sessions


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "serve, join or run is missing"),
        (["sevre"], "did you mean 'serve'?"),
        (["serve", "--host", "0.0.0.0"], "give --certificates FOLDER, or allow --insecure"),
        (["serve", "--port", "70000"], "no port"),
        (["serve", "--certificates", "none"], "none/ca.crt is not there"),
        (["serve", "--keys", "."], "holds no public key"),
        (["join", "quick"], "--client"),
        (["join", "quick", "--client", "5"], "has 5 clients, numbered from 0"),
        (["join", "quick", "--client", "-1"], "--client"),
        (["join", "quick", "--client", "1.5"], "not a whole number"),
        (["join", "quick", "--client", "0", "--key", "k"], "give --root-certificates as well"),
        (["join", "quick", "--client", "0", "--root-certificates", "ca"], "ca is not there"),
        (["join", "nowhere:task", "--client", "0"], "No module named 'nowhere'"),
        (["run", "quikc"], "did you mean 'quick'?"),
        (["run", "quick", "--rounds", "0"], "at least 1"),
        (["run", "quick", "--timeout", "nan"], "seconds above 0"),
        (["run", "quick", "--superlnk", "x"], "did you mean --superlink?"),
        (["run", "quick", "--superlink", "nowhere"], "HOST:PORT"),
        (["join", "quick", "--client", "0", "--superlink", "http://a:1"], "HOST:PORT"),
    ],
)
def test_mistakes_are_one_line(capsys, argv, words):
    assert main(["federated", *argv]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and words in said, said


def test_a_key_that_was_taken_out_is_not_let_in_in_silence(capsys, tmp_path):
    """Flower's database remembers it; without its file the server would promise what it does not do."""
    for name in ("keys", "federation"):
        (tmp_path / name).mkdir()
    (tmp_path / "keys" / "a.pub").write_text("ecdsa AAAAAAAAAAAAAAA1 me@here\n")
    (tmp_path / "federation" / "keys.txt").write_text("ecdsa AAAAAAAAAAAAAAA1\necdsa AAAAAAAAAAAAAAA2\n")
    free = processes.free_port()
    public, state = [tmp_path / "keys" / "a.pub"], tmp_path / "federation"
    assert sessions._still_there(public, tmp_path / "keys", state) == set(), "a new database knows nobody"
    (state / "superlink.db").touch()
    assert main(["federated", "serve", "--port", str(free), "--keys", "keys"]) == 2
    said = capsys.readouterr().err
    assert "lacks 1 of the keys" in said and "AAAAAAAAAAA2" in said and "--state" in said and said.count("\n") == 1
    (tmp_path / "keys" / "b.pub").write_text("ecdsa AAAAAAAAAAAAAAA2 other-comment\n")
    assert len(sessions._still_there([*public, tmp_path / "keys" / "b.pub"], tmp_path / "keys", state)) == 2


def test_a_server_remembers_the_keys_that_it_let_in(tmp_path, monkeypatch):
    class Ended:
        def wait(self):
            return 0

        def output(self):
            return "over"

        def stop(self):
            pass

    monkeypatch.setattr(sessions, "Program", lambda *_, **__: Ended())
    for name in ("superlink", "check_free", "wait_for_port"):
        monkeypatch.setattr(processes, name, lambda *_, **__: [])
    monkeypatch.setattr(sessions.Control, "register", lambda self, key: "registered")
    keys, state, said = tmp_path / "keys", tmp_path / "federation", []
    keys.mkdir()
    for name in "ab":
        (keys / f"{name}.pub").write_text(f"ecdsa AAAAAAAAAAAAAAA{name} {name}@here\n")
    serve = lambda: sessions.serve(host="127.0.0.1", port=1, state=state, keys=keys, say=said.append)  # noqa: E731
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ended by itself"):
            serve()
        assert (state / "keys.txt").read_text() == "ecdsa AAAAAAAAAAAAAAAa\necdsa AAAAAAAAAAAAAAAb\n"
        (state / "superlink.db").touch()
    assert said[:2] == ["a.pub: registered", "b.pub: registered"]
    (keys / "b.pub").unlink()
    with pytest.raises(ValueError, match="lacks 1 of the keys"):
        serve()


def test_a_private_client_needs_a_ledger(capsys, tmp_path, monkeypatch):
    (tmp_path / "secretive.py").write_text(
        "import torch\nfrom adadp.federated import Task\n"
        "task = Task(model=lambda: torch.nn.Linear(2, 2), data=lambda k: None, clients=1, batch_size=2,\n"
        "    client_optimizer=torch.optim.SGD, privacy=dict(max_grad_norm=1.0, noise_multiplier=1.0))\n"
    )
    for argv in (["join", "secretive:task", "--client", "0"], ["run", "secretive:task"]):
        assert main(["federated", *argv]) == 2
        assert "--ledger FILE" in capsys.readouterr().err


def test_in_process_runs_tells_and_keeps_then_refuses_to_write_over(capsys, tmp_path):
    assert main(["federated", "run", "quick", "--in-process", "--rounds", "1", "--output", "one"]) == 0
    said = capsys.readouterr().out
    assert "round 1: accuracy" in said and "finished: weights" in said and "model and history: one" in said
    assert {p.name for p in (tmp_path / "one").iterdir()} == {".lock", keeping.HISTORY, keeping.MODEL}
    for more in (["--in-process"], []):
        assert main(["federated", "run", "quick", *more, "--output", "one"]) == 2
        assert "holds a finished run" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--superlink", "h:1"], ["--root-certificates", "ca.crt"], ["--min-clients", "5"]])
def test_in_process_uses_no_server_and_says_so(capsys, more):
    """Somebody who names a server must not get a simulation of it."""
    assert main(["federated", "run", "quick", "--in-process", *more]) == 2
    assert "--in-process uses no server" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["-1", "1.5", "x", ""])
def test_clients_are_counted_from_zero(capsys, number):
    assert main(["federated", "join", "quick", "--client", number]) == 2
    assert "is not a whole number from 0" in capsys.readouterr().err


def test_commands_of_a_server(tmp_path):
    plain = processes.superlink(host="127.0.0.1", port=1, database=tmp_path / "db")
    assert plain[-1] == "--insecure" and "--database" in plain
    with pytest.raises(ValueError, match="need TLS"):
        processes.superlink(host="::1", port=1, database=tmp_path / "db", registered_only=True)
    for name in ("ca.crt", "server.pem", "server.key"):
        (tmp_path / name).touch()
    safe = processes.superlink(host="0", port=1, database=tmp_path, certificates=tmp_path, registered_only=True)
    assert "--insecure" not in safe and safe[-1] == "--enable-supernode-auth"
    assert safe[safe.index("--ssl-certfile") + 1] == str(tmp_path / "server.pem")


def test_commands_of_a_client(tmp_path):
    command = processes.supernode(superlink="a:1", task="m:t", client=2, ledger=tmp_path / "spent")
    told = dict(pair.split("=", 1) for pair in command[command.index("--node-config") + 1].split())
    assert {name: json.loads(value) for name, value in told.items()} == {
        "task": "m:t", "client": 2, "device": "auto", "ledger": str(tmp_path / "spent"),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["my ledger's file", "\U0001f600 \u00e9", "a\\b"])
def test_a_folder_with_a_blank_survives_flowers_own_parser(tmp_path, name):
    from flwr.common.config import parse_config_args

    command = processes.supernode(superlink="a:1", task="m:t", client=0, ledger=tmp_path / name)
    assert parse_config_args([command[-2]])["ledger"] == str(tmp_path / name)


def test_what_flower_cannot_take_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(ValueError, match="ledger: Flower takes no double quotes"):
        processes.supernode(superlink="a:1", task="m:t", client=0, ledger=tmp_path / 'a "ledger"')
    with pytest.raises(ValueError, match="output: Flower takes no double quotes"):
        sessions.run("m:t", 2, output=tmp_path / 'a "folder"', say=pytest.fail)


def test_the_certificate_s_place_may_have_any_name(tmp_path):
    import tomllib

    place = tmp_path / '\U0001f600 "x"' / "ca.crt"
    place.parent.mkdir()
    place.touch()
    sessions.Control("a:1", place, tmp_path / "home")
    told = tomllib.loads((tmp_path / "home" / "config.toml").read_text(encoding="utf-8"))
    assert told["superlink"]["adadp"]["root-certificates"] == str(place)


def test_every_setting_that_keeps_flower_quiet_is_handed_on(tmp_path):
    program = processes.Program(["env"], tmp_path / "home", threads=1)
    assert program.wait() == 0
    seen = dict(line.split("=", 1) for line in program.output().splitlines() if "=" in line)
    assert seen.items() >= (processes.QUIET | {"OMP_NUM_THREADS": "1", "FLWR_HOME": str(tmp_path / "home")}).items()
    assert processes.QUIET["FLWR_TELEMETRY_ENABLED"] == "0"


def test_a_port_that_is_taken_is_said_before_anything_starts(capsys):
    with processes.socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["federated", "serve", "--port", str(taken.getsockname()[1])]) == 2
    said = capsys.readouterr()
    assert "try another --port" in said.err and "serving" not in said.out


def test_tasks_of_one_name_in_two_modules_have_folders_of_their_own(capsys, tmp_path):
    for name in ("alpha", "beta"):
        source = "from adadp.experiments.tasks import quick as task\n"
        (tmp_path / f"{name}_tasks.py").write_text(source)
        assert main(["federated", "run", f"{name}_tasks:task", "--in-process", "--rounds", "1"]) == 0
    assert {p.name for p in tmp_path.glob("federated-*")} == {"federated-alpha_tasks-task", "federated-beta_tasks-task"}


@pytest.mark.parametrize("change", ['client_optimizer="adadp"', "data=torch.zeros(3)", "model=torch.nn.Linear(2, 2)"])
def test_mistakes_in_a_task_are_its_owners(capsys, tmp_path, change):
    name = f"wrong_{change[:4]}"
    keywords = dict(model="lambda: None", data="print", client_optimizer="print") | dict([change.split("=", 1)])
    told = ", ".join(f"{key}={value}" for key, value in keywords.items())
    text = f"import torch\nfrom adadp.federated import Task\ntask = Task({told}, clients=1, batch_size=2)\n"
    (tmp_path / f"{name}.py").write_text(text)
    assert main(["federated", "run", f"{name}:task", "--in-process"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and change.split("=")[0] in said and "fault of adadp" not in said


def test_flower_is_missing(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match=r"pip install 'adadp\[federated\]'"):
        processes.Program(["flower-that-is-not-there"], tmp_path)


def test_what_a_program_started_ends_with_it(tmp_path):
    program = processes.Program(["sh", "-c", "sleep 1000 & echo $!; wait"], tmp_path)
    while not program.last:
        pass
    child = int(program.last[0])
    program.stop()
    state = processes.subprocess.run(["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True).stdout
    assert state.strip() in ("", "Z") or state.startswith("Z")


def test_a_server_that_ends_at_once_says_why(tmp_path):
    program = processes.Program(["sh", "-c", "echo 'ERROR:  address already in use'; exit 1"], tmp_path)
    with pytest.raises(RuntimeError, match="ended at once: address already in use"):
        processes.wait_for_port("127.0.0.1:1", program)


def test_cause_reads_boxes_and_lines():
    assert processes.cause("╭─ Error ─╮\n│ No server   │\n│ is there.    │\n╰──╯") == "No server is there."
    assert processes.cause("\x1b[91mERROR \x1b[0m: it failed\nINFO: bye") == "it failed"
    assert processes.cause("") == "it said nothing"


def test_flowers_output_becomes_few_words():
    said = []
    translate = sessions.Translator(said.append)
    received, sent = "INFO: Received successfully", "INFO: Sent successfully"
    lines = [
        "\x1b[92mINFO \x1b[0m:  SuperNode ID: 5",
        "INFO: [RUN 1]",
        received,
        sent,
        "INFO: [RUN 1, ROUND 2]",
        received,
    ]
    lines += [sent, "INFO: adadp: round 2: fine", "ValueError: data(1) has no data"]
    for line in [*lines, *["WARNING: Connection attempt failed, retrying in 1 seconds"] * 9, "noise"]:
        translate(line)
    assert said[:5] == ["connected; waiting for a run", "round 2: training", "round 2: sent", "round 2: fine",
                        "ValueError: data(1) has no data"]  # fmt: skip
    assert len(said) == 6 and said[5].startswith("no connection to the server")


class Scripted:
    """A node that ends as told, one ending after the other."""

    endings: list

    def __init__(self, command, home, *, say=None, threads=None):
        self.code, self.text, self.lasts = self.endings.pop(0)

    def wait(self):
        if self.code is None:
            raise KeyboardInterrupt
        Clock.now += self.lasts
        return self.code

    def output(self):
        return self.text

    def stop(self):
        pass


class Clock:
    now = 0.0


@pytest.fixture
def node(monkeypatch):
    """Plays endings of a node to ``join``; returns what was said and the error."""
    monkeypatch.setattr(sessions, "Program", Scripted)
    sleep = lambda seconds: setattr(Clock, "now", Clock.now + seconds)  # noqa: E731
    monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=lambda: Clock.now, sleep=sleep))

    def play(*endings):
        Scripted.endings, said = [*endings], []
        with pytest.raises((RuntimeError, KeyboardInterrupt)) as caught:
            sessions.join([], home=None, say=said.append)
        return said, caught.value

    return play


REFUSED = (1, "Exit Code: 305\nFailed to initialize\n[code: 2004] Failed to activate SuperNode.", 1)
STOP = (None, "", 0)


def test_a_number_that_looks_like_a_code_is_no_reason(node):
    """Ports and node numbers are in the same lines."""
    said, error = node((1, "Exit Code: 305\nSuperNode 9120044417 could not reach 10.0.0.5:12003", 1), STOP)
    assert "not registered" not in f"{said} {error}"


def test_a_killed_node_is_started_again(node):
    said, error = node((-9, "INFO: Received successfully", 500), REFUSED, REFUSED, STOP)
    assert isinstance(error, KeyboardInterrupt)
    assert len(said) == 2 and "killed" in said[0] and "not registered" in said[1], "the same reason is said once"


def test_a_refused_client_gives_up_after_a_while(node):
    _, error = node(*[REFUSED] * 40)
    assert "the server refuses this client: its key is not registered there" in str(error)
    assert 10 <= 40 - len(Scripted.endings) <= 14


def test_a_long_connection_resets_the_patience(node):
    _, error = node(*[REFUSED] * 9, (0, "INFO: bye", 1000), *[REFUSED] * 9, STOP)
    assert isinstance(error, KeyboardInterrupt)


def test_what_will_not_pass_ends_at_once(node):
    said, error = node((1, "ERROR: Exit Code: 302\nUnable to parse the private key file.\nmore", 1), STOP)
    assert str(error) == "this client cannot join: Unable to parse the private key file." and said == []


@pytest.fixture
def control(tmp_path, monkeypatch):
    """A server that answers ``flwr ls`` as told."""
    monkeypatch.setattr(sessions.time, "sleep", lambda s: None)
    made = sessions.Control("127.0.0.1:1", None, tmp_path / "c")

    def script(*answers, started="Successfully started run 7"):
        left = list(answers)

        def call(*arguments, say=None):
            if arguments[0] == "run":
                say(started)
                return 0, started
            return left.pop(0)

        monkeypatch.setattr(made, "_call", call)
        return made

    return script


def status(text, details=""):
    return 0, "displaying\n" + json.dumps({"success": True, "runs": [{"status": text, "status-details": details}]})


def test_a_run_that_failed_raises_its_reason(control):
    failed = status("finished:failed", "ServerApp failed with exception: round 2: too few")
    with pytest.raises(RuntimeError, match=r"^the run failed: round 2: too few$"):
        control(status("running"), failed).run({"rounds": 1}, say=print)
    control(status("running"), status("finished:completed")).run({"rounds": 1}, say=print)


@pytest.mark.parametrize(
    "answer", [(1, "no connection"), (0, "no json"), (0, '{"success": false, "error-message": "x"}')]
)
def test_a_server_that_is_gone_is_no_success(control, answer):
    with pytest.raises(RuntimeError, match="gone or does not answer; start it again, then give the same command"):
        control(answer).run({"rounds": 1}, say=print)


def test_a_run_that_never_began_says_why(control):
    with pytest.raises(RuntimeError, match=r"no run was started at 127\.0\.0\.1:1: it failed"):
        control(started="ERROR: it failed").run({"rounds": 1}, say=print)


def test_ctrl_c_stops_the_run_on_the_server(tmp_path, monkeypatch):
    made, calls = sessions.Control("127.0.0.1:1", None, tmp_path / "c"), []

    def call(*arguments, say=None):
        calls.append(arguments[:2])
        if arguments[0] == "run":
            say("Successfully started run 7")
            raise KeyboardInterrupt
        return 0, ""

    monkeypatch.setattr(made, "_call", call)
    with pytest.raises(KeyboardInterrupt):
        made.run({"rounds": 1}, say=print)
    assert calls[-1] == ("stop", "7")


def test_a_key_that_is_registered_stays_so(tmp_path, monkeypatch):
    made = sessions.Control("127.0.0.1:1", None, tmp_path / "c")
    for answer, said in (((0, ""), "registered"), ((1, "Public key already in use."), "registered before")):
        monkeypatch.setattr(made, "_call", lambda *a, answer=answer: answer)
        assert made.register(tmp_path / "k.pub") == said
    monkeypatch.setattr(made, "_call", lambda *a: (1, "│ not a key │"))
    with pytest.raises(RuntimeError, match=r"k\.pub cannot be registered: not a key"):
        made.register(tmp_path / "k.pub")

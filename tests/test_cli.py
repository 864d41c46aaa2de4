"""The program: every mistake is one line that says what to do, with the right exit code."""

import errno
import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import adadp
from adadp import cli, commands

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(adadp.__file__).parents[1])}
COMMANDS = ("book", "run", "results", "epsilon", "calibrate", "audit")
PAPER = ["--noise-multiplier", "2", "--sample-rate", "200/60000", "--epochs", "100"]


def call(capsys, *argv):
    """Run in this process: exit code, standard output, standard error."""
    code = cli.main([str(a) for a in argv])
    return code, *capsys.readouterr()


def refused(capsys, *argv, code=2):
    """Run what must fail; its one line."""
    got, out, err = call(capsys, *argv)
    assert (got, out) == (code, ""), (got, out, err)
    assert err.startswith("adadp: error: ") and err.count("\n") == 1 and "Traceback" not in err
    return err


def process(*argv, **options):
    """Start the program as a user does."""
    env = dict(os.environ) | {"PYTHONPATH": str(Path(adadp.__file__).parents[1]), "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-m", "adadp", *argv]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, **options)


# --- help --------------------------------------------------------------------------------------------------------


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"adadp {adadp.__version__}\n"


def test_no_command_shows_the_help(capsys):
    code, out, _ = call(capsys)
    assert code == 2 and all(name in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_examples_that_parse(capsys, command):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    out = capsys.readouterr().out
    examples = [line.split("   ")[0].split() for line in out.splitlines() if line.startswith("  adadp ")]
    assert stop.value.code == 0 and len(examples) >= 2
    for _, *argv in examples:
        arguments, extra = cli._parser().parse_known_args(argv)
        assert not extra and arguments.command == command


def test_the_program_starts_quickly_without_torch():
    code = "import sys, adadp.cli; adadp.cli._parser(); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


# --- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv, words",
    [
        (["bok"], ["'bok'", "did you mean 'book'?", ", ".join(COMMANDS)]),
        (["zzz"], ["'zzz'", "Valid: book"]),
        (["--debgu"], ["command is missing"]),
        (["book", "--profile", "quikc"], ["--profile", "'quikc'", "did you mean 'quick'?", "Valid: quick, paper"]),
        (["book", "--proflie", "paper"], ["'--proflie'", "did you mean --profile?", "adadp book --help"]),
        (["book", "--prof", "paper"], ["'--prof'"]),
        (["book", "--seed", "x"], ["--seed", "'x'"]),
        (["run"], ["EXPERIMENT", "adadp run --help"]),
        (["run", "dp-adam-mnst"], ["did you mean 'dp-adam-mnist'?", "dp-sgd-mnist", "all"]),
        (["run", "all", "--profile", "papre"], ["did you mean 'paper'?"]),
        (["run", "eta0", "--jobs", "0", "--dry-run"], ["--jobs", "'0'", "at least 1"]),
        (["run", "eta0", "--limit", "-1"], ["--limit", "'-1'", "at least 1"]),
        (["run", "eta0", "--tier", "0"], ["--tier", "'0'", "at least 1"]),
        (["run", "eta0", "--backend", "nope"], ["--backend", "'nope'", "Valid: loky, dask, ray"]),
        (["run", "eta0", "--backend", "dask"], ["backend='dask'", "jobs of 2 or more"]),
        (["run", "eta0", "--folder", "/proc/nothing"], ["/proc/nothing", "--folder", "ADADP_CACHE"]),
        (["run", "eta0", "--folder", __file__], ["test_cli.py", "choose another --folder"]),
        (["results", "verify", "--sample", "-2"], ["--sample", "'-2'", "at least 1"]),
        (["results", "status", "--folder", "/no/such"], ["--folder", "/no/such", "is not a folder"]),
        (["results", "claims", "compettive-mnist"], ["did you mean 'competitive-mnist'?"]),
        (["results", "sttus"], ["did you mean 'status'?", "table, verify"]),
        (["results", "table", "--profile", "laptop", "eta1"], ["did you mean 'eta0'?"]),
        (["results", "table", "--proflie", "laptop", "eta0"], ["'--proflie'", "did you mean --profile?"]),
        (["results", "status", "eta0", "--profile", "laptop"], ["size of the federated experiments, not of eta0"]),
        (["results", "table", "eta0", "--profile", "full-data"], ["size of the federated experiments, not of eta0"]),
        (["results", "table", "eta1"], ["did you mean 'eta0'?"]),
        (["epsilon", "--noise-multiplier", "2", "--sample-rate", "1/0", "--steps", "1"], ["--sample-rate", "1/300"]),
        (["epsilon", "--noise-multiplier", "2", "--sample-rate", "2", "--epochs", "1"], ["sample_rate"]),
        (["epsilon", "--noise-multiplier", "nan", "--sample-rate", "0.1", "--steps", "1"], ["noise_multiplier"]),
        (["epsilon", *PAPER, "--delta", "1"], ["delta"]),
        (["epsilon", *PAPER, "--steps", "3"], ["not allowed with"]),
        (["epsilon", *PAPER, "--neighbors", "replace_one", "--accountant", "rdp"], ["replace_one", "pld"]),
        (["audit", "--confidence", "2"], ["confidence"]),
        (["calibrate", "--target-epsilon", "-1", "--sample-rate", "0.1", "--steps", "1"], ["target_epsilon"]),
        (["calibrate", "--epsilon", "3", "--delta", "0.01", "--sample-rate", "0.01", "--steps", "1"], ["delta=0.01"]),
    ],
)
def test_mistakes_are_one_line(capsys, argv, words):
    line = refused(capsys, *argv)
    assert all(word in line for word in words), line


@pytest.mark.parametrize("place", [0, 1])
def test_debug_shows_the_traceback(place):
    argv = ["results", "sttus"]
    argv.insert(2 * place, "--debug")
    with pytest.raises(ValueError, match="sttus"):
        cli.main(argv)


@pytest.mark.parametrize(
    "error, code, words",
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/disk/a.json"),
            2,
            ["no space", "/disk/a.json", "same command"],
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/disk/a.json"), 2, ["/disk/a.json: permission denied"]),
        (RuntimeError("one\n  two"), 2, ["one two"]),
        (ModuleNotFoundError("No module named 'papermill'"), 2, ["papermill", "pip install 'adadp[book]'"]),
        (KeyError("x"), 1, ["KeyError", "--debug"]),
    ],
)
def test_every_error_is_one_line(capsys, monkeypatch, error, code, words):
    def fail(**_):
        raise error

    monkeypatch.setitem(sys.modules, "adadp.publishing.build", types.SimpleNamespace(build_book=fail))
    line = refused(capsys, "book", code=code)
    assert all(word in line for word in words), line


def test_damaged_data_is_one_line(capsys, monkeypatch, tmp_path, cache):
    """From the reader of a file up to the command line."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(b"\x00\x00\x08\x03\x00")
    monkeypatch.setenv("ADADP_DATA", str(tmp_path))

    def load(**_):
        adadp.data.load("mnist")

    monkeypatch.setitem(sys.modules, "adadp.publishing.build", types.SimpleNamespace(build_book=load))
    line = refused(capsys, "book")
    assert str(raw / "train-images-idx3-ubyte") in line and "replace it" in line


def test_ctrl_c_is_130(tmp_path):
    code = (
        "import sys, types, time, adadp.cli\n"
        "def wait(**_):\n    print('waiting', flush=True)\n    time.sleep(60)\n"
        "sys.modules['adadp.publishing.build'] = types.SimpleNamespace(build_book=wait)\n"
        "sys.exit(adadp.cli.main(['book']))"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env=dict(os.environ) | {"PYTHONPATH": str(Path(adadp.__file__).parents[1])},
    )  # fmt: skip
    assert started.stdout.readline() == "waiting\n"
    os.kill(started.pid, signal.SIGINT)
    _, err = started.communicate(timeout=30)
    assert started.returncode == 130 and err.count("\n") == 1 and "interrupted" in err


def test_a_reader_that_leaves_is_no_error():
    started = process("results", "status", stdout=subprocess.PIPE)
    started.stdout.close()
    assert started.stderr.read() == "" and started.wait() == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_the_output():
    with Path("/dev/full").open("w") as full:
        started = process("results", "status", stdout=full)
        err = started.stderr.read()
    assert started.wait() == 2 and err.count("\n") == 1 and "no space left" in err


EPSILON = "epsilon --noise-multiplier 2 --sample-rate 1/300 --steps 10"


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_output_is_no_fault(closed):
    command = f"{shlex.quote(sys.executable)} -m adadp {EPSILON} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0 and done.stderr == ""
    assert ("moments" in done.stdout) == (closed == "2>&-")


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1"])
def test_an_encoding_that_lacks_a_sign_stops_nothing(encoding):
    """Such as that of a file on Windows; the sign is written as its number."""
    command = [sys.executable, "-m", "adadp", "results", "claims", "same-time"]
    done = subprocess.run(command, capture_output=True, env=ENVIRONMENT | {"PYTHONIOENCODING": encoding})
    assert done.returncode == 0 and rb"\u2713" in done.stdout and done.stderr == b""


def test_claims_have_sizes_of_their_own(capsys):
    assert "leave --profile out" in refused(capsys, "results", "claims", "--profile", "full-data")


# --- what the commands do ------------------------------------------------------------------------------------------


def test_book_hands_its_options_on(capsys, monkeypatch):
    seen = {}

    def build_book(**options):
        seen.update(options)
        return Path("/somewhere/index.html")

    monkeypatch.setitem(sys.modules, "adadp.publishing.build", types.SimpleNamespace(build_book=build_book))
    code, out, _ = call(capsys, "book", "--strict", "--no-cache", "--seed", 3, "--jobs", 1, "--device", "cpu")
    assert code == 0 and "/somewhere/index.html" in out
    expected = {"profile": "quick", "seed": 3, "device": "cpu", "strict": True, "use_cache": False, "workers": 1}
    assert seen | expected == seen


def test_book_options_exist_in_build_book():
    """The call above is faked: this holds the two sides together."""
    import inspect

    build = pytest.importorskip("adadp.publishing.build")
    names = set(inspect.signature(build.build_book).parameters)
    assert {"profile", "seed", "device", "strict", "use_cache", "workers", "output", "repository", "commit",
            "pages_branch", "base_url"} <= names  # fmt: skip


def test_results_of_an_empty_folder(capsys, tmp_path):
    code, out, _ = call(capsys, "results", "status", "eta0", "--folder", tmp_path)
    assert code == 0 and out.split()[:4] == ["experiment", "tier", "stored", "planned"] and "eta0" in out
    code, out, _ = call(capsys, "results", "table", "eta0", "--folder", tmp_path)
    assert code == 0 and "nothing stored yet" in out


def test_names_may_come_after_an_option(capsys, tmp_path):
    """As ``adadp results table --profile laptop fed-rounds``, which argparse alone refuses."""
    known = ("--folder", str(tmp_path))
    for argv in (("table", *known, "eta0"), ("table", "eta0", *known), ("table", *known, "eta0", "--seed", "1")):
        _, out, _ = call(capsys, "results", *argv)
        assert out.startswith("eta0\n  nothing stored yet") and "small-d" not in out
    _, plan, _ = call(capsys, "run", "eta0", "--dry-run", "--folder", str(tmp_path), "small-d")
    assert "eta0" in plan and "small-d" in plan


def test_a_size_lists_the_experiments_that_have_it(capsys, tmp_path):
    _, out, _ = call(capsys, "results", "table", "--profile", "laptop", "--folder", str(tmp_path))
    assert "fed-rounds" in out and "eta0" not in out


def test_results_needs_an_action_alone(capsys):
    said = refused(capsys, "results")
    assert "status|table|verify|claims" in said and "NAME" not in said


def test_verify_with_nothing_stored_says_so(capsys, tmp_path):
    assert "no run is stored" in refused(capsys, "results", "verify", "--folder", tmp_path)


def test_a_results_folder_named_by_the_environment_must_be_there(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ADADP_RESULTS", str(tmp_path / "gone"))
    assert "ADADP_RESULTS" in refused(capsys, "results", "status")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("command", [("run", "eta0"), ("run", "eta0", "--dry-run"), ("results", "verify")])
def test_a_device_that_is_not_here_is_one_line(capsys, tmp_path, cache, command):
    line = refused(capsys, *command, "--device", "cuda", "--folder", tmp_path)
    assert "cuda" in line and len(line) < 200 and "'cpu'" in line


def test_a_cache_that_cannot_be_written_to_is_named(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ADADP_CACHE", str(tmp_path / "file" / "cache"))
    line = refused(capsys, "run", "eta0", "--folder", tmp_path / "results")
    assert str(tmp_path / "file" / "cache") in line and "set ADADP_CACHE" in line


def test_damaged_result_is_named(capsys, tmp_path):
    path = tmp_path / "eta0" / "x-0123456789ab.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"id": "0123456789ab"})[:-3])
    assert str(path) in refused(capsys, "results", "status", "--folder", tmp_path)


def test_verify_takes_the_runs_that_an_experiment_asks_for(monkeypatch):
    """A run lies in the folder of the experiment that ran it first; others share it."""
    from adadp.experiments import grids, results

    given = []
    monkeypatch.setattr(commands, "_verify", lambda records, a: given.append(set(records)))
    cli.main(["results", "verify", "fed-batch"])
    records = results.load()
    sizes = ("laptop", "full-data", "paper")
    shared = {c.config.id for size in sizes for c in grids.cells("fed-batch", records, size)} & records.keys()
    assert given == [shared] and any(records[i]["experiment"] != "fed-batch" for i in shared)
    cli.main(["results", "verify", "--profile", "full-data"])
    assert given[1] and all(records[i]["config"]["examples_per_client"] == 10000 for i in given[1])


@pytest.mark.slow
def test_run_then_show_then_verify(capsys, tmp_path, cache):
    """One real run of two epochs, stored, shown, and computed again."""
    code, out, _ = call(capsys, "run", "no-noise", "--profile", "quick", "--limit", 1, "--folder", tmp_path)
    assert code == 0 and out.startswith("1 new runs in ")
    shared = ("--profile", "quick", "--folder", tmp_path)
    code, out, _ = call(capsys, "results", "table", "no-noise", *shared)
    assert code == 0 and "mnist-5k" in out
    code, out, _ = call(capsys, "results", "verify", "no-noise", "--sample", 1, *shared)
    assert code == 0 and "True" in out
    (stored,) = tmp_path.glob("*/*.json")
    record = json.loads(stored.read_text())
    record["rows"]["test_accuracy"][-1] -= 0.2
    stored.write_text(json.dumps(record))
    code, out, err = call(capsys, "results", "verify", "no-noise", "--sample", 1, *shared)
    assert code == 2 and "False" in out and "came out differently" in err


def test_dry_run_computes_nothing(capsys, tmp_path, cache):
    argv = ("run", "no-noise", "--profile", "quick", "--dry-run", "--folder", tmp_path)
    code, out, _ = call(capsys, *argv)
    assert code == 0 and "hours" in out and list(tmp_path.iterdir()) in ([], [cache])


def test_epsilon_by_every_accountant(capsys):
    code, out, _ = call(capsys, "epsilon", *PAPER)
    numbers = {line.split()[0]: float(line.split()[1]) for line in out.splitlines()[1:]}
    assert code == 0 and out.startswith("30000 gradients")
    assert numbers == pytest.approx({"moments": 1.536, "rdp": 1.280, "pld": 1.171}, rel=0.01)
    code, out, _ = call(capsys, "epsilon", *PAPER, "--accountant", "moments")
    assert code == 0 and float(out) == pytest.approx(1.536, abs=1e-3)
    code, out, _ = call(capsys, "epsilon", *PAPER, "--neighbors", "replace_one")
    assert code == 0 and "pld" in out and "moments" not in out


@pytest.mark.parametrize(("sigma", "said"), [("8", True), ("2", False), ("0", False)])
def test_epsilon_says_when_the_best_order_is_the_last(capsys, sigma, said):
    code, out, _ = call(capsys, "epsilon", "--noise-multiplier", sigma, *PAPER[2:])
    (line,) = (line for line in out.splitlines() if "moments" in line)
    assert code == 0 and ("the best order is the last, 32" in line) == said


def test_calibrate_reaches_its_target(capsys):
    plan = ["--sample-rate", "1/300", "--steps", "30000"]
    code, out, _ = call(capsys, "calibrate", "--target-epsilon", "1.171", *plan)
    sigma = out.split()[1]
    assert code == 0 and float(sigma) == pytest.approx(2.0, rel=0.02)
    _, out, _ = call(capsys, "epsilon", "--noise-multiplier", sigma, *plan, "--accountant", "pld")
    assert 1.16 < float(out) <= 1.171


@pytest.mark.parametrize("passed", [True, False])
def test_audit_shows_every_result_and_fails_loudly(capsys, monkeypatch, passed):
    seen = {}

    class Result(str):
        passed = True

    def run_audit(**options):
        seen.update(options)
        results = [Result("PASS one"), Result("second")]
        results[1].passed = passed
        return results

    monkeypatch.setitem(sys.modules, "adadp.auditing", types.SimpleNamespace(run_audit=run_audit))
    code, out, err = call(capsys, "audit", "--profile", "paper", "--noise-multiplier", 2, "--no-one-run")
    assert out.splitlines() == ["PASS one", "second"]
    assert (code, err == "") == ((0, True) if passed else (2, False)) and ("1 of 2 audits failed" in err) != passed
    assert seen | {"quick": False, "one_run": False, "noise_multiplier": 2.0, "strict": False} == seen


def test_calibrate_takes_the_short_name_of_its_target(capsys):
    plan = ["--sample-rate", "1/300", "--steps", "3000", "--accountant", "rdp"]
    short, long = (call(capsys, "calibrate", flag, "1.5", *plan) for flag in ("--epsilon", "--target-epsilon"))
    assert short == long and short[0] == 0
    assert "(one training example, add/remove, Poisson, rdp; tuning not included)" in short[1].splitlines()[1]


def test_printed_epsilons_are_never_below_the_computed(capsys):
    plan = {"noise_multiplier": 1.7, "sample_rate": 0.013, "steps": 777, "delta": 1e-5}
    argv = [f"--{name.replace('_', '-')}={value}" for name, value in plan.items()]
    lines = call(capsys, "epsilon", *argv)[1].splitlines()[1:]
    shown = dict(line.split() for line in lines)
    for name, text in shown.items():
        exact = adadp.epsilon(**plan, accountant=name)
        assert exact <= float(text) < exact + 1.01e-4
        alone = float(call(capsys, "epsilon", *argv, "--accountant", name)[1])
        assert exact <= alone < exact * (1 + 2e-5)


def test_the_table_says_what_its_epsilons_are_and_where_they_are_no_guarantee(capsys, tmp_path):
    from adadp.experiments import grids, results

    cells = grids.cells("sampling-control", {})
    shuffled = next(cell.config for cell in cells if cell.config.sampler == "shuffled")
    rows = {"epoch": [1], "steps": [300], "test_accuracy": [0.5], "epsilon_moments": [0.4], "epsilon_pld": [0.12341]}
    results.save({"config": shuffled.to_dict(), "rows": rows, "data": "made up"}, "sampling-control", tmp_path)
    code, out, _ = call(capsys, "results", "table", "sampling-control", "--folder", tmp_path)
    assert code == 0 and "0.1235" in out and "is no guarantee" in out
    assert "epsilon: of one run, rounded up, for one training example, add/remove" in out


@pytest.mark.parametrize("name", commands.FAULTS)
def test_a_planted_fault_ends_the_audit_with_an_error(capsys, monkeypatch, name):
    from adadp import auditing

    quickly = functools.partial(auditing.run_audit, observations=20)
    monkeypatch.setattr(auditing, "run_audit", quickly)
    code, out, err = call(capsys, "audit", "--plant", name, "--no-one-run")
    assert code == 2 and "FAIL" in out and "less private than it declares" in err


def test_the_faults_that_can_be_planted_are_those_of_the_package():
    from adadp.auditing.faults import FAULTS

    assert tuple(FAULTS) == commands.FAULTS


@pytest.mark.slow
def test_audit_of_the_real_gradient(capsys):
    code, out, _ = call(capsys, "audit", "--no-one-run")
    assert code == 0 and out.count("PASS") == len(out.splitlines()) >= 5


def test_choose():
    assert commands.choose("a", ["a", "b"], "letter") == "a"
    with pytest.raises(ValueError, match="unknown letter 'c'; Valid: a, b"):
        commands.choose("c", ["a", "b"], "letter")

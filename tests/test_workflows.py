"""The workflows: pinned, with no more rights than they need, and calling only what exists."""

import itertools
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from adadp import cli

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FLOWS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES}
JOBS = [(flow, name) for flow, content in FLOWS.items() for name in content["jobs"]]

each = pytest.mark.parametrize("flow", FLOWS)
each_job = pytest.mark.parametrize(("flow", "job"), JOBS)


def steps(flow: str, key: str) -> list:
    """What the steps of a workflow say under a key."""
    found = [step.get(key) for job in FLOWS[flow]["jobs"].values() for step in job["steps"]]
    return [value for value in found if value is not None]


def commands(flow: str) -> list[list[str]]:
    """Words of every command that a workflow runs, continuation lines joined."""
    lines = [line for run in steps(flow, "run") for line in run.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line.strip()]


def test_there_are_three():
    assert set(FLOWS) == {"ci", "publish", "weekly"}


@each
def test_names_triggers_and_concurrency(flow):
    content = FLOWS[flow]
    assert content["name"] == flow and content["concurrency"]["group"]
    assert content.get("on", content.get(True)), "YAML 1.1 reads the word `on` as true"
    assert "pull_request_target" not in str(content), "it would hand our rights to strangers' code"


@each
def test_actions_are_githubs_own_and_pinned_to_a_version(flow):
    for action in steps(flow, "uses"):
        assert re.fullmatch(r"actions/[a-z-]+@v\d+\.\d+\.\d+", action), action


def test_a_book_that_is_kept_knows_its_history():
    """Its Claims page says which commit wrote a rule; a shallow clone cannot."""
    kept = {"pages": "build", "book": "test"}  # artifact -> job
    found = {}
    for content in FLOWS.values():
        for name, job in content["jobs"].items():
            uploads = [s["with"]["name"] for s in job["steps"] if "upload-artifact" in s.get("uses", "")]
            (depth,) = [s.get("with", {}).get("fetch-depth") for s in job["steps"] if "checkout" in s.get("uses", "")]
            found |= dict.fromkeys(uploads, (name, depth))
    assert {what: found[what] for what in kept} == {what: (job, 0) for what, job in kept.items()}


@each_job
def test_rights_are_the_least(flow, job):
    assert FLOWS[flow]["permissions"] == {"contents": "read"}
    given = FLOWS[flow]["jobs"][job].get("permissions", {"contents": "read"})
    assert given == ({"contents": "write"} if (flow, job) == ("publish", "push") else {"contents": "read"})
    for step in FLOWS[flow]["jobs"][job]["steps"]:
        if "checkout" in step.get("uses", "") and given["contents"] == "read":
            assert step["with"]["persist-credentials"] is False


@each_job
def test_jobs_end(flow, job):
    assert 0 < FLOWS[flow]["jobs"][job]["timeout-minutes"] <= 120


@each
def test_nothing_secret_and_nothing_foreign_reaches_a_shell(flow):
    text = next(path for path in FILES if path.stem == flow).read_text(encoding="utf-8")
    assert "secrets." not in text and "github.token" not in text and "GITHUB_TOKEN" not in text
    for run in steps(flow, "run"):
        assert "set -x" not in run
        assert set(re.findall(r"\$\{\{\s*(.+?)\s*\}\}", run)) <= {"matrix.target"}, "a branch's name could be a command"


@each
def test_commands_exist(flow):
    targets = set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split())
    for words in commands(flow):
        program = words[0]
        if program == "make":
            wanted = [word for word in words[1:] if "=" not in word]
            chosen = [i["target"] for i in FLOWS["ci"]["jobs"]["test"]["strategy"]["matrix"]["include"]]
            assert set(chosen if "${{" in wanted else wanted) <= targets, words
        elif program.endswith("/adadp"):
            arguments, extra = cli._parser().parse_known_args(words[1:])
            assert arguments.command and extra == []
        else:
            script = words[1] if program == "python3" else program
            assert (ROOT / script).is_file(), words


def test_every_supported_python_is_tested_and_one_runs_everything():
    matrix = FLOWS["ci"]["jobs"]["test"]["strategy"]["matrix"]["include"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {c.rsplit(" ", 1)[1] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert {entry["python"] for entry in matrix} == named
    assert all(f"{python}.0" in SpecifierSet(project["requires-python"]) for python in named)
    assert [entry["target"] for entry in matrix].count("test-all") == 1


def test_pages_are_built_at_their_commit_and_carry_hidden_files():
    (book,) = [words for words in commands("publish") if words[0].endswith("/adadp")]
    options = dict(itertools.pairwise(book))
    assert options["--commit"] == "$GITHUB_SHA" and "--strict" in book
    assert options["--repository"] == "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY"
    uploads = [step["with"] for step in FLOWS["publish"]["jobs"]["build"]["steps"] if "upload" in step.get("uses", "")]
    assert uploads[0]["include-hidden-files"] is True, "without .nojekyll GitHub leaves out _static"


# --- what they run ---------------------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path):
    """A repository with a remote on this machine, and a folder of pages in it."""
    bare, work = tmp_path / "remote.git", tmp_path / "work"
    subprocess.run(["git", "init", "-q", "--bare", bare], check=True)
    subprocess.run(["git", "clone", "-q", bare, work], check=True, capture_output=True)
    git = ["git", "-C", work, "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (work / "code.py").write_text("1\n")
    (work / ".gitignore").write_text("_build/\n")
    for command in (["add", "."], ["commit", "-qm", "first"], ["push", "-q", "origin", "HEAD:main"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    pages = work / "_build" / "pages"
    (pages / "_static").mkdir(parents=True)
    for name in ("index.html", ".nojekyll", "_static/a.css"):
        (pages / name).write_text(name)
    return work


def git(folder: Path, *arguments: str) -> str:
    """Output of a git command."""
    return subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True).stdout.strip()


def publish(work: Path) -> subprocess.CompletedProcess:
    """Run .ci/publish as the workflow does."""
    return subprocess.run([ROOT / ".ci" / "publish", "_build/pages"], cwd=work, capture_output=True, text=True)


def test_pages_replace_the_branch_as_one_commit_and_leave_the_rest_alone(clone):
    head = git(clone, "rev-parse", "HEAD")
    for content in ("old", "new"):
        (clone / "_build/pages/index.html").write_text(content)
        done = publish(clone)
        assert done.returncode == 0, done.stderr
    git(clone, "fetch", "-q", "origin")
    assert git(clone, "ls-tree", "-r", "--name-only", "origin/gh-pages").split() == [
        ".nojekyll", "_static/a.css", "index.html",
    ]  # fmt: skip
    assert git(clone, "show", "origin/gh-pages:index.html") == "new"
    assert git(clone, "log", "--format=%s", "origin/gh-pages") == f"Pages of {head}"
    assert git(clone, "rev-parse", "HEAD") == git(clone, "rev-parse", "origin/main") == head
    assert git(clone, "status", "--porcelain") == ""


@pytest.mark.parametrize("name", ["index.html", ".nojekyll"])
def test_what_is_no_folder_of_pages_is_not_published(clone, name):
    (clone / "_build/pages" / name).unlink()
    done = publish(clone)
    assert done.returncode == 2 and "gh-pages" not in git(clone, "ls-remote", "origin")


@pytest.mark.parametrize(("script", "wanted"), [("colab.py", "REPOSITORY COMMIT"), ("lowest.py", "FOLDER")])
def test_scripts_need_their_arguments(script, wanted):
    done = subprocess.run([sys.executable, ROOT / ".ci" / script], capture_output=True, text=True)
    assert done.returncode != 0 and wanted in done.stderr


def test_the_oldest_releases_are_known_and_their_tests_exist():
    lowest = runpy.run_path(str(ROOT / ".ci" / "lowest.py"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["book"]]:
        name, series = lowest["oldest"](requirement)
        assert SpecifierSet(requirement.removeprefix(name)).contains(series.removesuffix(".*"))
    assert all(list((ROOT / "tests").glob(f"test_{name}.py")) for name in lowest["TESTS"])

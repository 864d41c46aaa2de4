"""Launch copies and buttons: they open exactly the commit that was built, and leave what is installed alone."""

import ast
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from adadp.publishing import launch, toc
from adadp.publishing import notebook as nbk
from adadp.publishing.build import build_book

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = [p.relative_to(ROOT).as_posix() for p in toc.pages(ROOT) if p.suffix == ".ipynb"]
PROSE = [p.relative_to(ROOT).with_suffix("").as_posix() for p in toc.pages(ROOT) if p.suffix == ".md"]
REPOSITORY, COMMIT = "https://github.com/org/name", "0123456789abcdef0123456789abcdef01234567"

each = pytest.mark.parametrize("name", NOTEBOOKS)


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A folder with a launch copy of every notebook."""
    folder = tmp_path_factory.mktemp("copies")
    launch.write_copies(ROOT, folder, NOTEBOOKS, REPOSITORY, COMMIT)
    return folder


@each
def test_a_copy_differs_from_its_notebook_by_its_first_code_cell(copies, name):
    committed, copied = nbk.read(ROOT / name), nbk.read(copies / name)
    cells = [c for c in copied.cells if c.cell_type == "code"]
    assert cells[0].metadata.tags == [launch.TAG] and cells[1].metadata.tags == ["parameters"]
    assert copied.cells[0].source == committed.cells[0].source, "the title comes first"
    copied.cells.remove(cells[0])
    assert copied == committed


@each
def test_the_first_cell_gets_the_commit_and_nothing_else(copies, name):
    source = next(c.source for c in nbk.read(copies / name).cells if c.cell_type == "code")
    ast.parse(source)
    assert f"adadp @ git+{REPOSITORY}@{COMMIT}" in source and COMMIT[:12] in source.splitlines()[0]
    assert source.count("pip") >= 1 and "--no-deps" in source and "launch.install_missing()" in source
    assert source.count("\n") < 15


@pytest.fixture(scope="module")
def published(executed):
    """Folder of the real book, built strictly with an address."""
    options = {"repository": REPOSITORY, "commit": COMMIT, "base_url": "https://org.github.io/name/"}
    return build_book(ROOT, strict=True, output=ROOT / "_build" / "published", **options).parent


@pytest.mark.book
@each
def test_every_executable_page_opens_in_colab_and_binder_at_the_commit(published, name):
    page = (published / name).with_suffix(".html").read_text(encoding="utf-8")
    colab = re.findall(r'href="(https://colab[^"]*)"', page)
    binder = re.findall(r'href="(https://mybinder[^"]*)"', page)
    assert set(colab) == {f"https://colab.research.google.com/github/org/name/blob/gh-pages/launch/{name}"}
    assert set(binder) == {f"https://mybinder.org/v2/gh/org/name/{COMMIT}?urlpath=lab/tree/{name}"}
    assert COMMIT in (published / "launch" / name).read_text(encoding="utf-8"), "where Colab's link leads to"


@pytest.mark.book
@pytest.mark.parametrize("name", PROSE)
def test_pages_of_prose_have_a_link_to_their_source_and_no_rocket(published, name):
    page = (published / name).with_suffix(".html").read_text(encoding="utf-8")
    assert "colab.research" not in page and "mybinder.org" not in page
    assert f'href="{REPOSITORY}"' in page


@pytest.mark.parametrize(
    ("repository", "commit"),
    [("org/name", COMMIT), ("https://github.com/org/na me", COMMIT), ("ssh://x/y", COMMIT), (REPOSITORY, "main"),
     (REPOSITORY, "0123"), (REPOSITORY, COMMIT.upper()), ('https://x/"+y', COMMIT), ("https://user@x/y", COMMIT)],
)  # fmt: skip
def test_what_is_no_address_or_no_commit_is_refused(repository, commit):
    with pytest.raises(ValueError, match=r"^(repository|commit) must be"):
        launch.check_address(repository, commit)


# --- only what is missing -------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch):
    """An environment by name: package -> (version or None, requirements); pip is only noted."""
    packages = {
        "adadp": ("0.1.0", ["torch>=2.6", "alpha>=1,<2", "beta>=2; extra == 'book'", "jupyter-book; extra == 'book'",
                            "gamma; extra == 'dev'", "delta; python_version < '3'"]),
        "torch": ("2.6.0", ["never-asked"]),
        "alpha": (None, ["torch<2", "epsilon>=3"]),
        "beta": ("1.0", []),
        "epsilon": (None, []),
    }  # fmt: skip
    installed, calls = {name for name, (version, _) in packages.items() if version}, []

    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return packages[name][0] or "9"

    def run(command, **options):
        calls.append(command)
        installed.add(re.split("[<>=]", command[-1])[0])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(launch.metadata, "version", version)
    monkeypatch.setattr(launch.metadata, "requires", lambda name: packages[name][1])
    monkeypatch.setattr(launch.subprocess, "run", run)
    return calls


def test_what_is_missing_is_installed_alone_and_what_is_here_stays(environment, capsys):
    assert launch.install_missing() == ["alpha", "epsilon"]
    assert [command[-1] for command in environment] == ["alpha<2,>=1", "epsilon>=3"]
    assert all("--no-deps" in command for command in environment), "pip must not touch torch, which alpha wants older"
    said = capsys.readouterr().out
    assert "beta 1.0 is here, adadp asks for >=2: left as it is" in said
    assert "installed besides: alpha, epsilon" in said
    assert launch.install_missing() == []


def test_what_cannot_be_installed_is_named(environment, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "no such thing")
    monkeypatch.setattr(launch.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(RuntimeError, match=r"pip could not install alpha<2,>=1: no such thing"):
        launch.install_missing()


def test_tools_are_in_the_books_extra_and_what_notebooks_import_is_not_among_them():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[^A-Za-z0-9._-]", r)[0] for r in extras[launch.EXTRA]}
    assert names >= launch.TOOLS, "a tool that the extra does not have any more"
    assert {"matplotlib", "ipywidgets", "mlxtend", "torchvision"} <= names - launch.TOOLS


def test_the_runtime_part_needs_no_tool_of_the_book():
    """On Colab there is no nbformat of ours, no papermill, no Sphinx."""
    code = "import sys\nfor name in ('nbformat', 'papermill', 'sphinx', 'yaml'): sys.modules[name] = None\n"
    code += "from adadp.publishing import launch, record\nprint(launch.missing())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "No package metadata" in done.stderr or done.returncode == 0, done.stderr

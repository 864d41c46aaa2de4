"""The pipeline on a small book of its own: what it refuses, what it keeps, what it does again, and how it ends."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from adadp.experiments import results
from adadp.publishing import build, inputs, mirror, pages, provenance, sphinx_extension, toc, worker
from adadp.publishing import notebook as nbk
from adadp.publishing.build import build_book
from adadp.publishing.execute import Page, environment

ROOT = Path(__file__).resolve().parents[1]
COMMIT = 5 * "0123abcd"
PARAMETERS = 'profile = "quick"\nseed = 0\ndevice = "cpu"'
QUICK = {"profile": "quick", "seed": 0, "device": "cpu"}


def notebook(*sources: str, parameters: str = PARAMETERS):
    """A notebook: title, parameters cell, and one code cell for each source."""
    cells = [
        new_markdown_cell("# Page\n\nAn equation $x^2$."),
        new_code_cell(parameters, metadata={"tags": ["parameters"]}),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=[*cells, *map(new_code_cell, sources)], metadata={"kernelspec": kernel})


def write(root: Path, *sources: str) -> None:
    """Make ``sources`` the cells of the small book's notebook."""
    nbformat.write(notebook(*sources), root / "notebooks" / "page.ipynb")


GOOD = """from adadp.publishing import record
record('loss', 0.1234)
record('provenance', 'toy data')
print(profile, seed)"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with one prose page, one notebook, the real configuration and the real package."""
    root = tmp_path / "repository"
    (root / "notebooks").mkdir(parents=True)
    shutil.copytree(ROOT / "adadp", root / "adadp", ignore=shutil.ignore_patterns("__pycache__", "stored"))
    shutil.copytree(ROOT / "book" / "assets", root / "book" / "assets")
    shutil.copy2(ROOT / "book" / "references.bib", root / "book")
    shutil.copy2(ROOT / "_config.yml", root)
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/index\nchapters:\n  - file: notebooks/page\n")
    (root / "book" / "index.md").write_text(
        f"# Book\n\nLoss {{glue:text}}`../notebooks/page.ipynb::loss:.2f` in commit {COMMIT} of it.\n"
    )
    write(root, GOOD)
    monkeypatch.setenv("ADADP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ADADP_COMMIT", "0123456789abcdef")
    return root


@pytest.fixture
def old(root):
    """The same repository with a previous book in place; gives the content of its first page."""
    page = root / "_build" / "html" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("the previous book")
    (page.parent / pages.NOTE).write_text("{}")
    return page


def lines(**options) -> tuple[list[str], Path]:
    """What a build says about its progress, and the index it returns."""
    said: list[str] = []
    return said, build_book(device="cpu", report=said.append, **options)


# --- parameters and clean-up of one notebook ------------------------------------------------------------------------


def test_parameters_are_read():
    assert nbk.parameters(notebook("1"), "n") == {"profile": "quick", "seed": 0, "device": "cpu"}


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ("profile = 'quick'\nseed = 0", "does not set device"),
        (f"{PARAMETERS}\nn = {{'quick': 1}}[profile]", "line 4 of the parameters cell must be `name = literal`"),
        (f"{PARAMETERS}\nprint(seed)", "line 4"),
        (f"{PARAMETERS}\n%matplotlib inline", "notebooks/n.ipynb: line 4 of the parameters cell is not Python"),
        (f"import os\n{PARAMETERS}", "line 1"),
        (f"{PARAMETERS}\na = b = 1", "line 4"),
    ],
)
def test_parameters_cell_holds_three_literals(parameters, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        nbk.parameters(notebook("1", parameters=parameters), "notebooks/n.ipynb")


def test_parameters_cell_is_the_first_and_the_only_one():
    nb = notebook("1")
    nb.cells[1].metadata = {}
    with pytest.raises(ValueError, match=r"notebooks/n\.ipynb: exactly one code cell, the first"):
        nbk.parameters(nb, "notebooks/n.ipynb")
    nb = notebook("1")
    nb.cells.insert(0, new_code_cell("import os"))
    with pytest.raises(ValueError, match="the first"):
        nbk.parameters(nb, "n")


def test_clean_strips_state_times_and_the_repeated_cell():
    nb = notebook("1")
    nb.metadata |= {"widgets": {"state": 1}, "papermill": {"input_path": "/home/someone"}}
    nb.cells.insert(2, new_code_cell("# Parameters", metadata={"tags": ["injected-parameters"]}))
    nb.cells[3].metadata = {"papermill": {"duration": 1}, "execution": {"t": 1}, "tags": []}
    nbk.clean(nb, QUICK)
    assert set(nb.metadata) == {"kernelspec"}
    assert len(nb.cells) == 3 and nb.cells[2].metadata == {}


def test_clean_keeps_the_cell_that_changed_a_value():
    nb = notebook("1")
    nb.cells.insert(2, new_code_cell("seed = 7", metadata={"tags": ["injected-parameters"]}))
    assert [c.source for c in nbk.clean(nb, QUICK | {"seed": 7}).cells][2] == "seed = 7"


def test_record_is_found_again(monkeypatch):
    import IPython.display
    import numpy as np
    import torch

    from adadp.publishing import record

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw, metadata: shown.append((data, metadata)))

    class Picture:
        html, title = "<div>sliders</div>", "A picture"

    for name, value in (("a", np.float64(0.5)), ("b", torch.tensor(3)), ("c", "text"), ("d", [1, "x"])):
        record(name, value)
    record("e", Picture())
    nb = notebook("1")
    nb.cells[2].outputs = [new_output("display_data", data=d, metadata=m) for d, m in shown]
    assert nbk.recorded(nb) == {"a": 0.5, "b": 3, "c": "text", "d": [1, "x"], "e": "A picture"}
    assert shown[-1][0]["application/papermill.record/text/html"] == "<div>sliders</div>"
    with pytest.raises(ValueError, match="identifier"):
        record("final loss", 1)


# --- table of contents ----------------------------------------------------------------------------------------------


def test_pages_in_reading_order(root):
    assert [p.relative_to(root).as_posix() for p in toc.pages(root)] == ["book/index.md", "notebooks/page.ipynb"]


def test_toc_and_files_must_agree(root):
    (root / "book" / "extra.md").write_text("# Extra")
    (root / "book" / "_fragment.md").write_text("included elsewhere")
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/index\nchapters:\n  - file: notebooks/gone\n")
    with pytest.raises(ValueError, match="differ") as error:
        build_book(root)
    for fault in (
        "notebooks/gone is listed but there is no such file",
        "extra.md in book/ is not listed",
        "page.ipynb",
    ):
        assert fault in str(error.value)
    assert "_fragment" not in str(error.value)


@pytest.mark.parametrize("text", ["- a\n- b\n", "root: [", "", "root: book/index\nchapters: [1]\n"])
def test_toc_that_is_none(root, text):
    (root / "_toc.yml").write_text(text)
    with pytest.raises(ValueError, match=r"_toc\.yml"):
        build_book(root)


def test_no_toc_and_unknown_arguments(root, tmp_path):
    with pytest.raises(ValueError, match="repository's root"):
        build_book(tmp_path)
    with pytest.raises(ValueError, match="profile must be one of quick, paper, got 'quikc'"):
        build_book(root, profile="quikc")
    with pytest.raises(ValueError, match="device"):
        build_book(root, device="tpu")
    for workers in (0, -1):
        with pytest.raises(ValueError, match=rf"workers \(--jobs\) must be at least 1, got {workers}"):
            build_book(root, workers=workers)


# --- what makes a page be executed again ----------------------------------------------------------------------------


def _key(root: Path, **changes) -> str:
    parameters = QUICK | changes
    return inputs.digest(root / "notebooks" / "page.ipynb", inputs.surroundings(root, "cpu"), parameters)


def _edit_code(root, monkeypatch):
    (root / "adadp" / "models.py").open("a").write("\n# another line\n")


def _edit_notebook(root, monkeypatch):
    write(root, GOOD + "\n1")


def _store_result(root, monkeypatch):
    (root / "adadp" / "experiments" / "stored").mkdir(parents=True, exist_ok=True)
    (root / "adadp" / "experiments" / "stored" / "run.json").write_text("{}")


def _add_data(root, monkeypatch):
    (inputs.data_folder() / "MNIST").mkdir(parents=True)
    (inputs.data_folder() / "MNIST" / "images").write_bytes(b"123")


def _new_version(root, monkeypatch):
    monkeypatch.setattr(inputs, "version", lambda name: "999")


def _gpu(root, monkeypatch):
    monkeypatch.setattr(inputs, "device_name", lambda device: "Some GPU")


@pytest.mark.parametrize("change", [_edit_code, _edit_notebook, _store_result, _add_data, _new_version, _gpu])
def test_key_changes_with_what_a_page_depends_on(root, monkeypatch, change):
    before = _key(root)
    assert _key(root) == before
    change(root, monkeypatch)
    assert _key(root) != before


def test_key_changes_when_a_rule_is_committed(root):
    """The page of claims names the commit of each rule; the files are the same before and after."""
    who = {f"GIT_{role}_{what}": "x" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    before = _key(root)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "a rule"]):
        subprocess.run(["git", *command], cwd=root, check=True, env=os.environ | who)
    assert _key(root) != before


def test_key_changes_with_profile_seed_and_device(root):
    assert len({_key(root), _key(root, profile="paper"), _key(root, seed=1), _key(root, device="cuda")}) == 4


def test_key_does_not_depend_on_what_a_build_keeps_beside_the_data(root):
    """On a fresh machine data and cache share a folder: the second build must find the first one's pages."""
    before = _key(root)
    inputs.data_folder().mkdir(parents=True)
    for name in ("mnist-5k-bundled.npz", ".writable-1", ".half.tmp", "features/x.npz"):
        (inputs.data_folder() / name).parent.mkdir(exist_ok=True)
        (inputs.data_folder() / name).write_bytes(b"1")
    assert _key(root) == before


def test_pages_are_made_from_the_results_that_are_published(root, monkeypatch):
    monkeypatch.setenv("ADADP_RESULTS", "/somewhere/else")
    monkeypatch.setenv("ADADP_RESULTS", environment(root)["ADADP_RESULTS"])
    assert results.stored_folder() == results.PACKAGED


def test_key_does_not_depend_on_bytecode_or_place(root, tmp_path):
    before = _key(root)
    (root / "adadp" / "__pycache__").mkdir()
    (root / "adadp" / "__pycache__" / "x.pyc").write_bytes(b"1")
    moved = root.rename(tmp_path / "elsewhere")
    assert _key(moved) == before


# --- the whole way --------------------------------------------------------------------------------------------------


def test_book_is_built_kept_and_rebuilt(root):
    said, index = lines(root=root, strict=True)
    assert index == root / "_build" / "html" / "index.html" and index.is_file()
    assert any(re.search(r"notebooks/page\.ipynb: executed in \d+\.\d s", line) for line in said)
    prose = (root / "_build/html/book/index.html").read_text()
    assert "Loss" in prose and ">0.12<" in prose
    assert "from commit 0123456789ab, profile quick, seed 0, on cpu. Data: toy data." in prose
    page = (root / "_build/html/notebooks/page.html").read_text()
    assert "quick 0" in page and "This page was executed on" in page
    committed = nbk.read(root / "notebooks/page.ipynb")
    assert not any(c.outputs for c in nbk.code_cells(committed)), "the committed notebook was written to"
    executed = json.loads((root / "_build/html/_sources/notebooks/page.ipynb").read_text())
    assert not {"widgets", "papermill"} & set(executed["metadata"])
    _nothing_from_elsewhere(index.parent)
    _no_launch_buttons(page)

    said, _ = lines(root=root, strict=True)
    assert said == ["  notebooks/page.ipynb: unchanged", f"  nothing changed since {index.parent} was built"]

    (root / "book/index.md").write_text("# Another title\n")
    said, _ = lines(root=root)
    assert said[0] == "  notebooks/page.ipynb: unchanged" and "pages built" in said[1]
    assert "Another title" in (root / "_build/html/book/index.html").read_text()

    said, _ = lines(root=root, seed=3)
    assert "executed in" in said[0]
    page = (root / "_build/html/notebooks/page.html").read_text()
    assert "quick 3" in page and 'class="n">seed</span>' in page


def _nothing_from_elsewhere(html: Path) -> None:
    """No page loads anything over the network."""
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)\s*=\s*[\"']((?:https?:)?//[^\"']*)")
    for page in html.rglob("*.html"):
        assert loads.findall(page.read_text(encoding="utf-8")) == [], page


def _no_launch_buttons(page: str) -> None:
    """A book without an address has no buttons that lead nowhere."""
    assert "colab" not in page and "mybinder" not in page and "launch-buttons" not in page


def test_launch_buttons_and_copies_with_an_address(root):
    _, index = lines(root=root, repository="https://github.com/org/name", commit="0123abc", base_url="https://o.io/b/")
    page = (index.parent / "notebooks/page.html").read_text()
    assert "https://colab.research.google.com/github/org/name/blob/gh-pages/launch/notebooks/page.ipynb" in page
    assert "https://mybinder.org/v2/gh/org/name/0123abc?urlpath=lab/tree/notebooks/page.ipynb" in page
    prose = (index.parent / "book/index.html").read_text()
    assert "launch-buttons" not in prose, "prose has nothing to execute"
    assert f'<a href="https://github.com/org/name/commit/{COMMIT}">' in prose
    copied = nbk.read(index.parent / "launch/notebooks/page.ipynb")
    first, second, *_ = [c for c in copied.cells if c.cell_type == "code"]
    assert "adadp @ git+https://github.com/org/name@0123abc" in first.source
    assert "parameters" in second.metadata.tags and not any(c.get("outputs") for c in copied.cells)
    assert (index.parent / ".nojekyll").is_file(), "GitHub would leave out _static"
    committed = nbk.read(root / "notebooks/page.ipynb")
    assert [c.id for c in copied.cells if c.id != "code-launch"] == [c.id for c in committed.cells]
    assert yaml.safe_load((root / "_config.yml").read_text()).get("repository") is None
    lines(root=root)
    page = (index.parent / "notebooks/page.html").read_text()
    _no_launch_buttons(page)
    prose = (index.parent / "book/index.html").read_text()
    assert COMMIT[:12] in prose and COMMIT not in prose, "a commit of no known repository is short and leads nowhere"
    assert not (index.parent / "launch").exists(), "built locally there is nothing to launch"


def test_addresses_that_are_none(root, monkeypatch):
    with pytest.raises(ValueError, match="repository must be an address"):
        build_book(root, repository="org/name")
    with pytest.raises(ValueError, match="commit must be 7 to 40 hexadecimal digits, got 'main'"):
        build_book(root, repository="https://github.com/org/name", commit="main")
    monkeypatch.delenv("ADADP_COMMIT")
    with pytest.raises(ValueError, match="got 'unknown'; name it with --commit"):
        build_book(root, repository="https://github.com/org/name")


def test_a_tree_that_differs_from_its_commit_is_not_published(root, monkeypatch):
    monkeypatch.setattr(provenance, "commit", lambda root: "0123456789ab+")
    with pytest.raises(RuntimeError, match="files differ from commit 0123456789abcdef, which the launch buttons open"):
        lines(root=root, strict=True, repository="https://github.com/org/name")


def test_failing_cell_is_named_and_the_old_book_stays(root, old, capsys):
    write(root, GOOD, "x = {}\n\nx['missing']")
    with pytest.raises(RuntimeError) as error:
        lines(root=root)
    assert str(error.value).startswith("notebooks/page.ipynb, code cell 3: KeyError: 'missing'")
    assert "previous book" in str(error.value) and old.read_text() == "the previous book"
    shown = capsys.readouterr().err
    assert "notebooks/page.ipynb, code cell 3" in shown and "----> 3 x['missing']" in shown
    assert not list((root / "_build/nbcache").iterdir()), "a failed page must not be kept"


def test_dead_kernel_is_named(tmp_path):
    nbformat.write(notebook("1", "import os\nos._exit(3)", "2"), tmp_path / "n.ipynb")
    job = {"source": str(tmp_path / "n.ipynb"), "target": str(tmp_path / "o.ipynb"), "parameters": QUICK, "timeout": 60}
    failure = worker.run(job)
    assert failure["cell"] == 3 and "DeadKernel" in failure["error"]


def test_cell_that_never_ends_is_named(tmp_path):
    nbformat.write(notebook("import time\ntime.sleep(60)"), tmp_path / "n.ipynb")
    job = {"source": str(tmp_path / "n.ipynb"), "target": str(tmp_path / "o.ipynb"), "parameters": QUICK, "timeout": 1}
    failure = worker.run(job)
    assert failure["cell"] == 2 and "CellTimeout" in failure["error"]


def test_strict_refuses_what_a_plain_build_lists(root, old):
    write(root, GOOD, "import warnings\nwarnings.warn('look out')")
    with pytest.raises(RuntimeError, match=r"notebooks/page\.ipynb, code cell 3 wrote to stderr: .*look out"):
        lines(root=root, strict=True)
    (root / "book/index.md").write_text("# Book\n\nSee [that](missing.md) and {eq}`nowhere`.\n")
    assert old.read_text() == "the previous book"
    said, _ = lines(root=root)
    listed = [line for line in said if line.startswith("  warning: ")]
    assert len(listed) == 3, said
    assert any("book/index.md:3" in line and "missing.md" in line for line in listed)
    said, _ = lines(root=root)
    assert [line for line in said if line.startswith("  warning: ")] == listed, "a kept book keeps its warnings"

    write(root, GOOD)
    before = (root / "_build/html/book/index.html").read_bytes()
    with pytest.raises(RuntimeError, match=r"Jupyter Book failed \(2\): book/index\.md:3: WARNING"):
        lines(root=root, strict=True)
    assert (root / "_build/html/book/index.html").read_bytes() == before
    assert not (root / "_build/new").exists()


# --- endings --------------------------------------------------------------------------------------------------------


def _start(root: Path, *arguments: str, **options) -> subprocess.Popen:
    """``adadp book`` in a process of its own."""
    command = [sys.executable, "-m", "adadp", "book", "--device", "cpu", *arguments]
    return subprocess.Popen(
        command, cwd=root, env=environment(ROOT), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def _processes(word: str) -> list[str]:
    """Command lines of running processes that contain a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if word.encode() in path.read_bytes():
                found.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it ended meanwhile, or is another user's
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads processes from /proc")
@pytest.mark.parametrize(
    ("sent", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_ending_it_ends_everything_and_keeps_the_old_book(root, old, monkeypatch, sent, code, word):
    mark = f"ADADP_TEST_MARK={root}"
    monkeypatch.setenv(*mark.split("=", 1))
    flag = root / "started"
    write(root, f"open({str(flag)!r}, 'w').close()\nimport time\ntime.sleep(100)")
    process = _start(root)
    deadline = time.monotonic() + 60
    while not flag.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert flag.exists(), "the notebook never started"
    process.send_signal(sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code and err.startswith(f"adadp: {word}") and err.count("\n") == 1, err
    assert old.read_text() == "the previous book"
    while (left := _processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    mine = " ".join(Path("/proc/self/cmdline").read_text().split("\0"))
    assert [p for p in left if p.strip() != mine.strip()] == []
    assert not list((root / "_build/nbcache").iterdir())


@pytest.mark.parametrize("kilobytes", [1, 200])
def test_write_errors_keep_the_old_book(root, old, kilobytes):
    """A limit on file sizes fails writes for real: of the executed notebook (1 kB), or of the pages (200 kB)."""
    import resource

    limit = kilobytes * 1024
    process = _start(root, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    _, err = process.communicate(timeout=100)
    assert process.returncode == 2, err
    assert err.strip().splitlines()[-1].startswith("adadp: error: ") and "Traceback" not in err
    assert "File too large" in err or "no space left" in err
    assert old.read_text() == "the previous book"
    assert not (root / "_build/new").exists()


def test_full_disk_says_what_to_do(root, old, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mirror.shutil, "copytree", full)
    monkeypatch.setattr(build, "execute", lambda *a, **k: [])
    with pytest.raises(OSError, match=r"no space left .*: free some and start again; the previous book is intact"):
        build_book(root)
    assert old.read_text() == "the previous book"


def test_swap_replaces_the_whole_book(tmp_path):
    new, output = tmp_path / "new", tmp_path / "html"
    for folder in (new, output):
        folder.mkdir()
        (folder / f"{folder.name}.html").write_text(folder.name)
    pages.swap(new, output)
    assert [p.name for p in tmp_path.iterdir()] == ["html"]
    assert [p.name for p in output.iterdir()] == ["new.html"]


def test_a_book_may_go_to_another_disk(tmp_path, monkeypatch):
    """A rename fails there: the pages are copied first, and the old book moves only when they are all there."""
    html, output, rename = tmp_path / "_build" / "html", tmp_path / "disk" / "book", os.rename

    def on_one_disk(source, target):
        if len({"_build" in Path(place).parts for place in (source, target)}) == 2:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(source, target)

    monkeypatch.setattr(os, "rename", on_one_disk)
    monkeypatch.setattr(Path, "rename", lambda self, target: on_one_disk(self, target))
    for folder, text in ((html, "new"), (output, "old")):
        folder.mkdir(parents=True)
        (folder / "index.html").write_text(text)
    with monkeypatch.context() as full:

        def part_of_it(source, target, **options):
            Path(target).mkdir()
            (Path(target) / "index.html").write_text("new")
            raise OSError(errno.ENOSPC, "full")

        full.setattr(shutil, "copytree", part_of_it)
        with pytest.raises(OSError, match="full"):
            pages.swap(html, output)
    assert (output / "index.html").read_text() == "old" and [p.name for p in output.parent.iterdir()] == ["book"]
    pages.swap(html, output)
    assert (output / "index.html").read_text() == "new" and [p.name for p in output.parent.iterdir()] == ["book"]


def test_old_book_comes_back_after_a_swap_cut_short(root, old):
    old.parent.rename(old.parent.with_name(".html.adadp-old"))
    write(root, "1 / 0")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        lines(root=root)
    assert old.read_text() == "the previous book"


def test_a_folder_that_is_no_book_is_left_alone(root, tmp_path):
    """Nothing is executed, moved or deleted; a stranger's folder of a similar name is no interrupted book either."""
    mine, site = tmp_path / "mine", tmp_path / "site"
    mine.mkdir()
    (mine / "thesis.tex").write_text("x")
    for output, complaint in ((mine, "no book"), (root, "holds the repository"), (tmp_path, "holds the repository")):
        with pytest.raises(ValueError, match=complaint):
            build_book(root, output=output)
    with pytest.raises(ValueError, match="is a file"):
        build_book(root, output=mine / "thesis.tex")
    (mine / "index.html").write_text("any web site has a first page")
    with pytest.raises(ValueError, match="no book"):
        build_book(root, output=mine)
    for place in ("_build", "_build/new", "_build/nbcache/x", "book/html", "notebooks", "adadp/html"):
        with pytest.raises(ValueError, match="where the build works or reads"):
            build_book(root, output=root / place)
    for name in ("site.old", ".site.adadp-old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("x")
    pages.restore(site)
    assert not site.exists() and (mine / "thesis.tex").read_text() == "x"
    sphinx = tmp_path / "sphinx"
    sphinx.mkdir()
    (sphinx / ".buildinfo").touch()  # an older book of Sphinx alone
    for fine in (tmp_path / "new", root / "_build" / "html", root / "docs" / "book", sphinx):
        pages.check_output(root, fine)


def test_pages_that_sphinx_only_warned_about_are_not_taken(tmp_path, monkeypatch):
    """Sphinx warns, and ends well, where it could not copy a style sheet: such a book would be broken."""

    class Done:
        returncode = 0

    def run(command, stdout, **options):
        stdout.write("WARNING: Failed to copy a file in the theme's 'static' directory: x.css: OSError(28, 'full')\n")
        (tmp_path / "new/_build/html").mkdir(parents=True)
        (tmp_path / "new/_build/html/index.html").write_text("new")
        return Done

    monkeypatch.setattr(pages.subprocess, "run", run)
    with pytest.raises(RuntimeError, match=r"could not be written: .*full"):
        pages._run(tmp_path / "src", tmp_path / "new", tmp_path / "log", strict=False)


def test_second_build_waits_for_the_first(tmp_path):
    import threading

    said, order = [], []
    inside, leave = threading.Event(), threading.Event()

    def first():
        with mirror.lock(tmp_path, said.append):
            inside.set()
            leave.wait(10)
            order.append("first")

    def second():
        with mirror.lock(tmp_path, said.append):
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    inside.wait(10)
    threads[1].start()
    while not said:
        time.sleep(0.01)
    leave.set()
    for thread in threads:
        thread.join(10)
    assert order == ["first", "second"] and said == ["  waiting for another build of this book to finish"]


# --- small parts ----------------------------------------------------------------------------------------------------


def test_complaints_are_plain_and_named_once(tmp_path):
    log = f"\x1b[91m{tmp_path}/book/a.md:3: WARNING: bad\x1b[0m\nfine\n{tmp_path}/book/a.md:3: WARNING: bad\n"
    assert pages.complaints(log, tmp_path) == ["book/a.md:3: WARNING: bad"]


def test_provenance_of_each_data_set_once(tmp_path):
    executed = []
    for i, said in enumerate((["MNIST (official)", "CIFAR-10 (JPEG copy)"], "MNIST (official)")):
        nb = notebook("1")
        scrap = {"scrapbook": {"name": "provenance", "mime_prefix": "p/"}}
        nb.cells[2].outputs = [new_output("display_data", data={"p/text/plain": repr(said)}, metadata=scrap)]
        nbformat.write(nb, tmp_path / f"{i}.ipynb")
        executed.append(Page(f"{i}", tmp_path / f"{i}.ipynb"))
    assert provenance.data_lines(executed) == ["MNIST (official)", "CIFAR-10 (JPEG copy)"]


def test_parts_of_data_and_pages_without_any_are_left_out(monkeypatch):
    for said, shown in (
        (["no data: noise", "MNIST; the first 10", "MNIST"], "MNIST"),
        (["no data: noise"], "no data: noise"),
    ):
        monkeypatch.setattr(provenance.nbk, "read", lambda path: path)
        monkeypatch.setattr(provenance.nbk, "recorded", lambda said: {"provenance": said})
        data = provenance.data_lines([Page(line, line) for line in said])
        facts = {"date": "", "commit": "", "profile": "", "seed": 0, "device": "", "data": data}
        assert sphinx_extension.origin(facts).count("Data: ") == 1
        assert f"Data: {shown}.</p>" in sphinx_extension.origin(facts)


def test_commit_is_that_of_the_repository(tmp_path, monkeypatch):
    monkeypatch.delenv("ADADP_COMMIT", raising=False)
    assert provenance.commit(tmp_path) == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "f").write_text("1")
    for command in (["init", "-q"], ["add", "f"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    name = provenance.commit(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{12}", name)
    (tmp_path / "f").write_text("2")
    assert provenance.commit(tmp_path) == name + "+"


def test_scripts_registered_twice_load_once():
    class Script:
        def __init__(self, filename, **attributes):
            self.filename, self.attributes = filename, attributes

    first, again = Script("a.js"), Script("a.js")
    inline, other = Script("", body="const a = 1"), Script("", body="const b = 1")
    context = {"script_files": [first, again, inline, other, inline]}
    sphinx_extension.clean_scripts(None, "p", "page.html", context, None)
    assert context["script_files"] == [first, inline, other] and context["default_mode"] == "auto"


def test_environment_is_this_repositorys(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    env = environment(tmp_path)
    assert env["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path) and env["OMP_NUM_THREADS"] == "3"
    assert "inline" in env["MPLBACKEND"], "figures of a kernel must not go to a window or to nowhere"

"""What the README shows works: its code runs, its commands are understood, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from adadp.cli import main
from benchmarks import quick_start

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_example_learns_and_says_what_it_cost(capsys, cache):
    torch.manual_seed(0)
    names: dict = {}
    exec(quick_start.quick_start(), names)
    assert names["optimizer"].accepted == 100 and round(names["tol"], 2) == 2.18
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"test accuracy {names['accuracy']:.1%}"
    assert said[1] == "epsilon = 1.57 at delta = 1e-05" and "ε = 1.57" in TEXT
    ((low, high),) = re.findall(r"\| ADADP as above \| found \| ([0-9.]+)–([0-9.]+) % \|", TEXT)
    assert float(low) - 3 < 100 * names["accuracy"] < float(high) + 3


def lines_of(*patterns):
    files = {path for pattern in patterns for path in (ROOT / "adadp").glob(pattern)}
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


PARTS = {
    "its step-size rule about {} lines": ["optimizer.py", "multi_tensor.py", "param_groups.py", "step_size.py"],
    "RDP and PLD; about {} lines": ["privacy/*.py"],
    "with real ones; about {} lines": ["federated/**/*.py"],
    "than it says; about {} lines": ["auditing/*.py"],
}
MACHINERY = ["experiments/*.py", "figures/*.py", "publishing/*.py", "c*.py", "parsing.py", "timing.py", "__main__.py"]


@pytest.mark.parametrize("words", PARTS)
def test_sizes_are_told_as_they_are(words):
    (told,) = re.findall(re.escape(words).replace(r"\{\}", "([0-9,]+)"), " ".join(TEXT.split()))
    assert lines_of(*PARTS[words]) == pytest.approx(int(told.replace(",", "")), rel=0.15)


def test_the_halves_of_the_package_are_told_as_they_are():
    words = " ".join(TEXT.split())
    (library,) = re.findall(r"library of about ([0-9,]+) lines", words)
    (machinery,) = re.findall(r"other half, about ([0-9,]+) lines", words)
    rest = lines_of(*MACHINERY)
    assert rest == pytest.approx(int(machinery.replace(",", "")), rel=0.15)
    assert lines_of("**/*.py") - rest == pytest.approx(int(library.replace(",", "")), rel=0.15)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)", TEXT))))
def test_links_lead_somewhere(link):
    assert link.startswith("https://") or (ROOT / link).exists()


COMMANDS = [line.split("#")[0].strip() for line in TEXT.splitlines() if line.startswith("adadp ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command, capsys, monkeypatch, cache, tmp_path):
    words = shlex.split(command)[1:]
    monkeypatch.chdir(tmp_path)  # runs leave a folder where they are started
    if "run" in words:
        monkeypatch.setattr("adadp.experiments.estimates.seconds", lambda config, device: 60.0)
    assert main(words) == 0
    assert capsys.readouterr().out


def test_the_picture_is_there_and_can_be_drawn_again():
    assert (ROOT / "docs" / "overview.svg").read_text(encoding="utf-8").startswith("<?xml")
    from adadp.figures.overview import overview

    assert len(overview().axes) >= 2

"""What the README shows works: its code runs, its commands are understood, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from adadp.cli import main

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_example_runs_as_it_stands(capsys, cache):
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    names: dict = {}
    exec(code, names)
    assert names["optimizer"].accepted == 100 and 0 < float(capsys.readouterr().out) < 10


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

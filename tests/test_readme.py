"""What the README shows works: its code runs, its commands are understood, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from adadp.cli import main

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_eight_lines_run():
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert "steps=30000)" in code
    x = torch.randn(400, 1, 28, 28)
    names = {"x": x, "y": torch.randint(10, (400,)), "generator": torch.Generator().manual_seed(0)}
    names["model"] = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    exec(code.replace("steps=30000)", "steps=4)"), names)
    assert names["optimizer"].accepted == 2


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)", TEXT))))
def test_links_lead_somewhere(link):
    assert link.startswith("https://") or (ROOT / link).exists()


COMMANDS = [line.split("#")[0].strip() for line in TEXT.splitlines() if line.startswith("adadp ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command, capsys, monkeypatch, cache):
    words = shlex.split(command)[1:]
    if "run" in words:
        monkeypatch.setattr("adadp.experiments.estimates.seconds", lambda config, device: 60.0)
    assert main(words) == 0
    assert capsys.readouterr().out


def test_the_picture_is_there_and_can_be_drawn_again():
    assert (ROOT / "docs" / "overview.svg").read_text(encoding="utf-8").startswith("<?xml")
    from adadp.figures.overview import overview

    assert len(overview().axes) >= 2

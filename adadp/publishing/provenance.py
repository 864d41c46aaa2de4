"""What a built book says about itself: when, of which commit, with which settings, on what, from which data."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adadp import git
from adadp.publishing import inputs
from adadp.publishing import notebook as nbk
from adadp.publishing.execute import Page

FILE = "build-facts.json"
DATED = ("date",)


def collect(root: Path, executed: list[Page], *, profile: str, seed: int, device: str) -> dict[str, Any]:
    """The facts of one build; the data are what the notebooks themselves recorded as their ``provenance``."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(root),
        "profile": profile,
        "seed": seed,
        "device": inputs.device_name(device),
        "data": data_lines(executed),
    }


def data_lines(executed: list[Page]) -> list[str]:
    """Each data set once, in the order of the pages, parts of it not; pages without data where no page has any."""
    lines: dict[str, None] = {}
    for page in executed:
        said = nbk.recorded(nbk.read(page.path)).get("provenance", [])
        lines |= dict.fromkeys([said] if isinstance(said, str) else said)
    parts = {part for part in lines for whole in lines if part.startswith(f"{whole};")}
    return [line for line in lines if line not in parts and not line.startswith("no data")] or list(lines)


def commit(root: Path) -> str:
    """Short name of the commit, with ``+`` where files differ from it; "unknown" outside a git repository."""
    named = os.environ.get("ADADP_COMMIT")
    if named:
        return named[:12]
    name = git.answer(root, "rev-parse", "--short=12", "HEAD")
    if not name:
        return "unknown"
    return name + ("+" if git.answer(root, "status", "--porcelain", "--untracked-files=no") else "")


def full_commit(root: Path) -> str:
    """Full name of the commit that is checked out, or "unknown"."""
    return os.environ.get("ADADP_COMMIT") or git.answer(root, "rev-parse", "HEAD") or "unknown"


def undated(path: Path) -> str:
    """The facts without the date: the same book built tomorrow is the same book."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    return json.dumps({k: v for k, v in facts.items() if k not in DATED}, sort_keys=True)

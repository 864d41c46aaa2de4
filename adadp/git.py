"""What git says of the checkout that the code lies in."""

import subprocess
from pathlib import Path


def answer(folder: Path, *arguments: str) -> str | None:
    """What a git command prints in a folder; None without git, outside a checkout, or where the command fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def tracks(file: Path) -> bool:
    """Whether a file is of the checkout that it lies in: a package may be installed below somebody's own repository."""
    return answer(file.parent, "ls-files", "--error-unmatch", file.name) is not None

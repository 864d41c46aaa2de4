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

"""Where things lie on this machine: data sets, and what was computed once. Nothing heavy is imported here."""

import os
from pathlib import Path

HOME = "~/.cache/adadp"


def data_folder() -> Path:
    """Where data sets are looked for and downloaded to: ``$ADADP_DATA``, else ``~/.cache/adadp``."""
    return Path(os.environ.get("ADADP_DATA") or HOME).expanduser()


def cache_folder() -> Path:
    """Where what was computed is kept: ``$ADADP_CACHE``, else ``~/.cache/adadp``."""
    return Path(os.environ.get("ADADP_CACHE") or HOME).expanduser()

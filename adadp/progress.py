"""A progress bar where somebody is looking, and silence everywhere else."""

import os
import sys
from importlib.util import find_spec


def progress_bar(total: int, *, initial: int = 0, show: bool = True, unit: str = "step"):
    """A tqdm bar: on a terminal, or as a widget in a live notebook; disabled where nobody looks.

    Never a line on a standard error that is a file or a pipe, so logs and executed notebooks stay clean.
    ``ADADP_PROGRESS=0`` turns it off (the book is built that way).

    Args:
        total: steps at the end.
        initial: steps already done.
        show: False disables it.
        unit: what is counted.
    """
    from tqdm.std import tqdm

    options = {"total": total, "initial": initial, "unit": unit, "leave": False, "mininterval": 0.5}
    if not show or os.environ.get("ADADP_PROGRESS") == "0":
        return tqdm(**options, disable=True)
    if _in_kernel() and find_spec("ipywidgets"):
        from tqdm.notebook import tqdm as widget

        return widget(**options)
    return tqdm(**options, disable=not (sys.stderr and sys.stderr.isatty()))


def _in_kernel() -> bool:
    """Whether this runs in a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")

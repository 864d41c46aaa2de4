"""Files that are either whole or absent: atomic writes, and checkpoints that hold tensors and plain values only.

Everything is written under a temporary name in the same folder and renamed, so a run killed in mid-write leaves the
previous file as it was.
"""

import contextlib
import io
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np


def write_atomic(path: str | os.PathLike, data: bytes | str) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old file or the new one, never a part of either.

    Args:
        path: target file; its folder is made if it is missing. A link stays one: what it leads to is written.
        data: bytes, or text that is written as UTF-8.

    Raises:
        OSError: the file cannot be written (no permission, no space); the temporary file is removed and an existing
            target is untouched.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "new" / "note.txt"
    >>> write_atomic(target, "σ = 2")
    >>> target.read_text(encoding="utf-8")
    'σ = 2'
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode("utf-8") if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())  # without it a power cut can leave the new name on an empty file
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def save(path: str | os.PathLike, state: dict[str, Any]) -> None:
    """Store ``state`` (tensors, numbers, strings, and lists and dictionaries of them) at ``path``, atomically.

    Raises:
        OSError: as :func:`write_atomic`.
        TypeError: it holds something else, which :func:`load` would refuse later; nothing is written.
    """
    content = _packed({name: _plain(value) for name, value in state.items()})
    try:
        _unpacked(content)
    except Exception as error:
        raise TypeError(
            f"a checkpoint holds tensors, numbers, strings, lists and dictionaries only: {error}"
        ) from error
    write_atomic(path, content)


def _packed(state: dict[str, Any]) -> bytes:
    """As torch stores it; a full disk is met later, where it is an OSError and not one of torch's zip writer."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _unpacked(content: bytes) -> Any:
    """What :func:`_packed` packed, on the CPU; code hidden in it is never run."""
    import torch

    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _plain(value: Any) -> Any:
    """Numpy's numbers as Python's, also inside of lists and dictionaries: they count as numbers everywhere else."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if type(value) in (dict, OrderedDict):
        return type(value)((_plain(key), _plain(part)) for key, part in value.items())
    return value


def load(path: str | os.PathLike) -> dict[str, Any]:
    """Read back what :func:`save` stored, on the CPU; code hidden in a file is never run (``weights_only=True``).

    Raises:
        FileNotFoundError: there is no such file.
        RuntimeError: the file is not a whole checkpoint; the message names it.
    """
    content = Path(path).read_bytes()  # apart, for torch has an OSError for some damaged files, too
    try:
        state = _unpacked(content)
    except Exception as error:  # zip, pickle and torch each have errors of their own for a damaged file
        raise RuntimeError(f"{path} is not a whole checkpoint; delete it and start that run again") from error
    if not isinstance(state, dict):
        raise RuntimeError(f"{path} is not a checkpoint of adadp; delete it and start that run again")
    return state

"""Stored results: one JSON file a run, written whole or not at all; reading and aggregating.

A file is ``<experiment>/<slug>-<id>.json`` below the stored folder. Its rows are columns of equal length (one entry an
evaluation, see :mod:`adadp.experiments.columns`), numbers have six significant digits, and what is not finite is null.
Such a number is the nearest one; an epsilon is read as the next above it, for it must never be below the truth.
A run belongs to every experiment whose cells name its id; the folder only says which one ran it first.
"""

import json
import math
import os
import re
import statistics
from pathlib import Path

from adadp.checkpoint import write_atomic
from adadp.experiments import grids
from adadp.experiments.columns import packed, unpacked
from adadp.experiments.configs import from_dict
from adadp.experiments.plan import STORED
from adadp.folders import cache_folder
from adadp.readers import reason

FEWER = {"test_loss": 4, "error": 4, "discarded": 6}  # significant digits of columns that no claim rests on
WITHIN = 4  # of learning rates within rounds, which claims compare in tenths
FILE = re.compile(r".+-([0-9a-f]{12})\.json")
PACKAGED = Path(__file__).with_name("stored")


def stored_folder(profile: str = "paper", folder=None) -> Path:
    """Where results of a profile lie: the package, or the cache folder (pilot, quick).

    `folder`, or else the environment variable ``ADADP_RESULTS``, takes the package's place.
    """
    if profile not in STORED:
        return Path(folder) if folder else cache_folder() / profile
    return Path(folder or os.environ.get("ADADP_RESULTS") or PACKAGED)


def compact(value, digits: int = 6):
    """Floats to so many significant digits, non-finite ones to None, through lists and dictionaries.

    Columns of diagnostics keep :data:`FEWER` digits, and none at all where a method has no such thing (an lr search has
    hundreds of runs, and the whole store has to travel with the package).
    """
    if isinstance(value, dict):
        kept = {
            k: v for k, v in value.items() if not (k in FEWER and isinstance(v, list) and all(x is None for x in v))
        }
        return {key: compact(item, FEWER.get(key, digits)) for key, item in kept.items()}
    if isinstance(value, list | tuple):
        return [compact(item, digits) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value


def save(record: dict, experiment: str, folder: Path) -> Path:
    """Write a record in one step; a process killed here leaves the old state or the new one, nothing between."""
    config = from_dict(record["config"])
    rest = {k: compact(v, WITHIN if k == "within_rounds" else 6) for k, v in record.items() if k != "config"}
    rest["rows"] = {name: packed(column) for name, column in rest["rows"].items()}
    path = Path(folder) / experiment / f"{config.slug}-{config.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps({"id": config.id, "config": config.to_dict(), **rest}, separators=(",", ":")) + "\n")
    return path


def load(folder=None, profile: str = "paper", known: dict | None = None) -> dict[str, dict]:
    """Every stored record by id.

    Args:
        folder, profile: see :func:`stored_folder`.
        known: records already read; their files are not read again.

    Raises:
        RuntimeError: a file is not what :func:`save` writes; the message names it.
    """
    records = {}
    for path in sorted(stored_folder(profile, folder).glob("*/*.json")):
        if not (match := FILE.fullmatch(path.name)):
            continue
        records[match[1]] = (known or {}).get(match[1]) or read(path)
    return records


def read(path: Path) -> dict:
    """One stored record, checked against its file name.

    Raises:
        RuntimeError: not readable, or config, id and file name disagree.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        actual = from_dict(record["config"]).id
        record["rows"] = _rows(record["rows"])
    except OSError as error:
        raise RuntimeError(f"{path} cannot be read ({reason(error)}); make it readable, or remove it") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else reason(error)
        raise RuntimeError(f"{path} is not a stored run ({said}); remove it and run its experiment again") from error
    if not record.get("id") == actual == FILE.fullmatch(path.name)[1]:
        raise RuntimeError(f"{path}: id and config disagree ({actual}); remove it and run its experiment again")
    return record | {"experiment": path.parent.name}


def _rows(stored: dict) -> dict:
    """Rows as lists of one length; what follows relies on it."""
    if not isinstance(stored, dict):
        raise ValueError("rows are not columns")
    rows = {name: unpacked(column) for name, column in stored.items()}
    if len({len(column) for column in rows.values()}) != 1 or not min(map(len, rows.values())):
        raise ValueError("the columns of its rows are empty or differ in length")
    return {name: [_above(v) for v in column] if "epsilon" in name else column for name, column in rows.items()}


def _above(stored: float | None) -> float | None:
    """The next number of six significant digits: what was rounded to the one given is not above it.

    >>> _above(1.53612), _above(0.0999999), _above(0.0), _above(None)
    (1.53613, 0.1, 0.0, None)
    """
    return float(f"{stored + 10.0 ** (math.floor(math.log10(stored)) - 5):.6g}") if stored else stored


def curves(experiment: str, records: dict, profile: str = "paper") -> list[dict]:
    """The stored runs of an experiment, grouped into curves: same role and same config but for the seed.

    Returns:
        one dictionary a curve: role, peeking, tier, config (of one seed, as a dictionary), records, planned (seeds).
    """
    return grouped(grids.cells(experiment, records, profile), records)


def grouped(cells, records: dict) -> list[dict]:
    """Cells as curves, see :func:`curves`."""
    groups: dict = {}
    for cell in cells:
        key = (cell.role, cell.config.but(seed=0).id)
        new = dict(
            role=cell.role, peeking=cell.peeking, config=cell.config.to_dict(), tier=cell.tier, records=[], planned=0
        )
        group = groups.setdefault(key, new)
        group["planned"] += 1
        if cell.config.id in records:
            group["records"].append(records[cell.config.id])
    return list(groups.values())


def finals(curve: dict) -> list[float]:
    """Final accuracies of a curve in percent, one a stored seed; empty for a run that measures something else."""
    columns = [r["rows"].get("test_accuracy") for r in curve["records"]]
    return [100 * column[-1] for column in columns if column]


def spread(values: list[float]) -> str:
    """A mean in percent and its spread over seeds in words.

    >>> spread([90.0, 91.0, 92.0]), spread([90.0])
    ('91.0 % (90.0 to 92.0, 3 seeds)', '90.0 % (one seed)')
    """
    ends = f"{min(values):.1f} to {max(values):.1f}, {len(values)} seeds" if len(values) > 1 else "one seed"
    return f"{statistics.fmean(values):.1f} % ({ends})"

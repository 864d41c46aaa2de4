"""Stored results: one JSON file a run, written whole or not at all; reading, aggregating, comparing.

A file is ``<experiment>/<slug>-<id>.json`` below the stored folder. Its rows are columns of equal length (one entry an
evaluation), numbers have six significant digits, and what is not finite is null. A run belongs to every experiment
whose cells name its id; the folder only says which one ran it first.
"""

import json
import math
import os
import random
import re
import statistics
from pathlib import Path

from adadp.checkpoint import write_atomic
from adadp.experiments import grids
from adadp.experiments.configs import from_dict
from adadp.experiments.plan import STORED

FEWER = {"test_loss": 4, "error": 4, "discarded": 6}  # significant digits of columns that no claim rests on
FILE = re.compile(r".+-([0-9a-f]{12})\.json")
PACKAGED = Path(__file__).with_name("stored")


def stored_folder(profile: str = "paper", folder=None) -> Path:
    """Where results of a profile lie: the package, or the cache folder (pilot, quick).

    `folder`, or else the environment variable ``ADADP_RESULTS``, takes the package's place.
    """
    if profile not in STORED:
        cache = Path(os.environ.get("ADADP_CACHE", Path.home() / ".cache" / "adadp"))
        return Path(folder) if folder else cache / profile
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
    rest = {key: compact(value) for key, value in record.items() if key != "config"}
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
        record = json.loads(path.read_text())
        actual = from_dict(record["config"]).id
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise RuntimeError(f"{path} is not a stored run ({error}); remove it and run its experiment again") from error
    if not record["id"] == actual == FILE.fullmatch(path.name)[1]:
        raise RuntimeError(f"{path}: id and config disagree ({actual}); remove it and run its experiment again")
    return record | {"experiment": path.parent.name}


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


def summary(curve: dict, column: str = "test_accuracy") -> dict:
    """Mean, lowest and highest of a column over the seeds of a curve, row by row, and the final mean and spread.

    Returns:
        dictionary with seeds, mean, low, high (lists), final and spread (percentage points between the extreme seeds),
        or only seeds = 0 when nothing is stored.
    """
    columns = [r["rows"][column] for r in curve["records"]]
    if not columns:
        return {"seeds": 0}
    rows = [[math.nan if v is None else v for v in row] for row in zip(*columns, strict=True)]
    last = rows[-1]
    return {
        "seeds": len(columns),
        "mean": [statistics.fmean(row) for row in rows],
        "low": [min(row) for row in rows],
        "high": [max(row) for row in rows],
        "final": statistics.fmean(last),
        "spread": 100 * (max(last) - min(last)),
    }


def status(records: dict, profile: str = "paper") -> list[dict]:
    """Stored and planned runs per experiment and tier; later stages are counted as if grids were interior."""
    rows = []
    for name in grids.EXPERIMENTS:
        planned = {}
        for cell in grids.cells(name, records, profile, assume=True):
            planned[cell.config.id] = min(cell.tier, planned.get(cell.config.id, 9))
        for tier in sorted(set(planned.values())):
            ids = [i for i, t in planned.items() if t == tier]
            done = sum(i in records for i in ids)
            rows.append({"experiment": name, "tier": tier, "stored": done, "planned": len(ids)})
    return rows


def table(experiment: str, records: dict, profile: str = "paper") -> list[dict]:
    """One row a curve: role, setting, lr, final accuracy in percent with spread; epsilon under both accountants."""
    rows = []
    for curve in curves(experiment, records, profile):
        config = curve["config"]
        numbers = summary(curve) if config["kind"] in ("private", "federated") else {"seeds": 0}
        if not numbers["seeds"]:
            continue
        last = {k: v[-1] for k, v in curve["records"][0]["rows"].items()}
        row = {"role": curve["role"] + (" (peeking)" if curve["peeking"] else "")}
        if config["kind"] == "private":
            row |= {"sigma": config["noise_multiplier"]}
        else:
            row |= {"random": config["random_fraction"], "batch_size": config["batch_size"]}
        row |= {
            "lr": config["lr"],
            "seeds": f"{numbers['seeds']}/{curve['planned']}",
            "accuracy": round(100 * numbers["final"], 2),
            "spread": round(numbers["spread"], 2),
        }
        row |= {name: last[name] for name in ("epsilon_moments", "epsilon_pld") if name in last}
        rows.append(row | {"data": curve["records"][0]["data"]})
    return rows


def to_dataframe(records: dict):
    """One row an evaluation of every stored run, config fields as columns (needs pandas)."""
    import pandas

    frames = []
    for record in records.values():
        frame = pandas.DataFrame(record["rows"])
        frames.append(frame.assign(id=record["id"], data=record["data"], **record["config"]))
    return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()


def verify(records: dict, *, sample: int = 3, seed: int = 0, device: str = "auto", margin: float = 0.5) -> list[dict]:
    """Re-run some stored private runs and compare their final accuracy.

    Args:
        records: id -> record, as :func:`adadp.experiments.results.load` gives.
        sample: how many; the draw depends on `seed`.
        device: where; on another kind of device than the stored one the margin is three times as wide (seed spread).
        margin: allowed difference in percentage points on the same kind of device.

    Returns:
        a row a run: id, stored and new accuracy in percent, difference, and ok (None: other data, not comparable).
    """
    from adadp.experiments.execution import execute

    choice = [r for _, r in sorted(records.items()) if r["config"]["kind"] == "private"]
    rows = []
    for record in random.Random(seed).sample(choice, min(sample, len(choice))):
        new = execute(from_dict(record["config"]), device=device)
        row = {"id": record["id"], "experiment": record.get("experiment"), "ok": None}
        if new["data"] == record["data"]:
            old_final, new_final = (100 * r["rows"]["test_accuracy"][-1] for r in (record, new))
            same_device = record["device"].split()[0] == new["device"].split()[0]
            allowed = margin if same_device else 3 * margin
            row |= dict(stored=round(old_final, 2), new=round(new_final, 2), difference=round(new_final - old_final, 3))
            row["ok"] = abs(new_final - old_final) <= allowed
        rows.append(row)
    return rows

"""Stored runs, computed again and compared: same data only, and not closer than the device allows."""

import random
from collections.abc import Callable

from adadp.experiments.configs import Config, from_dict

MARGIN = 0.5  # percentage points on the same kind of device
ALONE = 1.5  # across devices, where the spread over seeds is not known


def verify(
    records: dict,
    *,
    sample: int = 3,
    seed: int = 0,
    device: str = "auto",
    margin: float = MARGIN,
    report: Callable[[Config], None] = lambda config: None,
) -> list[dict]:
    """Re-run some stored runs and compare their final accuracy.

    Args:
        records: id -> record, as :func:`adadp.experiments.results.load` gives.
        sample: how many; the draw depends on `seed`.
        device: where. On another kind of device than the stored one (cpu, cuda) other random numbers are drawn, so
            that the run is a fresh seed: it must lie within the spread of the curve's stored seeds.
        margin: allowed difference in percentage points on the same kind of device, and the least allowed on another.
        report: told each config before it is run; runs of other data are not.

    Returns:
        a row a run: id, experiment, slug, ok (None: other data, not comparable); where the data are the same also
        stored and new accuracy in percent, difference and allowed difference in points.

    Raises:
        ValueError: nothing to draw from, or a sample below 1.
    """
    from adadp.experiments.execution import execute, provenance

    choice = [r for _, r in sorted(records.items()) if r["config"]["kind"] != "timing"]
    if sample < 1:
        raise ValueError(f"sample={sample} must be at least 1")
    if not choice:
        raise ValueError("no run is stored that could be computed again; `adadp run EXPERIMENT` makes them")
    rows = []
    for record in random.Random(seed).sample(choice, min(sample, len(choice))):
        config = from_dict(record["config"])
        row = {"id": record["id"], "experiment": record.get("experiment"), "slug": config.slug, "ok": None}
        if provenance(config) == record["data"]:  # else hours of computation could not be compared
            report(config)
            new = execute(config, device=device)
            old_final, new_final = _final(record), _final(new)
            allowed = margin if _kind(record) == _kind(new) else max(margin, seed_spread(record, records))
            row |= dict(stored=round(old_final, 2), new=round(new_final, 2), difference=round(new_final - old_final, 3))
            row |= dict(allowed=round(allowed, 2), ok=abs(new_final - old_final) <= allowed)
        rows.append(row)
    return rows


def seed_spread(record: dict, records: dict) -> float:
    """Points between the extreme stored seeds of a run's curve, made from the same data; where it is alone, 1.5."""
    curve = from_dict(record["config"]).but(seed=0)
    alike = [r for r in records.values() if r["config"]["kind"] == curve.kind and r["data"] == record["data"]]
    finals = [_final(r) for r in alike if from_dict(r["config"]).but(seed=0) == curve]
    return max(finals) - min(finals) if len(finals) > 1 else ALONE


def _final(record: dict) -> float:
    """Final accuracy in percent."""
    return 100 * record["rows"]["test_accuracy"][-1]


def _kind(record: dict) -> str:
    """Kind of the device a record was made on: cpu or cuda."""
    return record["device"].split()[0]

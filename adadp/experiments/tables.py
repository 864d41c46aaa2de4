"""What is stored, as tables: by experiment, by tier, one row a curve; and why runs failed."""

import statistics

from adadp.experiments import grids
from adadp.experiments.configs import Config
from adadp.experiments.results import curves, finals


def status(records: dict, profile: str = "paper") -> list[dict]:
    """Stored and planned runs per experiment and tier; later stages are counted as if grids were interior.

    Returns:
        rows with experiment, tier, stored, planned. A run that several experiments share counts in each of them.
    """
    rows = []
    for name in grids.EXPERIMENTS:
        planned = _planned([name], records, profile)
        for tier in sorted({tier for _, tier in planned.values()}):
            rows.append({"experiment": name} | _row(planned, tier, records))
    return rows


def tiers(records: dict, profile: str = "paper", names=None) -> list[dict]:
    """The same by tier, over all experiments or some; a run that several share counts once, in its lowest tier."""
    planned = _planned(names or grids.EXPERIMENTS, records, profile)
    return [_row(planned, tier, records) for tier in sorted({tier for _, tier in planned.values()})]


def _planned(names, records: dict, profile: str) -> dict[str, tuple[Config, int]]:
    """Every run that experiments ask for: id -> config, lowest tier."""
    found: dict[str, tuple[Config, int]] = {}
    for name in names:
        for cell in grids.cells(name, records, profile, assume=True):
            tier = min(cell.tier, found.get(cell.config.id, (None, cell.tier))[1])
            found[cell.config.id] = (cell.config, tier)
    return found


def _row(planned: dict, tier: int, records: dict) -> dict:
    """Runs of one tier: stored and planned."""
    ids = [i for i, (_, at) in planned.items() if at == tier]
    return {"tier": tier, "stored": sum(i in records for i in ids), "planned": len(ids)}


def table(experiment: str, records: dict, profile: str = "paper") -> list[dict]:
    """One row a curve that has a stored run, settings in order.

    Returns:
        rows with role, setting, lr, what else differs within a role, seeds (stored/planned), accuracy (final, percent,
        mean over seeds), range (lowest to highest seed), epsilon under both accountants after the last epoch (private
        runs), and data (their provenance). Rows of timing runs have the median seconds of an epoch of each method
        instead of an accuracy.
    """
    stored = [c for c in curves(experiment, records, profile) if c["records"]]
    rows = [_curve_row(curve, _differing([c for c in stored if c["role"] == curve["role"]])) for curve in stored]
    return sorted(rows, key=lambda row: (row.get("sigma", 0), row.get("random", 0)))


def _differing(same_role: list[dict]) -> list[str]:
    """Fields of the configs, beside those that every table shows, that tell the curves of a role apart."""
    first, shown = same_role[0]["config"], {"noise_multiplier", "lr", "random_fraction", "batch_size", "model", "seed"}
    return [n for n in first if n not in shown and any(c["config"].get(n) != first[n] for c in same_role)]


def _curve_row(curve: dict, differing: list[str]) -> dict:
    """The row of one curve."""
    config, rows = curve["config"], curve["records"][0]["rows"]
    data = "; ".join(dict.fromkeys(r["data"] for r in curve["records"]))
    row: dict = {"role": curve["role"] + (" (peeking)" if curve["peeking"] else "")}
    if config["kind"] == "timing":
        seconds = {f"{m} s": round(statistics.median(rows[m]), 2) for m in ("adadp", "sgd", "adam")}
        return row | {"model": config["model"], **seconds, "data": data}
    if config["kind"] == "private":
        row |= {"sigma": config["noise_multiplier"]}
    else:
        row |= {"random": config["random_fraction"], "batch_size": config["batch_size"]}
    ends = finals(curve)
    row |= {"lr": config["lr"]} | {name: config[name] for name in differing}
    row |= {"seeds": f"{len(ends)}/{curve['planned']}"}
    row |= {"accuracy": round(statistics.fmean(ends), 2)}
    if len(ends) > 1:
        row |= {"range": f"{min(ends):.2f} to {max(ends):.2f}"}
    row |= {name: rows[name][-1] for name in ("epsilon_moments", "epsilon_pld") if name in rows}
    if config.get("sampler") == "shuffled":
        row |= {"sampler": "shuffled: epsilon, which assumes Poisson sampling, is no guarantee"}
    return row | {"data": data}


def reasons(failed: dict[Config, str]) -> str:
    """Each reason once, with the first of the runs that it stopped: without data there is one reason for all."""
    stopped: dict[str, list[str]] = {}
    for config, reason in failed.items():
        stopped.setdefault(reason, []).append(config.slug)
    return "; ".join(f"{s[0]}{f' and {len(s) - 1} more' * (len(s) > 1)}: {reason}" for reason, s in stopped.items())

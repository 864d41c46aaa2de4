"""What an epsilon means, in words: it is printed beside every epsilon, so that none stands alone."""

import math

from adadp.privacy import arguments
from adadp.privacy.composition import composed_epsilon
from adadp.privacy.shuffling import SAMPLER, shuffled_lower_bound, shuffled_upper_bound
from adadp.rounding import number, round_down, round_up

_NEIGHBORS = {
    "add_remove": "data sets that differ in one record, present in one and absent in the other (add/remove)",
    "replace_one": "data sets that differ in the value of one record (replace-one, or substitution)",
}
_ACCOUNTANTS = {
    "moments": "moments accountant, orders 1 to 32",
    "rdp": "Rényi differential privacy",
    "pld": "privacy loss distribution, within 1 %",
}


def sampler_warning(sampler) -> str:
    """One sentence when ``sampler`` is not the Poisson sampling that every accountant here assumes; otherwise ''.

    Args:
        sampler: a sampling object with a ``name``, or the name.

    >>> sampler_warning("poisson")
    ''
    >>> sampler_warning("shuffled partition")
    'epsilon assumes Poisson sampling, but batches come from a shuffled partition: it is no guarantee here'
    """
    name = _sampler_name(sampler)
    if name == "poisson":
        return ""
    return f"epsilon assumes Poisson sampling, but batches come from a {name}: it is no guarantee here"


def _sampler_name(sampler) -> str:
    """The name of a sampler given by name or as an object."""
    name = getattr(sampler, "name", sampler)
    if not isinstance(name, str) or not name:
        raise ValueError(f"sampler must be 'poisson', another name, or a sampling object, got {sampler!r}")
    return name


def assumptions(
    *,
    accountant: str | None = None,
    neighbors: str | None = "add_remove",
    sampler="poisson",
    record: str = "one training example",
    tuning_included: bool = False,
) -> str:
    """What the epsilons of a figure stand on, in one line; the end of the short privacy statement.

    Args:
        accountant, neighbors: None where they differ from curve to curve and are written at each.
        sampler, record, tuning_included: as for :func:`privacy_statement`.
    Raises:
        ValueError: naming the argument.

    >>> assumptions(accountant="pld")
    'one training example, add/remove, Poisson, pld; tuning not included'
    """
    arguments.flag("tuning_included", tuning_included)
    arguments.words("record", record)
    name = _sampler_name(sampler)
    drawn = {"poisson": "Poisson", "no sampling": name}.get(name, f"{name}, Poisson assumed")
    if neighbors is not None:
        neighbors = arguments.choice("neighbors", neighbors, arguments.NEIGHBORS)
        neighbors = {"add_remove": "add/remove", "replace_one": "replace-one"}[neighbors]
    if accountant is not None:
        arguments.choice("accountant", accountant, arguments.ACCOUNTANTS)
    parts = [record, neighbors, drawn, accountant]
    return f"{', '.join(filter(None, parts))}; tuning {'' if tuning_included else 'not '}included"


def privacy_statement(
    history=None,
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    delta: float | None = None,
    accountant: str | None = None,
    neighbors: str | None = None,
    sampler=None,
    record: str = "one training example",
    tuning_included: bool = False,
    short: bool = False,
) -> str:
    """Say what an epsilon protects, under which assumptions, and what it leaves out.

    Args:
        history: of a private training; it supplies noise, sampling and steps, and what is not given of ``delta``,
            ``accountant`` and ``neighbors``. Gradients that the same ``PrivateGradient`` released before are included.
        noise_multiplier, sample_rate, steps: as for :func:`adadp.epsilon`; not together with ``history``.
        delta, accountant, neighbors: as for :func:`adadp.epsilon`.
        sampler: what drew the batches: "poisson" (None), another name, or a sampling object; not with ``history``.
        record: the unit that is protected, in words.
        tuning_included: whether the releases counted in ``steps`` cover the choice of the hyper-parameters.
        short: one line, for a figure.
    Returns:
        Text; epsilon is rounded up. Where the batches are not Poisson samples it says so; the long form adds what is
        known of shuffled ones: a lower bound for one whole epoch, and an upper bound for all of them.
    Raises:
        ValueError: naming the argument.

    >>> print(privacy_statement(noise_multiplier=2.0, sample_rate=1 / 300, steps=30_000, delta=1e-5))
    epsilon = 1.54 at delta = 1e-05
    record unit: one training example
    neighbours: data sets that differ in one record, present in one and absent in the other (add/remove)
    sampler: Poisson sampling, rate 0.003333, 30000 gradients, noise multiplier 2
    accountant: moments accountant, orders 1 to 32
    tuning: the choice of hyper-parameters is not included
    >>> privacy_statement(noise_multiplier=2.0, sample_rate=1 / 300, steps=30_000, delta=1e-5, short=True)
    'ε = 1.54, δ = 10⁻⁵ (one training example, add/remove, Poisson, moments; tuning not included)'
    """
    own = {"noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "steps": steps, "sampler": sampler}
    known = _known(history, own, {"delta": delta, "accountant": accountant, "neighbors": neighbors})
    arguments.flag("short", short)
    names = [_sampler_name(release["sampler"]) for release in _releases(known)]
    drawn = next((name for name in names if name != "poisson"), "poisson")
    if drawn == "poisson" and all(release["sample_rate"] == 1 for release in _releases(known)):
        drawn = "no sampling"
    said = {"record": record, "tuning_included": tuning_included, "sampler": drawn}
    in_short = assumptions(**said, accountant=known["accountant"], neighbors=known["neighbors"])
    value = _epsilon(known)
    if short:
        return f"ε = {round_up(value)}, δ = {number(known['delta'], 6)} ({in_short}{_not_counted(known)})"
    lines = [
        f"epsilon = {round_up(value)} at delta = {known['delta']:g}{_not_counted(known)}",
        f"record unit: {record}",
        f"neighbours: {_NEIGHBORS[known['neighbors']]}",
        *_drawing(known),
        f"accountant: {_ACCOUNTANTS[known['accountant']]}",
        f"tuning: the choice of hyper-parameters is {'' if tuning_included else 'not '}included",
    ]
    return "\n".join(lines)


def _known(history, own: dict, assumed: dict) -> dict:
    """The settings of a statement: from the history if there is one, and what was given instead of its assumptions.

    Raises:
        ValueError: naming what was given together with a history that knows it.
    """
    known = {"delta": None, "accountant": "moments", "neighbors": "add_remove"}
    if history is None:
        known |= own | {"sampler": "poisson" if own["sampler"] is None else own["sampler"]}
    elif given := [name for name, value in own.items() if value is not None]:
        raise ValueError(f"{', '.join(given)} cannot be given together with history, which says what it was")
    else:
        known |= _from_history(history)
    return known | {name: value for name, value in assumed.items() if value is not None}


def _epsilon(known: dict) -> float:
    """Epsilon of everything in a statement: the gradients of the training, and the earlier ones."""
    assumed = {name: known[name] for name in ("delta", "accountant", "neighbors")}
    return composed_epsilon([_part(release) for release in _releases(known)], **assumed)


def _releases(known: dict) -> list[dict]:
    """The training that ``known`` describes, and the earlier ones."""
    return [known, *known.get("earlier", [])]


def _part(release: dict) -> tuple[float, float, int]:
    """What an accountant must know of a release."""
    return release["noise_multiplier"], release["sample_rate"], release["steps"]


def _not_counted(known: dict) -> str:
    """What an epsilon leaves out because nothing is known of it."""
    count = known.get("not_counted", 0)
    return f"; NOT counted: {count} gradients outside of train" if count else ""


def _drawing(known: dict) -> list[str]:
    """How batches are drawn, release by release; and what is known where that is not Poisson sampling."""
    lines, releases = [], _releases(known)
    for place, release in enumerate(releases):
        name, (sigma, rate, steps) = _sampler_name(release["sampler"]), _part(release)
        drawn = "Poisson sampling"
        if name != "poisson":
            drawn = f"{name} (epsilon assumes Poisson sampling: no guarantee here)"
        title = "earlier, included" if place else "sampler"
        lines.append(f"{title}: {drawn}, rate {rate:.4g}, {steps} gradients, noise multiplier {sigma:g}")
    shuffled = all(_sampler_name(r["sampler"]) == SAMPLER and r["sample_rate"] for r in releases)
    return [*lines, _shuffling(releases, known["delta"])] if shuffled else lines


def _shuffling(releases: list[dict], delta: float) -> str:
    """What is known of shuffled batches: a lower bound for one epoch, an upper bound for all (partial ones count)."""
    sigma, rate, steps = _part(releases[0])
    batches, epochs = math.ceil(1 / rate - 1e-6), 0
    for release in releases:
        epochs += math.ceil(release["steps"] / math.ceil(1 / release["sample_rate"] - 1e-6))
    low = shuffled_lower_bound(sigma, batches, delta)
    high = shuffled_upper_bound(min(r["noise_multiplier"] for r in releases), epochs, delta)
    least = f"one epoch alone has an epsilon of at least {round_down(low)}, " if steps >= batches else ""
    return f"shuffling: {least}all of it one of at most {round_up(high)} (a removed record's place stays empty)"


def _from_history(history) -> dict:
    """The settings of a private training, from what it recorded.

    Raises:
        ValueError: the history is of a training that was not private, or has no rows.
    """
    privacy, rows = getattr(history, "privacy", None), getattr(history, "rows", None)
    if not privacy or privacy.get("noise_multiplier") is None or not rows:
        raise ValueError("history must be that of a private training with at least one evaluation")
    if isinstance(rows[-1]["steps"], list):
        raise ValueError(
            "history is of a federation, with an epsilon for each client: see adadp.federated.client_statements"
        )
    return {**privacy, "steps": max(int(rows[-1]["steps"]), privacy.get("steps", 0))}  # the latter between evaluations

"""What an epsilon means, in words: it is printed beside every epsilon, so that none stands alone."""

import math

from adadp.privacy import arguments
from adadp.privacy.composition import epsilon
from adadp.privacy.shuffling import shuffled_lower_bound, shuffled_upper_bound
from adadp.rounding import round_down, round_up

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
    accountant: str = "moments",
    neighbors: str = "add_remove",
    sampler="poisson",
    record: str = "one training example",
    tuning_included: bool = False,
    short: bool = False,
) -> str:
    """Say what an epsilon protects, under which assumptions, and what it leaves out.

    Args:
        history: of a private training; it then supplies everything from ``noise_multiplier`` to ``sampler``.
        noise_multiplier, sample_rate, steps, delta, accountant, neighbors: as for :func:`adadp.epsilon`.
        sampler: what drew the batches: "poisson", another name, or a sampling object.
        record: the unit that is protected, in words.
        tuning_included: whether the releases counted in ``steps`` cover the choice of the hyper-parameters.
        short: one line, for a figure.
    Returns:
        Text; epsilon is rounded up. Where the batches are not Poisson samples it says so, and adds the lower bound for
        a shuffled epoch.
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
    'ε = 1.54, δ = 1e-05 (one training example, add/remove, Poisson, moments; tuning not included)'
    """
    if history is not None:
        known = _from_history(history)
        noise_multiplier, sample_rate, steps, delta = (
            known[k] for k in ("noise_multiplier", "sample_rate", "steps", "delta")
        )
        accountant, neighbors, sampler = (known[k] for k in ("accountant", "neighbors", "sampler"))
    assumed = {"accountant": accountant, "neighbors": neighbors, "record": record, "tuning_included": tuning_included}
    drawn = "no sampling" if sample_rate == 1 and _sampler_name(sampler) == "poisson" else sampler
    arguments.flag("short", short)
    in_short = assumptions(**assumed, sampler=drawn)
    value = epsilon(
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        steps=steps,
        delta=delta,
        accountant=accountant,
        neighbors=neighbors,
    )
    if short:
        return f"ε = {round_up(value)}, δ = {delta:g} ({in_short})"
    cost = {"sigma": noise_multiplier, "rate": sample_rate, "steps": steps, "delta": delta}
    lines = [
        f"epsilon = {round_up(value)} at delta = {delta:g}",
        f"record unit: {record}",
        f"neighbours: {_NEIGHBORS[neighbors]}",
        *_drawing(_sampler_name(sampler), **cost),
        f"accountant: {_ACCOUNTANTS[accountant]}",
        f"tuning: the choice of hyper-parameters is {'' if tuning_included else 'not '}included",
    ]
    return "\n".join(lines)


def _drawing(name: str, sigma: float, rate: float, steps: int, delta: float) -> list[str]:
    """How batches are drawn; and what is known where that is not Poisson sampling."""
    drawn = "Poisson sampling" if name == "poisson" else f"{name} (epsilon assumes Poisson sampling: no guarantee here)"
    lines = [f"sampler: {drawn}, rate {rate:.4g}, {steps} gradients, noise multiplier {sigma:g}"]
    return lines if name == "poisson" or not rate else [*lines, _shuffling(sigma, rate, steps, delta)]


def _shuffling(sigma: float, rate: float, steps: int, delta: float) -> str:
    """What is known of shuffled batches: a lower bound for one epoch, an upper bound for all (partial ones count)."""
    batches = math.ceil(1 / rate - 1e-6)
    epochs = math.ceil(steps / batches)
    low, high = shuffled_lower_bound(sigma, batches, delta), shuffled_upper_bound(sigma, epochs, delta)
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
    return {**privacy, "steps": int(rows[-1]["steps"])}

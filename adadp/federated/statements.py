"""What the epsilons of a private federation mean, client by client."""

import itertools

from adadp.history import History
from adadp.privacy.statement import assumptions, privacy_statement
from adadp.rounding import number, round_up


def client_statements(history: History, *, short: bool = False) -> list[str]:
    """Say of each client what its epsilon protects and under which assumptions.

    Args:
        history: of a federation with ``privacy``; also one that came back from its JSON.
        short: one line each.

    Returns:
        One text a client, in the order of their numbers; epsilon is rounded up. In one process it counts all gradients
        of the loop, those of refused rounds and of earlier calls of ``run`` included. A real client keeps a ledger of
        its own: then it is what the client told last, over all runs that use this ledger, "or more" where it was told
        to train after that and what it spent on it is not known.

    Raises:
        ValueError: the history is of a federation without ``privacy``, or of something else.

    Guarantees:
        The sizes of clients' data count as public: they are told as they are, and sample rates follow from them.

    >>> history = History(privacy=dict(
    ...     sampler="poisson", neighbors="add_remove", accountant="moments", delta=1e-5, noise_multiplier=2.0,
    ...     sample_rate=[0.01, 0.02], steps=[200, 100]))
    >>> print(*client_statements(history, short=True), sep="\\n")
    ε = 0.464, δ = 10⁻⁵ (one training example of client 0, add/remove, Poisson, moments; tuning not included)
    ε = 0.609, δ = 10⁻⁵ (one training example of client 1, add/remove, Poisson, moments; tuning not included)
    """
    privacy = getattr(history, "privacy", None) or {}
    if not isinstance(privacy.get("sample_rate"), list):
        raise ValueError(
            "history must be that of a federation with privacy={...}; for train there is privacy_statement"
        )
    known = {name: privacy[name] for name in ("delta", "accountant", "neighbors", "sampler")}
    told = {} if privacy["steps"] is not None else _told(history)
    texts = []
    for client, rate in enumerate(privacy["sample_rate"]):
        record = f"one training example of client {client}"
        if privacy["steps"] is None:
            texts.append(_own(client, *told.get(client, (None, False)), record, privacy, short))
            continue
        cost = {"noise_multiplier": privacy["noise_multiplier"], "sample_rate": rate, "steps": privacy["steps"][client]}
        texts.append(privacy_statement(**cost, **known, record=record, short=short))
    return texts


def _told(history: History) -> dict[int, tuple[float | None, bool]]:
    """The last epsilon that each client told, also with weights that were refused, and whether more was asked since."""
    pairs = [row.get("spent") or zip(row["clients"], row["epsilon"], strict=True) for row in history.rows]
    last: dict[int, tuple[float | None, bool]] = {}
    for client, epsilon in [
        *itertools.chain.from_iterable(pairs),
        *((c, None) for c in history.privacy.get("unheard", ())),
    ]:
        last[client] = (last.get(client, (None,))[0], True) if epsilon is None else (epsilon, False)
    return last


def _own(client: int, epsilon: float | None, more: bool, record: str, privacy: dict, short: bool) -> str:
    """The statement of a client that keeps its ledger itself: what it told, and what that rests on."""
    value = "unknown (none was told)" if epsilon is None else f"= {round_up(epsilon)}" + " or more" * more
    rests = assumptions(**{name: privacy[name] for name in ("accountant", "neighbors", "sampler")}, record=record)
    if short:
        since = " before a round of which nothing was heard" * more
        return f"ε {value}, δ = {number(privacy['delta'], 6)} (by the client's own ledger{since}; {rests})"
    rate = privacy["sample_rate"][client]
    sampling = "" if rate is None else f"rate {rate:.4g}, "
    lines = [
        f"epsilon {value} at delta = {privacy['delta']:g}",
        "ledger: the client's own, over all runs that use it, as told in its last answer"
        + "; what a later round cost was not told" * more,
        f"sampler: {sampling}noise multiplier {privacy['noise_multiplier']:g}",
        f"assumptions: {rests}",
    ]
    return "\n".join(lines)

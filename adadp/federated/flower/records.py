"""What travels between server and clients, as Flower's records: weights, instructions, and reports."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict

from flwr.app import ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
from flwr.common.logger import log
from torch import Tensor

from adadp.federated.client import ClientReport
from adadp.federated.flower.processes import MARK

State = dict[str, Tensor]


def tell(level: int, text: str, *values) -> None:
    """A line in the log of a run, which Flower carries to whoever started it."""
    log(level, MARK + text, *values)


def reason_of(error: Error) -> str:
    """What went wrong at a client: Flower writes ``<class 'ValueError'>:<'...'>``.

    >>> reason_of(Error(2, "<class 'ValueError'>:<'no data'>"))
    'no data'
    """
    text = error.reason or f"error {error.code}"
    return text.partition(":<'")[2].removesuffix("'>") or text


def differing(mine: str, theirs: str) -> list[str]:
    """In what two agreements (:meth:`adadp.federated.Task.agreement`) differ.

    Raises:
        ValueError, TypeError: one of them is none.

    >>> differing('{"batch_size": 10, "clients": 2}', '{"batch_size": 20, "clients": 2}')
    ['batch_size']
    """
    here, there = json.loads(mine), json.loads(theirs)
    if not isinstance(there, dict):
        raise TypeError("not an agreement")
    return sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))


def pack_state(state: State) -> ArrayRecord:
    """Weights as a record of arrays.

    Raises:
        TypeError: a type that numpy does not know, such as bfloat16.
    """
    try:
        return ArrayRecord({name: value.detach().cpu() for name, value in state.items()})
    except TypeError as error:
        raise TypeError(f"weights cannot be sent ({error}); use a float32 model") from error


def unpack_state(record: ArrayRecord, like: State) -> State:
    """Weights from a record of arrays.

    Args:
        like: a state with the names, shapes and types that they must have.

    Raises:
        ValueError: they have others, or cannot be read; the message says which.
    """
    try:
        state = record.to_torch_state_dict()
    except Exception as error:  # numpy and torch have many errors for damaged bytes
        raise ValueError(f"weights cannot be read ({type(error).__name__}: {error})") from error
    if state.keys() != like.keys():
        other = sorted(set(state) ^ set(like))
        raise ValueError(f"weights of another model: {other[0]!r} is missing or too many")
    for name, value in state.items():
        if value.shape != like[name].shape or value.dtype != like[name].dtype:
            wanted, got = (f"{tuple(v.shape)} {v.dtype}" for v in (like[name], value))
            raise ValueError(f"weights of another model: {name!r} is {got}, must be {wanted}")
    return {name: state[name] for name in like}


def pack_order(number: int, client: int, seed: int, lrs: Sequence[float] | None, agreement: str) -> ConfigRecord:
    """A client's order for one round; without learning rates it takes those of its own optimizer."""
    told = {"server-round": number, "client": client, "seed": seed, "lrs": list(lrs or []), "agreement": agreement}
    return ConfigRecord(told)


def pack_reply(state: State, report: ClientReport, lrs: Sequence[float], number: int, client: int) -> RecordDict:
    """A client's answer: weights, and what it tells besides them (``num-examples`` is Flower's own key)."""
    told = {name: value for name, value in asdict(report).items() if value is not None and name != "examples"}
    told |= {"num-examples": report.examples, "round": number, "client": client, "end-lrs": list(lrs)}
    return RecordDict({"arrays": pack_state(state), "metrics": MetricRecord(told)})


def unpack_reply(content: RecordDict, like: State, number: int, client: int) -> tuple[State, ClientReport, list[float]]:
    """The inverse of :func:`pack_reply`.

    Raises:
        ValueError: something is missing, out of range, of another model, or of another round or client.
    """
    try:
        if not isinstance(content["metrics"], MetricRecord):  # one of numbers: others hold texts, bytes and bools
            raise TypeError(f"metrics is a {type(content['metrics']).__name__}")
        state, told = unpack_state(content["arrays"], like), dict(content["metrics"])
        if (told.pop("round"), told.pop("client")) != (number, client):
            raise ValueError("the reply is one of another round or client")
        lrs = [float(lr) for lr in told.pop("end-lrs")]
        report = ClientReport(examples=told.pop("num-examples"), **told)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the reply is not one of adadp ({type(error).__name__}: {error})") from error
    _check(report, lrs)
    return state, report, lrs


def told_epsilon(content: RecordDict, number: int, client: int) -> float | None:
    """What a client says that it has spent, in an answer that is of no use otherwise; None: it does not say."""
    told = content.get("metrics")
    if not isinstance(told, MetricRecord) or (told.get("round"), told.get("client")) != (number, client):
        return None
    value = told.get("epsilon")
    return float(value) if isinstance(value, int | float) and value >= 0 else None


def _check(report: ClientReport, lrs: list[float]) -> None:
    """What would spoil the average, or the rounds to come."""
    for name, value, low in (
        ("num-examples", report.examples, 1), ("steps", report.steps, 1), ("accepted", report.accepted, 0),
        ("discarded", report.discarded, 0),
    ):  # fmt: skip
        if type(value) is not int or value < low:  # a bool is an int to isinstance
            raise ValueError(f"{name} must be a whole number of at least {low}, got {value!r}")
    for name, value in {"lr": report.lr, "error": report.error, "epsilon": report.epsilon}.items():
        if isinstance(value, list):
            raise ValueError(f"{name} must be one number, got {value!r}")
    if not all(math.isfinite(lr) and lr >= 0 for lr in (report.lr, *lrs)):
        raise ValueError(f"learning rates must be finite and not negative, got {[report.lr, *lrs]}")
    if not isinstance(report.lrs, list):
        raise ValueError(f"lrs must be a list, got {report.lrs!r}")
    if report.epsilon is not None and not report.epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {report.epsilon!r}")

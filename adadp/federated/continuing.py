"""The checkpoint of federated averaging: what a later run needs to continue, and to tell that it is the same run."""

from pathlib import Path

import torch

from adadp import checkpoint as checkpoints
from adadp.history import History
from adadp.settings import checksum, text


def state_of(loop, history: History) -> dict:
    """Everything that a later run of the same loop needs to continue after its last round."""
    ledgers = None if loop.ledgers is None else [ledger.state_dict() for ledger in loop.ledgers]
    return {
        "seed": loop._seed,
        "settings": settings(loop),
        "done": loop._done,
        "model": loop.model.state_dict(),
        "lrs": loop._lrs,
        "ledgers": ledgers,
        "generators": [generator.get_state() for generator in _generators(loop)],
        "history": history.to_json(),
    }


def restore(loop, path: str | Path) -> History:
    """Put a loop where its checkpoint was written, and return the history so far.

    Args:
        loop: a :class:`adadp.federated.coordinator.Coordinator`, made with the arguments of the interrupted run.
        path: of the checkpoint.

    Raises:
        RuntimeError: the file is damaged, or of another run: the message names it and says what differs.
    """
    state, mine = checkpoints.load(path), settings(loop)
    if "model" not in state or "history" not in state:
        raise RuntimeError(f"{path} is not a checkpoint of federated averaging; remove it or name another")
    theirs = state.get("settings", mine)  # a checkpoint of an earlier version tells its seed only
    differing = ["seed"] * (state.get("seed") != loop._seed)
    differing += [name for name in mine if mine[name] != theirs.get(name, mine[name])]
    if differing:
        raise RuntimeError(
            f"checkpoint {path} belongs to another run (other {', '.join(differing)}): remove it or name another"
        )
    try:
        loop.model.load_state_dict(state["model"])
        history = History.from_json(state["history"])
        for ledger, saved in zip(loop.ledgers or [], state["ledgers"] or [], strict=True):
            ledger.load_state_dict(saved)
        loop._lrs, loop._done = state["lrs"], state.get("done", len(history.rows))
        loop._unheard |= set(history.privacy.get("unheard", ()))
        for generator, saved in zip(_generators(loop), state.get("generators", []), strict=False):
            generator.set_state(saved)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise RuntimeError(f"checkpoint {path} does not fit this run ({error}): remove it or name another") from error
    return history


def settings(loop) -> dict:
    """What two runs must share to be the same, as plain values; the device is not part of it."""
    names = ("participation", "keep_lr", "delta")
    return {name: getattr(loop, name) for name in names} | {
        "clients": loop.sizes,
        "data": [_data(*pair) for pair in getattr(loop, "clients", ())],  # elsewhere it is the clients' business
        **agreed(loop.training, loop.model),
    }


def _data(x: torch.Tensor, y: torch.Tensor) -> str:
    """A checksum of all labels and of three examples: enough to tell other data."""
    middle = len(x) // 2
    return checksum(y, x[:1], x[middle : middle + 1], x[-1:])


def agreed(training, model: torch.nn.Module) -> dict:
    """What all clients' local training must share, as plain values."""
    optimizer = training.optimizer(model)
    return {name: getattr(training, name) for name in ("batch_size", "local_epochs", "reduction")} | {
        "model": [f"{name} {tuple(value.shape)} {value.dtype}" for name, value in model.state_dict().items()],
        "loss": text(training.loss),
        "privacy": {name: text(value) for name, value in dict(training.privacy or {}).items()},
        "optimizer": [type(optimizer).__name__, *(line for g in optimizer.param_groups for line in _plain(g))],
    }


def _plain(group: dict) -> list[str]:
    """What a parameter group says, parameters left out."""
    return [f"{name}={text(value)}" for name, value in group.items() if name != "params"]


def _generators(loop) -> list[torch.Generator]:
    """Torch's own generators, from which layers like dropout draw."""
    here = [torch.default_generator]
    if (device := next(loop.model.parameters()).device).type == "cuda":
        here.append(torch.cuda.default_generators[device.index or 0])
    return here

"""What a private client has spent, in a file of its own: it outlives rounds, runs, and the process."""

import os
from pathlib import Path

from adadp import checkpoint
from adadp.federated.client import num_steps
from adadp.federated.local import LocalTraining
from adadp.locks import locked


def spend(path: str | Path, training: LocalTraining, examples: int, *, delta: float) -> float:
    """Enter one round of a private client, and return its epsilon from then on.

    Called before the data are touched: a round that is killed, or whose answer is lost, has counted.

    Args:
        path: the client's ledger; one a data set, whatever it is used for. Links to it are the same ledger.
        training: the settings; ``privacy`` is not None.
        examples: size of the client's data.
        delta: at which epsilon is taken.

    Raises:
        RuntimeError: the file is damaged; it is never taken for an empty one.
    """
    from adadp.privacy.accounting import MomentsAccountant  # as in `rounds`

    accountant, given = MomentsAccountant(), Path(path)
    given.parent.mkdir(parents=True, exist_ok=True)
    unreadable = f"{given} is not a privacy ledger that can be read: what was spent is unknown"
    if given.is_symlink() and not given.exists():  # a link to a disk that is not there now
        raise RuntimeError(unreadable)
    path = Path(os.path.realpath(given))  # all names of a ledger share its lock
    with locked(path.with_name(f".{path.name}.lock"), wait=True):  # two runs at once would lose one's entry
        if os.path.lexists(path):
            try:
                accountant.load_state_dict(checkpoint.load(path))
            except (KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
                raise RuntimeError(unreadable) from error
        accountant.step(
            noise_multiplier=training.privacy["noise_multiplier"],
            sample_rate=training.rate(examples),
            num_steps=num_steps(examples, training.batch_size, training.local_epochs),
        )
        checkpoint.save(path, accountant.state_dict())
    return accountant.get_epsilon(delta=delta)

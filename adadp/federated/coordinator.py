"""What the server of federated averaging does, wherever its clients are: draw, average, evaluate, keep, continue."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from adadp import checkpoint as checkpoints
from adadp.evaluation import evaluate
from adadp.federated.averaging import average
from adadp.federated.client import ClientReport, client_generator
from adadp.federated.continuing import restore, state_of
from adadp.federated.local import LocalTraining
from adadp.history import History
from adadp.privacy import arguments
from adadp.progress import progress_bar


class NoUsableClient(RuntimeError):
    """Too few clients of a round sent weights that are finite; ``history`` holds the rounds before it."""

    history: History | None = None


@dataclass(frozen=True)
class Update:
    """What one client hands back after a round: its number, report, learning rates at the end, and weights."""

    client: int
    report: ClientReport
    lrs: list[float]
    state: dict[str, Tensor]


class Coordinator(ABC):
    """Rounds of federated averaging; where and how the clients train is a subclass's :meth:`_round`.

    Args:
        model: the global model; :meth:`run` updates it in place.
        training: the settings of local training.
        sizes: examples of each client, as far as they are known.
        participation, keep_lr, test_data, delta: as for :class:`adadp.federated.FederatedAveraging`.
        seed: all draws depend on it.
        min_clients: with fewer usable updates a round fails.

    Raises:
        TypeError: the model's state holds something else than tensors.

    Reference: Algorithm 1, McMahan et al. (2017).
    """

    def __init__(
        self,
        model: nn.Module,
        training: LocalTraining,
        sizes: Sequence[int | None],
        *,
        participation: float,
        keep_lr: bool,
        test_data: tuple[Tensor, Tensor] | None,
        delta: float,
        seed: int,
        min_clients: int = 1,
    ) -> None:
        if odd := [name for name, value in model.state_dict().items() if not torch.is_tensor(value)]:
            raise TypeError(f"model: {odd[0]} is no tensor (its module has a get_extra_state) and cannot be averaged")
        self.model, self.training, self.sizes = model, training, list(sizes)
        self.participation, self.keep_lr, self.test_data, self.delta = participation, keep_lr, test_data, delta
        self.min_clients = min_clients
        self.ledgers = None
        self._seed, self._done = seed, 0
        self._lrs: list[list[float] | None] = [None] * len(sizes)
        self._unheard: set[int] = set()  # clients told to train that have not said since what they spent
        self._keep: Callable[[], None] = lambda: None

    def run(
        self,
        rounds: int,
        *,
        progress: bool = True,
        checkpoint: str | Path | None = None,
        keep_checkpoint: bool = False,
        callbacks=(),
    ) -> History:
        """Run ``rounds`` rounds and return their history; the averaged model is ``model``, in place.

        Where clients are private, ``history.privacy`` says what the epsilons assume, with lists that have one entry a
        client (``sample_rate`` and ``steps``, those of the whole loop so far); ``client_statements`` puts it in words.

        Args:
            rounds: number of rounds; a run continued from a checkpoint does what is left of them. A second call
                goes on from the first one's model and numbers its rounds on, so that no draw and no noise is repeated.
            progress: show a bar.
            checkpoint: a file in which everything is stored after each round; a later run continues from it, and the
                file is removed at the end.
            keep_checkpoint: leave it there, for who stores the outcome first and deletes it afterwards.
            callbacks: called after each round as ``callback(round=, model=, history=)``.

        Raises:
            NoUsableClient: no client of a round sent finite weights; it holds the history up to there.
            RuntimeError: a client failed, or the checkpoint is corrupt or of
                another run.
            ValueError: ``rounds`` is no whole number, or less than the checkpoint holds.
        """
        rounds = arguments.count("rounds", rounds)
        history = History() if checkpoint is None or not Path(checkpoint).exists() else restore(self, checkpoint)
        if len(history.rows) > rounds:
            raise ValueError(f"rounds={rounds} is less than the {len(history.rows)} that checkpoint {checkpoint} holds")
        self._keep = lambda: self._write(checkpoint, history)
        history.privacy = self._assumptions(history)
        last = self._done - len(history.rows) + rounds
        with progress_bar(rounds, initial=len(history.rows), show=progress, unit="round") as bar:
            for number in range(self._done + 1, last + 1):
                try:
                    history.rows.append(self._round(number))
                except NoUsableClient as error:
                    history.privacy, error.history = self._assumptions(history), history  # a failed round costs as well
                    raise
                self._keep()
                for callback in callbacks:
                    callback(round=number, model=self.model, history=history)
                bar.update()
        if checkpoint is not None and not keep_checkpoint:
            Path(checkpoint).unlink(missing_ok=True)
        return history

    def _write(self, checkpoint: str | Path | None, history: History) -> None:
        """Bring what the epsilons assume up to date, and write the checkpoint where one is wanted."""
        history.privacy = self._assumptions(history)
        if checkpoint is not None and history.rows:  # before the first round there is nothing to go on from
            checkpoints.save(checkpoint, state_of(self, history))

    @abstractmethod
    def _round(self, number: int) -> dict:
        """Local training of the clients that :meth:`_draw` names, and what :meth:`_conclude` makes of it: one row."""

    def _conclude(self, number: int, updates: Iterable[Update]) -> dict:
        """Average what the clients hand back, weighted by their sizes; the new global model is evaluated."""
        usable, refused = [], []
        for update in list(updates):  # where one of the clients fails, none has been charged
            (usable if self._finite(update.state) else refused).append(update)
            self._charge(update)
        if refused:
            names = [update.client for update in refused]
            warnings.warn(f"round {number}: weights of clients {names} are not finite and left out", stacklevel=4)
        if not usable:
            raise NoUsableClient(f"round {number}: no client sent finite weights; lower the learning rate")
        if len(usable) < self.min_clients:
            raise NoUsableClient(
                f"round {number}: {len(usable)} of {len(self.sizes)} clients sent usable weights, "
                f"min_clients is {self.min_clients}"
            )
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(average([u.state for u in usable], [u.report.examples for u in usable]))
        try:
            row = self._row(number, usable, refused)
        except BaseException:  # the evaluation may fail; a round without a row has not been
            self.model.load_state_dict(before)
            raise
        self._done = number
        for update in usable + refused:
            self._lrs[update.client] = update.lrs
        return row

    def _finite(self, state: dict[str, Tensor]) -> bool:
        """Whether weights are finite, but for buffers where the global model's are not (a mask of -inf)."""
        like, parameters = self.model.state_dict(), dict(self.model.named_parameters(remove_duplicate=False))
        for name, value in state.items():
            if not (finite := value.isfinite()).all():
                own = like[name].to(value.device)
                if not (finite | (own.isinf() if name in parameters else ~own.isfinite())).all():
                    return False
        return True

    def _charge(self, update: Update) -> None:
        """Note what a private client in this process has spent on an update, whether that is of use or not."""
        if self.ledgers is not None:
            rate, sigma = self.training.rate(update.report.examples), self.training.privacy["noise_multiplier"]
            self.ledgers[update.client].step(noise_multiplier=sigma, sample_rate=rate, num_steps=update.report.steps)

    def _draw(self, number: int) -> list[int]:
        """The clients of a round, in order; at least one."""
        total = len(self.sizes)
        count = max(1, round(self.participation * total))
        if count == total:
            return list(range(total))
        order = torch.randperm(total, generator=client_generator(self._seed, number, 2 * total))
        return sorted(order[:count].tolist())

    def _start_lrs(self, client: int) -> list[float] | None:
        """The learning rates a client starts its round with; None: those of its optimizer."""
        return self._lrs[client] if self.keep_lr else None

    def _row(self, number: int, usable: list[Update], refused: list[Update]) -> dict:
        """One row of the history, with one entry a client in the lists."""
        accuracy, loss = (None, None)
        if self.test_data is not None:
            accuracy, loss = evaluate(self.model, *self.test_data, loss=self.training.loss)
        traced = ("lrs",) if self.training.trace else ()
        fields = ("examples", "steps", "lr", "error", "accepted", "discarded", *traced)
        row = {"round": number, "test_accuracy": accuracy, "test_loss": loss, "clients": [u.client for u in usable]}
        row |= {name: [getattr(u.report, name) for u in usable] for name in fields}
        row["refused"] = [u.client for u in refused]
        if self.training.privacy is not None:
            row["epsilon"] = [self._epsilon(update) for update in usable]
            row["spent"] = [[u.client, self._epsilon(u)] for u in usable + refused]  # in vain or not
        return row

    def _epsilon(self, update: Update) -> float:
        """What a private client has spent so far."""
        return self.ledgers[update.client].get_epsilon(delta=self.delta)

    def _assumptions(self, history: History) -> dict:
        """What the epsilons of the rounds so far assume; nothing for clients that are not private."""
        privacy, sizes = self.training.privacy, list(self.sizes)
        if privacy is None:
            return {}
        for row in history.rows:  # clients elsewhere tell their sizes
            for client, examples in zip(row["clients"], row["examples"], strict=True):
                sizes[client] = examples
        return {
            "sampler": "poisson",
            "assumed_sampler": "poisson",
            "matches": True,
            "neighbors": "add_remove",
            "accountant": "moments",
            "delta": self.delta,
            "noise_multiplier": float(privacy["noise_multiplier"]),
            "max_grad_norm": float(privacy["max_grad_norm"]),
            "sample_rate": [None if size is None else self.training.rate(size) for size in sizes],
            "steps": None if self.ledgers is None else [ledger.steps for ledger in self.ledgers],
            "ledgers": "each client's own" if self.ledgers is None else "one a client, in this process",
        }

"""Federated averaging in one process: McMahan et al.'s Algorithm 1 with any client optimizer."""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from adadp import checkpoint as checkpoints
from adadp.evaluation import evaluate, memory_format, pick_device
from adadp.federated.arguments import check_arguments
from adadp.federated.averaging import average
from adadp.federated.client import ClientReport, Loss, client_generator, client_update
from adadp.federated.continuing import restore, state_of
from adadp.federated.stackable import NotStackable
from adadp.federated.stacked import StackedClients
from adadp.history import History
from adadp.privacy import arguments
from adadp.privacy.accounting import MomentsAccountant
from adadp.privacy.gradient import PrivateGradient
from adadp.progress import progress_bar
from adadp.training import cross_entropy


class NoUsableClient(RuntimeError):
    """No client of a round sent weights that are finite; ``history`` holds the rounds before it."""

    history: History | None = None


class FederatedAveraging:
    """Rounds of local training and averaging, one client after the other, on one device.

    Each round every participating client starts from the global model, trains on its own data with an optimizer of its
    own, and sends its weights; the new global model is their mean weighted by the clients' sizes. Nothing but the
    weights and the :class:`~adadp.federated.client.ClientReport` leaves a client.

    Args:
        model: the global model; ``run`` updates it in place.
        clients: (x, y) of each client.
        client_optimizer: parameters -> optimizer; made anew for each client and round, so that no state leaks.
        batch_size: examples a gradient.
        local_epochs: passes over a client's data a round.
        participation: share of the clients drawn each round, above 0 to 1.
        keep_lr: start a client's round with the learning rate it ended its last round with; else with the optimizer's.
        loss: (output, y) -> one value an example, shape (B,).
        reduction: "mean" or "sum" of the loss over a batch.
        test_data: (x, y) on which the global model is evaluated after each round.
        privacy: ``{"max_grad_norm": C, "noise_multiplier": sigma}`` for example-level privacy on every client, each
            with a ledger of its own: budgets of disjoint clients do not add up.
        delta: of the epsilon that the ledgers report.
        trace: how many learning rates within a round each client reports.
        stacked: train all clients of a round at once (:mod:`adadp.federated.stacked`; the result is the same up to
            rounding) or one after the other. None: at once on CUDA, where nothing speaks against it.
        generator: source of randomness; one number is drawn from it, all else depends on that.
        device: "auto" (CUDA where there is one), or any torch device.

    Raises:
        ValueError: a client without data, or a bad argument, named; ``stacked=True`` where clients cannot be stacked,
            with the reason (from ``run`` where it lies in the optimizer).
        TypeError: ``client_optimizer`` or ``loss`` is no function.

    Guarantees:
        One client, one round, participation 1: the same weights as :func:`adadp.train`, bit for bit. The same seed
        gives the same result on one machine, interrupted or not. A client that returns a value that is not finite is
        left out of the average and named in a warning and in the history; a round without any usable client raises. A
        client that fails ends the run with an error that names it, and the round leaves nothing behind: model, kept
        learning rates and ledgers are those of the round before.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> clients = [(torch.randn(20, 3), torch.randint(2, (20,))) for _ in range(2)]
    >>> sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    >>> fed = FederatedAveraging(nn.Linear(3, 2), clients, sgd, batch_size=5)
    >>> [row["round"] for row in fed.run(2, progress=False).rows]
    [1, 2]

    Reference: Section 5, Koskela & Honkela; Algorithm 1, McMahan et al. (2017).
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Sequence[tuple[torch.Tensor, torch.Tensor]],
        client_optimizer: Callable[..., torch.optim.Optimizer],
        *,
        batch_size: int,
        local_epochs: int = 1,
        participation: float = 1.0,
        keep_lr: bool = True,
        loss: Loss = cross_entropy,
        reduction: str = "mean",
        test_data: tuple[torch.Tensor, torch.Tensor] | None = None,
        privacy: Mapping[str, float] | None = None,
        delta: float = 1e-5,
        trace: int = 0,
        stacked: bool | None = None,
        generator: torch.Generator | None = None,
        device: str | torch.device = "auto",
    ) -> None:
        given = dict(batch_size=batch_size, local_epochs=local_epochs, participation=participation, keep_lr=keep_lr)
        given |= dict(client_optimizer=client_optimizer, loss=loss, trace=trace, delta=delta)
        check_arguments(clients, privacy, reduction=reduction, stacked=stacked, **given)
        self.device = pick_device(device)
        self.model = model.to(self.device)
        self._layout = memory_format(model)
        self.model.to(memory_format=self._layout)
        self.clients = [(self._place(x), y.to(self.device)) for x, y in clients]
        self.test_data = None if test_data is None else (self._place(test_data[0]), test_data[1].to(self.device))
        self.client_optimizer = client_optimizer
        self.batch_size, self.local_epochs, self.participation = batch_size, local_epochs, participation
        self.keep_lr, self.loss, self.reduction = keep_lr, loss, reduction
        self.privacy, self.delta, self.trace = privacy, delta, trace
        self.ledgers = [MomentsAccountant() for _ in clients] if privacy else None
        self._seed = int(torch.randint(2**62, (), generator=generator))
        self._lrs: list[list[float] | None] = [None] * len(clients)
        self._done, self._ended = 0, {}  # rounds so far; lr at the end of the round that is under way
        self._local = copy.deepcopy(self.model)  # every client trains in this one copy: memory stays flat
        self.stacked, self._stack = stacked, self._make_stack(stacked)

    def run(self, rounds: int, *, progress: bool = True, checkpoint: str | Path | None = None, callbacks=()) -> History:
        """Run ``rounds`` rounds and return their history; the averaged model is ``model``, in place.

        Args:
            rounds: number of rounds; a run continued from a checkpoint does what is left of them. A second call
                goes on from the first one's model and numbers its rounds on, so that no draw and no noise is repeated.
            progress: show a bar.
            checkpoint: a file in which everything is stored after each round; a later run continues from it, and the
                file is removed at the end.
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
        last = self._done - len(history.rows) + rounds
        with progress_bar(rounds, initial=len(history.rows), show=progress, unit="round") as bar:
            for number in range(self._done + 1, last + 1):
                try:
                    history.rows.append(self._round(number))
                except NoUsableClient as error:
                    error.history = history
                    raise
                if checkpoint is not None:
                    checkpoints.save(checkpoint, state_of(self, history))
                for callback in callbacks:
                    callback(round=number, model=self.model, history=history)
                bar.update()
        if checkpoint is not None:
            Path(checkpoint).unlink(missing_ok=True)
        return history

    def _round(self, number: int) -> dict:
        """Draw, train, average, evaluate: one row of the history."""
        drawn = self._draw(number)
        # 1. every drawn client starts from the global model and trains on its own data
        states, reports, refused = [], [], []
        for client, report in self._train(drawn, number):
            state = {name: value.detach().clone() for name, value in self._local.state_dict().items()}
            finite = all(bool(torch.isfinite(value).all()) for value in state.values())
            if finite:
                states.append(state)
            (reports if finite else refused).append((client, report))
        # 2. what is not finite is named and left out
        if refused:
            names = [client for client, _ in refused]
            warnings.warn(f"round {number}: weights of clients {names} are not finite and left out", stacklevel=3)
        if not states:
            raise NoUsableClient(f"round {number}: no client sent finite weights; lower the learning rate")
        # 3. the mean, weighted by size, is the new global model
        self.model.load_state_dict(average(states, [report.examples for _, report in reports]))
        self._finish(number, reports + refused)
        # 4. evaluate
        return self._row(number, reports, [client for client, _ in refused])

    def _finish(self, number: int, reports: list[tuple[int, ClientReport]]) -> None:
        """Note what a round leaves behind besides the model; a client whose weights were refused drew noise as well."""
        self._done = number
        for client, report in reports:
            self._lrs[client] = self._ended[client]
            if self.ledgers is not None:
                rate, sigma = min(1.0, self.batch_size / report.examples), self.privacy["noise_multiplier"]
                self.ledgers[client].step(noise_multiplier=sigma, sample_rate=rate, num_steps=report.steps)

    def _make_stack(self, stacked: bool | None) -> StackedClients | None:
        """What trains all clients at once, if it is wanted and possible."""
        if stacked is False or (stacked is None and self.device.type != "cuda"):
            return None
        settings = {name: getattr(self, name) for name in ("batch_size", "local_epochs", "loss", "reduction", "trace")}
        try:
            if self.privacy is not None:
                raise NotStackable("private clients clip and draw noise one after the other")
            stack = StackedClients(self._local, self.clients, **settings)
        except NotStackable as reason:
            if stacked:
                raise ValueError(f"stacked=True: {reason}; use stacked=False") from reason
            return None
        self.clients = stack.clients  # the same data, once in memory
        return stack

    def _train(self, drawn: list[int], number: int) -> Iterator[tuple[int, ClientReport]]:
        """Train the drawn clients; when one is handed out, the working copy holds its weights."""
        self._local.load_state_dict(self.model.state_dict())
        if self._stack is not None:
            try:
                reports = self._train_stacked(drawn, number)
            except NotStackable as reason:
                if self.stacked:
                    raise ValueError(f"stacked=True: {reason}; use stacked=False") from reason
                self._stack = None
            else:
                for place, (client, report) in enumerate(zip(drawn, reports, strict=True)):
                    self._stack.load(place)
                    yield client, report
                return
        for client in drawn:
            yield client, self._train_client(client, number)

    def _train_stacked(self, drawn: list[int], number: int) -> list[ClientReport]:
        """Local training of all drawn clients at once."""
        optimizers = [self._optimizer(client) for client in drawn]
        generators = [client_generator(self._seed, number, client) for client in drawn]
        reports = self._stack.train(drawn, optimizers, generators)
        for client, lrs in zip(drawn, self._stack.rates(), strict=True):
            self._ended[client] = lrs
        return reports

    def _optimizer(self, client: int) -> torch.optim.Optimizer:
        """A new optimizer over the working copy, with the learning rate that the client kept."""
        optimizer = self.client_optimizer(self._local.parameters())
        if self.keep_lr and self._lrs[client] is not None:
            for group, lr in zip(optimizer.param_groups, self._lrs[client], strict=True):
                group["lr"] = torch.as_tensor(lr).to(group["lr"]) if torch.is_tensor(group["lr"]) else lr
        return optimizer

    def _train_client(self, client: int, number: int) -> ClientReport:
        """Local training of one client in the shared working copy."""
        x, y = self.clients[client]
        self._local.load_state_dict(self.model.state_dict())
        optimizer = self._optimizer(client)
        gradient = self._gradient(len(x), client, number)
        work = {name: getattr(self, name) for name in ("batch_size", "local_epochs", "loss", "reduction", "trace")}
        order = client_generator(self._seed, number, client)
        try:
            report = client_update(self._local, x, y, optimizer, generator=order, gradient=gradient, **work)
        except Exception as error:
            message = f"round {number}: client {client} failed: {type(error).__name__}: {error}"
            raise RuntimeError(message) from error
        self._ended[client] = [float(group["lr"]) for group in optimizer.param_groups]
        return report

    def _gradient(self, examples: int, client: int, number: int) -> PrivateGradient | None:
        """The private gradient of one client, with noise of its own."""
        if self.privacy is None:
            return None
        noise = torch.Generator(self.device)
        noise.manual_seed(client_generator(self._seed, number, len(self.clients) + client).initial_seed())
        size = min(self.batch_size, examples)
        return PrivateGradient(
            self._local, expected_batch_size=size, loss=self.loss, generator=noise, **dict(self.privacy)
        )

    def _draw(self, number: int) -> list[int]:
        """The clients of a round, in order; at least one."""
        total = len(self.clients)
        count = max(1, round(self.participation * total))
        if count == total:
            return list(range(total))
        order = torch.randperm(total, generator=client_generator(self._seed, number, 2 * total))
        return sorted(order[:count].tolist())

    def _row(self, number: int, reports: list[tuple[int, ClientReport]], refused: list[int]) -> dict:
        """One row of the history, with one entry a client in the lists."""
        accuracy, loss = (None, None)
        if self.test_data is not None:
            accuracy, loss = evaluate(self.model, *self.test_data, loss=self.loss)
        fields = ("examples", "steps", "lr", "error", "accepted", "discarded") + (("lrs",) if self.trace else ())
        row = {"round": number, "test_accuracy": accuracy, "test_loss": loss, "clients": [c for c, _ in reports]}
        row |= {name: [getattr(report, name) for _, report in reports] for name in fields}
        row["refused"] = refused
        if self.ledgers is not None:
            row["epsilon"] = [self.ledgers[c].get_epsilon(delta=self.delta) for c, _ in reports]
        return row

    def _place(self, x: torch.Tensor) -> torch.Tensor:
        """Examples on the device, in the memory layout and the floating-point type of the model."""
        like = next(self.model.parameters(), x)
        x = x.to(self.device, like.dtype if like.is_floating_point() and x.is_floating_point() else x.dtype)
        return x.contiguous(memory_format=self._layout) if x.dim() == 4 else x

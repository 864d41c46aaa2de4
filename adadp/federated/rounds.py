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
from adadp.federated.stackable import NotStackable
from adadp.federated.stacked import StackedClients
from adadp.history import History
from adadp.privacy.accounting import MomentsAccountant
from adadp.privacy.gradient import PrivateGradient
from adadp.progress import progress_bar
from adadp.training import cross_entropy


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

    Guarantees:
        One client, one round, participation 1: the same weights as :func:`adadp.train`, bit for bit. The same seed
        gives the same result on one machine, interrupted or not. A client that returns a value that is not finite is
        left out of the average and named in a warning and in the history; a round without any usable client raises.

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
        check_arguments(clients, batch_size, local_epochs, participation, reduction, privacy, stacked)
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
        self._local = copy.deepcopy(self.model)  # every client trains in this one copy: memory stays flat
        self.stacked, self._stack = stacked, self._make_stack(stacked)

    def run(self, rounds: int, *, progress: bool = True, checkpoint: str | Path | None = None, callbacks=()) -> History:
        """Run ``rounds`` rounds and return their history; the averaged model is ``model``, in place.

        Args:
            rounds: number of rounds in all; a run that is continued does what is left of them.
            progress: show a bar.
            checkpoint: a file in which everything is stored after each round; a later run continues from it, and the
                file is removed at the end.
            callbacks: called after each round as ``callback(round=, model=, history=)``.

        Raises:
            RuntimeError: no client of a round sent usable weights, or the checkpoint is corrupt or of another run.
        """
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 0:
            raise ValueError(f"rounds must be a whole number of at least 0, got {rounds!r}")
        history = self._restore(checkpoint)
        with progress_bar(rounds, initial=len(history.rows), show=progress, unit="round") as bar:
            for number in range(len(history.rows) + 1, rounds + 1):
                history.rows.append(self._round(number))
                if checkpoint is not None:
                    checkpoints.save(checkpoint, self._state(history))
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
            if all(bool(torch.isfinite(v).all()) for v in state.values() if v.is_floating_point()):
                states.append(state)
                reports.append((client, report))
            else:
                refused.append(client)
        # 2. what is not finite is named and left out
        if refused:
            warnings.warn(f"round {number}: weights of clients {refused} are not finite and left out", stacklevel=3)
        if not states:
            raise RuntimeError(f"round {number}: no client sent finite weights; lower the learning rate")
        # 3. the mean, weighted by size, is the new global model
        self.model.load_state_dict(average(states, [report.examples for _, report in reports]))
        # 4. evaluate
        return self._row(number, reports, refused)

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
            self._lrs[client] = lrs
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
        report = client_update(
            self._local,
            x,
            y,
            optimizer,
            batch_size=self.batch_size,
            local_epochs=self.local_epochs,
            loss=self.loss,
            generator=client_generator(self._seed, number, client),
            gradient=self._gradient(len(x), client, number),
            reduction=self.reduction,
            trace=self.trace,
        )
        self._lrs[client] = [float(group["lr"]) for group in optimizer.param_groups]
        if self.ledgers is not None:
            rate = min(1.0, self.batch_size / len(x))
            sigma = self.privacy["noise_multiplier"]
            self.ledgers[client].step(noise_multiplier=sigma, sample_rate=rate, num_steps=report.steps)
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

    def _state(self, history: History) -> dict:
        """Everything that a later run needs to continue."""
        ledgers = None if self.ledgers is None else [ledger.state_dict() for ledger in self.ledgers]
        return {
            "seed": self._seed,
            "model": self.model.state_dict(),
            "lrs": self._lrs,
            "ledgers": ledgers,
            "history": history.to_json(),
        }

    def _restore(self, checkpoint: str | Path | None) -> History:
        """The history so far: empty, or what the checkpoint holds."""
        if checkpoint is None or not Path(checkpoint).exists():
            return History()
        state = checkpoints.load(checkpoint)
        if not isinstance(state, dict) or state.get("seed") != self._seed:
            raise RuntimeError(
                f"checkpoint {checkpoint} belongs to another run (other seed): remove it or name another"
            )
        self.model.load_state_dict(state["model"])
        self._lrs = state["lrs"]
        for ledger, saved in zip(self.ledgers or [], state["ledgers"] or [], strict=True):
            ledger.load_state_dict(saved)
        return History.from_json(state["history"])

    def _place(self, x: torch.Tensor) -> torch.Tensor:
        """Examples on the device, in the memory layout of the model."""
        x = x.to(self.device)
        return x.contiguous(memory_format=self._layout) if x.dim() == 4 else x

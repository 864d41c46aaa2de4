"""Federated averaging in one process: McMahan et al.'s Algorithm 1 with any client optimizer."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from adadp.evaluation import memory_format, pick_device
from adadp.federated.arguments import check_settings, clients_data, pair
from adadp.federated.client import ClientReport, Loss, client_generator, draw_seed
from adadp.federated.coordinator import Coordinator, Update
from adadp.federated.local import LocalTraining, noise_generator, place
from adadp.federated.stackable import NotStackable
from adadp.federated.stacked import StackedClients
from adadp.training import cross_entropy


class FederatedAveraging(Coordinator):
    """Rounds of local training and averaging, one client after the other, on one device.

    Each round every participating client starts from the global model, trains on its own data with an optimizer of its
    own, and sends its weights; the new global model is their mean weighted by the clients' sizes. Nothing but the
    weights and the :class:`~adadp.federated.client.ClientReport` leaves a client. Buffers that are in no state_dict
    begin every client's round as they were handed over. What modules keep in plain attributes (the hidden state of a
    recurrent network, say) is not reset and goes on from one client to the next: keep it in a buffer.

    Args:
        model: the global model; ``run`` updates it in place. Its modules keep the mode they were handed over in.
        clients: a list with (x, y) of each client: tensors, numpy arrays (which are copied), or a
            ``torch.utils.data.TensorDataset``, whose first two tensors count.
        client_optimizer: parameters -> optimizer; made anew for each client and round, so that no state leaks.
        batch_size: examples a gradient. ADADP takes two an iteration: of an odd number of batches a round the last one
            is dropped, and a single one is refused.
        local_epochs: passes over a client's data a round.
        participation: share of the clients drawn each round, above 0 to 1.
        keep_lr: start a client's round with the learning rate it ended its last round with; else with the optimizer's.
        loss: (output, y) -> one value an example, shape (B,).
        reduction: "mean" or "sum" of the loss over a batch.
        test_data: (x, y), likewise, on which the global model is evaluated after each round.
        privacy: ``{"max_grad_norm": C, "noise_multiplier": sigma}`` for example-level privacy on every client, each
            with a ledger of its own: budgets of disjoint clients do not add up. ``client_statements(history)`` says
            what each of them has spent.
        delta: of the epsilon that the ledgers report.
        trace: how many learning rates within a round each client reports.
        stacked: train all clients of a round at once (:mod:`adadp.federated.stacked`; the result is the same up to
            rounding) or one after the other. None: at once on CUDA, where nothing speaks against it.
        generator: source of randomness; one number is drawn from it, all else depends on that.
        device: "auto" (CUDA where there is one), or any torch device.

    Raises:
        ValueError: a client without data or with something else than a pair, clients with too little for an iteration
            of ADADP, or a bad argument, named;
            ``stacked=True`` where clients cannot be stacked, with the reason (from ``run`` where it lies in the
            optimizer).
        TypeError: ``client_optimizer`` or ``loss`` is no function, or the model's state holds more than tensors.

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
        clients: Sequence,
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
        clients = clients_data(clients)
        test_data = None if test_data is None else pair("test_data", test_data)
        if stacked not in (True, False, None):
            raise ValueError(f"stacked must be True, False or None, got {stacked!r}")
        given = dict(batch_size=batch_size, local_epochs=local_epochs, participation=participation, keep_lr=keep_lr)
        given |= dict(client_optimizer=client_optimizer, loss=loss, trace=trace, delta=delta)
        check_settings(privacy, reduction=reduction, **given)
        self.device = pick_device(device)
        model = model.to(self.device).to(memory_format=memory_format(model))
        self.clients = [place(x, y, model, self.device) for x, y in clients]
        if test_data is not None:
            test_data = place(*test_data, model, self.device)
        super().__init__(
            model,
            LocalTraining(client_optimizer, batch_size, local_epochs, loss, reduction, privacy, trace),
            [len(x) for x, _ in clients],
            participation=participation,
            keep_lr=keep_lr,
            test_data=test_data,
            delta=delta,
            seed=draw_seed(generator),
        )
        self.training.check_sizes(self.model, dict(enumerate(self.sizes)))
        if privacy is not None:
            from adadp.privacy.accounting import MomentsAccountant  # it takes half a second that most rounds need not

            self.ledgers = [MomentsAccountant() for _ in clients]
        self._local = copy.deepcopy(self.model)  # every client trains in this one copy: memory stays flat
        self._transient = unsaved_buffers(self._local)
        self.stacked, self._stack = stacked, self._make_stack(stacked)

    def _make_stack(self, stacked: bool | None) -> StackedClients | None:
        """What trains all clients at once, if it is wanted and possible."""
        if stacked is False or (stacked is None and self.device.type != "cuda"):
            return None
        names = ("batch_size", "local_epochs", "loss", "reduction", "trace")
        try:
            if self.training.privacy is not None:
                raise NotStackable("private clients clip and draw noise one after the other")
            settings = {name: getattr(self.training, name) for name in names}
            stack = StackedClients(self._local, self.clients, **settings)
        except NotStackable as reason:
            if stacked:
                raise ValueError(f"stacked=True: {reason}; use stacked=False") from reason
            return None
        self.clients = stack.clients  # the same data, once in memory
        return stack

    def _round(self, number: int) -> dict:
        """Draw, train, average, evaluate: one row of the history."""
        return self._conclude(number, self._updates(self._draw(number), number))

    def _updates(self, drawn: list[int], number: int) -> Iterator[Update]:
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
                for spot, (client, report) in enumerate(zip(drawn, reports, strict=True)):
                    self._stack.load(spot)
                    yield self._update(client, report, self._stack.rates()[spot])
                return
        for client in drawn:
            yield self._train_client(client, number)

    def _train_stacked(self, drawn: list[int], number: int) -> list[ClientReport]:
        """Local training of all drawn clients at once."""
        optimizers = [self.training.optimizer(self._local, self._start_lrs(client)) for client in drawn]
        return self._stack.train(drawn, optimizers, [client_generator(self._seed, number, c) for c in drawn])

    def _train_client(self, client: int, number: int) -> Update:
        """Local training of one client in the shared working copy."""
        self._local.load_state_dict(self.model.state_dict())
        for module, name, value in self._transient:
            module._buffers[name] = None if value is None else value.clone()
        order = client_generator(self._seed, number, client)
        noise = noise_generator(self._seed, number, client, len(self.clients), self.device)
        lrs = self._start_lrs(client)
        try:
            report, lrs = self.training.train(self._local, *self.clients[client], lrs=lrs, order=order, noise=noise)
        except Exception as error:
            message = f"round {number}: client {client} failed: {type(error).__name__}: {error}"
            raise RuntimeError(message) from error
        return self._update(client, report, lrs)

    def _update(self, client: int, report: ClientReport, lrs: list[float]) -> Update:
        """What a client hands back, with a copy of the weights that the working copy now holds."""
        state = {name: value.detach().clone() for name, value in self._local.state_dict().items()}
        return Update(client, report, lrs, state)


def unsaved_buffers(model: nn.Module) -> list[tuple[nn.Module, str, torch.Tensor | None]]:
    """Buffers of a model that no state_dict holds: the module, the name in it, and a copy of the value."""
    saved, found = model.state_dict(), []
    for path, module in model.named_modules():
        for name, value in module._buffers.items():
            if (f"{path}.{name}" if path else name) not in saved:
                found.append((module, name, None if value is None else value.clone()))
    return found

"""A Flower strategy that checks: who is there, what came back, and whether a round has a result at all."""

from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from adadp.evaluation import memory_format, pick_device
from adadp.federated.client import ClientReport
from adadp.federated.coordinator import Coordinator, NoUsableClient, Update
from adadp.federated.flower.records import (
    pack_order,
    pack_state,
    reason_of,
    tell,
    told_epsilon,
    unpack_reply,
    unpack_state,
)
from adadp.federated.flower.roster import Roster
from adadp.federated.local import place
from adadp.federated.task import Task
from adadp.history import History
from adadp.privacy import arguments


class CheckedAveraging(Coordinator, Strategy):
    """Federated averaging of a :class:`~adadp.federated.Task` over Flower's nodes.

    Args:
        task: the federation, as the server makes it.
        min_clients: with fewer clients there, or fewer usable answers, a round fails; default: half of those drawn,
            rounded up.
        join_timeout: seconds to wait for clients. A run begins when all are there, or after this time with at least
            ``min_clients``; a later round waits only for ``min_clients``.
        device: where the global model is evaluated.

    Guarantees:
        Answers are summed in the order of the clients, in double precision: the same answers give the same weights.
        An answer that is late, of another model, of another round, or not finite is left out and named, in the log and
        in the history (``missing``, ``refused``), and changes nothing: learning rates are kept here, by client. After
        each round everything is in the checkpoint; a run started again continues after the last whole round, and knows
        whom a round that failed or was cut off had told to train.

    Raises:
        ValueError: a bad argument, named.

    Reference: Algorithm 1, McMahan et al. (2017).
    """

    def __init__(
        self, task: Task, *, min_clients: int | None = None, join_timeout: float = 120.0, device: str = "auto"
    ) -> None:
        drawn = max(1, round(task.participation * task.clients))
        enough = (drawn + 1) // 2 if min_clients is None else arguments.count("min_clients", min_clients, low=1)
        if enough > drawn:
            raise ValueError(f"min_clients must be 1 to {drawn}, the clients of a round, got {min_clients!r}")
        join_timeout = arguments.real("join_timeout", join_timeout, open_low=True)
        where = pick_device(device)
        model = task.model().to(where)
        model.to(memory_format=memory_format(model))
        test = task.evaluation_data()
        super().__init__(
            model, task.training, [None] * task.clients, participation=task.participation, keep_lr=task.keep_lr,
            test_data=test and place(*test, model, where), delta=task.delta, seed=task.draws(),
            min_clients=enough,
        )  # fmt: skip
        self._agreement, self._groups = task.agreement(model), len(task.training.optimizer(model).param_groups)
        self.roster = Roster(task.clients, self._agreement, join_timeout)
        self._timeout: float | None = None
        self._begun = False  # whether clients were waited for; a run that is continued waits as well
        self._sent: dict[int, int] = {}  # node -> client, of the round under way
        self._lacking: dict[str, dict[int, str]] = {"missing": {}, "refused": {}}  # client -> reason, likewise
        self._in_vain: dict[int, float | None] = {}  # client -> epsilon, if told, of an order without a usable answer
        self._row_of_round: dict = {}

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord | None = None, num_rounds: int = 3, timeout: float = 3600.0, *,
        checkpoint: str | Path | None = None, callbacks: Iterable[Callable] = (),
    ) -> Result:  # fmt: skip
        """Run all rounds.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: weights to begin with; default: those that the task makes.
            num_rounds: rounds in all; those in the checkpoint are not repeated.
            timeout: seconds that a round's answers may take; what comes later is not in the average.
            checkpoint, callbacks: as for :meth:`~adadp.federated.coordinator.Coordinator.run`.

        Raises:
            NoUsableClient: too few clients came, or too few answers could be used.
            ValueError: a bad argument, named.
            RuntimeError, ValueError: as for ``Coordinator.run``.
        """
        timeout = arguments.real("timeout", timeout, open_low=True)
        if initial_arrays is not None:
            try:
                self.model.load_state_dict(unpack_state(initial_arrays, self.model.state_dict()))
            except ValueError as error:
                raise ValueError(f"initial_arrays: {error}") from error
        self._grid, self._timeout, self._begun = grid, timeout, False
        self.summary()
        history = self.run(num_rounds, progress=False, checkpoint=checkpoint, callbacks=callbacks)
        result = Result()
        result.arrays = pack_state(self.model.state_dict())
        for row in history.rows:
            result.train_metrics_clientapp[row["round"]] = _metrics(row)
        return result

    def _round(self, number: int) -> dict:
        """A round over the network: Flower's hooks, in Flower's order."""
        arrays = pack_state(self.model.state_dict())
        messages = list(self.configure_train(number, arrays, ConfigRecord(), self._grid))
        if self.training.privacy is not None:
            self._keep()  # a server that is killed from here on still knows whom it told to train
        self.aggregate_train(number, self._grid.send_and_receive(messages, timeout=self._timeout))
        return self._row_of_round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Wait until enough of the drawn clients are there, and make an order for each of them.

        Raises:
            NoUsableClient: they did not come in time.
        """
        drawn = self._draw(server_round)
        here = self.roster.assemble(grid, drawn, all_of_them=not self._begun, enough=self.min_clients)
        if len(here) < self.min_clients:
            raise NoUsableClient(
                f"round {server_round}: {len(here)} of {len(drawn)} clients came within {self.roster.timeout:g} s, "
                f"min_clients is {self.min_clients}{self.roster.told()}"
            )
        self._begun, self._sent = True, {node: client for client, node in here.items()}
        self._unheard |= here.keys()
        absent = {client: self.roster.refusals.get(client, "not there") for client in drawn if client not in here}
        self._lacking, self._in_vain = {"missing": absent, "refused": {}}, dict.fromkeys(self._sent.values())
        for node, client in self._sent.items():
            order = pack_order(server_round, client, self._seed, self._start_lrs(client), self._agreement)
            content = RecordDict({"arrays": arrays, "config": ConfigRecord({**config, **order})})
            yield Message(content, node, MessageType.TRAIN, ttl=self._timeout, group_id=str(server_round))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check what came back, average it, evaluate the new global model.

        Raises:
            NoUsableClient: too few answers could be used; the global model is as it was.
        """
        updates = self._usable(server_round, replies)
        if len(updates) < self.min_clients:
            reasons = {client: reason for lacking in self._lacking.values() for client, reason in lacking.items()}
            raise NoUsableClient(
                f"round {server_round}: {len(updates)} of {len(updates) + len(reasons)} clients sent an answer that "
                f"can be used, min_clients is {self.min_clients} "
                f"({'; '.join(f'client {client}: {reason}' for client, reason in sorted(reasons.items()))})"
            )
        row = self._conclude(server_round, updates)
        row["refused"] = sorted({*row["refused"], *self._lacking["refused"]})
        row["missing"] = sorted(self._lacking["missing"])
        if self.training.privacy is not None:
            heard = {client for client, _ in row["spent"]}
            row["spent"] += [[client, told] for client, told in self._in_vain.items() if client not in heard]
            self._unheard -= {client for client, told in row["spent"] if told is not None}  # a ledger counts everything
        self._row_of_round = row
        return pack_state(self.model.state_dict()), _metrics(row)

    def _usable(self, number: int, replies: Iterable[Message]) -> list[Update]:
        """The answers that can be averaged, in the order of the clients; all others are named in the log."""
        like, updates = self.model.state_dict(), []
        waiting = dict(self._sent)
        for reply in replies:
            client = waiting.pop(reply.metadata.src_node_id, None)
            if client is None:
                tell(WARNING, "round %s: an answer that nobody waits for is ignored", number)
            elif reply.has_error():
                self._lacking["missing"][client] = reason_of(reply.error)
            else:
                try:
                    state, report, lrs = unpack_reply(reply.content, like, number, client)
                    self._check(report, lrs)
                except ValueError as error:
                    self._lacking["refused"][client] = str(error)
                    self._in_vain[client] = told_epsilon(reply.content, number, client)
                else:
                    if not self._finite(state):
                        tell(WARNING, "round %s: client %s is refused: weights that are not finite", number, client)
                    updates.append(Update(client, report, lrs, state))  # those not finite are left out of the average
        for client in waiting.values():
            self._lacking["missing"][client] = "no answer in time"
        for kind, reasons in self._lacking.items():
            for client, reason in sorted(reasons.items()):
                tell(WARNING, "round %s: client %s is %s: %s", number, client, kind, reason)
        return sorted(updates, key=lambda update: update.client)

    def _check(self, report: ClientReport, lrs: list[float]) -> None:
        """Refuse what would stop this client in the rounds to come, or hide what it spends."""
        if len(lrs) != self._groups:
            raise ValueError(f"learning rates must be {self._groups}, one a parameter group, got {len(lrs)}")
        if self.training.privacy is not None and report.epsilon is None:
            raise ValueError("epsilon is missing, and the task is private")

    def _epsilon(self, update: Update) -> float:
        """A client on a machine of its own keeps its ledger itself."""
        return update.report.epsilon

    def _assumptions(self, history: History) -> dict:
        """The same, and who was told to train and has not said since what was spent."""
        known = super()._assumptions(history)
        return known | {"unheard": sorted(self._unheard)} if known else known

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the global model is evaluated on the server."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing, likewise."""
        return None

    def summary(self) -> None:
        """One line in the log."""
        clients, enough = len(self.sizes), self.min_clients
        tell(INFO, "federated averaging: %s clients, at least %s a round", clients, enough)


def _metrics(row: dict) -> MetricRecord:
    """The numbers of a row, as Flower's own tools read them."""
    numbers = {name: row[name] for name in ("test_accuracy", "test_loss") if row[name] is not None}
    return MetricRecord(numbers | {"clients": len(row["clients"])})

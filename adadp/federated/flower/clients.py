"""The client's side: unpack, train as any client of :mod:`adadp.federated` does, pack."""

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from adadp.evaluation import memory_format, pick_device
from adadp.federated.client import client_generator
from adadp.federated.flower.ledger import spend
from adadp.federated.flower.records import differing, pack_reply, unpack_state
from adadp.federated.local import place
from adadp.federated.task import Task, load_task
from adadp.privacy import arguments
from adadp.sources import secret_generator

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Say which client this is, and how it means to train."""
    task, client = membership(context)
    with owners_code():
        agreement = task.agreement(task.model())
    about = ConfigRecord({"client": client, "agreement": agreement})
    return Message(RecordDict({"about": about}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of local training."""
    task, client = membership(context)
    order = message.content["config"]
    with owners_code():
        model = task.model()
        agreement = task.agreement(model)
    _check_order(order, client, agreement)
    model.to(device := pick_device(context.node_config.get("device", "auto")))
    model.to(memory_format=memory_format(model)).load_state_dict(
        unpack_state(message.content["arrays"], model.state_dict())
    )
    with owners_code():
        x, y = task.client_data(client)
        task.training.check_sizes(model, {client: len(x)})  # before anything is spent
    sources, told = _sources(task, client, order, len(x), context, device)
    with owners_code():
        x, y = place(x, y, model, device)
        report, lrs = task.training.train(model, x, y, lrs=order["lrs"] or None, **sources)
    content = pack_reply(model.state_dict(), report, lrs, order["server-round"], client)
    content["metrics"].update(told)
    return Message(content, reply_to=message)


@contextmanager
def owners_code() -> Iterator[None]:
    """Keep the words of an error here: they may quote the client's data (a line that cannot be read, a file's name).

    Raises:
        RuntimeError: with the kind of the error alone, which is what the server gets to see.
    """
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}, which its own terminal shows") from error


def membership(context: Context) -> tuple[Task, int]:
    """The task that this node takes part in, and the number of its client.

    Raises:
        ValueError: the node was started without them, or the task has no such client.
        RuntimeError: the task cannot be loaded.
    """
    config = context.node_config
    if "task" not in config or "client" not in config:
        raise ValueError("this node has no task or client; start it with: adadp federated join TASK --client K")
    with owners_code():
        task = load_task(str(config["task"]))
    client = arguments.count("client", config["client"])
    if client >= task.clients:
        raise ValueError(f"client {client} does not exist: the task has {task.clients}, numbered from 0")
    return task, client


def _check_order(order: ConfigRecord, client: int, agreement: str) -> None:
    """A node may have been started anew, or its task edited, since it introduced itself: nothing is spent on that."""
    if order["client"] != client:
        raise ValueError(f"the order is for client {order['client']}, and this node is client {client} by now")
    if other := differing(agreement, order["agreement"]):
        raise ValueError(f"this client's task is another than the server's by now (other {', '.join(other)})")


def _sources(task: Task, client: int, order: ConfigRecord, examples: int, context: Context, device) -> tuple:
    """Where the order of examples and the noise come from, and what a private client tells about it.

    Only what is not private can be drawn from the server's seed, as in one process.
    """
    if task.privacy is None:
        return {"order": client_generator(order["seed"], order["server-round"], client)}, {}
    ledger = context.node_config.get("ledger")
    if not ledger:
        raise ValueError("this task is private: start its clients with --ledger FILE, which keeps what they spend")
    with owners_code():
        epsilon = spend(str(ledger), task.training, examples, delta=task.delta)
    return {"order": secret_generator(), "noise": secret_generator(device)}, {"epsilon": epsilon}

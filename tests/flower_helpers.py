"""Flower without processes or network: a grid whose nodes are the real client app, called in this process."""

import random

import pytest

pytest.importorskip("flwr", reason="needs flwr (extra: federated)")

import torch
from flwr.app import ArrayRecord, Context, Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto

from adadp import checkpoint as checkpoints
from adadp.federated.flower.clients import app
from adadp.federated.flower.strategy import CheckedAveraging
from adadp.federated.keeping import fingerprint
from adadp.history import History


class Clock:
    """Time that passes only where somebody waits."""

    def __init__(self):
        self.now, self.events = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        due, self.events = [e for e in self.events if e[0] <= self.now], [e for e in self.events if e[0] > self.now]
        for _, happens in due:
            happens()

    def at(self, moment, happens):
        self.events.append((moment, happens))


class FakeGrid:
    """Nodes by number, each with its configuration; what goes wrong there is set from outside.

    Attributes:
        nodes: node -> node_config, those that are listed.
        silent: nodes that never answer.
        faults: node -> function(order, answers) -> answers, instead of what it would answer to an order to train.
        orders: (client, configuration) of all orders to train.
        asked: nodes that were asked to introduce themselves.
        shuffled: whether answers come in another order.
    """

    def __init__(self, *clients, clock=None, first=100, **config):
        self.nodes, self.clock, self.silent, self.faults = {}, clock or Clock(), set(), {}
        self.orders, self.asked, self.shuffled = [], [], False
        for client in clients:
            self.join(first + client, client, **config)

    def join(self, node, client, task="flower_helpers:task", **config):
        self.nodes[node] = {"task": task, "client": client, **config}

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None):
        messages, answers, waits = list(messages), [], False
        for number, message in enumerate(messages):
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = str(number)
            found = [] if node in self.silent else self._answers(through_wire(message), node)
            waits |= not found
            answers += found
        self.clock.now += timeout if waits else 0
        if self.shuffled:
            random.Random(len(self.orders)).shuffle(answers)
        return answers

    def _answers(self, message, node):
        if message.metadata.message_type == MessageType.QUERY:
            self.asked.append(node)
        else:
            self.orders.append((self.nodes[node]["client"], dict(message.content["config"])))
            if fault := self.faults.get(node):
                return fault(message, lambda: self.call(message, node))
        return self.call(message, node)

    def call(self, message, node):
        context = Context(run_id=1, node_id=node, node_config=self.nodes[node], state=RecordDict(), run_config={})
        try:
            return [through_wire(app(message=message, context=context))]
        except Exception as error:
            return [failed(message, f"{type(error)}:<'{error}'>")]


def through_wire(message):
    """As it arrives on another machine."""
    return message_from_proto(type(proto := message_to_proto(message)).FromString(proto.SerializeToString()))


def failed(message, reason, code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION):
    return Message(Error(code, reason), reply_to=message)


def again(task, **choices):
    return CheckedAveraging(task, device="cpu", **choices)


def run(strategy, grid, rounds=2, **choices):
    """The history of a run."""
    seen = {}
    keep = lambda history, **_: seen.update(history=history)  # noqa: E731
    strategy.start(grid, num_rounds=rounds, **choices | {"callbacks": [keep, *choices.get("callbacks", ())]})
    return seen["history"].rows


def weights(strategy):
    return fingerprint(strategy.model.state_dict())


def without(rows, name="missing"):
    return [{key: value for key, value in row.items() if key != name} for row in rows]


def in_process(task, rounds=2):
    loop = task.in_process(device="cpu")
    return loop.run(rounds, progress=False).rows, weights(loop)


def average_without(task, absent):
    """The weights after a first round without one client."""
    loop = task.in_process(device="cpu")
    found = loop._updates
    loop._updates = lambda drawn, number: found([client for client in drawn if client != absent], number)
    loop.run(1, progress=False)
    return weights(loop)


def stop_after(number):
    def stop(round, **_):
        if round == number:
            raise KeyboardInterrupt

    return stop


def kept(folder):
    history = History.from_json((folder / "history.json").read_text())
    return fingerprint(checkpoints.load(folder / "model.pt")), len(history.rows)


# what goes wrong at a node


def changed(metrics=(), arrays=None, drop=()):
    """A fault: the answer, with other metrics or weights."""

    def fault(order, answer):
        (reply,) = answer()
        for name in drop:
            if name in reply.content:
                del reply.content[name]
            else:
                del reply.content["metrics"][name]
        reply.content.get("metrics", {}).update(dict(metrics))
        if arrays:
            state = reply.content["arrays"].to_torch_state_dict()
            reply.content["arrays"] = ArrayRecord(arrays(state))
        return [reply]

    return fault


def poisoned(value):
    return lambda state: state | {"0.bias": torch.full((6,), value)}


def no_answer(order, answer):
    return []


def breaks(order, answer):
    return [failed(order, "<class 'ValueError'>:<'the disk is full'>")]

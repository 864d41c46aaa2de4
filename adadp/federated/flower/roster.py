"""Who is there: which node is which client. A node that comes back has a new number, and says who it is."""

import time
from collections.abc import Iterable
from logging import INFO, WARNING

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from adadp.federated.flower.records import differing, reason_of, tell

POLL = 0.5  # seconds between two looks
PATIENCE = 60.0  # seconds for newcomers to introduce themselves where enough others wait for the round
LASTING = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)  # as long as the node lives


class Roster:
    """The clients' nodes, as far as they have introduced themselves.

    A killed node stays listed for a minute: of two nodes that are the same client, the one that came later is taken.
    Two that come at once are a mistake of whoever started them: neither is taken until one has gone.

    Args:
        clients: how many there are.
        agreement: JSON of what every client must have in common with the server.
        timeout: seconds to wait for clients that are not there.

    Attributes:
        refusals: client -> why it cannot take part.
    """

    def __init__(self, clients: int, agreement: str, timeout: float) -> None:
        self.clients, self.agreement, self.timeout = clients, agreement, timeout
        self.refusals: dict[int, str] = {}
        self._nodes: dict[int, int] = {}  # client -> node
        self._known: set[int] = set()  # nodes that need not be asked again
        self._strangers: dict[int, str] = {}  # nodes that are no client of this task, and why

    def assemble(self, grid: Grid, wanted: Iterable[int], *, all_of_them: bool, enough: int) -> dict[int, int]:
        """The wanted clients that are there, client -> node, in the order of the clients.

        Args:
            grid: Flower's connection to the nodes.
            wanted: numbers of clients.
            all_of_them: wait for all; else for ``enough`` only. After ``timeout`` seconds whoever is there is taken.
        """
        wanted, deadline = sorted(wanted), time.monotonic() + self.timeout
        number = len(wanted) if all_of_them else enough
        said: tuple | None = None
        while True:
            online = set(grid.get_node_ids())
            self._known &= online  # one that was away may have changed
            if new := online - self._known:
                left = max(1.0, deadline - time.monotonic())
                self._ask(grid, sorted(new), min(left, PATIENCE) if len(self._here(wanted, online)) >= number else left)
            here = self._here(wanted, online)
            if len(here) >= number or time.monotonic() >= deadline:
                return here
            if said != (news := (len(here), len(wanted), self.told())):
                tell(INFO, "%s of %s clients are there, waiting%s", *news)
                said = news
            time.sleep(POLL)

    def _here(self, wanted: list[int], online: set[int]) -> dict[int, int]:
        """Those of the wanted clients whose nodes are listed."""
        return {client: self._nodes[client] for client in wanted if self._nodes.get(client) in online}

    def told(self) -> str:
        """What is known of nodes that cannot take part, to be added to a sentence."""
        reasons = [f"client {client}: {reason}" for client, reason in sorted(self.refusals.items())]
        reasons += sorted(set(self._strangers.values()))
        return f" ({'; '.join(reasons)})" if reasons else ""

    def _ask(self, grid: Grid, nodes: list[int], timeout: float) -> None:
        """Let nodes introduce themselves; those that do not answer are asked again."""
        messages = [Message(RecordDict(), node, MessageType.QUERY, ttl=timeout) for node in nodes]
        claims: dict[int, list[int]] = {}
        for reply in grid.send_and_receive(messages, timeout=timeout):
            node = reply.metadata.src_node_id
            if node not in nodes:
                continue  # Flower's own word for an answer that was lost
            if reply.has_error():
                self._fail(node, reply.error)
            elif (client := self._introduced(node, reply.content)) is not None:
                claims.setdefault(client, []).append(node)
        for client, claimants in claims.items():
            self._enter(client, claimants)

    def _fail(self, node: int, error: Error) -> None:
        """Note that a node could not answer; where that may pass, it is asked again."""
        reason = f"a node cannot take part: {reason_of(error)}"
        if self._strangers.get(node) != reason:
            tell(WARNING, "%s", reason)
        self._strangers[node] = reason
        if error.code in LASTING:
            self._known.add(node)

    def _introduced(self, node: int, content: RecordDict) -> int | None:
        """The client that a node is; None, with the reason noted, where it is none of this task."""
        self._known.add(node)
        self._strangers.pop(node, None)
        self._nodes = {client: other for client, other in self._nodes.items() if other != node}  # what it was before
        try:
            client = int(content["about"]["client"])
            other = differing(self.agreement, content["about"]["agreement"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._strangers[node] = f"a node answered with something else ({type(error).__name__})"
            return None
        if not 0 <= client < self.clients:
            self._strangers[node] = f"a node says that it is client {client}, of {self.clients}"
            return None
        if other:
            self._refuse(client, f"it runs another task (other {', '.join(other)})")
            return None
        return client

    def _enter(self, client: int, nodes: list[int]) -> None:
        """Take a node for a client, if it is the only one that says so."""
        if len(nodes) > 1:
            self._known -= set(nodes)  # all are asked again, until one is left
            self._refuse(client, f"{len(nodes)} nodes say that they are it; stop all but one")
            return
        if self._nodes.get(client, nodes[0]) != nodes[0]:
            tell(INFO, "client %s is back, on another node", client)
        self._nodes[client] = nodes[0]
        self.refusals.pop(client, None)

    def _refuse(self, client: int, reason: str) -> None:
        """Note why a client cannot take part; say it once."""
        if self.refusals.get(client) != reason:
            tell(WARNING, "client %s: %s", client, reason)
        self.refusals[client] = reason

"""All clients of a round at once: their models are stacked, so that one operation serves every client.

Where a single client keeps a processor busy this wins nothing. A card is busy with launching operations, and five
clients, or a hundred, cost it hardly more launches than one; there an iteration is also captured in a CUDA graph.
Weights, learning rates and counters are those of :func:`adadp.federated.client.client_update` up to rounding.
"""

import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from adadp.federated.client import ClientReport, Loss, client_batches, num_steps, thin
from adadp.federated.rows import AdaptiveRows, TorchRows
from adadp.federated.stackable import NotStackable, check_optimizers, losses_of, used_parameters
from adadp.optimizer import ADADP

Data = Sequence[tuple[Tensor, Tensor]]


class StackedClients:
    """Local training of several clients at once; a drop-in for one :func:`client_update` after the other.

    Batches shorter than the longest are padded with weight zero, and clients with fewer batches than others hold still
    from their last one on.

    Args:
        model: the shared working copy; its parameters hold the global model when :meth:`train` is called.
        clients: (x, y) of each client, all on the device of the model.
        batch_size, local_epochs, loss, reduction, trace: as for :func:`client_update`.

    Raises:
        NotStackable: the model, the loss or the data do not allow it; the message says why.
    """

    def __init__(self, model: nn.Module, clients: Data, *, batch_size: int, local_epochs: int, loss: Loss,
                 reduction: str, trace: int):  # fmt: skip
        self.model, self.loss, self.reduction, self.trace = model, loss, reduction, trace
        self.sizes = [len(x) for x, _ in clients]
        self.batch_size, self.local_epochs = batch_size, local_epochs
        self.width = min(batch_size, max(self.sizes))
        self.x, self.y = _joined(clients)
        self.used = used_parameters(model, self.x[:2], self.y[:2], loss)
        self._key = None
        self._step: Callable[[], None] = self._advance  # on CUDA one graph of it

    @property
    def clients(self) -> list[tuple[Tensor, Tensor]]:
        """The clients' data as views of one memory."""
        return list(zip(self.x.split(self.sizes), self.y.split(self.sizes), strict=True))

    def train(self, drawn: Sequence[int], optimizers: Sequence, generators: Sequence) -> list[ClientReport]:
        """Train the ``drawn`` clients for one round, from the weights that the model now has.

        Args:
            drawn: their numbers.
            optimizers: one a client, new, over the parameters of the model: for settings and learning rates.
            generators: one a client, source of the order of its examples.

        Raises:
            NotStackable: the optimizers do not allow it; nothing has happened then, but generators have not been used.
        """
        key = check_optimizers(optimizers)
        steps = [num_steps(self.sizes[c], self.batch_size, self.local_epochs) for c in drawn]
        if (key, len(drawn)) != self._key:
            self._prepare(optimizers[0], len(drawn))
            self._key = (key, len(drawn))
        per, rows = self.rows.gradients, self.rows
        index, weight = self._orders(drawn, generators, per)
        active = torch.tensor([[i < s // per for s in steps] for i in range(len(index))], device=self.x.device)
        self._load_global()
        rows.start([[float(o.param_groups[g]["lr"]) for o in optimizers] for g in range(len(self.blocks))])
        rates = rows.lr.new_empty(len(index) + 1, len(drawn)).copy_(rows.lr[0])
        for i in range(len(index)):
            self._index.copy_(index[i])
            self._weight.copy_(weight[i])
            self._active.copy_(active[i])
            self._step()
            rates[i + 1].copy_(rows.lr[0])
        return self._reports(drawn, steps, rates)

    def rates(self) -> list[list[float]]:
        """The learning rates at the end, one list a client with one value a parameter group."""
        return self.rows.lr.t().tolist()

    @torch.no_grad()
    def load(self, place: int) -> None:
        """Give the model the weights of the client at this place among the drawn ones."""
        for p, view in zip(self._params, self.views, strict=True):
            p.copy_(view[place])

    def _prepare(self, template: torch.optim.Optimizer, count: int) -> None:
        """Memory for ``count`` clients, and the step that is repeated."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        groups = [[p for p in g["params"] if names.get(id(p)) in self.used] for g in template.param_groups]
        if any(id(p) not in names for g in template.param_groups for p in g["params"]):
            raise NotStackable("client_optimizer has parameters that are not the model's")
        self._params = [p for params in groups for p in params]
        if len({p.dtype for p in self._params}) != 1 or self._params[0].dtype not in (torch.float32, torch.float64):
            raise NotStackable("trained parameters must all be float32 or all float64")
        self.names = [names[id(p)] for p in self._params]
        device = self.x.device
        self.blocks = [_like(self._params, count, sum(p.numel() for p in params)) for params in groups]
        ends = torch.tensor([0, *map(len, groups)]).cumsum(0).tolist()
        self._parts = [slice(a, b) for a, b in pairwise(ends)]  # which parameters make up a block
        self.views = [v for block, params in zip(self.blocks, groups, strict=True) for v in _views(block, params)]
        if isinstance(template, ADADP):
            self.rows = AdaptiveRows(template, self.blocks)
        else:
            ragged = len({num_steps(n, self.batch_size, self.local_epochs) for n in self.sizes}) > 1
            self.rows = TorchRows(template, self.blocks, ragged=ragged)
        shape = (self.rows.gradients, count, self.width)
        self._index = torch.zeros(shape, dtype=torch.int64, device=device)
        self._weight = _like(self._params, *shape)
        self._active = torch.zeros(count, dtype=torch.bool, device=device)
        self._step = replayed(self._advance, device) if device.type == "cuda" else self._advance

    @torch.no_grad()
    def _advance(self) -> None:
        """One step of all clients; everything it needs lies in memory that stays where it is."""
        self.rows.advance(self._gradient, self._active)

    @torch.enable_grad()
    def _gradient(self, half: int) -> list[Tensor]:
        """Gradient of every client's own loss, one (K, d) a parameter group."""
        leaves = [view.detach().requires_grad_() for view in self.views]
        x, y = self.x[self._index[half]], self.y[self._index[half]]
        losses = losses_of(self.model, self.loss, dict(zip(self.names, leaves, strict=True)), x, y)
        total = (losses * self._weight[half]).sum()  # a client's part of the gradient is that of its own loss alone
        grads = [g.reshape(len(g), g[0].numel()) for g in torch.autograd.grad(total, leaves)]
        return [torch.cat([b[:, :0], *grads[part]], 1) for b, part in zip(self.blocks, self._parts, strict=True)]

    def _orders(self, drawn, generators, per: int) -> tuple[Tensor, Tensor]:
        """Which examples each client sees in each step, (steps, per, K, B), and their weights in the loss."""
        starts = torch.tensor([0, *self.sizes]).cumsum(0)
        batches = []
        for client, generator in zip(drawn, generators, strict=True):
            found = client_batches(self.sizes[client], self.batch_size, self.local_epochs, generator)
            batches.append([starts[client] + b for b in found])
        steps = max(len(b) for b in batches) // per
        index = torch.zeros(steps * per, len(drawn), self.width, dtype=torch.int64)
        weight = torch.zeros(index.shape, dtype=self._weight.dtype)
        for k, mine in enumerate(batches):
            index[:, k] = starts[drawn[k]]
            for i, batch in enumerate(mine[: steps * per]):
                index[i, k] = batch[0]  # padding is an example that is there anyway
                index[i, k, : len(batch)] = batch
                weight[i, k, : len(batch)] = 1 / len(batch) if self.reduction == "mean" else 1
        shape = (steps, per, len(drawn), self.width)
        return index.view(shape).to(self.x.device), weight.view(shape).to(self.x.device)

    @torch.no_grad()
    def _load_global(self) -> None:
        """Every client starts from the weights of the model."""
        for p, view in zip(self._params, self.views, strict=True):
            view.copy_(p)

    def _reports(self, drawn, steps: list[int], rates: Tensor) -> list[ClientReport]:
        """What the clients tell; the only place where the host waits for a device."""
        rows, per = self.rows, self.rows.gradients
        told = {name: getattr(rows, name) for name in ("error", "accepted", "discarded")}
        told = {name: values.tolist() for name, values in told.items() if values is not None}
        rates = rates.tolist()
        return [
            ClientReport(
                examples=self.sizes[client],
                steps=steps[k],
                lr=rates[steps[k] // per][k],
                lrs=thin([rates[j // per][k] for j in range(1, steps[k] + 1)] if self.trace else [], self.trace),
                **{name: values[k] for name, values in told.items()},
            )
            for k, client in enumerate(drawn)
        ]


class Replayed:
    """A call without arguments, recorded in a CUDA graph: every later call is one launch.

    What it changes must lie in memory that stays where it is. Recording runs it, so do that before the first state.
    """

    def __init__(self, call: Callable[[], None], device: torch.device):
        with torch.cuda.device(device):  # streams belong to a card: on another one's nothing would be recorded
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # libraries choose their kernels in the first calls, which cannot be recorded
                for _ in range(3):
                    call()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                call()

    def __call__(self) -> None:
        self.graph.replay()


def replayed(call: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The call as a CUDA graph; where it cannot be recorded (a model that reads a value), the call itself."""
    try:
        return Replayed(call, device)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        warnings.warn(f"the stacked clients run without a CUDA graph, which is slower: {reason}", stacklevel=2)
        return call


def _joined(clients: Data) -> tuple[Tensor, Tensor]:
    """All clients' examples one after the other."""
    for part in (0, 1):
        kinds = {(data[part].shape[1:], data[part].dtype) for data in clients}
        if len(kinds) > 1:
            raise NotStackable(
                f"clients differ in the shape or type of an {('input', 'label')[part]}: {sorted(map(str, kinds))}"
            )
    return torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])


def _like(params: list[Tensor], *shape: int) -> Tensor:
    """Zeros of a shape, in the parameters' type and place."""
    return torch.zeros(shape, dtype=params[0].dtype, device=params[0].device)


def _views(block: Tensor, params: list[Tensor]) -> list[Tensor]:
    """The parameters of all clients, (K, *shape) each, as views of their block."""
    parts = block.split([p.numel() for p in params], 1) if params else ()
    return [part.view(len(block), *p.shape) for part, p in zip(parts, params, strict=True)]

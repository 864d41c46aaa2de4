"""Which examples a gradient sees: Poisson sampling, and the shuffled partition most experiments use instead.

Both are frozen dataclasses. The size of the data and the randomness are arguments of :meth:`batches`, and what comes
out are indices, so a sampler can be shared, hashed and written into a configuration.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from adadp.privacy import arguments


@dataclass(frozen=True)
class PoissonSampling:
    """Every example joins every batch independently with probability ``sample_rate``.

    This is the sampling that the accountants assume. The size of a batch is random, and a batch may be empty; an empty
    batch still costs a step and still gets its noise. The divisor of a private gradient is therefore the declared
    :meth:`expected_batch_size`, never the size drawn. The size drawn is a sensitive value: do not publish it.

    Args:
        sample_rate: q, the probability of joining a batch, 0 < q <= 1.
        steps: number of batches (gradients, two an ADADP iteration), >= 0.

    Raises:
        ValueError: an argument is out of its range (nan included).

    Guarantees:
        Batches are independent of each other, and examples are independent inside a batch. Batch k is drawn from the
        generator only when it is asked for, so a stored generator state and ``start=k`` continue a run exactly.

    >>> sampling = PoissonSampling(sample_rate=0.5, steps=3)
    >>> generator = torch.Generator().manual_seed(0)
    >>> [len(batch) <= 8 for batch in sampling.batches(8, generator)]
    [True, True, True]
    >>> sampling.steps_per_epoch(8), sampling.expected_batch_size(8)
    (2, 4.0)

    Behind a ``DataLoader`` one pass is the whole training, all ``steps`` of it (no loop over epochs around it), and an
    empty batch needs a shape:

    >>> from torch.utils.data import DataLoader, TensorDataset, default_collate
    >>> data = TensorDataset(torch.zeros(8, 3), torch.zeros(8))
    >>> def collate(examples):
    ...     return default_collate(examples) if examples else [part[:0] for part in data[:1]]
    >>> rare = PoissonSampling(sample_rate=0.01, steps=3).batches(8, generator)
    >>> [x.shape[1] for x, y in DataLoader(data, batch_sampler=rare, collate_fn=collate)]
    [3, 3, 3]
    """

    sample_rate: float
    steps: int

    name = "poisson"

    def __post_init__(self):
        rate = arguments.real("sample_rate", self.sample_rate, high=1.0, open_low=True)
        object.__setattr__(self, "sample_rate", rate)
        object.__setattr__(self, "steps", arguments.count("steps", self.steps))

    def batches(self, num_examples: int, generator: torch.Generator | None = None, *, start: int = 0) -> Iterator:
        """Yield int64 index tensors of shape (drawn size,), ascending, one a step from step ``start`` on."""
        num_examples, start = _checked(num_examples, generator, start)
        return (_bernoulli_indices(num_examples, self.sample_rate, generator) for _ in range(start, self.steps))

    def num_steps(self, num_examples: int) -> int:
        """Gradients in the whole run."""
        return self.steps

    def steps_per_epoch(self, num_examples: int) -> int:
        """Gradients an epoch: round(1 / sample_rate)."""
        return max(1, round(1 / self.sample_rate))

    def expected_batch_size(self, num_examples: int) -> float:
        """The declared divisor: sample_rate * num_examples."""
        return self.sample_rate * num_examples

    def rate(self, num_examples: int) -> float:
        """The sampling rate to hand to an accountant."""
        return self.sample_rate


@dataclass(frozen=True)
class ShuffledPartition:
    """Shuffle once an epoch and cut the order into batches of ``batch_size``; the last batch may be shorter.

    The usual data loader, and what the paper's experiments do. An epsilon computed for Poisson sampling at
    :meth:`rate` is NOT a guarantee for it: it is shown next to one only as a comparison, labelled with this name. A
    short last batch is used, with the same declared divisor as the others.

    Args:
        batch_size: examples a batch, >= 1.
        epochs: passes over the data, >= 0.

    Raises:
        ValueError: an argument is out of its range.

    Guarantees:
        Every example is used exactly once an epoch. An epoch's order is drawn when its first batch is asked for, so a
        generator state stored between two epochs continues a run exactly (``start`` is then a multiple of
        :meth:`steps_per_epoch`; any other ``start`` is refused).

    >>> sampling = ShuffledPartition(batch_size=10, epochs=1)
    >>> [len(batch) for batch in sampling.batches(25, torch.Generator().manual_seed(0))]
    [10, 10, 5]
    """

    batch_size: int
    epochs: int

    name = "shuffled partition"

    def __post_init__(self):
        object.__setattr__(self, "batch_size", arguments.count("batch_size", self.batch_size, low=1))
        object.__setattr__(self, "epochs", arguments.count("epochs", self.epochs))

    def batches(self, num_examples: int, generator: torch.Generator | None = None, *, start: int = 0) -> Iterator:
        """Yield int64 index tensors of shape (batch_size,) or shorter, from step ``start`` on."""
        num_examples, start = _checked(num_examples, generator, start)
        first_epoch, inside = divmod(start, self.steps_per_epoch(num_examples))
        if inside:
            raise ValueError(f"start={start} is inside an epoch, whose order is not known any more: continue from a "
                             f"multiple of {self.steps_per_epoch(num_examples)}")  # fmt: skip
        device = generator.device if generator is not None else None
        orders = (
            torch.randperm(num_examples, generator=generator, device=device) for _ in range(first_epoch, self.epochs)
        )
        return (batch for order in orders for batch in order.split(self.batch_size))

    def num_steps(self, num_examples: int) -> int:
        """Gradients in the whole run."""
        return self.epochs * self.steps_per_epoch(num_examples)

    def steps_per_epoch(self, num_examples: int) -> int:
        """Gradients an epoch: ceil(num_examples / batch_size)."""
        return math.ceil(num_examples / self.batch_size)

    def expected_batch_size(self, num_examples: int) -> float:
        """The declared divisor, for the short last batch too."""
        return float(min(self.batch_size, num_examples))

    def rate(self, num_examples: int) -> float:
        """The rate of the Poisson sampling that this partition imitates: batch_size / num_examples, at most 1."""
        return min(1.0, self.batch_size / num_examples)


def padded(batches: Iterable, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Give batches of random size a fixed size, for code that needs fixed shapes (a CUDA graph, ``torch.compile``).

    Args:
        batches: index tensors, for example ``PoissonSampling(...).batches(n, generator)``.
        size: length of the buffer, >= 1. A larger batch makes it grow, for that batch and all later ones, to the next
            multiple of ``size``; no example is ever dropped (that would void the accounting).

    Yields:
        ``(indices, mask)`` of equal length: index 0 fills the rest, and ``mask`` is True where an example was drawn.
        Pass the mask on: ``PrivateGradient.backward(x[indices], y[indices], mask=mask)``.

    >>> next(padded([torch.tensor([4, 7])], size=3))
    (tensor([4, 7, 0]), tensor([ True,  True, False]))
    """
    return _padded(batches, arguments.count("size", size, low=1))


def _padded(batches: Iterable, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """:func:`padded` for a checked size."""
    room = size
    for indices in batches:
        room = max(room, math.ceil(len(indices) / size) * size)
        buffer = indices.new_zeros(room)
        buffer[: len(indices)] = indices
        yield buffer, torch.arange(room, device=indices.device) < len(indices)


def _bernoulli_indices(n: int, q: float, generator: torch.Generator | None, chunk: int | None = None) -> torch.Tensor:
    """Indices of the successes among n independent trials of probability q, from about q*n draws instead of n.

    The gaps between successes are geometric: floor(log(u) / log(1 - q)) failures precede each one. In float64, because
    float32 uniforms would round a small q by up to 1e-5 of itself. ``chunk`` draws are made at a time: by default so
    many that a second chunk is hardly ever needed.
    """
    device = generator.device if generator is not None else None
    if q == 1:
        return torch.arange(n, device=device)
    chunk = chunk or math.ceil(n * q + 6 * math.sqrt(n * q) + 6)
    last, found = -1.0, []
    while last < n:
        u = torch.rand(chunk, generator=generator, device=device, dtype=torch.float64)
        gaps = torch.floor(torch.log1p(-u) / math.log1p(-q))
        positions = last + torch.cumsum(gaps + 1, 0)
        found.append(positions[positions < n])
        last = float(positions[-1])
    return torch.cat(found).long()


def _checked(num_examples: int, generator: torch.Generator | None, start: int) -> tuple[int, int]:
    """The arguments of ``batches``, checked when it is called and not when the first batch is asked for."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")
    return arguments.count("num_examples", num_examples, low=1), arguments.count("start", start)

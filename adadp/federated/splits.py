"""Who holds which example: splits of a labelled data set over the clients.

Every split returns one int64 index tensor a client. Together they are a partition: each example is held by exactly
one client. Nothing is drawn but from the ``generator`` that is passed in.
"""

import operator
from collections.abc import Sequence

import numpy as np
import torch

from adadp.privacy import arguments

Split = list[torch.Tensor]


def split_by_groups(
    labels: torch.Tensor,
    groups: Sequence[Sequence[int]],
    random_fraction: float,
    generator: torch.Generator | None = None,
) -> Split:
    """Give each client the classes of its group, then deal a fraction of everybody's data out at random.

    At ``random_fraction=0`` client k holds the classes ``groups[k]`` and no other (the paper's pathological case); at 1
    the split is uniformly random. In between each client gives the stated fraction of its examples, drawn at random,
    to a common pool, and gets as many back from the shuffled pool: **every client keeps exactly its size**.

    Args:
        labels: class of each example, int64, shape (N,).
        groups: the classes of each client, disjoint, together all classes that occur.
        random_fraction: share of each client's data that is dealt out at random, 0 to 1.
        generator: source of randomness.

    Returns:
        One index tensor a client, in random order.

    Raises:
        ValueError: a class without client or without example, a class in two groups, a fraction outside 0 to 1.

    >>> labels = torch.tensor([0, 1, 2, 3]).repeat_interleave(100)
    >>> a, b = split_by_groups(labels, [(0, 1), (2, 3)], 0.5, generator=torch.Generator().manual_seed(0))
    >>> len(a), len(b), sorted(set(torch.cat([a, b]).tolist())) == list(range(400))
    (200, 200, True)

    Reference: Section 6.2, Koskela & Honkela.
    """
    labels = _labels(labels)
    random_fraction = arguments.real("random_fraction", random_fraction, high=1)
    groups = _groups(labels, groups)
    own = [_shuffled(torch.isin(labels, torch.tensor(g)).nonzero().flatten(), generator) for g in groups]
    given = [round(random_fraction * len(indices)) for indices in own]
    pool = _shuffled(torch.cat([i[:n] for i, n in zip(own, given, strict=True)]), generator)
    back = pool.split(given)
    return [_shuffled(torch.cat([i[n:], b]), generator) for i, n, b in zip(own, given, back, strict=True)]


def split_iid(labels: torch.Tensor, clients: int, generator: torch.Generator | None = None) -> Split:
    """Split uniformly at random into parts whose sizes differ by at most one.

    Args:
        labels: class of each example, int64, shape (N,); only its length matters.
        clients: number of clients, 1 to N.
        generator: source of randomness.

    Raises:
        ValueError: fewer examples than clients.

    >>> [len(part) for part in split_iid(torch.zeros(10, dtype=torch.int64), clients=3)]
    [4, 3, 3]
    """
    labels = _labels(labels)
    clients = _clients(clients, len(labels))
    return list(torch.randperm(len(labels), generator=generator).tensor_split(clients))


def split_dirichlet(
    labels: torch.Tensor,
    clients: int,
    alpha: float,
    generator: torch.Generator | None = None,
    *,
    min_size: int = 1,
    attempts: int = 100,
) -> Split:
    """Divide every class over the clients by proportions drawn from a symmetric Dirichlet distribution.

    Args:
        labels: class of each example, int64, shape (N,).
        clients: number of clients, 1 to N.
        alpha: concentration, above 0 and at most 1e100; the smaller, the more skewed (0.1 and 0.5 are usual).
        generator: source of randomness.
        min_size: least number of examples a client; the whole split is drawn again until it is met.
        attempts: how often to draw.

    Raises:
        ValueError: a bad argument, or no draw met ``min_size``.

    >>> labels = torch.arange(10).repeat(100)
    >>> parts = split_dirichlet(labels, clients=4, alpha=0.5, generator=torch.Generator().manual_seed(0))
    >>> len(parts), sum(len(part) for part in parts)
    (4, 1000)

    Reference: Hsu, Qi, Brown (2019), "Measuring the effects of non-identical data distribution".
    """
    labels = _labels(labels)
    clients = _clients(clients, len(labels))
    alpha = arguments.real("alpha", alpha, open_low=True, high=1e100)  # their sum must not overflow
    if arguments.count("min_size", min_size) * clients > len(labels):
        raise ValueError(f"min_size={min_size} cannot be met: {clients} clients share {len(labels)} examples")
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    classes = [(labels == c).nonzero().flatten() for c in labels.unique()]
    for _ in range(arguments.count("attempts", attempts, low=1)):
        parts = _dirichlet_draw(classes, clients, alpha, rng)
        if min(len(p) for p in parts) >= min_size:
            return parts
    raise ValueError(
        f"no split in {attempts} draws gave every client {min_size} examples: "
        f"raise alpha={alpha}, or lower clients or min_size"
    )


def _dirichlet_draw(classes: Split, clients: int, alpha: float, rng: np.random.Generator) -> Split:
    """One draw: each class is shuffled and cut at the cumulated proportions."""
    shares: list[list[torch.Tensor]] = [[] for _ in range(clients)]
    for indices in classes:
        cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(indices)
        shuffled = indices[torch.from_numpy(rng.permutation(len(indices)))]
        for share, piece in zip(
            shares, shuffled.tensor_split(torch.from_numpy(np.rint(cuts).astype(np.int64))), strict=True
        ):
            share.append(piece)
    return [torch.cat(share)[torch.from_numpy(rng.permutation(sum(map(len, share))))] for share in shares]


def _labels(labels: torch.Tensor) -> torch.Tensor:
    """The labels as a flat int64 tensor, checked."""
    labels = torch.as_tensor(labels).cpu()
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or len(labels) == 0:
        raise ValueError(
            f"labels must be a non-empty 1-D integer tensor, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    return labels.to(torch.int64)


def _groups(labels: torch.Tensor, groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Groups as lists of ints; they are disjoint, non-empty, and cover the classes exactly."""
    try:
        found = [[operator.index(c) for c in group] for group in groups]
    except TypeError as error:
        raise ValueError(f"groups must hold the classes of each client, whole numbers, got {groups!r}") from error
    named, present = [c for group in found for c in group], set(labels.unique().tolist())
    if not found or not all(found):
        raise ValueError("groups must name at least one class for each client")
    if len(set(named)) < len(named):
        raise ValueError(f"groups name a class twice: {sorted(c for c in set(named) if named.count(c) > 1)}")
    if missing := present - set(named):
        raise ValueError(f"groups leave out the classes {sorted(missing)}, which occur in labels")
    if absent := set(named) - present:
        raise ValueError(f"groups name the classes {sorted(absent)}, of which labels have no example")
    return found


def _clients(clients: int, examples: int) -> int:
    """Between one client and one client an example."""
    clients = arguments.count("clients", clients, low=1)
    if clients > examples:
        raise ValueError(f"clients={clients} is more than the {examples} examples: some client would have no data")
    return clients


def _shuffled(indices: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """The same indices in random order."""
    return indices[torch.randperm(len(indices), generator=generator)]

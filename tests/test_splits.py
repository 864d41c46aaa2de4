"""Splits are partitions, keep sizes, and refuse what cannot be."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadp.federated import split_by_groups, split_dirichlet, split_iid

PAIRS = [(1, 9), (0, 8), (3, 5), (2, 6), (4, 7)]


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def _check_partition(parts, total):
    assert torch.cat(parts).sort().values.equal(torch.arange(total))
    assert all(part.dtype == torch.int64 for part in parts)


@given(
    fraction=st.floats(0, 1), seed=st.integers(0, 2**20), counts=st.lists(st.integers(1, 40), min_size=10, max_size=10)
)
def test_groups_are_a_partition_and_clients_keep_their_size(fraction, seed, counts):
    labels = torch.repeat_interleave(torch.arange(10), torch.tensor(counts))
    parts = split_by_groups(labels, PAIRS, fraction, gen(seed))
    _check_partition(parts, len(labels))
    assert [len(p) for p in parts] == [counts[a] + counts[b] for a, b in PAIRS]


def test_groups_at_zero_are_pure_and_at_a_third_keep_the_expected_share():
    labels = torch.arange(10).repeat_interleave(1000)
    for part, pair in zip(split_by_groups(labels, PAIRS, 0.0, gen()), PAIRS, strict=True):
        assert set(labels[part].tolist()) == set(pair)
    for part, pair in zip(split_by_groups(labels, PAIRS, 0.33, gen()), PAIRS, strict=True):
        own = torch.isin(labels[part], torch.tensor(pair)).float().mean().item()
        assert own == pytest.approx(0.67 + 0.33 * 0.2, abs=0.03)


def test_groups_at_one_are_uniform():
    labels = torch.arange(10).repeat_interleave(1000)
    for part in split_by_groups(labels, PAIRS, 1.0, gen()):
        assert (torch.bincount(labels[part], minlength=10) - 200).abs().max() < 60


@given(n=st.integers(1, 60), clients=st.integers(1, 60), seed=st.integers(0, 99))
def test_iid_sizes_differ_by_at_most_one(n, clients, seed):
    labels = torch.zeros(n, dtype=torch.int64)
    if clients > n:
        with pytest.raises(ValueError, match="clients"):
            split_iid(labels, clients, gen(seed))
        return
    parts = split_iid(labels, clients, gen(seed))
    _check_partition(parts, n)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(alpha=st.floats(0.05, 100), seed=st.integers(0, 999))
def test_dirichlet_is_a_partition(alpha, seed):
    labels = torch.arange(10).repeat(50)
    _check_partition(split_dirichlet(labels, 5, alpha, gen(seed), min_size=0), 500)


@given(alpha=st.floats(1e-300, 1e100), seed=st.integers(0, 999))
def test_dirichlet_is_a_partition_at_any_alpha(alpha, seed):
    labels = torch.arange(4).repeat(10)
    _check_partition(split_dirichlet(labels, 5, alpha, gen(seed), min_size=0), 40)


@given(
    values=st.lists(st.integers(-1000, 1000), min_size=2, max_size=12, unique=True),
    cut=st.integers(1, 11),
    fraction=st.floats(0, 1),
    dtype=st.sampled_from([torch.int16, torch.int32, torch.int64]),
    seed=st.integers(0, 99),
)
def test_classes_may_have_any_numbers_and_dtype(values, cut, fraction, dtype, seed):
    cut = min(cut, len(values) - 1)
    groups = [np.array(values[:cut]), torch.tensor(values[cut:])]
    labels = torch.tensor(values, dtype=dtype).repeat(7)
    parts = split_by_groups(labels, groups, fraction, gen(seed))
    _check_partition(parts, len(labels))
    assert [len(p) for p in parts] == [7 * cut, 7 * (len(values) - cut)]


@pytest.mark.parametrize("labels", [list(range(10)) * 5, np.arange(10, dtype=np.uint16).repeat(5)])
def test_labels_may_be_lists_and_arrays(labels):
    _check_partition(split_by_groups(labels, PAIRS, 0.5, gen()), 50)
    _check_partition(split_iid(labels, np.int64(3), gen()), 50)


def test_dirichlet_skew_falls_with_alpha():
    labels = torch.arange(10).repeat_interleave(500)

    def largest_share(alpha):
        parts = split_dirichlet(labels, 5, alpha, gen(3))
        return torch.stack([torch.bincount(labels[p], minlength=10) for p in parts]).max().item()

    assert largest_share(0.1) > 350 > 150 > largest_share(1000.0)


def test_same_generator_same_split():
    labels = torch.arange(10).repeat(30)
    for split in (
        lambda g: split_by_groups(labels, PAIRS, 0.5, g),
        lambda g: split_iid(labels, 4, g),
        lambda g: split_dirichlet(labels, 4, 0.5, g),
    ):
        assert all(a.equal(b) for a, b in zip(split(gen(7)), split(gen(7)), strict=True))
        assert not all(a.equal(b) for a, b in zip(split(gen(7)), split(gen(8)), strict=False))


@pytest.mark.parametrize(
    ("groups", "fraction", "message"),
    [
        (PAIRS[:4], 0.0, r"leave out the classes \[4, 7\]"),
        ([*PAIRS, (11,)], 0.0, r"\[11\], of which labels have no example"),
        ([*PAIRS[:4], (4, 7, 1)], 0.0, r"twice: \[1\]"),
        ([*PAIRS, ()], 0.0, "at least one class"),
        ([], 0.0, "at least one class"),
        (PAIRS, -0.1, "random_fraction"),
        (PAIRS, 1.1, "random_fraction"),
        (PAIRS, float("nan"), "random_fraction"),
        (PAIRS, "0.5", "random_fraction"),
        (PAIRS, None, "random_fraction"),
        ([*PAIRS[:4], (4, 7.5)], 0.0, "whole numbers"),
        (["19", "08"], 0.0, "whole numbers"),
        (list(range(10)), 0.0, "whole numbers"),
    ],
)
def test_wrong_groups_are_refused(groups, fraction, message):
    with pytest.raises(ValueError, match=message):
        split_by_groups(torch.arange(10).repeat(5), groups, fraction, gen())


@pytest.mark.parametrize("clients", [0, -1, 2.0, True, 51, None, "2"])
def test_wrong_numbers_of_clients_are_refused(clients):
    with pytest.raises(ValueError, match="clients"):
        split_iid(torch.arange(10).repeat(5), clients, gen())


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf"), 1e308, "1", None])
def test_wrong_alpha_is_refused(alpha):
    with pytest.raises(ValueError, match="alpha"):
        split_dirichlet(torch.arange(10).repeat(5), 2, alpha, gen())


def test_dirichlet_that_cannot_be_met_is_refused():
    labels = torch.zeros(50, dtype=torch.int64)
    with pytest.raises(ValueError, match="cannot be met"):
        split_dirichlet(labels, 5, 1.0, gen(), min_size=11)
    with pytest.raises(ValueError, match="no split in 100 draws"):
        split_dirichlet(labels, 5, 0.01, gen(), min_size=9)


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(0, dtype=torch.int64), torch.zeros(4), torch.zeros(2, 2, dtype=torch.int64), torch.zeros(4) * 1j],
)
def test_wrong_labels_are_refused(labels):
    with pytest.raises(ValueError, match="labels"):
        split_iid(labels, 1, gen())


def test_the_share_that_is_dealt_out_is_rounded_not_cut():
    """0.29 times 100 is 28.999... in floating point."""
    labels = torch.cat([torch.zeros(100, dtype=torch.int64), torch.ones(100_000, dtype=torch.int64)])
    own = [int((labels[split_by_groups(labels, [(0,), (1,)], 0.29, gen(s))[0]] == 0).sum()) for s in range(5)]
    assert min(own) == 71

"""Samplers: one helper or test a promise."""

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adadp.privacy.sampling import PoissonSampling, ShuffledPartition, _bernoulli_indices, padded


def _generator(seed=0):
    return torch.Generator().manual_seed(seed)


def _check_continues(sampling, n, at):
    """A generator state stored after ``at`` batches and start=at give the remaining batches exactly."""
    whole = [b.tolist() for b in sampling.batches(n, _generator())]
    generator = _generator()
    batches = sampling.batches(n, generator)
    for _ in range(at):
        next(batches)
    later = torch.Generator()
    later.set_state(generator.get_state())
    assert [b.tolist() for b in sampling.batches(n, later, start=at)] == whole[at:]


def test_poisson_sizes_are_binomial():
    n, q, steps = 500, 0.03, 4000
    sizes = torch.tensor([len(b) for b in PoissonSampling(q, steps).batches(n, _generator())], dtype=torch.float64)
    assert abs(sizes.mean() - n * q) < 5 * math.sqrt(n * q * (1 - q) / steps)
    assert 0.9 < sizes.var() / (n * q * (1 - q)) < 1.1


def test_poisson_every_example_is_as_likely_and_pairs_are_independent():
    n, q, steps = 20, 0.3, 20000
    seen = torch.zeros(steps, n, dtype=torch.float64)
    for row, batch in zip(seen, PoissonSampling(q, steps).batches(n, _generator()), strict=True):
        row[batch] = 1
    assert (seen.mean(0) - q).abs().max() < 5 * math.sqrt(q * (1 - q) / steps)
    pairs = seen.T @ seen / steps - torch.diag(seen.mean(0))
    pairs.fill_diagonal_(q * q)
    assert (pairs - q * q).abs().max() < 5 * math.sqrt(q * q / steps)


@given(n=st.integers(1, 300), q=st.floats(1e-12, 1), seed=st.integers(0, 99))
def test_poisson_indices_are_valid(n, q, seed):
    for batch in PoissonSampling(q, 3).batches(n, _generator(seed)):
        assert batch.dtype == torch.int64
        assert (batch.diff() > 0).all()
        assert len(batch) == 0 or (batch[0] >= 0 and batch[-1] < n)


def test_poisson_rate_one_takes_everything_and_a_tiny_rate_nothing():
    assert [len(b) for b in PoissonSampling(1.0, 2).batches(7, _generator())] == [7, 7]
    assert [len(b) for b in PoissonSampling(1e-300, 2).batches(7, _generator())] == [0, 0]


def test_poisson_mostly_empty_batches_are_yielded():
    batches = list(PoissonSampling(0.01, 50).batches(10, _generator()))
    assert len(batches) == 50
    assert sum(len(b) == 0 for b in batches) > 30


@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_poisson_draws_until_the_data_end(chunk):
    whole = _bernoulli_indices(200, 0.1, _generator())
    assert torch.equal(_bernoulli_indices(200, 0.1, _generator(), chunk), whole)


def test_poisson_numbers():
    sampling = PoissonSampling(1 / 300, 30000)
    assert sampling.steps_per_epoch(60000) == 300
    assert sampling.num_steps(60000) == 30000
    assert sampling.expected_batch_size(60000) == pytest.approx(200)
    assert sampling.rate(60000) == 1 / 300
    assert sampling.name == "poisson"


@pytest.mark.parametrize(("n", "sizes"), [(105, [10] * 10 + [5]), (100, [10] * 10), (3, [3])])
def test_partition_uses_every_example_once_an_epoch(n, sizes):
    sampling = ShuffledPartition(10, epochs=2)
    batches = list(sampling.batches(n, _generator()))
    assert [len(b) for b in batches] == sizes * 2
    epochs = torch.cat(batches).view(2, n)
    assert (epochs.sort(1).values == torch.arange(n)).all()
    assert n == 3 or not torch.equal(*epochs)
    assert sampling.steps_per_epoch(n) == len(sizes)
    assert sampling.num_steps(n) == len(batches)
    assert sampling.expected_batch_size(n) == min(10, n)
    assert sampling.rate(n) == min(1, 10 / n)
    assert sampling.name == "shuffled partition"


@pytest.mark.parametrize("at", [0, 1, 7])
def test_poisson_continues_anywhere(at):
    _check_continues(PoissonSampling(0.2, 9), 30, at)


@pytest.mark.parametrize("at", [0, 4, 8])
def test_partition_continues_between_epochs(at):
    _check_continues(ShuffledPartition(10, epochs=3), 35, at)


def test_partition_refuses_to_continue_inside_an_epoch():
    with pytest.raises(ValueError, match="start=3"):
        next(ShuffledPartition(10, epochs=3).batches(35, _generator(), start=3))


@pytest.mark.parametrize("sampling", [PoissonSampling(0.1, 3), ShuffledPartition(4, 2)])
def test_samplers_are_values(sampling):
    assert pickle.loads(pickle.dumps(sampling)) == sampling
    assert len({sampling, pickle.loads(pickle.dumps(sampling))}) == 1
    with pytest.raises(AttributeError):
        sampling.epochs = 5


@pytest.mark.parametrize("q", [0, -0.1, 1.1, math.nan])
def test_bad_rates_are_refused(q):
    with pytest.raises(ValueError, match="sample_rate"):
        PoissonSampling(q, 1)


@pytest.mark.parametrize("bad", [-1, 1.5, math.nan, True])
def test_bad_counts_are_refused(bad):
    with pytest.raises(ValueError, match="steps"):
        PoissonSampling(0.1, bad)
    with pytest.raises(ValueError, match="batch_size"):
        ShuffledPartition(bad, 1)
    with pytest.raises(ValueError, match="epochs"):
        ShuffledPartition(1, bad)
    with pytest.raises(ValueError, match="num_examples"):
        next(PoissonSampling(0.1, 1).batches(bad, _generator()))


def test_padding_never_drops_an_example_and_grows_for_good():
    batches = [torch.arange(k) + 5 for k in (2, 0, 9, 3)]
    out = list(padded(batches, size=4))
    assert [len(indices) for indices, _ in out] == [4, 4, 12, 12]
    for batch, (indices, mask) in zip(batches, out, strict=True):
        assert torch.equal(indices[mask], batch)
        assert (indices[~mask] == 0).all()

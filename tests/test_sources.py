"""Sources of noise: what a seed of 32 bits cannot say, and that no two of them are the same draw."""

import copy

import torch

from adadp.federated.client import draw_seed
from adadp.federated.local import noise_generator
from adadp.privacy.gradient import PrivateGradient
from adadp.sources import numbered_generator, secret_generator


def like_normal(draw):
    return abs(float(draw.mean())) < 0.15 and abs(float(draw.std()) - 1) < 0.1


def draws(*generators):
    return [torch.randn(2000, generator=g) for g in generators]


def test_a_secret_source_has_more_than_the_32_bits_of_a_seed():
    sources = [secret_generator() for _ in range(2)]
    same = torch.Generator().manual_seed(sources[0].initial_seed())
    found = draws(*sources, same)
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert all(map(like_normal, found))


def test_a_numbered_source_follows_from_its_numbers_and_not_from_its_seed():
    one, again, other = (numbered_generator(numbers) for numbers in ((3, 1, 4), (3, 1, 4), (3, 4, 1)))
    seeded = torch.Generator().manual_seed(one.initial_seed())
    found = draws(one, again, other, seeded)
    assert torch.equal(found[0], found[1]) and all(map(like_normal, found))
    assert not torch.equal(found[0], found[2]) and not torch.equal(found[0], found[3])


def test_clients_never_draw_the_noise_of_one_another():
    """In these two rounds of this federation of a hundred the seeds agree in the 32 bits that a processor takes."""
    seed = draw_seed(torch.Generator().manual_seed(2))
    pair = [noise_generator(seed, *place, 100, torch.device("cpu")) for place in ((433, 39), (468, 42))]
    assert len({g.initial_seed() & 0xFFFFFFFF for g in pair}) == 1, "this test has lost its case"
    assert not torch.equal(*draws(*pair))


def test_a_copy_of_a_gradient_draws_from_a_whole_state():
    settings = dict(max_grad_norm=1.0, noise_multiplier=1.0, expected_batch_size=1)
    other = copy.deepcopy(PrivateGradient(torch.nn.Linear(2, 2), **settings, generator=torch.Generator()))
    seeded = torch.Generator().manual_seed(other.generator.initial_seed())
    assert not torch.equal(*draws(other.generator, seeded))

"""The paper's networks: counts, shapes, initialisation."""

import pytest
import torch

from adadp import models

CASES = [
    (models.mnist_mlp, 334_336, (1, 28, 28)),
    (models.cifar_cnn, 1_093_720, (3, 32, 32)),
    (models.cifar_head, 1_055_000, (1600,)),
]


@pytest.mark.parametrize("make, count, shape", CASES)
def test_counts_and_shapes(make, count, shape):
    model = make()
    assert sum(p.numel() for p in model.parameters()) == count == models.count_parameters(model)
    for size in (0, 1, 3):
        assert model(torch.randn(size, *shape)).shape == (size, 10)


def test_only_convolutions_have_biases():
    assert {n for n, _ in models.cifar_cnn().named_parameters() if n.endswith("bias")} == {"conv1.bias", "conv2.bias"}
    assert not [n for n, _ in models.mnist_mlp().named_parameters() if n.endswith("bias")]


def test_the_head_is_the_end_of_the_network():
    network, head = models.cifar_cnn(), models.cifar_head()
    missing = head.load_state_dict({k: v for k, v in network.state_dict().items() if k.startswith("fc")})
    assert not missing.missing_keys
    x = torch.randn(2, 3, 32, 32)
    features = network[: list(dict(network.named_children())).index("flatten") + 1](x)
    assert features.shape == (2, 1600)
    assert torch.equal(head(features), network(x))


@pytest.mark.parametrize("init, last", [("torch", 1 / 256**0.5), ("reference_code", 1 / 10**0.5)])
def test_initialisation_bounds(init, last):
    model = models.mnist_mlp(init=init, generator=torch.Generator().manual_seed(0))
    largest = model[-1].weight.abs().max().item()
    assert 0.98 * last < largest <= last
    assert abs(model[-1].weight.mean().item()) < 0.1 * last


def test_torch_initialisation_is_torchs_own():
    """With no generator the weights are the ones torch draws, so a seeded torch run is reproduced."""
    torch.manual_seed(1)
    expected = torch.nn.Linear(784, 256, bias=False).weight
    torch.manual_seed(1)
    assert torch.equal(models.mnist_mlp()[1].weight, expected)


def test_generator_decides_the_weights():
    first, second = (models.cifar_head(generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_unknown_initialisation():
    with pytest.raises(ValueError, match="init"):
        models.mnist_mlp(init="xavier")

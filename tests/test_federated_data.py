"""What clients' data may be, and what is said of what they may not be."""

import numpy as np
import pytest
import torch
from federated_helpers import data, make, net, sgd
from torch.utils.data import DataLoader, TensorDataset

import adadp
from adadp.federated import FederatedAveraging, client_generator


def arrays(client):
    return tuple(part.numpy() for part in data(client))


def read_only_and_reversed(client):
    x, y = (np.flip(part.copy(order="F")[::-1].copy(), 0) for part in arrays(client))
    x.setflags(write=False)
    return x, y


SHAPES = {
    "lists of two": lambda client: list(data(client)),
    "numpy": arrays,
    "odd numpy": read_only_and_reversed,
    "double numpy": lambda client: (arrays(client)[0].astype(np.float64), arrays(client)[1].astype(np.int32)),
    "mixed": lambda client: (data(client)[0], arrays(client)[1]),
    "TensorDataset": lambda client: TensorDataset(*data(client)),
    "TensorDataset of three": lambda client: TensorDataset(*data(client), torch.zeros(len(data(client)[0]))),
}


def rows(give):
    fed = FederatedAveraging(
        net(),
        [give(k) for k in range(3)],
        sgd,
        batch_size=4,
        test_data=give(3),
        generator=torch.Generator().manual_seed(5),
    )
    return fed.run(2, progress=False).rows


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", SHAPES)
def test_examples_may_come_in_several_shapes(shape):
    assert rows(SHAPES[shape]) == rows(data)
    task = make(data=SHAPES[shape], test_data=lambda: SHAPES[shape](3))
    assert task.in_process("cpu").run(1, progress=False).rows == make().in_process("cpu").run(1, progress=False).rows


@pytest.mark.parametrize("kind", [np.uint8, np.float64], ids=["bytes", "double"])
def test_examples_and_targets_are_typed_as_in_training(kind):
    """Numbers of numpy, as they come: one client and one round are still centralised training, bit for bit."""
    rng = np.random.default_rng(0)
    x, y = (5 * rng.random((12, 3))).astype(kind), rng.normal(size=(12, 1))
    kept = {"loss": lambda output, target: (output - target).square().mean(1)}
    torch.manual_seed(0)
    one, two = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    two.load_state_dict(one.state_dict())
    fed = FederatedAveraging(one, [(x, y)], sgd, batch_size=4, local_epochs=5, **kept, device="cpu")
    fed.run(1, progress=False)
    given = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    sampling, order = adadp.ShuffledPartition(4, 5), client_generator(fed._seed, 1, 0)
    how = {"sampling": sampling, "generator": order, "progress": False, "device": "cpu"}
    adadp.train(two, adadp.Dataset(*given, *given, "some", "made here"), sgd(two.parameters()), **kept, **how)
    assert torch.equal(one.weight, two.weight) and torch.equal(one.bias, two.bias)


def test_arrays_are_copied():
    x, y = arrays(0)
    fed = FederatedAveraging(net(), [(x, y)], sgd, batch_size=4, device="cpu")
    x[:] = 0
    assert torch.equal(fed.clients[0][0], data(0)[0])


GOOD = data(0)
HINT = r"must be \(x, y\), two tensors or numpy arrays, or a TensorDataset of them, got "
BAD = {
    "clients[1] DataLoader": ([GOOD, DataLoader(TensorDataset(*GOOD))], rf"clients\[1\] {HINT}DataLoader"),
    "a dict": ({0: GOOD}, r"clients must be a list .*, got dict; give list\(clients\.values\(\)\)"),
    "a tensor": (GOOD[0], r"clients must be a list .*, got Tensor"),
    "a loader": (DataLoader(TensorDataset(*GOOD)), r"clients must be a list .*, got DataLoader"),
    "one client, bare": (GOOD, rf"clients\[0\] {HINT}Tensor"),
    "a dict of parts": ([GOOD, {"x": GOOD[0], "y": GOOD[1]}], rf"clients\[1\] {HINT}dict"),
    "three parts": ([(*GOOD, GOOD[1])], rf"clients\[0\] {HINT}tuple of 3 \(Tensor, Tensor, Tensor\)"),
    "one part": ([TensorDataset(GOOD[0])], rf"clients\[0\] {HINT}TensorDataset"),
    "nested lists": ([([[0.0] * 4], [0])], rf"clients\[0\] {HINT}tuple of 2 \(list, list\)"),
    "numbers": ([(torch.tensor(1.0), torch.tensor(1))], r"clients\[0\] must be rows"),
    "words": ([(GOOD[0], np.array(["a"] * 24))], r"clients\[0\] holds an array of <U1, which is no type of torch"),
    "a set": ({1, 2}, "clients must be a list"),
    "nothing": (None, "clients must be a list"),
}


@pytest.mark.parametrize("case", BAD)
def test_other_things_are_refused_in_one_line_that_names_the_client(case):
    clients, line = BAD[case]
    with pytest.raises(ValueError, match=f"^{line}[^\n]*$"):
        FederatedAveraging(net(), clients, sgd, batch_size=4)


def test_test_data_are_checked_too():
    with pytest.raises(ValueError, match=f"^test_data {HINT}DataLoader$"):
        FederatedAveraging(net(), [GOOD], sgd, batch_size=4, test_data=DataLoader(TensorDataset(*GOOD)))
    with pytest.raises(ValueError, match=r"^test_data has 24 inputs but 16 labels"):
        FederatedAveraging(net(), [GOOD], sgd, batch_size=4, test_data=(GOOD[0], data(2)[1]))

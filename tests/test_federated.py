"""Federated averaging: no leaks between clients, exact equality with centralised training, policies for faults."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import adadp
from adadp.federated import FederatedAveraging, average, client_generator, client_update, split_iid
from adadp.federated.client import client_batches

ADAPTIVE = {"tol": 0.1, "discard": True}


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def adaptive(parameters, lr=0.05):
    return adadp.ADADP(parameters, lr=lr, **ADAPTIVE)


def sgd(parameters, lr=0.1):
    return torch.optim.SGD(parameters, lr=lr)


def adam(parameters, lr=1e-3):
    return torch.optim.Adam(parameters, lr=lr)


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


class TwoHeads(nn.Module):
    """The first feature of a batch decides which half is used; a client of one kind never uses the other."""

    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return (self.high if x[0, 0] > 5 else self.low)(x)


def test_a_parameter_that_a_client_does_not_use_is_left_alone():
    """Also where the client before it, in the same working copy, left a gradient there, and by weight decay."""
    (x, y), *_ = make_clients((12,))
    clients = [(x, y), (torch.cat([x[:, :1] + 100, x[:, 1:]], 1), y)]
    decaying = lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.5, momentum=0.9)  # noqa: E731
    torch.manual_seed(0)
    fed = FederatedAveraging(TwoHeads(), clients, decaying, batch_size=4, stacked=False, device="cpu")
    before = {name: value.clone() for name, value in fed.model.state_dict().items()}
    first, second = fed._updates([0, 1], 1)
    for update, idle, used in ((first, "high", "low"), (second, "low", "high")):
        assert torch.equal(update.state[f"{idle}.weight"], before[f"{idle}.weight"])
        assert not torch.equal(update.state[f"{used}.weight"], before[f"{used}.weight"])


@pytest.mark.parametrize("privacy", [None, {"max_grad_norm": 1.0, "noise_multiplier": 1.0}])
def test_modules_keep_the_mode_they_were_handed_over_in(privacy):
    """As in train: a frozen batch norm stays frozen, and its statistics are nobody's data."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model[1].eval()
    fed = FederatedAveraging(model, make_clients(), sgd, batch_size=4, privacy=privacy, device="cpu")
    fed.run(2, progress=False)
    assert torch.equal(model[1].running_mean, torch.zeros(8)) and not model[1].training and model[0].training


def test_clients_with_dropout_at_rest_can_be_stacked():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    both = [
        FederatedAveraging(
            copy.deepcopy(model), make_clients(), sgd, batch_size=4, stacked=stacked, generator=gen(1), device="cpu"
        )
        for stacked in (True, False)
    ]
    for fed in both:
        fed.run(1, progress=False)
    for one, other in zip(*(fed.model.parameters() for fed in both), strict=True):
        torch.testing.assert_close(one, other)


def make_clients(sizes=(24, 40, 16), seed=0):
    g = gen(seed)
    out = []
    for n in sizes:
        x = torch.randn(n, 4, generator=g)
        out.append((x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()))
    return out


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.w.expand(len(x))


def test_three_scalar_clients_do_not_leak_into_each_other():
    # Loss -y w has gradient -y: one SGD step of lr 1 moves w by the client's own y, from 1 each.
    clients = [(torch.zeros(1), torch.tensor([y])) for y in (1.0, 2.0, -1.0)]
    model = Scalar()
    fed = FederatedAveraging(
        model, clients, lambda p: sgd(p, 1.0), batch_size=1, loss=lambda out, y: -y * out, generator=gen()
    )
    fed.run(1, progress=False)
    assert model.w.item() == pytest.approx((2 + 3 + 0) / 3)


@pytest.mark.parametrize("optimizer", [adaptive, sgd, adam])
@pytest.mark.parametrize("batch_size", [8, 10])  # 24 examples: three and three batches, then three and 2.4
def test_one_client_one_round_is_centralised_training(optimizer, batch_size):
    (x, y), *_ = make_clients()
    one, two = net(), net()
    fed = FederatedAveraging(one, [(x, y)], optimizer, batch_size=batch_size, local_epochs=2, generator=gen(5))
    fed.run(1, progress=False)
    data = adadp.data.Dataset(x, y, x, y, "toy", "made here")
    g = client_generator(fed._seed, 1, 0)
    adadp.train(
        two,
        data,
        optimizer(two.parameters()),
        sampling=adadp.ShuffledPartition(batch_size, 2),
        generator=g,
        progress=False,
    )
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_weights_are_the_sizes_of_the_clients():
    clients = make_clients()
    model = net()
    start = copy.deepcopy(model)
    fed = FederatedAveraging(model, clients, sgd, batch_size=4, generator=gen(1))
    fed.run(1, progress=False)
    states = []
    for number, (x, y) in enumerate(clients):
        local = copy.deepcopy(start)
        client_update(
            local,
            x,
            y,
            sgd(local.parameters()),
            batch_size=4,
            local_epochs=1,
            loss=adadp.training.cross_entropy,
            generator=client_generator(fed._seed, 1, number),
        )
        states.append(local.state_dict())
    expected = average(states, [24, 40, 16])
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name])


def test_odd_number_of_batches_sends_the_start_of_the_open_iteration():
    ((x, y),) = make_clients((9,))
    settings = {"batch_size": 3, "local_epochs": 1, "loss": adadp.cross_entropy}
    client_update(model := net(), x, y, adaptive(model.parameters()), generator=gen(), **settings)
    optimizer = adaptive((alone := net()).parameters())
    for indices in list(client_batches(9, 3, 1, gen()))[:2]:  # the third gradient is half an iteration
        optimizer.zero_grad()
        adadp.cross_entropy(alone(x[indices]), y[indices]).mean().backward()
        optimizer.step()
    assert all(map(torch.equal, model.parameters(), alone.parameters()))
    assert not all(map(torch.equal, model.parameters(), net().parameters()))


@pytest.mark.parametrize("keep", [True, False])
def test_lr_is_kept_between_rounds_or_started_anew(keep):
    seen = []

    def remember(parameters):
        optimizer = adaptive(parameters, lr=0.05)
        seen.append(optimizer)
        return optimizer

    fed = FederatedAveraging(
        net(), make_clients((24,)), remember, batch_size=4, keep_lr=keep, generator=gen(), trace=99
    )
    history = fed.run(2, progress=False)
    first, second = history.rows
    assert first["lr"][0] != 0.05
    start = second["lrs"][0][0]  # after the first half step lr is still what the round began with
    assert start == (first["lr"][0] if keep else 0.05)
    assert seen[0] is not seen[1]


def test_history_holds_what_each_client_reports():
    clients = make_clients()
    fed = FederatedAveraging(net(), clients, adaptive, batch_size=4, test_data=clients[0], trace=3, generator=gen())
    history = fed.run(2, progress=False)
    row = history.rows[1]
    assert row["round"] == 2 and row["clients"] == [0, 1, 2] and row["examples"] == [24, 40, 16]
    assert row["steps"] == [6, 10, 4]
    assert [a + d for a, d in zip(row["accepted"], row["discarded"], strict=True)] == [3, 5, 2]
    assert all(e > 0 for e in row["error"]) and all(len(lrs) <= 3 for lrs in row["lrs"])
    assert 0 <= row["test_accuracy"] <= 1 and row["test_loss"] > 0
    assert adadp.History.from_json(history.to_json()).rows == history.rows


def test_same_seed_same_result_and_other_seed_another():
    def weights(seed):
        model = net()
        FederatedAveraging(model, make_clients(), adaptive, batch_size=4, generator=gen(seed)).run(2, progress=False)
        return torch.cat([p.flatten() for p in model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_participation_draws_some_clients_and_at_least_one():
    fed = FederatedAveraging(net(), make_clients((8,) * 10), sgd, batch_size=4, participation=0.3, generator=gen())
    rows = fed.run(6, progress=False).rows
    assert all(len(row["clients"]) == 3 for row in rows)
    assert len({tuple(row["clients"]) for row in rows}) > 1
    fed = FederatedAveraging(net(), make_clients(), sgd, batch_size=4, participation=0.01, generator=gen())
    assert len(fed.run(1, progress=False).rows[0]["clients"]) == 1


def test_client_that_is_not_finite_is_named_and_left_out():
    clients = make_clients()
    poisoned = (clients[1][0].clone().fill_(float("nan")), clients[1][1])
    model, without = net(), net()
    fed = FederatedAveraging(model, [clients[0], poisoned, clients[2]], sgd, batch_size=4, generator=gen())
    with pytest.warns(UserWarning, match=r"round 1: weights of clients \[1\] are not finite"):
        history = fed.run(1, progress=False)
    assert history.rows[0]["refused"] == [1] and history.rows[0]["clients"] == [0, 2]
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), without.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:round 1")
def test_round_without_a_usable_client_raises_and_leaves_the_model():
    x, y = make_clients()[0]
    model = net()
    before = copy.deepcopy(model.state_dict())
    fed = FederatedAveraging(model, [(x * float("inf"), y)], sgd, batch_size=4, generator=gen())
    with pytest.raises(RuntimeError, match="no client sent finite weights"):
        fed.run(1, progress=False)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_interrupted_run_continues_to_the_same_result(tmp_path):
    def make():
        model = net()
        return model, FederatedAveraging(model, make_clients(), adaptive, batch_size=4, generator=gen(3), trace=2)

    whole, fed = make()
    expected = fed.run(4, progress=False)
    part, fed = make()

    def stop(round, **_):
        if round == 2:
            raise KeyboardInterrupt

    file = tmp_path / "fed.pt"
    with pytest.raises(KeyboardInterrupt):
        fed.run(4, progress=False, checkpoint=file, callbacks=[stop])
    part, fed = make()
    history = fed.run(4, progress=False, checkpoint=file)
    assert history.rows == expected.rows and not file.exists()
    assert all(torch.equal(a, b) for a, b in zip(part.parameters(), whole.parameters(), strict=True))


def test_checkpoint_of_another_run_and_corrupt_one_are_refused(tmp_path):
    file = tmp_path / "fed.pt"

    def stop(**_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FederatedAveraging(net(), make_clients(), sgd, batch_size=4, generator=gen(1)).run(
            2, progress=False, checkpoint=file, callbacks=[stop]
        )
    with pytest.raises(RuntimeError, match="another run"):
        FederatedAveraging(net(), make_clients(), sgd, batch_size=4, generator=gen(2)).run(
            2, progress=False, checkpoint=file
        )
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RuntimeError, match=r"fed\.pt"):
        FederatedAveraging(net(), make_clients(), sgd, batch_size=4, generator=gen(1)).run(
            2, progress=False, checkpoint=file
        )


def test_private_clients_keep_ledgers_of_their_own():
    clients = make_clients()
    privacy = {"max_grad_norm": 1.0, "noise_multiplier": 2.0}
    fed = FederatedAveraging(net(), clients, sgd, batch_size=4, privacy=privacy, generator=gen())
    rows = fed.run(2, progress=False).rows
    for client, (x, _) in enumerate(clients):
        planned = adadp.epsilon(noise_multiplier=2.0, sample_rate=4 / len(x), steps=2 * len(x) // 4, delta=1e-5)
        assert rows[1]["epsilon"][client] == pytest.approx(planned)
    assert rows[0]["epsilon"][0] < rows[1]["epsilon"][0]


def test_private_clients_are_noisy_and_differ_from_each_other():
    x, y = make_clients()[0]
    privacy = {"max_grad_norm": 1.0, "noise_multiplier": 50.0}
    fed = FederatedAveraging(net(), [(x, y), (x, y)], sgd, batch_size=4, privacy=privacy, generator=gen())
    fed._train_client(0, 1)
    first = torch.cat([p.detach().flatten().clone() for p in fed._local.parameters()])
    fed._train_client(1, 1)
    second = torch.cat([p.detach().flatten() for p in fed._local.parameters()])
    assert not torch.allclose(first, second)
    assert (first - second).std() > 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": []}, "clients"),
        ({"clients": [(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))]}, r"clients\[0\] has no data"),
        ({"clients": [(torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64))]}, "3 inputs but 2 labels"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"local_epochs": 0}, "local_epochs"),
        ({"participation": 0.0}, "participation"),
        ({"participation": 1.5}, "participation"),
        ({"participation": float("nan")}, "participation"),
        ({"reduction": "median"}, "reduction"),
        ({"privacy": {"max_grad_norm": 1.0}}, "noise_multiplier"),
        ({"privacy": {"max_grad_norm": 1.0, "noise_multiplier": 1.0, "sigma": 2}}, "privacy"),
        ({"privacy": {"max_grad_norm": 1.0, "noise_multiplier": 1.0}, "reduction": "sum"}, "reduction"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    arguments = {"clients": make_clients(), "batch_size": 4} | change
    with pytest.raises(ValueError, match=message):
        FederatedAveraging(net(), arguments.pop("clients"), sgd, **arguments)


@pytest.mark.parametrize("rounds", [-1, 1.5, True])
def test_wrong_rounds_are_refused(rounds):
    with pytest.raises(ValueError, match="rounds"):
        FederatedAveraging(net(), make_clients(), sgd, batch_size=4).run(rounds)


@pytest.mark.parametrize(
    ("states", "weights", "message"),
    [
        ([], [], "at least one"),
        ([{"w": torch.zeros(2)}], [1, 2], "equally many"),
        ([{"w": torch.zeros(2)}, {"w": torch.zeros(3)}], [1, 1], "same names and shapes"),
        ([{"w": torch.zeros(2)}, {"v": torch.zeros(2)}], [1, 1], "same names and shapes"),
        ([{"w": torch.zeros(2)}], [0], "not all zero"),
        ([{"w": torch.zeros(2)}, {"w": torch.zeros(2)}], [2, -1], "not be negative"),
    ],
)
def test_average_refuses_what_has_no_mean(states, weights, message):
    with pytest.raises(ValueError, match=message):
        average(states, weights)


def test_average_keeps_dtypes_and_counters():
    states = [
        {"w": torch.ones(2, dtype=torch.bfloat16), "n": torch.tensor(3)},
        {"w": torch.zeros(2).bfloat16(), "n": torch.tensor(9)},
    ]
    mean = average(states, [1, 3])
    assert mean["w"].dtype == torch.bfloat16 and mean["w"].tolist() == [0.25, 0.25]
    assert mean["n"].item() == 3


def test_channels_last_equals_the_plain_layout():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)).double()
    plain = copy.deepcopy(model)
    x, y = torch.randn(12, 3, 8, 8, dtype=torch.float64), torch.randint(2, (12,))
    fed = FederatedAveraging(model, [(x, y)], adaptive, batch_size=3, generator=gen())
    assert fed.clients[0][0].is_contiguous(memory_format=torch.channels_last)
    fed.run(1, progress=False)
    client_update(
        plain,
        x,
        y,
        adaptive(plain.parameters()),
        batch_size=3,
        local_epochs=1,
        loss=adadp.training.cross_entropy,
        generator=client_generator(fed._seed, 1, 0),
    )
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_hundred_clients_of_the_cnn_under_four_gigabytes_and_flat_over_rounds():
    code = """
import resource, torch, adadp
torch.set_num_threads(1)
x, y = torch.randn(1000, 3, 32, 32), torch.randint(10, (1000,))
clients = [(x[i], y[i]) for i in adadp.federated.split_iid(y, 100, torch.Generator().manual_seed(0))]
make = lambda p: adadp.ADADP(p, lr=0.01, tol=0.1, discard=True)
fed = adadp.federated.FederatedAveraging(adadp.models.cifar_cnn(), clients, make, batch_size=5)
peaks = []
fed.run(1, progress=False)  # all clients send weights; all the library's own buffers are there afterwards
fed.participation = 0.02
note = lambda **_: peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
fed.run(50, progress=False, callbacks=[note])
print(peaks[4], peaks[-1])
"""
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    early, late = map(float, out.stdout.split())
    assert late < 4096
    assert late - early < 40, f"peak memory grew from {early:.0f} to {late:.0f} MiB"


def test_split_and_loop_fit_together():
    x, y = make_clients((120,))[0]
    clients = [(x[i], y[i]) for i in split_iid(y, 4, gen())]
    history = FederatedAveraging(net(), clients, adaptive, batch_size=5, test_data=(x, y), generator=gen()).run(
        15, progress=False
    )
    assert history.rows[-1]["test_accuracy"] > history.rows[0]["test_accuracy"]

"""Clients trained all at once: the same weights, learning rates and counters as one after the other."""

import itertools

import pytest
import torch
from test_optimizer_devices import Unsynchronised
from torch import nn

import adadp
from adadp.federated import FederatedAveraging, stacked
from adadp.federated.rows import AdaptiveRows, TorchRows
from adadp.federated.stacked import StackedClients
from adadp.training import cross_entropy

EVEN, RAGGED = (60, 60, 60), (60, 37, 52, 3)  # in batches of 8: eight each; 8 (the last short), 5 (odd), 7 and 1
SWITCHES = [
    {"tol": 0.05, "discard": True},
    {"tol": 0.05, "discard": True, "advance": "half_steps", "exponent": 0.5},
    {"tol": 0.05, "discard": True, "advance": "extrapolated", "relative_error": False},
    {"tol": 0.2, "alpha_min": 0.7, "alpha_max": 1.3},
    {"tol": 0.05, "discard": True, "maximize": True},
]
PEERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.2),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, amsgrad=True),
}


def adaptive(**switches):
    return lambda parameters: adadp.ADADP(parameters, **({"lr": 0.3} | switches))


def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.LayerNorm(12), nn.Linear(12, 3, bias=False)).double()


def convolutional():
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3)]
    return nn.Sequential(*layers).double()


def make_clients(sizes, shape=(6,), seed=0):
    """Clients that pull in different directions, so that their errors and learning rates part."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for k, n in enumerate(sizes):
        x = (1 + k) * torch.randn(n, *shape, generator=generator, dtype=torch.float64)
        out.append((x, (x.flatten(1)[:, : k + 2].sum(1) > 0).long() + (x.flatten(1)[:, 0] > k).long()))
    return out


def make(stacked, optimizer, *, network=dense, clients=None, **settings):
    model = network()
    own = {"batch_size": 8, "local_epochs": 2, "trace": 7, "generator": torch.Generator().manual_seed(5)}
    clients = make_clients(EVEN) if clients is None else clients
    return model, FederatedAveraging(model, clients, optimizer, stacked=stacked, **({"device": "cpu"} | own | settings))


def run(stacked, optimizer, *, rounds=2, **settings):
    model, fed = make(stacked, optimizer, **settings)
    history = fed.run(rounds, progress=False)
    assert (fed._stack is not None) == bool(stacked)
    return model, history, fed


def assert_equal_runs(*args, tolerance=1e-12, **settings):
    (one, alone, _), (two, together, fed) = (run(stacked, *args, **settings) for stacked in (False, True))
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)
    for a, b in zip(alone.rows, together.rows, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            if name in ("error", "lr", "lrs") and value[0] is not None:
                rows = [v if isinstance(v, list) else [v] for v in (*value, *b[name])]
                mine, theirs = rows[: len(value)], rows[len(value) :]
                for u, v in zip(mine, theirs, strict=True):
                    assert u == pytest.approx(v, rel=1e3 * tolerance, nan_ok=True)
            elif name != "test_loss":
                assert value == b[name], name
    return together, fed


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("sizes", [EVEN, RAGGED], ids=["even", "ragged"])
def test_adaptive_clients_are_the_sequential_ones(switches, sizes):
    clients = make_clients(sizes)
    history, _ = assert_equal_runs(adaptive(**switches), clients=clients, rounds=4, test_data=clients[0])
    rows = history.rows
    assert sum(sum(row["accepted"]) for row in rows) > 0
    if switches.get("discard") and not switches.get("maximize"):
        assert sum(sum(row["discarded"]) for row in rows) > 0, "nothing was discarded: the test is weak"
    assert len({lr for row in rows for lr in row["lr"]}) > 4, "the clients' learning rates never parted"


def test_twenty_five_iterations_and_more_in_one_round():
    history, _ = assert_equal_runs(adaptive(**SWITCHES[0]), rounds=1, local_epochs=7)
    (row,) = history.rows
    assert row["steps"] == [56] * 3 and min(row["accepted"]) >= 3 and min(row["discarded"]) >= 3


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("sizes", [EVEN, RAGGED], ids=["even", "ragged"])
def test_other_optimizers_are_the_sequential_ones(name, sizes):
    assert_equal_runs(PEERS[name], clients=make_clients(sizes), rounds=3)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_convolutions_and_a_sum_of_losses(reduction):
    clients = make_clients(RAGGED, (2, 8, 8))
    lr = 0.3 if reduction == "mean" else 0.03
    assert_equal_runs(adaptive(lr=lr, **SWITCHES[0]), network=convolutional, clients=clients, reduction=reduction)


@pytest.mark.parametrize("settings", [{"keep_lr": False}, {"participation": 0.5}, {"batch_size": 100}, {"trace": 0}])
def test_the_other_settings(settings):
    assert_equal_runs(adaptive(**SWITCHES[0]), clients=make_clients(RAGGED), rounds=4, **settings)


def test_groups_frozen_and_unused_parameters():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.idle = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(2, 2)
            self.first.bias.requires_grad_(False)
            self.bare = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.bare * self.second(self.first(x).tanh())

    def network():
        torch.manual_seed(0)
        return Net().double()

    def groups(parameters):
        first, *rest = list(parameters)
        return adadp.ADADP([{"params": rest}, {"params": [first], "lr": 0.7}], lr=0.2, **SWITCHES[0])

    _, fed = assert_equal_runs(groups, network=network)
    assert len(fed._lrs[0]) == 2 and fed._lrs[0][1] == pytest.approx(3.5 * fed._lrs[0][0])
    decay = lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.5)  # noqa: E731
    assert_equal_runs(decay, network=network)  # what is not used does not decay


def test_shared_parameters():
    def network():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).double()
        net[2].weight = net[0].weight
        return net

    assert_equal_runs(adaptive(**SWITCHES[0]), network=network)


def test_one_module_with_two_names():
    def network():
        torch.manual_seed(0)
        layer = nn.Linear(6, 6)
        return nn.Sequential(layer, nn.Tanh(), layer, nn.PReLU(), nn.Linear(6, 3)).double()

    _, fed = assert_equal_runs(adaptive(**SWITCHES[0]), network=network)
    assert all(type(p) is nn.Parameter for p in fed._local.parameters())


def test_single_precision_agrees_to_its_tolerance():
    clients = [(x.float(), y) for x, y in make_clients(EVEN)]
    switches = {"tol": 1.0, "lr": 0.05}
    assert_equal_runs(adaptive(**switches), network=lambda: dense().float(), clients=clients, tolerance=1e-5)


@pytest.mark.filterwarnings("ignore:round")
def test_a_client_that_is_not_finite_harms_no_other():
    clients = make_clients(EVEN)
    clients[1] = (clients[1][0].clone().index_fill_(0, torch.arange(60), float("nan")), clients[1][1])
    for optimizer in (adaptive(**SWITCHES[0]), PEERS["SGD"]):
        history, _ = assert_equal_runs(optimizer, clients=clients)
    assert history.rows[0]["refused"] == [1]


def test_one_bad_example_is_discarded_and_forgotten():
    clients = make_clients(EVEN)
    clients[2][0][0, 3] = float("inf")  # the example that would pad a short batch of others, were it taken from outside
    history, _ = assert_equal_runs(adaptive(tol=0.2), clients=clients)
    assert history.rows[0]["discarded"][2] == 2, "one bad iteration an epoch"
    assert history.rows[0]["discarded"][:2] == [0, 0] and history.rows[0]["refused"] == []


def test_zero_errors_stop_growing_the_learning_rate():
    still = lambda output, y: 0 * output.sum(1)  # noqa: E731
    history, _ = assert_equal_runs(adaptive(), loss=still, local_epochs=7, rounds=1)
    assert history.rows[0]["lr"] == pytest.approx([0.3 * 1.1**10] * 3)


@pytest.mark.parametrize("switch", [False, True])
def test_a_checkpoint_of_one_way_continues_the_other(tmp_path, switch):
    whole, expected, _ = run(True, adaptive(**SWITCHES[0]), clients=make_clients(RAGGED), rounds=4)

    def stop(round, **_):
        if round == 2:
            raise KeyboardInterrupt

    _, first = make(switch, adaptive(**SWITCHES[0]), clients=make_clients(RAGGED))
    with pytest.raises(KeyboardInterrupt):
        first.run(4, progress=False, checkpoint=tmp_path / "fed.pt", callbacks=[stop])
    model, second = make(not switch, adaptive(**SWITCHES[0]), clients=make_clients(RAGGED))
    history = second.run(4, progress=False, checkpoint=tmp_path / "fed.pt")
    assert [row["accepted"] for row in history.rows] == [row["accepted"] for row in expected.rows]
    for a, b in zip(whole.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_nothing_is_prepared_twice_nor_held_twice():
    _, _, fed = run(True, adaptive(**SWITCHES[0]), rounds=1)
    blocks = [b.data_ptr() for b in fed._stack.blocks]
    assert fed.clients[1][0].untyped_storage().data_ptr() == fed._stack.x.untyped_storage().data_ptr()
    fed.run(3, progress=False)
    assert [b.data_ptr() for b in fed._stack.blocks] == blocks


def hooked(parameters):
    optimizer = adadp.ADADP(parameters)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def frozen(parameters):
    optimizer = adadp.ADADP(parameters)
    optimizer.freeze()
    return optimizer


def scheduled(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


def shrinking():
    lrs = itertools.count(1)
    return lambda p: torch.optim.SGD(p, lr=1 / next(lrs))


OPTIMIZERS = {
    "must give one of ADADP, SGD": lambda p: torch.optim.RMSprop(p),
    "hooks": hooked,
    "freeze": frozen,
    "scheduler": scheduled,
    "different settings": shrinking(),
    "dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "not the model's": lambda p: torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1),
}


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(6, 3, dtype=torch.float64)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Centred(nn.Linear):
    def __init__(self):
        super().__init__(6, 3, dtype=torch.float64)

    def forward(self, x):
        return super().forward(x - x.mean(0))


MODELS = {
    "randomness|random": lambda: nn.Sequential(nn.Dropout(0.5), dense()),
    "changes its buffers": Counting,
    "rest of its batch": Centred,
    "at once": lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).double(),
}


@pytest.mark.parametrize("reason", OPTIMIZERS)
def test_optimizers_that_cannot_be_stacked_are_named(reason):
    with pytest.raises(ValueError, match=f"stacked=True.*{reason}.*stacked=False"):
        run(True, OPTIMIZERS[reason])


@pytest.mark.parametrize("reason", MODELS)
def test_models_that_cannot_be_stacked_are_named(reason):
    with pytest.raises(ValueError, match=f"stacked=True.*({reason}).*stacked=False"):
        run(True, PEERS["SGD"], network=MODELS[reason])


def test_data_loss_and_privacy_that_cannot_be_stacked_are_named():
    clients = make_clients(EVEN)
    clients[1] = (clients[1][0].long(), clients[1][1])
    with pytest.raises(ValueError, match=r"stacked=True.*shape or type of an input.*stacked=False"):
        run(True, PEERS["SGD"], clients=clients)
    with pytest.raises(ValueError, match=r"stacked=True.*one value an example.*stacked=False"):
        run(True, PEERS["SGD"], loss=lambda output, y: cross_entropy(output, y).mean())
    with pytest.raises(ValueError, match=r"stacked=True.*clip.*stacked=False"):
        run(True, PEERS["SGD"], privacy={"max_grad_norm": 1.0, "noise_multiplier": 1.0})
    with pytest.raises(ValueError, match="all be float32"):
        run(True, PEERS["SGD"], network=lambda: dense().bfloat16(), clients=[(x.bfloat16(), y) for x, y in clients[:1]])
    with pytest.raises(ValueError, match="stacked must be"):
        run("yes", PEERS["SGD"])


def test_on_a_cpu_it_is_chosen_only_on_demand():
    assert run(None, PEERS["SGD"])[2]._stack is None


def test_where_it_was_not_asked_for_it_steps_back_by_itself():
    """As on CUDA by default: an optimizer that cannot be stacked is trained one client after the other."""
    model, fed = make(True, OPTIMIZERS["hooks"])
    fed.stacked = None
    fed.run(1, progress=False)
    assert fed._stack is None
    alone, *_ = run(False, adadp.ADADP, rounds=1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), alone.parameters(), strict=True))


@pytest.mark.parametrize(
    "optimizer", [adaptive(**SWITCHES[1]), adaptive(tol=0.1), *PEERS.values()], ids=["discarding", "adaptive", *PEERS]
)
def test_rows_read_nothing_on_a_device(optimizer, fake_card):
    with fake_card:
        params = [{"params": [nn.Parameter(torch.empty(d, device="cuda"))]} for d in (30, 5)]
        blocks = [torch.empty(4, d, device="cuda") for d in (30, 5)]
        template, active = optimizer(params), torch.empty(4, dtype=torch.bool, device="cuda")
        adapts = isinstance(template, adadp.ADADP)
        rows = AdaptiveRows(template, blocks) if adapts else TorchRows(template, blocks, ragged=True)
        with Unsynchronised():
            for _ in range(3):
                rows.advance(lambda half: [torch.empty_like(b) for b in blocks], active)


@pytest.mark.parametrize("start", [0.5, 3e38, -2e38])
@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "-".join(map(str, s.values())))
def test_rows_judge_as_the_optimizer_does(switches, start):
    """Also where the new iterate overflows, and the relative error does not show it."""
    gradients = start * torch.tensor([[-1.0, 1.0], [-1.0, -0.9], [0.5, 0.4], [0.1, 0.1]])
    block, params = torch.full((2, 3), start), [nn.Parameter(torch.full((3,), start)) for _ in range(2)]
    alone = [adadp.ADADP([p], lr=0.5, **switches) for p in params]
    rows = AdaptiveRows(alone[0], [block])
    rows.start([[0.5, 0.5]])
    for pair in gradients.split(2):
        rows.advance(lambda half, pair=pair: [pair[half][:, None].expand(2, 3)], torch.ones(2, dtype=torch.bool))
        for g in pair:
            for p, optimizer, own in zip(params, alone, g, strict=True):
                p.grad = own.expand(3)
                optimizer.step()
    torch.testing.assert_close(block, torch.stack([p.detach() for p in params]))
    assert rows.discarded.tolist() == [optimizer.discarded for optimizer in alone]
    assert rows.lr[0].tolist() == pytest.approx([optimizer.param_groups[0]["lr"] for optimizer in alone], rel=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["adaptive", *PEERS])
def test_captured_in_a_cuda_graph(name):
    optimizer = adaptive(**SWITCHES[0]) if name == "adaptive" else PEERS[name]
    ends = []
    for device in ("cpu", "cuda"):
        clients = make_clients(RAGGED, (2, 8, 8))
        model, fed = make(None, optimizer, network=convolutional, clients=clients, device=device)
        history = fed.run(3, progress=False)
        assert (fed._stack is not None) == (device == "cuda")
        ends.append(([p.detach().cpu() for p in model.parameters()], [row["accepted"] for row in history.rows]))
    assert ends[0][1] == ends[1][1]
    for a, b in zip(ends[0][0], ends[1][0], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10 if name in ("adaptive", "SGD") else 1e-5)


def test_a_step_that_cannot_be_recorded_runs_as_it_is(monkeypatch):
    """A model that reads a value in its forward pass runs for several clients at once, but in no CUDA graph."""

    def refuse(call, device):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(stacked, "Replayed", refuse)
    with pytest.warns(UserWarning, match="without a CUDA graph.*capturing$"):
        assert stacked.replayed(print, torch.device("cuda")) is print


def test_the_step_of_the_stack_reads_nothing_and_moves_nothing():
    """The whole step on a made-up CUDA device; what is recorded in the graph is this call."""
    stack = StackedClients(convolutional(), make_clients(EVEN, (2, 8, 8)), batch_size=8, local_epochs=1,
                           loss=cross_entropy, reduction="mean", trace=0)  # fmt: skip
    for optimizer in (adaptive(**SWITCHES[0]), PEERS["SGD"]):
        stack._prepare(optimizer(stack.model.parameters()), 3)
        with Unsynchronised():
            stack._step()
            stack._step()

"""Federated averaging under faults and in corners: nothing is repeated, half done, mixed up or lost without a word."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

import adadp
from adadp import checkpoint as checkpoints
from adadp.federated import FederatedAveraging, NoUsableClient, average, client_generator
from adadp.federated.local import noise_generator

PRIVACY = {"max_grad_norm": 1.0, "noise_multiplier": 2.0}


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def net():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    for p in model.parameters():
        nn.init.uniform_(p, -0.5, 0.5, generator=gen(7))
    return model


def make_clients(sizes=(24, 40, 16)):
    g = gen(1)
    return [(torch.randn(n, 4, generator=g), torch.randint(3, (n,), generator=g)) for n in sizes]


def sgd(parameters, lr=0.1):
    return torch.optim.SGD(parameters, lr=lr)


def adaptive(parameters, lr=0.05):
    return adadp.ADADP(parameters, lr=lr, tol=0.1, discard=True)


def loop(optimizer=adaptive, model=None, clients=None, **choices):
    model, clients = model or net(), clients or make_clients()
    return FederatedAveraging(model, clients, optimizer, **{"batch_size": 4, "generator": gen(3)} | choices)


def weights(fed):
    return torch.cat([p.detach().flatten().clone() for p in fed.model.parameters()])


def stop_after(number):
    def stop(round, **_):
        if round == number:
            raise KeyboardInterrupt

    return [stop]


@pytest.mark.parametrize("choices", [{}, {"privacy": PRIVACY}, {"participation": 0.4}, {"keep_lr": False}])
def test_two_calls_are_one_longer_run(choices):
    whole, parts = loop(**choices), loop(**choices)
    rows = whole.run(4, progress=False).rows
    assert [*parts.run(1, progress=False).rows, *parts.run(3, progress=False).rows] == rows
    assert torch.equal(weights(whole), weights(parts))


def test_a_second_call_draws_fresh_noise():
    """With the same noise twice, the difference of two releases would hold no noise at all."""
    same = torch.zeros(8, 4)
    fed = loop(sgd, clients=[(same, torch.zeros(8, dtype=torch.int64))], privacy=PRIVACY | {"noise_multiplier": 100.0})
    before = weights(fed)
    fed.run(1, progress=False)
    first = weights(fed) - before
    fed.run(1, progress=False)
    second = weights(fed) - before - first
    assert (first - second).abs().max() > 0.1 * first.abs().max()


@pytest.mark.parametrize("choices", [{}, {"privacy": PRIVACY}, {"participation": 0.4}, {"trace": 3}])
@pytest.mark.parametrize("optimizer", [adaptive, lambda p: torch.optim.Adam(p, lr=1e-3)])
def test_interrupted_after_any_round_the_result_is_the_same(tmp_path, choices, optimizer):
    whole = loop(optimizer, **choices)
    rows = whole.run(4, progress=False).rows
    for number in (1, 2, 3):
        file = tmp_path / f"{number}.pt"
        with pytest.raises(KeyboardInterrupt):
            loop(optimizer, **choices).run(4, progress=False, checkpoint=file, callbacks=stop_after(number))
        again = loop(optimizer, **choices)
        assert again.run(4, progress=False, checkpoint=file).rows == rows
        assert torch.equal(weights(again), weights(whole)) and not file.exists()


def test_dropout_is_continued_where_it_was(tmp_path):
    def dropping():
        torch.manual_seed(0)
        return loop(sgd, nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3)))

    whole, part, file = dropping(), None, tmp_path / "fed.pt"
    torch.manual_seed(1)
    whole.run(3, progress=False)
    part = dropping()
    torch.manual_seed(1)
    with pytest.raises(KeyboardInterrupt):
        part.run(3, progress=False, checkpoint=file, callbacks=stop_after(2))
    again = dropping()
    torch.manual_seed(99)
    again.run(3, progress=False, checkpoint=file)
    assert torch.equal(weights(again), weights(whole))


def test_dropout_follows_from_the_seed_and_leaves_torchs_own_generator_alone():
    def trained(seed):
        torch.manual_seed(0)
        fed = loop(sgd, nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3)), generator=gen(seed))
        torch.manual_seed(len(found))
        before = torch.get_rng_state()
        fed.run(2, progress=False)
        assert torch.equal(torch.get_rng_state(), before)
        found.append(weights(fed))

    found = []
    for seed in (3, 3, 4):
        trained(seed)
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


class Forgetful(nn.Linear):
    """Running means, and the last input, in buffers that no state_dict holds."""

    def __init__(self):
        super().__init__(4, 3)
        nn.init.uniform_(self.weight, -0.5, 0.5, generator=gen(7))
        nn.init.zeros_(self.bias)
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.register_buffer("last", None, persistent=False)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        shift = self.mean if self.last is None else self.mean + self.last
        self.last = x.detach()[0]
        return super().forward(x - shift)


def test_what_no_state_dict_holds_does_not_go_from_client_to_client():
    def sent(scale):
        (x, y), *others = make_clients()
        fed = loop(sgd, nn.Sequential(Forgetful()), [(scale * x, y), *others])
        return [fed._train_client(client, 1).state["0.weight"] for client in range(3)]

    same = [torch.equal(mine, other) for mine, other in zip(sent(1.0), sent(10.0), strict=True)]
    assert same == [False, True, True]


@pytest.mark.filterwarnings("ignore:round 1")
@pytest.mark.parametrize(
    ("name", "at", "value", "refused"),
    [
        ("mask", 1, -math.inf, []),
        ("mask", 0, -math.inf, [1]),
        ("mask", 1, 0.0, []),
        ("weight", 0, math.inf, [1]),
        ("weight", 0, math.nan, [1]),
    ],
)
def test_only_what_is_finite_in_the_global_model_has_to_be(name, at, value, refused):
    model = nn.Linear(4, 3)
    model.register_buffer("mask", torch.tensor([0.0, -math.inf, math.nan]))
    fed, ordinary = loop(sgd, model), FederatedAveraging._update

    def update(client, report, lrs):
        found = ordinary(fed, client, report, lrs)
        if client == 1:
            found.state[name].view(-1)[at] = value
        return found

    fed._update = update
    assert fed.run(1, progress=False).rows[0]["refused"] == refused
    assert model.mask[0] == 0 and model.mask[1] == -math.inf and model.mask[2].isnan()


@pytest.mark.filterwarnings("ignore:round 1")
def test_a_model_without_finite_weights_has_no_usable_client():
    model = net()
    nn.init.constant_(model[0].weight, math.nan)
    with pytest.raises(NoUsableClient, match="no client sent finite weights"):
        loop(sgd, model).run(1, progress=False)


def test_a_round_whose_evaluation_fails_has_not_been():
    def loss(output, y):
        if fails and not torch.is_grad_enabled():
            raise OSError("no such card")
        return adadp.training.cross_entropy(output, y)

    fails, test = False, make_clients()[0]
    fed, twin = (loop(loss=loss, test_data=test, privacy=None) for _ in range(2))
    fed.run(1, progress=False)
    fails, before = True, weights(fed)
    with pytest.raises(OSError, match="no such card"):
        fed.run(2, progress=False)
    assert torch.equal(weights(fed), before)
    fails = False
    twin.run(1, progress=False)
    assert fed.run(2, progress=False).rows == twin.run(2, progress=False).rows
    assert torch.equal(weights(fed), weights(twin))


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        pass


def test_a_state_that_is_no_tensor_is_refused_when_the_loop_is_made():
    with pytest.raises(TypeError, match=r"model: 0\._extra_state is no tensor .* cannot be averaged"):
        loop(sgd, nn.Sequential(Extra(4, 3)))


class Breaks(Exception):
    pass


def test_a_round_in_which_a_client_fails_costs_nobody_anything():
    """Nothing of it was seen, and the round that takes its place draws the same noise."""

    def optimizer(parameters):
        if fails and next(calls) == 2:
            raise Breaks
        return sgd(parameters)

    fails, calls = False, itertools.count()
    fed, twin = (loop(optimizer, privacy=PRIVACY) for _ in range(2))
    fed.run(1, progress=False)
    fails, steps = True, [ledger.steps for ledger in fed.ledgers]
    with pytest.raises(RuntimeError, match="round 2: client 2 failed: Breaks"):
        fed.run(1, progress=False)
    assert [ledger.steps for ledger in fed.ledgers] == steps
    fails = False
    twin.run(1, progress=False)
    assert fed.run(1, progress=False).rows == twin.run(1, progress=False).rows
    assert torch.equal(weights(fed), weights(twin))


@pytest.mark.parametrize("fault", [Breaks("no more power"), MemoryError()])
def test_a_client_that_fails_is_named_and_the_round_leaves_nothing_behind(fault):
    clients, calls = make_clients(), []

    def loss(output, y):
        calls.append(len(y))
        if armed and len(calls) > 12:  # the first client takes six batches, the second ten
            raise fault
        return adadp.training.cross_entropy(output, y)

    armed = False
    fed = loop(clients=clients, loss=loss, privacy=None)
    twin = loop(clients=clients)
    fed.run(1, progress=False)
    twin.run(1, progress=False)
    armed, kept = True, (weights(fed), copy.deepcopy(fed._lrs))
    calls.clear()
    with pytest.raises(RuntimeError, match=f"round 2: client 1 failed: {type(fault).__name__}") as caught:
        fed.run(1, progress=False)
    assert caught.value.__cause__ is fault
    assert torch.equal(weights(fed), kept[0]) and fed._lrs == kept[1]
    armed = False
    assert fed.run(1, progress=False).rows == twin.run(1, progress=False).rows


def test_ledgers_count_the_rounds_a_client_took_part_in():
    sizes = (24, 40, 3)  # the last is smaller than a batch: it takes all of its data, and nothing is amplified
    fed = loop(sgd, clients=make_clients(sizes), privacy=PRIVACY, participation=0.4, local_epochs=2)
    rows = fed.run(7, progress=False).rows
    turns = [sum(client in row["clients"] for row in rows) for client in range(3)]
    assert sum(turns) == 7 and len(set(turns)) > 1
    for client, (size, taken) in enumerate(zip(sizes, turns, strict=True)):
        planned = dict(sample_rate=min(1.0, 4 / size), steps=taken * 2 * -(-size // 4), delta=1e-5)
        expected = adadp.epsilon(noise_multiplier=2.0, **planned) if taken else 0.0
        spent = fed.ledgers[client].get_epsilon(delta=1e-5) if taken else 0.0
        assert spent == pytest.approx(expected)


def test_without_noise_epsilon_is_infinite_and_the_history_can_be_stored():
    history = loop(sgd, privacy=PRIVACY | {"noise_multiplier": 0.0}).run(1, progress=False)
    assert history.rows[0]["epsilon"] == [float("inf")] * 3
    assert adadp.History.from_json(history.to_json()) == history


def test_a_kept_lr_waits_while_a_client_does_not_take_part():
    fed = loop(participation=0.4, clients=make_clients((40,) * 3))
    kept = {}
    for row in fed.run(6, progress=False).rows:
        (client,) = row["clients"]
        kept[client] = row["lr"][0]
    assert {client: lrs[0] for client, lrs in enumerate(fed._lrs) if lrs} == kept


def test_batch_norm_and_counters_are_averaged_and_stay_finite():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    fed = loop(sgd, model, clients=make_clients((24, 40)))
    seen = []
    original = fed._updates
    fed._updates = lambda drawn, number: (
        seen.append(copy.deepcopy(fed._local[1].running_mean)) or item for item in original(drawn, number)
    )
    fed.run(1, progress=False)
    expected = (24 * seen[0].double() + 40 * seen[1].double()) / 64
    torch.testing.assert_close(fed.model[1].running_mean.double(), expected)
    assert fed.model[1].num_batches_tracked.item() == 6, "of the first client"


def test_complex_weights_are_averaged():
    mean = average([{"w": torch.tensor(1 + 2j)}, {"w": torch.tensor(3 - 2j)}], [1, 1])
    assert mean["w"] == torch.tensor(2 + 0j)


@pytest.mark.parametrize(
    ("states", "weights", "message"),
    [
        ([{"w": torch.zeros(2)}, {"w": torch.zeros(2, dtype=torch.float64)}], [1, 1], "dtypes"),
        ([{"w": torch.zeros(2)}, {"w": torch.zeros(2)}], [1, float("inf")], "finite"),
        ([{"w": torch.zeros(2)}, {"w": torch.zeros(2)}], [1, float("nan")], "finite"),
    ],
)
def test_average_refuses_other_dtypes_and_weights_without_a_sum(states, weights, message):
    with pytest.raises(ValueError, match=message):
        average(states, weights)


def test_a_double_model_takes_float_examples_as_in_centralised_training():
    fed = loop(sgd, net().double(), test_data=make_clients()[0])
    assert fed.run(1, progress=False).rows[0]["test_accuracy"] is not None
    assert weights(fed).dtype == torch.float64


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"optimizer": sgd}, "optimizer"),
        ({"optimizer": lambda p: adaptive(p, lr=0.01)}, "optimizer"),
        ({"batch_size": 8}, "batch_size"),
        ({"keep_lr": False}, "keep_lr"),
        ({"clients": make_clients((24, 40, 17))}, "clients"),
        ({"privacy": PRIVACY}, "privacy"),
        ({"generator": gen(4)}, "seed"),
        ({"model": nn.Linear(4, 3)}, "model"),
        ({"loss": lambda output, y: adadp.training.cross_entropy(output, y)}, "loss"),
        ({"clients": [(x + 1, y) for x, y in make_clients()]}, "data"),
    ],
)
def test_a_checkpoint_of_another_run_says_what_differs(tmp_path, change, differs):
    file = tmp_path / "fed.pt"
    with pytest.raises(KeyboardInterrupt):
        loop().run(3, progress=False, checkpoint=file, callbacks=stop_after(1))
    with pytest.raises(RuntimeError, match=rf"another run \(other .*{differs}.*\): remove it"):
        loop(**change).run(3, progress=False, checkpoint=file)
    assert file.exists()


def test_a_checkpoint_from_before_data_and_loss_were_compared_goes_on(tmp_path):
    file, whole = tmp_path / "fed.pt", loop().run(2, progress=False)
    with pytest.raises(KeyboardInterrupt):
        loop().run(2, progress=False, checkpoint=file, callbacks=stop_after(1))
    state = checkpoints.load(file)
    old = {name: value for name, value in state["settings"].items() if name not in ("data", "loss")}
    checkpoints.save(file, state | {"settings": old})
    assert loop().run(2, progress=False, checkpoint=file) == whole


def test_fewer_rounds_than_the_checkpoint_holds_are_refused_and_it_is_kept(tmp_path):
    file = tmp_path / "fed.pt"
    with pytest.raises(KeyboardInterrupt):
        loop().run(3, progress=False, checkpoint=file, callbacks=stop_after(2))
    with pytest.raises(ValueError, match="rounds=1 is less than the 2"):
        loop().run(1, progress=False, checkpoint=file)
    assert file.exists()


def test_a_checkpoint_without_settings_is_still_continued(tmp_path):
    """As runs wrote it that began before settings were part of it."""
    file, whole = tmp_path / "fed.pt", loop()
    rows = whole.run(3, progress=False).rows
    with pytest.raises(KeyboardInterrupt):
        loop().run(3, progress=False, checkpoint=file, callbacks=stop_after(2))
    old = {k: v for k, v in checkpoints.load(file).items() if k not in ("settings", "done", "generators")}
    checkpoints.save(file, old)
    assert loop().run(3, progress=False, checkpoint=file).rows == rows


@pytest.mark.parametrize("damage", [{"model": {}}, {"history": "[]"}, {"lrs": None, "ledgers": [{}]}, {"history": "{"}])
def test_a_damaged_checkpoint_is_named(tmp_path, damage):
    file = tmp_path / "fed.pt"
    with pytest.raises(KeyboardInterrupt):
        loop(privacy=PRIVACY).run(3, progress=False, checkpoint=file, callbacks=stop_after(1))
    checkpoints.save(file, checkpoints.load(file) | damage)
    with pytest.raises(RuntimeError, match=r"fed\.pt does not fit this run"):
        loop(privacy=PRIVACY).run(3, progress=False, checkpoint=file)
    checkpoints.save(file, {"something": "else"})
    with pytest.raises(RuntimeError, match=r"fed\.pt is not a checkpoint of federated averaging"):
        loop(privacy=PRIVACY).run(3, progress=False, checkpoint=file)


@pytest.mark.filterwarnings("ignore:round 2")
def test_a_run_that_breaks_down_hands_over_its_history():
    clients = make_clients()
    fed = loop(sgd, clients=clients)
    first = fed.run(1, progress=False).rows
    fed.clients = [(x * float("nan"), y) for x, y in fed.clients]
    with pytest.raises(NoUsableClient, match="round 2") as caught:
        fed.run(1, progress=False)
    assert caught.value.history.rows == [] and len(first) == 1
    assert torch.isfinite(weights(fed)).all()


@pytest.mark.parametrize(
    ("change", "error", "name"),
    [
        ({"trace": -1}, ValueError, "trace"),
        ({"keep_lr": "no"}, ValueError, "keep_lr"),
        ({"delta": 1.5}, ValueError, "delta"),
        ({"participation": "half"}, ValueError, "participation"),
        ({"optimizer": 0.1}, TypeError, "client_optimizer"),
        ({"loss": None}, TypeError, "loss"),
        ({"privacy": PRIVACY | {"noise_multiplier": -1}}, ValueError, "noise_multiplier"),
        ({"privacy": PRIVACY | {"max_grad_norm": 0}}, ValueError, "max_grad_norm"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_round(change, error, name):
    with pytest.raises(error, match=name):
        loop(**change)


@pytest.mark.filterwarnings("ignore:round 1")
def test_a_private_client_whose_weights_are_refused_has_spent_its_budget():
    made = []

    def optimizer(parameters):
        made.append(1)
        return sgd(parameters, lr=3e38 if len(made) == 2 else 0.1)

    fed = loop(optimizer, privacy=PRIVACY)
    assert fed.run(1, progress=False).rows[0]["refused"] == [1]
    planned = adadp.epsilon(noise_multiplier=2.0, sample_rate=4 / 40, steps=10, delta=1e-5)
    assert fed.ledgers[1].get_epsilon(delta=1e-5) == pytest.approx(planned)


@pytest.mark.filterwarnings("ignore:round 2")
def test_the_history_of_a_run_that_fails_counts_its_last_round():
    rate = [0.1]
    fed = loop(lambda parameters: sgd(parameters, lr=rate[0]), privacy=PRIVACY, keep_lr=False)
    with pytest.raises(NoUsableClient) as failed:
        fed.run(2, progress=False, callbacks=[lambda **_: rate.__setitem__(0, 3e38)])
    history = failed.value.history
    assert len(history.rows) == 1 and history.privacy["steps"] == [2 * steps for steps in history.rows[0]["steps"]]
    assert history.privacy["steps"] == [ledger.steps for ledger in fed.ledgers]


def test_noise_is_drawn_from_a_stream_of_its_own_and_averaged_over_the_clients_batch():
    fed = loop(sgd, clients=make_clients((24, 40, 3)), privacy=PRIVACY)
    noise = [noise_generator(fed._seed, 1, client, 3, fed.device) for client in range(3)]
    gradients = [fed.training.gradient(fed._local, len(x), g) for g, (x, _) in zip(noise, fed.clients, strict=True)]
    orders = {client_generator(fed._seed, 1, k).initial_seed() for k in range(3)}
    noises = {gradient.generator.initial_seed() for gradient in gradients}
    assert len(noises) == 3 and not noises & orders
    assert [gradient.expected_batch_size for gradient in gradients] == [4, 4, 3]


@pytest.mark.parametrize("stacked", [False, True])
def test_a_round_of_one_batch_is_no_round_for_adadp(stacked):
    clients = make_clients((24, 24))
    with pytest.raises(ValueError, match=r"^clients \[0, 1\]: .*half an iteration.*batch_size smaller.*local_epochs"):
        loop(clients=clients, batch_size=24, stacked=stacked)
    twice = loop(clients=clients, batch_size=24, stacked=stacked, local_epochs=2)
    assert twice.run(1, progress=False).rows[0]["accepted"] == [1, 1]
    with_sgd = loop(sgd, clients=clients, batch_size=24, stacked=stacked)
    before = weights(with_sgd)
    with_sgd.run(1, progress=False)
    assert not torch.equal(before, weights(with_sgd))


def test_a_client_too_small_for_an_iteration_is_named():
    with pytest.raises(ValueError, match=r"^clients \[2\]: .*half an iteration"):
        loop(clients=make_clients((24, 40, 3)), privacy=PRIVACY)


def test_a_frozen_optimizer_takes_a_round_of_one_batch():
    def frozen(parameters):
        optimizer = adaptive(parameters)
        optimizer.freeze()
        return optimizer

    fed = loop(frozen, batch_size=40)
    before = weights(fed)
    fed.run(1, progress=False)
    assert not torch.equal(before, weights(fed))

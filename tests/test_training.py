"""The training loop: every kind of batch, epsilon, callbacks, and a resumption that changes nothing."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from adadp import checkpoint as checkpoints
from adadp.data import Dataset
from adadp.history import History
from adadp.optimizer import ADADP
from adadp.privacy.accounting import epsilon
from adadp.privacy.gradient import PrivateGradient
from adadp.privacy.sampling import PoissonSampling, ShuffledPartition
from adadp.progress import progress_bar
from adadp.training import AdaptThenDecay, cross_entropy, evaluate, pick_device, train


def blobs(count=100, test=40, seed=0):
    """Three clouds of points that a linear model tells apart."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (count + test,), generator=generator)
    x = 3 * torch.eye(3)[y] + torch.randn(count + test, 3, generator=generator)
    return Dataset(x[:count], y[:count], x[count:], y[count:], "blobs", "three clouds")


def linear(seed=0):
    """A small model, always the same."""
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(seed))
    return model


def private(model, sigma=1.0, expected=10.0, seed=0, **more):
    """A private gradient with a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    settings = {"max_grad_norm": 1.0, "noise_multiplier": sigma, "expected_batch_size": expected} | more
    return PrivateGradient(model, **settings, generator=generator)


def run(model, optimizer=None, data=None, **options):
    """``train`` with quiet defaults."""
    options = {"sampling": PoissonSampling(0.1, 20), "generator": torch.Generator().manual_seed(7)} | options
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return train(model, data or blobs(), optimizer, progress=False, **options)


# --- what is recorded --------------------------------------------------------------------------------------------


def test_training_learns_and_records():
    model = linear()
    history = run(model, ADADP(model.parameters(), lr=0.1, tol=0.1), sampling=PoissonSampling(0.1, 200))
    assert [row["epoch"] for row in history.rows] == list(range(1, 21))
    assert [row["steps"] for row in history.rows] == list(range(10, 201, 10))
    assert history.rows[-1]["test_accuracy"] > 0.85
    assert history.rows[-1]["test_loss"] < history.rows[0]["test_loss"]
    assert history.rows[0]["epsilon"] is None and history.privacy == {"sampler": "poisson", "noise_multiplier": None}
    accuracy, loss = evaluate(model, blobs().x_test, blobs().y_test, loss=cross_entropy)
    assert (accuracy, loss) == (history.rows[-1]["test_accuracy"], history.rows[-1]["test_loss"])


def test_first_epoch_holds_every_iteration():
    model = linear()
    optimizer = ADADP(model.parameters(), lr=0.1)
    seen = []
    step = optimizer.step

    def watched():
        step()
        if optimizer.phase == 0:
            seen.append((optimizer.param_groups[0]["lr"], optimizer.error))

    optimizer.step = watched
    history = run(model, optimizer)
    assert [(p["lr"], p["error"]) for p in history.first_epoch] == seen[:5]
    assert [p["step"] for p in history.first_epoch] == [2, 4, 6, 8, 10]
    assert history.rows[0]["lr"] == seen[4][0] and history.rows[0]["error"] == seen[4][1]
    assert history.rows[-1]["discarded"] == optimizer.discarded == 0


def test_other_optimizers_have_no_error():
    model = linear()
    history = run(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    assert history.first_epoch == [] and history.rows[0]["error"] is None and history.rows[0]["discarded"] is None


def test_history_round_trip():
    model = linear()
    history = run(model, ADADP(model.parameters()), gradient=private(model, sigma=0.0))
    history.rows[0]["error"] = -math.inf
    text = history.to_json()
    assert json.loads(text, parse_constant=pytest.fail)["rows"][0]["epsilon"] == "Infinity"
    assert History.from_json(text) == history
    table = pytest.importorskip("pandas") and history.to_dataframe()
    assert list(table["steps"]) == [10, 20] and table.attrs["privacy"] == history.privacy
    nan = History.from_json(History(rows=[{"error": math.nan}]).to_json())
    assert math.isnan(nan.rows[0]["error"])


@pytest.mark.parametrize("bad", ["", "[]", "{}", '{"rows": 1, "first_epoch": [], "privacy": {}}', '{"rows": []}'])
def test_history_refuses_other_text(bad):
    with pytest.raises(ValueError, match="History"):
        History.from_json(bad)


def test_evaluate_every_and_partial_last_epoch():
    history = run(linear(), sampling=PoissonSampling(0.1, 45), evaluate_every=2)
    assert [(r["epoch"], r["steps"]) for r in history.rows] == [(2, 20), (4, 40), (5, 45)]
    assert run(linear(), sampling=PoissonSampling(0.1, 0)).rows == []


# --- epsilon -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["moments", "rdp", "pld"])
def test_epsilon_is_the_planned_one(accountant):
    model = linear()
    history = run(model, ADADP(model.parameters()), gradient=private(model), accountant=accountant)
    for row in history.rows:
        planned = epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=row["steps"], delta=1e-5, accountant=accountant)
        assert row["epsilon"] == planned > 0
    expected = {
        "sampler": "poisson", "assumed_sampler": "poisson", "matches": True, "neighbors": "add_remove",
        "accountant": accountant, "delta": 1e-5, "noise_multiplier": 1.0, "sample_rate": 0.1,
    }  # fmt: skip
    assert history.privacy == expected


def test_no_noise_is_infinite_epsilon():
    model = linear()
    assert run(model, gradient=private(model, sigma=0.0)).rows[0]["epsilon"] == math.inf


def test_another_sampler_is_said_once():
    model = linear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = run(model, gradient=private(model), sampling=ShuffledPartition(10, 3))
    assert [str(w.message) for w in caught if w.category is UserWarning] == [
        "epsilon assumes Poisson sampling, but batches come from a shuffled partition: it is no guarantee here"
    ]
    assert caught[0].filename == __file__ or Path(caught[0].filename).name == "test_training.py"
    assert history.privacy["sampler"] == "shuffled partition" and not history.privacy["matches"]
    assert History.from_json(history.to_json()).privacy == history.privacy


def test_matching_or_no_privacy_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = linear()
        run(model, gradient=private(model))
        run(linear(), sampling=ShuffledPartition(10, 2))


# --- batches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda p: ADADP(p, lr=0.1), lambda p: torch.optim.Adam(p, lr=0.1)])
def test_mostly_empty_batches(make):
    """Ten examples, rate 0.01, 50 steps: every step adds noise and is accounted."""
    model = linear()
    optimizer = make(model.parameters())
    moved, step = [], optimizer.step

    def watched():
        before = model.weight.detach().clone()
        step()
        moved.append(not torch.equal(before, model.weight))

    optimizer.step = watched
    gradient = private(model, expected=0.1, max_physical_batch_size=4)
    history = run(model, optimizer, blobs(10), sampling=PoissonSampling(0.01, 50), gradient=gradient)
    assert len(moved) == 50 and all(moved)
    assert history.rows[-1]["steps"] == 50
    assert history.rows[-1]["epsilon"] == epsilon(noise_multiplier=1.0, sample_rate=0.01, steps=50, delta=1e-5)


class View(nn.Module):
    """Flattens as many models do; torch refuses that for no examples."""

    def forward(self, x):
        return x.view(len(x), -1)


@pytest.mark.filterwarnings("ignore:expected_batch_size")
@pytest.mark.parametrize("secret", [False, True])
def test_models_that_cannot_take_an_empty_batch(secret):
    model = nn.Sequential(View(), linear())
    gradient = private(model) if secret else None
    before = model[1].weight.detach().clone()
    generator = torch.Generator().manual_seed(0)
    sampling = PoissonSampling(1e-6, 5)
    assert all(len(b) == 0 for b in sampling.batches(10, torch.Generator().manual_seed(0)))
    history = run(model, data=blobs(10), sampling=sampling, generator=generator, gradient=gradient)
    assert history.rows[-1]["steps"] == 5 and torch.equal(model[1].weight, before) != secret


def test_short_last_batch_keeps_the_declared_divisor():
    """105 examples in batches of 10: the last five are used, divided by ten when private."""
    data = blobs(105)
    model, twin = linear(), linear()
    gradient = PrivateGradient(model, max_grad_norm=math.inf, noise_multiplier=0.0, expected_batch_size=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = run(model, data=data, sampling=ShuffledPartition(10, 1), gradient=gradient)
    assert history.rows[-1]["steps"] == 11
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for indices in torch.randperm(105, generator=torch.Generator().manual_seed(7)).split(10):
        optimizer.zero_grad()
        (cross_entropy(twin(data.x_train[indices]), data.y_train[indices]).sum() / 10).backward()
        optimizer.step()
    torch.testing.assert_close(model.weight, twin.weight)


def test_phase_survives_an_odd_epoch():
    """Three batches an epoch: the second iteration begins in one epoch and ends in the next."""
    data = blobs(30)
    model, twin = linear(), linear()
    optimizer, other = ADADP(model.parameters(), lr=0.1), ADADP(twin.parameters(), lr=0.1)
    phases = []
    history = run(
        model,
        optimizer,
        data,
        sampling=ShuffledPartition(10, 3),
        callbacks=[lambda optimizer, **_: phases.append(optimizer.phase)],
    )
    assert phases == [1, 0, 1] and optimizer.accepted == 4
    assert [p["step"] for p in history.first_epoch] == [2]
    for indices in ShuffledPartition(10, 3).batches(30, torch.Generator().manual_seed(7)):
        other.zero_grad()
        cross_entropy(twin(data.x_train[indices]), data.y_train[indices]).mean().backward()
        other.step()
    assert torch.equal(model.weight, twin.weight)


def test_plain_training_equals_a_plain_loop():
    data, model, twin = blobs(), linear(), linear()
    run(model, torch.optim.Adam(model.parameters(), lr=0.01), data)
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.01)
    for indices in PoissonSampling(0.1, 20).batches(100, torch.Generator().manual_seed(7)):
        optimizer.zero_grad()
        cross_entropy(twin(data.x_train[indices]), data.y_train[indices]).mean().backward()
        optimizer.step()
    assert torch.equal(model.weight, twin.weight)


def test_without_a_generator_torchs_seed_decides():
    weights = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        model = linear()
        run(model, generator=None)
        weights.append(model.weight.detach())
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_float64_model_and_small_labels():
    data = blobs()
    data = Dataset(data.x_train, data.y_train.to(torch.uint8), data.x_test, data.y_test.to(torch.int32))
    model = linear().double()
    assert run(model, data=data, gradient=private(model)).rows[-1]["steps"] == 20
    assert model.weight.dtype == torch.float64


# --- evaluation --------------------------------------------------------------------------------------------------


def test_evaluation_restores_the_mode_of_every_module():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    model[1].eval()
    seen = []
    model[2].register_forward_pre_hook(lambda module, _: seen.append(module.training))
    evaluate(model, torch.randn(5, 3), torch.zeros(5, dtype=torch.int64), loss=cross_entropy)
    assert seen == [False]
    assert [m.training for m in model.modules()] == [True, True, False, True]


def test_evaluation_does_not_depend_on_its_batches():
    model, data = linear(), blobs(100, 47)
    whole, parts = (evaluate(model, data.x_test, data.y_test, loss=cross_entropy, batch_size=b) for b in (1000, 5))
    assert whole[0] == parts[0] and whole[1] == pytest.approx(parts[1])
    assert evaluate(model, data.x_test[:0], data.y_test[:0], loss=cross_entropy) == (None, None)


@pytest.mark.parametrize("secret", [True, False])
def test_targets_that_are_no_labels(secret):
    """A regression, in the model's own type: the loss falls, and there is no accuracy."""

    def squares(output, y):
        return (output - y).square().sum(1)

    x = torch.randn(150, 3, generator=torch.Generator().manual_seed(0))
    y = (x @ torch.tensor([[1.0], [2.0], [-1.0]])).double()
    data, model = Dataset(x[:100], y[:100], x[100:], y[100:]), nn.Linear(3, 1)
    gradient = private(model, sigma=0.1, loss=squares) if secret else None
    history = run(model, data=data, sampling=PoissonSampling(0.1, 100), gradient=gradient, loss=squares)
    assert [row["test_accuracy"] for row in history.rows] == [None] * 10
    assert history.rows[-1]["test_loss"] < 0.5 * history.rows[0]["test_loss"]
    assert History.from_json(history.to_json()) == history and "test_accuracy" not in repr(history)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@pytest.mark.parametrize("secret", [True, False])
def test_tokens(secret, kind):
    """A model that looks its inputs up: whether a sentence has more of the first five words."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 10, (500, 7), generator=generator)
    y = ((x < 5).sum(1) > 3).long()
    data = Dataset(x[:400].to(kind), y[:400], x[400:].to(kind), y[400:])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(28, 2))
    gradient = private(model, sigma=0.3, expected=40.0) if secret else None
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    history = run(model, optimizer, data, sampling=PoissonSampling(0.1, 100), gradient=gradient)
    assert history.rows[-1]["test_accuracy"] > 0.8


def test_without_test_examples():
    data = blobs()
    data = Dataset(data.x_train, data.y_train, data.x_test[:0], data.y_test[:0])
    assert run(linear(), data=data).rows[-1]["test_accuracy"] is None


# --- callbacks ---------------------------------------------------------------------------------------------------


def test_callbacks_see_the_history_so_far():
    seen = []
    model = linear()
    history = run(model, callbacks=[lambda **k: seen.append((k["epoch"], len(k["history"].rows), k["model"] is model))])
    assert seen == [(1, 1, True), (2, 2, True)] and len(history.rows) == 2


def test_torch_schedulers_are_stepped():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    history = run(model, optimizer, sampling=PoissonSampling(0.1, 40), callbacks=[scheduler])
    assert [row["lr"] for row in history.rows] == [1.0, 0.5, 0.25, 0.125]


@pytest.mark.parametrize("adaptive", [True, False])
def test_adapt_then_decay(adaptive):
    """lr_k = lr_K / (1 + 0.1 (k - K)) for every epoch k > K, and plain SGD in it."""
    model = linear()
    optimizer = (ADADP if adaptive else torch.optim.SGD)(model.parameters(), lr=0.1)
    used = []
    step = optimizer.step

    def watched():
        used.append(optimizer.param_groups[0]["lr"])
        step()

    optimizer.step = watched
    run(model, optimizer, sampling=PoissonSampling(0.1, 80), callbacks=[AdaptThenDecay(3)])
    last = used[39] * 1.1  # in epoch 4, k - K = 1
    for epoch in range(4, 9):
        assert used[10 * (epoch - 1) : 10 * epoch] == pytest.approx([last / (1 + 0.1 * (epoch - 3))] * 10, rel=1e-12)
    if adaptive:
        assert optimizer.accepted == 15  # 30 gradients in pairs, then none
        assert len({*used[:30]}) > 10
    else:
        assert last == pytest.approx(0.1)


@pytest.mark.parametrize(
    "bad", [{"epochs": 0}, {"epochs": 1.5}, {"epochs": math.nan}, {"decay": -1}, {"decay": math.nan}]
)
def test_adapt_then_decay_arguments(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        AdaptThenDecay(**bad)


# --- wrong arguments ---------------------------------------------------------------------------------------------


def test_wrong_arguments_are_named():
    model, other, data = linear(), linear(), blobs()
    loader = torch.utils.data.DataLoader([1, 2])
    for options, error, word in [
        ({"data": (data.x_train, data.y_train)}, TypeError, "data must be an adadp.data.Dataset, got tuple"),
        ({"data": loader}, TypeError, "got DataLoader"),
        ({"sampling": loader}, TypeError, "sampling must be .*got DataLoader"),
        ({"gradient": 3}, TypeError, "gradient"),
        ({"gradient": private(other)}, ValueError, "another model"),
        ({"optimizer": torch.optim.SGD(other.parameters(), lr=1)}, ValueError, "optimizer holds none"),
        ({"evaluate_every": 0}, ValueError, "evaluate_every"),
        ({"device": "quantum"}, ValueError, "device='quantum'"),
        ({"gradient": private(model), "delta": 2}, ValueError, "delta"),
        ({"gradient": private(model), "accountant": "exact"}, ValueError, "accountant"),
    ]:
        before = model.weight.detach().clone()
        with pytest.raises(error, match=word):
            run(model, **options)
        assert torch.equal(model.weight, before)


def test_what_would_fail_after_an_epoch_is_refused_at_the_start():
    model, data = linear(), blobs()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, sgd)
    untested = Dataset(data.x_train, data.y_train, data.x_test[:0], data.y_test[:0])
    targets = Dataset(data.x_train, data.y_train.float(), data.x_test, data.y_test.float())
    for options, error, word in [
        (
            {"callbacks": [plateau()], "data": untested},
            ValueError,
            "ReduceLROnPlateau looks at the test loss, and there is none",
        ),
        ({"callbacks": [plateau("max")], "data": untested}, ValueError, "test accuracy, of labels, and there is none"),
        ({"callbacks": [3]}, TypeError, "callbacks must be functions or learning-rate schedulers, got int"),
        ({"optimizer": torch.optim.LBFGS(model.parameters())}, TypeError, "LBFGS asks for several gradients a step"),
        ({"data": targets}, ValueError, "loss is cross_entropy, which needs labels"),
    ]:
        before = model.weight.detach().clone()
        with pytest.raises(error, match=word) as caught:
            run(model, **options)
        assert torch.equal(model.weight, before) and "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_plateau_is_seen_where_epochs_are_evaluated_and_after_an_interruption_too(tmp_path, mode):
    def rates(path, *stops):
        """Learning rates by epoch, called again after each interruption."""
        for last in (*stops, None):
            model = linear()
            sgd = torch.optim.SGD(model.parameters(), lr=1.0)
            known = {"patience": 1, "factor": 0.5, "threshold": 10.0, "threshold_mode": "abs"}  # nothing is that good
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, mode, **known)
            more = [stop_after(last)] if last else []
            try:
                options = {"sampling": PoissonSampling(0.1, 160), "evaluate_every": 2, "checkpoint": path}
                return [row["lr"] for row in run(model, sgd, callbacks=[plateau, *more], **options).rows]
            except Stop:
                pass

    whole = rates(tmp_path / "a")
    assert whole[0] == 1.0 and whole[-1] < 0.2 and rates(tmp_path / "b", 4, 9) == whole


def test_a_divisor_that_is_not_the_samplers_is_told():
    model = linear()
    with pytest.warns(UserWarning, match="expected_batch_size=20 of gradient is not the sampler's, 10.* 0.5 times"):
        run(model, gradient=private(model, expected=20.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(model, gradient=private(model, expected=10.09))


def test_an_optimizer_of_a_part_of_the_model_is_told():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"leaves out 2 trainable parameters of the model \(0\.weight, \.\.\.\)"):
        run(model, optimizer, gradient=private(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(model, optimizer)
        model[0].requires_grad_(False)
        run(model, optimizer, gradient=private(model))


def test_devices():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


# --- progress ----------------------------------------------------------------------------------------------------


def test_nothing_is_written_where_nobody_looks(capfd, monkeypatch):
    model = linear()
    train(model, blobs(), torch.optim.SGD(model.parameters(), lr=0.1), sampling=PoissonSampling(0.1, 10))
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert not progress_bar(3).disable
    assert progress_bar(3, show=False).disable
    monkeypatch.setenv("ADADP_PROGRESS", "0")
    assert progress_bar(3).disable


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), lambda output, y: output - y[:, None]])
@pytest.mark.parametrize("test", [40, 0])
def test_a_loss_that_is_not_one_value_an_example_is_refused(loss, test):
    model = linear()
    before = model.weight.clone()
    with pytest.raises(ValueError, match=r"one value an example, shape .*reduction=\"none\""):
        run(model, data=blobs(test=test), loss=loss)
    assert torch.equal(model.weight, before)


def test_one_output_for_two_classes_is_refused_before_training():
    data, model = blobs(), nn.Linear(3, 1)
    data = Dataset(data.x_train, data.y_train % 2, data.x_test, data.y_test % 2)
    before = model.weight.clone()
    one = lambda output, y: (output.squeeze(1) - y).square()  # noqa: E731
    with pytest.raises(ValueError, match=r"one column a class, shape \(B, classes\).*got \(1, 1\)"):
        run(model, data=data, loss=one)
    assert torch.equal(model.weight, before)


# --- checkpoints -------------------------------------------------------------------------------------------------


class Stop(Exception):
    """Raised by a callback to end a run early."""


def stop_after(epoch):
    """A callback that interrupts in epoch ``epoch``, before its checkpoint."""

    def callback(*, epoch: int, last=epoch, **_):
        if epoch == last:
            raise Stop

    return callback


def whole(path=None, stop=None, optimizer=ADADP, sampling=None, dropout=0.0, sigma=1.0, own_generator=True, **more):
    """One run from its beginning or from its checkpoint: final weights, optimizer state and history."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(dropout), nn.Linear(8, 3))
    made = optimizer(model.parameters(), lr=more.pop("lr", 0.05))
    gradient = private(model, **{"sigma": sigma, "expected": 11.0} | (more.pop("how", {}))) if sigma else None
    if gradient and not own_generator:
        gradient.generator = None
    calls = [AdaptThenDecay(4)]
    data = more.pop("data", blobs(33))
    if optimizer is torch.optim.SGD:
        calls = [torch.optim.lr_scheduler.ExponentialLR(made, 0.9)]
    calls += [stop_after(stop)] if stop else []
    history = run(
        model, made, data, sampling=sampling or PoissonSampling(1 / 3, 18), gradient=gradient,
        callbacks=calls, checkpoint=path, **more,
    )  # fmt: skip
    return [p.detach() for p in model.parameters()], made.state_dict(), history


@pytest.mark.parametrize("optimizer", [ADADP, torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("stop", [2, 3, 5, 6])
def test_resumption_changes_nothing(tmp_path, optimizer, stop):
    path = tmp_path / "run.pt"
    weights, state, history = whole(optimizer=optimizer)
    with pytest.raises(Stop):
        whole(path, stop, optimizer=optimizer)
    assert path.exists()
    again, state_again, history_again = whole(path, optimizer=optimizer)
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))
    assert history_again == history
    for group, expected in zip(state_again["param_groups"], state["param_groups"], strict=True):
        assert group | expected == group  # torch adds a key of its own when it loads
    assert not path.exists() and list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_kept_gives_the_finished_run_again(tmp_path):
    path = tmp_path / "run.pt"
    weights, _, history = whole()
    for _ in range(2):  # trained, then only read
        again, _, history_again = whole(path, keep_checkpoint=True)
        assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True)) and history_again == history
        assert path.exists()


@pytest.mark.parametrize(
    "options",
    [{"dropout": 0.5}, {"own_generator": False}, {"sampling": ShuffledPartition(10, 6)}, {"sigma": None},
     {"sigma": None, "dropout": 0.5}, {"lr": np.float64(0.05)}],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:epsilon assumes")
@pytest.mark.filterwarnings("ignore:expected_batch_size")
def test_resumption_with_every_source_of_randomness(tmp_path, options):
    weights, _, history = whole(**options)
    with pytest.raises(Stop):
        whole(tmp_path / "c.pt", 4, **options)
    again, _, history_again = whole(tmp_path / "c.pt", **options)
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True)) and history_again == history


def test_another_runs_checkpoint_is_refused(tmp_path):
    path = tmp_path / "c.pt"
    with pytest.raises(Stop):
        whole(path, 3)
    others = [{"sampling": PoissonSampling(1 / 3, 21)}, {"sigma": 2.0}, {"optimizer": torch.optim.Adam}]
    for other in [*others, {"accountant": "rdp"}, {"delta": 1e-6}]:
        with pytest.raises(ValueError, match=r"c\.pt belongs to another run"):
            whole(path, **other)
    assert path.exists()


FLIPPED = Dataset(blobs(33).x_train, 2 - blobs(33).y_train, blobs(33).x_test, blobs(33).y_test, "blobs", "three clouds")
MOVED = Dataset(blobs(33).x_train + 1, blobs(33).y_train, blobs(33).x_test, blobs(33).y_test, "blobs", "three clouds")


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ({"optimizer": lambda p, lr: ADADP(p, lr=lr, tol=0.1)}, "tol"),
        ({"optimizer": lambda p, lr: ADADP(p, lr=2 * lr, advance="half_steps")}, "lr, advance"),
        ({"how": {"max_grad_norm": 2.0}}, "max_grad_norm"),
        ({"how": {"expected": 12.0, "clipping": "automatic"}}, "expected_batch_size, clipping"),
        ({"how": {"loss": lambda output, y: 2 * cross_entropy(output, y)}}, "loss"),
        ({"data": FLIPPED}, "labels"),
        ({"data": MOVED}, "examples"),
        ({"accountant": "rdp", "delta": 1e-6}, "accountant, delta"),
    ],
)
@pytest.mark.filterwarnings("ignore:expected_batch_size")
def test_a_checkpoint_says_in_what_it_belongs_to_another_run(tmp_path, other, names):
    path = tmp_path / "c.pt"
    with pytest.raises(Stop):
        whole(path, 3)
    with pytest.raises(ValueError, match=rf"c\.pt belongs to another run \(other {names}\); delete it") as caught:
        whole(path, **other)
    assert "\n" not in str(caught.value) and path.exists()


def test_a_checkpoint_of_an_earlier_version_is_accepted(tmp_path):
    """One without settings and without a count of what was released."""
    path = tmp_path / "c.pt"
    weights, _, history = whole()
    with pytest.raises(Stop):
        whole(path, 3)
    stored = checkpoints.load(path)
    del stored["settings"], stored["spending"]
    checkpoints.save(path, stored)
    again, _, history_again = whole(path)
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True)) and history_again == history


@pytest.mark.parametrize("optimizer", [ADADP, torch.optim.SGD, torch.optim.Adam])
def test_an_optimizer_that_has_moved_on_is_the_same(tmp_path, optimizer):
    """The very objects that were interrupted continue: what schedules and steps made of lr does not count."""
    data, path = blobs(), tmp_path / "c.pt"
    ends = []
    for stop in (None, 3):
        model = linear()
        made = optimizer([{"params": [model.weight], "lr": 0.2}], lr=0.1)
        schedule = [AdaptThenDecay(1)]
        if optimizer is not ADADP:
            schedule = [torch.optim.lr_scheduler.OneCycleLR(made, 0.5, total_steps=10)]
        gradient, generator = private(model), torch.Generator().manual_seed(1)
        given = {"sampling": PoissonSampling(0.1, 60), "gradient": gradient, "generator": generator}
        if stop:
            with pytest.raises(Stop):
                run(model, made, data, **given, callbacks=[*schedule, stop_after(stop)], checkpoint=path)
        run(model, made, data, **given, callbacks=schedule, checkpoint=path)
        ends.append(model.weight.detach())
    assert torch.equal(*ends)


def test_a_checkpoint_of_a_wider_model_is_named_in_one_line(tmp_path):
    path, data = tmp_path / "c.pt", blobs()
    for width, error in ((4, Stop), (5, RuntimeError)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 3))
        before = model[1].bias.detach().clone()
        with pytest.raises(error) as caught:
            run(model, data=data, callbacks=[stop_after(2)], checkpoint=path)
        assert error is Stop or torch.equal(model[1].bias, before)
    said = str(caught.value)
    assert "c.pt does not fit this run (the model's 0.weight is (4, 3) there and (5, 3) here)" in said
    assert "\n" not in said


def test_damaged_checkpoint_is_named(tmp_path):
    path = tmp_path / "c.pt"
    with pytest.raises(Stop):
        whole(path, 3)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(RuntimeError, match=r"c\.pt"):
        whole(path)
    torch.save({"something": 1}, path)
    with pytest.raises(RuntimeError, match=r"c\.pt"):
        whole(path)


KILLED = """
    import sys, time, torch
    sys.path.insert(0, {tests!r})
    torch.set_num_threads(1)
    import test_training as t
    class Slow:
        def __call__(self, epoch, **_):
            print(epoch, flush=True); time.sleep({pause})
    model = t.nn.Sequential(t.nn.Linear(3, 8), t.nn.Linear(8, 3))
    with torch.no_grad():
        [p.normal_(0, 0.3, generator=torch.Generator().manual_seed(i)) for i, p in enumerate(model.parameters())]
    history = t.run(model, t.ADADP(model.parameters(), lr=0.05), t.blobs(33), sampling=t.PoissonSampling(1 / 3, 33),
                    gradient=t.private(model), callbacks=[Slow()], checkpoint={path!r})
    print([p.tolist() for p in model.parameters()], history.to_json())
"""


def start(path, pause):
    """Train in a process of its own that tells each epoch it finished."""
    code = textwrap.dedent(KILLED.format(tests=str(Path(__file__).parent), path=str(path), pause=pause))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What an uninterrupted process prints."""
    return start(tmp_path_factory.mktemp("plain") / "a.pt", 0).communicate()[0]


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_started_again(tmp_path, sign, plain):
    process = start(tmp_path / "b.pt", 0.2)
    while process.stdout.readline().strip() != "5":
        assert process.poll() is None
    os.kill(process.pid, sign)
    process.communicate()
    assert (tmp_path / "b.pt").exists()
    again, errors = start(tmp_path / "b.pt", 0).communicate()
    assert again.splitlines()[0] in ("5", "6"), errors  # not from the beginning
    assert again.splitlines()[-1] == plain.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_made_with_another_tensor_lr_is_refused(tmp_path):
    def go(lr, *callbacks):
        model = linear()
        return run(
            model, ADADP(model.parameters(), lr=torch.tensor(lr)), callbacks=callbacks, checkpoint=tmp_path / "c"
        )

    with pytest.raises(Stop):
        go(0.1, stop_after(2))
    with pytest.raises(ValueError, match=r"belongs to another run \(other lr\)"):
        go(5.0, stop_after(None))
    assert go(0.1, stop_after(None)).rows


def test_a_model_that_returns_no_tensor_is_named():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), None

    with pytest.raises(ValueError, match=r"model must output one column a class.*got tuple"):
        run(Pair(3, 2))

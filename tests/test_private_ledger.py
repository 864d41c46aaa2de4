"""What a private gradient has released before is counted: in a further training, after an interruption, in words."""

import itertools
import math
import warnings

import pytest
import torch
from test_training import Stop, blobs, linear, private, run, stop_after

from adadp.history import History
from adadp.privacy.accounting import composed_epsilon, epsilon, privacy_statement
from adadp.privacy.ledger import Ledger
from adadp.privacy.sampling import PoissonSampling, ShuffledPartition, padded
from adadp.rounding import round_up
from adadp.sources import secret_generator

KNOWN = {"noise_multiplier": 1.0, "sample_rate": 0.1, "delta": 1e-5}


def batch(gradient, size=5):
    """One gradient outside of ``train``."""
    data = blobs()
    return gradient.backward(data.x_train[:size], data.y_train[:size])


# --- counting ----------------------------------------------------------------------------------------------------


def test_every_release_counts_once():
    data, gradient = blobs(), private(linear(), max_physical_batch_size=2)
    assert gradient.steps == 0
    batch(gradient)
    batch(gradient, 0)
    indices, mask = next(padded([torch.tensor([4, 7])], size=3))
    gradient.backward(data.x_train[indices], data.y_train[indices], mask=mask)
    assert gradient.steps == 3 and type(gradient.steps) is int
    with pytest.raises(ValueError, match="y holds"):
        gradient.backward(data.x_train[:3], data.y_train[:2])
    assert gradient.steps == 3
    with pytest.raises(AttributeError):
        gradient.steps = 0


# --- trainings one after another ---------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["moments", "rdp", "pld"])
def test_a_further_training_includes_the_earlier_one(accountant):
    model = linear()
    gradient = private(model)
    first = run(model, gradient=gradient, accountant=accountant)
    second = run(model, gradient=gradient, accountant=accountant)
    assert first.rows[-1]["epsilon"] == epsilon(**KNOWN, steps=20, accountant=accountant)
    assert [r["epsilon"] for r in second.rows] == [epsilon(**KNOWN, steps=n, accountant=accountant) for n in (30, 40)]
    assert gradient.steps == 40 and "earlier" not in first.privacy
    earlier = {"sampler": "poisson", "sample_rate": 0.1, "noise_multiplier": 1.0, "steps": 20}
    assert second.privacy["earlier"] == [earlier] and History.from_json(second.to_json()) == second


@pytest.mark.filterwarnings("ignore:expected_batch_size")
def test_trainings_at_unlike_rates_are_composed():
    model = linear()
    gradient = private(model)
    run(model, gradient=gradient, sampling=PoissonSampling(0.5, 4))
    history = run(model, gradient=gradient)
    value = history.rows[-1]["epsilon"]
    assert value == composed_epsilon([(1.0, 0.5, 4), (1.0, 0.1, 20)], delta=1e-5)
    assert value > max(epsilon(**KNOWN, steps=24), epsilon(**KNOWN | {"sample_rate": 0.5}, steps=4))
    text = privacy_statement(history)
    assert f"epsilon = {math.ceil(value * 100) / 100:g} " in text
    assert "rate 0.1, 20 gradients" in text and "earlier, included: Poisson sampling, rate 0.5, 4 gradients" in text


def test_an_earlier_shuffled_training_leaves_no_guarantee():
    model = linear()
    gradient = private(model)
    with pytest.warns(UserWarning, match="no guarantee"):
        run(model, gradient=gradient, sampling=ShuffledPartition(10, 1))
    history = run(model, gradient=gradient)
    assert not history.privacy["matches"]
    assert "no guarantee" in privacy_statement(history) and "shuffled" in privacy_statement(history, short=True)


def test_what_was_released_outside_is_named():
    model = linear()
    gradient = private(model)
    for _ in range(3):
        batch(gradient)
    with pytest.warns(UserWarning, match="3 gradients outside of train.*NOT counted") as caught:
        history = run(model, gradient=gradient)
    assert caught[0].filename.endswith("test_training.py"), "where train is called"
    assert len(caught) == 1 and history.privacy["not_counted"] == 3
    assert "NOT counted: 3 gradients" in privacy_statement(history)
    assert "NOT counted: 3 gradients" in privacy_statement(history, short=True)


def test_a_callback_that_releases_is_noticed():
    model = linear()
    gradient = private(model)
    with pytest.warns(UserWarning, match="1 gradients outside of train"):
        history = run(model, gradient=gradient, callbacks=[lambda epoch, **_: epoch == 1 and batch(gradient)])
    assert history.privacy["not_counted"] == 1 and history.rows[-1]["epsilon"] == epsilon(**KNOWN, steps=20)


# --- interruptions -----------------------------------------------------------------------------------------------


def test_an_interrupted_training_was_released_all_the_same():
    model = linear()
    gradient = private(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count, step = itertools.count(1), optimizer.step

    def interrupted():
        if next(count) == 13:
            raise KeyboardInterrupt
        step()

    optimizer.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        run(model, optimizer, gradient=gradient)
    assert gradient.steps == 13
    history = run(model, gradient=gradient)
    assert "not_counted" not in history.privacy
    assert history.rows[-1]["epsilon"] == epsilon(**KNOWN, steps=33)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_resumed_training_counts_once(tmp_path, fresh):
    """Whether the gradient is that of a new process, or the very object that was interrupted."""
    path = tmp_path / "c.pt"

    def gradients():
        model = linear()
        gradient = private(model)
        run(model, gradient=gradient)
        return model, gradient

    def second(model, gradient, **more):
        generator = torch.Generator().manual_seed(8)
        return run(model, gradient=gradient, sampling=PoissonSampling(0.1, 50), generator=generator, **more)

    whole = second(*gradients())
    model, gradient = gradients()
    with pytest.raises(Stop):
        second(model, gradient, callbacks=[stop_after(4)], checkpoint=path)
    assert gradient.steps == 60
    if fresh:
        model = linear()
        gradient = private(model)
    history = second(model, gradient, checkpoint=path)
    assert history == whole and gradient.steps == 70
    assert [r["steps"] for r in gradient.ledger.releases] == [20, 50]
    assert run(model, gradient=gradient).rows[-1]["epsilon"] == epsilon(**KNOWN, steps=90)


def test_what_was_released_outside_is_remembered_by_a_checkpoint(tmp_path):
    """Before the training, and by a callback in it."""
    path, model = tmp_path / "c.pt", linear()
    gradient = private(model)
    batch(gradient)
    calls = [lambda epoch, **_: epoch == 1 and batch(gradient), stop_after(3)]
    with pytest.warns(UserWarning, match="outside of train"), pytest.raises(Stop):
        run(model, gradient=gradient, sampling=PoissonSampling(0.1, 50), callbacks=calls, checkpoint=path)
    model = linear()
    with pytest.warns(UserWarning, match="2 gradients outside of train"):
        history = run(
            model, gradient=private(model), sampling=PoissonSampling(0.1, 50), callbacks=calls[:0], checkpoint=path
        )
    assert history.privacy["not_counted"] == 2 and history.rows[-1]["epsilon"] == epsilon(**KNOWN, steps=50)


def test_a_ledger_takes_over_only_what_it_does_not_hold():
    stored = {"run": "b", "steps": 12, "releases": [{"run": "a", "steps": 10}]}  # two of them outside of train
    for ledger, steps, releases in [
        (Ledger(), 17, [10]),
        (Ledger(12 + 9, [{"run": "a", "steps": 10}, {"run": "b", "steps": 9}]), 17, [10]),
        (Ledger(3, [{"run": "c", "steps": 3}]), 20, [3, 10]),
    ]:
        ledger.take_up(stored, step=5)
        assert ledger.steps == steps and [r["steps"] for r in ledger.releases] == releases


# --- the same noise twice ---------------------------------------------------------------------------------------


def noisy(gradient):
    """Every gradient that is released from now on, flat, in a list that grows."""
    found, backward = [], gradient.backward

    def noted(*args, **kwargs):
        loss = backward(*args, **kwargs)
        found.append(torch.cat([p.grad.flatten().clone() for p in gradient.model.parameters()]))
        return loss

    gradient.backward = noted
    return found


def copied(path, where):
    """A callback that keeps the checkpoint of epoch 1."""

    def callback(epoch, **_):
        if epoch == 2:
            where.write_bytes(path.read_bytes())

    return callback


def test_a_finished_training_that_is_carried_on_from_the_middle_draws_new_noise(tmp_path):
    """The fork of epoch 1 goes another way than the training did: with the same noise their difference has none."""
    path, fork, model = tmp_path / "c.pt", tmp_path / "fork.pt", linear()
    gradient = private(model)
    first = noisy(gradient)
    whole = run(model, gradient=gradient, callbacks=[copied(path, fork)], checkpoint=path)
    with pytest.warns(UserWarning, match="new noise and new batches, and epsilon counts both"):
        history = run(model, gradient=gradient, checkpoint=fork)
    assert len(first) == 30 and gradient.steps == 30
    assert not any(torch.equal(a, b) for a, b in zip(first[10:20], first[20:], strict=True))
    assert history.rows[0] == whole.rows[0] and history.rows[-1]["epsilon"] == epsilon(**KNOWN, steps=30)
    assert [r["steps"] for r in gradient.ledger.releases] == [10, 20]
    assert run(model, gradient=gradient).rows[-1]["epsilon"] == epsilon(**KNOWN, steps=50)


@pytest.mark.parametrize("own", [True, False], ids=["own generator", "torch's generator"])
def test_noise_that_another_training_drew_in_between_is_not_drawn_again(tmp_path, own):
    path, model, other = tmp_path / "c.pt", linear(), linear(1)
    torch.manual_seed(3)
    gradient, second = private(model), private(other)
    second.generator = gradient.generator
    if not own:
        gradient.generator = second.generator = None
    with pytest.raises(Stop):
        run(model, gradient=gradient, sampling=PoissonSampling(0.1, 50), callbacks=[stop_after(3)], checkpoint=path)
    run(other, gradient=second)
    with pytest.warns(UserWarning, match="new noise and new batches"):
        history = run(model, gradient=gradient, sampling=PoissonSampling(0.1, 50), checkpoint=path)
    assert gradient.steps == 60 and history.rows[-1]["epsilon"] == epsilon(**KNOWN, steps=60)


def test_carried_on_with_new_noise_and_interrupted_again_everything_counts(tmp_path):
    """The checkpoint that is left would bring the first noise back."""
    path, fork, model = tmp_path / "c.pt", tmp_path / "fork.pt", linear()
    gradient = private(model)
    run(model, gradient=gradient, callbacks=[copied(path, fork)], checkpoint=path)
    kept = fork.read_bytes()
    with pytest.warns(UserWarning, match="new noise"), pytest.raises(Stop):
        run(model, gradient=gradient, callbacks=[stop_after(2)], checkpoint=fork)
    fork.write_bytes(kept)
    with pytest.warns(UserWarning, match="new noise"):
        history = run(model, gradient=gradient, checkpoint=fork)
    assert gradient.steps == 40 and history.rows[-1]["epsilon"] == epsilon(**KNOWN, steps=40)


def test_trainings_that_differ_in_settings_alone_are_two(tmp_path):
    """From the same weights and seeds, with another lr: both count, and that they share their noise is said."""
    model, generator = linear(), torch.Generator()
    gradient = private(model)
    gradient.generator = generator

    def again(lr, name, **more):
        with torch.no_grad():
            model.weight.copy_(linear().weight)
        generator.manual_seed(5)
        torch.manual_seed(5)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        sampling = PoissonSampling(0.1, 30)
        return run(model, optimizer, gradient=gradient, sampling=sampling, checkpoint=tmp_path / name, **more)

    for lr, name in ((0.1, "a"), (1.0, "b")):
        with warnings.catch_warnings(record=True) as told, pytest.raises(Stop):
            warnings.simplefilter("always")
            again(lr, name, callbacks=[stop_after(2)])
        assert [str(w.message)[:40] for w in told] == ["an earlier training of this gradient drew"[:40]] * (name == "b")
    with pytest.warns(UserWarning, match="drew the same noise"):
        history = again(0.1, "a")
    assert history.privacy["earlier"][0]["steps"] == 20 and gradient.steps == 50


# --- old gradients, and parameters that are not the model's -----------------------------------------------------


def test_no_old_gradient_reaches_the_optimizer():
    """A layer that was frozen after a plain backward pass stays where it is."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 3))
    model(blobs().x_train).square().sum().backward()
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    run(model, gradient=private(model))
    assert torch.equal(model[0].weight, before)


def test_parameters_of_something_else_are_refused():
    model, other = linear(), linear(1)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(ValueError, match="not the model's"):
        run(model, optimizer, gradient=private(model))
    assert run(model, optimizer).rows, "a loss may have parameters of its own where nothing is private"


# --- composition of unlike parts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accountant", "neighbors"), [("moments", "add_remove"), ("rdp", "add_remove"), ("pld", "add_remove"),
                                  ("pld", "replace_one")],
)  # fmt: skip
def test_composition_of_unlike_parts(accountant, neighbors):
    """Parts that differ by next to nothing give the epsilon of equal ones; a part more costs more, in any order."""
    known = {"delta": 1e-5, "accountant": accountant, "neighbors": neighbors}
    equal = epsilon(noise_multiplier=1.0, sample_rate=0.05, steps=300, **known)
    parts = [(1.0, 0.05, 200), (1.0, 0.05 + 1e-9, 100)]
    assert composed_epsilon(parts, **known) == pytest.approx(equal, rel=0.01)
    more = composed_epsilon([*parts, (3.0, 1.0, 2)], **known)
    assert more > 1.05 * equal
    assert composed_epsilon([(3.0, 1.0, 2), *parts], **known) == pytest.approx(more, rel=1e-3)
    top = epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=300, **known)
    assert composed_epsilon([(1.0, 0.1, 200), (1.0, 0.05, 100)], **known) < top
    assert composed_epsilon([], **known) == composed_epsilon([(1.0, 0.0, 5), (1.0, 0.1, 0)], **known) == 0
    assert composed_epsilon([(1.0, 0.1, 5), (0.0, 0.1, 1)], **known) == math.inf


def test_many_releases_at_a_small_delta_stay_above_the_truth():
    """A million at once would leave errors of the Fourier transform in the tails; the truth is from a finer grid,
    composed in extended precision and extrapolated, without the last release."""
    parts = [(2.0, 0.001, 1_000_000), (2.0, 0.00101, 1)]
    assert composed_epsilon(parts, delta=1e-10, accountant="pld") > 3.32304


def test_composition_of_gaussians_without_sampling_is_exact():
    """1/sigma^2 adds up: two of sigma 2 and two of sqrt(2) are one of sqrt(2/3)."""
    value = composed_epsilon([(2.0, 1.0, 2), (math.sqrt(2), 1.0, 2)], delta=1e-5, accountant="pld")
    one = epsilon(noise_multiplier=math.sqrt(2 / 3), sample_rate=1.0, steps=1, delta=1e-5, accountant="pld")
    assert one <= value < 1.01 * one


def test_a_statement_made_in_a_callback_counts_every_gradient_so_far():
    """Where not every epoch is evaluated, the last row is older than the model that a callback may publish."""
    said, model = [], linear()

    def publish(*, epoch, history, **_):
        if history.rows:
            said.append((epoch, privacy_statement(history, short=True).split(",")[0]))

    gradient = private(model, sigma=1.0)
    history = run(model, gradient=gradient, sampling=PoissonSampling(0.1, 100), evaluate_every=4, callbacks=[publish])
    cost = {"noise_multiplier": 1.0, "sample_rate": 0.1, "delta": 1e-5}
    assert [epoch for epoch, _ in said] == list(range(4, 11))
    for epoch, told in said:
        assert told == privacy_statement(**cost, steps=10 * epoch, short=True).split(",")[0]
    assert privacy_statement(History.from_json(history.to_json())) == privacy_statement(history)


def test_a_history_cut_at_an_earlier_row_says_what_that_row_had_cost():
    kept, model = [], linear()
    keep = lambda history, **_: kept.append(History.from_json(history.to_json()))  # noqa: E731
    gradient = private(model, sigma=1.0)
    options = {"sampling": PoissonSampling(0.1, 100), "evaluate_every": 2, "callbacks": [keep]}
    history = run(model, gradient=gradient, **options)
    for rows in (1, 3, 5):
        part = History(history.rows[:rows], history.first_epoch, history.privacy)
        assert f"epsilon = {round_up(part.rows[-1]['epsilon'])} " in privacy_statement(part)
    costs = [epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=10 * k, delta=1e-5) for k in range(2, 11)]
    told = [privacy_statement(one, short=True).split(",")[0] for one in kept[1:]]
    assert told == [f"ε = {round_up(cost)}" for cost in costs]


def test_what_a_callback_kept_of_an_interrupted_training_counts_every_gradient():
    model, kept = linear(), []
    gradient = private(model)

    class Interrupted(type(model)):
        def forward(self, x):
            if gradient.steps == 18 and self.training:
                raise Stop
            return super().forward(x)

    model.__class__ = Interrupted
    with pytest.raises(Stop):
        run(model, gradient=gradient, callbacks=[lambda history, **_: kept.append(history)])
    history = kept[-1]
    assert all(other is history for other in kept)
    assert history.rows[-1]["steps"] == 10 and gradient.steps in (18, 19)
    said = privacy_statement(history)
    assert f"{gradient.steps} gradients" in said
    assert round_up(epsilon(**KNOWN, steps=gradient.steps)) in said


def test_noise_that_comes_again_in_a_later_epoch_is_noticed():
    def again(**_):
        torch.manual_seed(123)

    model = linear()
    gradient = private(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(model, gradient=gradient, callbacks=[again], sampling=PoissonSampling(0.1, 30))  # it has its own generator
    gradient.generator = None
    with pytest.warns(UserWarning, match="draws the noise of an earlier"):
        run(model, gradient=gradient, callbacks=[again], sampling=PoissonSampling(0.1, 30))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(linear(), callbacks=[again], sampling=PoissonSampling(0.1, 30))  # no noise, nothing to come again


def test_a_ledger_goes_through_a_checkpoint_of_ones_own(tmp_path):
    gradient = private(linear())
    for _ in range(3):
        batch(gradient)
    torch.save(gradient.ledger.state_dict(), tmp_path / "ledger.pt")
    later = private(linear())
    later.ledger.load_state_dict(torch.load(tmp_path / "ledger.pt", weights_only=True))
    batch(later)
    assert later.steps == 4
    run(model := linear(), gradient=(tried := private(model)))
    tried.ledger.load_state_dict(later.ledger.state_dict())  # what it counted itself stays counted
    assert tried.steps == 24 and tried.ledger.known == 20


def test_a_gradient_of_ones_own_draws_from_where_nobody_knows():
    model = linear()

    class Own:
        noise_multiplier = 1.0

        def backward(self, x, y):
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=secret_generator())

    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's own generator is set back in every epoch, and is not the source
        history = run(model, gradient=Own(), callbacks=[lambda **_: torch.set_rng_state(state)])
    assert history.rows[-1]["epsilon"] == epsilon(**KNOWN, steps=20) and "steps" not in history.privacy
    assert round_up(history.rows[-1]["epsilon"]) in privacy_statement(history)

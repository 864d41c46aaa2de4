"""Models that a private gradient could get wrong in silence: odd shapes, checkpoints, examples that see each other."""

import copy
import math
import shutil
from collections import UserDict
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from test_private_gradient import Positions, TimeFirst, assert_matches_loop, labels, loop, mlp, private
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import adadp


class Vector(nn.Module):
    """``F.linear`` with a vector, a bias that all outputs share, and a parameter that is one number."""

    def __init__(self):
        super().__init__()
        self.vector, self.shared = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(1))
        self.matrix, self.number = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(()))

    def forward(self, x):
        return F.linear(self.number * torch.tanh(F.linear(x, self.vector)), self.matrix, self.shared)


class Unbatched(nn.Module):
    """A convolution that takes the batch for its channels where the batch has one example."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv1d(1, 2, 3), nn.Linear(8, 3)

    def forward(self, x):
        h = self.conv(x[:, 0]) if len(x) == 1 else self.conv(x)
        return self.last(h.reshape(len(x), -1))


class Checkpointed(nn.Module):
    """A block that runs again in the backward pass; all its sizes are that of the batch on purpose."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        return self.last(checkpoint(self.block, torch.tanh(self.first(x)), use_reentrant=False))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)


class Sorted(Pair):
    """The first layer sees the examples in another order."""

    def forward(self, x):
        order = torch.argsort(x[:, 0])
        return self.last(torch.tanh(self.first(x[order]))[torch.argsort(order)])


class Reversed(Pair):
    def forward(self, x):
        return self.last(torch.tanh(self.first(x.flip(0))).flip(0))


class Context(Pair):
    """A layer that sees the batch as a whole, though a batch of one looks like an example."""

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.mean(0, keepdim=True)) * x[:, :5]))


class Centred(Pair):
    """A batch statistic written by hand. For one example alone it is nothing: the loop's gradient of it, and ours."""

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(h - 0.1 * h.mean(0))


class FrozenInPart(nn.Module):
    """A recurrent layer, some of whose parameters are frozen; it runs by the fallback only."""

    def __init__(self, kind):
        super().__init__()
        self.layer, self.last = kind(6, 5, batch_first=True), nn.Linear(5, 3)
        self.layer.weight_hh_l0.requires_grad_(False)

    def forward(self, x):
        return self.last(self.layer(x)[0][:, -1])


def same_module_twice():
    """One module with two names; it needs the fallback."""
    activation = nn.PReLU()
    return nn.Sequential(nn.Linear(6, 5), activation, nn.Linear(5, 5), activation, nn.Linear(5, 3))


MODELS = {
    "one module, two names": (same_module_twice, (6,)),
    "LSTM frozen in part": (lambda: FrozenInPart(nn.LSTM), (4, 6)),
    "GRU frozen in part": (lambda: FrozenInPart(nn.GRU), (4, 6)),
    "vector, shared bias, number": (Vector, (5, 4)),
    "without a batch dimension": (Unbatched, (1, 6)),
    "checkpoint": (Checkpointed, (6,)),
    "sorted": (Sorted, (6,)),
    "reversed": (Reversed, (6,)),
    "centred": (Centred, (6,)),
    "context": (Context, (6,)),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_loop(name, size):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    assert_matches_loop(make(), torch.randn(size, *shape), labels(size))


class Prototypes(nn.Module):
    """One layer for the examples and for constant rows, of which there are as many as examples."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(6, 5, bias=False)
        self.register_buffer("rows", 1 + 0.1 * torch.randn(12, 6))

    def forward(self, x):
        return F.linear(self.map(x), self.map(self.rows))


@pytest.mark.parametrize("make", [TimeFirst, Positions, Prototypes])
def test_sizes_that_agree_beyond_the_few_examples_tried(make):
    """As many positions as examples, so that only the layout of a single example tells them apart."""
    torch.manual_seed(0)
    model = make()
    if make is Positions:
        model.places = nn.Embedding(12, 6)
    x = torch.randint(0, 7, (12, 12)) if make is Positions else torch.randn(12, 12, 6)
    x = x[0] if make is Prototypes else x
    assert_matches_loop(model, x, labels(12))


@pytest.mark.parametrize("residual", [1e-3, 1e-4])
def test_a_model_that_fits_its_data_is_not_taken_for_one_that_mixes_them(residual):
    """A small squared error magnifies the rounding by which an output alone differs from the one in company."""
    for seed in range(20):
        torch.manual_seed(seed)
        model, x = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)), torch.randn(16, 64)
        y = model(x).detach() + residual * torch.randn(16, 1)
        private(model, loss=lambda output, y: (output - y).square().squeeze(1)).backward(x, y)


def test_a_parameter_without_elements():
    class Empty(Pair):
        def __init__(self):
            super().__init__()
            self.nothing = nn.Parameter(torch.zeros(3, 0))

        def forward(self, x):
            return self.last(torch.tanh(self.first(x))) + self.nothing.sum()

    assert_matches_loop(Empty(), torch.randn(4, 6), labels(4))


def test_the_fallback_leaves_the_model_its_parameters():
    model = same_module_twice()
    before = list(model.parameters())
    private(model).backward(torch.randn(4, 6), labels(4))
    assert all(p is q and type(p) is nn.Parameter for p, q in zip(model.parameters(), before, strict=True))
    copy.deepcopy(model)


def test_a_checkpointed_block_needs_no_fallback():
    grad = private(Checkpointed())
    grad.backward(torch.randn(4, 6), labels(4))
    assert not grad._per_example.without_rule


@pytest.mark.parametrize("make", [Sorted, Centred])
def test_mixing_is_noticed_after_a_batch_of_one(make):
    """The first batch cannot show it, and the second is in order by chance."""
    torch.manual_seed(0)
    grad = private(make())
    for x in (torch.randn(1, 6), torch.ones(2, 6), torch.randn(8, 6)):
        grad.backward(x, labels(len(x)))
    assert grad._per_example.without_rule == {id(p) for p in grad.model.parameters()}


class HomeMade(nn.Module):
    """A batch norm written by hand, below a last layer whose weights begin at zero: at first no gradient shows it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
        nn.init.zeros_(self.last.weight)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.last((h - h.mean(0)) / (h.std(0, unbiased=False) + 1e-3))


def influence(grad, x, y):
    """How far the last record moves what is released, in units of C."""
    released = []
    for n in (len(x), len(x) - 1):
        grad.backward(x[:n], y[:n])
        released.append(torch.cat([p.grad.flatten() for p in grad.model.parameters()]) * grad.expected_batch_size)
    return float((released[0] - released[1]).norm()) / grad.max_grad_norm


def test_mixing_that_no_gradient_shows_is_seen_in_what_a_layer_gets():
    torch.manual_seed(0)
    grad = private(HomeMade(), max_grad_norm=1.0, noise_multiplier=0.0)
    x, y = torch.randn(33, 6), labels(33)
    x[-1] = 50.0
    for _ in range(2):
        assert influence(grad, x, y) <= 1.0 + 1e-3
        assert grad._per_example.without_rule == {id(p) for p in grad.model.parameters()}
        for p in grad.model.parameters():
            p.data.add_(torch.randn_like(p))


class Adapter(nn.Module):
    """Zero weights that see a batch statistic, alone or beside a layer that does not."""

    def __init__(self, beside):
        super().__init__()
        self.plain, self.zero = nn.Linear(6, 3) if beside else None, nn.Linear(6, 3)
        nn.init.zeros_(self.zero.weight)

    def forward(self, x):
        added = self.zero(x - x.mean(0))
        return added if self.plain is None else self.plain(x) + added


@pytest.mark.parametrize("beside", [False, True])
def test_a_batch_statistic_above_weights_of_zero_is_refused(beside):
    """Neither an output nor a gradient shows it at first; later nobody would look again."""
    with pytest.raises(ValueError, match="the input of a layer for an example depends on the others"):
        private(Adapter(beside), noise_multiplier=0.0).backward(torch.randn(5, 6), labels(5))


def test_a_loss_that_weighs_by_its_batch_is_refused_as_soon_as_losses_differ():
    def weighed(output, y):
        losses = nn.functional.cross_entropy(output, y, reduction="none")
        return losses / losses.detach().mean()

    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    x, y = torch.randn(33, 6), labels(33)
    x[-1] = -50.0
    grad = private(model, loss=weighed, max_grad_norm=1.0, noise_multiplier=0.0)
    assert influence(grad, x, y) <= 1.0 + 1e-3
    assert not grad._per_example._mixing, "a trial that could see nothing is not remembered"
    model.weight.data.add_(torch.randn(3, 6))
    with pytest.raises(ValueError, match="the loss for an example depends on the others"):
        grad.backward(x, y)


class Backwards(nn.Module):
    """A recurrent cell over sequences, from the longest one's end to the start: how many calls there are, and which
    time step is the first, follows the batch; no example sees another."""

    def __init__(self):
        super().__init__()
        self.into, self.on, self.out = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x, lengths):
        h = torch.zeros(len(x), 5)
        for t in reversed(range(int(lengths.max()))):
            h = torch.where((t < lengths)[:, None], torch.tanh(self.into(x[:, t]) + self.on(h)), h)
        return self.out(h)


def test_a_loop_that_follows_the_batch_is_no_batch_statistic():
    torch.manual_seed(0)
    grad = private(Backwards(), max_grad_norm=1.0, noise_multiplier=0.0)
    x, y, lengths = torch.randn(9, 7, 6), labels(9), torch.tensor([2, 7, 1, 5, 3, 3, 4, 6, 7])
    grad.backward((x, lengths), y)
    assert not grad._per_example.without_rule
    whole = torch.cat([p.grad.flatten() for p in grad.model.parameters()])
    grad.backward((x[:-1], lengths[:-1]), y[:-1])
    rest = torch.cat([p.grad.flatten() for p in grad.model.parameters()])
    assert float((whole - rest).norm()) * grad.expected_batch_size <= 1.0 + 1e-3


def test_a_last_layer_of_zeros_alone_is_fine():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3))
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    grad = private(model, max_grad_norm=1.0, noise_multiplier=0.0)
    x, y = torch.randn(33, 6), labels(33)
    for _ in range(2):
        assert influence(grad, x, y) <= 1.0 + 1e-3 and not grad._per_example.without_rule
        model[-1].weight.data.add_(torch.randn(3, 5))
    assert set(grad._per_example._mixing.values()) == {False}


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a compiler")
def test_a_compiled_model_gives_the_same_gradients():
    """By the default backend: only that one gives memory away in the backward pass, which a trial makes twice."""
    torch.manual_seed(0)
    model = mlp()
    x, y = torch.randn(9, 6), labels(9)
    sums = []
    for used in (model, torch.compile(model)):
        private(used, noise_multiplier=0.0).backward(x, y)
        sums.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(*sums, strict=True))


def test_a_mode_of_a_module_inside_is_looked_at():
    """Dropout that begins to draw later: rules and fallback must not see different masks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.PReLU(), nn.Dropout(0.5), nn.Linear(5, 3))
    model[2].eval()
    grad = private(model)
    for _ in range(2):
        grad.backward(torch.randn(4, 6), labels(4))
        assert grad._per_example.without_rule == {id(model[1].weight)}
    model[2].train()
    grad.backward(torch.randn(4, 6), labels(4))
    assert grad._per_example.without_rule == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("change", ["copied", "layer replaced"])
def test_new_parameters_get_their_rules(change):
    grad = private(mlp())
    grad.backward(torch.randn(4, 6), labels(4))
    if change == "copied":
        grad = copy.deepcopy(grad)
    else:
        grad.model[4] = nn.Linear(5, 3)
    x = torch.randn(4, 6)
    grad.backward(x, labels(4))
    assert not grad._per_example.without_rule
    for p, g in zip(grad.model.parameters(), loop(grad.model, x, labels(4), 0.5, 5), strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-5, atol=1e-7)


def test_a_penalty_inside_the_loss_is_refused():
    """The fallback would leave it out."""
    model = mlp()
    weight = model[0].weight

    def loss(output, y):
        return F.cross_entropy(output, y, reduction="none") + weight.square().sum()

    with pytest.raises(ValueError, match=r"loss must depend on the output and y alone.*penalty"):
        private(model, loss=loss).backward(torch.randn(4, 6), labels(4))


def test_cached_parametrizations_are_refused():
    """Under the cache all examples would share one computed weight, and their gradients would mix."""
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3))
    gradient = private(model)
    with nn.utils.parametrize.cached(), pytest.raises(RuntimeError, match=r"parametrize\.cached"):
        gradient.backward(torch.randn(4, 6), torch.zeros(4, dtype=torch.long))
    gradient.backward(torch.randn(4, 6), torch.zeros(4, dtype=torch.long))


def test_inference_mode_is_refused():
    """Else a model of one layer would get pure noise without a word."""
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        private(nn.Linear(6, 3)).backward(torch.randn(4, 6), labels(4))


def test_no_grad_is_no_obstacle():
    model, x = mlp(), torch.randn(4, 6)
    with torch.no_grad():
        private(model).backward(x, labels(4))
    for p, g in zip(model.parameters(), loop(model, x, labels(4), 0.5, 5), strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-5, atol=1e-7)


def test_a_named_tuple_is_cut_up_like_a_tuple():
    class Inputs(NamedTuple):
        x: Tensor
        scale: Tensor

    class Scaled(Pair):
        def forward(self, x, scale):
            return self.last(torch.tanh(self.first(x * scale)))

    torch.manual_seed(0)
    model, x = Scaled(), Inputs(torch.randn(5, 6), torch.randn(5, 6))
    ends = []
    for physical in (None, 2):
        private(model, max_physical_batch_size=physical).backward(x, labels(5))
        ends.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_in_half_precision_do_not_round_the_norms(dtype):
    """Norms rounded to 8 bits would let gradients pass that are longer than C."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))

    def loss(output, y):
        return (3 * output[:, 0]).to(dtype)

    for _ in range(20):
        grad = private(model, max_grad_norm=1.0, expected_batch_size=1, loss=loss)
        grad.backward(torch.randn(1, 6), torch.zeros(1))
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        assert norm == pytest.approx(1, abs=1e-5)


# --- batch statistics and buffers --------------------------------------------------------------------------------


class Before(nn.Module):
    """A function of the inputs before the first trainable layer."""

    def __init__(self, function):
        super().__init__()
        self.function, self.layer = function, nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(self.function(x))


STATISTICS = {
    "centred": lambda x: x - x.mean(0),
    "standardised": lambda x: (x - x.mean(0)) / (x.std(0, correction=0) + 1e-3),
    "scaled by the largest": lambda x: x / x.abs().max(),
    "a weak one": lambda x: x + 0.01 * x.sum(0),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_batch_statistics_of_the_inputs_are_refused(name):
    """The gradients at the layers do not show them."""
    torch.manual_seed(0)
    grad = private(Before(STATISTICS[name]), noise_multiplier=1.0)
    with pytest.raises(ValueError, match="the output for an example depends on the others"):
        grad.backward(torch.randn(20, 6) + 1, labels(20))
    assert grad.steps == 0 and all(p.grad is None for p in grad.model.parameters())


@pytest.mark.parametrize("seed", range(5))
def test_an_output_that_is_nearly_zero_is_not_taken_for_a_statistic(seed):
    """All of it is rounding, which is another in company."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(50, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    x, y = torch.randn(32, 50), torch.randn(32)
    with torch.no_grad():
        model[-1].bias -= model(x)[0]
    private(model, noise_multiplier=1.0, loss=lambda output, y: (output.squeeze(1) - y).square()).backward(x, y)


def test_batch_statistics_are_refused_after_a_batch_of_one():
    torch.manual_seed(0)
    grad = private(Before(STATISTICS["centred"]))
    grad.backward(torch.randn(1, 6), labels(1))
    with pytest.raises(ValueError, match="depends on the others"):
        grad.backward(torch.randn(2, 6), labels(2))


def test_a_loss_that_weighs_by_its_batch_is_refused():
    """The weights carry no gradient, so that rows scale as they should."""

    def loss(output, y):
        losses = F.cross_entropy(output, y, reduction="none")
        return losses / losses.detach().sum()

    with pytest.raises(ValueError, match="the loss for an example depends on the others"):
        private(mlp(), loss=loss).backward(torch.randn(4, 6), labels(4))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rounding_is_no_batch_statistic(scale):
    """A product of many rows adds in another order than that of one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(500, 400), nn.ReLU(), nn.Linear(400, 3), nn.LayerNorm(3))
    private(model).backward(scale * torch.randn(8, 500), labels(8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        private(model).backward(scale * torch.randn(8, 500), labels(8))


class Running(nn.Module):
    """Keeps a statistic of what it sees, in place or by another tensor in its stead."""

    def __init__(self, in_place, trainable=True):
        super().__init__()
        self.in_place, self.layer = in_place, nn.Linear(6, 3).requires_grad_(trainable)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        new = 0.9 * self.seen + 0.1 * x.detach().mean(0)
        if self.in_place:
            self.seen.copy_(new)
        else:
            self.seen = new
        return self.layer(x)


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_follows_the_data_is_refused_and_left_alone(in_place, trainable):
    model = nn.Sequential(Running(in_place, trainable), nn.Linear(3, 3))
    buffer = model[0].seen
    with pytest.raises(ValueError, match=r"changes '0\.seen'"):
        private(model).backward(torch.randn(4, 6), labels(4))
    assert model[0].seen is buffer and not buffer.any()


def test_spectral_norms_are_taken():
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3))
    u = model[0].weight_u.clone()
    private(model).backward(torch.randn(4, 6), labels(4))
    assert not torch.equal(model[0].weight_u, u)


def test_constant_buffers_are_taken():
    model = mlp()
    model.register_buffer("mean", torch.ones(6))
    model.append(nn.BatchNorm1d(3).eval())
    assert_matches_loop(model, torch.randn(4, 6), labels(4))


class Centred(nn.Module):
    """Subtracts the batch's mean from the inputs."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(x - x.mean(0))


def test_a_batch_of_padding_hides_no_batch_statistic():
    """The rows of an empty batch are all the same one: its mean is each of them."""
    grad = private(Centred())
    x, y = torch.randn(1, 6).expand(4, 6), labels(4)
    grad.backward(x, y, mask=torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="depends on the others in its batch"):
        grad.backward(torch.randn(4, 6), labels(4))


def test_padding_does_not_stand_in_for_the_examples_that_are_tried():
    """Only the last two rows are examples: the trial takes them first."""
    x = torch.cat([torch.randn(1, 6).expand(10, 6), torch.randn(2, 6)])
    with pytest.raises(ValueError, match="depends on the others in its batch"):
        private(Centred()).backward(x, labels(12), mask=torch.arange(12) >= 10)


class Codebook(nn.Module):
    """Keeps a moving average of its inputs in a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.mean, self.last = nn.Parameter(torch.zeros(6), requires_grad=False), nn.Linear(6, 3)

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.last(x)


def test_a_frozen_parameter_that_follows_the_data_is_refused():
    with pytest.raises(ValueError, match="changes 'mean', which would hold statistics of the data"):
        private(Codebook()).backward(torch.randn(4, 6), labels(4))


class Force(nn.Module):
    """Its output is the gradient of an energy with respect to the input."""

    def __init__(self, inside):
        super().__init__()
        self.first, self.last, self.inside = nn.Linear(6, 5), nn.Linear(5, 1), inside

    def energy(self, x):
        return self.last(torch.tanh(self.first(x))).sum()

    def forward(self, x):
        if self.inside == "func":
            return torch.func.vmap(torch.func.grad(self.energy))(x)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.energy(x), x, create_graph=True)[0]


def test_a_forward_pass_that_differentiates():
    """With torch.func it is the plain gradient; what autograd.grad does with the parameters cannot be followed."""
    torch.manual_seed(0)
    model, x, y = Force("func"), torch.randn(4, 6), labels(4)
    private(model, max_grad_norm=math.inf, expected_batch_size=4).backward(x, y)
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for p, g in zip(model.parameters(), found, strict=True):
        assert torch.allclose(torch.zeros_like(g) if p.grad is None else p.grad, g, atol=1e-6)
    with pytest.raises(ValueError, match=r"torch\.autograd\.grad.*use torch\.func\.grad"):
        private(Force("autograd")).backward(x, y)


def test_a_copy_draws_noise_of_its_own():
    model = nn.Linear(6, 3)
    settings = dict(max_grad_norm=1.0, noise_multiplier=1.0, expected_batch_size=4)
    for generator in (torch.Generator().manual_seed(0), None):
        one = adadp.PrivateGradient(model, **settings, generator=generator)
        two, found = copy.deepcopy(one), []
        for grad in (one, two):
            grad.backward(torch.zeros(0, 6), labels(0))
            found.append(grad.model.weight.grad.clone())
        assert not torch.equal(*found) and one.steps == two.steps == 1


def contrastive(output, y):
    """Every example against all others of its batch."""
    z = F.normalize(output)
    return F.cross_entropy(z @ z.T / 0.1, torch.arange(len(z)), reduction="none")


def weighed(output, y):
    """A weight that the batch decides."""
    losses = adadp.cross_entropy(output, y)
    return losses * torch.softmax(losses, 0)


@pytest.mark.parametrize("loss", [contrastive, weighed])
@pytest.mark.parametrize("model", [mlp, lambda: nn.Linear(6, 3), lambda: Noisy()])
def test_a_loss_that_compares_examples_is_refused(loss, model):
    gradient = private(model(), noise_multiplier=0.0, loss=loss)
    with pytest.raises(ValueError, match=r"^loss: .*depends on the outputs of others"):
        gradient.backward(torch.randn(8, 6), labels(8))


class Noisy(nn.Module):
    """Bare parameters and random numbers: no layer shows its gradient."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(6, 3))

    def forward(self, x):
        return F.dropout(x, 0.1) @ self.matrix


class Sequences(nn.Module):
    """Time first in the output, as the loss of speech recognition wants it."""

    def __init__(self):
        super().__init__()
        self.cell, self.last = nn.LSTM(6, 5), nn.Linear(5, 4)

    def forward(self, x):
        return torch.log_softmax(self.last(self.cell(x.transpose(0, 1))[0]), -1)


def spoken(output, y):
    """Connectionist temporal classification of two labels a sequence."""
    lengths = torch.full((output.shape[1],), len(output))
    return F.ctc_loss(output, y, lengths, torch.full_like(lengths, 2), reduction="none")


@pytest.mark.parametrize("size", [8, 12])
def test_time_may_come_first_in_as_many_steps_as_there_are_examples(size):
    torch.manual_seed(0)
    gradient = private(Sequences(), noise_multiplier=0.0, loss=spoken)
    gradient.backward(torch.randn(size, 8, 6), 1 + labels(2 * size).view(size, 2))
    assert all(bool(p.grad.any()) for p in gradient.model.parameters())


class Answer:
    """What torch cannot look into."""

    def __init__(self, logits):
        self.logits = logits


class Answers(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return Answer(self.inner(x))


class Shy(Answers):
    """The same, with a batch statistic inside."""

    def forward(self, x):
        return Answer(self.inner(x - x.mean(0)))


def of_answer(output, y):
    return adadp.cross_entropy(output.logits, y)


def test_a_model_may_return_an_object_of_its_own():
    torch.manual_seed(0)
    model, x, y = Answers(), torch.randn(4, 6), labels(4)
    private(model, noise_multiplier=0.0, loss=of_answer).backward(x, y)
    found = [p.grad.clone() for p in model.parameters()]
    private(model.inner, noise_multiplier=0.0).backward(x, y)
    assert all(map(torch.equal, found, (p.grad for p in model.parameters())))
    with pytest.raises(ValueError, match="depends on the others in its batch"):
        private(Shy(), noise_multiplier=0.0, loss=of_answer).backward(x, y)


def test_any_mapping_is_an_input():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, *, values):
            return self.inner(values)

    torch.manual_seed(0)
    model, x, y = Named(), torch.randn(5, 6), labels(5)
    gradient = private(model, noise_multiplier=0.0, max_physical_batch_size=2)
    grads = []
    for batch in ({"values": x}, UserDict(values=x)):
        gradient.backward(batch, y)
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(map(torch.equal, *grads))


@pytest.fixture
def one_process():
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_a_model_that_averages_over_processes_is_refused(one_process):
    model = nn.parallel.DistributedDataParallel(mlp())
    with pytest.raises(ValueError, match=r"DistributedDataParallel .*model\.module"):
        private(model)
    private(model.module).backward(torch.randn(4, 6), labels(4))


def test_parameters_that_processes_share_are_refused(one_process):
    from torch.distributed.tensor import distribute_tensor

    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    sharded = nn.Parameter(distribute_tensor(torch.ones(4), mesh))
    with pytest.raises(ValueError, match="sharded over processes"):
        adadp.ADADP([sharded])
    model = nn.Linear(4, 1, bias=False)
    model.weight = sharded
    with pytest.raises(ValueError, match="sharded over processes"):
        private(model).backward(torch.ones(2, 4), labels(2, 1))

"""PrivateGradient against a loop over single examples, and every promise of its docstring."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from adadp.privacy.gradient import PrivateGradient, cross_entropy


def loop(model, x, y, c, expected, loss=cross_entropy, params=None):
    """The oracle: one backward pass an example, clipped and summed by hand."""
    params = params or [p for p in model.parameters() if p.requires_grad]
    sums = [torch.zeros_like(p) for p in params]
    for i in range(len(y)):
        value = loss(model(x[i : i + 1]), y[i : i + 1]).sum()
        grads = torch.autograd.grad(value, params, allow_unused=True)
        grads = [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in grads))
        factor = min(1.0, c / float(norm)) if norm > 0 else 1.0
        for total, g in zip(sums, grads, strict=True):
            total += factor * g / expected
    return sums


def private(model, **changes):
    settings = {"max_grad_norm": 0.5, "noise_multiplier": 0.0, "expected_batch_size": 5} | changes
    return PrivateGradient(model, **settings)


def assert_matches_loop(model, x, y, **changes):
    """For a C that clips everything, one that clips some, and one that clips nothing."""
    tolerance = 1e-10 if next(model.parameters()).dtype == torch.float64 else 1e-5
    for c in (1e-3, 0.5, 1e9):
        grad = private(model, **changes | {"max_grad_norm": c})
        expected = loop(model, x, y, c, grad.expected_batch_size, grad.loss)
        grad.backward(x, y)
        found = [p.grad for p in model.parameters() if p.requires_grad]
        for a, b in zip(found, expected, strict=True):
            assert (a - b).norm() <= tolerance * max(b.norm(), min(c, 1.0) * 1e-2)
    return grad


class Bare(nn.Module):
    """A bare parameter between two layers, and a layer that is never called."""

    def __init__(self):
        super().__init__()
        self.first, self.scale = nn.Linear(6, 5), nn.Parameter(torch.randn(5))
        self.last, self.unused = nn.Linear(5, 3), nn.Linear(2, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x) * self.scale))


class Twice(nn.Module):
    """One layer called twice in a forward pass, sequences as input, in-place activations."""

    def __init__(self, layer=nn.Linear):
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        h = torch.relu_(self.twice(torch.relu_(self.first(x))))
        return self.last(torch.relu_(self.twice(h)).mean(1))


class TiedEmbedding(nn.Module):
    """Embedding and output layer share one parameter."""

    def __init__(self, functional=False):
        super().__init__()
        self.embedding, self.functional = nn.Embedding(7, 5), functional
        if not functional:
            self.out = nn.Linear(5, 7, bias=False)
            self.out.weight = self.embedding.weight

    def forward(self, x):
        h = torch.tanh(self.embedding(x)).mean(1)
        return F.linear(h, self.embedding.weight) if self.functional else self.out(h)


class TimeFirst(nn.Module):
    """The batch is not the first dimension inside; with as many steps as examples nothing but the values tells."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.transpose(0, 1))).mean(0))


class Folded(TimeFirst):
    """Time is folded into the batch dimension, time first."""

    def forward(self, x):
        h = torch.relu(self.first(x.transpose(0, 1).reshape(-1, 6)))
        return self.last(h.view(x.shape[1], x.shape[0], 5).mean(0))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.last = kind(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.cell(x)[0][:, -1])


class PartlyWithoutGradient(Bare):
    """The first layer is trainable, but runs under no_grad: its gradient is zero."""

    def forward(self, x):
        with torch.no_grad():
            h = self.first(x)
        return self.last(torch.relu(h * self.scale))


class Attention(nn.Module):
    def __init__(self, batch_first=True):
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(6, 2, batch_first=batch_first), nn.Linear(6, 3)

    def forward(self, x):
        x = x if self.attention.batch_first else x.transpose(0, 1)
        return self.last(self.attention(x, x, x)[0].mean(1 if self.attention.batch_first else 0))


class Positions(nn.Module):
    """An embedding whose input has no batch dimension; its two sizes agree with the batch on purpose."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.last = nn.Embedding(7, 6), nn.Embedding(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.words(x) + self.places(torch.arange(x.shape[1]))).mean(1))


class Patches(nn.Module):
    """A small vision transformer: bare parameters beside layers."""

    def __init__(self):
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        h = self.patches(x).flatten(2).mT
        return self.last(self.block(torch.cat([self.first.expand(len(x), -1, -1), h], 1))[:, 0])


def mlp(dtype=torch.float32):
    layers = [nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 5, bias=False), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(5, 3)).to(dtype)


def labels(n, classes=3):
    return torch.arange(n) % classes


MODELS = {
    "mlp": (mlp, lambda n: torch.randn(n, 6)),
    "mlp float64": (lambda: mlp(torch.float64), lambda n: torch.randn(n, 6, dtype=torch.float64)),
    "bare parameter, unused layer": (Bare, lambda n: torch.randn(n, 6)),
    "layer called twice": (Twice, lambda n: torch.randn(n, 7, 6)),
    "long sequences": (Twice, lambda n: torch.randn(n, 40, 6)),
    "tied embedding": (TiedEmbedding, lambda n: torch.randint(0, 7, (n, 4))),
    "functionally tied embedding": (lambda: TiedEmbedding(True), lambda n: torch.randint(0, 7, (n, 4))),
    "time first": (TimeFirst, lambda n: torch.randn(n, 4, 6)),
    "time folded": (Folded, lambda n: torch.randn(n, 4, 6)),
    "transposed convolution": (
        lambda: nn.Sequential(nn.ConvTranspose1d(2, 3, 3), nn.Flatten(), nn.Linear(24, 3)),
        lambda n: torch.randn(n, 2, 6),
    ),
    "a part under no_grad": (PartlyWithoutGradient, lambda n: torch.randn(n, 6)),
    "attention": (Attention, lambda n: torch.randn(n, 4, 6)),
    "attention, time first": (lambda: Attention(False), lambda n: torch.randn(n, 4, 6)),
    "position embedding": (Positions, lambda n: torch.randint(0, 7, (n, 4))),
    "vision transformer": (Patches, lambda n: torch.randn(n, 3, 8, 8)),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3)),
        lambda n: torch.randn(n, 6),
    ),
    "instance norm": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.Flatten(), nn.Linear(16, 3)),
        lambda n: torch.randn(n, 2, 6),
    ),
    "embedding bag": (
        lambda: nn.Sequential(nn.EmbeddingBag(7, 6), nn.Linear(6, 3)),
        lambda n: torch.randint(0, 7, (n, 4)),
    ),
    "GRU": (lambda: Recurrent(nn.GRU), lambda n: torch.randn(n, 4, 6)),
    "RNN": (lambda: Recurrent(nn.RNN), lambda n: torch.randn(n, 4, 6)),
    "LSTM": (lambda: Recurrent(nn.LSTM), lambda n: torch.randn(n, 4, 6)),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_loop(name):
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    assert_matches_loop(make(), inputs(4), labels(4))


def test_same_weights_after_training_whatever_the_way():
    """Rules, fallback and any physical batch size: the same weights after some steps."""
    ends = []
    for physical, ruled in ((None, True), (1, True), (3, True), (None, False)):
        torch.manual_seed(0)
        model, x, y = Bare(), torch.randn(10, 6), labels(10)
        grad = private(model, max_physical_batch_size=physical)
        if not ruled:
            grad._per_example.without_rule = {id(p) for p in model.parameters()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for k in range(6):
            grad.backward(x[k : k + 5], y[k : k + 5])
            optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    for other in ends[1:]:
        torch.testing.assert_close(other, ends[0], rtol=1e-4, atol=1e-6)


def test_only_what_needs_it_goes_to_the_fallback():
    model = Bare()
    grad = assert_matches_loop(model, torch.randn(4, 6), labels(4))
    assert grad._per_example.without_rule == {id(model.scale)}
    assert private(mlp()).backward(torch.randn(4, 6), labels(4)) > 0


@pytest.mark.parametrize("physical", [1, 2, 3, 7, 100])
def test_any_physical_batch_size_gives_the_same(physical):
    torch.manual_seed(0)
    model, x, y = Bare(), torch.randn(7, 6), labels(7)
    results = []
    for size in (None, physical):
        generator = torch.Generator().manual_seed(1)
        grad = private(model, noise_multiplier=1.0, max_physical_batch_size=size, generator=generator)
        loss = grad.backward(x, y)
        results.append([loss, *(p.grad.clone() for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_clipping_and_no_noise_is_plain_training(dtype):
    torch.manual_seed(0)
    model, x, y = mlp(dtype), torch.randn(20, 6, dtype=dtype), labels(20)
    loss = private(model, max_grad_norm=math.inf, expected_batch_size=20).backward(x, y)
    expected_loss = F.cross_entropy(model(x), y)
    expected = torch.autograd.grad(expected_loss, list(model.parameters()))
    torch.testing.assert_close(loss, expected_loss.detach())
    for p, g in zip(model.parameters(), expected, strict=True):
        assert (p.grad - g).norm() <= 1e-6 * g.norm()


def test_no_noise_draws_nothing():
    generator, model = torch.Generator().manual_seed(0), Bare()
    before, before_global = generator.get_state(), torch.get_rng_state()
    private(model, generator=generator).backward(torch.ones(4, 6), labels(4))
    private(model).backward(torch.ones(4, 6), labels(4))
    assert torch.equal(before, generator.get_state())
    assert torch.equal(before_global, torch.get_rng_state())


@pytest.mark.parametrize("physical", [None, 4])
def test_an_empty_batch_is_pure_noise(physical):
    model = Bare()
    generator = torch.Generator().manual_seed(0)
    grad = private(model, noise_multiplier=2.0, max_physical_batch_size=physical, generator=generator)
    loss = grad.backward(torch.zeros(0, 6), labels(0))
    assert loss == 0 and loss.dim() == 0
    values = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert (values != 0).all()
    assert 0.7 < values.std() / (2.0 * 0.5 / 5) < 1.3


def test_the_divisor_is_the_declared_one():
    torch.manual_seed(0)
    model, x, y = mlp(), torch.randn(14, 6), labels(14)
    assert_matches_loop(model, x, y, expected_batch_size=16)
    assert_matches_loop(model, x, y, expected_batch_size=16.5)


SOFT = pytest.param(lambda norms: 0.1 / (norms + 1), id="callable")  # a lambda's own name changes with every process


@pytest.mark.parametrize("clipping", ["flat", "automatic", SOFT])
@pytest.mark.parametrize("expected", [1, 7, 200])
@pytest.mark.parametrize("physical", [None, 1, 3])
def test_noise_scale(clipping, expected, physical):
    torch.manual_seed(0)
    c, sigma = 0.7, 1.3
    model = nn.Sequential(nn.Linear(120, 100), nn.Linear(100, 3))
    x, y = torch.randn(4, 120), labels(4)
    settings = {"max_grad_norm": c, "expected_batch_size": expected, "clipping": clipping}
    private(model, **settings).backward(x, y)
    clean = [p.grad.clone() for p in model.parameters()]
    assert torch.sqrt(sum((g**2).sum() for g in clean)) <= 4 * c / expected * (1 + 1e-5)
    generator = torch.Generator().manual_seed(5)
    noisy = private(model, noise_multiplier=sigma, max_physical_batch_size=physical, generator=generator, **settings)
    noisy.backward(x, y)
    noise = torch.cat([(p.grad - g).flatten() for p, g in zip(model.parameters(), clean, strict=True)])
    assert abs(noise.std() / (sigma * c / expected) - 1) < 0.02
    assert abs(noise.mean()) < 4 * sigma * c / expected / math.sqrt(len(noise))


@pytest.mark.parametrize("name", ["mlp", "bare parameter, unused layer", "tied embedding"])
def test_a_tiny_c_bounds_the_sum(name):
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    for clipping in ("flat", "automatic", torch.ones_like):
        model = make()
        private(model, max_grad_norm=1e-3, clipping=clipping, expected_batch_size=1).backward(inputs(6), labels(6))
        assert torch.sqrt(sum((p.grad**2).sum() for p in model.parameters())) <= 6e-3 * (1 + 1e-5)


def test_the_norm_is_joint_over_all_parameters():
    """Two weights with gradients of norm C each: the clipped whole has norm C."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for p in model.parameters():
        nn.init.ones_(p)
    grad = private(model, max_grad_norm=2.0, expected_batch_size=1, loss=lambda out, y: out[:, 0])
    grad.backward(torch.tensor([[2.0]]), torch.zeros(1))
    assert torch.stack([p.grad.flatten() for p in model.parameters()]).norm() == pytest.approx(2.0)


@pytest.mark.parametrize("make", [mlp, Bare])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_example_contributes_nothing(make, bad):
    torch.manual_seed(0)
    model, x, y = make(), torch.randn(5, 6), labels(5)
    broken = x.clone()
    broken[2, 0] = bad
    for c in (0.5, math.inf):
        private(model, max_grad_norm=c).backward(broken, y)
        others = torch.tensor([0, 1, 3, 4])
        expected = loop(model, x[others], y[others], c, 5)
        for p, g in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(p.grad, g, rtol=1e-5, atol=1e-6)


def test_an_all_zero_gradient_divides_by_nothing():
    model = mlp()
    for clipping in ("flat", "automatic", torch.ones_like):
        grad = private(model, clipping=clipping, loss=lambda out, y: out.sum(1) * 0)
        grad.backward(torch.randn(4, 6), labels(4))
        assert all((p.grad == 0).all() for p in model.parameters())


def test_frozen_weight_and_trainable_bias_over_two_batch_sizes():
    torch.manual_seed(0)
    model = mlp()
    model[0].weight.requires_grad_(False)
    grad = private(model)
    for n in (4, 3):
        grad.backward(torch.randn(n, 6), labels(n))
        x, y = torch.randn(n, 6), labels(n)
        grad.backward(x, y)
        params = [p for p in model.parameters() if p.requires_grad]
        for p, g in zip(params, loop(model, x, y, 0.5, 5), strict=True):
            torch.testing.assert_close(p.grad, g, rtol=1e-5, atol=1e-7)
    assert model[0].weight.grad is None
    model[0].weight.requires_grad_(True)
    assert_matches_loop(model, torch.randn(4, 6), labels(4))


def test_an_old_gradient_of_a_frozen_parameter_is_dropped():
    """Else an optimizer over all parameters would apply it, without noise."""
    model = mlp()
    cross_entropy(model(torch.randn(4, 6)), labels(4)).sum().backward()
    model[0].requires_grad_(False)
    private(model, noise_multiplier=1.0).backward(torch.randn(4, 6), labels(4))
    assert all((p.grad is None) != p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("name", ["max_grad_norm", "noise_multiplier", "expected_batch_size", "clipping"])
def test_what_is_accounted_for_cannot_be_changed(name):
    grad = private(mlp())
    before = getattr(grad, name)
    with pytest.raises(AttributeError, match=f"{name}.*make a new PrivateGradient with {name}=0.25"):
        setattr(grad, name, 0.25)
    assert getattr(grad, name) == before


def test_everything_frozen_works():
    model = mlp().requires_grad_(False)
    assert private(model, noise_multiplier=1.0).backward(torch.randn(4, 6), labels(4)) > 0
    assert all(p.grad is None for p in model.parameters())


def test_a_second_backward_overwrites():
    torch.manual_seed(0)
    model, x, y = mlp(), torch.randn(4, 6), labels(4)
    grad = private(model)
    grad.backward(x, y)
    once = [p.grad.clone() for p in model.parameters()]
    grad.backward(x, y)
    for p, g in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, g)


def test_a_gradient_that_was_kept_does_not_change():
    model = mlp()
    grad = private(model)
    grad.backward(torch.randn(4, 6), labels(4))
    kept, copies = [p.grad for p in model.parameters()], [p.grad.clone() for p in model.parameters()]
    grad.backward(torch.randn(4, 6), labels(4))
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))
    assert not any(torch.equal(a, p.grad) for a, p in zip(kept, model.parameters(), strict=True))


def test_a_failed_backward_leaves_no_gradient_behind():
    model = mlp()
    grad = private(model, noise_multiplier=1.0)
    grad.backward(torch.randn(4, 6), labels(4))
    with pytest.raises(RuntimeError):
        grad.backward(torch.randn(4, 5), labels(4))
    assert all(p.grad is None for p in model.parameters())


def test_forward_and_zero_grad_before_backward_change_nothing():
    torch.manual_seed(0)
    model, x, y = mlp(), torch.randn(4, 6), labels(4)
    expected = loop(model, x, y, 0.5, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x)
    optimizer.zero_grad()
    private(model).backward(x, y)
    for p, g in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g)
    optimizer.step()


def test_the_model_is_left_as_it_was():
    model = Bare()
    before = set(model.state_dict())
    attributes = [set(vars(m)) for m in model.modules()]
    grad = private(model, noise_multiplier=1.0)
    grad.backward(torch.randn(4, 6), labels(4))
    assert set(model.state_dict()) == before
    assert [set(vars(m)) for m in model.modules()] == attributes
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    assert all(set(vars(p)) == set() for p in model.parameters())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        private(other).backward(torch.randn(4, 6), labels(4))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_labels_of_any_integer_type(dtype):
    assert_matches_loop(mlp(), torch.randn(4, 6), labels(4).to(dtype))


@pytest.mark.parametrize("pack", [lambda x: (x,), lambda x: [x], lambda x: {"input": x}], ids=["tuple", "list", "dict"])
def test_inputs_in_containers(pack):
    torch.manual_seed(0)
    model, x, y = mlp(), torch.randn(4, 6), labels(4)
    private(model, max_physical_batch_size=3).backward(pack(x), y)
    for p, g in zip(model.parameters(), loop(model, x, y, 0.5, 5), strict=True):
        torch.testing.assert_close(p.grad, g)


LOSSES = {
    "ignore_index": lambda out, y: F.cross_entropy(out, y, ignore_index=1, reduction="none"),
    "label smoothing": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1, reduction="none"),
    "class weights": lambda out, y: F.cross_entropy(out, y, weight=torch.tensor([1.0, 2.0, 0.5]), reduction="none"),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("make", [mlp, Bare])
def test_losses_mean_the_same_as_in_the_loop(name, make):
    torch.manual_seed(0)
    assert_matches_loop(make(), torch.randn(5, 6), labels(5), loss=LOSSES[name])


def test_a_loss_that_is_a_mean_is_refused():
    with pytest.raises(ValueError, match=r"loss must return one value an example.*reduction"):
        private(mlp(), loss=F.cross_entropy).backward(torch.randn(4, 6), labels(4))


def test_the_mask_marks_padding_as_absent():
    torch.manual_seed(0)
    model, x, y = mlp(), torch.randn(6, 6), labels(6)
    x[4:] = math.nan
    mask = torch.arange(6) < 4
    for physical in (None, 5):
        loss = private(model, max_physical_batch_size=physical).backward(x, y, mask=mask)
        torch.testing.assert_close(loss, cross_entropy(model(x[:4]), y[:4]).mean().detach())
        for p, g in zip(model.parameters(), loop(model, x[:4], y[:4], 0.5, 5), strict=True):
            torch.testing.assert_close(p.grad, g, rtol=1e-5, atol=1e-7)
    loss = private(model).backward(x, y, mask=torch.zeros(6, dtype=torch.bool))
    assert loss == 0 and all((p.grad == 0).all() for p in model.parameters())


def test_dropout_uses_one_mask_for_rules_and_fallback():
    """With p close to 1 the two ways would disagree about which examples have a gradient at all."""
    torch.manual_seed(0)
    model = Bare()
    model.last = nn.Sequential(nn.Dropout(0.5), model.last)
    grad = private(model)
    grad.backward(torch.randn(4, 6), labels(4))
    used = {id(p) for name, p in model.named_parameters() if not name.startswith("unused")}
    assert used <= grad._per_example.without_rule
    model.eval()
    x = torch.randn(4, 6)
    grad.backward(x, labels(4))
    for p, g in zip(model.parameters(), loop(model, x, labels(4), 0.5, 5), strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-5, atol=1e-7)


def test_bfloat16_autocast():
    torch.manual_seed(0)
    model, x, y = mlp(), torch.randn(8, 6), labels(8)
    with torch.autocast("cpu", torch.bfloat16):
        private(model).backward(x, y)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    expected = torch.cat([g.flatten() for g in loop(model, x, y, 0.5, 5)])
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert (found - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_in_half_precision_are_refused(dtype):
    with pytest.raises(ValueError, match=r"cannot carry private gradients.*torch\.autocast"):
        private(mlp(dtype)).backward(torch.randn(4, 6, dtype=dtype), labels(4))


def test_complex_parameters_are_refused_for_what_they_are():
    model = nn.Linear(6, 3, dtype=torch.complex64)
    with pytest.raises(ValueError, match="they are made of real numbers; keep real and imaginary parts"):
        private(model).backward(torch.randn(4, 6, dtype=torch.complex64), labels(4))


class WithBatchNorm(nn.Sequential):
    def __init__(self, **kwargs):
        super().__init__(nn.Linear(6, 5), nn.BatchNorm1d(5, **kwargs), nn.Linear(5, 3))


def test_batch_norm_in_training_is_refused_with_reason_and_replacement():
    with pytest.raises(ValueError, match=r"BatchNorm1d at '1' mixes the examples.*GroupNorm"):
        private(WithBatchNorm())
    model = WithBatchNorm().eval()
    grad = assert_matches_loop(model, torch.randn(4, 6), labels(4))
    model.train()
    with pytest.raises(ValueError, match="mixes the examples"):
        grad.backward(torch.randn(4, 6), labels(4))
    with pytest.raises(ValueError, match="mixes the examples"):
        private(WithBatchNorm(track_running_stats=False).eval())


def test_resnet18_is_refused():
    models = pytest.importorskip("torchvision.models")
    with pytest.raises(ValueError, match=r"BatchNorm2d at 'bn1'.*GroupNorm"):
        private(models.resnet18())


@pytest.mark.parametrize("option", [{"sparse": True}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embeddings_that_cannot_be_private_are_refused(option):
    with pytest.raises(ValueError, match=f"Embedding at 'embedding'.*{next(iter(option))}"):
        model = TiedEmbedding()
        model.embedding = nn.Embedding(7, 5, **option)
        private(model)


class LooksUp(nn.Module):
    """A table that the forward pass would rescale where the data look it up."""

    def __init__(self, function):
        super().__init__()
        self.function, self.table, self.last = function, nn.Parameter(5 * torch.randn(10, 4)), nn.LazyLinear(3)

    def forward(self, x):
        return self.last(self.function(x, self.table).flatten(1))


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, table: F.embedding(x, table, max_norm=1.0),
        lambda x, table: F.embedding(x, table, None, 1.0),
        lambda x, table: F.embedding_bag(x, table, max_norm=1.0),
    ],
)
def test_a_lookup_that_would_change_the_table_is_refused(function, frozen):
    model, x = LooksUp(function), torch.tensor([[1, 2], [1, 3]])
    model.last(torch.zeros(1, 4 if "embedding_bag" in function.__code__.co_names else 8))
    model.table.requires_grad_(not frozen)
    before = model.table.detach().clone()
    with pytest.raises(ValueError, match="max_norm"):
        private(model).backward(x, labels(2))
    assert torch.equal(model.table, before)


def test_a_frozen_embedding_that_changes_its_rows_is_refused():
    model = nn.Sequential(nn.Embedding(10, 4, max_norm=1.0).requires_grad_(False), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match=r"Embedding at '0'.*max_norm"):
        private(model)


class Branches(nn.Module):
    """An operation that looks at values, which vmap cannot batch."""

    def __init__(self, forward):
        super().__init__()
        self.weight, self.layer, self.unused = nn.Parameter(torch.randn(6, 6)), nn.Linear(6, 3), nn.Linear(2, 2)
        self.how = forward

    def forward(self, x):
        return self.layer(self.how(x, self.weight))


class Doubled(torch.autograd.Function):
    """A function of its own, written the way that torch.func does not take."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


UNBATCHED = {
    "looks at a value": lambda x, w: torch.stack([a @ w if float(a.detach().sum()) > 0 else a @ w.abs() for a in x]),
    "picks rows": lambda x, w: torch.stack([w[(a > 0).nonzero().flatten()].sum(0) for a in x]),
    "a function of one's own": lambda x, w: Doubled.apply(x @ w),
    "drops a whole example": lambda x, w: x @ w * torch.empty(len(x), 1).bernoulli_(1.0),
}


@pytest.mark.parametrize("name", UNBATCHED)
def test_what_cannot_be_batched_runs_one_example_after_the_other_and_says_so(name):
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=r"model: .* one after the other.* weight"):
        assert_matches_loop(Branches(UNBATCHED[name]), torch.randn(7, 6), labels(7))


class Packed(nn.Module):
    """Sequences of different lengths, which end where only zeros follow."""

    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        lengths = x.detach().any(2).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.last(self.lstm(packed)[1][0][-1])


def test_packed_sequences_match_the_loop():
    torch.manual_seed(0)
    x = torch.randn(4, 7, 6) * (torch.arange(7) < torch.tensor([7, 3, 5, 2])[:, None])[:, :, None]
    with pytest.warns(UserWarning, match="one after the other"):
        assert_matches_loop(Packed(), x, labels(4))


def test_no_hook_of_a_parameter_changes_what_runs_one_example_after_the_other():
    model, x, y = Branches(UNBATCHED["looks at a value"]), torch.randn(4, 6), labels(4)
    found = []
    for hook in (lambda g: g, lambda g: 100 * g):
        model.weight.register_hook(hook)
        with pytest.warns(UserWarning, match="one after the other"):
            private(model).backward(x, y)
        found.append(model.weight.grad.clone())
    assert torch.equal(*found)


def test_a_long_list_of_parameters_is_cut_short():
    model = nn.Sequential(*(Branches(UNBATCHED["looks at a value"]) for _ in range(4)))
    for part in model:
        part.layer = nn.Linear(6, 6)
    with pytest.warns(UserWarning, match=r"uses 0\.weight, 1\.weight, 2\.weight and 1 more: vmap"):
        private(model).backward(torch.randn(4, 6), labels(4))


def test_an_input_changed_in_place_is_noticed():
    class Careless(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            x = x.clone()
            out = self.layer(x)
            x.zero_()
            return out

    with pytest.raises(RuntimeError, match="changed in place"):
        private(Careless()).backward(torch.randn(4, 6), labels(4))


BAD = [
    ("noise_multiplier", -1.0),
    ("noise_multiplier", math.nan),
    ("noise_multiplier", math.inf),
    ("max_grad_norm", 0.0),
    ("max_grad_norm", math.nan),
    ("expected_batch_size", 0),
    ("expected_batch_size", math.nan),
    ("max_physical_batch_size", 0),
    ("clipping", "soft"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_arguments_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        private(mlp(), **{name: value})


def test_an_infinite_c_with_noise_is_refused():
    with pytest.raises(ValueError, match="max_grad_norm must be finite when there is noise"):
        private(mlp(), max_grad_norm=math.inf, noise_multiplier=1.0)


@pytest.mark.parametrize(
    ("x", "y", "mask", "match"),
    [
        (torch.zeros(4, 6), labels(3), None, "y holds 3 examples and x holds 4"),
        (torch.zeros(4, 6), labels(4), torch.ones(4), "mask must be a bool"),
        ((torch.zeros(4, 6), torch.zeros(2)), labels(4), None, "different numbers of examples"),
    ],
)
def test_shapes_that_do_not_fit(x, y, mask, match):
    with pytest.raises(ValueError, match=match):
        private(mlp()).backward(x, y, mask=mask)


def test_an_input_that_is_no_tensor():
    with pytest.raises(TypeError, match="x must be a tensor"):
        private(mlp()).backward([[1.0, 2.0]], labels(1))
    for y in ([0, 1, 2, 0], torch.tensor(1)):
        with pytest.raises(TypeError, match="y must be a tensor"):
            private(mlp()).backward(torch.zeros(4, 6), y)
    with pytest.raises(TypeError, match="mask must be a bool tensor"):
        private(mlp()).backward(torch.zeros(4, 6), labels(4), mask=[True] * 4)


def test_mostly_empty_poisson_batches_train_and_noise():
    from adadp.privacy.sampling import PoissonSampling

    torch.manual_seed(0)
    model, x, y = mlp(), torch.randn(10, 6), labels(10)
    grad = private(model, noise_multiplier=1.0, expected_batch_size=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for batch in PoissonSampling(0.01, 50).batches(10):
        grad.backward(x[batch], y[batch])
        assert all((p.grad != 0).any() for p in model.parameters())
        optimizer.step()


def test_the_physical_batch_size_may_change_and_is_checked_again():
    grad = private(mlp(), max_physical_batch_size=4)
    grad.max_physical_batch_size = None
    grad.backward(torch.randn(9, 6), labels(9))
    for wrong in (0, -1, 1.5):
        grad.max_physical_batch_size = wrong
        with pytest.raises(ValueError, match="max_physical_batch_size"):
            grad.backward(torch.randn(9, 6), labels(9))

"""Every layer with a rule: ghost norms = vmap(grad) = a loop over single examples, over random shapes."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adadp.privacy import convolution, terms
from adadp.privacy.gradient import PrivateGradient

small = st.integers(1, 4)
batches = st.integers(0, 5)


def squares(out, y):
    """A loss whose gradient depends on everything; sums over whatever shape an example has."""
    return (out.flatten(1) - y.view(-1, 1)).square().sum(1) + out.flatten(1).tanh().sum(1)


def gradients(model, x, c, *, rules=True, y=None, **options):
    """Private gradients without noise, by rules or by the fallback, and the object that made them."""
    grad = PrivateGradient(
        model, max_grad_norm=c, noise_multiplier=0, expected_batch_size=3, loss=options.pop("loss", squares), **options
    )
    if not rules:
        grad._per_example.without_rule = {id(p) for p in model.parameters()}
    grad.backward(x, torch.linspace(-1, 1, len(x), dtype=torch.float64) if y is None else y)
    return [p.grad.clone() for p in model.parameters()], grad


def loop(model, x, c, loss=squares):
    """Clipped one by one."""
    y = torch.linspace(-1, 1, len(x), dtype=torch.float64)
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(x)):
        value = loss(model(x[i : i + 1]), y[i : i + 1]).sum()
        grads = torch.autograd.grad(value, list(model.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
        factor = min(1.0, c / norm) if norm else 1.0
        for total, g in zip(sums, grads, strict=True):
            total += factor * g / 3
    return sums


def check(model, x, *, allowed_without_rule=(), vmap=True, loss=squares):
    """Rules, fallback and loop agree to 1e-9 in float64, with all, some and no examples clipped."""
    model = model.double()
    for c in (1e-2, 3.0, 1e12):
        expected = loop(model, x, c, loss)
        found, grad = gradients(model, x, c, loss=loss)
        assert grad._per_example.without_rule == {id(p) for p in allowed_without_rule}
        ways = [found, gradients(model, x, c, rules=False, loss=loss)[0]] if vmap else [found]
        for way in ways:
            for a, b in zip(way, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@settings(max_examples=25)
@given(b=batches, middle=st.lists(small, max_size=3), i=small, o=small, bias=st.booleans(), seed=st.integers(0, 99))
def test_linear(b, middle, i, o, bias, seed):
    torch.manual_seed(seed)
    check(nn.Linear(i, o, bias=bias), randn(b, *middle, i))


CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
MODES = ["zeros", "reflect", "replicate", "circular"]


@st.composite
def convolutions(draw):
    """A convolution of any geometry and an input that fits it."""
    n = draw(st.integers(1, 3))
    each = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(n))  # noqa: E731
    groups = draw(st.integers(1, 2))
    window, dilation, stride = each(1, 3), each(1, 2), each(1, 2)
    padding = draw(st.sampled_from(["valid", "same", "numbers"]))
    if padding == "same":
        stride = (1,) * n
    padding = each(0, 2) if padding == "numbers" else padding
    mode = draw(st.sampled_from(MODES))
    size = [dil * (k - 1) + 1 + draw(st.integers(2, 4)) for k, dil in zip(window, dilation, strict=True)]
    layer = CONVOLUTIONS[n](
        groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3)), window, stride, padding, dilation, groups,
        bias=draw(st.booleans()), padding_mode=mode,
    )  # fmt: skip
    return layer, (layer.in_channels, *size)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")
@settings(max_examples=60)
@given(made=convolutions(), b=batches, seed=st.integers(0, 99), channels_last=st.booleans())
def test_convolution(made, b, seed, channels_last):
    torch.manual_seed(seed)
    layer, shape = made
    x = randn(b, *shape)
    if channels_last and x.dim() == 4:
        x, layer = x.to(memory_format=torch.channels_last), layer.to(memory_format=torch.channels_last)
    check(layer, x)


def test_the_convolution_that_broke_others():
    torch.manual_seed(0)
    check(nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), randn(5, 4, 9, 8))


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolution_with_more_channels_than_window(channels_last):
    """Its gradients are made with the longer side last, which has to be undone."""
    torch.manual_seed(0)
    layer, x = nn.Conv2d(1, 8, 2), randn(5, 1, 7, 6)
    if channels_last:
        x, layer = x.to(memory_format=torch.channels_last), layer.to(memory_format=torch.channels_last)
    check(layer, x)


WAYS = {  # how norms are found -> a layer for which that is the cheapest, and an example's shape
    "linear, one position": (lambda: nn.Linear(9, 7), (9,)),
    "linear, gram": (lambda: nn.Linear(9, 7), (2, 9)),
    "linear, made": (lambda: nn.Linear(9, 7), (40, 9)),
    "convolution, gram": (lambda: nn.Conv2d(8, 12, 3, groups=2), (8, 3, 4)),
    "convolution, kept": (lambda: nn.Conv2d(2, 4, 3, groups=2), (2, 9, 8)),
    "convolution, remade": (lambda: nn.Conv2d(36, 36, 5), (36, 10, 10)),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("way", ["gram", "kept", "remade"])
def test_convolution_by_each_way(way, channels_last, monkeypatch):
    """Few positions and many channels take Gram matrices; otherwise gradients are made, and kept if they are small."""
    torch.manual_seed(0)
    monkeypatch.setitem(terms.CHUNK, "cpu", 100)  # several chunks
    layer = nn.Conv2d(8, 12, 3, groups=2) if way == "gram" else nn.Conv2d(2, 4, 3, groups=2)
    x = randn(5, layer.in_channels, *([3, 4] if way == "gram" else [9, 8]))
    if channels_last:
        x, layer = x.to(memory_format=torch.channels_last), layer.to(memory_format=torch.channels_last)
    kept = []
    plain = convolution.Convolution.norm

    def norm(self):
        found = plain(self)
        if way == "remade":
            self.made = None
        kept.append(self.made is not None)
        return found

    monkeypatch.setattr(convolution.Convolution, "norm", norm)
    check(layer, x, vmap=False)
    assert set(kept) == {way == "kept"}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("way", WAYS)
def test_a_non_finite_example_by_each_way(way, bad):
    """Nothing of it is left in a sum, in which its factor of zero would leave nan."""
    torch.manual_seed(0)
    layer, shape = WAYS[way]
    x = randn(5, *shape)
    good = torch.tensor([0, 1, 3, 4])
    model = layer().double()
    expected = [p.clone() for p in gradients(model, x, 0.5, y=torch.arange(5.0))[0]]
    without = gradients(model, x[good], 0.5, y=good.double())[0]
    x[2].view(-1)[3] = bad
    found = gradients(model, x, 0.5, y=torch.arange(5.0))[0]
    for a, b, c in zip(found, without, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
        assert not torch.allclose(a, c)


@pytest.mark.parametrize("positions", [2, 40])
def test_linear_by_each_way(positions, monkeypatch):
    """Gram matrices or the gradients themselves: by the number of positions."""
    torch.manual_seed(0)
    monkeypatch.setitem(terms.CHUNK, "cpu", 100)
    check(nn.Linear(9, 7), randn(5, positions, 9))


@settings(max_examples=25)
@given(b=batches, shape=st.lists(small, max_size=2), rows=st.integers(1, 6), d=small, seed=st.integers(0, 99),
       padded=st.sampled_from([None, 0, -1]))  # fmt: skip
def test_embedding(b, shape, rows, d, seed, padded):
    torch.manual_seed(seed)
    check(nn.Embedding(rows, d, padding_idx=padded), torch.randint(0, rows, (b, *shape)))


def test_functional_embedding_with_a_negative_padding_index():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 3))

        def forward(self, x):
            return F.embedding(x, self.weight, -2)

    check(Functional(), torch.randint(0, 5, (4, 3)))


@settings(max_examples=25)
@given(b=batches, middle=st.lists(small, max_size=2), normalized=st.lists(st.integers(2, 4), min_size=1, max_size=2),
       bias=st.booleans(), seed=st.integers(0, 99))  # fmt: skip
def test_layer_norm(b, middle, normalized, bias, seed):
    torch.manual_seed(seed)
    layer = nn.LayerNorm(normalized, bias=bias)
    nn.init.normal_(layer.weight)
    check(layer, randn(b, *middle, *normalized))


@settings(max_examples=25)
@given(b=batches, groups=small, each=small, size=st.lists(st.integers(2, 4), max_size=3), seed=st.integers(0, 99))
def test_group_norm(b, groups, each, size, seed):
    torch.manual_seed(seed)
    layer = nn.GroupNorm(groups, groups * each)
    nn.init.normal_(layer.weight)
    size = size if size or each > 1 else [2]
    check(layer, randn(b, groups * each, *size))


class Calls(nn.Module):
    """One layer, called as often as asked, on what it gave."""

    def __init__(self, layer, times):
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x):
        for _ in range(self.times):
            x = torch.tanh(self.layer(x))
        return x


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LayerNorm(4), (3, 4)),
        (nn.GroupNorm(2, 4), (4, 3)),
        (nn.Linear(4, 4), (4,)),
        (nn.Linear(4, 4), (3, 4)),
        (nn.Conv2d(4, 4, 3, padding=1), (4, 5, 5)),
    ],
    ids=str,
)
def test_called_more_than_once(layer, shape, times):
    torch.manual_seed(0)
    check(Calls(layer, times), randn(5, *shape))


class Language(nn.Module):
    """Two embeddings, norms, a mixing layer over time, and an output layer tied to the embedding."""

    def __init__(self, rows=7, d=4):
        super().__init__()
        self.embedding, self.norm, self.mix = nn.Embedding(rows, d), nn.LayerNorm(d), nn.Conv1d(d, d, 3, padding=1)
        self.out = nn.Linear(d, rows, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        h = self.embedding(x) + self.embedding(x.flip(1))
        return self.out(self.norm(h + self.mix(h.mT).mT))


@pytest.mark.parametrize("positions", [1, 3, 9])
def test_tied_embedding_and_output(positions):
    torch.manual_seed(0)
    check(Language(), torch.randint(0, 7, (5, positions)), vmap=positions > 1)  # torch: vmap of a one-wide Conv1d fails


def test_tied_with_something_else_besides():
    """The tied parameter is also used by an operation without a rule: everything of it goes to the fallback."""

    class Odd(Language):
        def forward(self, x):
            return super().forward(x) + self.embedding.weight.mean()

    torch.manual_seed(0)
    model = Odd()
    check(model, torch.randint(0, 7, (5, 3)), allowed_without_rule=[model.embedding.weight])


def test_a_network_of_all_kinds():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3), nn.GroupNorm(2, 6), nn.ReLU(inplace=True),
        nn.Conv2d(6, 8, 3, dilation=2, padding="same", padding_mode="circular"), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32, 5), nn.LayerNorm(5), nn.PReLU(), nn.Linear(5, 3),
    )  # fmt: skip
    prelu = model[9].weight
    check(model, randn(5, 3, 8, 8), allowed_without_rule=[prelu])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_of_all_kinds(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.Flatten(2), nn.LayerNorm(16), nn.Linear(16, 3))
    x = torch.randn(5, 3, 6, 6)
    grad = PrivateGradient(model, max_grad_norm=1.0, noise_multiplier=0, expected_batch_size=3, loss=squares)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        grad.backward(x, torch.linspace(-1, 1, 5))
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert found.dtype == torch.float32
    expected = [g.float() for g in loop(model.double(), x.double(), 1.0)]
    expected = torch.cat([g.flatten() for g in expected])
    assert (found - expected).norm() < (0.05 if dtype == torch.bfloat16 else 1e-5) * expected.norm()

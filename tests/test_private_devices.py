"""The private gradient on a device: the host reads nothing and moves nothing, and a padded step fits a CUDA graph."""

import pytest
import torch
from test_optimizer_devices import Unsynchronised
from torch import nn

import adadp


class Mixed(nn.Module):
    """Convolutions, norms, an embedding-free bare parameter for the fallback, and linear maps at several positions."""

    def __init__(self, device=None):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, groups=2, device=device)
        self.group, self.layer = nn.GroupNorm(2, 4, device=device), nn.LayerNorm(8, device=device)
        self.first, self.last = nn.Linear(8, 5, device=device), nn.Linear(4 * 8 * 5, 3, device=device)
        self.scale = nn.Parameter(torch.ones(5, device=device))

    def forward(self, x):
        h = self.layer(self.group(self.conv(x)).relu())
        return self.last((self.scale * self.first(h)).flatten(1))


@pytest.mark.parametrize("clipping", ["flat", "automatic"])
@pytest.mark.parametrize("physical", [None, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_nothing_is_read_on_a_device(clipping, physical, masked, monkeypatch):
    """On the meta device, which has no values to read: a look at one would raise."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # which knows no meta device
    model = Mixed("meta")
    x, y = torch.empty(6, 2, 8, 8, device="meta"), torch.zeros(6, dtype=torch.int64, device="meta")
    mask = torch.ones(6, dtype=torch.bool, device="meta") if masked else None
    gradient = adadp.PrivateGradient(
        model, max_grad_norm=1.0, noise_multiplier=1.0, expected_batch_size=4, clipping=clipping,
        max_physical_batch_size=physical,
    )  # fmt: skip
    gradient.backward(x, y, mask=mask)  # finds out which parameters need the fallback
    with Unsynchronised():
        loss = gradient.backward(x, y, mask=mask)
    assert loss.device.type == "meta" and all(p.grad.device.type == "meta" for p in model.parameters())


def test_gradients_stay_where_they_are_on_a_card(fake_card):
    """A CUDA graph writes to the memory it was recorded with; a gradient that does not fit any more is made anew."""
    with fake_card:
        model = Mixed("cuda")
        gradient = adadp.PrivateGradient(model, max_grad_norm=1.0, noise_multiplier=1.0, expected_batch_size=4)
        none = torch.empty(0, 2, 8, 8, device="cuda"), torch.empty(0, dtype=torch.int64, device="cuda")
        gradient.backward(*none)
        held = [p.grad for p in model.parameters()]
        gradient.backward(*none)
        assert all(p.grad is g for p, g in zip(model.parameters(), held, strict=True))
        scale = model.scale
        scale.data = torch.empty(9, device="cuda")
        gradient.backward(*none)
        assert scale.grad.shape == (9,) and model.last.bias.grad is held[-1]


@pytest.mark.parametrize("zero", [True, False])
def test_a_model_that_is_not_known_yet_is_not_recorded(zero, monkeypatch):
    """A last layer of zeros hides from the first steps whether examples mix: a recording would have to look again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    if zero:
        nn.init.zeros_(model[2].weight)
    gradient = adadp.PrivateGradient(model, max_grad_norm=1.0, noise_multiplier=1.0, expected_batch_size=4)
    x, y = torch.randn(6, 5), torch.arange(6) % 3
    gradient.backward(x, y)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="call backward a few times"):
        gradient.backward(x[:4], y[:4])  # of a size that was not tried
    if zero:
        with pytest.raises(RuntimeError, match="take a step"):
            gradient.backward(x, y)
        monkeypatch.undo()
        gradient.backward(x, y)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        gradient.backward(x, y)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    gradient.backward(x, y)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_padded_private_step_in_a_cuda_graph():
    torch.manual_seed(0)
    plain, batches = Mixed().double(), []
    model = Mixed().double()
    model.load_state_dict(plain.state_dict())
    model.cuda()
    generator = torch.Generator().manual_seed(1)
    for size in (6, 3, 5):
        x = torch.randn(6, 2, 8, 8, generator=generator, dtype=torch.float64)
        batches.append((x, torch.arange(6) % 3, torch.arange(6) < size))
    options = {"max_grad_norm": 0.5, "noise_multiplier": 0.0, "expected_batch_size": 4}
    known = adadp.PrivateGradient(plain, **options)
    gradient = adadp.PrivateGradient(model, **options)
    held = [t.cuda() for t in batches[0]]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            gradient.backward(*held[:2], mask=held[2])
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradient.backward(*held[:2], mask=held[2])
    for batch in batches:
        for there, here in zip(held, batch, strict=True):
            there.copy_(here)
        graph.replay()
        known.backward(*batch[:2], mask=batch[2])
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad.cpu(), q.grad)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("own", [True, False])
def test_every_replay_of_a_cuda_graph_draws_new_noise(own):
    """And the same again after the same seed: from a registered generator, and from torch's own."""
    model, std = nn.Linear(300, 300).cuda(), 2.0 * 1.5 / 10
    generator = torch.Generator("cuda") if own else None
    gradient = adadp.PrivateGradient(
        model, max_grad_norm=2.0, noise_multiplier=1.5, expected_batch_size=10, generator=generator
    )
    x, y = torch.zeros(4, 300, device="cuda"), torch.zeros(4, dtype=torch.int64, device="cuda")
    mask = torch.zeros(4, dtype=torch.bool, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            gradient.backward(x, y, mask=mask)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    if own:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        gradient.backward(x, y, mask=mask)

    def draws():
        generator.manual_seed(7) if own else torch.cuda.manual_seed(7)
        for _ in range(3):
            graph.replay()
            yield model.weight.grad.clone()

    first, again = list(draws()), list(draws())
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])
    for noise in first:
        assert float(noise.std()) == pytest.approx(std, rel=0.02)
    joint = torch.stack([noise.flatten() for noise in first])
    assert torch.corrcoef(joint).fill_diagonal_(0).abs().max() < 0.02


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_norms_and_sums_on_a_card_are_not_shortened():
    """TF32, which convolutions use by default, would be off by a thousandth."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(16 * 36, 3))
    card = nn.Sequential(nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(16 * 36, 3)).cuda()
    card.load_state_dict(plain.state_dict())
    x, y = torch.randn(16, 8, 8, 8), torch.arange(16) % 3
    for model, device in ((plain, "cpu"), (card, "cuda")):
        options = {"max_grad_norm": 0.1, "noise_multiplier": 0.0, "expected_batch_size": 1}
        adadp.PrivateGradient(model, **options).backward(x.to(device), y.to(device))
        for i in range(16):  # alone, every example's gradient is long enough to be clipped, so has the norm C
            adadp.PrivateGradient(model, **options).backward(x[i : i + 1].to(device), y[i : i + 1].to(device))
            norm = torch.sqrt(sum(p.grad.double().square().sum() for p in model.parameters()))
            assert float(norm) == pytest.approx(0.1, rel=2e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_noise_on_a_card_has_the_declared_scale():
    model = nn.Linear(300, 300).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    gradient = adadp.PrivateGradient(
        model, max_grad_norm=2.0, noise_multiplier=1.5, expected_batch_size=10, generator=generator
    )
    gradient.backward(torch.zeros(0, 300, device="cuda"), torch.zeros(0, dtype=torch.int64, device="cuda"))
    assert float(model.weight.grad.std()) == pytest.approx(2.0 * 1.5 / 10, rel=0.02)

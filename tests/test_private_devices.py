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
def test_noise_on_a_card_has_the_declared_scale():
    model = nn.Linear(300, 300).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    gradient = adadp.PrivateGradient(
        model, max_grad_norm=2.0, noise_multiplier=1.5, expected_batch_size=10, generator=generator
    )
    gradient.backward(torch.zeros(0, 300, device="cuda"), torch.zeros(0, dtype=torch.int64, device="cuda"))
    assert float(model.weight.grad.std()) == pytest.approx(2.0 * 1.5 / 10, rel=0.02)

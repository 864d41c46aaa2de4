"""On a device nothing is read and nothing moves; under torch.compile and in a CUDA graph."""

import warnings

import pytest
import torch
from optimizer_helpers import SWITCHES, assert_same, feed, lr, noise, params_of, values
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from adadp import ADADP


class Unsynchronised(TorchDispatchMode):
    """Fails where the host would have to wait for a device: reading a value, or moving one between devices."""

    READS = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "item", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.READS, f"{name} reads a value"
        result = func(*args, **(kwargs or {}))
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            assert result.device.type == source.device.type, f"{name} moves between devices"
        return result


@pytest.mark.parametrize("foreach", [None, True, False])
@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "-".join(map(str, s.values())))
def test_nothing_is_read_on_a_device(switches, foreach, fake_card):
    with fake_card:
        params = [nn.Parameter(torch.empty(5, 4, device="cuda")), nn.Parameter(torch.empty(9000, device="cuda"))]
        opt = ADADP([{"params": params[:1]}, {"params": params[1:], "lr": 0.2}], foreach=foreach, **switches)
        for p in params:
            p.grad = torch.empty_like(p)
        with Unsynchronised():
            for _ in range(4):
                opt.step()
            opt.rewind()
            opt.freeze()
            opt.step()
        for name in ("lr", "error", "accepted", "discarded"):
            value = opt.param_groups[1][name]
            assert value.device.type == "cuda"
            assert value.ndim == 0
            with pytest.raises(DataDependentOutputException):
                value.item()
        assert all(getattr(opt, name).device.type == "cuda" for name in ("error", "accepted", "discarded"))


def test_the_check_above_can_fail():
    with Unsynchronised(), pytest.raises(AssertionError, match="reads a value"):
        torch.ones(3).sum().item()
    with FakeTensorMode(), Unsynchronised(), pytest.raises(AssertionError, match="moves between devices"):
        torch.ones(3, device="cuda").to("cpu")


def test_a_float_lr_on_a_device_becomes_a_tensor(fake_card):
    """As after a wrapper or a hand wrote it there."""
    with fake_card:
        p = nn.Parameter(torch.empty(5000, device="cuda"))
        opt = ADADP([p])
        for _ in range(3):
            opt.param_groups[0]["lr"] = 0.05
            p.grad = torch.empty_like(p)
            opt.step()
    assert opt.param_groups[0]["lr"].device.type == "cuda"


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("of_lr", [torch.float16, torch.float32, torch.float64])
def test_a_tensor_lr_may_have_another_type_than_the_parameters(kind, of_lr):
    """Its bound has to fit both: the largest float64 cannot even be named to a tensor of float32."""
    params = [torch.ones(4, dtype=kind, requires_grad=True)]
    opt = ADADP(params, lr=torch.tensor(0.1, dtype=of_lr), tol=1e9)
    for _ in range(4):
        params[0].grad = torch.ones(4, dtype=kind)
        opt.step()
    assert opt.accepted == 2 and lr(opt) == pytest.approx(0.121, rel=2e-3)


def test_tensors_are_changed_in_place():
    """As a CUDA graph needs it: lr, counters and buffers stay where they are in memory."""
    params = params_of((9, 3), (5000,))
    opt = ADADP(params, lr=torch.tensor(0.1))
    feed(opt, *noise(params, 2))

    def addresses():
        group = opt.param_groups[0]
        held = [group[name] for name in ("lr", "error", "accepted", "discarded", "zero_errors")]
        return [t.data_ptr() for t in (*params, *held, *(s["theta_l"] for s in opt.state.values()))]

    before = addresses()
    feed(opt, *noise(params, 4))
    assert addresses() == before


def test_what_was_read_does_not_change_later():
    params = params_of((4,))
    opt = ADADP(params, lr=torch.tensor(0.1))
    feed(opt, *noise(params, 2))
    error, accepted = opt.error, opt.accepted
    first = error.item()
    feed(opt, *noise(params, 2, seed=9))
    assert (error.item(), accepted.item()) == (first, 1)
    assert opt.error.item() != first


def test_one_extra_buffer_a_parameter():
    params = params_of((9, 3), (5000,))
    opt = ADADP(params)
    feed(opt, *noise(params, 4))
    held = [t for state in opt.state.values() for t in state.values()]
    assert sum(t.numel() for t in held) == sum(p.numel() for p in params)
    assert not [name for name, value in vars(opt).items() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("tensor", [True, False])
def test_under_torch_compile(tensor):
    """With a tensor lr the step is one graph for each half; with a float it is left out of the graph."""
    ends = []
    for compiled in (True, False):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        params = params_of((9, 3), (5000,))
        opt = ADADP(params, lr=torch.tensor(0.1) if tensor else 0.1, tol=2.4, discard=True)

        def train(opt=opt):
            opt.step()

        run = torch.compile(train, backend="eager", fullgraph=tensor) if compiled else train
        for gradients in noise(params, 30):
            for p, g in zip(params, gradients, strict=True):
                p.grad = g.clone() if p.grad is None else p.grad.copy_(g)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run()
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 6  # a changed lr compiles nothing anew
        ends.append([*values(params), torch.tensor(lr(opt)), torch.tensor(float(opt.accepted))])
    assert_same(*ends)
    assert 0 < float(ends[0][-1]) < 15  # some were kept and some discarded


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_in_a_cuda_graph():
    start, pair = params_of((9, 3), (5000,)), None
    gradients = noise(start, 12)
    plain = [nn.Parameter(p.detach().clone()) for p in start]
    twin = ADADP(plain, tol=2.4, discard=True)
    feed(twin, *gradients)
    params = [nn.Parameter(p.detach().cuda()) for p in start]
    opt = ADADP(params, tol=2.4, discard=True)
    pair = [[torch.zeros_like(p) for p in params] for _ in range(2)]

    def iteration():
        for grads in pair:
            for p, g in zip(params, grads, strict=True):
                p.grad = g
            opt.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        feed(opt, *([g.cuda() for g in grads] for grads in gradients[:2]))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        iteration()
    for i in range(2, 12, 2):
        for held, grads in zip(pair, gradients[i : i + 2], strict=True):
            for h, g in zip(held, grads, strict=True):
                h.copy_(g)
        graph.replay()
    for p, q in zip(params, plain, strict=True):
        torch.testing.assert_close(p.cpu(), q)
    assert lr(opt) == pytest.approx(lr(twin), rel=1e-5)
    assert int(opt.accepted) == twin.accepted


def test_a_group_may_span_devices():
    """Seen on the meta device, whose checks are those of cards: a step's scalar goes to where the gradients are."""
    from adadp import multi_tensor, param_groups

    here, there = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3, device="meta"))
    assert param_groups.on_device([{"params": [here, there], "lr": 0.1}])
    assert not param_groups.on_device([{"params": [here], "lr": 0.1}])
    (scaled,) = multi_tensor._scaled([there.detach()], torch.tensor(2.0))
    assert scaled.device.type == "meta"
    multi_tensor.descend([there.detach()], [torch.ones(3, device="meta")], torch.tensor(2.0))


@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a CUDA device")
def test_a_group_on_the_processor_and_a_card_steps():
    params = [torch.nn.Parameter(torch.ones(5000, device=device)) for device in ("cpu", "cuda")]
    optimizer = ADADP(params, lr=0.1)
    for _ in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
    torch.testing.assert_close(params[0], params[1].cpu())

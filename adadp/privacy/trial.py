"""What a model does with an example alone and in company: tried out with a few, before gradients of it are trusted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from adadp.evaluation import per_example_losses
from adadp.privacy import fallback
from adadp.privacy.exact import full_products
from adadp.privacy.recording import Recorder
from adadp.privacy.terms import as_rows

ROUNDING, HALF = 1e-3, 5e-2  # of an output, by which it may differ from what the example gives alone; under autocast
UNITS = 256  # last digits of a usual output: what is nearly zero may be all rounding


def layout_of_one(model: nn.Module, params: list[Tensor], x) -> tuple[set, bool]:
    """The calls that one example makes with a first dimension of 1, and whether the model draws random numbers.

    A layer may see the examples in another dimension (time first) or folded into one (B*T rows). A ghost norm would
    then mix them up, silently if the sizes happen to agree; such layers go to the fallback.

    Raises:
        ValueError: the forward pass changes a buffer.
    """
    devices = _cards(model)
    with _as_it_was(model, devices), torch.no_grad(), Recorder(params, differentiable=False) as recorder:
        before = _states(devices)
        fallback.call(model, fallback.part(x, slice(0, 1)))
        random = not all(map(torch.equal, before, _states(devices)))
    ones, others = ({c.layout for c in recorder.calls if (len(c.input) == 1) is alone} for alone in (True, False))
    return ones - others, random  # a layer that also sees a constant of many rows might take those for examples


def mixes(
    model: nn.Module, loss: Callable, params: list[Tensor], x, y: Tensor, one: tuple[set, bool]
) -> tuple[bool, bool]:
    """Whether examples see each other or change places inside the model, by the gradients of all of ``x``; and whether
    that was to be seen: not where a gradient is zero, as below a last layer whose weights are still zero, or where all
    losses are alike, so that a loss that weighs them by their batch does not show.

    The gradient at a layer's output must be scaled row by row when the examples' losses are. Sorting a batch, or a
    batch statistic written by hand, would else give an example's gradient to another one and break the clipping.

    Args:
        params: the parameters whose gradients are wanted by rules; none if every example runs by itself.
        one: what :func:`layout_of_one` found. Where nothing is random, an example's output must be the one that it has
            alone, and so must what it brings into each layer, since weights of zero let nothing through.

    Raises:
        ValueError: it is the loss that compares examples. Or gradients do not show it, but outputs or losses do: it
            happens before the first trainable layer, or outside of what is differentiated. Or the forward pass changes
            a buffer.
    """
    with _as_it_was(model, _cards(model)), torch.enable_grad(), full_products(y.device):
        with Recorder(params) as recorder:
            output = fallback.call(model, x)
        losses = per_example_losses(loss, output, y, len(y))
    edges = [c.edge for c in recorder.calls]
    if losses.is_meta:
        return False, True
    with _as_it_was(model, _cards(model)), torch.enable_grad(), full_products(y.device), Recorder(params) as by_itself:
        alone = fallback.call(model, fallback.part(x, slice(0, 1)))
    _refuse_comparing(loss, output, alone, y)
    crossing, seen = crosses(losses, edges) if edges else (False, True)
    if crossing:
        return True, True
    known, random = one
    if random or not params:  # without parameters every example runs alone
        return False, seen
    rows = [isinstance(t, Tensor) and t.dim() > 0 and len(t) == len(y) for t in tree_flatten(output)[0]]
    first = tree_map(lambda t: t[:1] if isinstance(t, Tensor) and t.dim() and len(t) == len(y) else t, output)
    first = first if any(rows) else alone  # an object whose parts nobody here can tell
    with full_products(y.device):
        loss_alone = per_example_losses(loss, first, y[:1], 1)  # of the same output: a small loss magnifies rounding
    found = _differs(output, alone, len(y)) * "output" or _differs(losses, loss_alone, len(y)) * "loss"
    pairs = list(zip(recorder.calls, by_itself.calls, strict=False))
    if len(recorder.calls) != len(by_itself.calls) or any(a.layout != b.layout for a, b in pairs):
        pairs = []  # a loop over time, say, that is as long as the longest sequence: calls do not belong together
    for call, single in pairs:
        if not found and _differs(call.input, single.input, len(y)):
            if call.input.requires_grad:
                return True, True  # above a trainable layer: every example runs alone
            found = "input of a layer"
    seen = seen and bool((losses != losses[:1]).any())
    if found and not any(c.layout in known and len(c.input) != len(y) for c in recorder.calls):
        raise ValueError(
            f"model: the {found} for an example depends on the others in its batch (a statistic of the batch, such as "
            "x.mean(0)?), so no example's influence can be bounded; use constants, or statistics of one example (if it "
            "is a small difference of large numbers, all of it may be rounding: centre the inputs, or use float64)"
        )
    return bool(found), seen  # a layer sees the batch as a whole: its gradient shows it, and every example runs alone


def crosses(losses: Tensor, edges: list) -> tuple[bool, bool]:
    """Whether the loss of one example depends on another's row at one of the ``edges``; and whether all of these have a
    gradient that could show it."""
    numbers = torch.arange(len(losses), device=losses.device, dtype=losses.dtype)
    weights = 0.5**numbers  # multiplying by them rounds nothing
    seen = True
    grad = partial(torch.autograd.grad, losses, edges, retain_graph=True, allow_unused=True)
    for g, scaled in zip(grad(torch.ones_like(losses)), grad(weights), strict=True):
        if g is None or len(g) != len(losses):  # the latter: by its shape already known to be strange
            continue
        g, scaled = as_rows(g).float(), as_rows(scaled).float()
        wrong, whole = (scaled - weights.float()[:, None] * g).norm(dim=1), g.norm(dim=1).nan_to_num()
        if bool((wrong > 1e-3 * whole + 1e-4 * whole.amax()).any()):
            return True, True
        seen = seen and bool(whole.any())
    return False, seen


def _refuse_comparing(loss: Callable, output, alone, y: Tensor) -> None:
    """Refuse a loss that itself lets examples see each other: alone, each would have another objective.

    Rows of the output belong to examples where one example has one row (time may come first, in as many steps as there
    are examples). In an object of one's own nobody finds them.
    """
    leaves, spec = tree_flatten(output)
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        return
    leaves = [leaf.detach().requires_grad_(leaf.is_floating_point()) for leaf in leaves]
    pairs = zip(leaves, tree_flatten(alone)[0], strict=False)
    edges = [many for many, one in pairs if many.requires_grad and many.dim() and one.shape == (1, *many.shape[1:])]
    with torch.enable_grad(), full_products(y.device):
        losses = loss(tree_unflatten(leaves, spec), y)
    if edges and losses.requires_grad and crosses(losses, edges)[0]:
        raise ValueError(
            "loss: the loss of an example depends on the outputs of others (a contrastive loss, a ranking, a weight "
            "made from the batch?), so no example's influence can be bounded; compare each output with its own y"
        )


def _differs(few, one, size: int) -> bool:
    """Whether the first of a few rows is another than the row alone, in any tensor that has one row an example."""
    for many, single in zip(tree_flatten(few)[0], tree_flatten(one)[0], strict=False):
        if not isinstance(many, Tensor) or not many.is_floating_point() or not many.dim() or len(many) != size:
            continue
        if single.shape != (1, *many.shape[1:]):
            continue
        rows, b = as_rows(many.detach()).double(), as_rows(single).double()[0]
        a, sizes = rows[0], rows.nan_to_num(0, 0, 0).norm(dim=1)
        wrong = torch.where((a == b) | (a.isnan() & b.isnan()), 0, a - b).norm()
        half = torch.is_autocast_enabled(many.device.type) or torch.finfo(many.dtype).bits < 32
        share, least = (HALF, HALF) if half else (ROUNDING, UNITS * torch.finfo(many.dtype).eps)
        own = torch.minimum(sizes[0], b.nan_to_num(0, 0, 0).norm())
        if not bool(wrong <= torch.maximum(share * own, least * sizes.median())):
            return True
    return False


@contextmanager
def _as_it_was(model: nn.Module, devices: list[torch.device]) -> Iterator[None]:
    """Leave the random numbers and the model's buffers as they are.

    Raises:
        ValueError: a buffer or a frozen parameter changed, which would hold statistics of the data.
    """
    frozen = [(name, p, p._version) for name, p in model.named_parameters() if not p.requires_grad]
    homes = {name: module._buffers for name, module in model.named_modules() if module._buffers}
    before = [
        (home, at, key, b, b._version, b.clone()) for home, kept in homes.items() for at, key, b in _tensors(kept)
    ]
    with torch.random.fork_rng(devices):
        yield
    changed = [name for name, p, version in frozen if p._version != version]
    for home, kept, key, buffer, version, value in before:
        if kept[key] is not buffer or buffer._version != version:
            changed.append(f"{home}.{key}" if home else key)
            with torch.no_grad():
                buffer.copy_(value)
            kept[key] = buffer
    if told := [name for name in changed if name not in _harmless(model)]:
        raise ValueError(
            f"model: the forward pass changes {told[0]!r}, which would hold statistics of the data without noise; keep "
            "buffers and frozen parameters as they are (in evaluation mode, or with statistics of public data)"
        )


def _tensors(kept: dict) -> Iterator[tuple[dict, str, Tensor]]:
    """The buffers of one module, with the place that holds them."""
    return ((kept, key, buffer) for key, buffer in kept.items() if buffer is not None)


def _harmless(model: nn.Module) -> set[str]:
    """Buffers that follow the weights alone: the singular vectors of torch's spectral norms."""
    found = set()
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(module, _SpectralNorm):
            found |= {prefix + key for key in module._buffers}
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                found |= {f"{prefix}{hook.name}_{end}" for end in "uv"}
    return found


def _cards(model: nn.Module) -> list[torch.device]:
    """The cards that the model's parameters are on."""
    return list({p.device for p in model.parameters() if p.is_cuda})


def _states(devices: list[torch.device]) -> list[Tensor]:
    """States of the random number generators that a model may draw from."""
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]

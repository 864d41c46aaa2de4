"""The arithmetic of one ADADP iteration over lists of tensors, in place: no settings, no decisions, no bookkeeping.

Letters as in the paper: a tensor of ``params`` is the running iterate, ``kept`` holds theta_l, ``grads`` G1 or G2, and
``half`` is eta/2 (negative to maximize). A float ``half`` is the host path: values may be read, and big tensors are
worked through in pieces that stay in the processor's cache. A 0-dim tensor is the device path: nothing is ever read.
"""

import math

import torch
from torch import Tensor

ADVANCE = ("euler", "half_steps", "extrapolated")
SMALL = 1 << 12  # up to this many elements new scratch memory is cheaper than slicing old
PIECE = 1 << 16  # elements worked on at a time, a thread: two float32 scratch pieces fill 512 KiB of cache


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which errors are computed: half precision would round the difference of two iterates away."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def descend(params: list[Tensor], grads: list[Tensor], lr: float | Tensor) -> None:
    """params -= lr * grads."""
    if isinstance(lr, Tensor):  # as alpha it would be read
        torch._foreach_sub_(params, _scaled(grads, lr))
    else:
        torch._foreach_add_(params, grads, alpha=-lr)


def _scaled(grads: list[Tensor], scale: float | Tensor) -> list[Tensor]:
    """New tensors scale * grads, at least in single precision."""
    dtype = _wide(grads[0].dtype)
    if isinstance(scale, Tensor):  # of their type and beside them, else the multi-tensor kernel is not taken, or fails
        scale = scale.to(grads[0].device, dtype)
    return list(torch._foreach_mul([g.to(dtype) for g in grads], scale))


def first_half(params: list[Tensor], grads: list[Tensor], kept: list[Tensor], half: float | Tensor) -> None:
    """Keep theta_l in ``kept``, and move params to theta_{l+1/2}."""
    if isinstance(half, Tensor) or sum(p.numel() for p in params) <= PIECE:
        torch._foreach_copy_(kept, params)
        descend(params, grads, half)
    else:
        for p, g, a in zip(params, grads, kept, strict=True):  # one at a time, while it is in the cache
            a.copy_(p)
            p.add_(g, alpha=-half)


def second_half(
    params: list[Tensor],
    grads: list[Tensor],
    kept: list[Tensor],
    half: float | Tensor,
    advance: str,
    relative: bool,
    foreach: bool | None = None,
) -> float | Tensor:
    """Move params, all of one type and on one device, from theta_{l+1/2} to the new iterate; ``kept`` stays as it is.

    Returns:
        The sum of the squared errors, not finite if the new iterate is not: a float, or on the device path a 0-dim
        tensor.
    """
    device = isinstance(half, Tensor)
    if foreach or (foreach is None and device):
        return _second_half_lists(params, grads, kept, half, advance, relative)
    if not device and _wide(params[0].dtype) == params[0].dtype:
        return _second_half_loop(params, grads, kept, half, advance, relative)
    triples = zip(params, grads, kept, strict=True)
    return sum(_second_half_lists(*([x] for x in triple), half, advance, relative) for triple in triples)


def restore(params: list[Tensor], kept: list[Tensor], accept: bool | Tensor) -> None:
    """Put theta_l back, bit for bit, unless the step is accepted."""
    if isinstance(accept, Tensor):
        for p, a in zip(params, kept, strict=True):
            torch.where(accept.to(p.device), p, a, out=p)
    elif not accept:
        torch._foreach_copy_(params, kept)


def _second_half_loop(params, grads, kept, half, advance, relative) -> float:
    """`second_half` on the host path: one tensor after the other, a big one piece by piece in memory order."""
    size = PIECE * torch.get_num_threads()
    longest, scratch, total = min(size, max(p.numel() for p in params)), None, 0.0
    for p, g, a in zip(params, grads, kept, strict=True):
        n = p.numel()
        if n <= SMALL or a.stride() != p.stride():  # the latter: p has gaps or overlaps in memory
            total += _second_half_piece(p, g, a, half, advance, relative, None, None)
            continue
        if g.stride() != p.stride():
            g = torch.empty_like(p).copy_(g)
        if scratch is None:
            scratch = torch.empty(longest, dtype=p.dtype), torch.empty(longest, dtype=p.dtype)
        flat = (p, g, a) if p.ndim == 1 else [x.as_strided((n,), (1,)) for x in (p, g, a)]
        for piece in (flat,) if n <= size else zip(*(x.split(size) for x in flat), strict=True):
            m = piece[0].numel()
            total += _second_half_piece(
                *piece, half, advance, relative, *(scratch if m == longest else (x[:m] for x in scratch))
            )
    return total


def _second_half_piece(p, g, a, half, advance, relative, s, t) -> float:
    """`second_half` for one tensor or a piece of it; ``s`` and ``t`` are scratch, or None for new memory."""
    s = torch.sub(p, a, out=s)  # -eta/2 G1
    theta_1 = p.add_(s) if advance == "euler" else torch.add(p, s, out=t)  # theta_l - eta G1
    if advance == "half_steps":
        p.add_(g, alpha=-half)
    elif advance == "extrapolated":
        torch.add(a, g, alpha=-2 * half, out=p)
    s.add_(g, alpha=half)  # theta_1 - theta_hat
    largest = max(theta_1.amax().item(), -theta_1.amin().item()) if relative else math.inf
    if relative and not largest <= 1:  # else every divisor is 1
        s.div_(torch.abs(theta_1, out=t).clamp_min_(1))
    norm = torch.linalg.vector_norm(s).item()
    if largest <= 1:  # then the new iterate, theta_1 or that less s or 2 s, is as finite as the norm
        return norm * norm
    return norm * norm + 0 * p.sum().item()  # 0 * inf = nan


def _second_half_lists(params, grads, kept, half, advance, relative):
    """`second_half` with multi-tensor calls and without reading a value."""
    error = move(params, kept, _scaled(grads, half), advance, relative)
    norms = torch.stack(torch._foreach_norm(error))
    square = (norms if norms.device.type == "mps" else norms.double()).square().sum()
    square = square + 0 * torch.stack(torch._foreach_norm(params, 1, _wide(params[0].dtype))).amax()  # 0 * inf = nan
    return square if isinstance(half, Tensor) else square.item()


def move(params: list[Tensor], kept: list[Tensor], step: list[Tensor], advance: str, relative: bool) -> list[Tensor]:
    """Move params from theta_{l+1/2} to the new iterate with ``step``, eta/2 G2, and return what the error is made of.

    Elements do not mix, so that a row of a tensor may as well be another model's.

    Returns:
        theta_{l+1} - hat theta_{l+1}, divided by max(1, abs(theta_{l+1})) if ``relative``; at least single precision.
    """
    wide = [p.to(_wide(p.dtype)) for p in params]
    error = torch._foreach_sub(wide, kept)  # -eta/2 G1
    theta_1 = torch._foreach_add(wide, error)
    torch._foreach_add_(error, step)  # theta_1 - theta_hat
    if advance == "euler":
        torch._foreach_copy_(params, theta_1)
    elif advance == "half_steps":
        torch._foreach_sub_(params, step)
    else:
        torch._foreach_copy_(params, torch._foreach_sub(kept, step, alpha=2))
    if relative:
        torch._foreach_abs_(theta_1)
        torch._foreach_clamp_min_(theta_1, 1.0)
        torch._foreach_div_(error, theta_1)
    return list(error)

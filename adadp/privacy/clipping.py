"""Clipping: norms of per-example gradients in, one factor an example out.

Nothing here knows models, noise or batches. Factors multiply per-example gradients, so that each has a norm of at most
C afterwards and the sum changes by at most C when one example is added or removed.
"""

import math
from collections.abc import Callable

import torch

from adadp.privacy import arguments

STABILITY = 0.01  # gamma of automatic clipping; the value its authors use in all their experiments


def flat(norms: torch.Tensor, max_grad_norm: float) -> torch.Tensor:
    """min(1, C / norm): gradients longer than C are cut to C, shorter ones pass unchanged (Abadi et al. 2016).

    >>> flat(torch.tensor([0.0, 1.0, 4.0]), 2.0)
    tensor([1.0000, 1.0000, 0.5000])
    """
    return (max_grad_norm / norms).clamp(max=1.0)  # C / 0 = inf is cut to 1; C = inf gives 1 everywhere


def automatic(norms: torch.Tensor, max_grad_norm: float) -> torch.Tensor:
    """C / (norm + 0.01): every gradient is brought to nearly the norm C (Bu et al., arXiv 2206.07136).

    >>> automatic(torch.tensor([0.0, 1.99]), 2.0)
    tensor([200.,   1.])
    """
    return max_grad_norm / (norms + STABILITY)


CLIPPINGS = {"flat": flat, "automatic": automatic}


def clip_factors(clipping: str | Callable, norms: torch.Tensor, max_grad_norm: float) -> torch.Tensor:
    """Factors for per-example gradients of the given norms.

    Args:
        clipping: "flat", "automatic", or a callable that maps norms, shape (B,), to factors, shape (B,).
        norms: 2-norm of each example's whole gradient (all parameters together), shape (B,). Sensitive.
        max_grad_norm: C > 0.

    Returns:
        Factors of shape (B,), with factor * norm <= C.

    Raises:
        ValueError: a callable returned another shape, or (noticed on a CPU) looks at several norms at once.

    Guarantees:
        ============================== ==================================================================
        norm                           factor
        ============================== ==================================================================
        0                              finite (1 for "flat", 100 C for "automatic"); the gradient stays 0
        inf or nan                     0
        any, callable                  what it returns, cut to [0, C / norm]; 0 where it is not finite
        any, callable that looks at    refused: one example would change the factors of the others; on a card, where
        several norms at once          nothing can be read, all factors are 0
        any finite, "flat", C = inf    1
        ============================== ==================================================================

    >>> clip_factors(lambda norms: norms * 0 + 3, torch.tensor([0.1, 1.0, float("nan")]), 1.0)
    tensor([3., 1., 0.])
    """
    if isinstance(clipping, str):  # C / inf is 0; what is left is nan / C and inf / inf
        return CLIPPINGS[clipping](norms, max_grad_norm).nan_to_num_(nan=0.0)
    # A careless callable must not break the sensitivity that the noise is made for.
    factors, halves = _called(clipping, norms, max_grad_norm), norms.split(max(1, (len(norms) + 1) // 2))
    again = torch.cat([_called(clipping, half, max_grad_norm) for half in halves])
    alike = torch.isclose(factors, again, rtol=1e-4, atol=0).all()
    if norms.device.type == "cpu" and not alike:
        raise ValueError("clipping: the callable must give each norm its factor whatever the other norms are (a mean "
                         "or a quantile of the batch would let one example change all factors)")  # fmt: skip
    return torch.where(alike, factors, 0)


def _called(clipping: Callable, norms: torch.Tensor, max_grad_norm: float) -> torch.Tensor:
    """Factors by a callable, which gets norms of its own and may overwrite them, cut to [0, C / norm]."""
    factors = torch.as_tensor(clipping(norms.clone()), dtype=norms.dtype, device=norms.device)
    if factors.shape != norms.shape:
        raise ValueError(f"clipping: the callable must return one factor an example, shape {tuple(norms.shape)}, "
                         f"got {tuple(factors.shape)}")  # fmt: skip
    factors = torch.where(torch.isfinite(factors), factors, 0).clamp(min=0)
    return torch.where(torch.isfinite(norms), torch.minimum(factors, max_grad_norm / norms), 0)


def check_clipping(clipping: str | Callable, max_grad_norm: float) -> None:
    """Refuse, with the argument's name, what :func:`clip_factors` could not use.

    Raises:
        ValueError: unknown name, C not positive, or C infinite where the factor would be infinite.
    """
    if not callable(clipping) and (not isinstance(clipping, str) or clipping not in CLIPPINGS):
        raise ValueError(
            f"clipping must be one of {sorted(CLIPPINGS)} or a callable norms -> factors, got {clipping!r}"
        )
    if math.isinf(arguments.max_grad_norm(max_grad_norm)) and clipping == "automatic":
        raise ValueError('max_grad_norm must be finite with clipping="automatic", which scales gradients up to it')

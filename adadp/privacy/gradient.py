"""The private gradient of DP-SGD: per-example clipping, a sum, Gaussian noise, a declared divisor.

This file composes: recording.py watches the forward pass, layers.py turns what it saw into norms and sums, fallback.py
handles what has no rule, clipping.py gives the factors.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adadp.privacy import fallback
from adadp.privacy.clipping import check_clipping, clip_factors
from adadp.privacy.recording import Recorder
from adadp.privacy.terms import Dense, merge


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each example, shape (B,): the default per-example loss. Integer labels of any dtype.

    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3], dtype=torch.uint8))
    tensor([1.3863, 1.3863])
    """
    if not y.is_floating_point():
        y = y.long()
    return F.cross_entropy(output, y, reduction="none")


class PrivateGradient:
    """Gradients of a model that are differentially private with respect to one training example.

    :meth:`backward` sets every trainable parameter's ``grad`` to

        (1 / E) * ( sum_i f_i g_i  +  N(0, (C sigma)^2 I) ),        f_i = min(1, C / |g_i|),

    g_i the gradient of example i's loss with respect to all trainable parameters together, E the declared expected
    batch size. It replaces ``loss.backward()`` in any training loop; the model keeps no hooks and no attributes.

    Args:
        model: any ``nn.Module``. The first dimension of its inputs and of its output counts examples.
        max_grad_norm: C > 0, the largest 2-norm of an example's gradient. ``inf`` only with ``noise_multiplier=0``.
        noise_multiplier: sigma >= 0. 0 draws nothing (and is not private).
        expected_batch_size: E > 0, the constant divisor: ``sampling.expected_batch_size(n)``. Need not be whole.
        clipping: "flat", "automatic", or a callable norms -> factors (:mod:`adadp.privacy.clipping`).
        loss: (output, y) -> one value an example, shape (B,); it must not mix examples.
        max_physical_batch_size: examples that are in memory at once; larger batches are cut up. The result is the same.
        generator: source of the noise, on the parameters' device. None: torch's global one.

    Raises:
        ValueError: a bad argument, or a model that cannot be made private (a batch norm in training mode, a sparse
            embedding): the message says why and what to use instead.

    Guarantees:
        With Poisson sampling one ``backward`` is one use of the subsampled Gaussian mechanism with noise multiplier
        sigma and add/remove neighbours, up to floating-point rounding, provided that neither the model nor the loss
        lets one example see another. All trainable parameters get noise whether the batch touched them or not: that
        one was not touched would be news about the data.

        ========================================  ==========================================================
        case                                      result
        ========================================  ==========================================================
        empty batch                               pure noise; the returned loss is 0
        batch larger or smaller than expected     divided by ``expected_batch_size`` all the same
        non-finite gradient of an example         that example contributes zero (masked, so nan does not spread)
        gradient of an example is zero            contributes zero
        frozen parameter                          takes no part in norms; its ``grad`` is left alone
        trainable parameter that is not used      pure noise
        tied or twice-used parameter              its contributions are added before the norm is taken
        ``backward`` twice before a step          the second overwrites ``grad``: nothing accumulates and no
                                                  ``zero_grad`` is needed; account for both
        sigma = 0, C = inf                        the plain gradient of sum(losses) / E
        ========================================  ==========================================================

    The loss that :meth:`backward` returns is NOT private, and neither is the drawn batch size: look at them, but do not
    publish them or decide anything by them that the epsilon is to cover.

    >>> model = nn.Linear(3, 2)
    >>> grad = PrivateGradient(model, max_grad_norm=1.0, noise_multiplier=1.1, expected_batch_size=4,
    ...                        generator=torch.Generator().manual_seed(0))
    >>> loss = grad.backward(torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1]))
    >>> model.weight.grad.shape, loss.shape
    (torch.Size([2, 3]), torch.Size([]))

    Reference: gradient of Algorithm 2, Koskela & Honkela; Abadi et al. 2016, Algorithm 1.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        max_grad_norm: float,
        noise_multiplier: float,
        expected_batch_size: float,
        clipping: str | Callable = "flat",
        loss: Callable = cross_entropy,
        max_physical_batch_size: int | None = None,
        generator: torch.Generator | None = None,
    ):
        check_clipping(clipping, max_grad_norm)
        if not 0 <= noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier must be finite and >= 0, got {noise_multiplier!r}")
        if noise_multiplier > 0 and math.isinf(max_grad_norm):
            raise ValueError(
                "max_grad_norm must be finite when there is noise: its scale is max_grad_norm * noise_multiplier"
            )
        if not 0 < expected_batch_size < math.inf:
            raise ValueError(f"expected_batch_size must be finite and > 0, got {expected_batch_size!r}")
        if max_physical_batch_size is not None and not max_physical_batch_size >= 1:
            raise ValueError(f"max_physical_batch_size must be >= 1 or None, got {max_physical_batch_size!r}")
        fallback.check_model(model)
        self.model, self.loss, self.clipping, self.generator = model, loss, clipping, generator
        self.max_grad_norm, self.noise_multiplier = max_grad_norm, noise_multiplier
        self.expected_batch_size, self.max_physical_batch_size = expected_batch_size, max_physical_batch_size
        self._without_rule: set[int] = set()  # parameters that some operation without a rule uses, by id
        self._layouts: dict[tuple, tuple[set, bool]] = {}

    def backward(self, x, y: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Set ``grad`` of every trainable parameter to the private gradient.

        Args:
            x: input of the model, shape (B, ...); or a tuple (positional) or dictionary (keyword arguments) of such.
            y: what the loss compares with, shape (B, ...).
            mask: bool, shape (B,); False marks padding, which counts as absent
                (see :func:`adadp.privacy.sampling.padded`).

        Returns:
            The mean loss of the batch, a 0-dim tensor; 0 for an empty batch. NOT private.

        Raises:
            ValueError: shapes that do not fit together, a loss that is not one value an example, a batch norm in
                training mode.
            RuntimeError: an operation that cannot be differentiated one example at a time.
        """
        fallback.check_model(self.model)
        params = [p for p in self.model.parameters() if p.requires_grad]
        size = fallback.batch_size(x, y, mask)
        sums = self._start(params)
        total, count = 0.0, size if mask is None else mask.sum()
        step = self.max_physical_batch_size or max(size, 1)
        for i in range(0, size, step):
            part = slice(i, i + step)
            total = total + self._add_clipped(
                params, sums, fallback.part(x, part), y[part], None if mask is None else mask[part]
            )
        for p, total_p in zip(params, sums, strict=True):
            p.grad = total_p
        return _mean(total, count, params)

    def _start(self, params: list[Tensor]) -> list[Tensor]:
        """Buffers that start with the noise and collect the sums: ``p.grad`` itself where there is one."""
        std = self.noise_multiplier * self.max_grad_norm / self.expected_batch_size if self.noise_multiplier else 0.0
        buffers = []
        for p in params:
            reusable = p.grad is not None and p.grad.layout == torch.strided and p.grad.stride() == p.stride()
            buffer = p.grad.detach() if reusable else torch.empty_like(p)
            buffers.append(_fill_noise(buffer, std, self.generator) if std else buffer.zero_())
        return buffers

    def _add_clipped(self, params, sums, x, y, mask) -> Tensor:
        """Add the clipped gradients of one physical batch, over E, to ``sums``; return the sum of its losses."""
        losses, terms = self._terms(params, x, y)
        with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
            keep = mask
            if terms:
                squares = [term.sqnorm().to(losses.dtype) for term in terms.values()]
                norms = torch.stack(squares).sum(0).sqrt_() if len(squares) > 1 else squares[0].sqrt_()
                factors = clip_factors(self.clipping, norms, self.max_grad_norm) / self.expected_batch_size
                finite = torch.isfinite(norms)
                if losses.device.type != "cpu" or not bool(finite.all()):  # a look costs nothing on a CPU
                    keep = finite if keep is None else keep & finite
                if keep is not None:
                    factors = torch.where(keep, factors, 0)
                for p, out in zip(params, sums, strict=True):
                    if id(p) in terms:
                        terms[id(p)].add_sum(out, factors.to(out.dtype), keep)
            losses = losses.detach()
            return (losses if mask is None else torch.where(mask, losses, 0)).sum()

    def _terms(self, params, x, y) -> tuple[Tensor, dict]:
        """Losses of one physical batch and, by parameter id, the terms of the per-example gradients."""
        while True:
            ruled = [p for p in params if id(p) not in self._without_rule]
            losses, pairs, strange = self._forward_backward(ruled, x, y)
            if not strange:
                break
            self._without_rule |= strange  # now known; the pass is made again without them
        by_param: dict[int, list] = {}
        for p, term in pairs:
            by_param.setdefault(id(p), []).append(term)
        terms = {key: merge(found) for key, found in by_param.items()}
        rest = {id(p) for p in params} & self._without_rule
        if rest:
            named = {name: p for name, p in self.model.named_parameters() if id(p) in rest}
            grads = fallback.per_example_gradients(self.model, self.loss, named, x, y)
            terms |= {id(p): Dense(grads[name]) for name, p in named.items()}
        return losses, terms

    def _forward_backward(self, ruled, x, y) -> tuple[Tensor, list, set[int]]:
        """One pass: losses, (parameter, term) pairs, and the ids of parameters that need the fallback."""
        size = len(y)
        token = torch.zeros((), requires_grad=True)
        with torch.set_grad_enabled(bool(ruled)):
            with Recorder(ruled, token) as recorder:
                output = fallback.call(self.model, x)
            losses = fallback.per_example_losses(self.loss, output, y, size)
        calls = recorder.calls
        if not losses.requires_grad:
            return losses, [], set()
        grads = torch.autograd.grad(losses.sum(), [c.edge for c in calls] + ruled, allow_unused=True)
        strange = {id(p) for p, g in zip(ruled, grads[len(calls) :], strict=True) if g is not None}
        known, random = self._layout_of_one(ruled, x)
        for c, g in zip(calls, grads, strict=False):
            if c.layout not in known or len(c.input) != size or (g is not None and (len(g) != size or g.dim() < 2)):
                strange |= set(map(id, c.params.values()))
        if random and (strange or self._without_rule):  # both ways must see the same dropout masks: one way for all
            strange = {id(p) for p in ruled}
        if strange:
            return losses, [], strange
        pairs = [pair for c, g in zip(calls, grads, strict=False) if g is not None for pair in c.terms(g)]
        return losses, pairs, strange

    def _layout_of_one(self, ruled, x) -> tuple[set, bool]:
        """The calls that one example makes with a first dimension of 1, and whether the model draws random numbers.

        A layer may see the examples in another dimension (time first) or folded into one (B*T rows). A ghost norm would
        then mix them up, silently if the sizes happen to agree; such layers go to the fallback. One forward pass of one
        example, once for every shape of input.
        """
        key = (self.model.training, len(ruled), *((t.shape[1:], t.dtype) for t in fallback.leaves(x)))
        if key not in self._layouts:
            devices = list({p.device for p in ruled if p.is_cuda})
            with torch.random.fork_rng(devices), torch.no_grad(), Recorder(ruled, torch.zeros(())) as recorder:
                before = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
                fallback.call(self.model, fallback.part(x, slice(0, 1)))
                after = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
            random = not all(map(torch.equal, before, after))
            self._layouts[key] = ({c.layout for c in recorder.calls if len(c.input) == 1}, random)
        return self._layouts[key]


def _fill_noise(buffer: Tensor, std: float, generator: torch.Generator | None) -> Tensor:
    """Fill with N(0, std^2), in memory order: the contiguous fill is the fast one whatever the strides are."""
    if generator is not None and generator.device.type != buffer.device.type:
        raise ValueError(f"generator lives on {generator.device} and the parameters on {buffer.device}: "
                         f"make it with torch.Generator({buffer.device.type!r})")  # fmt: skip
    flat = buffer.as_strided((buffer.numel(),), (1,)) if _is_dense(buffer) else torch.empty_like(buffer)
    flat.normal_(0.0, std, generator=generator)
    return buffer if flat.data_ptr() == buffer.data_ptr() else buffer.copy_(flat)


def _is_dense(t: Tensor) -> bool:
    """Whether the elements fill a stretch of memory exactly, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _mean(total, count, params) -> Tensor:
    """total / count as a 0-dim tensor; 0 for an empty batch."""
    total = torch.as_tensor(total, device=params[0].device if params else None)
    return total / max(count, 1) if isinstance(count, int) else total / count.clamp(min=1)

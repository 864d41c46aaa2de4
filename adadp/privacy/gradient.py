"""The private gradient of DP-SGD: per-example clipping, a sum, Gaussian noise, a declared divisor.

This file composes: per_example.py makes one pass and returns what it learned about every example's gradient,
clipping.py turns norms into factors, and the weighted sums are added to buffers that already hold the noise.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from adadp.privacy import arguments, fallback
from adadp.privacy.clipping import check_clipping, clip_factors
from adadp.privacy.exact import exact
from adadp.privacy.ledger import Ledger
from adadp.privacy.per_example import PerExample
from adadp.privacy.terms import joint_norms
from adadp.sources import secret_generator


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each example, (B,), the default loss: ``output`` (B, classes), ``y`` integers of any dtype.

    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3], dtype=torch.uint8))
    tensor([1.3863, 1.3863])
    """
    if not y.is_floating_point():
        y = y.long()
    return F.cross_entropy(output, y, reduction="none")


def _fixed(name: str, doc: str) -> property:
    """An attribute that stays as it was given."""

    def refuse(self, value):
        raise AttributeError(f"{name} of a PrivateGradient is fixed, since it is accounted for as it was given: "
                             f"make a new PrivateGradient with {name}={value!r}")  # fmt: skip

    return property(lambda self: getattr(self, f"_{name}"), refuse, doc=doc)


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
        generator: source of the noise, on the parameters' device. None: torch's global one, which nobody may then set
            back while training: the same noise twice hides nothing.

    Attributes:
        max_grad_norm, noise_multiplier, expected_batch_size, clipping: as given. They cannot be set: for other noise,
            make a new ``PrivateGradient``, and account for both.
        steps: gradients released so far, an int; those of empty and of padded batches count. Replays of a CUDA graph
            do not pass here: count them yourself.
        ledger: these steps, and what :func:`adadp.train` knows of them (:class:`adadp.privacy.ledger.Ledger`). Its
            ``state_dict`` belongs into the checkpoints of a loop of your own.

    Raises:
        TypeError: ``model``, ``loss`` or ``generator`` is something else.
        ValueError: another argument is bad, or the model cannot be made private (a batch norm in training mode, a
            sparse embedding): the message says why and what to use instead.

    Guarantees:
        With Poisson sampling one ``backward`` is one use of the subsampled Gaussian mechanism with noise multiplier
        sigma and add/remove neighbours, up to floating-point rounding, provided that neither the model nor the loss
        lets one example see another or, for its values, change places with it. All trainable parameters get noise
        whether the batch touched them or not: that one was not touched would be news about the data.

        ========================================  ==========================================================
        case                                      result
        ========================================  ==========================================================
        empty batch                               pure noise; the returned loss is 0
        batch larger or smaller than expected     divided by ``expected_batch_size`` all the same
        non-finite gradient of an example         that example contributes zero (masked, so nan does not spread)
        gradient of an example is zero            contributes zero
        frozen parameter                          takes no part in norms; its ``grad`` is set to None: an old one would
                                                  reach the optimizer without noise
        trainable parameter that is not used      pure noise
        tied or twice-used parameter              its contributions are added before the norm is taken
        ``backward`` twice before a step          the second overwrites ``grad``: nothing accumulates and no
                                                  ``zero_grad`` is needed; account for both
        padding, marked by ``mask``               absent: not in the sum, not in the loss
        examples see each other in the model      noticed by trying a few, if gradients show it; then each runs alone,
                                                  as if it were a batch of its own
        examples see each other in the loss       noticed likewise, in outputs of tensors; refused
        a batch statistic of the inputs           noticed likewise, if nothing is random: an example's output is
                                                  another than it is alone; refused
        the forward pass changes a buffer or a    refused: it would keep statistics of the data without noise; spectral
        frozen parameter                          norms, which follow the weights alone, are taken
        the forward pass differentiates           taken with ``torch.func``; ``torch.autograd.grad`` is refused
        an operation that cannot be batched       examples run one after the other; a warning says why it is slow
        a parameter's own hook                    not called: change ``grad`` after ``backward``
        loss uses the model's parameters          refused
        checkpointed block, not reentrant         as any other; its layers' inputs are kept all the same
        autocast, TF32                            norms, sums and noise in the parameters' own precision
        an example's positions cancel each other  its norm is taken as larger than rounding could have made it
        parameters in half precision              refused: rounding would break the bound on the norm
        sigma = 0, C = inf                        the plain gradient of sum(losses) / E
        ========================================  ==========================================================

    In a CUDA graph: give batches a fixed size (:func:`adadp.privacy.sampling.padded`; record anew when it grows), call
    ``backward`` a few times on a side stream (and take a step, where a last layer is still zero), register the
    generator (``graph.register_generator_state(generator)``), and record. Every replay then draws new noise, of the
    scale that was recorded, into the same ``grad``; so never set that to None in between.

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
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        check_clipping(clipping, max_grad_norm)
        max_grad_norm = arguments.max_grad_norm(max_grad_norm)
        noise_multiplier = arguments.noise_multiplier(noise_multiplier)
        expected_batch_size = arguments.real("expected_batch_size", expected_batch_size, open_low=True)
        if max_physical_batch_size is not None:
            max_physical_batch_size = arguments.count("max_physical_batch_size", max_physical_batch_size, low=1)
        arguments.function("loss", loss, "(output, y) -> one value an example")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")
        arguments.noise_scale(max_grad_norm, noise_multiplier, expected_batch_size)
        fallback.check_model(model)
        self.model, self.loss, self._clipping, self.generator = model, loss, clipping, generator
        self._max_grad_norm, self._noise_multiplier = max_grad_norm, noise_multiplier
        self._expected_batch_size, self.max_physical_batch_size = expected_batch_size, max_physical_batch_size
        self.ledger = Ledger()
        self._per_example = PerExample(model, loss)

    max_grad_norm = _fixed("max_grad_norm", "C, the largest norm of an example's gradient.")
    noise_multiplier = _fixed("noise_multiplier", "sigma, the noise's standard deviation over C.")
    expected_batch_size = _fixed("expected_batch_size", "E, the divisor.")
    clipping = _fixed("clipping", "Name of the clipping, or the function.")

    def __setstate__(self, state: dict) -> None:
        """A copy draws noise of its own: where it is the same twice, a difference shows what it hid."""
        self.__dict__.update(state)
        if self.generator is not None:
            self.generator = secret_generator(self.generator.device)

    @property
    def steps(self) -> int:
        """Gradients released so far."""
        return self.ledger.steps

    def backward(self, x, y: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Set ``grad`` of every trainable parameter to the private gradient, and that of frozen ones to None.

        Args:
            x: input of the model, shape (B, ...); or a tuple (positional) or dictionary (keyword arguments) of such.
            y: what the loss compares with, shape (B, ...).
            mask: bool, shape (B,); False marks padding, which counts as absent
                (see :func:`adadp.privacy.sampling.padded`).

        Returns:
            The mean loss of the batch, a 0-dim tensor; 0 for an empty batch. NOT private.

        Raises:
            ValueError: shapes that do not fit together, a loss that is not one value an example or that uses the
                model's parameters, a batch norm in training mode.
            RuntimeError: ``torch.inference_mode``; ``parametrize.cached``; an input that is changed in place.
        """
        if torch.is_inference_mode_enabled():
            raise RuntimeError("no gradients can be had under torch.inference_mode(): call backward outside of it")
        if getattr(parametrize, "_cache_enabled", 0):  # one weight for all examples, whose gradients would mix
            raise RuntimeError("under parametrize.cached() examples share a weight: call backward outside of it")
        fallback.check_model(self.model)
        params, frozen = fallback.trainable(self.model)
        size = fallback.batch_size(x, y, mask)
        for p in params:
            if not p.is_cuda:  # on a card the memory stays where it is, because a CUDA graph needs it there
                p.grad = None
        for p in frozen:
            p.grad = None
        sums: dict[int, Tensor] = {}
        total = 0.0
        for x_part, y_part, keep in self._physical(x, y, mask, size):
            losses, terms = self._per_example.terms(params, x_part, y_part, keep)
            with exact(losses.device):
                factors, counted = self._factors(losses, terms, keep)  # while the pass is still in the cache
                for p in reversed(params):  # early layers last: most memory is theirs, and by then the rest is free
                    out = self._sum(p, sums)
                    if id(p) in terms:
                        terms.pop(id(p)).add_sum(out, factors.to(out.dtype), counted)
                total = total + (losses if keep is None else torch.where(keep, losses, 0)).sum()
        for p in reversed(params):
            p.grad = self._sum(p, sums)
        return _mean(total, size if mask is None else mask.sum(), params)

    def _physical(self, x, y, mask, size: int):
        """The batch in parts that fit into memory."""
        limit = self.max_physical_batch_size  # it may be changed, for it changes no result
        step = size if limit is None else arguments.count("max_physical_batch_size", limit, low=1)
        if 0 < size <= step:
            yield x, y, mask
            return
        for i in range(0, size, step or 1):
            part = slice(i, i + step)
            yield fallback.part(x, part), y[part], None if mask is None else mask[part]

    def _sum(self, p: Tensor, sums: dict[int, Tensor]) -> Tensor:
        """The buffer in which a parameter's sum is collected; it starts with the noise."""
        if id(p) not in sums:
            self.ledger.steps += int(not sums)  # from here on something may get out, even if this call fails
            buffer = p.grad if _reusable(p.grad, p) else torch.empty_like(p, requires_grad=False)
            std = self.noise_multiplier * self.max_grad_norm / self.expected_batch_size if self.noise_multiplier else 0
            sums[id(p)] = _fill_noise(buffer, std, self.generator) if std else buffer.zero_()
        return sums[id(p)]

    def _factors(self, losses, terms, keep) -> tuple[Tensor | None, Tensor | None]:
        """Factors f_i / E of one physical batch, and which examples count at all (None: every one)."""
        if not terms:
            return None, keep
        norms = joint_norms(list(terms.values()))
        factors = clip_factors(self.clipping, norms, self.max_grad_norm).div_(self.expected_batch_size)
        if losses.device.type != "cpu" or not math.isfinite(float(norms.sum())):  # a look costs nothing on a CPU only
            finite = torch.isfinite(norms)
            keep = finite if keep is None else keep & finite
        return factors if keep is None else torch.where(keep, factors, 0), keep


def _reusable(grad: Tensor | None, p: Tensor) -> bool:
    """Whether a gradient's memory can hold the next one."""
    if grad is None or grad.layout != torch.strided or grad.requires_grad:
        return False
    return all(getattr(grad, a) == getattr(p, a) for a in ("shape", "dtype", "device")) and grad.stride() == p.stride()


def _fill_noise(buffer: Tensor, std: float, generator: torch.Generator | None) -> Tensor:
    """Fill with N(0, std^2), in memory order: the contiguous fill is the fast one whatever the strides are."""
    if generator is not None and generator.device.type != buffer.device.type:
        raise ValueError(f"generator lives on {generator.device} and the parameters on {buffer.device}: "
                         f"make it with torch.Generator({buffer.device.type!r})")  # fmt: skip
    if buffer.is_contiguous():
        return buffer.normal_(0.0, std, generator=generator)
    if _is_dense(buffer):
        buffer.as_strided((buffer.numel(),), (1,)).normal_(0.0, std, generator=generator)
        return buffer
    return buffer.copy_(
        torch.empty(buffer.shape, dtype=buffer.dtype, device=buffer.device).normal_(0.0, std, generator=generator)
    )


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

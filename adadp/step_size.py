"""Step-size control: an error comes in, the decision to keep the step and the next learning rate go out.

Nothing here knows of gradients, models or privacy. Errors and learning rates may be floats or 0-dim tensors; the
host never reads a tensor, so that the same law runs inside a CUDA graph.
"""

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

Scalar = float | Tensor


def number(name: str, value, *, above=-math.inf, at_least=-math.inf, at_most=math.inf) -> float:
    """Return ``value`` as a float if it is a finite number within the bounds.

    Raises:
        ValueError: naming the argument; ``nan``, infinities, booleans and things that are no number included.
    """
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:  # an integer beyond every float
        number = math.inf
    if math.isfinite(number) and number > above and at_least <= number <= at_most:
        return number
    bounds = {"above": above, "at least": at_least, "at most": at_most}
    wanted = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound))
    raise ValueError(f"{name} must be a finite number {wanted}, got {value!r}")


@dataclass(frozen=True)
class Controller:
    r"""The step-size law of the paper, with the exponent and the discarding rule as switches.

    .. math:: \eta_{\ell+1} = \min(\max((\mathrm{tol}/\mathrm{err}_\ell)^{p}, \alpha_{\min}), \alpha_{\max})\,\eta_\ell

    The exponents found in the literature, and who uses which:

    ======================= ============================ ==============================================================
    p                       who                          why
    ======================= ============================ ==============================================================
    1                       the paper, Algorithms 1, 2   as printed (the default here)
    1 / 2                   the paper's published code   1/(order + 1): the local error of Euler's method is O(eta^2)
    1 / 2, safety 0.8-0.9   textbook ODE codes           as above, a little smaller so that fewer steps are discarded
    ======================= ============================ ==============================================================

    When noise dominates, err is proportional to eta, not eta^2, and p = 1 is the exponent that would reach tol in one
    update were it not for the bounds; both settle at the same place, err = tol.

    Args:
        tol: wanted error of one iteration, > 0.
        alpha_min: smallest factor, in (0, 1].
        alpha_max: largest factor, >= 1.
        exponent: p above, > 0.
        discard: refuse a step whose error exceeds ``tol`` (Algorithm 1); its error changes the lr all the same.

    Raises:
        ValueError: naming the argument that is out of range (nan included).

    Guarantees:
        * The factor is in [alpha_min, alpha_max] for every error, nan and infinities included.
        * A non-finite error is never accepted and gives ``alpha_min``; a zero error gives ``alpha_max``.
        * Tensors stay on their device: no value is read.

    >>> law = Controller(tol=1.0, discard=True)
    >>> law(2.0, 0.1)  # too large: refused, and the lr shrinks
    (False, 0.09000000000000001)
    >>> law(0.5, 0.1)
    (True, 0.11000000000000001)
    >>> law(float("nan"), 0.1)
    (False, 0.09000000000000001)

    Reference: Alg. 1 and 2, Koskela & Honkela.
    """

    tol: float = 1.0
    alpha_min: float = 0.9
    alpha_max: float = 1.1
    exponent: float = 1.0
    discard: bool = False

    def __post_init__(self):
        number("tol", self.tol, above=0)
        number("alpha_min", self.alpha_min, above=0, at_most=1)
        number("alpha_max", self.alpha_max, at_least=1)
        number("exponent", self.exponent, above=0)
        if not isinstance(self.discard, bool):
            raise ValueError(f"discard must be True or False, got {self.discard!r}")

    def __call__(self, error: Scalar, lr: Scalar) -> tuple[bool | Tensor, Scalar]:
        """Say whether a step with this error is kept, and the next lr."""
        return self.accepts(error), lr * self.factor(error)

    def accepts(self, error: Scalar) -> bool | Tensor:
        """Whether a step with this error is kept."""
        finite = torch.isfinite(error) if isinstance(error, Tensor) else math.isfinite(error)
        return finite & (error <= self.tol) if self.discard else finite

    def factor(self, error: Scalar) -> Scalar:
        """What the lr is multiplied by."""
        if isinstance(error, Tensor):
            ratio = (self.tol / error) ** self.exponent
            return torch.where(torch.isfinite(error), ratio.clamp(self.alpha_min, self.alpha_max), self.alpha_min)
        if not math.isfinite(error):
            return self.alpha_min
        try:
            ratio = (self.tol / error) ** self.exponent
        except (ZeroDivisionError, OverflowError):
            return self.alpha_max
        return min(max(ratio, self.alpha_min), self.alpha_max)


def predicted_lr(
    *,
    tol: float,
    noise_multiplier: float,
    max_grad_norm: float,
    num_parameters: int,
    expected_batch_size: float,
) -> float:
    r"""Where ADADP's learning rate settles when the privacy noise dominates the gradients.

    The two gradients of an iteration differ by noise of variance :math:`2 (\sigma C / B)^2` in each of d coordinates,
    so :math:`\mathrm{err} \approx \eta \sigma C \sqrt{d/2} / B`; setting it to tol gives

    .. math:: \eta = \mathrm{tol} \sqrt{2/d}\; B / (\sigma C).

    Args:
        tol: the optimizer's ``tol``.
        noise_multiplier: sigma, the noise's standard deviation over ``max_grad_norm``, > 0.
        max_grad_norm: C, the clipping norm, > 0.
        num_parameters: d, the number of trained parameters.
        expected_batch_size: B, what gradients are divided by (the paper's unit is the sum: B = 1).

    Returns:
        The learning rate, for averaged gradients.

    Raises:
        ValueError: naming the argument that is not a finite number above 0.

    Guarantees:
        Holds for weights below 1 in absolute value (the error is then not rescaled) and sqrt(d) much larger than B;
        with fewer weights the change of the gradient itself adds to the error, and ADADP settles lower; with weights
        above 1 the relative error is smaller, and it settles higher.

    >>> round(predicted_lr(tol=1.0, noise_multiplier=2.0, max_grad_norm=10.0, num_parameters=334336,
    ...                    expected_batch_size=200), 5)
    0.02446

    Reference: Sec. "Choice of parameter tol", Koskela & Honkela.
    """
    arguments = {
        "tol": tol,
        "noise_multiplier": noise_multiplier,
        "max_grad_norm": max_grad_norm,
        "num_parameters": num_parameters,
        "expected_batch_size": expected_batch_size,
    }
    for name, value in arguments.items():
        number(name, value, above=0)
    return tol * math.sqrt(2 / num_parameters) * expected_batch_size / (noise_multiplier * max_grad_norm)


def suggested_tol(*, steps: int, num_parameters: int) -> float:
    r"""``tol`` for the recommended variant, by the length of a private training and the size of the network.

    T iterations with err = tol that keep the half steps leave in each of d weights a noise of standard deviation

    .. math:: \nu = \mathrm{tol} \sqrt{T / d}, \qquad\text{hence}\qquad \mathrm{tol} = \nu \sqrt{d / T},

    whatever the noise multiplier, clipping norm and batch size: a training that is a hundred times shorter can afford
    a tol ten times larger. Here :math:`\nu` is that of ``VARIANTS["recommended"]`` on MNIST (334,336 parameters, 30,000
    gradients), 0.0377: of the values tried, tol 0.1778 was the best for 100 epochs when 5000 images were held out.

    Args:
        steps: gradients in all, > 0; two an iteration, so T is half of them.
        num_parameters: d, the number of trained parameters.

    Returns:
        The ``tol``, to be used as ``ADADP(..., **VARIANTS["recommended"] | {"tol": tol})``; variants that keep the full
        step (``advance="euler"``) leave as much noise with a tol smaller by the square root of 2.

    Raises:
        ValueError: naming the argument that is not a finite number above 0.

    Guarantees:
        None for accuracy: how much noise weights bear was found on one network and one data set. Without privacy noise
        the law does not apply; tol = 0.1 is a beginning there.

    >>> suggested_tol(steps=30_000, num_parameters=334_336)
    0.1778
    >>> round(suggested_tol(steps=300, num_parameters=334_336), 3)
    1.778

    Reference: Sec. "Choice of parameter tol", Koskela & Honkela; there with the full steps' noise, sqrt(2 T / d) tol.
    """
    steps, num_parameters = number("steps", steps, above=0), number("num_parameters", num_parameters, above=0)
    return 0.1778 * math.sqrt(30_000 / steps * (num_parameters / 334_336))

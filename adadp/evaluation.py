"""Accuracy and loss of a model, and the placing of batches where the model is."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
TOKENS = (torch.int32, torch.int64)  # what an embedding looks up


@torch.no_grad()
def evaluate(
    model: nn.Module, x: Tensor, y: Tensor, *, loss: Loss, batch_size: int | None = None
) -> tuple[float | None, float | None]:
    """Accuracy (0..1) and mean loss in evaluation mode; every module's mode is restored afterwards.

    Args:
        model: outputs (B, classes).
        x: examples (N, ...), moved to the model's device a batch at a time.
        y: labels (N,), or floating-point targets (N, ...), which have no accuracy.
        loss: (output, y) -> (B,).
        batch_size: examples at once. None: 1000, but 50 on the CPU, whose cache then holds what a convolution
            returns.

    Returns:
        (None, None) for no examples; (None, loss) where ``y`` is floating point.

    Raises:
        ValueError: integer labels, but not one output a class; a loss that is not one value an example.

    >>> model, loss = nn.Identity(), lambda output, y: 1 - output.gather(1, y[:, None])[:, 0]
    >>> evaluate(model, torch.tensor([[0.75, 0.25], [0.25, 0.75]]), torch.tensor([0, 0]), loss=loss)
    (0.5, 0.5)
    """
    if len(x) == 0:
        return None, None
    if batch_size is None:
        batch_size = 50 if next(model.parameters(), x).device.type == "cpu" else 1000
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        right, total = 0.0, 0.0
        for start in range(0, len(x), batch_size):
            part, labels = placed(model, x[start : start + batch_size], y[start : start + batch_size])
            output = model(part)
            if not y.is_floating_point():
                got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
                if not isinstance(output, Tensor) or output.dim() != 2 or output.shape[1] < 2:
                    raise ValueError(
                        f"model must output one column a class, shape (B, classes), where labels are integers; got "
                        f"{got} (with one output for yes and no, give floating-point targets)"
                    )
                right = right + (output.argmax(1) == labels).sum()
            total = total + per_example_losses(loss, output, labels, len(labels)).double().sum()
    finally:
        for module, mode in modes:
            module.training = mode
    return None if y.is_floating_point() else float(right) / len(x), float(total) / len(x)


def per_example_losses(loss: Callable, output, y: Tensor, size: int) -> Tensor:
    """The losses, shape (B,).

    Raises:
        ValueError: the loss returns anything else: a mean would hide whose loss it is, and (B, B) be another objective.
    """
    losses = loss(output, y)
    if losses.shape != (size,):
        raise ValueError(f"loss must return one value an example, shape ({size},), got {tuple(losses.shape)}; "
                         'a loss of torch.nn needs reduction="none"')  # fmt: skip
    return losses


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """The device meant: "auto" is CUDA where there is one, else the CPU.

    Raises:
        ValueError: there is no such device here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={str(device)!r} is not there; use 'auto' or 'cpu'") from error


def placed(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A batch on the model's device, in its floating-point type (float64 for a float64 model); tokens stay integers."""
    like = next(model.parameters(), x)
    real = like.dtype if like.is_floating_point() else None
    kinds = (
        (x.dtype if real is None or x.dtype in TOKENS else real),
        real if y.is_floating_point() and real else y.dtype,
    )
    return x.to(like.device, kinds[0]), y.to(like.device, kinds[1])


def memory_format(model: nn.Module) -> torch.memory_format:
    """Channels last for convolutional networks: max-pooling is ten times faster in it."""
    convolutional = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return torch.channels_last if convolutional else torch.contiguous_format

"""One training loop: sampled batches, a plain or a private gradient, any optimizer, epsilon beside every accuracy."""

import inspect
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from adadp.data import Dataset
from adadp.evaluation import Loss, evaluate, pick_device
from adadp.history import History
from adadp.loop import TrainingRun
from adadp.privacy import arguments
from adadp.privacy.gradient import cross_entropy
from adadp.privacy.spending import Spending
from adadp.progress import progress_bar

__all__ = ["AdaptThenDecay", "History", "cross_entropy", "evaluate", "train"]


def train(
    model: nn.Module,
    data: Dataset,
    optimizer: torch.optim.Optimizer,
    *,
    sampling,
    gradient=None,
    loss: Loss = cross_entropy,
    delta: float = 1e-5,
    accountant: str = "moments",
    evaluate_every: int = 1,
    generator: torch.Generator | None = None,
    device: str | torch.device = "auto",
    progress: bool = True,
    callbacks: Sequence = (),
    checkpoint: str | os.PathLike | None = None,
    keep_checkpoint: bool = False,
) -> History:
    """Train ``model`` in place, and record accuracy, learning rate and epsilon as it goes.

    One step is one gradient, so an ADADP iteration is two steps; an iteration that is open at the end of an epoch goes
    on in the next. Modules keep the mode (training or evaluation) they were handed over in, except while evaluating.

    Args:
        model: outputs one row an example, (B, classes); moved to ``device``.
        data: what to train and test on.
        optimizer: any; made from the model's parameters.
        sampling: :class:`adadp.PoissonSampling` or :class:`adadp.ShuffledPartition`; it also says how many steps.
        gradient: :class:`adadp.PrivateGradient` of ``model``. None: the plain mean gradient of the drawn batch (zero
            for an empty one), and epsilon is None. Epsilon includes what this object released in earlier trainings.
        loss: (output, y) -> (B,), for the plain gradient and for evaluation; a private gradient has its own. With
            floating-point targets the accuracy is None.
        delta: of the epsilon shown.
        accountant: "moments", "rdp" or "pld"; add/remove neighbours. Noise from ``calibrate_noise_multiplier``, which
            takes "pld" by default, reaches its target under "pld" only; "moments" shows a larger epsilon.
        evaluate_every: epochs between evaluations; the last epoch is always evaluated.
        generator: draws the batches, on the CPU. None: one seeded from torch's global generator.
        device: "auto" takes CUDA where there is one.
        progress: show a bar where somebody looks (a terminal, a live notebook).
        callbacks: each is called ``callback(epoch=, model=, optimizer=, history=)`` after every epoch, and may keep the
            history or end the training by raising; a torch
            learning-rate scheduler is taken too and stepped once an epoch (``ReduceLROnPlateau`` where the epoch is
            evaluated, by the test loss, with ``mode="max"`` by the accuracy). A callback with ``state_dict`` and
            ``load_state_dict`` is stored in the checkpoint.
        checkpoint: a file that holds everything needed to continue, rewritten after every epoch. A call with the same
            arguments continues from it and ends as if it had never been interrupted; it is deleted at the end. Where
            ``gradient`` knows that the training came to its end before, or that another one has drawn from its noise
            since, it goes on with new noise and batches, and epsilon counts both.
        keep_checkpoint: leave it there, for who stores the outcome first and deletes it afterwards.

    Returns:
        The history. Test accuracy and loss are not covered by epsilon: the test set counts as public.

    Raises:
        TypeError: ``data``, ``sampling``, ``gradient`` or a callback is something else, or ``optimizer`` asks for
            several gradients a step.
        ValueError: an argument is out of range, the parts do not belong together, or the checkpoint is another run's:
            the message says what differs.
        RuntimeError: the checkpoint is damaged, or of another model; the message names it.

    Warns:
        UserWarning: the sampler is not the Poisson sampling that epsilon assumes; ``gradient`` was used outside of
            ``train``, which epsilon then does not count (``history.privacy`` says so as well), or draws the noise of an
            earlier training or epoch again; its ``expected_batch_size`` is not the sampler's; ``optimizer`` leaves out
            trainable parameters.

    >>> data = Dataset(torch.randn(20, 3), torch.arange(20) % 2, torch.randn(4, 3), torch.arange(4) % 2)
    >>> from adadp.privacy.sampling import PoissonSampling
    >>> model = nn.Linear(3, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> history = train(model, data, optimizer, sampling=PoissonSampling(sample_rate=0.25, steps=8))
    >>> [(row["epoch"], row["steps"]) for row in history.rows]
    [(1, 4), (2, 8)]

    Reference: Algorithm 2, Koskela & Honkela.
    """
    callbacks = list(callbacks)
    _check(model, data, optimizer, sampling, gradient, loss, evaluate_every, callbacks)
    _check_accounting(sampling, gradient, len(data.x_train), delta, accountant)
    with torch.random.fork_rng(devices=[]):  # what would fail after an epoch fails now
        evaluate(model, data.x_test[:1], data.y_test[:1], loss=loss)
    run = TrainingRun(model, data, optimizer, sampling, gradient, loss, generator, pick_device(device))
    run.spend(Spending(gradient, sampling, run.size, float(delta), accountant))
    run.spending.epsilon(run.total)  # what the accountant cannot do is refused now, not after an epoch
    run.callbacks = callbacks
    if checkpoint is not None and Path(checkpoint).exists():
        run.resume(checkpoint)
    run.spending.look(run.step, stacklevel=3)
    batches = sampling.batches(run.size, run.generator, start=run.step)
    try:
        with progress_bar(run.total, initial=run.step, show=progress) as bar:
            while run.step < run.total:
                run.one_epoch(batches, bar)
                last = run.step == run.total
                if last or run.epoch % evaluate_every == 0:
                    run.history.rows.append(run.row())
                    bar.set_postfix({k: run.history.rows[-1][k] for k in ("test_accuracy", "lr")})
                run.call_back()
                if checkpoint is not None and (keep_checkpoint or not last):
                    run.save(checkpoint)
    finally:
        run.spending.end(run.begun, run.history.rows, run.noise_source())
    if checkpoint is not None and not keep_checkpoint:
        Path(checkpoint).unlink(missing_ok=True)
    return run.history


class AdaptThenDecay:
    """Callback: adapt for some epochs, then plain SGD with lr_k = lr_K / (1 + decay (k - K)) in epoch k > K.

    This is the paper's schedule, read in epochs: K = 50, decay = 0.1. Any other optimizer is decayed alike.

    Args:
        epochs: K >= 1; after it ``optimizer.freeze()`` is called where there is one.
        decay: >= 0.

    Raises:
        ValueError: an argument is out of range.

    >>> optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.6)
    >>> decay = AdaptThenDecay(epochs=2, decay=0.5)
    >>> for epoch in (1, 2, 3, 4):
    ...     decay(epoch=epoch, optimizer=optimizer)
    >>> round(optimizer.param_groups[0]["lr"], 3)
    0.24

    Reference: Section "Comparison of ADADP against DP-Adam", Koskela & Honkela.
    """

    def __init__(self, epochs: int = 50, decay: float = 0.1):
        self.epochs, self.decay = arguments.count("epochs", epochs, low=1), arguments.real("decay", decay)

    def __call__(self, *, epoch: int, optimizer, **_) -> None:
        """Set the lr of the epoch that comes next."""
        past = epoch - self.epochs
        if past < 0:
            return
        if past == 0 and hasattr(optimizer, "freeze"):
            optimizer.freeze()
        # from epoch to epoch, so there is no state to lose: lr_{k+1} / lr_k does not need lr_K
        factor = (1 + self.decay * past) / (1 + self.decay * (past + 1))
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor


def _check(model, data, optimizer, sampling, gradient, loss, evaluate_every, callbacks) -> None:
    """Refuse what would fail late, or train something else than meant."""
    if not isinstance(data, Dataset):
        raise TypeError(
            f"data must be an adadp.data.Dataset, got {type(data).__name__}; make one of four tensors: "
            "Dataset(x_train, y_train, x_test, y_test)"
        )
    if not (hasattr(sampling, "batches") and hasattr(sampling, "steps_per_epoch")):
        raise TypeError(f"sampling must be PoissonSampling or ShuffledPartition, got {type(sampling).__name__}")
    if gradient is not None and not (hasattr(gradient, "backward") and hasattr(gradient, "noise_multiplier")):
        raise TypeError(f"gradient must be a PrivateGradient or None, got {type(gradient).__name__}")
    if gradient is not None and getattr(gradient, "model", model) is not model:
        raise ValueError("gradient was made for another model; make it with PrivateGradient(model, ...)")
    _check_optimizer(model, optimizer, private=gradient is not None)
    if data.y_train.dim() == 1 and data.y_train.is_floating_point() and loss is cross_entropy:
        raise ValueError("loss is cross_entropy, which needs labels, but data.y_train holds floating-point targets: "
                         "give loss=, (output, y) -> (B,)")  # fmt: skip
    arguments.count("evaluate_every", evaluate_every, low=1)
    for callback in callbacks:
        if isinstance(callback, torch.optim.lr_scheduler.ReduceLROnPlateau):
            wanted = "accuracy, of labels" if callback.mode == "max" else "loss"
            if not len(data.x_test) or (callback.mode == "max" and data.y_test.is_floating_point()):
                raise ValueError(f"callbacks: ReduceLROnPlateau looks at the test {wanted}, and there is none here")
        if not callable(callback) and not isinstance(callback, torch.optim.lr_scheduler.LRScheduler):
            raise TypeError(f"callbacks must be functions or learning-rate schedulers, got {type(callback).__name__}")


def _check_optimizer(model, optimizer, private: bool) -> None:
    """Refuse, or warn of, an optimizer that does not go with the model or with one gradient a step."""
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = {id(p) for p in model.parameters()}
    if not stepped & own:
        raise ValueError("optimizer holds none of the model's parameters; make it from model.parameters()")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise TypeError(f"optimizer: {type(optimizer).__name__} asks for several gradients a step; train gives it one")
    if not private:
        return
    if stepped - own:
        raise ValueError("optimizer holds parameters that are not the model's, and they would never get a private "
                         "gradient; make it from model.parameters()")  # fmt: skip
    left = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in stepped]
    if left:
        warnings.warn(
            f"optimizer leaves out {len(left)} trainable parameters of the model ({left[0]}, ...), whose gradients "
            "still use up the clipping norm: freeze them with requires_grad_(False)",
            stacklevel=4,
        )


def _check_accounting(sampling, gradient, size: int, delta: float, accountant: str) -> None:
    """Refuse wrong arguments of epsilon; one warning where the sampler is another, or the divisor is not its own."""
    arguments.delta(delta)
    arguments.choice("accountant", accountant, arguments.ACCOUNTANTS)
    if gradient is None:
        return
    from adadp.privacy.statement import sampler_warning

    warning = sampler_warning(sampling)
    if warning and gradient.noise_multiplier > 0:
        warnings.warn(warning, stacklevel=3)
    wanted = sampling.expected_batch_size(size) if hasattr(sampling, "expected_batch_size") else None
    divisor = getattr(gradient, "expected_batch_size", wanted)
    if wanted and abs(divisor - wanted) > 0.01 * wanted:
        warnings.warn(
            f"expected_batch_size={divisor:g} of gradient is not the sampler's, {wanted:g}: gradients come out "
            f"{wanted / divisor:.3g} times as large as the mean; privacy is not touched",
            stacklevel=3,
        )

"""One training loop: sampled batches, a plain or a private gradient, any optimizer, epsilon beside every accuracy."""

import os
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from adadp.data import Dataset
from adadp.evaluation import Loss, evaluate, pick_device
from adadp.history import History
from adadp.loop import TrainingRun
from adadp.privacy import arguments
from adadp.privacy.gradient import cross_entropy
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
            for an empty one), and epsilon is None.
        loss: (output, y) -> (B,), for the plain gradient and for evaluation; a private gradient has its own.
        delta: of the epsilon shown.
        accountant: "moments", "rdp" or "pld"; add/remove neighbours.
        evaluate_every: epochs between evaluations; the last epoch is always evaluated.
        generator: draws the batches, on the CPU. None: one seeded from torch's global generator.
        device: "auto" takes CUDA where there is one.
        progress: show a bar where somebody looks (a terminal, a live notebook).
        callbacks: each is called ``callback(epoch=, model=, optimizer=, history=)`` after every epoch; a torch
            learning-rate scheduler is taken too and stepped once an epoch. A callback with ``state_dict`` and
            ``load_state_dict`` is stored in the checkpoint.
        checkpoint: a file that holds everything needed to continue, rewritten after every epoch. A call with the same
            arguments continues from it and ends as if it had never been interrupted; it is deleted at the end.

    Returns:
        The history. Test accuracy and loss are not covered by epsilon: the test set counts as public.

    Raises:
        TypeError: ``data``, ``sampling`` or ``gradient`` is something else.
        ValueError: an argument is out of range, the parts do not belong together, or the checkpoint is another run's.
        RuntimeError: the checkpoint is damaged; the message names it.

    Warns:
        UserWarning: the sampler is not the Poisson sampling that epsilon assumes; ``history.privacy`` says so as well.

    >>> data = Dataset(torch.randn(20, 3), torch.arange(20) % 2, torch.randn(4, 3), torch.arange(4) % 2)
    >>> from adadp.privacy.sampling import PoissonSampling
    >>> model = nn.Linear(3, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> history = train(model, data, optimizer, sampling=PoissonSampling(sample_rate=0.25, steps=8))
    >>> [(row["epoch"], row["steps"]) for row in history.rows]
    [(1, 4), (2, 8)]

    Reference: Algorithm 2, Koskela & Honkela.
    """
    _check(model, data, optimizer, sampling, gradient, evaluate_every)
    run = TrainingRun(model, data, optimizer, sampling, gradient, loss, generator, pick_device(device))
    run.callbacks = list(callbacks)
    run.history.privacy = _assumptions(gradient, sampling, run.size, delta, accountant)
    run.epsilon = partial(_epsilon, run.history.privacy)
    run.epsilon(run.total)  # a wrong delta or accountant is refused now, not after an epoch
    if checkpoint is not None and Path(checkpoint).exists():
        run.resume(checkpoint)
    batches = sampling.batches(run.size, run.generator, start=run.step)
    with progress_bar(run.total, initial=run.step, show=progress) as bar:
        while run.step < run.total:
            run.one_epoch(batches, bar)
            last = run.step == run.total
            if last or run.epoch % evaluate_every == 0:
                run.history.rows.append(run.row())
                bar.set_postfix({k: run.history.rows[-1][k] for k in ("test_accuracy", "lr")})
            run.call_back()
            if checkpoint is not None and not last:
                run.save(checkpoint)
    if checkpoint is not None:
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


def _check(model, data, optimizer, sampling, gradient, evaluate_every) -> None:
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
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(p) in stepped for p in model.parameters()):
        raise ValueError("optimizer holds none of the model's parameters; make it from model.parameters()")
    arguments.count("evaluate_every", evaluate_every, low=1)


def _assumptions(gradient, sampling, size: int, delta: float, accountant: str) -> dict:
    """What every epsilon of the run takes for granted; one warning where the sampler is another."""
    delta = arguments.delta(delta)
    arguments.choice("accountant", accountant, arguments.ACCOUNTANTS)
    if gradient is None:
        return {"sampler": sampling.name, "noise_multiplier": None}
    from adadp.privacy.statement import sampler_warning

    warning = sampler_warning(sampling)
    if warning and gradient.noise_multiplier > 0:
        warnings.warn(warning, stacklevel=3)
    return {
        "sampler": sampling.name,
        "assumed_sampler": "poisson",
        "matches": not warning,
        "neighbors": "add_remove",
        "accountant": accountant,
        "delta": delta,
        "noise_multiplier": float(gradient.noise_multiplier),
        "sample_rate": sampling.rate(size),
    }


def _epsilon(privacy: dict, steps: int) -> float | None:
    """Epsilon after so many gradients; None for training that is not private."""
    if privacy["noise_multiplier"] is None:
        return None
    from adadp.privacy.accounting import epsilon

    names = ("noise_multiplier", "sample_rate", "delta", "accountant", "neighbors")
    return epsilon(steps=steps, **{name: privacy[name] for name in names})

"""The state of a training run and the steps that change it: what :func:`adadp.training.train` goes through, and what
its checkpoint holds."""

import hashlib
import warnings
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from adadp import checkpoint, settings
from adadp.evaluation import evaluate, per_example_losses, placed
from adadp.history import History
from adadp.sources import secret_generator


class TrainingRun:
    """One run of :func:`adadp.training.train`, whose arguments it takes.

    Attributes:
        step, epoch: how far it is.
        total, per_epoch: gradients in all and in an epoch.
        history: filled as the run goes on.
        callbacks: called after every epoch.
        spending: what epsilon counts (:class:`adadp.privacy.spending.Spending`).
    """

    def __init__(self, model, data, optimizer, sampling, gradient, loss, generator, device):
        self.model, self.optimizer, self.gradient, self.loss = model.to(device), optimizer, gradient, loss
        self.data, self.size = data, len(data.x_train)
        self.x, self.y = data.x_train.to(device), data.y_train.to(device)
        self._source = self.noise_source()  # before anything is drawn
        self._sources: set[str] = set()  # at the beginning of every epoch
        if generator is None:
            generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        self.generator = generator
        self.total, self.per_epoch = sampling.num_steps(self.size), sampling.steps_per_epoch(self.size)
        self.name = f"{sampling} on {data.provenance} ({self.size}), {type(optimizer).__name__}"
        self.step, self.epoch, self.history, self.callbacks = 0, 0, History(), []
        self.settings = self._settings()
        self.begun = 0  # one more than `step` in the middle of a step
        self.spending: Any = None
        if gradient is not None:  # what an earlier backward pass left behind would reach the optimizer without noise
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                p.grad = None

    def spend(self, spending) -> None:
        """Count with ``spending``, before the first step."""
        self.spending = spending
        if self.gradient is not None:
            spending.begin(self._identity(), source=self._source)
        self.history.privacy = spending.privacy

    def one_epoch(self, batches, bar) -> None:
        """Up to an epoch's gradients; in the first, lr and error of every ADADP iteration are kept."""
        iterations = []
        self._look_at_source()
        for indices in islice(batches, min(self.per_epoch, self.total - self.step)):
            self.one_step(indices.to(self.x.device))
            self.step += 1
            if self.epoch == 0 and getattr(self.optimizer, "phase", 1) == 0:
                lr = self.optimizer.param_groups[0]["lr"]
                iterations.append((self.step, lr.clone() if isinstance(lr, Tensor) else lr, self.optimizer.error))
            bar.update()
        self.epoch += 1
        # turned into numbers here, once: on CUDA each conversion waits for the device
        self.history.first_epoch += [{"step": s, "lr": float(r), "error": float(e)} for s, r, e in iterations]

    def one_step(self, indices: Tensor) -> None:
        """One gradient and one step of the optimizer."""
        self.begun = self.step + 1
        x, y = placed(self.model, self.x[indices], self.y[indices])
        if self.gradient is not None:
            self.gradient.backward(x, y)
        else:
            self.optimizer.zero_grad()
            if len(x):
                per_example_losses(self.loss, self.model(x), y, len(x)).mean().backward()
            else:  # no forward pass: view(len(x), -1), say, fails for no examples
                for p in self.model.parameters():
                    p.grad = torch.zeros_like(p) if p.requires_grad else None
        self.optimizer.step()

    def row(self) -> dict:
        """One evaluation: accuracy and epsilon after the same gradients."""
        accuracy, loss = evaluate(self.model, self.data.x_test, self.data.y_test, loss=self.loss)
        self.spending.look(self.step)
        error, discarded = (getattr(self.optimizer, name, None) for name in ("error", "discarded"))
        return {
            "epoch": self.epoch,
            "steps": self.step,
            "test_accuracy": accuracy,
            "test_loss": loss,
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "error": None if error is None else float(error),
            "discarded": None if discarded is None else int(discarded),
            "epsilon": self.spending.epsilon(self.step),
        }

    def call_back(self) -> None:
        """Callbacks and schedulers, after an epoch; a privacy statement made there counts all gradients so far."""
        self.spending.between(self.step, self.history.rows)
        for callback in self.callbacks:
            if isinstance(callback, torch.optim.lr_scheduler.ReduceLROnPlateau):
                last = self.history.rows[-1] if self.history.rows else {"epoch": None}
                if last["epoch"] == self.epoch:  # an epoch that is not evaluated tells it nothing
                    callback.step(last["test_accuracy" if callback.mode == "max" else "test_loss"])
            elif isinstance(callback, torch.optim.lr_scheduler.LRScheduler):
                callback.step()
            else:
                callback(epoch=self.epoch, model=self.model, optimizer=self.optimizer, history=self.history)

    def _stateful(self) -> list:
        """Whatever has a state of its own, always in the same order."""
        return [self.model, self.optimizer, *(c for c in self.callbacks if hasattr(c, "load_state_dict"))]

    def _generators(self) -> list[torch.Generator]:
        """Generators of batches and of noise, and torch's own (dropout, and noise without a generator)."""
        own = [self.generator, getattr(self.gradient, "generator", None), torch.default_generator]
        if self.x.is_cuda:
            own.append(torch.cuda.default_generators[self.x.device.index])
        return [g for g in own if g is not None]

    def noise_source(self) -> str:
        """A checksum of the source of noise as it is now; empty where there is none, or none that is known."""
        if not getattr(self.gradient, "noise_multiplier", 0) or not hasattr(self.gradient, "generator"):
            return ""
        own, here = self.gradient.generator, self.x.device
        if own is None and here.type not in ("cpu", "cuda"):
            return ""
        if own is None:
            own = torch.cuda.default_generators[here.index] if self.x.is_cuda else torch.default_generator
        return settings.checksum(own.get_state())

    def _look_at_source(self) -> None:
        """Warn if this epoch draws the noise of an earlier one."""
        if (source := self.noise_source()) in self._sources:
            warnings.warn(
                "the source of the noise was set back (torch.manual_seed in a callback?): this epoch draws the noise "
                "of an earlier one, the difference of the two shows what it hid, and no epsilon holds; give gradient "
                "a generator of its own",
                stacklevel=4,
            )
        self._sources |= {source} - {""}

    def _draw_afresh(self, path) -> None:
        """Noise and batches from new sources: what was released past the checkpoint is not to be seen again."""
        warnings.warn(
            f"checkpoint {path}: this training was carried on from here before, and what was released then cannot be "
            "released again; it goes on with new noise and new batches, and epsilon counts both",
            stacklevel=4,
        )
        self.gradient.generator = secret_generator(self.x.device)
        self.generator.set_state(secret_generator(self.generator.device).get_state())

    def _settings(self) -> dict:
        """What a later call must share to continue this run; the rest is in its name and in its privacy."""
        x, y, middle = self.data.x_train, self.data.y_train, self.size // 2
        names = ("max_grad_norm", "noise_multiplier", "expected_batch_size", "clipping", "loss")
        return {
            "optimizer": settings.of_optimizer(self.optimizer),
            "gradient": {n: settings.text(getattr(self.gradient, n, None)) for n in names},
            "loss": settings.text(self.loss),
            "labels": settings.checksum(y),
            "examples": settings.checksum(x[:1], x[middle : middle + 1], x[-1:]),
        }

    def _identity(self) -> str:
        """A checksum by which a resumed run knows itself: where the weights and the randomness begin."""
        weights = [t for t in self.model.state_dict().values() if isinstance(t, Tensor)]
        where = settings.checksum(*weights, *(g.get_state() for g in self._generators()))
        return f"{self.name}: {where} {hashlib.sha256(repr(self.settings).encode()).hexdigest()[:12]}"

    def save(self, path) -> None:
        """Everything needed to continue, atomically."""
        state = {
            "run": self.name,
            "settings": self.settings,
            "step": self.step,
            "epoch": self.epoch,
            "history": self.history.to_json(),
            "states": [part.state_dict() for part in self._stateful()],
            "generators": [g.get_state() for g in self._generators()],
            "spending": self.spending.state_dict(self.step),
        }
        checkpoint.save(path, state)

    def resume(self, path) -> None:
        """Continue where :meth:`save` left off."""
        state = checkpoint.load(path)
        try:
            history = History.from_json(state["history"])
            other = settings.differing(self.settings, state.get("settings", {})) + self.spending.differing(
                history.privacy
            )
            other += [f"run: {state['run']}"] * (state["run"] != self.name)
            other += ["callbacks"] * (len(state["states"]) != len(self._stateful()))
        except (KeyError, TypeError, ValueError) as error:
            raise RuntimeError(f"{path} is not a checkpoint of a training run; delete it and start again") from error
        if other:
            names = ", ".join(dict.fromkeys(other))
            raise ValueError(
                f"checkpoint {path} belongs to another run (other {names}); delete it or name another file"
            )
        try:
            _check_shapes(self.model, state["states"][0])
            for part, stored in zip(self._stateful(), state["states"], strict=True):
                part.load_state_dict(stored)
            for own, stored in zip(self._generators(), state["generators"], strict=True):
                own.set_state(stored)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())
            raise RuntimeError(
                f"checkpoint {path} does not fit this run ({said}); delete it or name another"
            ) from error
        self.step, self.epoch, self.history = state["step"], state["epoch"], history
        self.begun = self.step
        if self.spending.take_up(state.get("spending"), self.step, self.total):
            self._draw_afresh(path)
        history.privacy = self.spending.privacy


def _check_shapes(model: torch.nn.Module, stored: dict) -> None:
    """Refuse weights of another model before any of them is loaded.

    Raises:
        ValueError: naming the first that differs.
    """
    shapes = [{n: tuple(t.shape) for n, t in s.items() if isinstance(t, Tensor)} for s in (stored, model.state_dict())]
    for name in {**shapes[0], **shapes[1]}:
        there, here = (found.get(name, "absent") for found in shapes)
        if there != here:
            raise ValueError(f"the model's {name} is {there} there and {here} here")

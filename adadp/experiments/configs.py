"""Configs of single runs: frozen, complete, validated when made, and named by the hash of what they say.

A run is described by one flat dataclass without a single default: every number that decides the result is written into
the config, so that a default that changes somewhere in the package can never change what a stored run means. The id of
a run is the hash of the canonical JSON of all its fields, seed included; what it is drawn in, or how urgent it is, is
not part of it (see :mod:`adadp.experiments.grids`).

Kinds of runs share three things: ``kind``, ``id`` and ``slug``. :data:`KINDS` maps a kind's name to its dataclass, and
:mod:`adadp.experiments.execution` maps it to the function that carries it out.
"""

import hashlib
import json
import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar

DATASETS = ("mnist", "cifar10", "mnist-5k")
MODELS = ("mnist_mlp", "cifar_head", "cifar_cnn", "mnist_logistic")
METHODS = ("adadp", "sgd", "adam")
SAMPLERS = ("poisson", "shuffled")
INITS = ("torch", "reference_code")
ADVANCES = ("euler", "half_steps", "extrapolated")
ADADP_FIELDS = ("tol", "exponent", "advance", "discard", "relative_error", "alpha_min", "alpha_max")
ADAM_FIELDS = ("beta1", "beta2", "eps")


class Config:
    """What every kind of run can do: be written, hashed, changed and read back."""

    kind: ClassVar[str]

    def canonical(self) -> str:
        """All fields and the kind as JSON with sorted keys: the text that is hashed."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def id(self) -> str:
        """Twelve hex digits of the SHA-256 of :meth:`canonical`."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:12]

    @property
    def length(self) -> int:
        """Epochs, rounds or turns of a run."""
        return next(getattr(self, name) for name in ("epochs", "rounds", "repeats") if hasattr(self, name))

    def to_dict(self) -> dict:
        """The fields as plain values, with the kind."""
        return {"kind": self.kind, **{field.name: getattr(self, field.name) for field in fields(self)}}

    def but(self, **changes):
        """A copy with some fields changed."""
        return replace(self, **changes)

    def _floats(self) -> None:
        """Make 2 and 2.0 the same config."""
        for field in fields(self):
            if field.type in (float, float | None) and getattr(self, field.name) is not None:
                object.__setattr__(self, field.name, float(getattr(self, field.name)))

    def _choice(self, **allowed: tuple) -> None:
        """Refuse a value outside the list of its field."""
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown; choose one of {', '.join(values)}")

    def _positive(self, *names: str) -> None:
        """Refuse numbers that are not finite and above zero (None is let through)."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value!r} must be a finite number above 0")


@dataclass(frozen=True, kw_only=True)
class Optimized(Config):
    """What all runs that train with some optimizer say about it; fields that belong to another method are None.

    Args:
        method, lr: optimizer and its (initial) learning rate.
        tol ... alpha_max: keywords of :class:`adadp.ADADP`.
        beta1, beta2, eps: keywords of ``torch.optim.Adam``.
        seed: of everything random.
    """

    method: str
    lr: float
    tol: float | None
    exponent: float | None
    advance: str | None
    discard: bool | None
    relative_error: bool | None
    alpha_min: float | None
    alpha_max: float | None
    beta1: float | None
    beta2: float | None
    eps: float | None
    seed: int

    def _own_fields(self) -> None:
        """Refuse keywords of another method, and a method without its own."""
        for method, names in (("adadp", ADADP_FIELDS), ("adam", ADAM_FIELDS)):
            given = [n for n in names if getattr(self, n) is not None]
            if len(given) != (len(names) if self.method == method else 0):
                raise ValueError(f"{', '.join(names)} belong to method={method!r}; here method={self.method!r}")
        if self.advance is not None:
            self._choice(advance=ADVANCES)


@dataclass(frozen=True, kw_only=True)
class PrivateRun(Optimized):
    """One private training run on one data set, its optimizer as in :class:`Optimized`.

    The protocol that ``version`` stands for: gradients are averaged over the declared ``expected_batch_size``; flat
    clipping; no augmentation; an evaluation after every epoch, its accuracy paired with the epsilon after that same
    epoch; one thread.

    Args:
        version: name of the protocol, "private-1".
        dataset, features: what :func:`adadp.data.load` gets.
        holdout: training examples set aside and evaluated on instead of the test set (0: the test set).
        model, init: network and initial weights ("torch", or "reference_code": uniform within 1/sqrt(fan_out)).
        decay_from, decay_rate: from this epoch k0 on nothing adapts and lr is lr_k0 / (1 + rate (k - k0)); None: never.
        noise_multiplier, max_grad_norm, expected_batch_size: of :class:`adadp.PrivateGradient`.
        sampler: "poisson" or "shuffled".
        epochs, delta: length, and the delta at which epsilon is given.

    Raises:
        ValueError: a value is unknown or out of range; the message names the field.
    """

    kind: ClassVar[str] = "private"
    version: str
    dataset: str
    features: str | None
    holdout: int
    model: str
    init: str
    decay_from: int | None
    decay_rate: float | None
    noise_multiplier: float
    max_grad_norm: float
    clipping: str
    expected_batch_size: int
    sampler: str
    epochs: int
    delta: float

    def __post_init__(self):
        self._floats()
        self._choice(dataset=DATASETS, model=MODELS, init=INITS, method=METHODS, sampler=SAMPLERS, clipping=("flat",))
        self._positive("lr", "tol", "max_grad_norm", "expected_batch_size", "epochs", "delta", "decay_from")
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise ValueError(f"noise_multiplier={self.noise_multiplier!r} must be a finite number, 0 or more")
        self._own_fields()

    @property
    def slug(self) -> str:
        """A short readable name; the id is appended to it to make the file name."""
        name = self.method if self.method != "adadp" else f"adadp-{self.advance}-tol{self.tol:.3g}"
        return f"{name}-lr{self.lr:.3g}-sigma{self.noise_multiplier:.3g}-seed{self.seed}".replace("+", "")


@dataclass(frozen=True, kw_only=True)
class TimingRun(Config):
    """Seconds of one epoch of ADADP, SGD and Adam, epochs taken in turn so that a busy machine slows all of them alike.

    Args:
        version: "timing-2" (in "timing-1" Adam ran without its fused kernel).
        model, expected_batch_size, steps_per_epoch, repeats: what one epoch is and how often each method runs it.
        seed: seed of the synthetic examples.
    """

    kind: ClassVar[str] = "timing"
    version: str
    model: str
    expected_batch_size: int
    steps_per_epoch: int
    repeats: int
    seed: int

    def __post_init__(self):
        self._choice(model=MODELS)
        self._positive("expected_batch_size", "steps_per_epoch", "repeats")

    @property
    def slug(self) -> str:
        """A short readable name."""
        return f"timing-{self.model}-seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class FederatedRun(Optimized):
    """One run of federated averaging, the clients' optimizer as in :class:`Optimized`.

    The protocol that ``version`` stands for: every client takes part in every round; torch's initial weights; no
    augmentation; all clients together hold the first ``examples_per_client`` times clients examples of the data set,
    equally many of each class; the global model is evaluated after every round.

    Args:
        version: name of the protocol, "federated-1".
        dataset, model: what :func:`adadp.data.load` and :mod:`adadp.models` get.
        groups: classes of each client, for example "1,9|0,8|3,5|2,6|4,7".
        random_fraction: share of the data that is dealt out at random (:func:`adadp.federated.split_by_groups`).
        examples_per_client: size of every client.
        batch_size, local_epochs, rounds: size of the local work and number of rounds.
        keep_lr, reduction: of :class:`adadp.federated.FederatedAveraging`.

    Raises:
        ValueError: a value is unknown or out of range; the message names the field.
    """

    kind: ClassVar[str] = "federated"
    version: str
    dataset: str
    model: str
    groups: str
    random_fraction: float
    examples_per_client: int
    batch_size: int
    local_epochs: int
    rounds: int
    keep_lr: bool
    reduction: str

    def __post_init__(self):
        self._floats()
        self._choice(dataset=DATASETS, model=MODELS, method=METHODS, reduction=("mean", "sum"))
        self._positive("lr", "tol", "examples_per_client", "batch_size", "local_epochs", "rounds")
        if not 0 <= self.random_fraction <= 1:
            raise ValueError(f"random_fraction={self.random_fraction!r} must be between 0 and 1")
        self._own_fields()

    @property
    def slug(self) -> str:
        """A short readable name; the id is appended to it to make the file name."""
        name = self.method if self.method != "adadp" else f"adadp-tol{self.tol:.3g}"
        split = f"random{100 * self.random_fraction:.0f}-n{self.examples_per_client}-B{self.batch_size}"
        return f"{name}-lr{self.lr:.3g}-{split}-seed{self.seed}".replace("+", "")


KINDS: dict[str, type] = {"private": PrivateRun, "federated": FederatedRun, "timing": TimingRun}


def from_dict(values: dict):
    """The config that :meth:`Config.to_dict` wrote.

    Raises:
        ValueError: unknown kind, or fields that are missing or unknown.
    """
    rest = dict(values)
    kind = rest.pop("kind", None)
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is unknown; this version knows {', '.join(KINDS)}")
    names = {f.name for f in fields(KINDS[kind])}
    if set(rest) != names:
        raise ValueError(f"a {kind} config has the fields {sorted(names)}; differing here: {sorted(names ^ set(rest))}")
    return KINDS[kind](**rest)

"""ADADP: stochastic gradient descent that finds its own learning rate by step doubling.

Here is what a training loop sees, and the course of an iteration. The arithmetic is in ``multi_tensor.py``, the law of
the learning rate in ``step_size.py``, and the same algorithm in its plainest form in ``reference.py``.
"""

import math

import torch
from torch import Tensor
from torch.optim import Optimizer

from adadp import multi_tensor, param_groups
from adadp.step_size import Controller

# Where the paper's text and its published code differ, and which argument chooses:
#
# item           paper's text                  published code                argument
# -------------- ----------------------------- ----------------------------- -------------------------------------------
# factor of lr   tol/err                       sqrt(tol/err)                 exponent = 1.0 | 0.5
# iterate kept   full Euler step (Alg. 2)      the two half steps            advance = "euler" | "half_steps"
# discarding     federated only                whenever err > tol            discard = False | True
# error          each weight counted once      each counted ten times        tol = 1.0 | 10**-0.5 (sqrt(10) too large)
# scaling of it  max(1, |theta|); Alg. 1 none  max(1, |theta|)               relative_error = True (False: Alg. 1)
# initial lr     0.1                           1e-3                          lr
# gradient       sum over the batch            mean over the batch           none: lr is in the units of p.grad
#
# Neither keeps the extrapolated iterate (advance = "extrapolated"), which costs nothing more and has order two.
# "recommended" won on held-out training images of MNIST, 100 epochs (`adadp results table recommended`).
VARIANTS = {
    "as_printed": {"lr": 0.1, "tol": 1.0, "exponent": 1.0, "advance": "euler", "discard": False},
    "reference_code": {"lr": 1e-3, "tol": 10**-0.5, "exponent": 0.5, "advance": "half_steps", "discard": True},
    "recommended": {"lr": 0.1, "tol": 0.1778, "exponent": 0.5, "advance": "half_steps", "discard": False},
}

_LAW = ("tol", "alpha_min", "alpha_max", "exponent", "discard")
_SHARED = (*_LAW, "relative_error", "advance")  # one value for all groups, since they share one error
_COUNTS = {"error": math.nan, "accepted": 0, "discarded": 0, "zero_errors": 0}
_RUN = {"phase": 0, "frozen": False, **_COUNTS}
ZERO_ERRORS = 10  # zero errors in a row after which lr is held: gradients that are zero say nothing about a step size


class ADADP(Optimizer):
    r"""Stochastic gradient descent that adapts its learning rate by comparing one full step with two half steps.

    An iteration l takes two gradients, so two calls of :meth:`step`: G1 at :math:`\theta_\ell`, G2 at
    :math:`\theta_{\ell+1/2} = \theta_\ell - \tfrac{\eta}{2} G_1`. They give a full step and two half steps,

    .. math::
        \theta_{\ell+1} = \theta_\ell - \eta G_1, \qquad
        \hat\theta_{\ell+1} = \theta_{\ell+1/2} - \tfrac{\eta}{2} G_2, \qquad
        \mathrm{err} = \Big\| \frac{\theta_{\ell+1} - \hat\theta_{\ell+1}}{\max(1, |\theta_{\ell+1}|)} \Big\|_2,

    the norm being over all parameters of all groups, and then every learning rate is multiplied by
    :math:`\min(\max((\mathrm{tol}/\mathrm{err})^{p}, \alpha_{\min}), \alpha_{\max})`. The defaults are Algorithm 2 as
    printed; ``adadp.VARIANTS`` holds the paper's, its code's and our choice of arguments.

    Args:
        params: parameters, named parameters or dictionaries of groups, as for any optimizer. A group may have its own
            ``lr``, ``maximize`` and ``foreach``; the rest is shared. (For weight decay, add it to ``p.grad``.)
        lr: initial learning rate, > 0. A float becomes a 0-dim tensor where parameters are not on a CPU. A tensor is
            copied, and makes ``step`` run without reading a value on a CPU too (for ``torch.compile``). What is in
            ``param_groups`` counts; set it there between iterations only.
        tol: wanted err of an iteration, > 0. 1.0, the paper's, presumes private noise; without noise take 0.1, or one
            of ``VARIANTS`` but for ``as_printed``. It belongs to a horizon: ``suggested_tol``, chapter *Choosing tol*.
        alpha_min: smallest factor of the learning rate in one iteration, in (0, 1].
        alpha_max: largest factor, >= 1.
        exponent: p above, > 0: 1.0 is the paper's tol/err, 0.5 its published code's square root.
        relative_error: divide by max(1, abs(theta)) as in Algorithm 2 (True), or take the plain norm of Algorithm 1.
        advance: the iterate kept: ``"euler"`` the full step, ``"half_steps"`` the two half steps, ``"extrapolated"``
            :math:`2\hat\theta_{\ell+1} - \theta_{\ell+1} = \theta_\ell - \eta G_2`, which is the midpoint rule.
        discard: go back to :math:`\theta_\ell` when err > tol (Algorithm 1); the learning rate changes all the same.
        maximize: climb instead of descend.
        foreach: multi-tensor calls (True), one tensor at a time (False), or whichever is faster (None).

    Attributes:
        phase: 0 between iterations, 1 when the first half is done: the parameters then are :math:`\theta_{\ell+1/2}`,
            and evaluating there is allowed. Before you set parameters (to the best ones so far, say), :meth:`rewind`.
        error: err of the last iteration; ``nan`` before the first.
        accepted, discarded: how many iterations were kept and discarded. On a device these and ``error`` are 0-dim
            tensors; only turning them into numbers waits for the device.

    Raises:
        ValueError: an argument out of range (nan included), by name.
        RuntimeError: from ``step``, for sparse gradients, and for an lr scheduler attached before :meth:`freeze`.

    Guarantees:
        * *Private if the gradients are.* Parameters, err and learning rates are functions of the gradients alone, so an
          iteration costs the privacy of two gradients, and nothing more.
        * A discarded iteration, and one whose error or result is not finite, restores :math:`\theta_\ell` bit for bit;
          the latter multiplies the learning rate by alpha_min. A bad gradient is forgotten after one iteration.
        * A zero error multiplies it by alpha_max, ten times in a row at most; it never grows beyond what parameters
          can hold. A parameter without a gradient counts as one with gradient zero.
        * ``state_dict`` carries everything, also between the two halves; training goes on bit for bit.
        * One extra buffer a parameter; gradients are not changed; no host synchronisation on CUDA.
        * err is over this process's parameters: right with ``DistributedDataParallel``, not where they are shared out.
        * A CUDA graph holds both halves of an iteration, and is recorded after a first iteration.

    >>> theta = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    >>> optimizer = ADADP([theta], lr=0.1, tol=0.01)
    >>> for _ in range(80):  # 40 iterations
    ...     optimizer.zero_grad()
    ...     loss = 0.5 * theta.square().sum()
    ...     loss.backward()
    ...     optimizer.step()
    >>> bool(loss < 1e-3), optimizer.phase, optimizer.accepted
    (True, 0, 40)

    Reference: Alg. 1 and 2, Koskela & Honkela.
    """

    def __init__(
        self,
        params,
        lr: float | Tensor = 0.1,
        *,
        tol: float = 1.0,
        alpha_min: float = 0.9,
        alpha_max: float = 1.1,
        exponent: float = 1.0,
        relative_error: bool = True,
        advance: str = "euler",
        discard: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
    ):
        Controller(tol, alpha_min, alpha_max, exponent, discard)  # refuses what is out of range
        if advance not in multi_tensor.ADVANCE:
            raise ValueError(f"advance must be one of {', '.join(multi_tensor.ADVANCE)}, got {advance!r}")
        if not isinstance(relative_error, bool):
            raise ValueError(f"relative_error must be True or False, got {relative_error!r}")
        shared = (float(tol), float(alpha_min), float(alpha_max), float(exponent), discard, relative_error, advance)
        own = {"lr": lr, "maximize": maximize, "foreach": foreach}
        super().__init__(params, {**own, **dict(zip(_SHARED, shared, strict=True)), **_RUN})

    def add_param_group(self, param_group: dict) -> None:
        """Add parameters; in the middle of an iteration they join with a first gradient of zero.

        Raises:
            ValueError: a bad lr, maximize or foreach, a value that groups must share, or parameters that are not real.
        """
        first = self.param_groups[0] if self.param_groups else self.defaults  # which may have been loaded, or set
        common = {name: first.get(name, self.defaults[name]) for name in (*_SHARED, *_RUN)}
        group = param_groups.checked({**self.defaults, **common, **param_group}, common, _SHARED)
        super().add_param_group(group | {name: common[name] for name in _RUN})  # not those of another optimizer's group
        if why := next(filter(None, map(param_groups.unfit, self.param_groups[-1]["params"])), ""):
            del self.param_groups[-1]
            raise ValueError(f"params must be real floating-point tensors, got one {why}")
        self._settle()

    @property
    def phase(self) -> int:
        """0 between iterations, 1 when the first half of one is done."""
        return self.param_groups[0]["phase"]

    @property
    def error(self) -> float | Tensor:
        """err of the last iteration."""
        return param_groups.copied(self.param_groups[0]["error"])

    @property
    def accepted(self) -> int | Tensor:
        """Number of iterations kept."""
        return param_groups.copied(self.param_groups[0]["accepted"])

    @property
    def discarded(self) -> int | Tensor:
        """Number of iterations discarded: err above tol where ``discard`` is set, or not finite."""
        return param_groups.copied(self.param_groups[0]["discarded"])

    @torch.no_grad()
    def step(self, closure=None):
        """Consume one gradient: do the first half of an iteration, or the second and the change of learning rate.

        Args:
            closure: evaluates the model and the gradient once, and returns the loss, which is then returned here, too.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if param_groups.on_device(self.param_groups):
            self._take()
        else:
            self._take_eagerly()
        return loss

    def _take(self) -> None:
        """Take the gradients that are there, as the phase demands."""
        self._settle()
        work = param_groups.gradients(self.param_groups, self.state)
        if self.param_groups[0]["frozen"]:
            for group, params, grads in work:
                multi_tensor.descend(params, grads, param_groups.signed_lr(group))
        elif any("initial_lr" in group for group in self.param_groups):
            raise RuntimeError(
                "an lr scheduler is attached, but ADADP itself sets lr: attach none, or freeze() it first"
            )
        elif self.phase == 0:
            self._first_half(work)
        else:
            self._second_half(work)

    _take_eagerly = torch.compiler.disable(_take)  # a new lr, when it is a number, would mean a new compilation

    def _first_half(self, work) -> None:
        """Keep theta_l, and go to theta_{l+1/2}; ``work`` is what `param_groups.gradients` returns."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    self.state.get(p, {}).pop("theta_l", None)  # of an earlier iteration
        for group, params, grads in work:
            multi_tensor.first_half(params, grads, self._kept(params), 0.5 * param_groups.signed_lr(group))
        param_groups.write(self.param_groups, phase=1)

    def _second_half(self, work) -> None:
        """Go on from theta_{l+1/2}, judge the iteration, and change the learning rates."""
        head = self.param_groups[0]
        square, moved = 0.0 * head["zero_errors"], []  # a zero of the type that errors have here
        for group, params, grads in work:
            kept = self._kept(params)  # without a first gradient, a parameter still is at its theta_l
            half = 0.5 * param_groups.signed_lr(group)
            part = multi_tensor.second_half(
                params, grads, kept, half, head["advance"], head["relative_error"], group["foreach"]
            )
            square = square + (part.to(square.device) if isinstance(part, Tensor) else part)
            moved.append((params, kept))
        error = square**0.5
        law = Controller(**{name: head[name] for name in _LAW})
        accept = law.accepts(error)
        for params, kept in moved:
            multi_tensor.restore(params, kept, accept)
        self._conclude(error, accept, law.factor(error))

    def _conclude(self, error, accept, factor) -> None:
        """Change the learning rates and count the iteration."""
        head = self.param_groups[0]
        zero_errors = (head["zero_errors"] + 1) * (error == 0)
        param_groups.scale_lr(self.param_groups, param_groups.select(zero_errors > ZERO_ERRORS, 1.0, factor))
        param_groups.write(
            self.param_groups,
            phase=0,
            error=error,
            zero_errors=zero_errors,
            accepted=head["accepted"] + accept,
            discarded=head["discarded"] + (1 - 1 * accept),
        )

    def freeze(self) -> None:
        """End the adaptation: each step is a plain SGD step with the current lr from now on; lr schedulers act on it.

        In phase 1 the half step already made stays, and the iteration it began is dropped.
        """
        for group in self.param_groups:
            group.update(phase=0, frozen=True)
        for state in self.state.values():
            state.pop("theta_l", None)

    @torch.no_grad()
    def rewind(self) -> None:
        """Drop the iteration that is open in phase 1: parameters are theta_l again, bit for bit. Nothing in phase 0."""
        if self.phase == 1:
            for p in (p for group in self.param_groups for p in group["params"]):
                if "theta_l" in self.state.get(p, {}):
                    p.copy_(self.state[p]["theta_l"])
            param_groups.write(self.param_groups, phase=0)

    def load_state_dict(self, state_dict: dict) -> None:
        """Continue where another optimizer was, bit for bit; what another kind of optimizer lacks is as given here."""
        device = param_groups.on_device(self.param_groups)
        super().load_state_dict(state_dict)
        for group in (group for group in self.param_groups if "phase" not in group):
            for name in ("initial_lr", *param_groups.FOREIGN):  # another kind of optimizer's: they stay with it
                group.pop(name, None)
        for state in self.state.values():  # torch may hand over the very tensors of the other optimizer
            state.update({name: value.clone() for name, value in state.items() if isinstance(value, Tensor)})
        if not device:
            param_groups.to_host(self.param_groups)
        self._settle(device)

    def _settle(self, device: bool = False) -> None:
        """Make the groups whole, and lr a number or a tensor, whichever belongs where the parameters are.

        Runs before every step: models move between devices, and wrappers put other groups in place of ours.
        """
        param_groups.complete(self.param_groups, self.defaults, _SHARED)
        if device or param_groups.on_device(self.param_groups):
            param_groups.to_device(self.param_groups, tuple(_COUNTS))

    def _kept(self, params: list[Tensor]) -> list[Tensor]:
        """The buffers of theta_l; new ones hold the parameters."""
        kept = []
        for p in params:
            state = self.state[p]
            buffer = state.get("theta_l", p)
            if buffer is p or buffer.dtype != p.dtype or buffer.device != p.device:  # new, or the model was converted
                buffer = state["theta_l"] = torch.empty_like(p).copy_(buffer)
            kept.append(buffer)
        return kept

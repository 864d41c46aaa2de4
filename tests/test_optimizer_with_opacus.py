"""ADADP inside Opacus, in all its modes: the same trajectory, the right phase and lr, every gradient accounted."""

import pytest
import torch
from optimizer_helpers import values
from torch import nn

from adadp import ADADP

opacus = pytest.importorskip("opacus")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore"),  # Opacus warns of its own hooks and random generators
]
MODES = ("hooks", "functorch", "ew", "ghost")
OPTIONS = {"lr": 0.2, "tol": 0.3, "discard": True, "exponent": 0.5, "advance": "half_steps"}
ADAPTIVE = {
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 2.0,
}


class Private:
    """A model, Opacus' optimizer around ADADP, and a loop that also records the gradients that ADADP sees."""

    def __init__(self, mode, *, sigma=1.0, clipping="flat", batches=6, options=OPTIONS, max_grad_norm=1.0):
        torch.manual_seed(0)
        self.data = torch.utils.data.TensorDataset(torch.randn(8 * batches, 5), torch.randint(0, 3, (8 * batches,)))
        self.plain = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        self.start = values(self.plain.parameters())
        self.adadp = ADADP(self.plain.parameters(), **options)
        self.engine = opacus.PrivacyEngine(accountant="rdp")
        criterion = nn.CrossEntropyLoss()
        bound = [max_grad_norm] * 4 if clipping == "per_layer" else max_grad_norm
        more = ADAPTIVE if clipping == "adaptive" else {}
        found = self.engine.make_private(
            module=self.plain,
            optimizer=self.adadp,
            criterion=criterion,
            data_loader=torch.utils.data.DataLoader(self.data, batch_size=8),
            noise_multiplier=sigma,
            max_grad_norm=bound,
            clipping=clipping,
            grad_sample_mode=mode,
            poisson_sampling=True,
            noise_generator=torch.Generator().manual_seed(3),
            **more,
        )
        self.model, self.optimizer, self.criterion, self.loader = (
            found if mode == "ghost" else (*found[:2], criterion, found[2])
        )
        self.seen, self.lrs = [], []
        self.adadp.register_step_pre_hook(
            lambda o, *_: self.seen.append(values(p.grad for p in self.plain.parameters()))
        )

    def epoch(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            self.criterion(self.model(x), y).backward()
            self.optimizer.step()
            self.lrs.append(self.optimizer.param_groups[0]["lr"])


def replay(start, gradients, options=OPTIONS):
    """ADADP alone, on given gradients: the parameters after each step, and the optimizer."""
    params = [nn.Parameter(p.clone()) for p in start]
    opt = ADADP(params, **options)
    lrs = []
    for grads in gradients:
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        opt.step()
        lrs.append(opt.param_groups[0]["lr"])
    return params, opt, lrs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [OPTIONS, {}], ids=["with discarding", "as printed"])
def test_same_trajectory_as_alone(mode, options):
    private = Private(mode, options=options)
    for _ in range(2):
        private.epoch()
    assert len(private.seen) == 12
    params, opt, lrs = replay(private.start, private.seen, options)
    for p, q in zip(params, private.plain.parameters(), strict=True):
        assert torch.equal(p, q)
    assert private.lrs == lrs
    assert len(set(lrs)) > 3
    assert (private.adadp.accepted, private.adadp.discarded) == (opt.accepted, opt.discarded)
    assert opt.accepted + opt.discarded == 6


@pytest.mark.parametrize("mode", MODES)
def test_two_gradients_an_iteration_are_accounted(mode):
    private = Private(mode, batches=5)  # odd: the phase survives the end of an epoch
    for epoch in (1, 2, 3):
        private.epoch()
        assert private.adadp.phase == epoch % 2
        ((sigma, sample_rate, steps),) = private.engine.accountant.history
        assert (sigma, sample_rate, steps) == (1.0, 1 / 5, len(private.seen))
        assert steps == 5 * epoch
    assert private.adadp.accepted + private.adadp.discarded == 7
    assert private.engine.get_epsilon(1e-5) > 0


@pytest.mark.parametrize("mode", MODES)
def test_modes_agree_without_noise(mode):
    ends = []
    for kind in (mode, "hooks"):
        private = Private(kind, sigma=0.0)
        torch.manual_seed(5)
        private.epoch()
        ends.append([*values(private.plain.parameters()), torch.tensor(private.lrs)])
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("mode", MODES)
def test_without_noise_and_clipping_it_is_plain_adadp(mode):
    private = Private(mode, sigma=0.0, max_grad_norm=1e6)
    twin = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    twin.load_state_dict(private.plain.state_dict())
    plain = ADADP(twin.parameters(), **OPTIONS)
    for x, y in private.loader:
        private.optimizer.zero_grad()
        private.criterion(private.model(x), y).backward()
        private.optimizer.step()
        plain.zero_grad()
        (nn.functional.cross_entropy(twin(x), y, reduction="sum") / 8).backward()  # the expected size of a batch
        plain.step()
        assert private.adadp.phase == plain.phase
        assert private.optimizer.param_groups[0]["lr"] == pytest.approx(plain.param_groups[0]["lr"], rel=1e-4)
    assert plain.param_groups[0]["lr"] != OPTIONS["lr"]
    for a, b in zip(private.plain.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clipping", ["per_layer", "adaptive"])
def test_other_clipping(clipping):
    private = Private("hooks", clipping=clipping)
    private.epoch()
    params, _, lrs = replay(private.start, private.seen)
    assert private.lrs == lrs
    for p, q in zip(params, private.plain.parameters(), strict=True):
        assert torch.equal(p, q)


def test_virtual_batches_are_one_gradient():
    """Opacus' memory manager calls step for every physical batch; only the last one of a batch reaches ADADP."""
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    private = Private("hooks")
    calls = 0
    with BatchMemoryManager(
        data_loader=private.loader, max_physical_batch_size=2, optimizer=private.optimizer
    ) as loader:
        for x, y in loader:
            calls += 1
            private.optimizer.zero_grad()
            private.criterion(private.model(x), y).backward()
            private.optimizer.step()
    assert calls > 6 == len(private.seen)
    assert private.engine.accountant.history[0][2] == 6
    assert private.adadp.accepted + private.adadp.discarded == 3


@pytest.mark.parametrize("done", [3, 4])
def test_state_passes_through_the_wrapper(done):
    private = Private("hooks")
    gradients = []
    for x, y in private.loader:
        if len(gradients) == done:
            break
        private.optimizer.zero_grad()
        private.criterion(private.model(x), y).backward()
        private.optimizer.step()
        gradients.append(None)
    assert set(private.optimizer.state_dict()) == {"state", "param_groups"}
    other = Private("hooks")
    other.plain.load_state_dict(private.plain.state_dict())
    other.optimizer.load_state_dict(private.optimizer.state_dict())
    assert other.adadp.phase == private.adadp.phase == done % 2
    for p, q in zip(private.plain.parameters(), other.plain.parameters(), strict=True):
        p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    private.adadp.step()
    other.adadp.step()
    for p, q in zip(private.plain.parameters(), other.plain.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_scheduler_around_the_wrapper_is_refused_until_frozen():
    private = Private("hooks")
    torch.optim.lr_scheduler.StepLR(private.optimizer, 1)
    with pytest.raises(RuntimeError, match="scheduler is attached"):
        private.epoch()
    private.optimizer.zero_grad()
    private.adadp.freeze()
    private.epoch()
    assert private.adadp.accepted == 0

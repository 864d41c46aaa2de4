"""Learning rates, parameter groups, schedulers and freezing."""

import math

import pytest
import torch
from optimizer_helpers import assert_same, every_path, feed, lr, lr_of, noise, params_of, values
from torch import nn

from adadp import ADADP


@every_path
@pytest.mark.parametrize("shapes", [((4, 3), (500,)), ((6,), (6,))], ids=["different shapes", "equal shapes"])
def test_groups_share_one_error_and_one_factor(path, shapes):
    params = params_of(*shapes)
    groups = [{"params": [p], "lr": lr_of(path, eta)} for p, eta in zip(params, (0.1, 0.03), strict=True)]
    opt = ADADP(groups, foreach=path["foreach"], tol=0.3)
    others = [nn.Parameter(p.detach().clone()) for p in params]
    alone = [ADADP([p], lr_of(path, eta), foreach=path["foreach"]) for p, eta in zip(others, (0.1, 0.03), strict=True)]
    gradients = noise(params, 2)
    feed(opt, *gradients)
    for i, other in enumerate(alone):
        feed(other, *([grads[i]] for grads in gradients))
    assert float(opt.error) == pytest.approx(math.hypot(*(float(o.error) for o in alone)), rel=1e-6)
    factor = min(max(0.3 / float(opt.error), 0.9), 1.1)
    assert [lr(opt, i) for i in (0, 1)] == pytest.approx([0.1 * factor, 0.03 * factor], rel=1e-6)
    assert_same(params, others)  # no group writes on another's weights


def test_lr_is_a_float_on_a_cpu_and_seen_in_param_groups():
    params = params_of((4,))
    opt = ADADP(params, lr=1)
    assert type(opt.param_groups[0]["lr"]) is float
    feed(opt, *noise(params, 2))
    assert type(opt.param_groups[0]["lr"]) is float
    assert opt.state_dict()["param_groups"][0]["lr"] == opt.param_groups[0]["lr"] != 1


def test_lr_set_by_hand_is_used():
    params, others = params_of((4,)), params_of((4,))
    opt, other = ADADP(params, lr=0.1), ADADP(others, lr=0.01)
    opt.param_groups[0]["lr"] = 0.01
    for o in (opt, other):
        feed(o, *noise(params, 2))
    assert_same(params, others)
    assert lr(opt) == lr(other)


@pytest.mark.parametrize("first", [0.1, torch.tensor(0.1)], ids=["float", "tensor"])
@pytest.mark.parametrize("chosen", [0.01, 1, torch.tensor(0.01)], ids=["float", "whole", "tensor"])
def test_lr_set_by_hand_may_be_any_number(first, chosen):
    params, others = params_of((4,), (3,)), params_of((4,), (3,))
    opt = ADADP([{"params": p} for p in params], lr=first, tol=1e9)
    other = ADADP([{"params": p} for p in others], lr=float(chosen), tol=1e9)
    feed(opt, *noise(params, 2))
    for p, o in zip(params, others, strict=True):
        p.data.copy_(o.data)
    for group in opt.param_groups:
        group["lr"] = chosen
    for o in (opt, other):
        feed(o, *noise(params, 4))
    assert [lr(opt, i) for i in (0, 1)] == pytest.approx([lr(other, i) for i in (0, 1)])
    for p, o in zip(params, others, strict=True):
        torch.testing.assert_close(p, o)


def test_a_tensor_lr_is_copied_for_each_group():
    mine = torch.tensor(0.1)
    params = params_of((4,), (4,))
    opt = ADADP([{"params": p} for p in params], lr=mine, tol=1e9)
    feed(opt, *noise(params, 2))
    assert mine == 0.1
    assert [lr(opt, i) for i in (0, 1)] == pytest.approx([0.11, 0.11])


@every_path
def test_a_wrapper_that_replaces_param_groups(path):
    params = params_of((4,), (4,))
    opt = ADADP(params, lr_of(path), foreach=path["foreach"])
    opt.param_groups = [{"params": [p], "lr": lr_of(path, 0.02)} for p in params]
    before = values(params)
    gradients = noise(params, 2)
    feed(opt, gradients[0])
    for p, b, g in zip(params, before, gradients[0], strict=True):
        torch.testing.assert_close(p, b - 0.01 * g)
    feed(opt, gradients[1])
    assert [lr(opt, i) for i in (0, 1)] == pytest.approx([0.022, 0.022])
    assert opt.accepted == 1


def test_a_replaced_lr_tensor_that_groups_share_is_scaled_once():
    params = params_of((4,), (4,))
    opt = ADADP([{"params": p} for p in params], lr=torch.tensor(0.1), tol=1e9)
    for group in opt.param_groups:
        group["lr"] = opt.param_groups[0]["lr"]
    feed(opt, *noise(params, 2))
    assert lr(opt) == pytest.approx(0.11)


def test_groups_added_later_join_the_iteration():
    one, two = params_of((4,), (4,))
    opt = ADADP([one], lr=0.1, tol=100.0)
    gradients = noise([one, two], 2)
    feed(opt, gradients[0][:1])
    start = two.detach().clone()
    opt.add_param_group({"params": [two], "lr": 0.3, "maximize": True})
    feed(opt, gradients[1])
    assert_same([two], [start])  # the full step along its first gradient, which is zero
    assert (opt.phase, opt.accepted) == (0, 1)
    assert [lr(opt, i) for i in (0, 1)] == pytest.approx([0.11, 0.33])


def test_a_group_added_later_shares_what_was_loaded_or_set():
    params = params_of((4,), (3,), (2,))
    opt = ADADP(params[:1], tol=1.0)
    opt.load_state_dict(ADADP(params_of((4,)), tol=0.5).state_dict())
    opt.add_param_group({"params": params[1]})
    for group in opt.param_groups:
        group["tol"] = 0.25
    opt.add_param_group({"params": params[2]})
    feed(opt, *noise(params, 2))
    assert opt.accepted == 1 and {group["tol"] for group in opt.param_groups} == {0.25}
    with pytest.raises(ValueError, match="tol is shared by all parameter groups"):
        opt.add_param_group({"params": params_of((4,)), "tol": 1.0})


@pytest.mark.parametrize("change", [lambda o: feed(o, *noise(o.param_groups[0]["params"], 1)), ADADP.freeze])
def test_an_optimizer_made_of_another_ones_groups_begins_at_the_beginning(change):
    params = params_of((4,))
    other = ADADP(params, lr=0.2, tol=0.5)
    change(other)
    opt = ADADP(other.param_groups, tol=0.5)
    assert opt.phase == 0 and opt.param_groups[0]["lr"] == 0.2
    feed(opt, *noise(params, 2))
    assert opt.accepted == 1


def test_values_that_groups_share_cannot_differ():
    params = params_of((4,), (4,))
    with pytest.raises(ValueError, match="tol is shared by all parameter groups"):
        ADADP([{"params": params, "tol": 0.5}])
    opt = ADADP([{"params": p} for p in params])
    opt.param_groups[1]["tol"] = 0.5
    with pytest.raises(ValueError, match="tol must be the same"):
        feed(opt, *noise(params, 1))
    opt.param_groups[0]["tol"] = 0.5
    feed(opt, *noise(params, 1))


@pytest.mark.parametrize(
    "attach",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 1),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.5),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=9, cycle_momentum=False),
    ],
)
def test_a_scheduler_is_refused_before_freezing(attach):
    params = params_of((4,))
    opt = ADADP(params)
    attach(opt)
    before = values(params)
    with pytest.raises(RuntimeError, match=r"scheduler is attached.*freeze\(\)"):
        feed(opt, *noise(params, 1))
    assert_same(params, before)
    assert opt.phase == 0


@every_path
def test_a_scheduler_is_honoured_after_freezing(path):
    params = params_of((4,), (5000,))
    opt = ADADP(params, lr_of(path), foreach=path["foreach"], tol=100.0)
    feed(opt, *noise(params, 2))
    opt.freeze()
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    others = [nn.Parameter(p.detach().clone()) for p in params]
    sgd = torch.optim.SGD(others, lr=lr(opt))
    other_scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1, gamma=0.5)
    for gradients in noise(params, 3, seed=5):
        for o, s in ((opt, scheduler), (sgd, other_scheduler)):
            feed(o, gradients)
            s.step()
    assert lr(opt) == pytest.approx(0.11 / 8)
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q)
    assert (opt.phase, opt.accepted, opt.discarded) == (0, 1, 0)
    assert not any(opt.state.values())  # the buffers are given back


def test_plateau_scheduler_lowers_the_lr_from_which_adaptation_goes_on():
    params = params_of((4,))
    opt = ADADP(params, lr=0.1, alpha_min=1.0, alpha_max=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
    for _ in range(2):
        feed(opt, *noise(params, 2))
        scheduler.step(1.0)
    assert lr(opt) == 0.05


def test_freezing_in_the_middle_keeps_the_half_step():
    params = params_of((4,))
    opt = ADADP(params, lr=0.1)
    feed(opt, *noise(params, 1))
    half = values(params)
    opt.freeze()
    assert_same(params, half)
    assert opt.phase == 0
    state = opt.state_dict()
    other = ADADP(params)
    other.load_state_dict(state)
    gradient = noise(params, 1, seed=3)[0]
    feed(other, gradient)
    torch.testing.assert_close(params[0].detach(), half[0] - 0.1 * gradient[0])
    assert other.phase == 0


@pytest.mark.parametrize("choice", [{"weight_decay": 0.5}, {"momentum": 0.9}, {"nesterov": True}])
def test_what_a_group_asks_for_in_vain_is_refused(choice):
    (name,) = choice
    first, second = params_of((4,), (4,))
    with pytest.raises(ValueError, match=f"^{name}=.* ADADP has none"):
        ADADP([{"params": [first], **choice}, {"params": [second]}])
    assert len(ADADP([{"params": [first], name: 0}, {"params": [second]}]).param_groups) == 2


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_an_lr_set_by_hand_must_be_one(value):
    params = params_of((4,))
    opt = ADADP(params)
    opt.param_groups[0]["lr"] = value
    before = values(params)
    with pytest.raises(ValueError, match="lr must be a finite number"):
        feed(opt, *noise(params, 2))
    assert_same(params, before)


def test_a_warm_start_leaves_behind_what_only_the_other_optimizer_has():
    params = params_of((4,))
    other = torch.optim.SGD(params, lr=0.2, momentum=0.9, weight_decay=0.5)
    opt = ADADP(params)
    opt.load_state_dict(other.state_dict())
    assert lr(opt) == 0.2 and not {"momentum", "weight_decay"} & opt.param_groups[0].keys()

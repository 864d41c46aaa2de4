"""The faster noise of long runs is torch's, bit for bit, and refuses to run where it is not."""

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch

TOOL = Path(__file__).parents[1] / "tools" / "long_runs.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("long_runs", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fill(tool, tmp_path_factory):
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if not shutil.which("g++") or " avx2" not in flags:
        pytest.skip("needs g++ and AVX2")
    return tool.compiled(tmp_path_factory.mktemp("compiled"))


@pytest.fixture
def restored(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "normal_", torch.Tensor.normal_)


def test_noise_and_states_are_those_of_torch(tool, fill):
    tool.check(fill)


@pytest.mark.parametrize("fault", ["numbers", "state"])
def test_one_wrong_bit_is_noticed(tool, fill, fault):
    def wrong(x, mean, std, generator):
        fill(x, mean, std, generator)
        if fault == "numbers":
            x[-1] = torch.nextafter(x[-1], torch.tensor(9.0))
        else:
            torch.rand(1, generator=generator)
        return x

    with pytest.raises(RuntimeError, match="differ from those of torch"):
        tool.check(wrong, sizes=(4096,))


def test_private_training_is_the_same_with_it(tool, fill, restored):
    from adadp import PrivateGradient

    def released():
        model = torch.nn.Linear(100, 80, bias=False)
        torch.nn.init.constant_(model.weight, 0.1)
        g = torch.Generator().manual_seed(5)
        gradient = PrivateGradient(model, expected_batch_size=4, noise_multiplier=2.0, max_grad_norm=1.0, generator=g)
        gradient.backward(torch.ones(4, 100), torch.zeros(4, dtype=torch.int64))
        return model.weight.grad, g.get_state()

    plain = released()
    used = []
    tool.install(lambda *args: used.append(args) or fill(*args))
    fast = released()
    assert used and all(torch.equal(a, b) for a, b in zip(plain, fast, strict=True))


def test_what_it_is_not_made_for_is_left_to_torch(tool, restored):
    tool.install(lambda *args: pytest.fail("must not be used"))
    g = torch.Generator().manual_seed(0)
    for x in (torch.empty(10), torch.empty(5000, dtype=torch.float64), torch.empty(100, 100).t()):
        assert x.normal_(generator=g).isfinite().all()
    assert torch.empty(5000).normal_().isfinite().all()


def test_without_a_compiler_it_says_what_to_do(tool, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(tool, "FOLDER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool.main() == 2
    assert "use plain `adadp run`" in capsys.readouterr().err

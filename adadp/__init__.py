"""Learning-rate adaptation by step doubling, for private and federated SGD.

The main thing is :class:`adadp.ADADP`, an ordinary ``torch.optim.Optimizer``. Names are loaded when they are first
used, so that ``import adadp`` is quick and a training run needs torch and numpy only.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "ADADP": "optimizer",
    "VARIANTS": "optimizer",
    "predicted_lr": "step_size",
    "PrivateGradient": "privacy",
    "PoissonSampling": "privacy",
    "ShuffledPartition": "privacy",
    "MomentsAccountant": "privacy",
    "epsilon": "privacy",
    "calibrate_noise_multiplier": "privacy",
    "privacy_statement": "privacy",
    "train": "training",
    "History": "training",
}
_MODULES = ("auditing", "checkpoint", "data", "experiments", "federated", "figures", "models", "privacy", "publishing")

__all__ = sorted([*_HOME, *_MODULES, "__version__"])


def __getattr__(name: str):
    """Load a public name from the module that owns it (PEP 562)."""
    if name in _HOME:
        value = getattr(import_module(f"adadp.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"adadp.{name}")
    else:
        raise AttributeError(f"module 'adadp' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

"""Private building blocks: clipping, noisy gradients, batch sampling, accounting."""

from importlib import import_module

_HOME = {
    "PrivateGradient": "gradient",
    "PoissonSampling": "sampling",
    "ShuffledPartition": "sampling",
    "MomentsAccountant": "accounting",
    "epsilon": "accounting",
    "assumptions": "accounting",
    "calibrate_noise_multiplier": "accounting",
    "privacy_statement": "accounting",
    "sampler_warning": "accounting",
    "shuffled_lower_bound": "accounting",
    "shuffled_upper_bound": "accounting",
    "tuned_epsilon": "accounting",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    """Load a public name from the module that owns it; the building blocks do not import each other."""
    if name not in _HOME:
        raise AttributeError(f"module 'adadp.privacy' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"adadp.privacy.{_HOME[name]}"), name)
    return value

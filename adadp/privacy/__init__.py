"""Private building blocks: clipping, noisy gradients, batch sampling, accounting."""

from adadp import lazy

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
__getattr__, __dir__, __all__ = lazy.names(__name__, _HOME)

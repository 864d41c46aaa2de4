"""Learning-rate adaptation by step doubling, for private and federated SGD.

The main thing is :class:`adadp.ADADP`, an ordinary ``torch.optim.Optimizer``. Names are loaded when they are first
used, so that ``import adadp`` is quick and a training run needs torch and numpy only.
"""

from adadp import lazy

__version__ = "0.1.0"

_HOME = {
    "ADADP": "optimizer",
    "VARIANTS": "optimizer",
    "predicted_lr": "step_size",
    "suggested_tol": "step_size",
    "PrivateGradient": "privacy",
    "PoissonSampling": "privacy",
    "ShuffledPartition": "privacy",
    "MomentsAccountant": "privacy",
    "epsilon": "privacy",
    "tuned_epsilon": "privacy",
    "calibrate_noise_multiplier": "privacy",
    "privacy_statement": "privacy",
    "Dataset": "data",
    "train": "training",
    "AdaptThenDecay": "training",
    "History": "training",
    "cross_entropy": "training",
    "evaluate": "training",
}
_MODULES = (
    *("auditing", "checkpoint", "data", "experiments", "features", "federated", "figures", "history", "models"),
    *("optimizer", "privacy", "publishing", "reference", "rounding", "sources", "step_size", "timing", "training"),
)
__getattr__, __dir__, __all__ = lazy.names(__name__, _HOME, _MODULES)
__all__ += ["__version__"]

"""From (noise multiplier, sample rate, steps) to epsilon, by three accountants, and back to the noise.

The moments accountant is the paper's (:mod:`adadp.privacy.moments`). RDP and PLD are dp-accounting's; what is added
is the choice of PLD's discretisation (:mod:`adadp.privacy.pld`), the refusal of what would be wrong, and a calibration
that does not overshoot.
"""

from adadp.privacy.calibration import calibrate_noise_multiplier
from adadp.privacy.composition import composed_epsilon, epsilon
from adadp.privacy.moments import MomentsAccountant
from adadp.privacy.shuffling import shuffled_lower_bound, shuffled_upper_bound
from adadp.privacy.statement import assumptions, privacy_statement, sampler_warning
from adadp.privacy.tuning import tuned_epsilon

__all__ = [
    "MomentsAccountant",
    "assumptions",
    "calibrate_noise_multiplier",
    "composed_epsilon",
    "epsilon",
    "privacy_statement",
    "sampler_warning",
    "shuffled_lower_bound",
    "shuffled_upper_bound",
    "tuned_epsilon",
]

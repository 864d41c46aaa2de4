"""What one private gradient has released: how many gradients, and by which sampling as far as that is known."""

from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Count of the gradients that a :class:`adadp.PrivateGradient` released.

    Attributes:
        steps: all of them.
        releases: one dictionary for each training by :func:`adadp.train` that has ended or was interrupted: run (a
            checksum by which a resumed one is recognised), sampler, sample_rate, noise_multiplier, steps.
    """

    steps: int = 0
    releases: list[dict] = field(default_factory=list)

    @property
    def known(self) -> int:
        """How many gradients belong to ``releases``."""
        return sum(release["steps"] for release in self.releases)

    def add(self, release: dict) -> None:
        """Note what a training has released; ``steps`` has counted it already."""
        self.releases.append(release)

    def take_up(self, stored: dict, step: int) -> None:
        """Go on from a checkpoint that was written ``step`` gradients into a training.

        What this ledger holds of the same training is released again bit for bit, so it counts once; a ledger that
        knows nothing of it, that of a new process, takes over what had been released before it.

        Args:
            stored: run, steps and releases: the training, and the ledger without its gradients.
        """
        mine = [r for r in self.releases if r["run"] == stored["run"]]
        self.releases = [r for r in self.releases if r["run"] != stored["run"]]
        self.steps += step - sum(r["steps"] for r in mine)
        if not mine:
            held = {r["run"] for r in self.releases}
            self.releases += [r for r in stored["releases"] if r["run"] not in held]
            self.steps += stored["steps"] - sum(r["steps"] for r in stored["releases"] if r["run"] in held)

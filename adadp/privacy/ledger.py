"""What one private gradient has released: how many gradients, and by which sampling as far as that is known."""

from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Count of the gradients that a :class:`adadp.PrivateGradient` released.

    Attributes:
        steps: all of them.
        releases: one dictionary for each training by :func:`adadp.train` that has ended or was interrupted: run (a
            checksum by which a resumed one is recognised), sampler, sample_rate, noise_multiplier, steps, and checksums
            of the source of its noise before (drawn_from) and after it (left).
    """

    steps: int = 0
    releases: list[dict] = field(default_factory=list)

    @property
    def known(self) -> int:
        """How many gradients belong to ``releases``."""
        return sum(release["steps"] for release in self.releases)

    def state_dict(self) -> dict:
        """For a checkpoint: steps and releases, plain numbers and text."""
        return {"steps": self.steps, "releases": [dict(release) for release in self.releases]}

    def load_state_dict(self, state: dict) -> None:
        """Add what a checkpoint holds to what this ledger has counted itself, a trial before it was read, say.

        (Read twice, it counts twice: an epsilon may be too large, never too small.) What another process released after
        the checkpoint was written is not in it: write one before anything is published.

        >>> ledger = Ledger(steps=1)
        >>> ledger.load_state_dict({"steps": 7, "releases": []})
        >>> ledger.steps
        8
        """
        self.steps += state["steps"]
        self.releases += [dict(release) for release in state["releases"]]

    def add(self, release: dict) -> None:
        """Note what a training has released; ``steps`` has counted it already."""
        self.releases.append(release)

    def beyond(self, run: str, step: int, total: int, source: str) -> int:
        """How many gradients of a training were released past its checkpoint and will not be those of the resumed one.

        An interrupted training is released again bit for bit. One that had come to its end is not, since whoever goes
        back in it has something else in mind; nor is one from whose noise somebody has drawn since. (That the source
        was set back to where the training began changes nothing.)

        Args:
            run: the training.
            step: where its checkpoint stands.
            total: its gradients in all.
            source: checksum of the source of its noise, as it is now.
        """
        drawn = {r.get("drawn_from") for r in self.releases if r["run"] != run}

        def again(release: dict) -> bool:
            left, start = release.get("left"), release.get("drawn_from")
            return release["steps"] < total and source in (left, start) and left not in drawn

        return sum(max(0, r["steps"] - step) for r in self.releases if r["run"] == run and not again(r))

    def take_up(self, stored: dict, step: int, beyond: int = 0) -> None:
        """Go on from a checkpoint that was written ``step`` gradients into a training.

        What this ledger holds of the same training is released again bit for bit, so it counts once; a ledger that
        knows nothing of it, that of a new process, takes over what had been released before it.

        Args:
            stored: run, steps and releases: the training, and the ledger without its gradients.
            beyond: gradients past the checkpoint that are not released again, and count as a training of their own.
        """
        mine = [r for r in self.releases if r["run"] == stored["run"]]
        self.releases = [r for r in self.releases if r["run"] != stored["run"]]
        if beyond:
            self.add(mine[-1] | {"run": f"{stored['run']} past {step}", "steps": beyond, "drawn_from": None})
        self.steps += step + beyond - sum(r["steps"] for r in mine)
        if not mine:
            held = {r["run"] for r in self.releases}
            self.releases += [r for r in stored["releases"] if r["run"] not in held]
            self.steps += stored["steps"] - sum(r["steps"] for r in stored["releases"] if r["run"] in held)

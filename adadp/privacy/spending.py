"""What a training's epsilon counts: its own gradients, and those that the same private gradient released before."""

import warnings

from adadp.privacy.ledger import Ledger


class Spending:
    """The epsilon of one training, whatever its gradient has released before included.

    Args:
        gradient: of the training; one without a ledger is taken for new. None: nothing is private.
        sampling: of the training.
        size: number of its examples.
        delta, accountant: as for :func:`adadp.train`, checked.

    Attributes:
        privacy: what every epsilon takes for granted, for :attr:`adadp.History.privacy`.
    """

    def __init__(self, gradient, sampling, size: int, delta: float, accountant: str):
        self.ledger: Ledger = getattr(gradient, "ledger", None) or Ledger()
        self.privacy: dict = {"sampler": sampling.name, "noise_multiplier": None}
        if gradient is not None:
            self.privacy = {
                "sampler": sampling.name,
                "assumed_sampler": "poisson",
                "matches": sampling.name == "poisson",
                "neighbors": "add_remove",
                "accountant": accountant,
                "delta": delta,
                "noise_multiplier": float(gradient.noise_multiplier),
                "sample_rate": sampling.rate(size),
            }
        self._afresh = False  # noise that an older checkpoint cannot bring back
        self.begin("")

    def begin(self, run: str, step: int = 0, source: str = "") -> None:
        """Start to count for the training named ``run``, which stands at ``step``.

        Args:
            source: checksum of the source of its noise.

        Warns:
            UserWarning: another training drew the same noise.
        """
        self.run, self._before, self._source = run, self.ledger.steps - step, source
        self._earlier = list(self.ledger.releases)
        if source and any(r["run"] != run and r.get("drawn_from") == source for r in self._earlier):
            warnings.warn(
                "an earlier training of this gradient drew the same noise (its generator was set back): the difference "
                "of the two shows what the noise hid, and no epsilon holds for both",
                stacklevel=5,
            )
        self._others = self._before - self.ledger.known

    def take_up(self, stored: dict | None, step: int, total: int) -> bool:
        """Continue from a checkpoint; None: it was written before there were ledgers.

        Returns:
            whether noise and batches must be drawn afresh: what was released past the checkpoint is not released again.
        """
        if self.privacy["noise_multiplier"] is None:
            return False
        stored = stored or {"run": self.run, "steps": 0, "releases": []}
        beyond = self.ledger.beyond(stored["run"], step, total, self._source)
        self.ledger.take_up(stored, step, beyond)
        self.begin(stored["run"], step, stored.get("source", ""))
        self._afresh = beyond > 0
        return self._afresh

    def differing(self, privacy: dict) -> list[str]:
        """Names of what another run's ``privacy`` assumes otherwise of its own gradients."""
        varying = {"earlier", "not_counted", "matches", "steps"}
        names = [n for n in dict.fromkeys([*self.privacy, *privacy]) if n not in varying]
        return [name for name in names if privacy.get(name) != self.privacy.get(name)]

    def state_dict(self, step: int) -> dict:
        """For the checkpoint: the training, and the ledger without its ``step`` gradients."""
        before = max(self._before, self.ledger.steps - step)
        return {"run": self.run, "steps": before, "releases": self._earlier, "source": self._source}

    def look(self, step: int, *, stacklevel: int = 4) -> None:
        """Put what was released besides this training's gradients into ``privacy``, and warn of what is not counted."""
        if self.privacy["noise_multiplier"] is None:
            return
        if self._earlier:
            shown = ("sampler", "sample_rate", "noise_multiplier", "steps")
            self.privacy["earlier"] = [{name: release[name] for name in shown} for release in self._earlier]
            self.privacy["matches"] &= all(release["sampler"] == "poisson" for release in self._earlier)
        others = max(0, self._others, self.ledger.steps - self.ledger.known - step)
        if others > self.privacy.get("not_counted", 0):
            self.privacy["not_counted"] = others
            if self.privacy["noise_multiplier"]:
                warnings.warn(
                    f"gradient has released {others} gradients outside of train: how their batches were drawn is not "
                    "known, so they are NOT counted in epsilon",
                    stacklevel=stacklevel,
                )

    def between(self, step: int, rows: list[dict]) -> None:
        """Note in ``privacy`` how many gradients there are while the last row is older than the model, which a callback
        may publish."""
        self.privacy.pop("steps", None)
        if self.privacy["noise_multiplier"] is not None and rows and rows[-1]["steps"] != step:
            self.look(step, stacklevel=5)
            self.privacy["steps"] = step

    def epsilon(self, step: int) -> float | None:
        """Epsilon after so many gradients of this training; None for one that is not private."""
        if self.privacy["noise_multiplier"] is None:
            return None
        from adadp.privacy.accounting import composed_epsilon

        releases = [{**self.privacy, "steps": step}, *self.privacy.get("earlier", [])]
        parts = [(r["noise_multiplier"], r["sample_rate"], r["steps"]) for r in releases]
        return composed_epsilon(parts, **{n: self.privacy[n] for n in ("delta", "accountant", "neighbors")})

    def end(self, begun: int, rows: list[dict], source: str = "") -> None:
        """Leave what was released to the ledger, for the next training; also after an interruption, when a callback
        may have kept the history.

        Args:
            begun: gradients of this training that were at least begun.
            rows: of its history.
            source: checksum of the source of its noise.
        """
        if self.privacy["noise_multiplier"] is None:
            return
        taken = min(self.ledger.steps - self._before, begun)
        if taken > 0:
            self.between(taken, rows)
            names = ("sampler", "sample_rate", "noise_multiplier")
            sources = (
                {"drawn_from": None, "left": None} if self._afresh else {"drawn_from": self._source, "left": source}
            )
            self.ledger.add({"run": self.run, **{n: self.privacy[n] for n in names}, "steps": taken, **sources})

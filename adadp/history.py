"""What a training run leaves behind: a table with one row an evaluation, and what its epsilon assumes."""

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from adadp.rounding import round_up

_NON_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


@dataclass
class History:
    """The record of one run; plain numbers and strings only, so that it can be stored anywhere.

    Attributes:
        rows: one dictionary an evaluation. ``train`` writes epoch, steps (gradients so far; two an ADADP iteration),
            test_accuracy (0..1), test_loss, lr (after the epoch), error and discarded (ADADP's, None for another
            optimizer), epsilon (after the same epoch; inf without noise, None for training that is not private).
        first_epoch: one dictionary for each ADADP iteration of the first epoch: step, lr (after it), error.
        privacy: what epsilon assumes (accountant, delta, neighbors, assumed_sampler, sample_rate, noise_multiplier),
            ``sampler``, the one in fact used, and ``matches``: whether the two are the same. While the last row is
            older than the model, ``steps``: gradients so far. Where the gradient had been used before, ``earlier``:
            what it released in earlier trainings, which epsilon includes, and ``not_counted``: how many gradients it
            released outside of ``train``, which epsilon leaves out.

    >>> history = History(rows=[{"epoch": 1, "test_accuracy": 0.5, "epsilon": math.inf}])
    >>> History.from_json(history.to_json()) == history
    True
    >>> history
    History(1 rows; last: epoch 1, test_accuracy 0.5, epsilon inf)
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    first_epoch: list[dict[str, Any]] = field(default_factory=list)
    privacy: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        if not self.rows:
            return "History(0 rows)"
        numbers = {k: v for k, v in self.rows[-1].items() if isinstance(v, int | float)}
        last = ", ".join(f"{k} {round_up(v, 4) if k == 'epsilon' else f'{v:.4g}'}" for k, v in numbers.items())
        return f"History({len(self.rows)} rows; last: {last})"

    def to_dataframe(self):
        """``rows`` as a pandas table; ``privacy`` is in its ``attrs``.

        Raises:
            ImportError: pandas is not installed (``pip install pandas``, or the extra ``book``).
        """
        import pandas

        table = pandas.DataFrame(self.rows)
        table.attrs["privacy"] = dict(self.privacy)
        return table

    def to_json(self) -> str:
        """Strict JSON; what is not finite is written as "Infinity", "-Infinity" or "NaN"."""
        return json.dumps(_encode(asdict(self)), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "History":
        """What :meth:`to_json` wrote, back to the last bit.

        Raises:
            ValueError: the text is not such a record.
        """
        try:
            parts = json.loads(text)
        except ValueError as error:
            raise ValueError(f"text is not JSON of a History: {error}") from error
        kinds = {"rows": list, "first_epoch": list, "privacy": dict}
        if not isinstance(parts, dict) or set(parts) != set(kinds):
            raise ValueError(f"text is not JSON of a History: it must hold {', '.join(kinds)}")
        for name, kind in kinds.items():
            if not isinstance(parts[name], kind):
                raise ValueError(f"text is not JSON of a History: {name} must be a {kind.__name__}")
        return cls(**_decode(parts))


def _encode(value):
    """Non-finite floats as strings, through lists and dictionaries: JSON has no word for them."""
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _decode(value):
    """The inverse of :func:`_encode`."""
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value

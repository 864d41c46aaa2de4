"""What an audit returns, and how it fails."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adadp.rounding import round_down, round_up


@dataclass(frozen=True)
class AuditResult:
    """One measurement of privacy and the limit that the declared mechanism sets it.

    Args:
        name: what was audited.
        passed: whether the measurement is compatible with what was declared.
        bound: what was measured; a statistical one is a lower bound on the privacy loss.
        limit: what the declared mechanism allows.
        unit: of both: "sensitivity / C", "noise / declared noise", "mu" (Gaussian differential privacy) or "epsilon".
        confidence: with which the bound holds; 1.0 where nothing is left to chance.
        sample_size: observations behind it (of each of the two sides, for a canary).
        detail: one sentence: the reason for failing, or a reading of the number.
        evidence: the numbers behind ``bound``, as arrays, for a picture; each audit says which. Printed epsilons are
            rounded to the safe side: a bound down, what is declared up.

    >>> print(AuditResult("canary in G1", True, 0.83, 1.0, "mu", 0.95, 1000, "epsilon >= 3.4 at delta 1e-05"))
    PASS  canary in G1: mu 0.83, declared 1 (95 % confidence, 1000 observations): epsilon >= 3.4 at delta 1e-05
    """

    name: str
    passed: bool
    bound: float
    limit: float
    unit: str
    confidence: float
    sample_size: int
    detail: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        sure = "exact" if self.confidence == 1 else f"{100 * self.confidence:g} % confidence"
        lower = self.unit in ("mu", "epsilon")
        bound = round_down(self.bound) if lower else f"{self.bound:.3g}"
        limit = round_up(self.limit) if lower else f"{self.limit:.3g}"
        text = f"{'PASS' if self.passed else 'FAIL'}  {self.name}: {self.unit} {bound}, declared {limit}"
        text += f" ({sure}, {self.sample_size} observations)"
        return f"{text}: {self.detail}" if self.detail else text


class AuditError(RuntimeError):
    """An audit failed: what was audited is less private than it declares. ``results`` holds every result."""

    def __init__(self, results: Sequence[AuditResult]):
        self.results = list(results)
        failed = [result for result in self.results if not result.passed]
        super().__init__(f"{len(failed)} of {len(self.results)} audits failed: " + "; ".join(map(str, failed)))

"""Audits: measure how private a private gradient is, and fail loudly when it is less private than it declares.

Three kinds. Gray-box (:mod:`adadp.auditing.sensitivity`): with the randomness fixed, neighbouring batches may differ by
C and no more; without data, the noise must have its declared scale and be independent. Canaries
(:mod:`adadp.auditing.canary`): a distinguisher looks at thousands of released gradients of ADADP, with and without one
crafted record. One run (:mod:`adadp.auditing.one_run`): a thousand records, each in or out, guessed from a single run.
The last two give lower bounds that hold with a stated confidence, whatever the code under audit does.

Private gradients with planted faults, to see an audit fail, are in :mod:`adadp.auditing.faults`.

An audit that passes proves nothing: it bounds privacy from the other side than an accountant does.
"""

from adadp.auditing.canary import audit_releases
from adadp.auditing.one_run import audit_one_run, one_run_epsilon
from adadp.auditing.report import AuditError, AuditResult
from adadp.auditing.run import audit_epsilon, run_audit
from adadp.auditing.sensitivity import audit_noise, audit_sensitivity

__all__ = [
    "AuditError",
    "AuditResult",
    "audit_epsilon",
    "audit_noise",
    "audit_one_run",
    "audit_releases",
    "audit_sensitivity",
    "one_run_epsilon",
    "run_audit",
]

"""Known faults of such accounting, each refuted by name and shown by its shortest trace."""

from draftproof.proofs.faults.fault import Change, Decision, Fault, Pin
from draftproof.proofs.faults.registry import Report, UnknownName, all_faults, find, reports
from draftproof.proofs.faults.unmodelled import UNMODELLED

__all__ = [
    "UNMODELLED",
    "Change",
    "Decision",
    "Fault",
    "Pin",
    "Report",
    "UnknownName",
    "all_faults",
    "find",
    "reports",
]

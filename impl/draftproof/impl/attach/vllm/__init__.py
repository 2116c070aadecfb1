"""vLLM with its accounting checked: classes for `--scheduler-cls`, and what they found.

`CheckedScheduler` and `CheckedAsyncScheduler` are vLLM's own schedulers with the proven accounting core run
beside them. They need vLLM, so they are imported when they are asked for; the rest does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftproof.impl.attach.vllm.reports import PROCESS, ContractViolationError, Report, Violation
from draftproof.impl.attach.vllm.settings import Settings, SettingsError
from draftproof.impl.attach.vllm.versions import SUPPORTED, UnsupportedVersionError, moved

if TYPE_CHECKING:
    from draftproof.impl.attach.vllm.schedulers import CheckedAsyncScheduler, CheckedScheduler

__all__ = [
    "PROCESS",
    "SUPPORTED",
    "CheckedAsyncScheduler",
    "CheckedScheduler",
    "ContractViolationError",
    "Report",
    "Settings",
    "SettingsError",
    "UnsupportedVersionError",
    "Violation",
    "metrics_text",
    "moved",
]


def metrics_text() -> str:
    """What this process's checks have counted, in Prometheus's text form."""
    return PROCESS.metrics()


def __getattr__(name: str) -> Any:
    """The checked schedulers, once vLLM is really wanted. Raises UnsupportedVersionError where it is not."""
    if name in ("CheckedScheduler", "CheckedAsyncScheduler"):
        from draftproof.impl.attach.vllm import versions

        versions.require_supported(versions.installed())
        from draftproof.impl.attach.vllm import schedulers

        return getattr(schedulers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

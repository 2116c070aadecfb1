"""What runs: the proven transitions, their contracts, their compiled form and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.impl.scheduler.checks import AccountingError, assert_accounting

__all__ = ["AccountingError", "assert_accounting"]


def __getattr__(name: str) -> Any:
    """The helpers for tests, loaded when they are asked for: a transition does not need the scheduler."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from draftproof.impl.scheduler import checks

    return getattr(checks, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

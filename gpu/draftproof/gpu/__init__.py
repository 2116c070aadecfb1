"""Where it runs fast: the part of draftproof that needs a device. `from draftproof.gpu import LLM`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.gpu.llm import LLM
    from draftproof.gpu.runner.requests import RequestOutput, RequestResult
    from draftproof.gpu.sampling.parameters import SamplingParameters
    from draftproof.gpu.session import Session

__all__ = ["LLM", "RequestOutput", "RequestResult", "SamplingParameters", "Session"]

_PLACES = {
    "LLM": "draftproof.gpu.llm",
    "RequestOutput": "draftproof.gpu.runner.requests",
    "RequestResult": "draftproof.gpu.runner.requests",
    "SamplingParameters": "draftproof.gpu.sampling.parameters",
    "Session": "draftproof.gpu.session",
}


def __getattr__(name: str) -> Any:
    """torch is imported when something of it is asked for: the command line works without."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)

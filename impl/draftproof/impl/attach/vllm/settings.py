"""How are the checks switched? By the environment, which reaches every process of an engine.

DRAFTPROOF_VLLM          report (one log line per distinct violation), raise, record; anything else is
                         refused, and without it the plug-in does nothing
DRAFTPROOF_VLLM_CONTENT  0 leaves out the token-level shadow of the KV slots
DRAFTPROOF_VLLM_SWEEP    every so many steps all counters, owners and reference counts are compared (64)
DRAFTPROOF_VLLM_METRICS  a file for the counters, in Prometheus's text form, written every ten seconds
DRAFTPROOF_VLLM_TRACE    where `record` writes its trace; a name in .zst compresses
DRAFTPROOF_VLLM_TRACE_BYTES  the trace goes on in another file after about so many bytes

In both names {pid} is the process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

MODES = ("report", "raise", "record")
SWITCH = "DRAFTPROOF_VLLM"


class SettingsError(ValueError):
    """An environment variable holds what it cannot hold."""


class Settings(NamedTuple):
    """What is checked, and what happens then."""

    mode: str = "report"
    content: bool = True
    sweep_interval: int = 64
    """Steps between two comparisons of everything with everything."""
    metrics_path: str | None = None
    trace_path: str | None = None
    trace_bytes: int | None = None
    """After so many the trace goes on in another file."""


def switched_on(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the plug-in has been asked to check."""
    return environment.get(SWITCH, "") not in ("", "0")


def read(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in the environment. Raises SettingsError, in one sentence."""
    mode = environment.get(SWITCH, "") or "report"
    if mode not in MODES:
        raise SettingsError(f"{SWITCH} is {mode!r}: it can be {', '.join(MODES)}, or empty to check nothing")
    content = environment.get(f"{SWITCH}_CONTENT", "1")
    if content not in ("0", "1"):
        raise SettingsError(f"{SWITCH}_CONTENT is {content!r}: it can be 0 or 1")
    interval = environment.get(f"{SWITCH}_SWEEP", "64")
    if not (interval.isascii() and interval.isdigit() and 0 < int(interval) < 1_000_000):
        raise SettingsError(f"{SWITCH}_SWEEP is {interval!r}: it is a number of steps, at least 1")
    size = environment.get(f"{SWITCH}_TRACE_BYTES") or None
    if size is not None and not (size.isascii() and size.isdigit() and int(size[:18]) > 0):
        raise SettingsError(f"{SWITCH}_TRACE_BYTES is {size!r}: it is a number of bytes, at least 1")
    return Settings(
        mode=mode,
        content=content == "1",
        sweep_interval=int(interval),
        metrics_path=environment.get(f"{SWITCH}_METRICS") or None,
        trace_path=environment.get(f"{SWITCH}_TRACE") or None,
        trace_bytes=None if size is None else int(size),
    )

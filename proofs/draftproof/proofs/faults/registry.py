"""All faults, by name."""

from __future__ import annotations

import difflib
import functools
import importlib.resources
import json
from typing import NamedTuple

from draftproof.proofs.faults import (
    registry_cache,
    registry_capacity,
    registry_exits,
    registry_limits,
    registry_metrics,
    registry_output,
    registry_preemption,
    registry_sessions,
)
from draftproof.proofs.faults.fault import Fault


class Report(NamedTuple):
    """A public report of an accounting fault."""

    id: str
    source: str
    engine: str
    area: str
    what_happens: str


class UnknownName(LookupError):
    """No fault has this name. `nearest` are the names most like it."""

    def __init__(self, name: str, nearest: list[str]) -> None:
        hint = f"; did you mean {', '.join(nearest)}?" if nearest else ""
        super().__init__(f"there is no fault named {name}{hint}")
        self.name = name
        self.nearest = nearest


@functools.cache
def all_faults() -> tuple[Fault, ...]:
    """Every fault, in reading order: outputs, sessions, preemption, exits, limits, slots, cache, metrics."""
    return (
        *registry_output.FAULTS,
        *registry_sessions.FAULTS,
        *registry_preemption.FAULTS,
        *registry_exits.FAULTS,
        *registry_limits.FAULTS,
        *registry_capacity.FAULTS,
        *registry_cache.FAULTS,
        *registry_metrics.FAULTS,
    )


def find(name: str) -> Fault:
    """The fault of that name. Raises UnknownName with the nearest names."""
    faults = {fault.name: fault for fault in all_faults()}
    if name not in faults:
        raise UnknownName(name, difflib.get_close_matches(name, faults, n=3, cutoff=0.4))
    return faults[name]


@functools.cache
def reports() -> dict[str, Report]:
    """The public reports of the areas covered, by id."""
    text = (
        importlib.resources.files("draftproof.proofs.faults")
        .joinpath("reports.json")
        .read_text(encoding="utf-8")
    )
    return {entry["id"]: Report(**entry) for entry in json.loads(text)}

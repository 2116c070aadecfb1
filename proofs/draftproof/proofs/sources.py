"""Where the obligations come from: every module that claims something, under the name tables use.

A source builds its list anew in each worker process (solver terms cannot travel between processes), so
a list must come out in the same order every time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from draftproof.proofs import (
    capacity,
    commutation,
    completeness,
    decisions,
    floor,
    induction,
    integers,
    refinement_queue,
    refinement_tokens,
    sessions,
)
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation

SOURCES: dict[str, Callable[[], list[Obligation]]] = {
    "floor": floor.obligations,
    "induction": induction.all_obligations,
    "completeness": completeness.obligations,
    "decisions": decisions.obligations,
    "refinement_queue": refinement_queue.obligations,
    "refinement_tokens": refinement_tokens.obligations,
    "sessions": sessions.obligations,
    "commutation": commutation.obligations,
    "capacity": capacity.obligations,
    "integers": integers.obligations,
}


@functools.cache
def built(source: str) -> tuple[Obligation, ...]:
    """The obligations of one source."""
    return tuple(SOURCES[source]())


@functools.cache
def controls() -> tuple[Control, ...]:
    """Statements that must be refuted: assumptions dropped one at a time, and claims that are too strong."""
    modules: tuple[Any, ...] = (refinement_tokens, commutation, sessions, capacity, integers)
    return tuple(control for module in modules for control in module.controls())


@functools.cache
def witnesses() -> dict[str, dict[str, Any]]:
    """Hypotheses with quantifiers, by group: the same, pinned to a small queue, so that z3 can meet them."""
    modules: tuple[Any, ...] = (refinement_queue, refinement_tokens, capacity)
    found: dict[str, dict[str, Any]] = {}
    for module in modules:
        if hasattr(module, "witnesses"):
            found |= module.witnesses()
    return found


def groups(source: str) -> dict[str, dict[str, Any]]:
    """The distinct hypotheses of a source, by assumption group: pinned where quantifiers need it."""
    found: dict[tuple[str, ...], tuple[str, dict[str, Any]]] = {}
    for obligation in built(source):
        group = obligation.assumption_group or obligation.name
        # Two lists under one group name are two groups: neither may hide behind the other.
        key = (group, *obligation.hypotheses)
        found.setdefault(key, (group, witnesses().get(group, obligation.hypotheses)))
    return {
        group if key[1:] == () else f"{group} #{index}": facts
        for index, (key, (group, facts)) in enumerate(found.items())
    }

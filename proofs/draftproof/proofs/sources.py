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
    progress,
    queue_bounds,
    refinement_consequences,
    refinement_queue,
    refinement_tokens,
    sessions,
    token_identity,
)
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation

SOURCES: dict[str, Callable[[], list[Obligation]]] = {
    "floor": floor.obligations,
    "induction": induction.all_obligations,
    "completeness": completeness.obligations,
    "decisions": decisions.obligations,
    "refinement_queue": refinement_queue.obligations,
    "queue_bounds": queue_bounds.obligations,
    "refinement_tokens": refinement_tokens.obligations,
    "refinement_consequences": refinement_consequences.obligations,
    "token_identity": token_identity.obligations,
    "progress": progress.obligations,
    "sessions": sessions.obligations,
    "commutation": commutation.obligations,
    "capacity": capacity.obligations,
    "integers": integers.obligations,
}

QUANTIFIED = frozenset(
    {"refinement_queue", "queue_bounds", "refinement_tokens", "refinement_consequences", "capacity"}
)
"""Sources whose hypotheses speak about every step in flight: their unsat cores are not minimised."""

CONTROLLED: tuple[Any, ...] = (
    floor,
    decisions,
    refinement_queue,
    queue_bounds,
    refinement_tokens,
    token_identity,
    progress,
    sessions,
    commutation,
    capacity,
    integers,
)
WITNESSED: tuple[Any, ...] = (
    refinement_queue,
    queue_bounds,
    refinement_tokens,
    refinement_consequences,
    token_identity,
    capacity,
)


@functools.cache
def built(source: str) -> tuple[Obligation, ...]:
    """The obligations of one source."""
    return tuple(SOURCES[source]())


@functools.cache
def controls() -> tuple[Control, ...]:
    """Statements that must be refuted: assumptions dropped one at a time, and claims that are too strong."""
    return tuple(control for module in CONTROLLED for control in module.controls())


@functools.cache
def witnesses() -> dict[str, dict[str, Any]]:
    """Hypotheses with quantifiers, by group: the same, pinned to a small queue, so that z3 can meet them."""
    return {group: facts for module in WITNESSED for group, facts in module.witnesses().items()}


def groups(source: str) -> dict[str, dict[str, Any]]:
    """The distinct hypotheses of a source, by assumption group: pinned where quantifiers need it.

    Two lists of hypotheses under one group name are two groups: neither may hide behind the other.
    """
    found: dict[tuple[str, ...], tuple[str, dict[str, Any]]] = {}
    for obligation in built(source):
        group = obligation.assumption_group or obligation.name
        facts = witnesses().get(group, obligation.hypotheses)
        found.setdefault((group, *obligation.hypotheses), (group, facts))
    return {f"{source}: {group} #{index}": facts for index, (group, facts) in enumerate(found.values())}


def states_to_reach() -> dict[str, dict[str, Any]]:
    """Further states that must be satisfiable: each mode of the refinement, and states worth showing."""
    named = {
        obligation.assumption_group or obligation.name for source in SOURCES for obligation in built(source)
    }
    return {group: facts for group, facts in witnesses().items() if group not in named}

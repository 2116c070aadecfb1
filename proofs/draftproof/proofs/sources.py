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
    pool,
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

FULL_SOURCES: dict[str, Callable[[], list[Obligation]]] = {"pool": pool.obligations}
"""Sources of a full run only. Nothing that runs uses the pool yet, so `make prove` leaves it out; its proofs
run in `make prove-full`, by both solvers."""

SLOW_CORES = frozenset(
    {
        "refinement_queue",
        "queue_bounds",
        "refinement_tokens",
        "refinement_consequences",
        "capacity",
        "integers",
    }
)
"""Sources with quantifiers, or with very many terms: their unsat cores are not minimised."""

CONTROLLED: dict[str, Callable[[], list[Control]]] = {
    "floor": floor.controls,
    "decisions": decisions.controls,
    "refinement_queue": refinement_queue.controls,
    "queue_bounds": queue_bounds.controls,
    "refinement_tokens": refinement_tokens.controls,
    "token_identity": token_identity.controls,
    "progress": progress.controls,
    "sessions": sessions.controls,
    "commutation": commutation.controls,
    "capacity": capacity.controls,
    "integers": integers.controls,
}
FULL_CONTROLLED: dict[str, Callable[[], list[Control]]] = {"pool": pool.controls}
"""Statements that must be refuted: assumptions dropped one at a time, and claims that are too strong."""

WITNESSED: dict[str, Callable[[], dict[str, dict[str, Any]]]] = {
    "refinement_queue": refinement_queue.witnesses,
    "queue_bounds": queue_bounds.witnesses,
    "refinement_tokens": refinement_tokens.witnesses,
    "refinement_consequences": refinement_consequences.witnesses,
    "token_identity": token_identity.witnesses,
    "capacity": capacity.witnesses,
}
FULL_WITNESSED: dict[str, Callable[[], dict[str, dict[str, Any]]]] = {"pool": pool.witnesses}
"""Hypotheses with quantifiers, by group: the same, pinned to a small queue, so that z3 can meet them."""


@functools.cache
def built(source: str) -> tuple[Obligation, ...]:
    """The obligations of one source."""
    return tuple((SOURCES | FULL_SOURCES)[source]())


@functools.cache
def all_witnesses() -> dict[str, dict[str, Any]]:
    """Every pinned set of hypotheses, by group."""
    return {group: facts for witnesses in WITNESSED.values() for group, facts in witnesses().items()}


def to_satisfy(source: str) -> dict[str, dict[str, Any]]:
    """What must be satisfiable: a source's distinct hypotheses, pinned where quantifiers need it, and the
    further states that it wants reached.

    Two lists of hypotheses under one group name are two groups: neither may hide behind the other.
    """
    witnessed = WITNESSED | FULL_WITNESSED
    pinned = witnessed[source]() if source in witnessed else {}
    distinct: dict[tuple[str, ...], str] = {}
    found: dict[str, dict[str, Any]] = {}
    for obligation in built(source):
        group = obligation.assumption_group or obligation.name
        if (group, *obligation.hypotheses) not in distinct:
            name = f"{source}: {group} #{len(distinct)}"
            distinct[group, *obligation.hypotheses] = group
            found[name] = pinned.get(group, obligation.hypotheses)
    groups = set(distinct.values())
    found |= {f"{source}: {state}": facts for state, facts in pinned.items() if state not in groups}
    return found

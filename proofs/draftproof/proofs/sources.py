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
    dispatch,
    failed_step,
    floor,
    induction,
    integers,
    pool,
    progress,
    queue_bounds,
    recurrent,
    refinement_consequences,
    refinement_queue,
    refinement_tokens,
    reservation,
    reservation_faults,
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
    "dispatch": dispatch.obligations,
    "failed_step": failed_step.obligations,
    "queue_bounds": queue_bounds.obligations,
    "refinement_tokens": refinement_tokens.obligations,
    "refinement_consequences": refinement_consequences.obligations,
    "token_identity": token_identity.obligations,
    "progress": progress.obligations,
    "sessions": sessions.obligations,
    "commutation": commutation.obligations,
    "capacity": capacity.obligations,
    "reservation": reservation.obligations,
    "integers": integers.obligations,
    "recurrent": recurrent.obligations,
    **pool.SOURCES,
}

BY_Z3_ALONE = frozenset(pool.SOURCES)
"""Sources that only z3 is asked about, one claim after the other, unless the run is a full one: cvc5 decides
them as well, and takes a minute for it. Their verdicts say so and are counted apart."""

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
    "dispatch": dispatch.controls,
    "failed_step": failed_step.controls,
    "queue_bounds": queue_bounds.controls,
    "refinement_tokens": refinement_tokens.controls,
    "token_identity": token_identity.controls,
    "progress": progress.controls,
    "sessions": sessions.controls,
    "commutation": commutation.controls,
    "capacity": capacity.controls,
    "reservation": reservation_faults.controls,
    "integers": integers.controls,
    "recurrent": recurrent.controls,
    **pool.CONTROLLED,
}
"""Statements that must be refuted: assumptions dropped one at a time, and claims that are too strong."""

WITNESSED: dict[str, Callable[[], dict[str, dict[str, Any]]]] = {
    "refinement_queue": refinement_queue.witnesses,
    "dispatch": dispatch.witnesses,
    "queue_bounds": queue_bounds.witnesses,
    "refinement_tokens": refinement_tokens.witnesses,
    "refinement_consequences": refinement_consequences.witnesses,
    "token_identity": token_identity.witnesses,
    "capacity": capacity.witnesses,
    "reservation": reservation.witnesses,
    **pool.WITNESSED,
}
"""Hypotheses with quantifiers, by group: the same, pinned to a small queue, so that z3 can meet them. And the
pool's, which has none, pinned to a small pool: there a state that meets them is a real one."""

SMALL_POOL = frozenset(pool.CONTROLLED)
"""Controls over a small pool written out: one begins like the next, and a model of it costs more."""


@functools.cache
def built(source: str) -> tuple[Obligation, ...]:
    """The obligations of one source."""
    return tuple(SOURCES[source]())


@functools.cache
def all_witnesses() -> dict[str, dict[str, Any]]:
    """Every pinned set of hypotheses about ledgers, by group."""
    pinned = [witnesses for source, witnesses in WITNESSED.items() if source not in pool.WITNESSED]
    return {group: facts for witnesses in pinned for group, facts in witnesses().items()}


def to_satisfy(source: str) -> dict[str, dict[str, Any]]:
    """What must be satisfiable: a source's distinct hypotheses, pinned where quantifiers need it, and the
    further states that it wants reached.

    Two lists of hypotheses under one group name are two groups: neither may hide behind the other.
    """
    pinned = WITNESSED[source]() if source in WITNESSED else {}
    distinct: dict[tuple[str, ...], str] = {}
    found: dict[str, dict[str, Any]] = {}
    for obligation in built(source):
        group = obligation.assumption_group or obligation.name
        if (group, *obligation.hypotheses) not in distinct:
            name = f"{source}: {group} #{len(distinct)}"
            distinct[group, *obligation.hypotheses] = group
            found[name] = pinned.get(group, obligation.hypotheses)
    groups = set(distinct.values())
    # Simple states first: what meets one of them may meet a group as well, without another search.
    return {f"{source}: {state}": facts for state, facts in pinned.items() if state not in groups} | found

"""The block pool, proved from its own source (P1 to P7 and memory safety): all its claims, by subject.

No number is fixed: blocks, chains, owners and block size are symbolic. The obligations are free of
quantifiers but for the row loop's, so z3 decides each in milliseconds; cvc5 decides them too, in many times
as long, and is asked in a full run only. What stands in between source and claim: three functions are
replaced by contracts that are proved about their own source (`pool_rows`), and the ghosts are the
specification's.

Each subject is a source of its own, so that a worker process builds no more than it decides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from draftproof.proofs import (
    pool_completeness,
    pool_fill,
    pool_links,
    pool_loops,
    pool_mutants,
    pool_needs,
    pool_proof,
    pool_rows,
    pool_search,
    pool_witnesses,
)
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation
from draftproof.spec.pool_calls import PRIMITIVES

SUBJECTS = (*PRIMITIVES, "look_up", "links", *pool_loops.LOOPS, *pool_rows.PIECES)
"""What the claims are about: the second part of their names."""

Facts = dict[str, Any]


def obligations(subject: str) -> list[Obligation]:
    """Everything claimed about one subject."""
    if subject in PRIMITIVES:
        effects = pool_completeness.primitive_obligations(subject)
        return [*pool_proof.primitive_obligations(subject), *effects]
    if subject in pool_loops.LOOPS:
        return pool_loops.loop_obligations(subject)
    if subject in pool_rows.PIECES:
        return pool_rows.PIECES[subject]({})
    return {"look_up": pool_search.obligations, "links": pool_links.obligations}[subject]()


def witnesses(subject: str) -> dict[str, Facts]:
    """Small pools in which the subject's hypotheses hold, and states worth showing."""
    if subject in PRIMITIVES:
        return pool_witnesses.primitive_witnesses(subject) | pool_witnesses.completeness_witnesses(subject)
    if subject in pool_loops.LOOPS:
        return pool_witnesses.loop_witnesses(subject)
    if subject in pool_rows.PIECES:
        return {}
    return {"look_up": pool_witnesses.search_witnesses, "links": pool_witnesses.link_witnesses}[subject]()


def controls(subject: str) -> list[Control]:
    """Faults of the running source that must be refuted, and effects that must be missed."""
    effects = pool_needs.effect_controls(subject) if subject in PRIMITIVES else []
    return pool_mutants.controls(subject) + effects


SOURCES: dict[str, Callable[[], list[Obligation]]] = {
    **{f"pool/{subject}": functools.partial(obligations, subject) for subject in SUBJECTS},
    "pool/fill_block": pool_fill.obligations,
}
WITNESSED: dict[str, Callable[[], dict[str, Facts]]] = {
    f"pool/{subject}": functools.partial(witnesses, subject) for subject in SUBJECTS
}
CONTROLLED: dict[str, Callable[[], list[Control]]] = {
    **{f"pool/{subject}": functools.partial(controls, subject) for subject in SUBJECTS if subject != "links"},
    "pool/fill_block": pool_fill.controls,
    "pool/invariants": pool_needs.invariant_controls,
    "pool/order": pool_needs.order_controls,
}

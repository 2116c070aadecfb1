"""Would the proofs notice a wrong pool? Faults of the running source, each refuted on a small pool.

A mutant changes the text of one or a few functions. It is refuted if some claim about it has a
counterexample: for a primitive or the search, a state of two blocks, two chains and two tokens a block
(`pool_bounded`); for the small pieces, any state. Each mutant names the claim that must refute it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import z3

from draftproof.proofs import pool_loops, pool_rows, pool_search
from draftproof.proofs.controls import Control
from draftproof.proofs.obligations import Obligation
from draftproof.proofs.pool_bounded import bounded_claims, in_the_pool, search_facts, small_pool
from draftproof.proofs.pool_code import code, sources
from draftproof.proofs.pool_count_faults import COUNT_MUTANTS
from draftproof.proofs.pool_faults import PRIMITIVE_MUTANTS
from draftproof.proofs.pool_loop_faults import LOOP_MUTANTS
from draftproof.proofs.pool_mutant import PoolMutant
from draftproof.proofs.pool_search_faults import PIECE_MUTANTS
from draftproof.proofs.solvers import MODEL_RESOURCES
from draftproof.spec.pool_calls import PRIMITIVES

MUTANTS: tuple[PoolMutant, ...] = PRIMITIVE_MUTANTS + COUNT_MUTANTS + LOOP_MUTANTS + PIECE_MUTANTS


def changed(mutant: PoolMutant) -> dict[str, str]:
    """The changed texts; a replacement that does not occur exactly where expected is an error."""
    texts: dict[str, str] = {}
    for change in mutant.changes:
        text = texts.get(change.function, sources()[change.function])
        head, line, body = text.partition("\n")
        if change.before not in body:
            raise ValueError(f"{mutant.name}: {change.function} has no {change.before!r}")
        texts[change.function] = head + line + body.replace(change.before, change.after, 1)
    return texts


def claims_about(
    subject: str, changes: Mapping[str, str], only: str | None = None, without: Collection[str] = ()
) -> list[Obligation]:
    """What is claimed about a subject of the proofs, where a counterexample can be found.

    `only` is the path of one claim, if the others need not be built; `without` names invariants left out.
    """
    if subject in pool_rows.PIECES:
        return pool_rows.PIECES[subject](changes)
    if subject in PRIMITIVES:
        facts, goals = bounded_claims(subject, code(changes), only, without)
        return [
            Obligation(f"pool/{subject}/{path}", "control", "", facts, goal) for path, goal in goals.items()
        ]
    if subject == "look_up":
        claims, small = pool_search.search_obligations(changes), search_facts(without)
    else:
        claims, small = pool_loops.loop_obligations(subject, changes), small_pool(without) | in_the_pool()
    return [
        claim._replace(
            hypotheses=small
            | {name: fact for name, fact in claim.hypotheses.items() if not _left_out(name, without)}
        )
        for claim in claims
    ]


def _left_out(hypothesis: str, without: Collection[str]) -> bool:
    kind, _, name = hypothesis.partition(":")
    return kind == "invariant" and name.partition(":")[0] in without


def refuting_claims(claims: Iterable[Obligation], resources: int = MODEL_RESOURCES) -> list[str]:
    """The claims that have a counterexample; one that is not decided is marked, and does not count."""
    found = []
    for claim in claims:
        solver: Any = z3.Solver()
        solver.set("rlimit", resources)
        solver.add(*claim.hypotheses.values(), z3.Not(claim.goal))
        verdict = str(solver.check())
        if verdict != "unsat":
            found.append(claim.name if verdict == "sat" else f"{claim.name}?")
    return found


def named_claims(mutant: PoolMutant) -> list[Obligation]:
    """The claim about the mutant that must be refuted."""
    claims = claims_about(mutant.subject, changed(mutant), mutant.claim)
    return [claim for claim in claims if claim.name == mutant.refuted_by]


def controls(subject: str) -> list[Control]:
    """The mutants of one subject as controls: the claim that each names must be refuted."""
    return [
        Control(
            f"pool/{mutant.name}",
            mutant.name.replace("_", " ").capitalize() + ".",
            "statement",
            named_claims(mutant),
        )
        for mutant in MUTANTS
        if mutant.subject == subject
    ]

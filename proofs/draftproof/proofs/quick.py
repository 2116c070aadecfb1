"""Is the accounting still proved? Yes or no in a second, by z3 alone: `python -m draftproof.proofs.quick`.

For mutation tools, which ask thousands of times. All claims about a transition are asked as one
conjunction. Exit status 0 only if every conjunction is proved and no group of hypotheses is
contradictory; anything else, an `unknown` included, is 1. `--everything` asks, some seconds longer, what
else rests on the invariants: the other theorems and the refinements. It is no substitute for
`draftproof prove`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import z3

from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.contracts import plain
from draftproof.proofs import (
    capacity,
    commutation,
    completeness,
    decisions,
    induction,
    integers,
    queue_bounds,
    refinement_consequences,
    refinement_queue,
    refinement_tokens,
    sessions,
    sources,
    token_identity,
)
from draftproof.proofs.obligations import Obligation, formulas, satisfiable
from draftproof.proofs.solvers import ask_z3

FEW_RESOURCES = 2_000_000
"""z3 `rlimit` units for a single claim: ordinary ones need a few thousand."""


def conjunction(members: list[Obligation]) -> Obligation:
    """One obligation whose goal is the conjunction of the goals of obligations with equal hypotheses."""
    goals = [z3.BoolVal(one.goal) if isinstance(one.goal, bool) else one.goal for one in members]
    return members[0]._replace(goal=z3.And(*goals))


def verdict_of(members: list[Obligation]) -> str:
    """z3's verdict on the conjunction of claims; one by one if it cannot decide them together."""
    together = ask_z3(formulas(conjunction(members))).verdict
    if together != "unknown":
        return together
    apart = {ask_z3(formulas(claim), FEW_RESOURCES).verdict for claim in members}
    return "sat" if "sat" in apart else "unknown" if "unknown" in apart else "unsat"


def _about_the_code() -> list[Obligation]:
    return induction.all_obligations() + decisions.obligations() + completeness.obligations()


def _other_theorems() -> list[Obligation]:
    modules = (sessions, commutation, capacity, integers)
    return [claim for module in modules for claim in module.obligations()]


def refinements_of_small_queues() -> list[Obligation]:
    """The refinements over a pinned queue: only there does z3 find counterexamples."""
    found = []
    for name, code in TRANSITIONS.items():
        found += refinement_queue.refuted_by_pinning(name, plain(code))
    for complete in refinement_tokens.STRENGTHS.values():
        found += refinement_tokens.refuted_by_pinning(refinement_tokens.TRANSITIONS, complete=complete)
    return found


def _refinements() -> list[Obligation]:
    modules = (refinement_queue, queue_bounds, refinement_tokens, refinement_consequences, token_identity)
    return [claim for module in modules for claim in module.obligations()]


MORE = (_other_theorems, refinements_of_small_queues, _refinements)
"""What `--everything` asks besides, in this order: cheap counterexamples first."""


def _by_hypotheses(claims: list[Obligation]) -> Iterator[list[Obligation]]:
    groups: dict[tuple[str, ...], list[Obligation]] = {}
    for claim in claims:
        groups.setdefault((claim.assumption_group, *claim.hypotheses), []).append(claim)
    yield from groups.values()


def first_failure(everything: bool = False) -> str | None:
    """The first group of claims that is refuted, else one that is not proved, else one that is vacuous.

    With `everything`, the theorems and refinements that rest on the invariants are asked as well. Their
    hypotheses may be quantified: whether anything satisfies them is asked of the pinned ones.
    """
    undecided = None
    for claims in (_about_the_code, *(MORE if everything else ())):
        for members in _by_hypotheses(claims()):
            name, hypotheses = members[0].assumption_group, members[0].hypotheses
            verdict = verdict_of(members)
            if verdict == "sat":
                return f"{name}: refuted"
            pinned = sources.all_witnesses() if claims in MORE else {}
            if verdict == "unsat" and not satisfiable(pinned.get(name, hypotheses)):
                return f"{name}: vacuous, nothing satisfies its hypotheses"
            if verdict == "unknown":
                undecided = f"{name}: unknown"
    return undecided


def main(arguments: Sequence[str] = ()) -> int:
    """Print the first failure, if any, and return the exit status."""
    failure = first_failure(everything="--everything" in arguments)
    print(failure or "proved")
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

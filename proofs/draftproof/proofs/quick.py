"""Is the accounting still proved? Yes or no in a second, by z3 alone: `python -m draftproof.proofs.quick`.

For mutation tools, which ask thousands of times. All claims about a transition are asked as one
conjunction. Exit status 0 only if every conjunction is proved and no group of hypotheses is
contradictory; anything else, an `unknown` included, is 1. It is no substitute for `draftproof prove`.
"""

from __future__ import annotations

import sys

import z3

from draftproof.proofs import completeness, decisions, induction
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


def first_failure() -> str | None:
    """The first group of claims that is refuted, else one that is not proved, else one that is vacuous."""
    obligations = induction.all_obligations() + decisions.obligations() + completeness.obligations()
    groups: dict[tuple[str, ...], list[Obligation]] = {}
    for obligation in obligations:
        groups.setdefault((obligation.assumption_group, *obligation.hypotheses), []).append(obligation)
    undecided = None
    for (name, *_), members in groups.items():
        verdict = verdict_of(members)
        if verdict == "sat":
            return f"{name}: refuted"
        if verdict == "unsat" and not satisfiable(members[0].hypotheses):
            return f"{name}: vacuous, nothing satisfies its hypotheses"
        if verdict == "unknown":
            undecided = f"{name}: unknown"
    return undecided


def main() -> int:
    """Print the first failure, if any, and return the exit status."""
    failure = first_failure()
    print(failure or "proved")
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main())

"""A control: a claim that must fail, or the proofs next to it would prove anything.

Dropping a named assumption, or stating one thing too much, must leave at least one obligation with a
counterexample. Here z3's `sat` is enough: a counterexample is evidence by itself, unlike a proof.
"""

from __future__ import annotations

from typing import NamedTuple

import z3

from draftproof.proofs.obligations import Obligation, formulas
from draftproof.proofs.shared_solver import SharedSolver
from draftproof.proofs.solvers import Z3_RESOURCES, ask_z3


class Control(NamedTuple):
    """Obligations of which at least one must be refuted."""

    name: str
    sentence: str
    """What was dropped, or what is claimed too much, in words."""
    kind: str
    """`assumption` (one was dropped) or `statement` (one was added, or made wrong)."""
    obligations: list[Obligation]


def _together(obligations: list[Obligation]) -> list[Obligation]:
    """One obligation for all that share their hypotheses: it is refuted if at least one of them is."""
    shared: dict[int, list[Obligation]] = {}
    for obligation in obligations:
        shared.setdefault(id(obligation.hypotheses), []).append(obligation)
    return [
        several[0]._replace(goal=z3.And([obligation.goal for obligation in several]))
        for several in shared.values()
    ]


def decide_control(
    control: Control, resources: int = Z3_RESOURCES, solver: SharedSolver | None = None
) -> str:
    """`refuted` as soon as z3 finds a counterexample; `not noticed` if all are proved; else `unknown`.

    Only `refuted` is a pass. A `solver` is one that was asked other controls before, with its own resources.
    """
    verdicts = []
    for obligation in _together(control.obligations):
        asked = formulas(obligation)
        verdict = (ask_z3(asked, resources) if solver is None else solver.ask(asked)).verdict
        if verdict == "sat":
            return "refuted"
        verdicts.append(verdict)
    return "not noticed" if verdicts and all(verdict == "unsat" for verdict in verdicts) else "unknown"

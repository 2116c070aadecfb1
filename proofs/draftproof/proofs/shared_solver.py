"""Many questions that begin alike, asked of one z3 solver: what the next one shares stays asserted.

Claims about one function share their hypotheses, and faults on a small pool share the whole pool. Asserting
those once, and taking back only what differs, costs a fraction of a new solver for each question. The
answer is to the same question: every formula of it is asserted when it is asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from draftproof.proofs.obligations import (
    Obligation,
    Verdict,
    counterexample,
    formulas,
    outcome_of,
    small_model,
)
from draftproof.proofs.solvers import Z3_RESOURCES, Answer, ask_z3, new_solver
from draftproof.proofs.verdicts import NOT_ASKED


class SharedSolver:
    """One solver and the formulas that it holds, each on a level of its own."""

    def __init__(self, solver: Any) -> None:
        self._solver = solver
        self._held: list[Any] = []

    def ask(self, formulas: Sequence[Any]) -> Answer:
        """z3's verdict on the conjunction."""
        start = time.perf_counter()
        shared = 0
        while shared < min(len(self._held), len(formulas)) and self._held[shared].eq(formulas[shared]):
            shared += 1
        self._solver.pop(len(self._held) - shared)
        del self._held[shared:]
        for formula in formulas[shared:]:
            self._solver.push()
            self._solver.add(formula)
            self._held.append(formula)
        verdict = str(self._solver.check())
        model = self._solver.model() if verdict == "sat" else None
        return Answer(verdict, time.perf_counter() - start, model)


def decide_by_z3(claims: Iterable[Obligation], resources: int = Z3_RESOURCES) -> list[Verdict]:
    """Each claim decided by z3 alone; what it cannot decide with others' questions behind it, by itself."""
    solver = SharedSolver(new_solver([], resources))
    verdicts = []
    for claim in claims:
        asked = formulas(claim)
        answer = solver.ask(asked)
        if answer.verdict == "unknown":
            answer = ask_z3(asked, resources)
        verdicts.append(
            Verdict(
                name=claim.name,
                kind=claim.kind,
                theorem=claim.theorem,
                outcome=outcome_of(answer.verdict, NOT_ASKED),
                z3=answer.verdict,
                cvc5=NOT_ASKED,
                z3_seconds=answer.seconds,
                cvc5_seconds=0.0,
                counterexample={}
                if answer.model is None
                else counterexample(small_model(asked, answer.model)),
            )
        )
    return verdicts

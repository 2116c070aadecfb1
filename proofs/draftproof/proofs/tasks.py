"""What one worker process does: decide a slice of a source, or run one of the checks around it.

A task and its results are plain data, so that they can travel; the solver terms stay in the worker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

Item = TypeVar("Item")


class Task(NamedTuple):
    """One piece of work: its kind, what it is about, and which part of how many (a whole by default).

    A task does not say how many items it has: only the worker builds them.
    """

    kind: str
    subject: str = ""
    part: int = 0
    parts: int = 1

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """The task's part of a list: a stretch, because neighbours share their hypotheses."""
        first, last = (len(items) * step // self.parts for step in (self.part, self.part + 1))
        return items[first:last]


class Finding(NamedTuple):
    """What a task found: rows of plain data, and how long it took in its worker."""

    task: Task
    rows: list[Any]
    seconds: float


def _obligations(task: Task) -> list[Any]:
    from draftproof.proofs.obligations import decide
    from draftproof.proofs.sources import built

    return [decide(obligation) for obligation in task.of(built(task.subject))]


def _by_z3(task: Task) -> list[Any]:
    from draftproof.proofs.shared_solver import decide_by_z3
    from draftproof.proofs.sources import built

    return list(decide_by_z3(task.of(built(task.subject))))


def _vacuity(task: Task) -> list[Any]:
    """Groups of hypotheses that nothing satisfies, or that the solver cannot show satisfiable."""
    from draftproof.proofs.sources import to_satisfy
    from draftproof.proofs.vacuity import met

    asked = to_satisfy(task.subject)
    if not asked:
        return [(f"{task.subject}: nothing is claimed", False)]
    return list(met(asked).items())


def _controls(task: Task) -> list[Any]:
    from draftproof.proofs.controls import decide_control
    from draftproof.proofs.shared_solver import SharedSolver
    from draftproof.proofs.solvers import model_solver
    from draftproof.proofs.sources import CONTROLLED, SMALL_POOL

    asked = task.of(CONTROLLED[task.subject]())
    solver = SharedSolver(model_solver([])) if task.subject in SMALL_POOL else None
    return [(one.name, one.sentence, decide_control(one, solver=solver)) for one in asked]


def _needs(task: Task) -> list[Any]:
    """The invariants that proofs of theorems use: unsat cores, minimal where that is quick.

    Claims of one theorem from the same hypotheses are asked together.
    """
    import z3

    from draftproof.proofs.obligations import Obligation, needed_hypotheses
    from draftproof.proofs.sources import SLOW_CORES, built

    together: dict[tuple[str, int], list[Obligation]] = {}
    for claim in built(task.subject):
        if claim.theorem[0] in "TR":
            together.setdefault((claim.theorem, id(claim.hypotheses)), []).append(claim)
    rows = []
    for (theorem, _), claims in together.items():
        goal = z3.And(*[claim.goal for claim in claims])
        core = needed_hypotheses(claims[0]._replace(goal=goal), minimal=task.subject not in SLOW_CORES)
        rows.append((theorem, claims[0].name, core))
    return rows


def _crosshair(task: Task) -> list[Any]:
    from draftproof.proofs.crosshair_run import confirm, targets

    return list(confirm(targets()[task.part :: task.parts]))  # dealt out: the slow ones stand together


def _coverage(task: Task) -> list[Any]:
    from draftproof.proofs.coverage import cover

    return [cover()]


def _faults(task: Task) -> list[Any]:
    from draftproof.proofs.faults import all_faults
    from draftproof.proofs.faults.checking import check_fault

    return [check_fault(fault) for fault in task.of(all_faults())]


def _search(task: Task) -> list[Any]:
    from draftproof.proofs.faults import find
    from draftproof.proofs.faults.checking import find_trace

    return [find_trace(find(task.subject))]


def _refuted_by_crosshair(task: Task) -> list[Any]:
    """For each CrossHair target a mutant that it must refute."""
    from draftproof.proofs.crosshair_mutants import crosshair_mutants, refute

    return [refute(mutant) for mutant in task.of(crosshair_mutants())]


WORK = {
    "obligations": _obligations,
    "by_z3": _by_z3,
    "vacuity": _vacuity,
    "controls": _controls,
    "needs": _needs,
    "crosshair": _crosshair,
    "coverage": _coverage,
    "faults": _faults,
    "search": _search,
    "crosshair_mutants": _refuted_by_crosshair,
}


def execute(task: Task) -> Finding:
    """Do one task. One that breaks down is reported as such (`broken`), never as a pass."""
    start = time.perf_counter()
    try:
        rows = WORK[task.kind](task)
    except Exception as error:  # a prover that dies must not look like one that found nothing
        sentence = f"{task.kind} {task.subject}".strip() + f": {type(error).__name__}: {error}"
        return Finding(Task("broken"), [sentence], time.perf_counter() - start)
    return Finding(task, rows, time.perf_counter() - start)


def in_parts(kind: str, subject: str, parts: int) -> list[Task]:
    """The tasks that together cover a list."""
    return [Task(kind, subject, part, parts) for part in range(parts)]

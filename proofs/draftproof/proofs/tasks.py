"""What one worker process does: decide a slice of a source, or run one of the checks around it.

A task and its results are plain data, so that they can travel; the solver terms stay in the worker.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

SLICE = 40
"""Obligations per task: small enough that two workers finish together, large enough to matter."""


class Task(NamedTuple):
    """One piece of work: its kind, what it is about, and a range where there is one."""

    kind: str
    subject: str = ""
    first: int = 0
    last: int = 0


class Finding(NamedTuple):
    """What a task found: rows of plain data, and how long it took in its worker."""

    task: Task
    rows: list[Any]
    seconds: float


def _obligations(task: Task) -> list[Any]:
    from draftproof.proofs.obligations import decide
    from draftproof.proofs.sources import built

    return [decide(obligation) for obligation in built(task.subject)[task.first : task.last]]


def _vacuity(task: Task) -> list[Any]:
    """Groups of hypotheses that nothing satisfies, or that the solver cannot show satisfiable."""
    from draftproof.proofs.obligations import satisfiable
    from draftproof.proofs.sources import groups, states_to_reach

    asked = groups(task.subject) if task.subject else states_to_reach()
    if not asked:
        return [(f"{task.subject or 'states to reach'}: nothing is claimed", False)]
    return [(group, satisfiable(facts)) for group, facts in asked.items()]


def _controls(task: Task) -> list[Any]:
    from draftproof.proofs.controls import decide_control
    from draftproof.proofs.sources import controls

    return [
        (control.name, control.sentence, decide_control(control))
        for control in controls()[task.first : task.last]
    ]


def _needs(task: Task) -> list[Any]:
    """The invariants that proofs of theorems use: unsat cores, minimal where there are no quantifiers."""
    from draftproof.proofs.obligations import needed_hypotheses
    from draftproof.proofs.sources import QUANTIFIED, built

    return [
        (
            obligation.theorem,
            obligation.name,
            needed_hypotheses(obligation, minimal=task.subject not in QUANTIFIED),
        )
        for obligation in built(task.subject)[task.first : task.last]
        if obligation.theorem[0] in "TR"
    ]


def _crosshair(task: Task) -> list[Any]:
    from draftproof.proofs.crosshair_run import confirm, targets

    return list(confirm([target for target in targets() if target.name in task.subject.split()]))


def _coverage(task: Task) -> list[Any]:
    from draftproof.proofs.coverage import cover

    return [cover()]


def _faults(task: Task) -> list[Any]:
    from draftproof.proofs.faults import all_faults
    from draftproof.proofs.faults.checking import check_fault

    return [check_fault(fault) for fault in all_faults()[task.first : task.last]]


def _search(task: Task) -> list[Any]:
    from draftproof.proofs.faults import find
    from draftproof.proofs.faults.checking import find_trace

    return [find_trace(find(task.subject))]


def _refuted_by_crosshair(task: Task) -> list[Any]:
    """For each CrossHair target a mutant that it must refute."""
    from draftproof.proofs.crosshair_mutants import crosshair_mutants, refute

    return [refute(mutant) for mutant in crosshair_mutants()[task.first : task.last]]


WORK = {
    "obligations": _obligations,
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


def slices(kind: str, subject: str, total: int, size: int = SLICE) -> list[Task]:
    """The tasks that together cover `total` items."""
    return [Task(kind, subject, first, min(first + size, total)) for first in range(0, total, size)]

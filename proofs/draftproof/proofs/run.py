"""The whole run: which tasks there are, and the progress display while they are done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator

from draftproof.proofs.results import Run, gather
from draftproof.proofs.tasks import Finding, Task, slices
from draftproof.proofs.workers import run as run_tasks


def obligation_tasks(theorems: frozenset[str] = frozenset()) -> list[Task]:
    """Every obligation, or those of some theorems."""
    from draftproof.proofs.sources import SOURCES, built

    tasks = []
    for source in SOURCES:
        for task in slices("obligations", source, len(built(source))):
            chosen = built(source)[task.first : task.last]
            if not theorems or any(obligation.theorem in theorems for obligation in chosen):
                tasks.append(task)
    return tasks


def partial_tasks(theorems: frozenset[str]) -> list[Task]:
    """Some theorems, with what every step proof stands on: the invariants, the queue facts, no vacuity."""
    from draftproof.proofs.sources import SOURCES

    return obligation_tasks(theorems) + [Task("vacuity", source) for source in ("", *SOURCES)]


def needs_tasks(*sources: str) -> list[Task]:
    """The unsat cores of some sources."""
    from draftproof.proofs.sources import built

    return [task for source in sources for task in slices("needs", source, len(built(source)), 120)]


def standard_tasks() -> list[Task]:
    """Everything `make prove` does."""
    from draftproof.proofs.crosshair_run import targets
    from draftproof.proofs.faults import all_faults
    from draftproof.proofs.sources import SOURCES, controls

    names = [target.name for target in targets()]
    crosshair = [Task("crosshair", " ".join(names[first::4])) for first in range(4)]
    return [
        *crosshair,  # the longest first
        Task("coverage"),
        *slices("controls", "", len(controls()), 6),
        *slices("faults", "", len(all_faults()), 8),
        *obligation_tasks(),
        *[Task("vacuity", source) for source in ("", *SOURCES)],
        *needs_tasks("induction", "decisions", "sessions", "commutation", "capacity", "integers"),
    ]


def full_tasks() -> list[Task]:
    """What `make prove-full` adds: traces searched anew, mutants for CrossHair, cores of the refinement."""
    from draftproof.proofs.crosshair_mutants import crosshair_mutants
    from draftproof.proofs.faults import all_faults

    searches = [Task("search", fault.name) for fault in all_faults()]
    return [
        *searches,
        *slices("crosshair_mutants", "", len(crosshair_mutants()), 8),
        *needs_tasks("refinement_queue", "queue_bounds", "refinement_tokens", "refinement_consequences"),
    ]


def followed(findings: Iterable[Finding], total: int, quiet: bool) -> Iterator[Finding]:
    """The same findings, with a progress bar on a terminal and silence in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield from findings
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("proving"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=total)
        for finding in findings:
            progress.update(
                bar, advance=1, description=f"{finding.task.kind} {finding.task.subject}".strip()[:60]
            )
            yield finding


def prove(theorems: frozenset[str] = frozenset(), quiet: bool = False, full: bool = False) -> Run:
    """Prove everything, or some theorems, on the worker processes, and gather what they found."""
    start = time.perf_counter()
    if theorems:
        theorems |= {"invariants", "R1"}
        tasks = partial_tasks(theorems)
    else:
        tasks = (full_tasks() if full else []) + standard_tasks()
    findings = list(followed(run_tasks(tasks), len(tasks), quiet))
    return gather(findings, time.perf_counter() - start, theorems)

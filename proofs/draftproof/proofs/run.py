"""The whole run: which tasks there are, and the progress display while they are done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator

from draftproof.proofs.results import FULL_ROWS, Run, gather
from draftproof.proofs.tasks import Finding, Task, in_parts
from draftproof.proofs.workers import run as run_tasks

PARTS = 5
"""Parts of each source: small enough that the workers finish together."""
QUICK = ("induction", "decisions", "sessions", "commutation", "capacity", "integers")
REFINEMENT = ("refinement_queue", "queue_bounds", "refinement_tokens", "refinement_consequences")


def obligation_tasks() -> list[Task]:
    """Every obligation, the longest sources first."""
    from draftproof.proofs.sources import SOURCES

    longest_first = sorted(SOURCES, key=lambda source: source not in ("refinement_tokens", *REFINEMENT))
    return [task for source in longest_first for task in in_parts("obligations", source, PARTS)]


def vacuity_tasks() -> list[Task]:
    """Whether the hypotheses of every source can be met, and further states reached."""
    from draftproof.proofs.sources import SOURCES

    return [Task("vacuity", source) for source in SOURCES]


def pool_tasks() -> list[Task]:
    """The obligations and vacuity of the sources that a standard run leaves out."""
    from draftproof.proofs.sources import FULL_SOURCES

    return [
        task
        for source in FULL_SOURCES
        for task in (*in_parts("obligations", source, PARTS), Task("vacuity", source))
    ]


def partial_tasks(theorems: frozenset[str]) -> list[Task]:
    """What some theorems and those they stand on need."""
    tasks = obligation_tasks() + vacuity_tasks() if theorems.difference(FULL_ROWS) else []
    return tasks + (pool_tasks() if theorems.intersection(FULL_ROWS) else [])


def stands_on(theorems: frozenset[str]) -> frozenset[str]:
    """The theorems, with those that their proofs use: every step's the invariants and the queue facts.

    The invariants of the pool belong to its theorems, so each of these stands on all of them.
    """
    if theorems.intersection(FULL_ROWS):
        theorems = theorems.union(FULL_ROWS)
    if theorems.difference(FULL_ROWS):
        theorems = theorems.union({"invariants", "R1"})
    return theorems


def standard_tasks() -> list[Task]:
    """Everything `make prove` does."""
    from draftproof.proofs.sources import CONTROLLED

    return [
        *in_parts("crosshair", "", 4),
        Task("coverage"),
        *obligation_tasks(),
        *[Task("controls", source) for source in CONTROLLED],
        *in_parts("faults", "", 6),
        *vacuity_tasks(),
        *[Task("needs", source) for source in QUICK],
    ]


def full_tasks() -> list[Task]:
    """What `make prove-full` adds: traces searched anew, mutants for CrossHair, cores of the refinement,
    and the proofs, controls and witnesses of what does not run yet (the pool)."""
    from draftproof.proofs.faults import all_faults
    from draftproof.proofs.sources import FULL_CONTROLLED

    return [
        *[Task("search", fault.name) for fault in all_faults()],
        *in_parts("crosshair_mutants", "", 4),
        *[Task("needs", source) for source in REFINEMENT],
        *[task for source in FULL_CONTROLLED for task in in_parts("controls", source, PARTS)],
        *pool_tasks(),
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
        theorems = stands_on(theorems)
        tasks = partial_tasks(theorems)
    else:
        tasks = (full_tasks() if full else []) + standard_tasks()
    findings = list(followed(run_tasks(tasks), len(tasks), quiet))
    return gather(findings, time.perf_counter() - start, theorems, full)

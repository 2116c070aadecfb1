"""The whole run: which tasks there are, and the progress display while they are done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from draftproof.proofs.results import POOL_ROWS, Run, gather
from draftproof.proofs.tasks import Finding, Task, in_parts
from draftproof.proofs.workers import run as run_tasks
from draftproof.spec.recurrent_theorems import RECURRENT_THEOREMS

PARTS = 5
"""Parts of each source: small enough that the workers finish together."""
QUICK = ("induction", "decisions", "sessions", "commutation", "capacity", "integers")
REFINEMENT = ("refinement_queue", "queue_bounds", "refinement_tokens", "refinement_consequences")


def obligation_tasks(sources: Sequence[str], full: bool = False) -> list[Task]:
    """Every obligation of some sources, the longest first. Only a full run asks cvc5 about all of them."""
    from draftproof.proofs.sources import BY_Z3_ALONE

    longest_first = sorted(sources, key=lambda source: source not in ("refinement_tokens", *REFINEMENT))
    return [
        task
        for source in longest_first
        for task in (
            [Task("by_z3", source)]
            if source in BY_Z3_ALONE and not full
            else in_parts("obligations", source, PARTS)
        )
    ]


def vacuity_tasks(sources: Iterable[str]) -> list[Task]:
    """Whether the hypotheses of some sources can be met, and further states reached."""
    return [Task("vacuity", source) for source in sources]


def partial_tasks(theorems: frozenset[str]) -> list[Task]:
    """What some theorems and those they stand on need: of ledgers, of the pool, or of both."""
    from draftproof.proofs.pool import SOURCES as POOL_SOURCES
    from draftproof.proofs.sources import SOURCES

    about_ledgers, about_the_pool = theorems.difference(POOL_ROWS), theorems.intersection(POOL_ROWS)
    wanted = [source for source in SOURCES if (about_the_pool if source in POOL_SOURCES else about_ledgers)]
    return obligation_tasks(wanted) + vacuity_tasks(wanted)


def stands_on(theorems: frozenset[str]) -> frozenset[str]:
    """The theorems, with those that their proofs use: every step's the invariants and the queue facts.

    Those about recurrent state stand on the invariants of its record, too.

    The invariants of the pool belong to its theorems, so each of these stands on all of them.
    """
    if theorems.intersection(POOL_ROWS):
        theorems = theorems.union(POOL_ROWS)
    if theorems.difference(POOL_ROWS):
        theorems = theorems.union({"invariants", "R1"})
    if theorems.intersection(RECURRENT_THEOREMS):
        theorems = theorems.union({"recurrent"})
    return theorems


def standard_tasks(full: bool = False) -> list[Task]:
    """Everything `make prove` does; `full` asks both solvers about everything."""
    from draftproof.proofs.sources import CONTROLLED, SOURCES

    return [
        *in_parts("crosshair", "", 4),
        Task("coverage"),
        *obligation_tasks(list(SOURCES), full),
        *[Task("controls", source) for source in CONTROLLED],
        *in_parts("faults", "", 6),
        *vacuity_tasks(SOURCES),
        *[Task("needs", source) for source in QUICK],
    ]


def full_tasks() -> list[Task]:
    """What `make prove-full` adds: traces searched anew, mutants for CrossHair, cores of the refinement.

    It also asks cvc5 where a standard run asks z3 alone (the pool).
    """
    from draftproof.proofs.faults import all_faults

    return [
        *[Task("search", fault.name) for fault in all_faults()],
        *in_parts("crosshair_mutants", "", 4),
        *[Task("needs", source) for source in REFINEMENT],
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
        tasks = (full_tasks() if full else []) + standard_tasks(full)
    findings = list(followed(run_tasks(tasks), len(tasks), quiet))
    return gather(findings, time.perf_counter() - start, theorems, full)

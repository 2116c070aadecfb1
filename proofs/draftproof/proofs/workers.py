"""Two worker processes, one queue of tasks. Ctrl-C ends at once and leaves no workers behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from draftproof.proofs.tasks import Finding, Task, execute


def _be_quiet() -> None:
    """The parent decides what an interrupt means; a worker does not print a traceback of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def num_workers() -> int:
    """As many as there are cores to use, but at most four: the work is a minute at most."""
    return max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2))


def run(tasks: list[Task], workers: int | None = None) -> Iterator[Finding]:
    """The findings, in the order in which they arrive."""
    # Contracts must be absent in the workers whatever the caller's mode: the plain functions are proven.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers or num_workers(), mp_context=context, initializer=_be_quiet)
    try:
        for future in as_completed([pool.submit(execute, task) for task in tasks]):
            yield future.result()
        pool.shutdown()
    except BaseException:
        for process in multiprocessing.active_children():
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        raise

"""Two worker processes, one queue of tasks. Ctrl-C ends at once and leaves no workers behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from draftproof.proofs.tasks import Finding, Task, execute

Item = TypeVar("Item")
Result = TypeVar("Result")


def _be_quiet() -> None:
    """The parent decides what an interrupt means; a worker does not print a traceback of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def num_workers() -> int:
    """As many as there are cores to use, but at most four: the work is a minute at most."""
    return max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2))


def spread(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None
) -> Iterator[Result]:
    """The function's results on the items, computed by worker processes, in the order of arrival."""
    # Contracts must be absent in the workers whatever the caller's mode: the plain functions are proven.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers or num_workers(), mp_context=context, initializer=_be_quiet)
    try:
        for future in as_completed([pool.submit(function, item) for item in items]):
            yield future.result()
        pool.shutdown()
    except BaseException:
        for process in multiprocessing.active_children():
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def run(tasks: list[Task], workers: int | None = None) -> Iterator[Finding]:
    """The findings, in the order in which they arrive."""
    return spread(execute, tasks, workers)

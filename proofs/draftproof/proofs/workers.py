"""Worker processes and one queue of tasks. Ctrl-C ends at once and leaves no workers behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from draftproof.impl.cli import UserError
from draftproof.proofs.tasks import Finding, Task, execute

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Processes started here never see Ctrl-C: the parent decides what it means.

    Otherwise an interpreter that is just starting would print a traceback of its own. An interrupt that
    comes meanwhile is not lost: it arrives when this ends.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def num_workers() -> int:
    """As many as there are cores to use, but at most four: the work is a minute at most."""
    return max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2))


def spread(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None
) -> Iterator[Result]:
    """The function's results on the items, computed by worker processes, in the order of arrival."""
    # A fresh interpreter each: a solver's state must not be copied in the middle of something.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers or num_workers(), mp_context=context)
    try:
        with _interrupts_held_back():
            futures = [pool.submit(function, item) for item in items]
        for future in as_completed(futures):
            yield future.result()
        pool.shutdown()
    except BaseException as error:
        for process in multiprocessing.active_children():
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise UserError(
                "a worker process died (out of memory?), so nothing is decided; try again"
            ) from error
        raise


def run(tasks: list[Task], workers: int | None = None) -> Iterator[Finding]:
    """The findings, in the order in which they arrive."""
    return spread(execute, tasks, workers)

"""The scheduler as machine code: which functions are compiled, and for which arguments."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import draftproof.impl.compiled_pool  # noqa: F401 - registers the algebra, the pool and the digest
from draftproof.impl import accounting, code_cache, decisions, dispatch, ledger_table, recurrent
from draftproof.impl.scheduler import (
    allocation,
    batch,
    entry,
    kv_events,
    kv_notes,
    layout,
    lifecycle,
    metrics,
    prefix_cache,
    pressure,
    queues,
    recurrent_blocks,
    recurrent_rows,
    settle,
    step,
)
from draftproof.spec import guards, ledger
from draftproof.spec import recurrent as recurrent_record

ROOMS = (
    ledger,
    guards,
    recurrent_record,
    accounting,
    decisions,
    dispatch,
    recurrent,
    ledger_table,
    layout,
    batch,
    metrics,
    queues,
    kv_events,
    kv_notes,
    prefix_cache,
    allocation,
    recurrent_blocks,
    recurrent_rows,
    pressure,
    step,
    settle,
    lifecycle,
)
"""The modules whose functions the entry points call, directly or not."""


def functions_of(room: types.ModuleType) -> list[Callable[..., Any]]:
    """The functions that a module defines itself."""
    return [
        value
        for value in vars(room).values()
        if isinstance(value, types.FunctionType) and value.__module__ == room.__name__
    ]


@functools.cache
def register_all() -> None:
    """Let compiled code call every function of the rooms."""
    for room in ROOMS:
        for function in functions_of(room):
            code_cache.register(function)


EVERY_STEP = ("schedule_step", "settle_step", "take_drafts", "add_row", "abort_row", "fold_row")
"""The entry points that a scheduler has compiled when it starts; by far the largest comes first."""


HELPS = "DRAFTPROOF_COMPILES_MEANWHILE"
"""Set in the environment of the process that compiles the others."""
LONGEST_WAIT = 120.0
"""Seconds to wait for it once the largest is compiled."""


def examples_of(name: str, has_recurrent_groups: bool) -> tuple[Any, ...]:
    """Arguments of an entry point, for their types. Without recurrent groups their memory is None, and what
    is done for them is not compiled."""
    memory64, memory32 = np.zeros(1, np.int64), np.zeros(1, np.int32)
    tokens, table = np.zeros(1, np.int32), np.zeros((1, 1), np.int32)
    memory = (memory64, memory32, memory64 if has_recurrent_groups else None)
    examples: dict[str, tuple[Any, ...]] = {
        "schedule_step": (*memory, memory32),
        "settle_step": (*memory, memory32, table, tokens),
        "take_drafts": (*memory, tokens, table, tokens),
        "add_row": (*memory, tokens, memory64, tokens),
        "fold_row": (*memory, 0, tokens, 0, 0),
        "abort_row": (*memory, 0),
        "clear_cache": memory,
        "preempt_all": (*memory, memory32),
        "withdraw_step": (*memory, memory32),
        "give_up_step": (*memory, memory32, memory32),
        "drop_step": (*memory, memory32),
        "num_cached_tokens": (*memory, tokens, 0, 0),
    }
    return examples[name]


@functools.cache
def entry_point(name: str, has_recurrent_groups: bool) -> Any:
    """The function of `draftproof.impl.scheduler.entry`, compiled now or loaded (`code_cache`)."""
    register_all()
    return code_cache.compile(getattr(entry, name), *examples_of(name, has_recurrent_groups))


def entry_points(has_recurrent_groups: bool) -> dict[str, Any]:
    """Those of `EVERY_STEP`. At a first start another process compiles all but the largest meanwhile."""
    largest, *others = EVERY_STEP
    found = {}
    with compiled_meanwhile(largest, others, has_recurrent_groups):
        found[largest] = entry_point(largest, has_recurrent_groups)
    return found | {name: entry_point(name, has_recurrent_groups) for name in others}


@contextlib.contextmanager
def compiled_meanwhile(largest: str, others: Sequence[str], has_recurrent_groups: bool) -> Iterator[None]:
    """Another process compiles the others into the cache while this one has the largest to compile.

    It only saves time. There is none if the largest is kept already, if nothing can be kept, or if a process
    cannot be started; and what it did not get done is compiled by who asks for it.
    """
    kept = code_cache.is_kept(getattr(entry, largest), *examples_of(largest, has_recurrent_groups))
    helper = None
    # Where `sys.executable` is no plain Python, the process may be this very program: it must not start more.
    if kept is False and sys.executable and num_processors() > 1 and HELPS not in os.environ:
        kind = "recurrent" if has_recurrent_groups else "attention"
        # -P: nothing is imported from where the user happens to be.
        options = ["-P", *subprocess._args_from_interpreter_flags()]  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            helper = subprocess.Popen(
                [sys.executable, *options, "-m", __name__, kind, *others],
                env=os.environ | {HELPS: "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
    try:
        yield
        if helper is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                helper.wait(LONGEST_WAIT)
    finally:
        if helper is not None:
            helper.kill()  # does nothing to one that has ended
            helper.wait()


def num_processors() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if __name__ == "__main__":
    for _name in sys.argv[2:]:
        entry_point(_name, sys.argv[1] == "recurrent")

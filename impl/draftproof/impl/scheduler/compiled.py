"""The scheduler as machine code: which functions are compiled, and for which arguments."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
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


@functools.cache
def entry_point(name: str, has_recurrent_groups: bool) -> Any:
    """The function of `draftproof.impl.scheduler.entry`, compiled now or loaded (`code_cache`).

    Without recurrent groups their memory is None, and what is done for them is not compiled.
    """
    register_all()
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
    return code_cache.compile(getattr(entry, name), *examples[name])

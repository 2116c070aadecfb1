"""The loops over records as machine code: compiled at the first use, kept on disk (`impl.code_cache`)."""

from __future__ import annotations

import functools
import types
from typing import Any

import numpy as np

from draftproof.impl import code_cache
from draftproof.impl import compiled as _carrier  # noqa: F401 - the algebra and the transitions
from draftproof.impl.scheduler.compiled import functions_of
from draftproof.impl.traces import (
    agreement,
    collected,
    conditions,
    kernel,
    line_scan,
    line_words,
    request_table,
    row_text,
    scheduler_rows,
    text,
    transitions,
)
from draftproof.impl.traces.columns import NUM_LINES
from draftproof.spec import guards
from draftproof.spec.ledger import Rules

RULES = Rules(num_speculative_tokens=0, block_size=1, asynchronous=False, registration_fence=0)
"""An example, for its type."""


@functools.cache
def replay() -> Any:
    """`kernel.replay`, compiled now or loaded."""
    for function in (guards.num_schedulable, guards.schedulable, guards.is_flag):
        code_cache.register(function)
    for name in guards.CONTROL:
        code_cache.register(conditions.control(name))
        code_cache.register(conditions.ghosts_after(name))
    for name in guards.QUEUE_FACTS:
        code_cache.register(conditions.queue_facts(name))
    _register(request_table, agreement, transitions, kernel)
    return code_cache.compile(
        kernel.replay,
        RULES,
        np.zeros((NUM_LINES, 1), np.int32),
        np.zeros(1, np.bool_),
        np.zeros(1, np.int64),
        request_table.new_table(1, 1, 1),
        0,
        0,
        1,
        nogil=True,
    )


@functools.cache
def scan_lines() -> Any:
    """`text.scan_lines`, compiled now or loaded."""
    _register(line_words, line_scan, text)
    byte, cells, words = np.zeros(1, np.uint8), np.zeros((NUM_LINES, 1), np.int32), np.zeros(1, np.int64)
    constants = (np.zeros(1, np.int16), byte, words, words, np.zeros((1, 2, 1), np.uint8), words)
    return code_cache.compile(text.scan_lines, byte, cells, words, words, *constants, nogil=True)


@functools.cache
def format_rows() -> Any:
    """`row_text.format_rows`, compiled now or loaded."""
    _register(row_text)
    byte, rows, words = np.zeros(1, np.uint8), np.zeros((1, NUM_LINES), np.int32), np.zeros(1, np.int64)
    return code_cache.compile(row_text.format_rows, rows, words, byte, words, byte, words, nogil=True)


@functools.cache
def take_in() -> Any:
    """`collected.take_in`, compiled now or loaded. It is over sooner than another thread could begin."""
    rows = np.zeros((1, NUM_LINES), np.int32)
    return code_cache.compile(collected.take_in, rows, np.zeros(1, np.int32), 0, rows, 0)


@functools.cache
def fill() -> Any:
    """`scheduler_rows.fill`, compiled now or loaded."""
    rows, numbers, words = np.zeros((1, NUM_LINES), np.int32), np.zeros(1, np.int32), np.zeros(1, np.int64)
    ledgers = np.zeros((1, 1), np.int64)
    return code_cache.compile(scheduler_rows.fill, rows, 0, 0, words, numbers, ledgers, words, True)


@functools.cache
def fill_outputs() -> Any:
    """`scheduler_rows.fill_outputs`, compiled now or loaded."""
    rows, counts, words = np.zeros((1, NUM_LINES), np.int32), np.zeros(1, np.int32), np.zeros(1, np.int64)
    ledgers = np.zeros((1, 1), np.int64)
    return code_cache.compile(
        scheduler_rows.fill_outputs, rows, 0, words, counts, ledgers, words, words, *[counts] * 5
    )


def _register(*rooms: types.ModuleType) -> None:
    """Let compiled code call the functions of these modules."""
    for room in rooms:
        for function in functions_of(room):
            if not function.__name__.startswith("_"):
                code_cache.register(function)

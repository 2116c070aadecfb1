"""The loops over records as machine code: compiled at the first use, kept on disk (`impl.code_cache`)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from draftproof.impl import code_cache
from draftproof.impl import compiled as _carrier  # noqa: F401 - the algebra and the transitions
from draftproof.impl.scheduler.compiled import functions_of
from draftproof.impl.traces import conditions, kernel, text
from draftproof.impl.traces.columns import NUM_LINES
from draftproof.impl.traces.format import EVENT_NAMES
from draftproof.spec import guards
from draftproof.spec.ledger import Rules

RULES = Rules(num_speculative_tokens=0, block_size=1, asynchronous=False, registration_fence=0)
"""An example, for its type."""


def new_table(capacity: int, num_remembered: int, num_findings: int) -> kernel.Table:
    """An empty table with room for so many requests."""
    keys = 16
    while keys < 4 * capacity:
        keys *= 2
    counts = np.zeros(kernel.NUM_KERNEL_COUNTS, np.int64)
    counts[kernel.NUM_FREE] = capacity
    return kernel.Table(
        requests=np.zeros((capacity, kernel.TABLE_WIDTH), np.int64),
        keys=np.full(keys, kernel.EMPTY, np.int32),
        slots=np.zeros(keys, np.int32),
        free=np.arange(capacity, dtype=np.int32)[::-1].copy(),
        finished=np.full(num_remembered, -1, np.int32),
        counts=counts,
        told=np.zeros((len(EVENT_NAMES) + 2, 1 << kernel.NUM_COUNTERS), np.int64),
        findings=np.zeros((num_findings, kernel.FINDING_WIDTH), np.int64),
    )


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
    for function in functions_of(kernel):
        code_cache.register(function)
    return code_cache.compile(
        kernel.replay,
        RULES,
        np.zeros((NUM_LINES, 1), np.int32),
        np.zeros(1, np.bool_),
        np.zeros(1, np.int64),
        new_table(1, 1, 1),
        0,
        0,
        1,
        nogil=True,
    )


@functools.cache
def scan_lines() -> Any:
    """`text.scan_lines`, compiled now or loaded."""
    _register_text()
    byte, cells, words = np.zeros(1, np.uint8), np.zeros((NUM_LINES, 1), np.int32), np.zeros(1, np.int64)
    constants = (np.zeros(1, np.int16), byte, words, words, np.zeros((1, 2, 1), np.uint8), words)
    return code_cache.compile(text.scan_lines, byte, cells, words, words, *constants, nogil=True)


@functools.cache
def format_rows() -> Any:
    """`text.format_rows`, compiled now or loaded."""
    _register_text()
    byte, rows, words = np.zeros(1, np.uint8), np.zeros((1, NUM_LINES), np.int32), np.zeros(1, np.int64)
    return code_cache.compile(text.format_rows, rows, words, byte, words, byte, words, nogil=True)


@functools.cache
def number_rows() -> Any:
    """`text.number_rows`, compiled now or loaded."""
    _register_text()
    return code_cache.compile(
        text.number_rows, np.zeros((1, NUM_LINES), np.int32), np.zeros(1, np.int32), 0, nogil=True
    )


@functools.cache
def _register_text() -> None:
    for function in functions_of(text):
        if not function.__name__.startswith("_"):
            code_cache.register(function)

"""The passes over a step as machine code: compiled at the first use, kept on disk (`impl.code_cache`)."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from draftproof.impl import code_cache
from draftproof.impl import compiled as _carrier  # noqa: F401 - the algebra and the transitions
from draftproof.impl.attach.vllm import kernel
from draftproof.impl.ledger_table import NUM_LINES
from draftproof.impl.scheduler.compiled import functions_of
from draftproof.impl.traces import conditions
from draftproof.spec import guards, queue
from draftproof.spec.events import EVENTS


class Passes(NamedTuple):
    """The functions of `kernel` of the same names."""

    move: Any
    propose: Any
    dispatch: Any
    settle: Any


@functools.cache
def passes() -> Passes:
    """All of them, compiled now or loaded."""
    code_cache.register(guards.num_schedulable)
    code_cache.register(queue.dispatched)
    for name in EVENTS:
        code_cache.register(conditions.ghosts_after(name))
    for function in functions_of(kernel):
        code_cache.register(function)
    words, lines = np.zeros(1, np.int64), np.zeros((NUM_LINES, 1), np.int64)
    flags = np.zeros(1, np.bool_)
    return Passes(
        code_cache.compile(kernel.move, lines, words, words, lines),
        code_cache.compile(kernel.propose, lines, flags, words, words, words, lines),
        code_cache.compile(kernel.dispatch, lines, flags, *(words,) * 9, lines, False),
        code_cache.compile(
            kernel.settle, lines, flags, words, words, words, lines, words, words, lines, *(words,) * 3, lines
        ),
    )

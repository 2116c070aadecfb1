"""Which words does a line have? Tables of them, for compiled code: to find one in a line and to write one.

`WORDS` are keys, events and statuses as a line of any engine may have them; the pieces are what `format_rows`
writes between two numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draftproof.impl.traces.columns import FIRST_ARGUMENT, FIRST_COUNTER
from draftproof.impl.traces.format import ARGUMENTS, COUNTERS, EVENT_NAMES, MASK_OF_ARGUMENTS
from draftproof.spec.ledger import STATUS_NAMES

MAX_ROW_BYTES = 768
"""No event record without tokens is longer."""

KEYS = ("request", "index", "step", *ARGUMENTS, *COUNTERS, "sequence", "event", "after")
"""Key k < len(KEYS) - 3 is the line k + 1 of the columns."""
SEQUENCE_KEY, EVENT_KEY, AFTER_KEY = len(KEYS) - 3, len(KEYS) - 2, len(KEYS) - 1
FIRST_COUNTER_KEY = FIRST_COUNTER - 1
WORDS = (*KEYS, *EVENT_NAMES, *STATUS_NAMES)
FIRST_EVENT_WORD, FIRST_STATUS_WORD = len(KEYS), len(KEYS) + len(EVENT_NAMES)
HEAD_MASK = 0b111 | 1 << SEQUENCE_KEY | 1 << EVENT_KEY
MASKS = np.array([HEAD_MASK | mask << (FIRST_ARGUMENT - 1) for mask in MASK_OF_ARGUMENTS], np.int64)
"""Of each event, which keys its line has; `after` may come besides."""


def _joined(texts: list[str]) -> tuple[Any, Any]:
    """Texts one behind the other, and where each begins: uint8, int64."""
    data = [text.encode() for text in texts]
    starts = np.cumsum([0, *map(len, data)]).astype(np.int64)
    return np.frombuffer(b"".join(data), np.uint8).copy(), starts


WORD_BYTES, WORD_STARTS = _joined(list(WORDS))


def word_hash(length: int, first: int, fifth: int, middle: int) -> int:
    """A place for a word among 1,024, by three of its letters: no two of `WORDS` share one."""
    return (length * 2 + first * 7 + fifth * 31 + middle * 113) & 1023


def _word_table() -> Any:
    table = np.full(1024, -1, np.int16)
    for number, word in enumerate(WORDS):
        data = word.encode()
        place = word_hash(len(data), data[0], data[min(4, len(data) - 1)], data[len(data) // 2])
        if table[place] >= 0:
            raise AssertionError(f"{word} and {WORDS[table[place]]} share a place")
        table[place] = number
    return table


WORD_TABLE = _word_table()

_TEMPLATES = [f'{{"event":"{name}","sequence":' for name in EVENT_NAMES]
_PIECES = [
    *_TEMPLATES,
    ',"step":',
    ',"request":',
    ',"index":',
    *(f',"{name}":' for name in ARGUMENTS),
    *(f'"{name}":' for name in COUNTERS),
    ',"after":{',
    *(f'"{name}"' for name in STATUS_NAMES),
    "true",
    "false",
    "}\n",
]
PIECE_BYTES, PIECE_STARTS = _joined(_PIECES)
STEP_PIECE = len(EVENT_NAMES)
REQUEST_PIECE, INDEX_PIECE, FIRST_ARGUMENT_PIECE = STEP_PIECE + 1, STEP_PIECE + 2, STEP_PIECE + 3
FIRST_COUNTER_PIECE = FIRST_ARGUMENT_PIECE + len(ARGUMENTS)
AFTER_PIECE = FIRST_COUNTER_PIECE + len(COUNTERS)
FIRST_STATUS_PIECE = AFTER_PIECE + 1
TRUE_PIECE = FIRST_STATUS_PIECE + len(STATUS_NAMES)
FALSE_PIECE, END_PIECE = TRUE_PIECE + 1, TRUE_PIECE + 2
NUM_ARGUMENTS, NUM_COUNTERS = len(ARGUMENTS), len(COUNTERS)
NUM_EVENTS, NUM_STATUSES = len(EVENT_NAMES), len(STATUS_NAMES)


def _wide_pieces() -> Any:
    """Each text of `PIECE_BYTES` in a row of its own, and a row of ones as long as it."""
    table = np.zeros((len(_PIECES), 2, PIECE_WIDTH), np.uint8)
    for number, piece in enumerate(_PIECES):
        data = np.frombuffer(piece.encode(), np.uint8)
        table[number, 0, : data.size] = data
        table[number, 1, : data.size] = 255
    return table


PIECE_WIDTH = 48
WIDE_PIECES = _wide_pieces()
CONSTANTS = (WORD_TABLE, WORD_BYTES, WORD_STARTS, MASKS, WIDE_PIECES, PIECE_STARTS)
"""What `scan_lines` is given behind its arrays."""

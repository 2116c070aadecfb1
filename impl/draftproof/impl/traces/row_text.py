"""How does a row become a line? By a compiled loop that writes what `format.encode` writes, byte for byte."""

from __future__ import annotations

from typing import Any

from draftproof.impl.traces.columns import (
    CODE,
    DROP,
    FIRST_ARGUMENT,
    FIRST_COUNTER,
    INDEX,
    REQUEST_NUMBER,
    STATUS_LINE,
    STEP,
)
from draftproof.impl.traces.format import ABSENT
from draftproof.impl.traces.line_words import (
    AFTER_PIECE,
    END_PIECE,
    FALSE_PIECE,
    FIRST_ARGUMENT_PIECE,
    FIRST_COUNTER_PIECE,
    FIRST_STATUS_PIECE,
    INDEX_PIECE,
    NUM_ARGUMENTS,
    NUM_COUNTERS,
    REQUEST_PIECE,
    STEP_PIECE,
    TRUE_PIECE,
)


def put_piece(out: Any, place: int, pieces: Any, starts: Any, piece: int) -> int:
    """A constant text; returns the place behind it."""
    for offset in range(starts[piece], starts[piece + 1]):
        out[place] = pieces[offset]
        place += 1
    return place


def put_number(out: Any, place: int, value: int) -> int:
    """A number in decimal; returns the place behind it."""
    if value < 0:
        out[place] = 45
        place += 1
        value = -value
    length, rest = 1, value // 10
    while rest > 0:
        length += 1
        rest //= 10
    for offset in range(length - 1, -1, -1):
        out[place + offset] = 48 + value % 10
        value //= 10
    return place + length


def format_rows(rows: Any, sequences: Any, pieces: Any, starts: Any, out: Any, ends: Any) -> int:
    """Event rows, int32[n, NUM_LINES], as lines. `out` has MAX_ROW_BYTES for each; `ends`, int64[n], gets
    where each ends. Returns how many bytes were written."""
    place = 0
    for row in range(rows.shape[0]):
        place = put_piece(out, place, pieces, starts, rows[row, CODE])
        place = put_number(out, place, sequences[row])
        place = put_piece(out, place, pieces, starts, STEP_PIECE)
        place = put_number(out, place, rows[row, STEP])
        place = put_piece(out, place, pieces, starts, REQUEST_PIECE)
        place = put_number(out, place, rows[row, REQUEST_NUMBER])
        place = put_piece(out, place, pieces, starts, INDEX_PIECE)
        place = put_number(out, place, rows[row, INDEX])
        for offset in range(NUM_ARGUMENTS):
            value = rows[row, FIRST_ARGUMENT + offset]
            if value != ABSENT:
                place = put_piece(out, place, pieces, starts, FIRST_ARGUMENT_PIECE + offset)
                if FIRST_ARGUMENT + offset == DROP:
                    place = put_piece(out, place, pieces, starts, TRUE_PIECE if value != 0 else FALSE_PIECE)
                else:
                    place = put_number(out, place, value)
        is_first = True
        for offset in range(NUM_COUNTERS):
            value = rows[row, FIRST_COUNTER + offset]
            if value != ABSENT:
                if is_first:
                    place = put_piece(out, place, pieces, starts, AFTER_PIECE)
                    is_first = False
                else:
                    out[place] = 44
                    place += 1
                place = put_piece(out, place, pieces, starts, FIRST_COUNTER_PIECE + offset)
                if FIRST_COUNTER + offset == STATUS_LINE:
                    place = put_piece(out, place, pieces, starts, FIRST_STATUS_PIECE + value)
                else:
                    place = put_number(out, place, value)
        if not is_first:
            out[place] = 125
            place += 1
        place = put_piece(out, place, pieces, starts, END_PIECE)
        ends[row] = place
    return place

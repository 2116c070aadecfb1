"""How is a line read quickly? By a compiled loop from bytes to columns.

`scan_lines` reads event records whose fields come in any order, with or without spaces, and leaves every line
that is anything else (other records, wrong ones, escapes, tokens, a key that comes twice) to `format.decode`,
which then says what is wrong with it. What it accepts `format.decode` accepts, with the same values; the
tests hold both against each other. A line just as `row_text.format_rows` writes it is read faster still.
"""

from __future__ import annotations

from typing import Any

from draftproof.impl.traces.columns import (
    CODE,
    DROP,
    FIRST_ARGUMENT,
    FIRST_COUNTER,
    INDEX,
    NUM_LINES,
    REQUEST_NUMBER,
    STATUS_LINE,
    STEP,
    STOPPED,
)
from draftproof.impl.traces.format import ABSENT, LARGEST_COUNT, LARGEST_SEQUENCE
from draftproof.impl.traces.line_scan import (
    constant_at,
    digits_at,
    matches,
    number_at,
    skip_spaces,
    word_at,
)
from draftproof.impl.traces.line_words import (
    AFTER_KEY,
    AFTER_PIECE,
    CONSTANTS,
    EVENT_KEY,
    FIRST_ARGUMENT_PIECE,
    FIRST_COUNTER_KEY,
    FIRST_COUNTER_PIECE,
    FIRST_EVENT_WORD,
    FIRST_STATUS_PIECE,
    FIRST_STATUS_WORD,
    INDEX_PIECE,
    MAX_ROW_BYTES,
    NUM_ARGUMENTS,
    NUM_COUNTERS,
    NUM_EVENTS,
    NUM_STATUSES,
    REQUEST_PIECE,
    SEQUENCE_KEY,
    STEP_PIECE,
)

__all__ = ("CONSTANTS", "MAX_ROW_BYTES", "SLOW", "scan_lines")

SLOW = -2
"""The code of a line that was left to `format.decode`."""


def counters_at(data: Any, place: int, lines: Any, row: int, table: Any, words: Any, starts: Any) -> int:
    """The object `after` whose brace opens at `place`; returns the place behind it, -1 if it is not read."""
    place = skip_spaces(data, place + 1)
    if data[place] == 125:
        return place + 1
    seen = 0
    while True:
        key, place = word_at(data, place, table, words, starts)
        if key < FIRST_COUNTER_KEY or key >= SEQUENCE_KEY or seen >> key & 1:
            return -1
        seen |= 1 << key
        place = skip_spaces(data, place)
        if data[place] != 58:
            return -1
        place = skip_spaces(data, place + 1)
        if data[place] == 110:
            value, place = constant_at(data, place)
            if place < 0 or value != 2:
                return -1
            value = ABSENT
        elif key + 1 == STATUS_LINE:
            word, place = word_at(data, place, table, words, starts)
            if word < FIRST_STATUS_WORD:
                return -1
            value = word - FIRST_STATUS_WORD
        else:
            value, place = number_at(data, place, LARGEST_COUNT)
            if place < 0:
                return -1
        lines[key + 1, row] = value
        place = skip_spaces(data, place)
        if data[place] == 125:
            return place + 1
        if data[place] != 44:
            return -1
        place = skip_spaces(data, place + 1)


def record_at(
    data: Any,
    place: int,
    lines: Any,
    sequences: Any,
    row: int,
    table: Any,
    words: Any,
    starts: Any,
    masks: Any,
) -> int:
    """The event record at a place, into its row; returns where its line ends, -1 if it is left to others."""
    if data[place] != 123:
        return -1
    place = skip_spaces(data, place + 1)
    seen, code = 0, SLOW
    while True:
        key, place = word_at(data, place, table, words, starts)
        if key < 0 or key > AFTER_KEY or seen >> key & 1:
            return -1
        seen |= 1 << key
        place = skip_spaces(data, place)
        if data[place] != 58:
            return -1
        place = skip_spaces(data, place + 1)
        if key == EVENT_KEY:
            word, place = word_at(data, place, table, words, starts)
            if word < FIRST_EVENT_WORD or word >= FIRST_STATUS_WORD:
                return -1
            code = word - FIRST_EVENT_WORD
        elif key == AFTER_KEY:
            if data[place] != 123:
                return -1
            place = counters_at(data, place, lines, row, table, words, starts)
            if place < 0:
                return -1
        elif key == SEQUENCE_KEY:
            value, place = number_at(data, place, LARGEST_SEQUENCE)
            if place < 0 or value < 0:
                return -1
            sequences[row] = value
        elif key + 1 == DROP:
            value, place = constant_at(data, place)
            if place < 0 or value > 1:
                return -1
            lines[DROP, row] = value
        elif key >= FIRST_COUNTER_KEY:
            return -1
        else:
            value, place = number_at(data, place, LARGEST_COUNT)
            if place < 0 or value < 0:
                return -1
            lines[key + 1, row] = value
        place = skip_spaces(data, place)
        if data[place] == 125:
            break
        if data[place] != 44:
            return -1
        place = skip_spaces(data, place + 1)
    place = skip_spaces(data, place + 1)
    if data[place] == 13:
        place += 1
    if data[place] != 10 or code < 0 or seen & ~(1 << AFTER_KEY) != masks[code]:
        return -1
    if lines[INDEX, row] < 1 or lines[STOPPED, row] > 1:
        return -1
    lines[CODE, row] = code
    return place


def own_record_at(
    data: Any,
    place: int,
    lines: Any,
    sequences: Any,
    row: int,
    wide_pieces: Any,
    piece_starts: Any,
    masks: Any,
) -> int:
    """An event record just as `format_rows` writes it; returns where its line ends, -1 for any other."""
    code = 0
    while code < NUM_EVENTS and not matches(data, place, wide_pieces, code):
        code += 1
    if code == NUM_EVENTS:
        return -1
    place += piece_starts[code + 1] - piece_starts[code]
    sequence, place = number_at(data, place, LARGEST_SEQUENCE)
    if place < 0 or sequence < 0 or not matches(data, place, wide_pieces, STEP_PIECE):
        return -1
    sequences[row] = sequence
    step, place = digits_at(data, place + 8)
    if place < 0 or not matches(data, place, wide_pieces, REQUEST_PIECE):
        return -1
    request, place = digits_at(data, place + 11)
    if place < 0 or not matches(data, place, wide_pieces, INDEX_PIECE):
        return -1
    index, place = digits_at(data, place + 9)
    if place < 0 or index < 1:
        return -1
    lines[STEP, row], lines[REQUEST_NUMBER, row], lines[INDEX, row] = step, request, index
    mask = masks[code] >> (FIRST_ARGUMENT - 1)
    for offset in range(NUM_ARGUMENTS):
        if mask >> offset & 1:
            piece = FIRST_ARGUMENT_PIECE + offset
            if not matches(data, place, wide_pieces, piece):
                return -1
            place += piece_starts[piece + 1] - piece_starts[piece]
            if FIRST_ARGUMENT + offset == DROP:
                value, place = constant_at(data, place)
            else:
                value, place = digits_at(data, place)
            if place < 0 or (FIRST_ARGUMENT + offset in (DROP, STOPPED) and value > 1):
                return -1
            lines[FIRST_ARGUMENT + offset, row] = value
    if data[place] == 44:
        if not matches(data, place, wide_pieces, AFTER_PIECE):
            return -1
        place += piece_starts[AFTER_PIECE + 1] - piece_starts[AFTER_PIECE]
        for offset in range(NUM_COUNTERS):
            piece = FIRST_COUNTER_PIECE + offset
            if not matches(data, place, wide_pieces, piece):
                continue
            place += piece_starts[piece + 1] - piece_starts[piece]
            if FIRST_COUNTER + offset == STATUS_LINE:
                value = 0
                while value < NUM_STATUSES and not matches(
                    data, place, wide_pieces, FIRST_STATUS_PIECE + value
                ):
                    value += 1
                if value == NUM_STATUSES:
                    return -1
                status = FIRST_STATUS_PIECE + value
                place += piece_starts[status + 1] - piece_starts[status]
            elif data[place] == 45:
                return -1
            else:
                value, place = digits_at(data, place)
                if place < 0:
                    return -1
            lines[FIRST_COUNTER + offset, row] = value
            if data[place] == 125:
                break
            if data[place] != 44:
                return -1
            place += 1
        if data[place] != 125:
            return -1
        place += 1
    if data[place] != 125 or data[place + 1] != 10:
        return -1
    lines[CODE, row] = code
    return place + 1


def scan_lines(
    data: Any,
    lines: Any,
    sequences: Any,
    places: Any,
    table: Any,
    words: Any,
    starts: Any,
    masks: Any,
    wide_pieces: Any,
    piece_starts: Any,
) -> int:
    """Read lines into columns; `data` ends with a line feed. Row i is line i, which begins at `places[i]`.

    A line that is left to `format.decode` has the code SLOW. Returns how many lines were read: all, unless
    there are more than columns; `places` then has where to go on.
    """
    place, row = 0, 0
    num_bytes, room = data.shape[0], sequences.shape[0]
    while place < num_bytes and row < room:
        places[row] = place
        for line in range(NUM_LINES):
            lines[line, row] = ABSENT
        end = -1
        if place + MAX_ROW_BYTES < num_bytes:
            end = own_record_at(data, place, lines, sequences, row, wide_pieces, piece_starts, masks)
        if end < 0:
            for line in range(NUM_LINES):
                lines[line, row] = ABSENT
            end = record_at(data, place, lines, sequences, row, table, words, starts, masks)
        if end < 0:
            lines[CODE, row] = SLOW
            end = place
            while data[end] != 10:
                end += 1
        place = end + 1
        row += 1
    places[row] = place
    return row

"""How is a line read and written quickly? By compiled loops between bytes and columns.

`format_rows` writes what `format.encode` writes, byte for byte. `scan_lines` reads event records whose fields
come in any order, with or without spaces, and leaves every line that is anything else (other records, wrong
ones, escapes, tokens, a key that comes twice) to `format.decode`, which then says what is wrong with it. What
it accepts `format.decode` accepts, with the same values; the tests hold both against each other. A line just
as `format_rows` writes it is read faster still.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
from draftproof.impl.traces.format import (
    ABSENT,
    ARGUMENTS,
    COUNTERS,
    EVENT_NAMES,
    LARGEST_COUNT,
    LARGEST_SEQUENCE,
    MASK_OF_ARGUMENTS,
)
from draftproof.spec.ledger import STATUS_NAMES

SLOW = -2
"""The code of a line that was left to `format.decode`."""
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


# ---- writing ----


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


def number_rows(rows: Any, next_index: Any, num_requests: int) -> int:
    """Give event rows, int32[n, NUM_LINES], their places among their requests' records; returns -1. Where a
    row's code, status or request is none, nothing is changed and its place is returned."""
    for row in range(rows.shape[0]):
        code, status, request = rows[row, CODE], rows[row, STATUS_LINE], rows[row, REQUEST_NUMBER]
        if code < 0 or code >= NUM_EVENTS or status >= NUM_STATUSES or (status < 0 and status != ABSENT):
            return row
        if request < 0 or request >= num_requests:
            return row
    for row in range(rows.shape[0]):
        request = rows[row, REQUEST_NUMBER]
        rows[row, INDEX] = next_index[request]
        next_index[request] += 1
    return -1


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


# ---- reading ----


def skip_spaces(data: Any, place: int) -> int:
    """The first place that is no space or tab."""
    while data[place] == 32 or data[place] == 9:
        place += 1
    return place


def word_at(data: Any, place: int, table: Any, words: Any, starts: Any) -> tuple[int, int]:
    """Which of `WORDS` stands between the quotes that open at `place`, and the place behind them; -1 if none.

    A line feed ends every search: no line holds one.
    """
    if data[place] != 34:
        return -1, place
    begin = place + 1
    end = begin
    while data[end] != 34:
        if data[end] == 10 or data[end] == 92:
            return -1, end
        end += 1
    length = end - begin
    if length == 0 or length > 32:
        return -1, end
    fifth = begin + min(4, length - 1)
    found = table[word_hash(length, wide(data[begin]), wide(data[fifth]), wide(data[begin + length // 2]))]
    if found < 0 or starts[found + 1] - starts[found] != length:
        return -1, end
    for offset in range(length):
        if words[starts[found] + offset] != data[begin + offset]:
            return -1, end
    return wide(found), end + 1


def wide(value: int) -> int:
    """As an int64."""
    return int(value)


def number_at(data: Any, place: int, largest: int) -> tuple[int, int]:
    """The integer at a place, up to `largest` either way, and the place behind; -1 as the place if none."""
    is_negative = data[place] == 45
    if is_negative:
        place += 1
    first = data[place]
    if first < 48 or first > 57:
        return 0, -1
    value = 0
    begin = place
    while 48 <= data[place] <= 57:
        value = value * 10 + (wide(data[place]) - 48)
        place += 1
        if place - begin > 16:
            return 0, -1
    if (first == 48 and place - begin > 1) or value > largest or (is_negative and value == 0):
        return 0, -1
    return -value if is_negative else value, place


def constant_at(data: Any, place: int) -> tuple[int, int]:
    """true as 1, false as 0, null as 2, and the place behind; -1 as the place if it is none of them."""
    if data[place] == 116 and data[place + 1] == 114 and data[place + 2] == 117 and data[place + 3] == 101:
        return 1, place + 4
    if data[place] == 110 and data[place + 1] == 117 and data[place + 2] == 108 and data[place + 3] == 108:
        return 2, place + 4
    is_false = data[place] == 102 and data[place + 1] == 97 and data[place + 2] == 108
    if is_false and data[place + 3] == 115 and data[place + 4] == 101:
        return 0, place + 5
    return 0, -1


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


def matches(data: Any, place: int, wide_pieces: Any, piece: int) -> bool:
    """Whether a constant text stands at a place, with MAX_ROW_BYTES behind it.

    All bytes are compared at once: of those behind the text the mask makes none count. That no index is
    negative is said so that the compiler sees it, and need not count from the end.
    """
    if place < 0 or piece < 0:
        return False
    difference = 0
    for offset in range(PIECE_WIDTH):
        difference |= (data[place + offset] ^ wide_pieces[piece, 0, offset]) & wide_pieces[piece, 1, offset]
    return difference == 0


def digits_at(data: Any, place: int) -> tuple[int, int]:
    """A number of at most 9 digits, not negative, and the place behind; -1 as the place if there is none."""
    value = wide(data[place]) - 48
    begin = place
    place += 1
    if value < 0 or value > 9:
        return 0, -1
    digit = wide(data[place]) - 48
    while 0 <= digit <= 9:
        value = value * 10 + digit
        place += 1
        digit = wide(data[place]) - 48
    if place - begin > 9 or (data[begin] == 48 and place - begin > 1):
        return 0, -1
    return value, place


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

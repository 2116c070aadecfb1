"""What stands at a place of a line? A word, a number, a constant: the smallest steps of the compiled reader.

Each function is given the bytes and a place, and returns what it found and the place behind it. A line feed
ends every search, and the bytes end with one: no place is ever beyond them.
"""

from __future__ import annotations

from typing import Any

from draftproof.impl.traces.line_words import PIECE_WIDTH, word_hash


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

"""What has an engine told that is not written yet? Blocks of records: one thread fills, another empties them.

No lock is between the two: the engine would wait for it. Its thread only ever adds to a block, counts what it
added once that is complete, and turns to the next block once this one is full. The other thread takes what is
counted, and leaves a block only when there is a next one. What one has stored the other reads in the order in
which it was stored: Python's own lock sees to that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draftproof.impl.traces.columns import CODE, INDEX, NUM_LINES, REQUEST_NUMBER, STATUS_LINE
from draftproof.impl.traces.format import ABSENT, EVENT_NAMES, Record, encode
from draftproof.impl.traces.line_words import MAX_ROW_BYTES, PIECE_BYTES, PIECE_STARTS
from draftproof.spec.ledger import STATUS_NAMES

NUM_ROWS = 4096
"""Records in a block, at most; more only if they come in one call."""
NUM_EVENTS, NUM_STATUSES = len(EVENT_NAMES), len(STATUS_NAMES)


class Block:
    """Records in the order in which they came."""

    __slots__ = ("_num_lines_taken", "_num_rows_taken", "lines", "next", "num_rows", "rows")

    def __init__(self, capacity: int = NUM_ROWS) -> None:
        self.rows: Any = np.empty((capacity, NUM_LINES), np.int32)
        self.clear()

    def clear(self) -> None:
        """As new."""
        self.num_rows = 0
        """Rows that are complete: it is raised after they were filled in."""
        self.lines: list[tuple[int, Record]] = []
        """Records that are no rows, each before the row with this place."""
        self.next: Block | None = None
        """Set once nothing more is added here."""
        self._num_rows_taken = self._num_lines_taken = 0

    def has_room(self, num_rows: int) -> bool:
        """Whether so many rows fit in, or a record that is none."""
        count = self.num_rows
        return count + num_rows <= self.rows.shape[0] and count + len(self.lines) < NUM_ROWS

    def take(self) -> tuple[Any, list[tuple[int, Record]]]:
        """What was added since the last time: rows, and records before them, as in `lines`.

        The rows are counted first. So every record before one of them is among the lines, and a line that
        came later, behind rows that are not counted here, is left for the next time.
        """
        begin, end = self._num_rows_taken, self.num_rows
        lines = self.lines[self._num_lines_taken :]
        while lines and lines[-1][0] > end:
            lines.pop()
        self._num_rows_taken = end
        self._num_lines_taken += len(lines)
        return self.rows[begin:end], [(place - begin, record) for place, record in lines]


def take_in(rows: Any, next_index: Any, num_requests: int, block: Any, begin: int) -> int:
    """Copy event rows, int32[n, NUM_LINES], into a block's rows from `begin` on, and give them their places
    among their requests' records; returns -1. Compiled. Where a row's code, status or request is none, no
    place is given and that row is returned."""
    for row in range(rows.shape[0]):
        code, status, request = rows[row, CODE], rows[row, STATUS_LINE], rows[row, REQUEST_NUMBER]
        if code < 0 or code >= NUM_EVENTS or status >= NUM_STATUSES or (status < 0 and status != ABSENT):
            return row
        if request < 0 or request >= num_requests:
            return row
    for row in range(rows.shape[0]):
        for line in range(NUM_LINES):
            block[begin + row, line] = rows[row, line]
        request = rows[row, REQUEST_NUMBER]
        block[begin + row, INDEX] = next_index[request]
        next_index[request] += 1
    return -1


def text_of(rows: Any, lines: list[tuple[int, Record]], first: int, format_rows: Any) -> bytes:
    """Rows and other records as lines, each in its place; `first` is the first one's sequence."""
    count = rows.shape[0]
    places = np.array([place for place, _ in lines], np.int64)
    order = np.arange(count, dtype=np.int64)
    sequences = first + order + np.searchsorted(places, order, side="right")
    out = np.empty(count * MAX_ROW_BYTES, np.uint8)
    ends = np.empty(count, np.int64)
    length = format_rows(rows, sequences, PIECE_BYTES, PIECE_STARTS, out, ends)
    if not lines:
        return out[:length].tobytes()
    parts, begin = [], 0
    for place, record in lines:
        end = int(ends[place - 1]) if place else 0
        parts += [out[begin:end].tobytes(), encode(record)]
        begin = end
    return b"".join([*parts, out[begin:length].tobytes()])

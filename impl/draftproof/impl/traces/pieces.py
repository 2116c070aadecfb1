"""What is in a piece of NDJSON? Columns, what else its lines say, and which rows no checksum holds over.

The compiled scan reads the events; the lines it leaves are decoded one by one. Lines that are no records cost
no memory: the first few are told, the others counted.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from draftproof.impl.traces import text
from draftproof.impl.traces.columns import CODE, SKIPPED, Chunk, empty_chunk, put
from draftproof.impl.traces.format import (
    Checksum,
    Continued,
    End,
    Exit,
    Header,
    RequestRecord,
    TraceError,
    Violation,
    decode,
)
from draftproof.impl.traces.parts import Damage, Named, Part

ROOM_ROWS = 65_000
"""Records in a chunk, at most. No power of two, as in `parquet.GROUP_ROWS`."""
MIN_LINE_BYTES = 40
"""No record is shorter, its line feed included."""
MAX_SHOWN = 20
"""Lines of a piece that are no records: so many are told one by one, the others are counted."""
LOCAL = threading.local()


class Piece(NamedTuple):
    """Complete lines of a file."""

    data: bytearray
    size: int
    """So many bytes of it count; the last is a line feed."""
    path: str
    follows_checksum: bool
    """Whether it begins where the next checksum begins to count."""
    is_tainted: bool
    """Whether the checksum over it is lost."""
    has_checksums: bool
    """Whether the file's header says that there is one over every record."""


class Scanned(NamedTuple):
    """A piece as columns; damages in it have its own lines as their places."""

    parts: list[Part]
    num_lines: int


@dataclass
class OpenBlock:
    """What the next checksum covers."""

    begin: int
    """Its first byte in the piece; -1 if that is not known."""
    rows: list[Any] = field(default_factory=list)
    """The taint of its rows."""
    num_records: int = 0
    """So many of its rows are records."""
    is_needed: bool = False
    """Whether the header says that there is a checksum behind it."""

    def clear(self) -> None:
        """The next one begins."""
        self.rows.clear()
        self.num_records = 0

    def taint(self) -> None:
        """No checksum holds over what is in it."""
        for tainted in self.rows:
            tainted[:] = True


class Lines(NamedTuple):
    """The lines of rows: where each begins and ends in the piece, and its number there."""

    starts: Any
    ends: Any
    numbers: Any


@dataclass
class Refused:
    """Lines of a piece that are no records."""

    num_shown: int = 0
    num_others: int = 0
    first: int = 0
    """The first of the others."""

    def add(self, numbers: Any) -> None:
        """Lines that are not shown."""
        if not self.num_others:
            self.first = int(numbers[0])
        self.num_others += len(numbers)


def _room() -> tuple[Chunk, Any]:
    """This thread's columns to read into: used again for every piece."""
    if not hasattr(LOCAL, "room"):
        LOCAL.room = empty_chunk(ROOM_ROWS), np.zeros(ROOM_ROWS + 1, np.int64)
    found: tuple[Chunk, Any] = LOCAL.room
    return found


def scanned(piece: Piece) -> Scanned:
    """A piece as columns, and what else is in it."""
    from draftproof.impl.traces import compiled

    scan = compiled.scan_lines()
    parts: list[Part] = []
    data = np.frombuffer(piece.data, np.uint8, piece.size)
    begin, line, refused = 0, 0, Refused()
    block = OpenBlock(0 if piece.follows_checksum else -1, is_needed=piece.has_checksums)
    while begin < data.shape[0]:
        chunk, places = _room()
        count = scan(data[begin:], chunk.lines, chunk.sequences, places, *text.CONSTANTS)
        starts, ends = places[:count] + begin, places[1 : count + 1] + begin
        lines = Lines(starts, ends, np.arange(line, line + count))
        kept: Any = slice(0, count)
        short = np.flatnonzero((chunk.lines[CODE, :count] == text.SLOW) & (ends - starts < MIN_LINE_BYTES))
        if short.size > (shown := MAX_SHOWN - refused.num_shown):  # rows take more memory than such lines
            refused.add(lines.numbers[short[shown:]])
            kept = np.delete(np.arange(count), short[shown:])
            lines = Lines(*(one[kept] for one in lines))
        tainted = np.full(lines.starts.size, piece.is_tainted, np.bool_)
        rows = Chunk(chunk.lines[:, kept].copy(), chunk.sequences[kept].copy(), tainted)
        parts += _finish(rows, lines, piece, block, refused)
        line += count
        begin = int(places[count]) + begin
    if block.is_needed:
        block.taint()
    if refused.num_others:
        sentence = f"{refused.num_others} more lines, this one and others behind it, are no records"
        parts.append(Damage("line", sentence, str(refused.first), refused.num_others))
    return Scanned(parts, line)


def _finish(rows: Chunk, lines: Lines, piece: Piece, block: OpenBlock, refused: Refused) -> list[Part]:
    """Decode the lines that the scan left; a header cuts the rows in two."""
    parts: list[Part] = []
    named, begun, first, known = Named([], [], None), 0, 0, -1
    view = memoryview(piece.data)
    for place in np.flatnonzero(rows.lines[CODE] == text.SLOW).tolist():
        rows.lines[CODE, place], rows.sequences[place] = SKIPPED, -1
        start, end, number = int(lines.starts[place]), int(lines.ends[place]), str(lines.numbers[place])
        try:
            record = decode(bytes(view[start:end]))
        except TraceError as problem:
            if refused.num_shown < MAX_SHOWN:
                refused.num_shown += 1
                parts.append(Damage("line", str(problem), number))
            else:
                refused.add(lines.numbers[place : place + 1])
            continue
        if isinstance(record, RequestRecord):
            put(rows, place, record)
            if not isinstance(record, Exit):
                named.records.append((place - begun, record))
        elif isinstance(record, Checksum):
            block.rows.append(rows.tainted[first : place + 1])
            if block.begin >= 0 and zlib.crc32(view[block.begin : start]) != record.crc32:
                block.taint()
                sentence = "a checksum fails: bytes before it were changed or lost"
                parts.append(Damage("checksum", sentence, number))
            block.clear()
            known = _last_of(rows.sequences[first:place], known)
            block.begin, first = end, place + 1
            if known not in (-1, record.sequence - 1):
                sentence = f"a checksum says {record.sequence} is next, record {known} came before"
                parts.append(Damage("checksum", sentence, number))
        elif isinstance(record, Header):
            if block.is_needed and place:
                block.rows.append(rows.tainted[first:place])
                block.taint()
            block.is_needed = record.checksums
            parts += _cut(rows, begun, place, named)
            named, begun = Named([], [], None), place
            parts.append(record)
        elif isinstance(record, Violation):
            named.remarks.append((place - begun, record))
            rows.sequences[place] = record.sequence
        elif isinstance(record, End | Continued):
            if named.end is not None:
                parts.append(Damage("repeated", "the trace ends twice", number))
            uncovered = block.num_records + np.count_nonzero(rows.lines[CODE, first:place] >= 0)
            named = named._replace(end=record, is_covered=uncovered == 0)
            if block.is_needed:
                block.rows.append(rows.tainted[first:place])
                block.taint()
            known = _last_of(rows.sequences[first:place], known)
            block.begin, first = (end if block.begin >= 0 else -1), place + 1
            block.clear()
    block.rows.append(rows.tainted[first:])
    block.num_records += int(np.count_nonzero(rows.lines[CODE, first:] >= 0))
    view.release()
    return [*parts, *_cut(rows, begun, rows.num_records, named)]


def _last_of(sequences: Any, former: int) -> int:
    """The last of them that is one, or the former if none is."""
    found = sequences[sequences >= 0]
    return int(found[-1]) if found.size else former


def _cut(rows: Chunk, begin: int, end: int, named: Named) -> list[Part]:
    if begin == end:
        return []
    lines = rows.lines if end - begin == rows.num_records else np.ascontiguousarray(rows.lines[:, begin:end])
    return [named, Chunk(lines, rows.sequences[begin:end], rows.tainted[begin:end])]

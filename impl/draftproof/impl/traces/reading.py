"""What comes out of a trace file? A header, chunks of records in their order, and what could not be read.

Reading never trusts a file: whatever is in it, there is a `Damage` with a sentence for what cannot be read,
and everything else comes through. Memory is bounded by the size of a piece, not of the file. Pieces are read
in order and made columns by the threads of a pool.
"""

from __future__ import annotations

import queue
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from draftproof.impl.traces import text
from draftproof.impl.traces.columns import CODE, SKIPPED, Chunk, empty_chunk, put
from draftproof.impl.traces.files import require
from draftproof.impl.traces.format import (
    MAX_LINE_BYTES,
    Checksum,
    Continued,
    End,
    Exit,
    Header,
    RequestRecord,
    TraceError,
    Violation,
    check_header,
    decode,
)

PIECE_BYTES = 8 * 2**20
"""Read at once."""
ROOM_ROWS = 65_000
"""Records in a chunk, at most. No power of two, as in `parquet.GROUP_ROWS`."""
MAX_BLOCK_BYTES = 32 * 2**20
"""Bytes that are held back for the checksum behind them."""
CHECKSUM_LINE = b'{"event":"checksum"'
PARQUET_MAGIC, ZSTD_MAGIC = b"PAR1", b"\x28\xb5\x2f\xfd"
LOCAL = threading.local()

Result = TypeVar("Result")
Item = TypeVar("Item")


class Damage(NamedTuple):
    """Something in a file that cannot be read, or that shows that something is missing."""

    kind: str
    sentence: str
    place: str = ""
    """`FILE, line 12` or the like."""


class Named(NamedTuple):
    """What else the next chunk tells: what does not fit into its columns. It comes before the chunk."""

    records: list[tuple[int, RequestRecord]]
    """Records with a name or tokens, each with its row."""
    remarks: list[tuple[int, Violation]]
    """A live checker's remarks, each with its row."""
    end: End | Continued | None
    is_covered: bool = True
    """Whether a checksum stands between the last record and the end."""


Part = Header | Chunk | Damage | Named
"""What a reader yields."""


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

    def clear(self) -> None:
        """The next one begins."""
        self.rows.clear()
        self.num_records = 0


def ordered(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], depth: int
) -> Iterator[Result]:
    """The function of each item, worked out by the pool, in order; at most `depth` are begun at once."""
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for one in pending:
            one.cancel()


def open_file(path: str) -> Any:
    """A file for reading, local or of any URL that fsspec knows. Raises TraceError in one sentence."""
    try:
        if "://" in path:
            fsspec = require("fsspec")
            return fsspec.open(path, "rb").open()
        return open(path, "rb")
    except TraceError:
        raise
    except FileNotFoundError:
        raise TraceError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise TraceError(f"{path} is a folder") from None
    except PermissionError:
        raise TraceError(f"{path} may not be read: no permission") from None
    except OSError as problem:
        raise TraceError(f"{path} cannot be read: {problem.strerror or problem}") from None
    except Exception as problem:  # a bucket without credentials: every driver has errors of its own
        raise TraceError(f"{path} cannot be opened: {_first_line(problem)}") from None


def kind_of(path: str) -> str:
    """`parquet`, `zstd` or `ndjson`, by the first bytes."""
    with open_file(path) as file:
        begin = file.read(4)
    return {PARQUET_MAGIC: "parquet", ZSTD_MAGIC: "zstd"}.get(begin, "ndjson")


def read_header(path: str) -> Header:
    """The header of a trace file. Raises TraceError if it has none."""
    if kind_of(path) == "parquet":
        from draftproof.impl.traces import parquet

        return parquet.open_parquet(path).header
    with open_bytes(path) as file:
        try:
            line = file.read(64 * 1024)
        except OSError as problem:
            raise TraceError(f"{path} cannot be read: {problem}") from None
        except Exception as problem:
            raise TraceError(f"{path} is no trace: {_first_line(problem)}") from None
    if not line.strip():
        raise TraceError(f"{path} is empty")
    return _header_of(path, bytes(line.partition(b"\n")[0]))


def _header_of(path: str, line: bytes) -> Header:
    try:
        record = decode(line)
    except TraceError as problem:
        raise TraceError(f"{path} is no trace: its first line is {problem}") from None
    if not isinstance(record, Header):
        raise TraceError(f"{path} is no trace: its first record is no header")
    return check_header(record)


def open_bytes(path: str) -> Any:
    """The file's NDJSON, decompressed if it is compressed."""
    if kind_of(path) != "zstd":
        return open_file(path)
    zstandard = require("zstandard")
    decompressor = zstandard.ZstdDecompressor(max_window_size=128 * 2**20)
    return decompressor.stream_reader(open_file(path), read_across_frames=True, closefd=True)


# ---- NDJSON ----


def read_ndjson(path: str, pool: Executor, depth: int, advance: Callable[[int], None]) -> Iterator[Part]:
    """The parts of an NDJSON file. `advance` is told how many bytes have been read."""
    damages: list[Damage] = []
    line = 1
    buffers = Buffers()

    def scan(piece: Piece) -> Scanned:
        scanned = _scanned(piece)
        buffers.give_back(piece.data)
        return scanned

    for scanned in ordered(pool, scan, _pieces(path, damages, advance, buffers), depth):
        for part in scanned.parts:
            if isinstance(part, Damage):
                yield part._replace(place=f"{path}, line {line + int(part.place)}")
            else:
                yield part
        line += scanned.num_lines
    for damage in damages:
        yield damage._replace(place=damage.place or f"{path}, line {line}")


def _pieces(
    path: str, damages: list[Damage], advance: Callable[[int], None], buffers: Buffers
) -> Iterator[Piece]:
    """Complete lines, cut behind a checksum where there is one."""
    held = b""
    has_checksums, saw_checksum, follows = True, False, True
    with open_bytes(path) as file:
        while True:
            data, size, at_end = _filled(file, path, held, damages, buffers)
            advance(size - len(held))
            cut = _last_checksum_end(data, size) if has_checksums else 0
            saw_checksum |= cut > 0
            if at_end:
                size, cut = _last_line_end(data, size, damages)
            elif cut == 0 and (not has_checksums or size > MAX_BLOCK_BYTES):
                has_checksums = False
                cut = data.rfind(b"\n", 0, size) + 1
            held = bytes(memoryview(data)[cut:size])
            if cut > 0:
                yield Piece(data, cut, path, follows and has_checksums, saw_checksum and not has_checksums)
                follows = has_checksums
            else:
                buffers.give_back(data)
            if len(held) > MAX_LINE_BYTES:
                damages.append(Damage("line", f"a line has more than {MAX_LINE_BYTES} bytes"))
                held = b""
                follows = has_checksums = False
            if at_end:
                return


class Buffers:
    """Memory to read into, used again and again: new memory costs as much as reading."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()

    def take(self) -> bytearray:
        """A buffer of at least PIECE_BYTES."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return bytearray(PIECE_BYTES)

    def give_back(self, data: bytearray) -> None:
        """It is not used any more."""
        if len(data) == PIECE_BYTES:
            self._free.put(data)


def _filled(
    file: Any, path: str, held: bytes, damages: list[Damage], buffers: Buffers
) -> tuple[bytearray, int, bool]:
    """A buffer with what was held and what comes next, how many bytes that are, and whether it is the end."""
    data = buffers.take()
    if len(held) > len(data) // 2:
        data = bytearray(2 * len(held) + PIECE_BYTES)
    size = len(held)
    data[:size] = held
    view = memoryview(data)
    try:
        while size < len(data):
            count = file.readinto(view[size:])
            if not count:
                return data, size, True
            size += count
    except Exception as problem:  # zstandard's, fsspec's, the disk's
        damages.append(Damage("unreadable", f"it cannot be read any further: {_first_line(problem)}", path))
        return data, size, True
    return data, size, False


def _last_line_end(data: bytearray, size: int, damages: list[Damage]) -> tuple[int, int]:
    """The size, and the end of the file's last line. One without a line feed gets one if it is a record."""
    if size == 0 or data[size - 1] == 10:
        return size, size
    begin = data.rfind(b"\n", 0, size) + 1
    try:
        decode(bytes(data[begin:size]))
    except TraceError:
        damages.append(Damage("cut", "the file ends in the middle of a line"))
        return begin, begin
    data[size : size + 1] = b"\n"
    return size + 1, size + 1


def _last_checksum_end(data: bytearray, size: int) -> int:
    """The end of the last complete checksum line; 0 if there is none."""
    found = size
    while True:
        found = data.rfind(CHECKSUM_LINE, 0, found)
        if found < 0:
            return 0
        if found == 0 or data[found - 1] == 10:
            end = data.find(b"\n", found, size)
            if end >= 0:
                return end + 1


def _room() -> tuple[Chunk, Any]:
    """This thread's columns to read into: used again for every piece."""
    if not hasattr(LOCAL, "room"):
        LOCAL.room = empty_chunk(ROOM_ROWS), np.zeros(ROOM_ROWS + 1, np.int64)
    found: tuple[Chunk, Any] = LOCAL.room
    return found


def _scanned(piece: Piece) -> Scanned:
    """A piece as columns, and what else is in it."""
    from draftproof.impl.traces import compiled

    scan = compiled.scan_lines()
    parts: list[Part] = []
    data = np.frombuffer(piece.data, np.uint8, piece.size)
    begin, line = 0, 0
    open_block = OpenBlock(0 if piece.follows_checksum else -1)
    while begin < data.shape[0]:
        chunk, places = _room()
        count = scan(data[begin:], chunk.lines, chunk.sequences, places, *text.CONSTANTS)
        tainted = np.full(count, piece.is_tainted, np.bool_)
        rows = Chunk(chunk.lines[:, :count].copy(), chunk.sequences[:count].copy(), tainted)
        parts += _finish(rows, places[: count + 1] + begin, piece, line, open_block)
        line += count
        begin = int(places[count]) + begin
    return Scanned(parts, line)


def _finish(rows: Chunk, starts: Any, piece: Piece, line: int, block: OpenBlock) -> list[Part]:
    """Decode the lines that the scan left; a header cuts the rows in two."""
    parts: list[Part] = []
    named, begun, first = Named([], [], None), 0, 0
    view = memoryview(piece.data)
    for place in np.flatnonzero(rows.lines[CODE] == text.SLOW).tolist():
        rows.lines[CODE, place], rows.sequences[place] = SKIPPED, -1
        start, end = int(starts[place]), int(starts[place + 1])
        try:
            record = decode(bytes(view[start:end]))
        except TraceError as problem:
            parts.append(Damage("line", str(problem), str(line + place)))
            continue
        if isinstance(record, RequestRecord):
            put(rows, place, record)
            if not isinstance(record, Exit):
                named.records.append((place - begun, record))
        elif isinstance(record, Checksum):
            block.rows.append(rows.tainted[first : place + 1])
            if block.begin >= 0 and zlib.crc32(view[block.begin : start]) != record.crc32:
                for tainted in block.rows:
                    tainted[:] = True
                sentence = "a checksum fails: bytes before it were changed or lost"
                parts.append(Damage("checksum", sentence, str(line + place)))
            block.clear()
            block.begin, first = end, place + 1
            known = rows.sequences[:place][rows.sequences[:place] >= 0]
            if known.size and int(known[-1]) + 1 != record.sequence:
                sentence = f"a checksum says {record.sequence} is next, record {known[-1]} came before"
                parts.append(Damage("checksum", sentence, str(line + place)))
        elif isinstance(record, Header):
            parts += _cut(rows, begun, place, named)
            named, begun = Named([], [], None), place
            parts.append(record)
        elif isinstance(record, Violation):
            named.remarks.append((place - begun, record))
            rows.sequences[place] = record.sequence
        elif isinstance(record, End | Continued):
            if named.end is not None:
                parts.append(Damage("repeated", "the trace ends twice", str(line + place)))
            uncovered = block.num_records + np.count_nonzero(rows.lines[CODE, first:place] >= 0)
            named = named._replace(end=record, is_covered=uncovered == 0)
            block.begin, first = (end if block.begin >= 0 else -1), place + 1
            block.clear()
    block.rows.append(rows.tainted[first:])
    block.num_records += int(np.count_nonzero(rows.lines[CODE, first:] >= 0))
    view.release()
    return [*parts, *_cut(rows, begun, rows.num_records, named)]


def _cut(rows: Chunk, begin: int, end: int, named: Named) -> list[Part]:
    if begin == end:
        return []
    lines = rows.lines if end - begin == rows.num_records else np.ascontiguousarray(rows.lines[:, begin:end])
    return [named, Chunk(lines, rows.sequences[begin:end], rows.tainted[begin:end])]


def _first_line(problem: BaseException) -> str:
    return (str(problem) or type(problem).__name__).partition("\n")[0][:200]

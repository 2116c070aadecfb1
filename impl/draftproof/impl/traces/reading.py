"""How is a trace file read? Piece by piece, in order, whatever is in it and however large it is.

Reading never trusts a file: whatever is in it, there is a `Damage` with a sentence for what cannot be read,
and everything else comes through. Memory is bounded by the size of a piece, not of the file. Pieces are read
in order and made columns by the threads of a pool.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from draftproof.impl.traces.files import require
from draftproof.impl.traces.format import MAX_LINE_BYTES, Header, TraceError, check_header, decode
from draftproof.impl.traces.parts import Damage, Part
from draftproof.impl.traces.pieces import Piece, Scanned, scanned

PIECE_BYTES = 8 * 2**20
"""Read at once."""
MAX_BLOCK_BYTES = 32 * 2**20
"""Bytes that are held back for the checksum behind them."""
CHECKSUM_LINE = b'{"event":"checksum"'
PARQUET_MAGIC, ZSTD_MAGIC = b"PAR1", b"\x28\xb5\x2f\xfd"

Result = TypeVar("Result")
Item = TypeVar("Item")


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
        found = scanned(piece)
        buffers.give_back(piece.data)
        return found

    for found in ordered(pool, scan, _pieces(path, damages, advance, buffers), depth):
        for part in found.parts:
            if isinstance(part, Damage):
                yield part._replace(place=f"{path}, line {line + int(part.place)}")
            else:
                yield part
        line += found.num_lines
    for damage in damages:
        yield damage._replace(place=damage.place or f"{path}, line {line}")


def _pieces(
    path: str, damages: list[Damage], advance: Callable[[int], None], buffers: Buffers
) -> Iterator[Piece]:
    """Complete lines, cut behind a checksum where there is one."""
    held = b""
    has_checksums, saw_checksum, follows = True, False, True
    is_needed: bool | None = None
    with open_bytes(path) as file:
        while True:
            data, size, at_end = _filled(file, path, held, damages, buffers)
            advance(size - len(held))
            if is_needed is None:
                is_needed = _has_checksums(data, size)
            cut = _last_checksum_end(data, size) if has_checksums else 0
            saw_checksum |= cut > 0
            if at_end:
                size, cut = _last_line_end(data, size, damages)
            elif cut == 0 and (not has_checksums or size > MAX_BLOCK_BYTES):
                has_checksums = False
                cut = data.rfind(b"\n", 0, size) + 1
            held = bytes(memoryview(data)[cut:size])
            if cut > 0:
                is_tainted = saw_checksum and not has_checksums
                yield Piece(data, cut, path, follows and has_checksums, is_tainted, is_needed)
                follows = has_checksums
            else:
                buffers.give_back(data)
            if len(held) > MAX_LINE_BYTES:
                damages.append(Damage("line", f"a line has more than {MAX_LINE_BYTES} bytes"))
                held = b""
                follows = has_checksums = False
            if at_end:
                return


def _has_checksums(data: bytearray, size: int) -> bool:
    """Whether the file begins with a header that says so."""
    end = data.find(b"\n", 0, size)
    try:
        record = decode(bytes(memoryview(data)[: size if end < 0 else end]))
    except TraceError:
        return False
    return isinstance(record, Header) and record.checksums


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


def _first_line(problem: BaseException) -> str:
    return (str(problem) or type(problem).__name__).partition("\n")[0][:200]

"""How does a trace lie at rest? As a Parquet file: a column for each field, small, and quick to check.

The header and the end are in the file's key-value metadata, as JSON with a checksum; pages have checksums of
their own. Integers that an event does not have, or an engine does not tell, are -2147483648 (`ABSENT`): read
so, a column costs a nanosecond a record, and half as much again with Parquet's nulls. `id`, `token_ids`,
`token_hashes` and `sentence` are null where there are none.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from draftproof.impl.traces.columns import (
    CODE,
    LOOK_UP,
    NUM_LINES,
    PROMPT,
    REGISTERED,
    REQUEST_NUMBER,
    SKIPPED,
    STEP,
    Chunk,
)
from draftproof.impl.traces.files import require
from draftproof.impl.traces.format import (
    ABSENT,
    ARGUMENTS,
    CODE_NAMES,
    COUNTERS,
    EXIT,
    REQUEST,
    End,
    Header,
    RequestRecord,
    TraceError,
    Violation,
    check_header,
    decode,
    encode,
)
from draftproof.impl.traces.parts import Damage, Named, Part
from draftproof.impl.traces.reading import open_file, ordered

GROUP_ROWS = 130_000
"""Records in a row group. No power of two: in memory all fields of a record would fall into the same set of
the processor's cache."""
MAX_GROUP_ROWS = 4 * 2**20
HEADER_KEY, END_KEY, CRC_KEY = b"draftproof.header", b"draftproof.end", b"draftproof.crc32"
SIZE_KEY = b"draftproof.num_bytes"
"""How many bytes come before the file's footer: where some were cut out or put in, it is another number."""
LINE_NAMES = ("request", "index", "step", *ARGUMENTS, *(f"after_{name}" for name in COUNTERS))
"""The columns of the lines behind the code."""
OWN = {"num_prompt_tokens": (REQUEST, PROMPT), "registered": (EXIT, REGISTERED), "look_up": (EXIT, LOOK_UP)}
"""Columns of `request` and `exit` records, and where their numbers lie in memory."""
EVENT_DICTIONARY = (*CODE_NAMES, "violation")
FAST_COLUMNS = ("event", "sequence", *LINE_NAMES, *OWN)
EXTRA_COLUMNS = ("id", "token_ids", "token_hashes", "sentence")
LOCAL = threading.local()


class Opened(NamedTuple):
    """A Parquet file that is a trace."""

    file: Any
    header: Header
    end: End | None


def schema() -> Any:
    """The Arrow schema of a trace."""
    pa = require("pyarrow")
    return pa.schema(
        [
            pa.field("event", pa.dictionary(pa.int8(), pa.string()), nullable=False),
            pa.field("sequence", pa.int64(), nullable=False),
            *(pa.field(name, pa.int32(), nullable=False) for name in (*LINE_NAMES, *OWN)),
            pa.field("id", pa.string()),
            pa.field("token_ids", pa.list_(pa.int32())),
            pa.field("token_hashes", pa.list_(pa.string())),
            pa.field("sentence", pa.string()),
        ]
    )


def open_parquet(path: str) -> Opened:
    """The file, if it is a trace. Raises TraceError with what it is not."""
    pq = require("pyarrow.parquet")
    try:
        file = pq.ParquetFile(
            open_file(path) if "://" in path else path,
            read_dictionary=["event"],
            page_checksum_verification=True,
        )
        metadata: dict[bytes, bytes] = file.schema_arrow.metadata or {}
        metadata = metadata | (file.metadata.metadata or {})
        found = {field.name: field.type for field in file.schema_arrow}
    except TraceError:
        raise
    except Exception as problem:  # Arrow's errors, and the disk's
        raise TraceError(f"{path} is no Parquet file that can be read: {_first(problem)}") from None
    if HEADER_KEY not in metadata:
        raise TraceError(f"{path} is no trace: its metadata has no {HEADER_KEY.decode()}")
    header = _record(path, metadata[HEADER_KEY])
    if not isinstance(header, Header):
        raise TraceError(f"{path} is no trace: its header is none")
    check_header(header)
    end = _record(path, metadata[END_KEY]) if END_KEY in metadata else None
    crc = zlib.crc32(metadata[HEADER_KEY] + metadata.get(END_KEY, b"") + metadata.get(SIZE_KEY, b""))
    if metadata.get(CRC_KEY, b"").decode(errors="replace") != str(crc):
        raise TraceError(f"{path} is damaged: the checksum of its header fails")
    if metadata.get(SIZE_KEY, b"").decode(errors="replace") != str(_data_size(path)):
        raise TraceError(f"{path} is damaged: bytes are missing, or were put in")
    for field in schema():
        kind = found.get(field.name)
        if kind is None or (kind != field.type and not str(kind).startswith("dictionary")):
            raise TraceError(f"{path} is no trace: its column {field.name} is {kind}, expected {field.type}")
    return Opened(file, header, end if isinstance(end, End) else None)


def _data_size(path: str) -> int:
    """How many bytes come before the footer."""
    with open_file(path) as file:
        size: int = file.seek(-8, 2)
        return size - int.from_bytes(file.read(4), "little")


def read_parquet(
    path: str, pool: Executor, depth: int, advance: Callable[[int], None], extras: bool = False
) -> Iterator[Part]:
    """The parts of a Parquet trace; `extras`: names, tokens and remarks, too."""
    opened = open_parquet(path)
    yield opened.header
    metadata = opened.file.metadata
    groups = range(metadata.num_row_groups)

    def read(group: int) -> list[Part]:
        return _group(path, group, extras)

    for group, parts in zip(groups, ordered(pool, read, groups, depth), strict=True):
        yield from parts
        advance(_compressed_size(metadata.row_group(group)))
    if opened.end is not None:
        yield Named([], [], opened.end)


def read_names(path: str, numbers: set[int]) -> dict[int, str]:
    """The ids of some requests."""
    opened = open_parquet(path)
    found: dict[int, str] = {}
    for group in range(opened.file.num_row_groups):
        try:
            table = opened.file.read_row_group(group, columns=["request", "id"], use_threads=False)
        except Exception:  # told as damage already
            continue
        ids = table.column("id").combine_chunks()
        rows = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False))
        requests = table.column("request").to_numpy()[rows]
        for row in rows[np.isin(requests, list(numbers))].tolist():
            found[int(table.column("request")[row].as_py())] = ids[row].as_py()
        if len(found) == len(numbers):
            break
    return found


def _record(path: str, data: bytes) -> Any:
    try:
        return decode(data)
    except TraceError as problem:
        raise TraceError(f"{path}: {problem}") from None


def _compressed_size(group: Any) -> int:
    return sum(int(group.column(index).total_compressed_size) for index in range(group.num_columns))


def _opened(path: str) -> Opened:
    """The file as this thread has it open."""
    files: dict[str, Opened] = LOCAL.__dict__.setdefault("files", {})
    if path not in files:
        files.clear()
        files[path] = open_parquet(path)
    return files[path]


def _group(path: str, group: int, extras: bool) -> list[Part]:
    """A row group as a chunk, or the damage that it is."""
    where = f"{path}, row group {group}"
    try:
        file = _opened(path).file
        if file.metadata.row_group(group).num_rows > MAX_GROUP_ROWS:
            return [Damage("unreadable", f"it has more than {MAX_GROUP_ROWS} records", where)]
        columns = [*FAST_COLUMNS, *(EXTRA_COLUMNS if extras else ())]
        table = file.read_row_group(group, columns=columns, use_threads=False)
        parts = _chunk(table, where)
        chunk = parts[-1]
        if isinstance(chunk, Chunk):
            if extras:
                parts.insert(-1, _extras(table, chunk))
            elif (remarked := np.flatnonzero(chunk.lines[CODE] == SKIPPED)).size:
                sentences = file.read_row_group(group, columns=["sentence"], use_threads=False)
                parts.insert(-1, Named([], _remarks(sentences, chunk, remarked.tolist()), None))
        return parts
    except TraceError as problem:
        return [Damage("unreadable", str(problem), where)]
    except Exception as problem:  # Arrow's errors on damaged pages
        return [Damage("unreadable", f"it cannot be read: {_first(problem)}", where)]


def _column(table: Any, name: str, kind: Any) -> Any:
    """A column as numbers."""
    column = table.column(name)
    column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if column.null_count:
        column = column.fill_null(ABSENT)
    return column.to_numpy(zero_copy_only=False).astype(kind, copy=False)


def _chunk(table: Any, where: str) -> list[Part]:
    count = table.num_rows
    lines = np.empty((NUM_LINES, count), np.int32)
    parts: list[Part] = []
    if count == 0:
        return [Chunk(lines, np.empty(0, np.int64), np.empty(0, np.bool_))]
    events = table.column("event")
    events = events.chunk(0) if events.num_chunks == 1 else events.combine_chunks()
    names = events.dictionary.to_pylist()
    known = {name: code for code, name in enumerate(CODE_NAMES)} | {"violation": SKIPPED}
    codes = np.array([known.get(name, SKIPPED) for name in names], np.int32)
    lines[CODE] = codes[events.indices.to_numpy(zero_copy_only=False)]
    unknown = sorted({str(name)[:50] for name in names if name not in known})
    if unknown:
        parts.append(Damage("event", f"records of unknown kinds: {', '.join(unknown)}", where))
    for place, name in enumerate(LINE_NAMES, CODE + 1):
        lines[place] = _column(table, name, np.int32)
    for name, (code, line) in OWN.items():
        rows = np.flatnonzero(lines[CODE] == code)
        if rows.size:
            lines[line, rows] = _column(table, name, np.int32)[rows]
    parts.append(Chunk(lines, _column(table, "sequence", np.int64).copy(), np.zeros(count, np.bool_)))
    return parts


def _extras(table: Any, chunk: Chunk) -> Named:
    """Names, tokens and remarks of a row group."""
    from draftproof.impl.traces.columns import record_at
    from draftproof.impl.traces.format import with_extras

    valid = np.zeros(chunk.num_records, np.bool_)
    for name in EXTRA_COLUMNS:
        valid |= table.column(name).combine_chunks().is_valid().to_numpy(zero_copy_only=False)
    records: list[tuple[int, RequestRecord]] = []
    remarked = np.flatnonzero(chunk.lines[CODE] == SKIPPED).tolist()
    for row in np.flatnonzero(valid & (chunk.lines[CODE] != SKIPPED)).tolist():
        values = {name: table.column(name)[row].as_py() for name in EXTRA_COLUMNS if name != "sentence"}
        records.append((row, with_extras(record_at(chunk, row), values)))
    return Named(records, _remarks(table, chunk, remarked), None)


def _remarks(table: Any, chunk: Chunk, rows: list[int]) -> list[tuple[int, Violation]]:
    """What a live checker remarked in these rows."""
    found = []
    for row in rows:
        sentence = table.column("sentence")[row].as_py()
        remark = Violation(
            sequence=int(chunk.sequences[row]),
            step=max(int(chunk.lines[STEP, row]), 0),
            request=max(int(chunk.lines[REQUEST_NUMBER, row]), 0),
            sentence=str(sentence)[:4096],
        )
        found.append((row, remark))
    return found


def _first(problem: BaseException) -> str:
    return (str(problem) or type(problem).__name__).partition("\n")[0][:200]


# ---- writing ----


class ParquetWriter:
    """A Parquet trace being written, chunk by chunk."""

    def __init__(self, path: str | Path, header: Header) -> None:
        """Raises TraceError if the file exists or cannot be written."""
        pq = require("pyarrow.parquet")
        self.path, self.header = Path(path), header
        try:
            self._file = open(path, "xb")  # noqa: SIM115 - kept open
        except FileExistsError:
            raise TraceError(f"{path} exists already: a trace is never written over another file") from None
        except OSError as problem:
            raise TraceError(f"{path} cannot be written: {problem.strerror}") from None
        self._writer = pq.ParquetWriter(
            self._file,
            schema(),
            compression="zstd",
            compression_level=1,
            write_page_checksum=True,
            write_statistics=["sequence", "request", "step"],
        )
        self._tables: list[Any] = []
        self._num_held = 0
        self.num_records = 0

    def write(self, chunk: Chunk, named: Named | None = None) -> None:
        """Records about requests, and a live checker's remarks."""
        table = _table(chunk, named)
        self._tables.append(table)
        self._num_held += table.num_rows
        self.num_records += table.num_rows
        if self._num_held >= GROUP_ROWS:
            self._flush(self._num_held // GROUP_ROWS * GROUP_ROWS)

    def _flush(self, count: int) -> None:
        pa = require("pyarrow")
        held = pa.concat_tables(self._tables).unify_dictionaries()
        self._writer.write_table(held.slice(0, count), row_group_size=GROUP_ROWS)
        rest = held.slice(count)
        self._tables, self._num_held = ([rest] if rest.num_rows else []), rest.num_rows

    def close(self, sequence: int, *, ended: bool = True) -> None:
        """Write what is held, and the end if the trace has one."""
        if self._num_held:
            self._flush(self._num_held)
        header = encode(self.header).strip()
        end = encode(End(sequence=sequence, num_records=self.num_records)).strip() if ended else b""
        size = str(self._file.tell()).encode()
        metadata = {HEADER_KEY: header, SIZE_KEY: size}
        metadata[CRC_KEY] = str(zlib.crc32(header + end + size)).encode()
        if ended:
            metadata[END_KEY] = end
        self._writer.add_key_value_metadata(metadata)
        self._writer.close()
        self._file.close()

    def discard(self) -> None:
        """Leave no file."""
        self._writer.close()
        self._file.close()
        self.path.unlink(missing_ok=True)


def _table(chunk: Chunk, named: Named | None) -> Any:
    pa = require("pyarrow")
    lines, codes = chunk.lines, chunk.lines[CODE].astype(np.int8)
    count = chunk.num_records
    extra: dict[str, list[Any]] = {name: [None] * count for name in EXTRA_COLUMNS}
    keep = codes >= 0
    if named is not None:
        for row, record in named.records:
            for name in ("id", "token_ids", "token_hashes"):
                extra[name][row] = getattr(record, name, None) or None
        for row, remark in named.remarks:
            codes[row], keep[row], extra["sentence"][row] = len(CODE_NAMES), True, remark.sentence
            lines[1:, row] = ABSENT
            lines[REQUEST_NUMBER, row], lines[STEP, row] = remark.request, remark.step
    own = {}
    shared = {name: lines[place] for place, name in enumerate(LINE_NAMES, CODE + 1)}
    for name, (code, line) in OWN.items():
        own[name] = np.where(codes == code, lines[line], ABSENT).astype(np.int32)
    leaves = (codes == REQUEST) | (codes == EXIT)
    for name, line in (("num_hit_tokens", PROMPT), ("num_new_tokens", LOOK_UP)):
        shared[name] = np.where(leaves, ABSENT, lines[line]).astype(np.int32)
    columns = [
        pa.DictionaryArray.from_arrays(pa.array(codes[keep]), pa.array(EVENT_DICTIONARY)),
        pa.array(chunk.sequences[keep]),
        *(pa.array(values[keep]) for values in (*shared.values(), *own.values())),
    ]
    kinds = schema()
    for name in EXTRA_COLUMNS:
        values = extra[name] if keep.all() else [extra[name][row] for row in np.flatnonzero(keep)]
        columns.append(pa.array(values, kinds.field(name).type))
    return pa.Table.from_arrays(columns, schema=kinds)

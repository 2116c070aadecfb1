"""How does an engine write a trace? It says what happened, a call for each event; ten lines in any engine.

```python
with TraceWriter("run.ndjson", header(engine="mine", num_speculative_tokens=3, block_size=16)) as trace:
    number = trace.request("request-7", num_prompt_tokens=48, step=0)
    trace.emit("admit", number, step=0, num_hit_tokens=0)
    trace.emit("schedule", number, step=0, num_new_tokens=48)
    trace.emit("output", number, step=1, num_returned=48, num_drafts=0, num_accepted=0, num_kept=1,
               stopped=0, after={"num_tokens": 49, "num_computed_tokens": 48})
```

Records are collected and written in blocks, each with a checksum, by a thread of its own: an engine's step is
not held up by a disk. A full disk does not stop an engine either: it is said once, and recording ends. With
`emit_rows` an engine that has its events as arrays hands over a whole step at once.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import queue
import secrets
import threading
import time
import warnings
from array import array
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from draftproof.impl.traces.columns import (
    CODE,
    FIRST_ARGUMENT,
    FIRST_COUNTER,
    INDEX,
    NUM_LINES,
    REQUEST_NUMBER,
    STEP,
)
from draftproof.impl.traces.files import ChecksummedFile, part_path
from draftproof.impl.traces.format import (
    ABSENT,
    ARGUMENTS,
    COUNTERS,
    EVENT_NAMES,
    EVENT_STRUCTS,
    LARGEST_COUNT,
    MAX_TEXT,
    NO_TOKENS,
    SCHEMA,
    TOKEN_HASHES,
    TOKEN_IDS,
    After,
    Checksum,
    Continued,
    End,
    Exit,
    Header,
    Record,
    Request,
    TraceError,
    Violation,
    encode,
)
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS
from draftproof.spec.ledger import STATUS_NAMES

NUM_ROWS = 4096
"""Records in a block, at most."""
NUM_TOKENS = 2**19
"""Tokens, or their hashes, in a block, but for those of its last record."""
SECONDS = 1.0
"""A block is written after this time at the latest, once another record comes."""
_PLACES = {name: FIRST_ARGUMENT + place for place, name in enumerate(ARGUMENTS)}
_COUNTER_PLACES = {name: FIRST_COUNTER + place for place, name in enumerate(COUNTERS)}
_FIELDS = {name: frozenset(event._fields) for name, event in EVENTS.items()}
_CODES = {name: code for code, name in enumerate(EVENT_NAMES)}
_STATUS_NUMBERS = {name: number for number, name in enumerate(STATUS_NAMES)}
_EMPTY_ROW = [ABSENT] * NUM_LINES


def header(*, engine: str, num_speculative_tokens: int, block_size: int, **more: Any) -> Header:
    """A trace's header, with the time and a name of its own. See `format.Header` for the fields."""
    fields: dict[str, Any] = {
        "asynchronous": False,
        "checksums": True,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "trace": secrets.token_hex(8),
    }
    return Header(
        schema=SCHEMA,
        engine=engine,
        num_speculative_tokens=num_speculative_tokens,
        block_size=block_size,
        **(fields | more),
    )


class TokenHashes:
    """Hashes in place of tokens: each is of all tokens up to it, under a salt that is nowhere written down.

    Equal beginnings have equal hashes within one recording, or between recordings that are given the same
    salt, so that `draftproof diff` finds where two texts part. Single tokens cannot be guessed from them.
    """

    def __init__(self, salt: bytes | None = None) -> None:
        self._salt = secrets.token_bytes(16) if salt is None else salt
        self._last: dict[int, bytes] = {}

    def of(self, request: int, token_ids: Iterable[int], *, starts: bool = False) -> list[str]:
        """The hashes of further tokens of a request."""
        last = b"" if starts else self._last.get(request, b"")
        found = []
        for token_id in token_ids:
            data = last + int(token_id).to_bytes(8, "little", signed=True)
            last = hashlib.blake2b(data, key=self._salt, digest_size=8).digest()
            found.append(last.hex())
        self._last[request] = last
        return found

    def forget(self, request: int) -> None:
        """No more tokens of it will come."""
        self._last.pop(request, None)


class TraceWriter:
    """A trace being written. Not for several threads at once."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: Header,
        *,
        max_bytes: int | None = None,
        compress: bool | None = None,
        in_background: bool = True,
        salt: bytes | None = None,
    ) -> None:
        """Begin a trace at a path: it must not exist yet. `.zst` compresses, as does `compress`.

        A file that has `max_bytes` or more (at most a block more) is closed and the trace goes on in the next
        one, `run.1.ndjson` after `run.ndjson`. Raises TraceError for a path that cannot be written.
        """
        from draftproof.impl.traces.compiled import format_rows, number_rows

        self.path = Path(path)
        self.header = header
        self.failed = ""
        """Why nothing more is recorded; empty while all is well."""
        self._compress = compress
        self._max_bytes = max_bytes
        self._hashes = TokenHashes(salt) if header.tokens == TOKEN_HASHES else None
        self._format, self._number = format_rows(), number_rows()
        self._rows = array("i")
        self._lines: list[tuple[int, Record]] = []
        """Records that are no rows, each before the row with this place."""
        self._next_index = np.ones(1024, np.int32)
        self._num_requests = 0
        self._num_tokens = 0
        self._sequence = header.sequence
        self._num_records = 0
        self._part = header.part
        self._begun = time.monotonic()
        self._closed = False
        self._file = ChecksummedFile(self.path, header, compress)
        self._blocks: queue.Queue[tuple[Any, ...] | None] = queue.Queue(maxsize=16)
        self._thread: threading.Thread | None = None
        if in_background:
            self._thread = threading.Thread(target=self._run, name="draftproof trace", daemon=True)
            self._thread.start()

    # ---- what an engine calls ----

    def request(
        self, id: str, num_prompt_tokens: int, *, step: int, token_ids: Sequence[int] | None = None
    ) -> int:
        """A request has arrived; returns its number in the trace. Ids and tokens are kept as the header says:
        no tokens unless it has `tokens`, and with hashes the id is hashed, too."""
        number = self._num_requests
        self._num_requests += 1
        if number == self._next_index.shape[0]:
            self._next_index = np.concatenate([self._next_index, np.ones(number, np.int32)])
        kept, hashed = self._tokens(number, token_ids, starts=True)
        if self._hashes is not None:
            id = hashlib.blake2b(id.encode(), key=self._hashes._salt, digest_size=8).hexdigest()
        self._line(
            Request(
                sequence=self._sequence,
                step=step,
                request=number,
                id=id[:MAX_TEXT],
                num_prompt_tokens=num_prompt_tokens,
                token_ids=kept,
                token_hashes=hashed,
            )
        )
        return number

    def emit(
        self,
        event: str,
        request: int,
        *,
        step: int,
        after: Mapping[str, int | str | None] | None = None,
        token_ids: Sequence[int] | None = None,
        **arguments: int,
    ) -> None:
        """An event of `draftproof.spec.events`, with its integers by name, and the engine's own counters
        after it. Raises TraceError for what is no event of that form; nothing has been written then."""
        fields = _FIELDS.get(event)
        if fields is None:
            raise TraceError(f"{event!r} is no event; the events are {', '.join(EVENT_NAMES)}")
        if arguments.keys() != fields:
            raise TraceError(f"the integers of {event} are {sorted(fields)}, got {sorted(arguments)}")
        row = _EMPTY_ROW.copy()
        row[CODE], row[REQUEST_NUMBER], row[STEP] = _CODES[event], request, step
        for name, value in arguments.items():
            row[_PLACES[name]] = value
        if after is not None:
            for name, counter in after.items():
                if counter is not None:
                    if name not in _COUNTER_PLACES:
                        raise TraceError(f"{name!r} is no counter; the counters are {', '.join(COUNTERS)}")
                    is_name = isinstance(counter, str)
                    row[_COUNTER_PLACES[name]] = _status(counter) if is_name else counter  # type: ignore[assignment, arg-type]
        self._check(request, row)
        if token_ids is not None and self.header.tokens != NO_TOKENS and event in (
            "output", "stale_output", "fold"
        ):  # fmt: skip
            self._with_tokens(event, request, row, token_ids)
            return
        row[INDEX] = int(self._next_index[request])
        self._next_index[request] += 1
        self._rows.extend(row)
        self._advance(1)

    def emit_rows(self, rows: Any) -> None:
        """Many events at once, in their order: int32[n, NUM_LINES], the lines of
        `draftproof.impl.traces.columns`, ABSENT for what there is not. The index is filled in here."""
        rows = np.array(rows, np.int32, order="C", ndmin=2)
        if rows.ndim != 2 or rows.shape[1] != NUM_LINES:
            raise TraceError(f"rows have {NUM_LINES} columns, got {rows.shape}")
        if rows.shape[0] == 0:
            return
        wrong = self._number(rows, self._next_index, self._num_requests)
        if wrong >= 0:
            raise TraceError(
                f"row {wrong} has a code or a status that is none, or a request that is not known"
            )
        self._rows.frombytes(rows.tobytes())
        self._advance(rows.shape[0])

    def exit(
        self, request: int, *, step: int, num_registered_tokens: int, look_up: int | None = None
    ) -> None:
        """After a finish, abort, preemption or end of turn: the tokens of the request that are registered,
        and, where nothing was evicted since, how many a request with the same tokens would hit."""
        self._line(
            Exit(
                sequence=self._sequence,
                step=step,
                request=request,
                index=int(self._next_index[request]),
                num_registered_tokens=num_registered_tokens,
                look_up=look_up,
            )
        )
        self._next_index[request] += 1

    def violation(self, request: int, *, step: int, sentence: str) -> None:
        """A remark of a live checker."""
        self._line(Violation(sequence=self._sequence, step=step, request=request, sentence=sentence[:4096]))

    def flush(self) -> None:
        """Everything so far reaches the file. Raises TraceError if that has failed, now or before."""
        self._hand_over()
        if self._thread is not None:
            self._blocks.join()
        if self.failed:
            raise TraceError(self.failed)

    def close(self) -> None:
        """Write the `end` record and close the file. Raises TraceError as `flush` does."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
            self._file.write(encode(End(sequence=self._sequence, num_records=self._num_records)))
        except OSError as problem:
            self._give_up(problem)
        finally:
            if self._thread is not None:
                self._blocks.put(None)
                self._thread.join()
            try:
                self._file.close()
            except OSError as problem:
                self._give_up(problem)
        if self.failed:
            raise TraceError(self.failed)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- collecting ----

    def _check(self, request: int, row: list[int]) -> None:
        if not 0 <= request < self._num_requests:
            raise TraceError(f"request {request} is not known: call `request` first, it returns the number")
        for value in row:
            if not isinstance(value, int | np.integer) or not ABSENT <= value <= LARGEST_COUNT:
                raise TraceError(f"{value!r} is no integer of 32 bits")

    def _tokens(
        self, request: int, token_ids: Sequence[int] | None, starts: bool = False
    ) -> tuple[list[int] | None, list[str] | None]:
        """What of the tokens is recorded: themselves, or their hashes."""
        if token_ids is None or self.header.tokens == NO_TOKENS:
            return None, None
        if self.header.tokens == TOKEN_IDS:
            return [int(token_id) for token_id in token_ids], None
        assert self._hashes is not None
        return None, self._hashes.of(request, token_ids, starts=starts)

    def _with_tokens(self, event: str, request: int, row: list[int], token_ids: Sequence[int]) -> None:
        kept, hashed = self._tokens(request, token_ids)
        fields: dict[str, Any] = {
            name: bool(row[_PLACES[name]]) if name in BOOLEAN_ARGUMENTS else row[_PLACES[name]]
            for name in EVENTS[event]._fields
        }
        counters: dict[str, Any] = {
            name: row[place] for name, place in _COUNTER_PLACES.items() if row[place] != ABSENT
        }
        if "status" in counters:
            counters["status"] = STATUS_NAMES[counters["status"]]
        struct: Any = EVENT_STRUCTS[event]
        self._line(
            struct(
                sequence=self._sequence,
                step=row[STEP],
                request=request,
                index=int(self._next_index[request]),
                after=After(**counters) if counters else None,
                token_ids=kept,
                token_hashes=hashed,
                **fields,
            )
        )
        self._next_index[request] += 1

    def _line(self, record: Record) -> None:
        """A record that is no row, behind all rows so far."""
        self._lines.append((len(self._rows) // NUM_LINES, record))
        for name in ("token_ids", "token_hashes"):
            self._num_tokens += len(getattr(record, name, None) or ())
        self._advance(1)

    def _advance(self, num_records: int) -> None:
        self._sequence += num_records
        num_collected = len(self._rows) // NUM_LINES + len(self._lines)
        is_full = num_collected >= NUM_ROWS or self._num_tokens >= NUM_TOKENS
        if is_full or (num_collected & 63 == 0 and time.monotonic() - self._begun > SECONDS):
            self._hand_over()

    def _hand_over(self) -> None:
        """What was collected becomes a block to write."""
        rows, lines = self._rows, self._lines
        num_records = len(rows) // NUM_LINES + len(lines)
        self._rows, self._lines, self._begun = array("i"), [], time.monotonic()
        self._num_tokens = 0
        if num_records == 0 or self.failed:
            return
        block = (rows, lines, self._sequence - num_records, self._sequence)
        if self._thread is None:
            self._write_block(*block)
        else:
            self._blocks.put(block)

    # ---- writing ----

    def _run(self) -> None:
        while (block := self._blocks.get()) is not None:
            try:
                if not self.failed:
                    self._write_block(*block)
            finally:
                self._blocks.task_done()
        self._blocks.task_done()

    def _write_block(self, rows: array[int], lines: list[tuple[int, Record]], first: int, end: int) -> None:
        try:
            if self._max_bytes is not None and self._file.num_bytes >= self._max_bytes:
                self._next_part(first)
            self._file.write(_text_of(rows, lines, first, self._format))
            self._num_records += end - first
            self._file.write_checksum(Checksum(crc32=self._file.crc32, sequence=end))
        except (OSError, TraceError) as problem:
            self._give_up(problem)

    def _next_part(self, sequence: int) -> None:
        self._file.write(encode(Continued(sequence=sequence, num_records=self._num_records)))
        self._file.close()
        self._part += 1
        self._num_records = 0
        header = msgspec.structs.replace(self.header, part=self._part, sequence=sequence)
        self._file = ChecksummedFile(part_path(self.path, self._part), header, self._compress)

    def _give_up(self, problem: OSError | TraceError) -> None:
        if not self.failed:
            reason = getattr(problem, "strerror", None) or problem
            self.failed = f"{self.path} could not be written any further: {reason}"
            warnings.warn(f"recording ended: {self.failed}", RuntimeWarning, stacklevel=2)


def engine_version(distribution: str) -> str:
    """The installed version of an engine; empty if it is not installed as such."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _status(name: str) -> int:
    number = _STATUS_NUMBERS.get(name)
    if number is None:
        raise TraceError(f"{name!r} is no status; they are {', '.join(STATUS_NAMES)}")
    return number


def _text_of(rows: array[int], lines: list[tuple[int, Record]], first: int, format_rows: Any) -> bytes:
    """Rows and other records as lines, each in its place; `first` is the first one's sequence."""
    from draftproof.impl.traces.text import MAX_ROW_BYTES, PIECE_BYTES, PIECE_STARTS

    table = np.frombuffer(rows, np.int32).reshape(-1, NUM_LINES)
    places = np.array([place for place, _ in lines], np.int64)
    order = np.arange(table.shape[0], dtype=np.int64)
    sequences = first + order + np.searchsorted(places, order, side="right")
    out = np.empty(table.shape[0] * MAX_ROW_BYTES, np.uint8)
    ends = np.empty(table.shape[0], np.int64)
    length = format_rows(table, sequences, PIECE_BYTES, PIECE_STARTS, out, ends)
    if not lines:
        return out[:length].tobytes()
    parts, begin = [], 0
    for place, record in lines:
        end = int(ends[place - 1]) if place else 0
        parts += [out[begin:end].tobytes(), encode(record)]
        begin = end
    return b"".join([*parts, out[begin:length].tobytes()])

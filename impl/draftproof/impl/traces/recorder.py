"""How does an engine write a trace? It says what happened, a call for each event; ten lines in any engine.

```python
with TraceWriter("run.ndjson", header(engine="mine", num_speculative_tokens=3, block_size=16)) as trace:
    number = trace.request("request-7", num_prompt_tokens=48, step=0)
    trace.emit("admit", number, step=0, num_hit_tokens=0)
    trace.emit("schedule", number, step=0, num_new_tokens=48)
    trace.emit("output", number, step=1, num_returned=48, num_drafts=0, num_accepted=0, num_kept=1,
               stopped=0, after={"num_tokens": 49, "num_computed_tokens": 48})
```

Records are collected and written in blocks, each with a checksum, by a thread of its own (`trace_output`): an
engine's step is not held up by a disk, and what was told is in the file a second later, even if the engine is
killed then. A full disk does not stop an engine: it is said once, and recording ends. With `emit_rows` an
engine that has its events as arrays hands over a whole step at once.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import secrets
import struct
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from draftproof.impl.traces import trace_output
from draftproof.impl.traces.collected import Block
from draftproof.impl.traces.columns import (
    CODE,
    FIRST_ARGUMENT,
    FIRST_COUNTER,
    INDEX,
    NUM_LINES,
    REQUEST_NUMBER,
    STEP,
)
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
    Exit,
    Header,
    Record,
    Request,
    TraceError,
    Violation,
)
from draftproof.impl.traces.token_hashes import TokenHashes
from draftproof.impl.traces.trace_output import TraceOutput
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS
from draftproof.spec.ledger import STATUS_NAMES

NUM_TOKENS = 2**19
"""Tokens, or their hashes, in a block, but for those of its last record."""
_PLACES = {name: FIRST_ARGUMENT + place for place, name in enumerate(ARGUMENTS)}
_COUNTER_PLACES = {name: FIRST_COUNTER + place for place, name in enumerate(COUNTERS)}
_FIELDS = {name: frozenset(event._fields) for name, event in EVENTS.items()}
_CODES = {name: code for code, name in enumerate(EVENT_NAMES)}
_STATUS_NUMBERS = {name: number for number, name in enumerate(STATUS_NAMES)}
_EMPTY_ROW = [ABSENT] * NUM_LINES
_INT32 = np.dtype(np.int32)
_ROW = struct.Struct(f"={NUM_LINES}i")

__all__ = ("TokenHashes", "TraceWriter", "engine_version", "header")


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
        one, `run.1.ndjson` after `run.ndjson`. Without a thread `in_background` what was collected is written
        only when another record comes. Raises TraceError for a path that cannot be written.
        """
        from draftproof.impl.traces.compiled import take_in

        self.path = Path(path)
        self.header = header
        self._hashes = TokenHashes(salt) if header.tokens == TOKEN_HASHES else None
        self._take_in = take_in()
        self._output = TraceOutput(
            self.path, header, max_bytes=max_bytes, compress=compress, in_background=in_background
        )
        self._block = self._output.block
        self._flushed = None if in_background else time.monotonic()
        """When all was written last; None where a thread sees to that."""
        self._next_index = np.ones(1024, np.int32)
        self._num_requests = 0
        self._num_tokens = 0
        """In records that wait in this block."""
        self._sequence = header.sequence
        self._closed = False

    @property
    def failed(self) -> str:
        """Why nothing more is recorded; empty while all is well."""
        return self._output.failed

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
            id = self._hashes.of_name(id)
        self._line(
            Request(
                sequence=self._sequence,
                step=int(step),  # numpy's integers are none in JSON
                request=number,
                id=id[:MAX_TEXT],
                num_prompt_tokens=int(num_prompt_tokens),
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
        block = self._room(1)
        _ROW.pack_into(block.rows, block.num_rows * _ROW.size, *row)
        block.num_rows += 1
        self._advance(1)

    def emit_rows(self, rows: Any) -> None:
        """Many events at once, in their order: int32[n, NUM_LINES], the lines of
        `draftproof.impl.traces.columns`, ABSENT for what there is not. The index is filled in here."""
        if type(rows) is not np.ndarray or rows.dtype != _INT32 or rows.ndim != 2 or not rows.flags.carray:
            rows = np.array(rows, np.int32, order="C", ndmin=2)
        count, num_lines = rows.shape
        if num_lines != NUM_LINES:
            raise TraceError(f"rows have {NUM_LINES} columns, got {rows.shape}")
        if count == 0:
            return
        block = self._room(count)
        wrong = self._take_in(rows, self._next_index, self._num_requests, block.rows, block.num_rows)
        if wrong >= 0:
            raise TraceError(
                f"row {wrong} has a code or a status that is none, or a request that is not known"
            )
        block.num_rows += count
        self._advance(count)

    def exit(
        self, request: int, *, step: int, num_registered_tokens: int, look_up: int | None = None
    ) -> None:
        """After a finish, abort, preemption or end of turn: the tokens of the request that are registered,
        and, where nothing was evicted since, how many a request with the same tokens would hit."""
        self._check(request, [step, num_registered_tokens])
        self._line(
            Exit(
                sequence=self._sequence,
                step=int(step),
                request=int(request),
                index=int(self._next_index[request]),
                num_registered_tokens=int(num_registered_tokens),
                look_up=None if look_up is None else int(look_up),
            )
        )
        self._next_index[request] += 1

    def violation(self, request: int, *, step: int, sentence: str) -> None:
        """A remark of a live checker."""
        self._line(
            Violation(sequence=self._sequence, step=int(step), request=int(request), sentence=sentence[:4096])
        )

    def flush(self) -> None:
        """Everything so far reaches the file. Raises TraceError if that has failed, now or before."""
        self._output.flush()

    def close(self) -> None:
        """Write the `end` record and close the file. Raises TraceError as `flush` does."""
        if not self._closed:
            self._closed = True
            self._output.close()

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

    def _check(self, request: int, values: Sequence[int]) -> None:
        if not 0 <= request < self._num_requests:
            raise TraceError(f"request {request} is not known: call `request` first, it returns the number")
        for value in values:
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
            name: bool(row[_PLACES[name]]) if name in BOOLEAN_ARGUMENTS else int(row[_PLACES[name]])
            for name in EVENTS[event]._fields
        }
        counters: dict[str, Any] = {
            name: int(row[place]) for name, place in _COUNTER_PLACES.items() if row[place] != ABSENT
        }
        if "status" in counters:
            counters["status"] = STATUS_NAMES[counters["status"]]
        kind: Any = EVENT_STRUCTS[event]
        self._line(
            kind(
                sequence=self._sequence,
                step=int(row[STEP]),
                request=int(request),
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
        block = self._room(0)
        block.lines.append((block.num_rows, record))
        for name in ("token_ids", "token_hashes"):
            self._num_tokens += len(getattr(record, name, None) or ())
        self._advance(1)

    def _room(self, num_rows: int) -> Block:
        """A block with room for so many rows."""
        if not self._block.has_room(num_rows) or self._num_tokens >= NUM_TOKENS:
            self._block, self._num_tokens = self._output.next_block(num_rows), 0
        return self._block

    def _advance(self, num_records: int) -> None:
        self._sequence += num_records
        if self._flushed is not None and time.monotonic() - self._flushed > trace_output.SECONDS:
            self._output.write_out(everything=True)
            self._flushed = time.monotonic()


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

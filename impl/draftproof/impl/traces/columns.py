"""How do many records lie in memory? As columns, so that compiled code reads and judges them.

A `Chunk` holds consecutive records about requests: int32[NUM_LINES, n], one line per field, and their places
in the trace, int64[n]. `ABSENT` is what an engine does not tell or an event does not have. Booleans are 0 and
1, a status is its place in `STATUS_NAMES`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from draftproof.impl.traces.format import (
    ABSENT,
    ARGUMENTS,
    CODE_NAMES,
    COUNTERS,
    EVENT_NAMES,
    EVENT_STRUCTS,
    EXIT,
    REQUEST,
    After,
    Exit,
    Request,
    RequestRecord,
)
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS, Event
from draftproof.spec.ledger import STATUS_NAMES

CODE, REQUEST_NUMBER, INDEX, STEP = range(4)
FIRST_ARGUMENT = 4
FIRST_COUNTER = FIRST_ARGUMENT + len(ARGUMENTS)
NUM_LINES = FIRST_COUNTER + len(COUNTERS)
NUM_HIT_TOKENS, NUM_NEW_TOKENS, NUM_RETURNED, NUM_DRAFTS, NUM_ACCEPTED, NUM_KEPT, STOPPED, DROP, NUM_CHUNK = (
    range(FIRST_ARGUMENT, FIRST_COUNTER)
)
PROMPT, REGISTERED, LOOK_UP = NUM_HIT_TOKENS, NUM_HIT_TOKENS, NUM_NEW_TOKENS
"""Where the integers of `request` and `exit` records lie: they have none of the events' own."""
STATUS_LINE = FIRST_COUNTER + COUNTERS.index("status")
COLUMN_NAMES = ("event", "request", "index", "step", *ARGUMENTS, *(f"after_{name}" for name in COUNTERS))
"""The lines' names, as the columns are called in Parquet."""
SKIPPED = -1
"""The code of a row that holds no record about a request."""


class Chunk(NamedTuple):
    """Consecutive records of one trace file."""

    lines: Any
    """int32[NUM_LINES, n]"""
    sequences: Any
    """int64[n]"""
    tainted: Any
    """bool[n]: a checksum over the record failed."""

    @property
    def num_records(self) -> int:
        """Rows, skipped ones included."""
        return int(self.sequences.shape[0])


def empty_chunk(num_records: int) -> Chunk:
    """Room for so many records; nothing of it is filled but the taint."""
    return Chunk(
        np.empty((NUM_LINES, num_records), np.int32),
        np.empty(num_records, np.int64),
        np.zeros(num_records, np.bool_),
    )


def put(chunk: Chunk, place: int, record: RequestRecord) -> None:
    """A record into its columns."""
    lines = chunk.lines
    lines[:, place] = ABSENT
    lines[REQUEST_NUMBER, place], lines[STEP, place] = record.request, record.step
    chunk.sequences[place] = record.sequence
    if isinstance(record, Request):
        lines[CODE, place], lines[INDEX, place] = REQUEST, 0
        lines[PROMPT, place] = record.num_prompt_tokens
        return
    lines[INDEX, place] = record.index  # type: ignore[attr-defined]
    if isinstance(record, Exit):
        lines[CODE, place], lines[REGISTERED, place] = EXIT, record.num_registered_tokens
        lines[LOOK_UP, place] = ABSENT if record.look_up is None else record.look_up
        return
    name: str = record.__struct_config__.tag  # type: ignore[assignment]
    lines[CODE, place] = EVENT_NAMES.index(name)
    for field in EVENTS[name]._fields:
        lines[FIRST_ARGUMENT + ARGUMENTS.index(field), place] = getattr(record, field)
    after: After | None = record.after  # type: ignore[attr-defined]
    if after is not None:
        for offset, counter in enumerate(COUNTERS):
            value = getattr(after, counter)
            if value is not None:
                value = STATUS_NAMES.index(value) if counter == "status" else value
                lines[FIRST_COUNTER + offset, place] = value


def event_at(chunk: Chunk, place: int) -> tuple[str, Event]:
    """The event in a row, with its name."""
    name = EVENT_NAMES[chunk.lines[CODE, place]]
    values: list[Any] = []
    for field in EVENTS[name]._fields:
        value = int(chunk.lines[FIRST_ARGUMENT + ARGUMENTS.index(field), place])
        values.append(value != 0 if field in BOOLEAN_ARGUMENTS else value)
    return name, EVENTS[name](*values)


def counters_at(chunk: Chunk, place: int) -> dict[str, int]:
    """What the engine told after the row's event; the status as its number."""
    return {
        name: int(chunk.lines[FIRST_COUNTER + offset, place])
        for offset, name in enumerate(COUNTERS)
        if chunk.lines[FIRST_COUNTER + offset, place] != ABSENT
    }


def record_at(chunk: Chunk, place: int) -> RequestRecord:
    """The row as a record again, without tokens and names."""
    lines = chunk.lines
    common: dict[str, Any] = {
        "sequence": int(chunk.sequences[place]),
        "step": int(lines[STEP, place]),
        "request": int(lines[REQUEST_NUMBER, place]),
    }
    code = int(lines[CODE, place])
    if code == REQUEST:
        return Request(**common, num_prompt_tokens=int(lines[PROMPT, place]))
    common["index"] = int(lines[INDEX, place])
    if code == EXIT:
        look_up = int(lines[LOOK_UP, place])
        return Exit(
            **common,
            num_registered_tokens=int(lines[REGISTERED, place]),
            look_up=None if look_up == ABSENT else look_up,
        )
    name, event = event_at(chunk, place)
    counters: dict[str, Any] = dict(counters_at(chunk, place))
    if "status" in counters:
        counters["status"] = STATUS_NAMES[counters["status"]]
    after = After(**counters) if counters else None
    struct: Any = EVENT_STRUCTS[name]
    return struct(**common, **event._asdict(), after=after)  # type: ignore[no-any-return]


def name_of(code: int) -> str:
    """The kind of record with this code."""
    return CODE_NAMES[code]

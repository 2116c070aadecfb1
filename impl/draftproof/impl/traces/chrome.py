"""How does a recording look in Perfetto? As Chrome's trace format: a row a request, a slice a step in flight.

A trace holds no clock, so a step is a millisecond. A slice begins where a step was scheduled and ends where
it returned; preemptions, ends of turns and the like are instants; the counters an engine tells are drawn.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

from draftproof.impl.traces.format import Header, Request, RequestRecord, TraceError
from draftproof.impl.traces.packing import parts_with_extras, records_of
from draftproof.impl.traces.reading import Damage, Named
from draftproof.impl.traces.sources import Source
from draftproof.impl.traces.timeline import event_text

MICROSECONDS = 1000
"""Of a step."""
DRAWN = ("num_tokens", "num_computed_tokens", "num_in_flight_tokens", "num_registered_tokens")


def export(source: Source, target: TextIO) -> int:
    """Write the recording as JSON; returns the number of entries. Raises TraceError for a damaged trace."""
    target.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    count = 0
    for entry in entries(source):
        target.write((",\n" if count else "") + json.dumps(entry, separators=(",", ":")))
        count += 1
    target.write("\n]}\n")
    return count


def entries(source: Source) -> Iterator[dict[str, Any]]:
    """The entries, in the trace's order."""
    flights: dict[int, deque[tuple[int, RequestRecord]]] = {}
    with ThreadPoolExecutor(1) as pool:
        named: Named | None = None
        for part in parts_with_extras(source, pool):
            if isinstance(part, Header):
                yield _metadata("process_name", 0, f"{part.engine} {part.engine_version}".strip())
            elif isinstance(part, Named):
                named = part
            elif isinstance(part, Damage):
                raise TraceError(f"{part.place}: {part.sentence}: only complete traces are exported")
            else:
                for record in records_of(part, named):
                    if isinstance(record, RequestRecord):
                        yield from _entries_of(record, flights)
                named = None


def _entries_of(
    record: RequestRecord, flights: dict[int, deque[tuple[int, RequestRecord]]]
) -> Iterator[dict[str, Any]]:
    name: Any = record.__struct_config__.tag
    request, time = record.request, record.step * MICROSECONDS
    common = {"pid": 0, "tid": request + 1}
    if isinstance(record, Request):
        yield _metadata("thread_name", request + 1, f"request {record.id or request}")
    if name == "schedule":
        flights.setdefault(request, deque()).append((time, record))
    elif name in ("output", "chunk_output", "stale_output"):
        waiting = flights.get(request)
        begin, dispatched = waiting.popleft() if waiting else (time, record)
        size: Any = getattr(dispatched, "num_new_tokens", 0)
        yield common | {
            "ph": "X",
            "name": f"{name} {size}",
            "cat": name,
            "ts": begin,
            "dur": max(time - begin, 0) + MICROSECONDS * 9 // 10,
            "args": {"scheduled": event_text(dispatched), "returned": event_text(record)},
        }
    else:
        yield common | {"ph": "i", "s": "t", "name": event_text(record), "cat": name, "ts": time}
    if name in ("finish", "abort"):
        flights.pop(request, None)
    after = getattr(record, "after", None)
    told = {} if after is None else {key: getattr(after, key) for key in DRAWN}
    told = {key: value for key, value in told.items() if value is not None}
    if told:
        yield {"ph": "C", "pid": 0, "name": f"request {request}", "ts": time, "args": told}


def _metadata(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": thread, "name": kind, "args": {"name": name}}

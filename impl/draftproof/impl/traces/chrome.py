"""How does a recording look in Perfetto? As Chrome's trace format: a group a request, a slice a step.

A trace holds no clock, so a step is a millisecond. A slice begins where a step was scheduled and ends where
it returned; preemptions, ends of turns and the like are instants; the counters an engine tells are drawn.
Slices of one row must lie in each other or apart, so a step that is dispatched while another is in flight has
a row of its own: each request is a process of the format, its rows are the process's threads.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, NamedTuple, TextIO

from draftproof.impl.traces.continuity import parts_of_one
from draftproof.impl.traces.format import Header, RequestRecord, TraceError
from draftproof.impl.traces.packing import records_of
from draftproof.impl.traces.parts import Damage, Named
from draftproof.impl.traces.sources import Source
from draftproof.impl.traces.timeline import event_text

MICROSECONDS = 1000
"""Of a step."""
SHOWN_MICROSECONDS = 900
"""Of a step's last millisecond: so that one slice is told from the next."""
RETURNS = ("output", "chunk_output", "stale_output")
DRAWN = ("num_tokens", "num_computed_tokens", "num_in_flight_tokens", "num_registered_tokens")
NEVER = 2**62
"""When a step in flight ends, as far as is known."""
Entry = dict[str, Any]


class Flight(NamedTuple):
    """A step that has not returned."""

    begin: int
    record: RequestRecord
    row: int


class Shown(NamedTuple):
    """A request while its records are read."""

    process: int
    flights: deque[Flight]
    threads: list[int]
    """By row; the first is that of the instants. A thread's number is its own in the whole export."""
    ends: list[int]
    """By row: when its last slice ends; NEVER while its step is in flight."""


def export(source: Source, target: TextIO) -> int:
    """Write the recording as JSON; returns the number of entries. Raises TraceError for a damaged trace, but
    one that only has no end is shown as far as it goes."""
    target.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    num_entries = 0
    for entry in entries(source):
        target.write((",\n" if num_entries else "") + json.dumps(entry, separators=(",", ":")))
        num_entries += 1
    target.write("\n]}\n")
    return num_entries


def entries(source: Source) -> Iterator[Entry]:
    """The entries, in the trace's order."""
    engine = ""
    shown: dict[int, Shown] = {}
    threads = count(1)
    with ThreadPoolExecutor(1) as pool:
        named: Named | None = None
        for part in parts_of_one(source, pool):
            if isinstance(part, Header):
                engine = f"{part.engine} {part.engine_version}".strip()
            elif isinstance(part, Named):
                named = part
            elif isinstance(part, Damage):
                if part.kind != "cut":
                    raise TraceError(f"{part.place}: {part.sentence}: only sound traces are exported")
            else:
                for record in records_of(part, named):
                    if isinstance(record, RequestRecord):
                        if record.request not in shown:
                            yield from _begun(record, shown, threads, engine)
                        yield from _entries_of(record, shown, threads)
                named = None
    for request in shown.values():
        for flight in request.flights:
            yield _slice(request, flight, None, flight.begin)  # it begins and does not end


def _begun(
    record: RequestRecord, shown: dict[int, Shown], threads: Iterator[int], engine: str
) -> Iterator[Entry]:
    """A request's process and its first row. No number is 0: Perfetto has its own meaning for that."""
    request = Shown(record.request + 1, deque(), [next(threads)], [NEVER])
    shown[record.request] = request
    name = f"request {getattr(record, 'id', '') or record.request}"
    yield _metadata("process_name", request, 0, {"name": name})
    yield _metadata("process_labels", request, 0, {"labels": engine})
    yield _metadata("process_sort_index", request, 0, {"sort_index": record.request})
    yield _metadata("thread_name", request, 0, {"name": "events"})


def _entries_of(record: RequestRecord, shown: dict[int, Shown], threads: Iterator[int]) -> Iterator[Entry]:
    name: Any = record.__struct_config__.tag
    request, time = shown[record.request], record.step * MICROSECONDS
    common = {"pid": request.process, "tid": request.threads[0]}
    if name == "schedule":
        yield from _dispatched(request, Flight(time, record, 0), threads)
    elif name in RETURNS and request.flights:
        flight = request.flights.popleft()
        entry = _slice(request, flight, record, time)
        request.ends[flight.row] = entry["ts"] + entry["dur"]
        yield entry
    else:
        yield common | {"ph": "i", "s": "t", "name": event_text(record), "cat": name, "ts": time}
    after = getattr(record, "after", None)
    told = {} if after is None else {key: getattr(after, key) for key in DRAWN}
    told = {key: value for key, value in told.items() if value is not None}
    if told:
        yield common | {"ph": "C", "name": "tokens", "ts": time, "args": told}


def _dispatched(request: Shown, flight: Flight, threads: Iterator[int]) -> Iterator[Entry]:
    """The first row in which the flight overlaps none; a new one gets a name."""
    free = [row for row, end in enumerate(request.ends) if end <= flight.begin]
    row = free[0] if free else len(request.ends)
    if not free:
        request.ends.append(NEVER)
        request.threads.append(next(threads))
        yield _metadata(
            "thread_name", request, row, {"name": "steps" if row == 1 else f"steps, {row} in flight"}
        )
    request.ends[row] = NEVER
    request.flights.append(flight._replace(row=row))


def _slice(request: Shown, flight: Flight, returned: RequestRecord | None, time: int) -> Entry:
    """A step from where it was dispatched to where it returned, if it did."""
    kind: Any = "not returned" if returned is None else returned.__struct_config__.tag
    size: Any = getattr(flight.record, "num_new_tokens", 0)
    duration = {"dur": max(time - flight.begin, 0) + SHOWN_MICROSECONDS}
    return {
        "pid": request.process,
        "tid": request.threads[flight.row],
        "ph": "B" if returned is None else "X",
        "name": f"{kind} {size}",
        "cat": kind,
        "ts": flight.begin,
        **({} if returned is None else duration),
        "args": {
            "scheduled": event_text(flight.record),
            "returned": "nothing" if returned is None else event_text(returned),
        },
    }


def _metadata(kind: str, request: Shown, row: int, arguments: dict[str, Any]) -> Entry:
    return {"ph": "M", "pid": request.process, "tid": request.threads[row], "name": kind, "args": arguments}

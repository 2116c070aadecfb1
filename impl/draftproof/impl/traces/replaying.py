"""What happened to one request, event by event? Interpreted: for a table, a page, or a smaller trace.

The same accounting and specification as in the compiled loop, but each record by itself, with the state on
both sides of it and, where it diverges, why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.contracts import plain
from draftproof.impl.traces import kernel
from draftproof.impl.traces.columns import (
    CODE,
    REQUEST_NUMBER,
    Chunk,
    counters_at,
    empty_chunk,
    event_at,
    put,
)
from draftproof.impl.traces.findings import Divergence, explained
from draftproof.impl.traces.format import (
    EVENT_NAMES,
    EXIT,
    REQUEST,
    Header,
    Request,
    RequestRecord,
    TraceError,
)
from draftproof.impl.traces.packing import parts_with_extras, records_of
from draftproof.impl.traces.reading import Damage, Named
from draftproof.impl.traces.sources import Source
from draftproof.spec import ghosts, guards
from draftproof.spec.ghosts import State, initial_state
from draftproof.spec.ledger import FINISHED, Ledger, Rules

MAX_RECORDS = 1_000_000
"""Of one request."""

EXIT_CODES = tuple(EVENT_NAMES.index(name) for name in ("preempt", "end_turn", "finish", "abort"))


class Happened(NamedTuple):
    """A record, and what it did."""

    record: RequestRecord
    before: State
    after: State
    """The accounting's; as before where the event may not come."""
    told: dict[str, int]
    divergence: Divergence | None


def rules_of(header: Header) -> Rules:
    """The rules that a trace was recorded under."""
    return Rules(
        num_speculative_tokens=header.num_speculative_tokens,
        block_size=header.block_size,
        asynchronous=header.asynchronous,
        registration_fence=header.registration_fence,
    )


def records_of_request(source: Source, name: str) -> tuple[Header, list[RequestRecord], list[str]]:
    """A request's records, by its id or its number, and what is damaged in the file. Raises TraceError if
    there is no such request."""
    found: list[RequestRecord] = []
    header: Header | None = None
    damages: list[str] = []
    number = -1
    with ThreadPoolExecutor(1) as pool:
        named: Named | None = None
        for part in parts_with_extras(source, pool):
            if isinstance(part, Header):
                header = header or part
            elif isinstance(part, Named):
                named = part
            elif isinstance(part, Damage):
                damages.append(f"{part.place}: {part.sentence}")
            else:
                if number < 0:
                    number = _number_of(part, named, name)
                if number >= 0:
                    found += _of_request(part, named, number)
                named = None
            if len(found) > MAX_RECORDS:
                raise TraceError(f"request {name} has more than {MAX_RECORDS} records")
    if header is None or not found:
        raise TraceError(f"no request {name!r} is in {source.paths[0]}: give its id, or its number")
    return header, found, damages


def _number_of(chunk: Chunk, named: Named | None, name: str) -> int:
    """The number of the request with this id, or this number if it begins here; -1 if it is not here."""
    for _, record in named.records if named is not None else ():
        if isinstance(record, Request) and record.id == name:
            return record.request
    if name.isdecimal() and int(name) < 2**31:
        begins = (chunk.lines[CODE] == REQUEST) & (chunk.lines[REQUEST_NUMBER] == int(name))
        if begins.any():
            return int(name)
    return -1


def _of_request(chunk: Chunk, named: Named | None, number: int) -> Iterator[Any]:
    rows = np.flatnonzero((chunk.lines[REQUEST_NUMBER] == number) & (chunk.lines[CODE] >= 0))
    extras = dict(named.records) if named is not None else {}
    part = Chunk(chunk.lines[:, rows], chunk.sequences[rows], chunk.tainted[rows])
    records: Iterable[Any] = records_of(part, None)
    for row, record in zip(rows.tolist(), records, strict=True):
        yield extras.get(row, record)


def replayed(records: Iterable[RequestRecord], rules: Rules) -> Iterator[Happened]:
    """Each record of one request, up to and with the first that diverges."""
    state: State | None = None
    last = REQUEST
    for record in records:
        if isinstance(record, Request):
            state = initial_state(record.num_prompt_tokens)
            yield Happened(record, state, state, {}, None)
            continue
        if state is None:
            raise TraceError("the request's beginning is not in the trace")
        happened = judged(record, state, last, rules)
        yield happened
        if happened.divergence is not None:
            return
        state = happened.after
        code = _code(record)
        last = last if code == EXIT else code


def judged(record: RequestRecord, before: State, last: int, rules: Rules) -> Happened:
    """One record of a request in this state; `last`: the code of the event before it."""
    chunk = empty_chunk(1)
    put(chunk, 0, record)
    words = np.array([*before.ledger, *before.ghosts], np.int64)
    if chunk.lines[CODE, 0] == EXIT:
        if last not in EXIT_CODES and before.ledger.status != FINISHED:
            raise TraceError(f"record {record.sequence} is an exit where no request leaves")
        table = words[None, :]
        if kernel.exit_agrees(rules, table, 0, chunk.lines, 0, last):
            return Happened(record, before, before, {}, None)
        return Happened(
            record, before, before, {}, _explained(kernel.EXIT_DIFFERS, last, words, chunk, rules)
        )
    name, event = event_at(chunk, 0)
    told = counters_at(chunk, 0)
    if not all(guards.conditions(name, before, rules, event).values()):
        divergence = _explained(kernel.NOT_ALLOWED, last, words, chunk, rules)
        return Happened(record, before, before, told, divergence)
    ledger = Ledger(*plain(TRANSITIONS[name])(before.ledger, rules, *event))
    after = State(ledger, getattr(ghosts, name)(before, rules, event))
    differs = any(getattr(ledger, counter) != value for counter, value in told.items())
    found = _explained(kernel.DIVERGED, last, words, chunk, rules) if differs else None
    return Happened(record, before, after, told, found)


def _explained(kind: int, last: int, words: Any, chunk: Chunk, rules: Rules) -> Divergence:
    return explained(chunk, np.array([kind, 0, 0, last, *words], np.int64), rules)


def _code(record: RequestRecord) -> int:
    name: Any = record.__struct_config__.tag
    return EXIT if name == "exit" else EVENT_NAMES.index(name)

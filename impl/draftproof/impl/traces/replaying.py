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
    INDEX,
    REQUEST_NUMBER,
    Chunk,
    counters_at,
    empty_chunk,
    event_at,
    put,
    record_at,
)
from draftproof.impl.traces.continuity import MASKS, parts_of_one
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
from draftproof.impl.traces.parts import Damage, Named
from draftproof.impl.traces.sources import Source
from draftproof.spec import ghosts, guards
from draftproof.spec.ghosts import State, initial_state
from draftproof.spec.ledger import FINISHED, Ledger, Rules

MAX_RECORDS = 1_000_000
"""Of one request."""

EXIT_CODES = tuple(EVENT_NAMES.index(name) for name in ("preempt", "end_turn", "finish", "abort"))
LAST_CODES = tuple(EVENT_NAMES.index(name) for name in ("finish", "abort"))


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


class _Gathered:
    """A request's records, up to the first that is missing, damaged or no record of its kind."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: list[RequestRecord] = []
        self.damage = ""
        self._has_left = self._may_exit = False

    def take(self, chunk: Chunk, named: Named | None) -> None:
        """Its records in a chunk. Raises TraceError if they are too many."""
        rows = np.flatnonzero((chunk.lines[REQUEST_NUMBER] == self.number) & (chunk.lines[CODE] >= 0))
        extras = dict(named.records) if named is not None else {}
        for row in rows.tolist():
            if self.damage:
                return
            index, code = int(chunk.lines[INDEX, row]), int(chunk.lines[CODE, row])
            if not kernel.is_well_formed(chunk.lines, MASKS, row):
                self._end("is none of its kind")
            elif chunk.tainted[row]:
                self._end("lies under no checksum that holds")
            elif index != len(self.records):
                self._end(f"should come next, {'a beginning' if index == 0 else f'record {index}'} does")
            elif code == EXIT and not self._may_exit:
                self._end("is an exit where no request leaves")
            else:
                self.records.append(extras[row] if row in extras else record_at(chunk, row))
                if code != EXIT:
                    self._has_left |= code in LAST_CODES
                    self._may_exit = self._has_left or code in EXIT_CODES
        if len(self.records) > MAX_RECORDS:
            raise TraceError(f"request {self.number} has more than {MAX_RECORDS} records")

    def _end(self, why: str) -> None:
        self.damage = f"request {self.number}: its record {len(self.records)} {why}; it ends here"


def records_of_request(source: Source, name: str | int) -> tuple[Header, list[RequestRecord], list[str]]:
    """A request's records, and what is damaged in the file; behind damage of its own a request has no more.

    A text is an id or, if no request has it, a number; an integer is a number. Raises TraceError if there is
    no such request, or more than one trace.
    """
    is_number = isinstance(name, int) or (name.isascii() and name.isdecimal() and len(name) <= 10)
    by_number = _Gathered(int(name) if is_number else -1)
    by_id: _Gathered | None = None
    header: Header | None = None
    damages: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        named: Named | None = None
        for part in parts_of_one(source, pool):
            if isinstance(part, Header):
                header = header or part
            elif isinstance(part, Named):
                named = part
            elif isinstance(part, Damage):
                damages.append(f"{part.place}: {part.sentence}")
            else:
                if by_id is None and isinstance(name, str):
                    by_id = _with_id(named, name)
                for gathered in (by_id, by_number):
                    if gathered is not None and gathered.number >= 0:
                        gathered.take(part, named)
                named = None
    found = by_number if by_id is None else by_id
    if found.damage and not found.records:
        raise TraceError(f"no request {name!r} can be shown: {found.damage}")
    if header is None or not found.records:
        raise TraceError(f"no request {name!r} is in {source.paths[0]}: give its id, or its number")
    return header, found.records, [*damages, found.damage] if found.damage else damages


def _with_id(named: Named | None, name: str) -> _Gathered | None:
    """The first request of a chunk that has this id."""
    for _, record in named.records if named is not None else ():
        if isinstance(record, Request) and record.id == name:
            return _Gathered(record.request)
    return None


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

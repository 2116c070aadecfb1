"""What is the least that shows it? A violating trace made smaller, event by event and number by number.

Only the first request that diverges is kept, up to where it does. Events are taken out, up to a later
admission or here and there, and numbers made smaller, as long as every event left may come where it comes,
and the last one breaks the same theorems and is of the same kind: a stop that trims tokens remains one. What
the engine told there is moved along: it stays on the same side of the accounting's counters as it was, as far
from them or nearer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from draftproof.impl.traces.files import ChecksummedFile
from draftproof.impl.traces.format import (
    COUNTERS,
    After,
    Checksum,
    End,
    Exit,
    Header,
    Indexed,
    Request,
    RequestRecord,
    TraceError,
    encode,
)
from draftproof.impl.traces.replaying import Happened, replayed, rules_of
from draftproof.spec.algebra import floor_to_block
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS
from draftproof.spec.ledger import STATUS_NAMES, Rules

Records = list[RequestRecord]
MAX_TRIES = 20_000
MAX_PAIRED = 64
"""In a trace with more records no two are left out at once."""


class _Shrinker:
    """The search: what must stay true, and how often it was asked."""

    def __init__(self, records: Records, rules: Rules) -> None:
        self.rules = rules
        self.num_tries = 0
        happened = list(replayed(records, rules))
        found = happened[-1].divergence
        if found is None:
            raise TraceError("the trace violates nothing: there is nothing to shrink")
        self.wanted, self.kind = found, _kind(happened[-1].record)
        self.errors = {
            name: int(value) - int(expected)
            if isinstance(value, int) and isinstance(expected, int)
            else 1  # a status: it stays the one that was told
            for name, (expected, value) in found.counters.items()
        }
        num_trimmed = _num_trimmed(happened[-1].record)
        self.trimmed = {name for name, error in self.errors.items() if error == num_trimmed > 0}
        """Counters that are wrong by what a stop cut off: they stay so."""
        last = len(happened) - 1
        self.records = [
            one.record
            for place, one in enumerate(happened)
            if place == last or not isinstance(one.record, Exit)
        ]

    @property
    def distance(self) -> int:
        """Between what the engine told at the end and the accounting."""
        return sum(map(abs, self.errors.values()))

    def tried(self, records: Sequence[RequestRecord]) -> Records | None:
        """The records as a trace of their own, if they show the same; else None."""
        self.num_tries += 1
        try:
            made = self._told_anew(records)
            if made is None:
                return None
            *_, end = replayed(made, self.rules)
        except (msgspec.ValidationError, TraceError):
            return None
        return made if end.record is made[-1] and self._is_wanted(end) else None

    def _told_anew(self, records: Sequence[RequestRecord]) -> Records | None:
        """The records with what the engine would tell; None if an event may not come where it comes."""
        silent = [_silent(record) for record in records]
        happened = list(replayed(silent[:-1], self.rules))
        if any(one.divergence is not None for one in happened):
            return None
        made = [
            self._telling(record, one, place, {})
            for place, (record, one) in enumerate(zip(records, happened, strict=False))
        ]
        before, place, record = happened[-1], len(made), records[-1]
        if isinstance(record, Exit):
            error = self.errors.get("num_registered_tokens", 0)
            registered = _registered(before) + error
            if registered < 0 <= record.num_registered_tokens:
                return None
            look_up = None
            if "look_up" in self.errors:
                findable = floor_to_block(before.after.ledger.num_tokens - 1, self.rules.block_size)
                look_up = max(min(_registered(before), findable) + self.errors["look_up"], 0)
            last = msgspec.structs.replace(
                record, sequence=place, index=place, num_registered_tokens=registered, look_up=look_up
            )
            return [*made, last]
        *_, one = replayed(silent, self.rules)
        errors = self.errors | dict.fromkeys(self.trimmed, _num_trimmed(record))
        return [*made, self._telling(record, one, place, errors)]

    def _is_wanted(self, one: Happened) -> bool:
        found = one.divergence
        if found is None:
            return False
        same = set(found.theorems) == set(self.wanted.theorems) and _kind(one.record) == self.kind
        return same and set(found.counters) == set(self.wanted.counters)

    def _telling(
        self, record: RequestRecord, one: Happened, place: int, errors: dict[str, int]
    ) -> RequestRecord:
        """The record with the counters that its engine would tell here."""
        record = _without_tokens(record)
        if isinstance(record, Request):
            return msgspec.structs.replace(record, sequence=place)
        fields: dict[str, Any] = {"sequence": place, "index": place}
        after: After | None = record.after  # type: ignore[attr-defined]
        if after is not None:
            fields["after"] = After(**_told(after, one, errors))
        return msgspec.structs.replace(record, **fields)


def _kind(record: RequestRecord) -> tuple[bool, ...]:
    """What smaller numbers may not change about the last event, or they would tell another story."""
    trims, stops = _num_trimmed(record) > 0, bool(getattr(record, "stopped", 0))
    return trims, stops, getattr(record, "num_chunk_tokens", 0) == 1


def _num_trimmed(record: RequestRecord) -> int:
    """How many tokens that a step brought were cut off again."""
    num_accepted = getattr(record, "num_accepted", None)
    return 0 if num_accepted is None else max(num_accepted + 1 - getattr(record, "num_kept", 0), 0)


def _registered(one: Happened) -> int:
    """What is registered after an exit."""
    name: Any = one.record.__struct_config__.tag
    ledger = one.after.ledger
    return ledger.num_registered_at_preemption if name == "preempt" else ledger.num_registered_tokens


def _told(after: After, one: Happened, errors: dict[str, int]) -> dict[str, Any]:
    """The counters told, as the accounting has them, or as far from it as the engine was."""
    told: dict[str, Any] = {}
    for name in COUNTERS:
        if getattr(after, name) is None:
            continue
        value = int(getattr(one.after.ledger, name))
        if name != "status":
            told[name] = value + errors.get(name, 0)
            if told[name] < 0 <= getattr(after, name):
                raise TraceError("a counter would become negative that was not")
        else:
            told[name] = after.status if name in errors else STATUS_NAMES[value]
    return told


def _without_tokens(record: RequestRecord) -> RequestRecord:
    fields = {name: None for name in ("token_ids", "token_hashes") if hasattr(record, name)}
    return msgspec.structs.replace(record, **fields) if fields else record


def _silent(record: RequestRecord) -> RequestRecord:
    """The record without what the engine tells, so that only the event is judged."""
    if isinstance(record, Request | Exit):
        return record
    return msgspec.structs.replace(record, after=None)


def shrink(records: Records, header: Header) -> Records:
    """The smallest trace found. Raises TraceError if the records violate nothing."""
    search = _Shrinker(records, rules_of(header))
    best = search.tried(search.records)
    if best is None:  # what the engine told cannot be told anew: leave it as it is
        return [_without_tokens(record) for record in search.records]
    while True:
        size = len(best), _sum(best), search.distance
        best = _nearer(best, search)
        best = _later(best, search)
        best = _fewer(best, search.tried, search)
        best = _without_steps(best, search.tried, search)
        best = _smaller(best, search.tried, search)
        best = _smaller_here(best, search.tried, search)
        if (len(best), _sum(best), search.distance) >= size or search.num_tries > MAX_TRIES:
            return best


def _nearer(best: Records, search: _Shrinker) -> Records:
    """Bring what the engine told nearer to the accounting's counters; what is registered by whole blocks."""
    for name, error in search.errors.items():
        if name in search.trimmed:
            continue
        unit = search.rules.block_size if name in ("num_registered_tokens", "look_up") else 1
        for nearer in dict.fromkeys((unit, abs(error) // 2 // unit * unit)):
            if not 0 < nearer < abs(error):
                continue
            search.errors[name] = nearer if error > 0 else -nearer
            made = search.tried(best)
            if made is not None:
                best = made
                break
            search.errors[name] = error
    return best


def _later(best: Records, search: _Shrinker) -> Records:
    """Begin at a later admission, with what was known there as the prompt."""
    first = best[0]
    known = [one.before.ledger.num_tokens for one in replayed(map(_silent, best), search.rules)]
    for place in range(len(best) - 1, 1, -1):
        if best[place].__struct_config__.tag != "admit" or not isinstance(first, Request):
            continue
        made = search.tried(
            [msgspec.structs.replace(first, num_prompt_tokens=int(known[place])), *best[place:]]
        )
        if made is not None:
            return made
    return best


def _fewer(best: Records, tried: Callable[[Records], Records | None], search: _Shrinker) -> Records:
    """Leave out runs of events, long ones first; the first and the last stay."""
    length = max(1, (len(best) - 2) // 2)
    while length >= 1:
        place = 1
        while place + length < len(best) and search.num_tries <= MAX_TRIES:
            rest = [*best[:place], *best[place + length :]]
            made = tried(rest) or tried(_with_less_prompt(rest, best[place : place + length]))
            if made is not None:
                best = made
            else:
                place += 1 if length <= 4 else length // 2
        length //= 2
    return best


def _without_steps(best: Records, tried: Callable[[Records], Records | None], search: _Shrinker) -> Records:
    """Leave out two events that belong together and have others between them, such as a step's dispatch and
    its return; with the first also the drafts before it."""
    place = 1
    while place < len(best) - 2 and len(best) <= MAX_PAIRED:
        for other in range(place + 1, len(best) - 1):
            if search.num_tries > MAX_TRIES:
                return best
            both = {place, other}
            leaves_out = [both, both | {place - 1}] if place > 1 else [both]
            made = next(filter(None, (tried(_without(best, places)) for places in leaves_out)), None)
            if made is not None:
                best, place = made, max(place - 2, 0)
                break
        place += 1
    return best


def _without(records: Records, places: set[int]) -> Records:
    return [record for place, record in enumerate(records) if place not in places]


def _with_less_prompt(rest: Records, left_out: Records) -> Records:
    """The prompt without what the steps that are left out would have computed of it."""
    scheduled = sum(getattr(record, "num_new_tokens", 0) for record in left_out)
    first = rest[0]
    if not isinstance(first, Request) or first.num_prompt_tokens <= scheduled:
        return rest
    num_prompt_tokens = first.num_prompt_tokens - scheduled
    return [msgspec.structs.replace(first, num_prompt_tokens=num_prompt_tokens), *rest[1:]]


def _smaller(best: Records, tried: Callable[[Records], Records | None], search: _Shrinker) -> Records:
    """Put smaller numbers for a number wherever it stands, and with it for the next one: a step's size is one
    more than its drafts."""
    for value in sorted({value for record in best for value in _values(record)}, reverse=True):
        for smaller in (0, 1, 2, value // 2, value - 1):
            if smaller >= value or search.num_tries > MAX_TRIES:
                continue
            lower = [_replaced(record, value, smaller) for record in best]
            made = tried(lower) or tried([_replaced(record, value + 1, smaller + 1) for record in lower])
            if made is not None:
                best = made
                break
    return best


def _smaller_here(best: Records, tried: Callable[[Records], Records | None], search: _Shrinker) -> Records:
    """Put a smaller number in one place."""
    for place in range(len(best)):
        for name in _arguments(best[place]):
            value: int = getattr(best[place], name)
            least = 1 if name == "num_prompt_tokens" else 0
            for smaller in dict.fromkeys((least, 1, 2, value // 2, value - 1)):
                if not least <= smaller < value or search.num_tries > MAX_TRIES:
                    continue
                changed = msgspec.structs.replace(best[place], **{name: smaller})
                made = tried([*best[:place], changed, *best[place + 1 :]])
                if made is not None:
                    best = made
                    break
    return best


def _arguments(record: RequestRecord) -> tuple[str, ...]:
    if isinstance(record, Request):
        return ("num_prompt_tokens",)
    if isinstance(record, Exit):
        return ()
    name: Any = record.__struct_config__.tag
    return tuple(field for field in EVENTS[name]._fields if field not in BOOLEAN_ARGUMENTS)


def _values(record: RequestRecord) -> list[int]:
    return [getattr(record, name) for name in _arguments(record) if getattr(record, name) > 0]


def _sum(records: Records) -> int:
    return sum(value for record in records for value in _values(record))


def _replaced(record: RequestRecord, value: int, smaller: int) -> RequestRecord:
    changed = {name: smaller for name in _arguments(record) if getattr(record, name) == value}
    if isinstance(record, Request) and changed.get("num_prompt_tokens") == 0:
        return record
    return msgspec.structs.replace(record, **changed) if changed else record


def write(records: Records, header: Header, path: Path) -> None:
    """The records as a complete trace. Raises TraceError if the file exists or cannot be written."""
    alone = msgspec.structs.replace(header, part=0, sequence=0, tokens="none", trace="", checksums=True)
    file = ChecksummedFile(path, alone)
    numbered = [msgspec.structs.replace(record, request=0) for record in records]
    for place, record in enumerate(numbered):
        placed = {"sequence": place} | ({"index": place} if isinstance(record, Indexed) else {})
        file.write(encode(msgspec.structs.replace(record, **placed)))
    file.write_checksum(Checksum(crc32=file.crc32, sequence=len(records)))
    file.write(encode(End(sequence=len(records), num_records=len(records))))
    file.close()

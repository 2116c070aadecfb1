"""Where do two recordings of the same work part? Request by request: in their text, events, counters, ends.

Requests are matched by their ids, or by the order in which they came where ids are not the same. With and
without speculation the events differ from the first step on; what is compared then is what is left: the
tokens, how many, and what of them is registered at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from draftproof.impl.traces.continuity import parts_of_one
from draftproof.impl.traces.format import Exit, Header, Request, RequestRecord, TraceError
from draftproof.impl.traces.packing import records_of
from draftproof.impl.traces.parts import Damage, Named
from draftproof.impl.traces.sources import Source
from draftproof.impl.traces.timeline import event_text

MAX_RECORDS = 5_000_000
"""Of both recordings together: they are held in memory."""


class Recorded(msgspec.Struct):
    """One request of a recording."""

    name: str
    records: list[RequestRecord] = []

    def tokens(self) -> list[int] | list[str]:
        """What is known of its tokens."""
        found: list[Any] = []
        for record in self.records:
            found += getattr(record, "token_ids", None) or getattr(record, "token_hashes", None) or []
        return found

    def num_kept(self) -> int:
        """Generated tokens."""
        return sum(getattr(record, "num_kept", 0) for record in self.records)

    def num_events(self, name: str) -> int:
        """So many events of this name."""
        return sum(record.__struct_config__.tag == name for record in self.records)

    def registered(self) -> int | None:
        """Tokens registered at its end, if that is told."""
        exits = [record.num_registered_tokens for record in self.records if isinstance(record, Exit)]
        return exits[-1] if exits else None


class Difference(msgspec.Struct, kw_only=True):
    """How one request differs."""

    request: str
    event_index: int | None = None
    """The first record that differs."""
    events: tuple[str, str] | None = None
    counters: dict[str, tuple[int | str | None, int | str | None]] = {}
    """Where the event is the same: the engine's counters that are not."""
    token_position: int | None = None
    """The first token that differs."""
    are_hashes: bool = False
    """Whether the tokens are recorded as hashes: those of two keys have nothing in common."""
    num_kept: tuple[int, int] | None = None
    registered: tuple[int | None, int | None] | None = None
    preemptions: tuple[int, int] | None = None
    only_in: str = ""

    @property
    def sentence(self) -> str:
        """For people."""
        if self.only_in:
            return f"request {self.request}: only in {self.only_in}"
        parts = []
        if self.token_position is not None:
            hint = " (all do if their hashes have two keys)" if self.are_hashes else ""
            parts.append(f"tokens part at {self.token_position}{hint if self.token_position == 0 else ''}")
        if self.num_kept is not None:
            parts.append(f"{self.num_kept[0]} against {self.num_kept[1]} generated tokens")
        if self.registered is not None:
            parts.append(f"{self.registered[0]} against {self.registered[1]} registered at the end")
        if self.preemptions is not None:
            parts.append(f"{self.preemptions[0]} against {self.preemptions[1]} preemptions")
        if self.events is not None:
            parts.append(f"record {self.event_index}: {self.events[0]} against {self.events[1]}")
        for name, (first, second) in self.counters.items():
            parts.append(f"record {self.event_index}: {name} {first} against {second}")
        return f"request {self.request}: {'; '.join(parts)}"


class Comparison(msgspec.Struct):
    """Two recordings side by side."""

    paths: tuple[str, str]
    num_requests: tuple[int, int]
    num_equal: int
    matched_by: str
    header: dict[str, tuple[Any, Any]]
    """What differs in the headers."""
    differences: list[Difference]


def compare(first: Source, second: Source) -> Comparison:
    """Raises TraceError for what cannot be read, or is too large to be held."""
    recorded = [_recorded(source) for source in (first, second)]
    (left_header, left), (right_header, right) = recorded
    left_names, right_names = {one.name for one in left}, {one.name for one in right}
    by_id = len(left_names) == len(left) and len(right_names) == len(right) and bool(left_names & right_names)
    pairs = _by_id(left, right) if by_id else _by_order(left, right)
    differences, num_equal = [], 0
    for one, other in pairs:
        if one is None or other is None:
            present = one or other
            assert present is not None
            where = first.paths[0] if one is not None else second.paths[0]
            differences.append(Difference(request=present.name, only_in=where))
            continue
        found = _difference(one, other)
        if found is None:
            num_equal += 1
        else:
            differences.append(found)
    about = {
        name: (getattr(left_header, name), getattr(right_header, name))
        for name in Header.__struct_fields__
        if name not in ("trace", "time", "part", "sequence")
        and getattr(left_header, name) != getattr(right_header, name)
    }
    return Comparison(
        (first.paths[0], second.paths[0]),
        (len(left), len(right)),
        num_equal,
        "id" if by_id else "order of arrival",
        about,
        differences,
    )


def _recorded(source: Source) -> tuple[Header, list[Recorded]]:
    found: list[Recorded] = []
    open_ones: dict[int, Recorded] = {}
    header: Header | None = None
    count = 0
    with ThreadPoolExecutor(1) as pool:
        named: Named | None = None
        for part in parts_of_one(source, pool):
            if isinstance(part, Header):
                header = header or part
            elif isinstance(part, Named):
                named = part
            elif isinstance(part, Damage):
                raise TraceError(f"{part.place}: {part.sentence}: only complete traces are compared")
            else:
                for record in records_of(part, named):
                    _take(found, open_ones, record)
                count += part.num_records
                if count > MAX_RECORDS:
                    raise TraceError(f"{source.paths[0]} has more than {MAX_RECORDS} records to compare")
                named = None
    if header is None:
        raise TraceError(f"{source.paths[0]} has no header")
    return header, found


def _take(found: list[Recorded], open_ones: dict[int, Recorded], record: Any) -> None:
    if isinstance(record, Request):
        open_ones[record.request] = Recorded(record.id or str(record.request), [record])
        found.append(open_ones[record.request])
    elif isinstance(record, RequestRecord) and record.request in open_ones:
        open_ones[record.request].records.append(record)


def _by_id(left: list[Recorded], right: list[Recorded]) -> Iterable[tuple[Recorded | None, Recorded | None]]:
    others = {one.name: one for one in right}
    for one in left:
        yield one, others.pop(one.name, None)
    for other in others.values():
        yield None, other


def _by_order(
    left: list[Recorded], right: list[Recorded]
) -> Iterable[tuple[Recorded | None, Recorded | None]]:
    for place in range(max(len(left), len(right))):
        yield (
            left[place] if place < len(left) else None,
            right[place] if place < len(right) else None,
        )


def _difference(one: Recorded, other: Recorded) -> Difference | None:
    found = Difference(request=one.name)
    tokens = one.tokens()
    found.token_position = _first_difference(tokens, other.tokens())
    found.are_hashes = bool(tokens) and isinstance(tokens[0], str)
    found.num_kept = _pair(one.num_kept(), other.num_kept())
    found.registered = _pair(one.registered(), other.registered())
    found.preemptions = _pair(one.num_events("preempt"), other.num_events("preempt"))
    for place in range(max(len(one.records), len(other.records))):
        first = one.records[place] if place < len(one.records) else None
        second = other.records[place] if place < len(other.records) else None
        texts = tuple("nothing" if record is None else event_text(record) for record in (first, second))
        if texts[0] != texts[1]:
            found.event_index, found.events = place, (texts[0], texts[1])
            return found
        counters = _counters(first, second)
        if counters:
            found.event_index, found.counters = place, counters
            return found
    same = found.token_position is None and found.num_kept is None and found.registered is None
    return None if same else found


def _pair(first: Any, second: Any) -> Any:
    return None if first == second else (first, second)


def _first_difference(first: Any, second: Any) -> int | None:
    if not first or not second or type(first[0]) is not type(second[0]):
        return None  # not recorded in one of them, or as ids in one and as hashes in the other
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return None if len(first) == len(second) else min(len(first), len(second))


def _counters(first: Any, second: Any) -> dict[str, tuple[Any, Any]]:
    """Counters that both engines tell, and that are not the same."""
    left, right = getattr(first, "after", None), getattr(second, "after", None)
    if left is None or right is None:
        return {}
    pairs = {name: (getattr(left, name), getattr(right, name)) for name in left.__struct_fields__}
    return {name: pair for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]}

"""What is a trace? One record per accounting event, the same whatever the engine; this is version 1.

While recording a trace is NDJSON: one JSON object a line, the kind of record under `event`. At rest it is
Parquet (`draftproof.impl.traces.parquet`). First comes a `header`, then for each request a `request` record
and its events under the names of `draftproof.spec.events.EVENTS`, each with that event's integers, then
`end`. Every record about a request has an `index`, its place among that request's records: so it shows in
each request alone whether anything of it is missing, and other requests are still judged. A `checksum` record
covers the bytes since the last one, so that damage on the way does not pass for an engine's fault.

An engine says in `after` what its own counters are after an event, as far as it has them. Everything read is
held against the bounds here: counts are 0 to 2^31 - 1, an engine's counters may be negative (that is one of
the faults to be found), text is short. An unknown field, record or version is refused in one sentence.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec

from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS
from draftproof.spec.ledger import STATUS_NAMES

SCHEMA = 1
"""The version of the format that is written, and the newest that is read."""
ABSENT = -(2**31)
"""In a column: the engine does not tell, or the event has no such integer."""
LARGEST_COUNT = 2**31 - 1
LARGEST_SEQUENCE = 2**53 - 1
MAX_TEXT = 256
"""Characters of an id or a name."""
MAX_TOKENS = 2**22
"""Tokens that one record may hold."""
MAX_LINE_BYTES = 64 * 2**20
"""A longer line is no record."""

COUNTERS = (
    "num_tokens",
    "num_computed_tokens",
    "num_output_placeholders",
    "num_draft_tokens",
    "num_in_flight_tokens",
    "num_stale_tokens",
    "num_registered_tokens",
    "status",
)
"""The counters that an engine may tell after an event, in the order of the columns."""
ARGUMENTS = (
    "num_hit_tokens",
    "num_new_tokens",
    "num_returned",
    "num_drafts",
    "num_accepted",
    "num_kept",
    "stopped",
    "drop",
    "num_chunk_tokens",
)
"""The integers that events bring, by name, in the order of the columns."""
EVENT_NAMES = tuple(EVENTS)
REQUEST, EXIT = len(EVENT_NAMES), len(EVENT_NAMES) + 1
"""Codes of the two other records about a request; an event's code is its place in `EVENT_NAMES`."""
CODE_NAMES = (*EVENT_NAMES, "request", "exit")
MASK_OF_ARGUMENTS = tuple(
    sum(1 << ARGUMENTS.index(field) for field in event._fields) for event in EVENTS.values()
)
"""Of each event, one bit for each of `ARGUMENTS` that it has."""

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
Counter = Annotated[int, msgspec.Meta(ge=ABSENT + 1, le=LARGEST_COUNT)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SEQUENCE)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_COUNT)]
Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
TokenIds = Annotated[list[Counter], msgspec.Meta(max_length=MAX_TOKENS)]
Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}$")]
TokenHashes = Annotated[list[Hash], msgspec.Meta(max_length=MAX_TOKENS)]
Status = Literal["waiting", "running", "preempted", "paused", "finished"]
assert Status.__args__ == STATUS_NAMES  # type: ignore[attr-defined]

NO_TOKENS, TOKEN_IDS, TOKEN_HASHES = "none", "ids", "hashes"


class Record(
    msgspec.Struct,
    tag_field="event",
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    frozen=True,
    gc=False,
):
    """One line."""


class After(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, frozen=True, gc=False
):
    """The engine's own counters after an event; None is what it does not tell. Tokens, but for the status."""

    num_tokens: Counter | None = None
    num_computed_tokens: Counter | None = None
    num_output_placeholders: Counter | None = None
    num_draft_tokens: Counter | None = None
    num_in_flight_tokens: Counter | None = None
    num_stale_tokens: Counter | None = None
    num_registered_tokens: Counter | None = None
    status: Status | None = None


class Header(Record, tag="header", kw_only=True, frozen=True, omit_defaults=False):
    """The first record of a trace, and of each of its parts."""

    schema: Positive
    engine: Text
    """`draftproof`, `vllm`, ..."""
    engine_version: Text = ""
    num_speculative_tokens: Count
    """K"""
    block_size: Positive
    """B, of the blocks that are registered."""
    asynchronous: bool
    registration_fence: Count = 0
    """max(0, A - 1) for a drafter with prefill look-ahead A (T12)."""
    max_model_len: Positive | None = None
    num_lookahead_tokens: Count = 0
    """Slots that a drafter writes beyond the step (T10)."""
    groups: Annotated[list[Text], msgspec.Meta(max_length=64)] = []
    """Kinds of the KV cache's groups, for the reader."""
    tokens: Literal["none", "ids", "hashes"] = "none"
    """What of the tokens is in the trace; by default nothing."""
    checksums: bool = False
    """Whether every record is covered by a `checksum` record behind it."""
    time: Text = ""
    """When the recording began, ISO 8601."""
    trace: Text = ""
    """The trace's name, the same in all its parts; empty if it has only one."""
    part: Count = 0
    """Of a trace in several files, which this is."""
    sequence: Sequence = 0
    """The next record's."""


class RequestRecord(Record, kw_only=True, frozen=True):
    """What all records about a request have."""

    sequence: Sequence
    """The record's place in the whole trace, from 0; header, checksum and end have none."""
    step: Count
    """The scheduler's step in which it came."""
    request: Count
    """The request's number in the trace."""


class Request(RequestRecord, tag="request", kw_only=True, frozen=True):
    """A request has arrived. Its index is 0."""

    id: Text = ""
    """The engine's name for it, or a hash of that."""
    num_prompt_tokens: Positive
    token_ids: TokenIds | None = None
    token_hashes: TokenHashes | None = None


class Indexed(RequestRecord, kw_only=True, frozen=True):
    """What all records about a request but the first have."""

    index: Positive
    """The record's place among the request's, from 1."""


class Exit(Indexed, tag="exit", kw_only=True, frozen=True):
    """After a finish, abort, preemption or end of turn: what of the request is in the prefix cache."""

    num_registered_tokens: Counter
    """Tokens of it that the engine had registered when it gave the blocks up."""
    look_up: Count | None = None
    """What a request with the same tokens would hit now."""


class Checksum(Record, tag="checksum", kw_only=True, frozen=True):
    """CRC-32 of all bytes since the last checksum record, or since the file's beginning."""

    crc32: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    sequence: Sequence
    """The next record's: with it a reader that lost its place finds it again."""


class Violation(Record, tag="violation", kw_only=True, frozen=True):
    """A live checker's remark. It is shown, never believed: the checker judges for itself."""

    sequence: Sequence
    step: Count
    request: Count
    sentence: Annotated[str, msgspec.Meta(max_length=4096)]


class Continued(Record, tag="continued", kw_only=True, frozen=True):
    """The last record of a part: the trace goes on in the next file."""

    sequence: Sequence
    num_records: Sequence
    """Records about requests in this part."""


class End(Record, tag="end", kw_only=True, frozen=True):
    """The last record of a trace. Without it the end is missing."""

    sequence: Sequence
    num_records: Sequence
    """Records about requests in this part."""


def _argument_type(name: str) -> Any:
    if name in BOOLEAN_ARGUMENTS:
        return bool
    return Flag if name == "stopped" else Count


def _event_struct(name: str) -> type[Indexed]:
    """The record of an event: its integers, and what the engine's counters are afterwards."""
    event: Any = EVENTS[name]
    fields: list[Any] = [(field, _argument_type(field)) for field in event._fields]
    fields.append(("after", After | None, None))
    if name in ("output", "stale_output", "fold"):
        kinds: Any = Request.__annotations__
        fields += [(field, kinds[field], None) for field in ("token_ids", "token_hashes")]
    return msgspec.defstruct(  # type: ignore[return-value]
        event.__name__,
        fields,
        bases=(Indexed,),
        tag=name,
        kw_only=True,
        frozen=True,
        namespace={"__doc__": event.__doc__, "__module__": __name__},
    )


EVENT_STRUCTS: dict[str, type[Indexed]] = {name: _event_struct(name) for name in EVENTS}
ANY_RECORD: Any = Header | Request | Exit | Checksum | Violation | Continued | End
for _struct in EVENT_STRUCTS.values():
    ANY_RECORD = ANY_RECORD | _struct

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(ANY_RECORD)


class TraceError(ValueError):
    """A trace that cannot be written or read, in one sentence."""


def encode(record: Record) -> bytes:
    """The record as a line, its line feed included."""
    return _encoder.encode(record) + b"\n"


def decode(line: bytes) -> Any:
    """The record of a line. Raises TraceError for what is none, with what is wrong with it."""
    if len(line) > MAX_LINE_BYTES:
        raise TraceError(f"a line of {len(line)} bytes is no record (at most {MAX_LINE_BYTES})")
    try:
        record = _decoder.decode(line)
    except msgspec.ValidationError as problem:
        _refuse_newer(line)
        raise TraceError(f"not a record of schema {SCHEMA}: {problem}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise TraceError(f"not JSON: {str(problem)[:200]}") from None
    if _encoder.encode(record) != line.strip():  # written by another: msgspec takes the last of two keys
        _refuse_repeated(line)
    return record


def _refuse_repeated(line: bytes) -> None:
    """Say so if a key comes twice: which of the two counts is not known."""
    try:
        json.loads(line, object_pairs_hook=_once, strict=False)
    except json.JSONDecodeError as problem:
        raise TraceError(f"not JSON: {str(problem)[:200]}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise TraceError(f"not a record of schema {SCHEMA}: the key {repeated!r} comes twice")
    return found


def _refuse_newer(line: bytes) -> None:
    """Say so if it is a header of a newer version, whatever else is in it."""
    try:
        found: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return
    if isinstance(found, dict) and found.get("event") == "header":
        schema = found.get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            raise TraceError(newer_schema(schema))


def newer_schema(schema: int) -> str:
    """What to say about a trace of a newer version."""
    return f"the trace has schema {schema}, this version reads up to {SCHEMA}: install a newer draftproof"


def check_header(header: Header) -> Header:
    """The header, if its version is one that is read. Raises TraceError."""
    if header.schema > SCHEMA:
        raise TraceError(newer_schema(header.schema))
    return header


def with_extras(record: RequestRecord, extras: dict[str, Any]) -> RequestRecord:
    """The record with a name and tokens, held against their bounds. Raises TraceError."""
    given = {name: value for name, value in extras.items() if value is not None}
    if not given:
        return record
    try:
        complete = msgspec.structs.replace(record, **given)
        return msgspec.convert(msgspec.to_builtins(complete), type(record))
    except (TypeError, AttributeError, msgspec.ValidationError) as problem:
        raise TraceError(f"record {record.sequence} has what it may not have: {problem}") from None


def json_schema() -> dict[str, Any]:
    """The JSON schema of a line, as in `docs/trace-schema.json`."""
    schema: dict[str, Any] = msgspec.json.schema(ANY_RECORD)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "draftproof trace record",
    } | schema

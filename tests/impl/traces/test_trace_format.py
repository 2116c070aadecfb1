"""What is written is what is read, whichever of the two readers and writers does it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.impl.traces.trace_world import checked

from draftproof.impl.traces import columns, compiled, line_words, text
from draftproof.impl.traces.columns import CODE, Chunk, empty_chunk, put, record_at
from draftproof.impl.traces.format import (
    ABSENT,
    CODE_NAMES,
    COUNTERS,
    EVENT_NAMES,
    EVENT_STRUCTS,
    LARGEST_COUNT,
    LARGEST_SEQUENCE,
    After,
    Exit,
    Header,
    Request,
    TraceError,
    decode,
    encode,
    json_schema,
)
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS
from draftproof.spec.ledger import STATUS_NAMES

counts = st.one_of(st.integers(0, 9), st.integers(0, LARGEST_COUNT))
counters = st.one_of(st.none(), st.integers(-3, 99), st.integers(ABSENT + 1, LARGEST_COUNT))
SCHEMA_PAGE = Path(__file__).parents[3] / "docs" / "trace-schema.json"


@st.composite
def events(draw: st.DrawFn) -> Any:
    """Any event record without tokens."""
    name = draw(st.sampled_from(EVENT_NAMES))
    fields: dict[str, Any] = {}
    for field in EVENTS[name]._fields:
        if field in BOOLEAN_ARGUMENTS:
            fields[field] = draw(st.booleans())
        else:
            fields[field] = draw(st.integers(0, 1) if field == "stopped" else counts)
    told: dict[str, Any] = {counter: draw(counters) for counter in COUNTERS if counter != "status"}
    told["status"] = draw(st.sampled_from([None, *STATUS_NAMES]))
    after = None if all(value is None for value in told.values()) else After(**told)
    struct: Any = EVENT_STRUCTS[name]
    return struct(
        sequence=draw(st.integers(0, LARGEST_SEQUENCE)),
        step=draw(counts),
        request=draw(counts),
        index=draw(st.integers(1, LARGEST_COUNT)),
        after=after,
        **fields,
    )


def scanned(data: bytes) -> tuple[Chunk, list[bytes]]:
    """Lines through the compiled scan, and the lines themselves."""
    count = data.count(b"\n")
    chunk, places = empty_chunk(count + 1), np.zeros(count + 2, np.int64)
    array = np.frombuffer(bytearray(data), np.uint8)
    found = compiled.scan_lines()(array, chunk.lines, chunk.sequences, places, *text.CONSTANTS)
    assert found == count and places[count] == len(data)
    rows = Chunk(chunk.lines[:, :count], chunk.sequences[:count], chunk.tainted[:count])
    return rows, [data[places[row] : places[row + 1]] for row in range(count)]


def formatted(chunk: Chunk) -> bytes:
    """Event rows through the compiled writer."""
    rows = np.ascontiguousarray(chunk.lines.T)
    out = np.empty(rows.shape[0] * line_words.MAX_ROW_BYTES, np.uint8)
    ends = np.empty(rows.shape[0], np.int64)
    size = compiled.format_rows()(
        rows, chunk.sequences, line_words.PIECE_BYTES, line_words.PIECE_STARTS, out, ends
    )
    return out[:size].tobytes()


@settings(max_examples=200, deadline=None)
@given(st.lists(events(), min_size=1, max_size=8))
def test_records_columns_and_lines_are_the_same(records: list[Any]) -> None:
    chunk = empty_chunk(len(records))
    for place, record in enumerate(records):
        put(chunk, place, record)
        assert record_at(chunk, place) == record
    lines = b"".join(encode(record) for record in records)
    assert formatted(chunk) == lines
    for padded in (
        lines,
        lines + b"x" * line_words.MAX_ROW_BYTES + b"\n",
    ):  # near the end another way is taken
        read, _ = scanned(padded)
        for place, record in enumerate(records):
            assert read.lines[CODE, place] >= 0 and record_at(read, place) == record


@settings(max_examples=200, deadline=None)
@given(st.lists(events(), min_size=1, max_size=4), st.integers(0, 2**32), st.booleans())
def test_what_the_scan_accepts_is_what_the_decoder_reads(records: list[Any], seed: int, padded: bool) -> None:
    """Lines changed at random: never another value, and nothing that the decoder refuses."""
    rng = random.Random(seed)
    data = bytearray(b"".join(encode(record) for record in records))
    alphabet = b'{}[]:,"0123456789-+.eE \t\\/ntfu'
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(data))
        choice = rng.randrange(3)
        if choice == 0:
            data[place] = rng.choice(alphabet)
        elif choice == 1:
            data[place:place] = bytes([rng.choice(alphabet)])
        else:
            del data[place : place + rng.randrange(1, 4)]
    data += b"\n" + (b"x" * line_words.MAX_ROW_BYTES + b"\n" if padded else b"")
    chunk, lines = scanned(bytes(data))
    for place, line in enumerate(lines):
        if chunk.lines[CODE, place] >= 0:
            found = record_at(chunk, place)
            assert msgspec.json.decode(line)["event"] == CODE_NAMES[chunk.lines[CODE, place]]
            assert decode(line) == found or decode(line).after == After()


@given(events())
def test_a_row_that_is_not_in_order_is_malformed(record: Any) -> None:
    """The compiled check of rows, which come from Parquet unseen, and the decoder agree on what is right."""
    from draftproof.impl.traces import kernel
    from draftproof.impl.traces.checking import MASKS

    chunk = empty_chunk(1)
    put(chunk, 0, record)
    assert kernel.is_well_formed(chunk.lines, MASKS, 0)
    for line, value in ((CODE, 99), (columns.REQUEST_NUMBER, -1), (columns.INDEX, 0), (columns.STEP, -5)):
        wrong = chunk.lines.copy()
        wrong[line, 0] = value
        assert not kernel.is_well_formed(wrong, MASKS, 0)
    wrong = chunk.lines.copy()
    wrong[columns.STATUS_LINE, 0] = 5
    assert not kernel.is_well_formed(wrong, MASKS, 0)
    for offset in range(columns.FIRST_ARGUMENT, columns.FIRST_COUNTER):
        wrong = chunk.lines.copy()
        wrong[offset, 0] = 1 if wrong[offset, 0] == ABSENT else -1
        assert not kernel.is_well_formed(wrong, MASKS, 0)


def test_the_other_records_come_back() -> None:
    for record in (
        Request(sequence=0, step=0, request=0, id='a "quoted" ü', num_prompt_tokens=3, token_ids=[1, -1, 5]),
        Exit(sequence=1, step=0, request=0, index=1, num_registered_tokens=16, look_up=16),
        Header(schema=1, engine="x", num_speculative_tokens=0, block_size=1, asynchronous=True),
    ):
        assert decode(encode(record)) == record


@pytest.mark.parametrize("name", EVENT_NAMES)
def test_each_field_of_an_event_is_required(name: str) -> None:
    fields: dict[str, Any] = dict.fromkeys(EVENTS[name]._fields, 0)
    fields = {key: False if key in BOOLEAN_ARGUMENTS else value for key, value in fields.items()}
    record = EVENT_STRUCTS[name](sequence=0, step=0, request=0, index=1, **fields)
    data = json.loads(encode(record))
    for field in data:
        with pytest.raises(TraceError):
            decode(json.dumps({key: value for key, value in data.items() if key != field}).encode())


def test_the_schema_page_is_the_schema() -> None:
    expected = json.dumps(json_schema(), indent=1) + "\n"
    assert SCHEMA_PAGE.read_text() == expected, "write format.json_schema() to docs/trace-schema.json"


def test_the_example_in_the_documentation_is_a_trace(tmp_path: Path) -> None:
    page = (SCHEMA_PAGE.parent / "trace-format.md").read_text()
    example = page.partition("```\n")[2].partition("```")[0]
    (tmp_path / "t.ndjson").write_text(example)
    report = checked(tmp_path / "t.ndjson")
    assert report.verdict == "clean" and report.num_judged == 3
    code = page.partition("```python\n")[2].partition("```")[0]
    exec(compile(code.replace("run.ndjson", str(tmp_path / "run.ndjson")), "example", "exec"), {})
    report = checked(tmp_path / "run.ndjson")
    assert report.verdict == "clean" and report.num_judged == 3


def test_every_field_is_in_the_documentation() -> None:
    page = (SCHEMA_PAGE.parent / "trace-format.md").read_text()
    fields = {field for struct in (Header, Request, Exit, After) for field in struct.__struct_fields__}
    fields |= {field for event in EVENTS.values() for field in event._fields}
    assert not {field for field in fields if f"`{field}`" not in page}
    assert not {name for name in (*CODE_NAMES, "violation", "continued") if f"`{name}`" not in page}

"""Lines that are no records cost little, however many there are, and none says two things at once."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.impl.traces.trace_world import checked, recorded

from draftproof.impl.traces import compiled, pieces, reading, text
from draftproof.impl.traces.columns import CODE, empty_chunk
from draftproof.impl.traces.format import (
    EVENT_STRUCTS,
    Checksum,
    Continued,
    End,
    Exit,
    Header,
    Request,
    TraceError,
    Violation,
    decode,
    encode,
)
from draftproof.spec.events import BOOLEAN_ARGUMENTS, EVENTS

ADMIT = b'{"event":"admit","sequence":1,"step":0,"request":0,"index":1,"num_hit_tokens":0}'


def smallest_records() -> list[Any]:
    """One of each kind, with as few and as short fields as it may have."""
    common: dict[str, Any] = {"sequence": 0, "step": 0, "request": 0}
    events = []
    for name, struct in EVENT_STRUCTS.items():
        fields = {field: (field in BOOLEAN_ARGUMENTS and True) or 0 for field in EVENTS[name]._fields}
        events.append(struct(**common, index=1, **fields))
    return [
        *events,
        Request(**common, num_prompt_tokens=1),
        Exit(**common, index=1, num_registered_tokens=0),
        Violation(**common, sentence=""),
        Checksum(crc32=0, sequence=0),
        End(sequence=0, num_records=0),
        Continued(sequence=0, num_records=0),
        Header(schema=1, engine="", num_speculative_tokens=0, block_size=1, asynchronous=True),
    ]


def test_no_record_is_shorter_than_what_is_taken_for_one() -> None:
    assert min(len(encode(record)) for record in smallest_records()) >= pieces.MIN_LINE_BYTES


@pytest.mark.parametrize("line", [b"", b"{}", b" ", b'{"event":"abort","sequence":12345,"step":12345}'])
def test_many_lines_that_are_none_are_counted_and_cost_little(tmp_path: Path, line: bytes) -> None:
    """Between the records of a sound trace, which is judged as far as ever."""
    path = recorded(tmp_path / "t.ndjson", False)
    whole = checked(path)
    lines = path.read_bytes().splitlines(keepends=True)
    count = 1_000_000 if len(line) < pieces.MIN_LINE_BYTES else 40_000
    place = len(lines) // 2
    path.write_bytes(b"".join([*lines[:place], (line + b"\n") * count, *lines[place:]]))
    tracemalloc.start()
    report = checked(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.verdict == "unreadable" and report.damage_counts["line"] == count
    assert report.num_judged == whole.num_judged and report.num_diverged == 0
    assert report.damages[0].startswith(f"{path}, line {place + 1}: ")
    assert any(f"{count - pieces.MAX_SHOWN} more lines" in sentence for sentence in report.damages)
    assert peak < 3 * reading.PIECE_BYTES + 20 * 2**20


@pytest.mark.parametrize(
    "line, key",
    [
        (ADMIT.replace(b'"step":0', b'"step":0,"step":7'), "step"),
        (ADMIT.replace(b'"event":"admit"', b'"event":"admit","event":"admit"'), "event"),
        (ADMIT.replace(b"tokens\":0", b'tokens":0,"after":{"num_tokens":1,"num_tokens":2}'), "num_tokens"),
        (ADMIT.replace(b'"step":0', b'"st\\u0065p":0,"step":7'), "step"),
        (b'{"event":"request","sequence":0,"step":0,"request":0,"num_prompt_tokens":4,"num_prompt_tokens":5}',
         "num_prompt_tokens"),
        (b'{"event":"exit","sequence":0,"step":0,"request":0,"index":2,"num_registered_tokens":9,'
         b'"num_registered_tokens":0}', "num_registered_tokens"),
        (b'{"event":"end","sequence":0,"num_records":3,"num_records":4}', "num_records"),
    ],
)  # fmt: skip
def test_a_key_that_comes_twice_is_refused(line: bytes, key: str) -> None:
    """By the compiled scan, which leaves such lines, and by the decoder, to which it leaves them."""
    with pytest.raises(TraceError, match=f"the key '{key}' comes twice"):
        decode(line)
    chunk, places = empty_chunk(2), np.zeros(3, np.int64)
    data = np.frombuffer(bytearray(line + b"\n" + b" " * 999 + b"\n"), np.uint8)
    compiled.scan_lines()(data, chunk.lines, chunk.sequences, places, *text.CONSTANTS)
    assert chunk.lines[CODE, 0] == text.SLOW


def test_a_key_that_comes_twice_is_damage(tmp_path: Path) -> None:
    path = recorded(tmp_path / "t.ndjson", False)
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if b'"checksum"' not in line]
    lines[0] = lines[0].replace(b'"checksums":true', b'"checksums":false')
    place = next(place for place, line in enumerate(lines) if b'"event":"request"' in line)
    lines[place] = lines[place].replace(b'"step":0', b'"step":5,"step":0')
    path.write_bytes(b"".join(lines))
    report = checked(path)
    assert report.verdict == "unreadable" and report.damage_counts["line"] == 1


def test_a_line_in_another_order_with_spaces_is_a_record() -> None:
    spaced = b'{ "sequence" : 0, "id" : "a \\"step\\": b", "num_prompt_tokens" : 4, "event" : "request", '
    record = decode(spaced + b'"request" : 0, "step" : 3 }')
    assert (record.id, record.step) == ('a "step": b', 3)

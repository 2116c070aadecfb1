"""Nothing that is unsound becomes sound by packing or unpacking it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.impl.traces.trace_world import checked, header_for, recorded, rules_for

from draftproof.impl.traces import columns
from draftproof.impl.traces.columns import empty_chunk, put
from draftproof.impl.traces.format import EVENT_STRUCTS, Request, TraceError
from draftproof.impl.traces.packing import pack, unpack
from draftproof.impl.traces.parquet import ParquetWriter
from draftproof.impl.traces.sources import Source


def source(path: Path) -> Source:
    return Source((str(path),), 0)


def uncovered(data: bytes) -> bytes:
    """Without checksums, and a step is another."""
    lines = [line for line in data.splitlines(keepends=True) if b'"checksum"' not in line]
    place = len(lines) // 2
    lines[place] = re.sub(rb'"step":(\d+)', rb'"step":\g<1>1', lines[place])
    return b"".join(lines)


def miscounted(data: bytes) -> bytes:
    """The end tells of a record more."""
    return re.sub(rb'"num_records":(\d+)', lambda found: b'"num_records":%d' % (int(found[1]) + 1), data)


def misplaced(data: bytes) -> bytes:
    """The end tells another next record."""
    return re.sub(rb'("end","sequence":)(\d+)', lambda found: found[1] + b"%d" % (int(found[2]) + 1), data)


def headless(data: bytes) -> bytes:
    """A later part of a trace alone."""
    lines = [line for line in data.splitlines(keepends=True) if b'"checksum"' not in line]
    lines[0] = lines[0].replace(b'"part":0', b'"part":1').replace(b'"checksums":true', b'"checksums":false')
    return b"".join(lines)


@pytest.mark.parametrize("damage", [uncovered, miscounted, misplaced, headless])
@pytest.mark.parametrize("action", [pack, unpack])
def test_what_is_unreadable_is_not_packed(
    tmp_path: Path, damage: Callable[[bytes], bytes], action: Callable[..., int]
) -> None:
    path, out = tmp_path / "a.ndjson", tmp_path / "out.parquet"
    data = damage(recorded(tmp_path / "sound.ndjson", False).read_bytes())
    assert data != (tmp_path / "sound.ndjson").read_bytes()
    path.write_bytes(data)
    assert checked(path).verdict == "unreadable"
    with pytest.raises(TraceError, match="damaged trace is not"):
        action(source(path), out)
    assert not out.exists()


@pytest.mark.parametrize("action", [pack, unpack])
@pytest.mark.parametrize("line, value", [(columns.STATUS_LINE, 77), (columns.NUM_HIT_TOKENS, -5)])
def test_a_row_that_is_no_record_is_not_unpacked(
    tmp_path: Path, action: Callable[..., int], line: int, value: int
) -> None:
    chunk = empty_chunk(2)
    admit: Any = EVENT_STRUCTS["admit"]
    put(chunk, 0, Request(sequence=0, step=0, request=0, num_prompt_tokens=4))
    put(chunk, 1, admit(sequence=1, step=0, request=0, index=1, num_hit_tokens=0))
    chunk.lines[line, 1] = value
    writer = ParquetWriter(tmp_path / "a.parquet", header_for(rules_for(False)))
    writer.write(chunk)
    writer.close(2)
    with pytest.raises(TraceError, match=r"damaged trace is not .* integers that are not those"):
        action(source(tmp_path / "a.parquet"), tmp_path / "out")
    assert not (tmp_path / "out").exists()

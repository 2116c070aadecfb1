"""Who shows, compares, shrinks or exports a trace knows what is missing of it, and whose records it reads."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.impl.traces.trace_world import checked, header_for, lived, recorded, rules_for, write

from draftproof.impl.traces import chrome, columns, differing, kernel, shrinking
from draftproof.impl.traces.columns import empty_chunk, put
from draftproof.impl.traces.continuity import MASKS, _is_malformed
from draftproof.impl.traces.files import part_path
from draftproof.impl.traces.format import (
    ABSENT,
    ARGUMENTS,
    EVENT_STRUCTS,
    EXIT,
    MASK_OF_ARGUMENTS,
    REQUEST,
    Request,
    TraceError,
)
from draftproof.impl.traces.parquet import ParquetWriter
from draftproof.impl.traces.recorder import TraceWriter
from draftproof.impl.traces.replaying import records_of_request, replayed, rules_of
from draftproof.impl.traces.sources import Source

Lines = list[bytes]


def source(*paths: Path) -> Source:
    return Source(tuple(map(str, paths)), 0)


def without_checksums(path: Path) -> Lines:
    """The trace as another program would write it."""
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if b'"checksum"' not in line]
    lines[0] = lines[0].replace(b'"checksums":true', b'"checksums":false')
    return lines


def place_of(lines: Lines, request: int, index: int) -> int:
    text = f'"request":{request},"index":{index},'.encode()
    return next(place for place, line in enumerate(lines) if text in line)


def drop(lines: Lines) -> Lines:
    place = place_of(lines, 2, 3)
    return [*lines[:place], *lines[place + 1 :]]


def repeat(lines: Lines) -> Lines:
    place = place_of(lines, 2, 3)
    return [*lines[:place], lines[place], *lines[place:]]


def swap(lines: Lines) -> Lines:
    first, second = place_of(lines, 2, 3), place_of(lines, 2, 4)
    lines[first], lines[second] = lines[second], lines[first]
    return lines


def no_end(lines: Lines) -> Lines:
    return lines[:-1]


DAMAGES: list[Callable[[Lines], Lines]] = [drop, repeat, swap, no_end]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_missing_is_no_violation_of_a_request(
    tmp_path: Path, damage: Callable[[Lines], Lines]
) -> None:
    """A right engine's trace: whatever is taken out of it, a request is shown up to there and is right."""
    path = recorded(tmp_path / "a.ndjson", False)
    path.write_bytes(b"".join(damage(without_checksums(path))))
    assert checked(path).verdict == "unreadable" and not checked(path).divergences
    for request in range(8):
        header, records, damages = records_of_request(source(path), request)
        assert damages
        assert [getattr(record, "index", 0) for record in records] == list(range(len(records)))
        assert all(one.divergence is None for one in replayed(records, rules_of(header)))
        with pytest.raises(TraceError, match="violates nothing"):
            shrinking.shrink(records, header)
    with pytest.raises(TraceError, match="only complete traces are compared"):
        differing.compare(source(path), source(path))
    if damage is not no_end:
        with pytest.raises(TraceError, match="only sound traces are exported"):
            chrome.export(source(path), io.StringIO())
    else:
        assert chrome.export(source(path), io.StringIO()) > 100


def test_a_missing_checksum_is_told_in_every_part(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    lines = parts[2].read_bytes().splitlines(keepends=True)
    last = max(place for place, line in enumerate(lines) if b'"checksum"' in line)
    parts[2].write_bytes(b"".join([*lines[:last], *lines[last + 1 :]]))
    _, _, damages = records_of_request(source(*parts), 5)
    told = [sentence for sentence in damages if "the checksum before the end is missing" in sentence]
    assert len(told) == 1 and str(parts[2]) in told[0]
    with pytest.raises(TraceError, match=r"no request 5 can be shown: .* under no checksum that holds"):
        records_of_request(source(parts[2]), 5)


def test_a_request_ends_where_a_checksum_fails(tmp_path: Path) -> None:
    rng, rules = random.Random(0), rules_for(False)
    path = write(tmp_path / "a.ndjson", rules, [lived(rng, rules, num_events=60) for _ in range(300)])
    lines = path.read_bytes().splitlines(keepends=True)
    blocks = [place for place, line in enumerate(lines) if b'"checksum"' in line]
    assert len(blocks) > 2
    place = next(
        place for place, line in enumerate(lines) if place > blocks[0] and b'"status":"running"' in line
    )
    lines[place] = lines[place].replace(b'"running"', b'"waiting"')
    number = json.loads(lines[place])["request"]
    path.write_bytes(b"".join(lines))
    header, records, damages = records_of_request(source(path), number)
    assert all(one.divergence is None for one in replayed(records, rules_of(header)))
    assert any("lies under no checksum that holds" in sentence for sentence in damages)
    assert len(records) < sum(f'"request":{number},'.encode() in line for line in lines)


@pytest.mark.parametrize("before", [(), ("admit",), ("preempt", "admit"), ("end_turn", "fold")])
def test_a_request_ends_at_an_exit_where_it_does_not_leave(tmp_path: Path, before: tuple[str, ...]) -> None:
    """It is shown up to there, and `check` calls that record malformed, too."""
    integers: dict[str, Any] = {
        "admit": {"num_hit_tokens": 0},
        "preempt": {"drop": 1},
        "fold": {"num_chunk_tokens": 1},
    }
    output: Any = {"num_returned": 4, "num_drafts": 0, "num_accepted": 0, "num_kept": 1}
    has_run = len(before) > 1
    with TraceWriter(tmp_path / "a.ndjson", header_for(rules_for(False)), in_background=False) as trace:
        number = trace.request("a", 4, step=0)
        if has_run:
            trace.emit("admit", number, step=0, num_hit_tokens=0)
            trace.emit("schedule", number, step=0, num_new_tokens=4)
            trace.emit("output", number, step=0, stopped=int(before[0] == "end_turn"), **output)
        for name in before:
            trace.emit(name, number, step=1, **integers.get(name, {}))
        trace.exit(number, step=2, num_registered_tokens=0)
    assert checked(tmp_path / "a.ndjson").damage_counts == {"malformed": 1}
    header, records, damages = records_of_request(source(tmp_path / "a.ndjson"), "a")
    assert "is an exit where no request leaves" in damages[-1]
    assert all(one.divergence is None for one in replayed(records, rules_of(header)))
    assert len(records) == 1 + 3 * has_run + len(before)


WRONG = {
    "argument": (columns.NUM_HIT_TOKENS, 2, -7),
    "another event's argument": (columns.NUM_KEPT, 2, 1),
    "status": (columns.STATUS_LINE, 2, 77),
    "step": (columns.STEP, 2, -1),
    "prompt": (columns.PROMPT, 0, 0),
}
"""What a Parquet file may hold that no record has: line, row, value."""


@pytest.mark.parametrize("name", WRONG)
def test_a_row_that_is_none_of_its_kind_ends_a_request(tmp_path: Path, name: str) -> None:
    line, row, value = WRONG[name]
    chunk = empty_chunk(3)
    put(chunk, 0, Request(sequence=0, step=0, request=0, num_prompt_tokens=4))
    for place in (1, 2):
        admit: Any = EVENT_STRUCTS["admit"]
        put(chunk, place, admit(sequence=place, step=0, request=0, index=place, num_hit_tokens=0))
    chunk.lines[line, row] = value
    path = tmp_path / "a.parquet"
    writer = ParquetWriter(path, header_for(rules_for(False)))
    writer.write(chunk)
    writer.close(3)
    assert checked(path).damage_counts["malformed"] == 1
    if row == 0:
        with pytest.raises(TraceError, match="no request"):
            records_of_request(source(path), "0")
    else:
        _, records, damages = records_of_request(source(path), "0")
        assert len(records) == 2 and "record 2 is none of its kind" in damages[-1]
    for action in (
        lambda: differing.compare(source(path), source(path)),
        lambda: chrome.export(source(path), io.StringIO()),
    ):
        with pytest.raises(TraceError, match=f"record {row} has integers"):
            action()


def test_rows_are_malformed_for_both_or_for_none() -> None:
    """What the compiled loop calls malformed is what a reader of whole traces does; random rows."""
    rng = np.random.default_rng(1)
    rows = 20_000
    lines = np.full((columns.NUM_LINES, rows), ABSENT, np.int32)
    lines[columns.CODE] = rng.integers(0, EXIT + 1, rows)
    lines[columns.REQUEST_NUMBER], lines[columns.STEP] = rng.integers(-1, 50, (2, rows))
    lines[columns.INDEX] = np.where(lines[columns.CODE] == REQUEST, 0, 1)
    for offset in range(len(ARGUMENTS)):
        events = np.minimum(lines[columns.CODE], REQUEST - 1)
        belongs = np.array(MASK_OF_ARGUMENTS)[events] >> offset & 1 == 1
        is_right = rng.random(rows) < 0.97
        lines[columns.FIRST_ARGUMENT + offset] = np.where(
            belongs == is_right, rng.integers(0, 2, rows), ABSENT
        )
    lines[columns.STATUS_LINE] = rng.choice([ABSENT, -1, 0, 4, 5], rows)
    found = _is_malformed(lines)
    expected = [not kernel.is_well_formed(lines, MASKS, row) for row in range(rows)]
    assert found.tolist() == expected and 1000 < sum(expected) < rows - 1000


def two_requests(path: Path, ids: tuple[str, str]) -> Path:
    """The first is wrong, the second right."""
    with TraceWriter(path, header_for(rules_for(False)), in_background=False) as trace:
        for place, name in enumerate(ids):
            number = trace.request(name, 4, step=0)
            told = {"num_computed_tokens": 0 if place else 1}
            trace.emit("admit", number, step=0, num_hit_tokens=0, after=told)
    return path


def test_an_id_is_not_taken_for_another_requests_number(tmp_path: Path) -> None:
    path = two_requests(tmp_path / "a.ndjson", ("1", "0"))
    _, by_id, _ = records_of_request(source(path), "1")
    _, by_number, _ = records_of_request(source(path), 1)
    assert (by_id[0].request, by_number[0].request) == (0, 1)
    found = checked(path).divergences[0]
    header, records, _ = records_of_request(source(path), found.request)
    assert len(shrinking.shrink(records, header)) == 2
    with pytest.raises(TraceError, match="no request '7'"):
        records_of_request(source(path), "7")
    for nonsense in ("²", "99999999999999", "-1", ""):
        with pytest.raises(TraceError, match="no request"):
            records_of_request(source(path), nonsense)


def test_an_id_counts_although_its_request_comes_much_later(tmp_path: Path) -> None:
    """In another chunk than the request that has it as its number."""
    path = tmp_path / "a.ndjson"
    with TraceWriter(path, header_for(rules_for(False)), in_background=False) as trace:
        for place in range(40_000):
            number = trace.request("0" if place == 39_999 else f"r{place}", 4, step=0)
            trace.emit("abort", number, step=0)
    _, records, _ = records_of_request(source(path), "0")
    assert records[0].request == 39_999 and len(records) == 2


def test_two_traces_in_a_file_are_not_read_as_one(tmp_path: Path) -> None:
    first, second = recorded(tmp_path / "a.ndjson", False, seed=1), recorded(tmp_path / "b.ndjson", True)
    both = tmp_path / "both.ndjson"
    both.write_bytes(first.read_bytes() + second.read_bytes())
    for action in (
        lambda: records_of_request(source(both), "1"),
        lambda: differing.compare(source(both), source(first)),
        lambda: chrome.export(source(both), io.StringIO()),
    ):
        with pytest.raises(TraceError, match="more than one trace"):
            action()


def parts_of(folder: Path) -> list[Path]:
    rng, rules = random.Random(2), rules_for(False)
    path = write(
        folder / "t.ndjson", rules, [lived(rng, rules, num_events=60) for _ in range(300)], max_bytes=1
    )
    return [part_path(path, part) for part in range(20) if part_path(path, part).exists()]


def test_parts_of_a_trace_are_one_unless_one_is_missing_or_of_another(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    assert len(parts) > 3
    assert not records_of_request(source(*parts), 5)[2]
    assert not differing.compare(source(*parts), source(*parts)).differences
    for some, says in (
        ([*parts[:1], *parts[2:]], "parts between 0 and 2"),
        (parts[1:], "the beginning"),
        (parts[:-1], "goes on in a part"),
    ):
        with pytest.raises(TraceError, match=says):
            differing.compare(source(*some), source(*parts))
    lines = without_checksums(parts[2])
    header = json.loads(lines[0])
    lines[0] = json.dumps(header | {"block_size": 4}).encode() + b"\n"
    parts[2].write_bytes(b"".join(lines))
    assert any("other rules" in sentence for sentence in records_of_request(source(*parts), 5)[2])


def test_a_number_that_is_given_twice_loses_no_request(tmp_path: Path) -> None:
    """Of a program that counts from 0 again; `check` calls it damage as long as it remembers the first."""
    lines = [
        b'{"event":"header","schema":1,"engine":"x","num_speculative_tokens":0,"block_size":2,'
        b'"asynchronous":false}',
        b'{"event":"request","sequence":0,"step":0,"request":0,"id":"a","num_prompt_tokens":4}',
        b'{"event":"abort","sequence":1,"step":0,"request":0,"index":1}',
        b'{"event":"request","sequence":2,"step":1,"request":0,"id":"b","num_prompt_tokens":5}',
        b'{"event":"end","sequence":3,"num_records":3}',
    ]
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert differing.compare(source(path), source(path)).num_requests == (2, 2)
    _, records, damages = records_of_request(source(path), "a")
    assert len(records) == 2 and "a beginning" in damages[0]


def test_ids_and_hashes_of_tokens_are_not_compared_with_each_other(tmp_path: Path) -> None:
    paths = []
    for tokens in ("ids", "hashes"):
        paths.append(tmp_path / f"{tokens}.ndjson")
        with TraceWriter(
            paths[-1], header_for(rules_for(False), tokens=tokens), in_background=False
        ) as trace:
            trace.request("x", 3, step=0, token_ids=[1, 2, 3])
    found = differing.compare(source(paths[0]), source(paths[1]))
    assert not found.differences and set(found.header) == {"tokens"}


@pytest.mark.parametrize("is_shared", [True, False])
def test_hashes_of_two_keys_are_told_from_other_texts(tmp_path: Path, is_shared: bool) -> None:
    """Of the same text under two keys, and of two texts under one."""
    sources = []
    for name, first in (("a", 1), ("b", 2 if is_shared else 1)):
        path, salt = tmp_path / f"{name}.ndjson", b"shared" if is_shared else name.encode()
        header = header_for(rules_for(False), tokens="hashes")
        with TraceWriter(path, header, in_background=False, salt=salt) as trace:
            trace.request("x", 3, step=0, token_ids=[first, 2, 3])
        sources.append(source(path))
    (found,) = differing.compare(*sources).differences
    assert found.token_position == 0 and "two keys" in found.sentence


def test_requests_in_another_order_are_matched_by_their_ids(tmp_path: Path) -> None:
    rng, rules = random.Random(4), rules_for(False)
    lives = [lived(rng, rules) for _ in range(6)]
    write(tmp_path / "a.ndjson", rules, lives)
    order = [3, 0, 5, 1, 4, 2]
    path = tmp_path / "b.ndjson"
    write(path, rules, [lives[place] for place in order])
    lines = without_checksums(path)
    for number, place in enumerate(order):  # the ids of the first recording, in the second one's order
        lines[1 + number] = lines[1 + number].replace(
            f'"id":"request {number}"'.encode(), f'"id":"request {place}"'.encode()
        )
    path.write_bytes(b"".join(lines))
    found = differing.compare(source(tmp_path / "a.ndjson"), source(path))
    assert found.matched_by == "id" and found.num_equal == 6 and not found.differences


def test_a_shrunk_trace_holds_no_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    with TraceWriter(path, header_for(rules_for(False), tokens="ids"), in_background=False) as trace:
        number = trace.request("a", 4, step=0, token_ids=[11, 12, 13, 14])
        trace.emit("admit", number, step=0, num_hit_tokens=0, after={"num_tokens": 9})
    header, records, _ = records_of_request(source(path), "a")
    shrinking.write(shrinking.shrink(records, header), header, tmp_path / "b.ndjson")
    assert b"token_ids" in path.read_bytes() and b"token_ids" not in (tmp_path / "b.ndjson").read_bytes()
    assert msgspec.json.decode((tmp_path / "b.ndjson").read_bytes().splitlines()[0])["tokens"] == "none"

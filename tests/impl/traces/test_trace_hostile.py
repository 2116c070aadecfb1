"""Whatever was done to a file: no crash, no false "clean", and damage is not taken for an engine's fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.impl.traces.trace_world import checked, header_for, lived, recorded, rules_for, write

from draftproof.impl.traces.checking import check_source
from draftproof.impl.traces.files import require
from draftproof.impl.traces.format import TraceError
from draftproof.impl.traces.packing import pack
from draftproof.impl.traces.parquet import FAST_COLUMNS
from draftproof.impl.traces.recorder import TraceWriter
from draftproof.impl.traces.sources import Source, files_of, sources_of

Mutation = Callable[[random.Random, bytes], bytes]


def flip_a_bit(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def change_a_digit(rng: random.Random, data: bytes) -> bytes:
    digits = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    place = rng.choice(digits)
    return data[:place] + bytes([48 + (data[place] - 47) % 10]) + data[place + 1 :]


def cut_the_end(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) - 1)]


def cut_a_piece(rng: random.Random, data: bytes) -> bytes:
    begin = rng.randrange(len(data) - 200)
    return data[:begin] + data[begin + rng.randrange(1, 200) :]


def insert_noise(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + rng.randbytes(rng.randrange(1, 30)) + data[place:]


def _lines(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


def drop_a_line(rng: random.Random, data: bytes) -> bytes:
    lines = _lines(data)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def repeat_a_line(rng: random.Random, data: bytes) -> bytes:
    lines = _lines(data)
    place = rng.randrange(len(lines))
    lines.insert(rng.randrange(place, len(lines)), lines[place])
    return b"".join(lines)


def swap_lines(rng: random.Random, data: bytes) -> bytes:
    lines = _lines(data)
    first, second = rng.sample(range(len(lines)), 2)
    lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


MUTATIONS: list[Mutation] = [
    flip_a_bit,
    change_a_digit,
    cut_the_end,
    cut_a_piece,
    insert_noise,
    drop_a_line,
    repeat_a_line,
    swap_lines,
]


def _judge(path: Path) -> str:
    """The verdict on a file, through what the command does."""
    sources, unreadable = sources_of(files_of([str(path)]))
    if unreadable:
        assert unreadable[0].sentence
        return "unreadable"
    report = check_source(sources[0], num_threads=1)
    if report.verdict == "unreadable":
        assert report.damages or report.num_suspect
    return report.verdict


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.__name__ for mutation in MUTATIONS])
def test_a_mutated_recording_is_neither_clean_nor_violated(tmp_path: Path, mutation: Mutation) -> None:
    """40 mutations of each kind. With checksums damage is always told from a fault."""
    original = recorded(tmp_path / "t.ndjson", True, seed=3).read_bytes()
    rng = random.Random(mutation.__name__)
    done = 0
    while done < 40:
        mutated = mutation(rng, original)
        if mutated == original:
            continue
        path = tmp_path / "mutated.ndjson"
        path.write_bytes(mutated)
        verdict = _judge(path)
        assert verdict == "unreadable", (verdict, done)
        done += 1


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.__name__ for mutation in MUTATIONS])
def test_a_faulty_recording_stays_faulty_or_is_unreadable(tmp_path: Path, mutation: Mutation) -> None:
    def change(request: int, place: int, told: dict[str, int]) -> None:
        if request == 2 and place == 4:
            told["num_computed_tokens"] += 1

    original = recorded(tmp_path / "t.ndjson", False, seed=4, change=change).read_bytes()
    rng = random.Random(mutation.__name__)
    for _ in range(10):
        path = tmp_path / "mutated.ndjson"
        path.write_bytes(mutation(rng, original))
        assert _judge(path) in ("violated", "unreadable")


@pytest.mark.parametrize("mutation", [flip_a_bit, cut_the_end, cut_a_piece, insert_noise])
def test_mutated_compressed_and_packed_files(tmp_path: Path, mutation: Mutation) -> None:
    plain = recorded(tmp_path / "t.ndjson", True, seed=3)
    packed = tmp_path / "t.parquet"
    pack(Source((str(plain),), 0), packed)
    compressed = recorded(tmp_path / "t.ndjson.zst", True, seed=3)
    assert _judge(packed) == _judge(compressed) == "clean"
    rng = random.Random(mutation.__name__)
    for original in (packed, compressed):
        for _ in range(20):
            path = tmp_path / f"mutated{original.suffix}"
            path.write_bytes(mutation(rng, original.read_bytes()))
            verdict = _judge(path)
            # Some bytes of a Parquet file (statistics, a writer's name, ids) are not about the accounting.
            harmless = verdict == "clean" and mutation is flip_a_bit and original is packed
            assert verdict == "unreadable" or (harmless and _same(path, packed)), (original.name, verdict)


def _same(path: Path, other: Path) -> bool:
    """The columns that are checked are the same in both."""
    pq = require("pyarrow.parquet")
    first, second = (pq.read_table(one, columns=list(FAST_COLUMNS)) for one in (path, other))
    return bool(first.equals(second))


def test_nothing_of_what_was_readable_is_lost(tmp_path: Path) -> None:
    """A line in the middle is gone: its request is judged up to there, all others to their end."""
    path = recorded(tmp_path / "t.ndjson", False)
    whole = checked(path)
    lines = path.read_bytes().splitlines(keepends=True)
    place = next(place for place, line in enumerate(lines) if b'"request":5,"index":6' in line)
    path.write_bytes(b"".join(lines[:place] + lines[place + 1 :]))
    report = checked(path)
    skipped = sum(b'"request":5,' in line for line in lines[place + 1 :])
    assert report.num_judged == whole.num_judged - skipped - 1
    assert report.num_incomplete == skipped
    assert report.verdict == "unreadable" and not report.divergences


def test_a_violation_before_the_damage_stays_one(tmp_path: Path) -> None:
    """One block is damaged; what diverged in a sound block is a violation, what diverged after is suspect."""

    def change(request: int, place: int, told: dict[str, int]) -> None:
        if request in (1, 200) and place == (2 if request == 1 else 30):
            told["num_computed_tokens"] += 1

    rng, rules = random.Random(0), rules_for(False)
    requests = [lived(rng, rules, num_events=60) for _ in range(300)]
    while len(requests[200]) < 35:
        requests[200] = lived(rng, rules, num_events=60)
    path = write(tmp_path / "t.ndjson", rules, requests, change=change)
    assert checked(path).num_diverged == 2
    lines = path.read_bytes().splitlines(keepends=True)
    blocks = [place for place, line in enumerate(lines) if b'"checksum"' in line]
    place = next(
        place
        for place, line in enumerate(lines)
        if place > blocks[0] and b'"request":200,' in line and b'"num_kept":1' in line
    )
    damaged = lines[place].replace(b'"status":"running"', b'"status": "running"')
    assert damaged != lines[place]
    path.write_bytes(b"".join([*lines[:place], damaged, *lines[place + 1 :]]))
    report = checked(path)
    assert [(one.request, one.is_suspect) for one in report.divergences] == [(1, False), (200, True)]
    assert report.verdict == "violated" and (report.num_diverged, report.num_suspect) == (1, 1)


def test_lines_that_another_program_wrote_need_no_checksums(tmp_path: Path) -> None:
    path = recorded(tmp_path / "t.ndjson", False)
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if b'"checksum"' not in line]
    spaced = [line.replace(b'":', b'" : ').replace(b',"', b' , "') for line in lines]
    path.write_bytes(b"".join(spaced))
    assert checked(path).damages == [f"{path}: the checksum before the end is missing"]
    spaced[0] = spaced[0].replace(b"true", b"false")
    path.write_bytes(b"".join(spaced))
    assert checked(path).verdict == "clean"


@pytest.mark.parametrize(
    "line, says",
    [
        (b'{"event":"header","schema":2,"engine":"x","news":1}', "install a newer draftproof"),
        (b"hello", "not JSON"),
        (b"", "empty"),
        (b'{"event":"end","sequence":0,"num_records":0}', "no header"),
        (b'{"event":"header","schema":1,"engine":"x","num_speculative_tokens":0}', "missing required field"),
        (b'{"event":"header","schema":1,"engine":"x","num_speculative_tokens":0,"block_size":0,'
         b'"asynchronous":false}', ">= 1"),
        (b"[" * 100_000, "not JSON|not a record"),
        (b"\x00" * 1000, "not JSON"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_trace_is_told_so(tmp_path: Path, line: bytes, says: str) -> None:
    path = tmp_path / "t.ndjson"
    path.write_bytes(line + b"\n" if line else b"")
    _, unreadable = sources_of([str(path)])
    with pytest.raises(TraceError, match=says):
        raise TraceError(unreadable[0].sentence)


@pytest.mark.parametrize(
    "line",
    [
        b'{"event":"admit","sequence":1,"step":0,"request":0,"index":1,"num_hit_tokens":-1}',
        b'{"event":"admit","sequence":1,"step":0,"request":0,"index":1,"num_hit_tokens":4294967296}',
        b'{"event":"admit","sequence":1,"step":0,"request":0,"index":1,"num_hit_tokens":1e3}',
        b'{"event":"admit","sequence":1,"step":0,"request":0,"index":1,"num_hit_tokens":"0"}',
        b'{"event":"admit","sequence":1,"step":0,"request":0,"index":1}',
        b'{"event":"admit","sequence":1,"step":0,"request":0,"index":1,"num_hit_tokens":0,"num_kept":0}',
        b'{"event":"teleport","sequence":1,"step":0,"request":0,"index":1}',
        b'{"event":"preempt","sequence":1,"step":0,"request":0,"index":1,"drop":1}',
        b'{"event":"admit","sequence":1,"step":0,"request":0,"index":1,"num_hit_tokens":0,"after":{"x":1}}',
        b'{"event":"admit","sequence":1,"step":0,"request":0,"index":0,"num_hit_tokens":0}',
    ],
)
def test_a_wrong_line_is_damage_and_the_rest_is_read(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "t.ndjson"
    with TraceWriter(path, header_for(rules_for(False)), in_background=False) as trace:
        trace.request("a", 4, step=0)
        trace.emit("admit", 0, step=0, num_hit_tokens=0, after={"num_tokens": 4, "num_computed_tokens": 0})
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:2], line, *lines[2:]]) + b"\n")
    report = checked(path)
    assert report.verdict == "unreadable" and report.num_judged == 1 and not report.divergences
    assert "line 3" in report.damages[0]


def test_a_second_end_is_damage(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.ndjson", False)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[-1]]))
    (damage,) = checked(path).damages
    assert "the trace ends twice" in damage


def test_a_second_trace_behind_the_first_is_judged_by_its_own_header(tmp_path: Path) -> None:
    first = recorded(tmp_path / "a.ndjson", False, seed=1)
    second = recorded(tmp_path / "b.ndjson", True, seed=2)
    both = tmp_path / "both.ndjson"
    both.write_bytes(first.read_bytes() + second.read_bytes())
    report = checked(both)
    assert report.verdict == "clean" and report.num_requests == 16

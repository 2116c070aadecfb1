"""What a recorder writes can be relied on: of our scheduler, of any engine, on a full disk, in parts."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.impl.random_work import RandomWork, random_config
from tests.impl.traces.trace_world import checked, header_for, recorded, rules_for

from draftproof.impl.scheduler.config import KVGroup, SchedulerConfig
from draftproof.impl.traces import columns, trace_output
from draftproof.impl.traces.checking import check_source
from draftproof.impl.traces.collected import NUM_ROWS, Block
from draftproof.impl.traces.columns import Chunk
from draftproof.impl.traces.files import part_path
from draftproof.impl.traces.format import ABSENT, EVENT_NAMES, TraceError, Violation, decode
from draftproof.impl.traces.packing import pack
from draftproof.impl.traces.parquet import ParquetWriter
from draftproof.impl.traces.reading import read_ndjson
from draftproof.impl.traces.recorder import TraceWriter
from draftproof.impl.traces.recording_scheduler import RecordingScheduler, header_of
from draftproof.impl.traces.sources import Source

SEEN: set[str] = set()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3, 7])
@pytest.mark.parametrize("tokens", ["none", "ids"])
def test_our_scheduler_is_recorded_and_clean(
    tmp_path: Path, seed: int, asynchronous: bool, tokens: str
) -> None:
    """Sessions, aborts, preemption, failed steps, resets: each event is in the trace as it happened."""
    config = random_config(seed, asynchronous)
    path = tmp_path / "t.ndjson"
    with TraceWriter(path, header_of(config, tokens=tokens)) as trace:
        did = RandomWork(RecordingScheduler(config, trace, looks_up=True, compiled=False), seed).run(60)
    report = checked(path)
    assert report.verdict == "clean", (report.damages, report.divergences[:2])
    assert report.num_requests == did["add"]
    lines = [decode(line) for line in path.read_bytes().splitlines()]
    SEEN.update(line.__struct_config__.tag for line in lines)
    given = [line for line in lines if getattr(line, "token_ids", None)]
    assert bool(given) == (tokens == "ids")
    for line in given:
        sizes = ("num_prompt_tokens", "num_kept", "num_chunk_tokens")
        (size,) = [getattr(line, name) for name in sizes if hasattr(line, name)]
        assert len(line.token_ids) == size


def test_every_event_was_seen() -> None:
    """Of the runs above, in this process."""
    if SEEN:
        assert set(EVENT_NAMES) | {"request", "exit"} <= SEEN


def test_a_look_up_after_each_finish_is_what_the_closed_form_says(tmp_path: Path) -> None:
    config = SchedulerConfig(
        max_model_len=128,
        num_blocks=64,
        groups=(KVGroup(4),),
        max_num_seqs=4,
        max_num_requests=8,
        max_num_batched_tokens=64,
        num_speculative_tokens=2,
    )
    path = tmp_path / "t.ndjson"
    with TraceWriter(path, header_of(config)) as trace:
        scheduler = RecordingScheduler(config, trace, looks_up=True, compiled=False)
        for place in range(4):
            scheduler.add(str(place), list(range(place * 9, place * 9 + 6 + place)), max_tokens=7 + place)
        while scheduler.has_unfinished_requests():
            batch = scheduler.schedule()
            count = batch.num_requests
            sampled = np.full((count, 3), 40, np.int32)
            accepted = np.ones(count, np.int32) + batch.num_draft_tokens[:count] // 2
            rows = batch.rows[:count].copy()
            scheduler.settle(batch, sampled, (accepted * batch.samples[:count]).astype(np.int32))
            scheduler.take_drafts(rows, sampled[:, :2].copy(), np.full(count, 2, np.int32))
    report = checked(path)
    assert report.verdict == "clean" and report.checked["T13"] == 4


def written_in_parts(path: Path, in_background: bool) -> list[Path]:
    """6,000 requests that leave at once, 60,000 bytes a part or a block more."""
    with TraceWriter(
        path, header_for(rules_for(False)), max_bytes=60_000, in_background=in_background
    ) as trace:
        for place in range(6_000):
            number = trace.request(str(place), 4, step=0)
            trace.emit("abort", number, step=0)
    parts = [part_path(path, part) for part in range(99) if part_path(path, part).exists()]
    report = check_source(Source(tuple(map(str, parts)), 0), num_threads=1)
    assert not report.damages and report.num_judged == 6_000
    return parts


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("end", ["ndjson", "ndjson.zst"])
def test_parts_have_the_size_asked_for(
    tmp_path: Path, monkeypatch: Any, in_background: bool, end: str
) -> None:
    """Written block by block: nothing in between, however long it takes."""
    monkeypatch.setattr(trace_output, "SECONDS", 3600.0)
    assert len(written_in_parts(tmp_path / f"t.{end}", in_background)) == 3


@pytest.mark.parametrize("in_background", [False, True])
def test_parts_have_the_size_asked_for_whenever_they_are_written(
    tmp_path: Path, monkeypatch: Any, in_background: bool
) -> None:
    """What was told is written all the time: a part is full, and at most what was written last beyond it."""
    monkeypatch.setattr(trace_output, "SECONDS", 0.0)
    parts = written_in_parts(tmp_path / "t.ndjson", in_background)
    for part in parts[:-1]:
        data = part.read_bytes()
        ends = [found.start() for found in re.finditer(b'{"event":"checksum"', data)]
        num_bytes_before = ends[-2] if len(ends) > 1 else 0  # without what was written last
        assert num_bytes_before < 60_000 <= len(data)
    assert len(parts) >= 3


def test_what_was_flushed_is_there_after_a_crash(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "t.ndjson", header_for(rules_for(False)))
    number = trace.request("a", 4, step=0)
    trace.emit("admit", number, step=0, num_hit_tokens=0, after={"num_computed_tokens": 0, "num_tokens": 4})
    trace.flush()
    report = checked(tmp_path / "t.ndjson")
    assert report.num_judged == 1 and report.verdict == "unreadable"
    assert report.damages == [
        f"{tmp_path / 't.ndjson'}: the trace has no end: how much is missing is not known"
    ]
    trace.close()
    assert checked(tmp_path / "t.ndjson").verdict == "clean"


KILLED = """
import sys
from draftproof.impl.traces.recorder import TraceWriter, header

trace = TraceWriter(sys.argv[1], header(engine="mine", num_speculative_tokens=0, block_size=16))
for place in range(3):
    number = trace.request(f"request {place}", 4, step=0)
    trace.emit("admit", number, step=0, num_hit_tokens=0, after={"num_tokens": 4, "num_computed_tokens": 0})
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["ndjson", "ndjson.zst"])
def test_what_an_engine_told_is_there_when_it_is_killed(tmp_path: Path, end: str) -> None:
    """Nothing more is told, nothing is flushed, and the process gets no chance to do anything."""
    path = tmp_path / f"t.{end}"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdin=subprocess.PIPE) as engine:
        deadline = time.monotonic() + 120  # compiling takes longest
        while engine.poll() is None and time.monotonic() < deadline:
            if path.exists() and checked(path).num_records == 6:
                break
            time.sleep(0.05)
        engine.kill()
    report = checked(path)
    assert (report.num_records, report.num_judged, report.verdict) == (6, 3, "unreadable")
    assert report.damages == [f"{path}: the trace has no end: how much is missing is not known"]


def test_what_an_engine_told_is_there_when_it_ends_of_an_exception(tmp_path: Path) -> None:
    path = tmp_path / "t.ndjson"
    fails = KILLED.replace("sys.stdin.read()", "raise RuntimeError('out of memory')")
    done = subprocess.run(
        [sys.executable, "-c", fails, str(path)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.strip().endswith("out of memory")
    report = checked(path)
    assert (report.num_records, report.num_judged, report.damage_counts) == (6, 3, {"cut": 1})


def test_writing_while_more_is_told_loses_and_mixes_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    """The thread takes what there is all the time; with and without it the same is written."""
    monkeypatch.setattr(trace_output, "SECONDS", 0.0)
    header = header_for(rules_for(False))
    written = []
    for in_background in (True, False):
        path = tmp_path / f"{in_background}.ndjson"
        with TraceWriter(path, header, in_background=in_background) as trace:
            for place in range(4_000):
                number = trace.request(str(place), 4, step=place)
                rows = np.full((1 + place % 3, columns.NUM_LINES), ABSENT, np.int32)
                rows[:, columns.CODE], rows[:, columns.REQUEST_NUMBER] = EVENT_NAMES.index("abort"), number
                rows[:, columns.STEP] = place
                trace.emit_rows(rows)
                trace.emit("admit", number, step=place, num_hit_tokens=0)
        lines = [line for line in path.read_bytes().splitlines() if b'"event":"checksum"' not in line]
        written.append(lines)
    assert written[0] == written[1] and len(written[0]) == 2 + 4_000 * 2 + 7_999


def test_a_record_behind_rows_that_are_not_counted_yet_waits() -> None:
    block = Block()
    first, second = (Violation(sequence=place, step=0, request=0, sentence="x") for place in (0, 2))
    block.lines.append((0, first))
    block.num_rows = 1
    block.lines.append((2, second))  # as if row 1 had been added between counting and looking here
    rows, lines = block.take()
    assert rows.shape[0] == 1 and lines == [(0, first)]
    block.num_rows = 2
    rows, lines = block.take()
    assert rows.shape[0] == 1 and lines == [(1, second)]


def test_without_its_thread_a_trace_ends_and_nothing_waits_for_ever(tmp_path: Path) -> None:
    """As in a process that was forked: only the thread that forks is there."""
    trace = TraceWriter(tmp_path / "t.ndjson", header_for(rules_for(False)))
    output = trace._output
    output._asked.put("stop")
    assert output._thread is not None
    output._thread.join()
    number = trace.request("a", 4, step=0)
    with pytest.warns(RuntimeWarning, match="recording ended"):
        for _ in range(20 * NUM_ROWS):
            trace.emit("admit", number, step=0, num_hit_tokens=0)
    with pytest.raises(TraceError, match="the thread that writes is gone"):
        trace.close()


@pytest.mark.parametrize("tokens", ["none", "ids"])
def test_integers_of_numpy_are_integers(tmp_path: Path, tokens: str) -> None:
    """An engine's counters often come out of an array."""
    path = tmp_path / "t.ndjson"
    zero: Any = np.int64(0)
    four: Any = np.int32(4)
    tokens_of: Any = np.arange(4)
    with TraceWriter(path, header_for(rules_for(False), tokens=tokens)) as trace:
        number: Any = np.int64(trace.request("a", four, step=zero, token_ids=tokens_of))
        trace.emit("admit", number, step=zero, num_hit_tokens=zero)
        trace.emit("schedule", number, step=zero, num_new_tokens=four)
        output: Any = {"num_returned": four, "num_drafts": 0, "num_accepted": 0, "num_kept": 1, "stopped": 1}
        told: Any = {"num_tokens": np.int32(5)}
        trace.emit("output", number, step=four, after=told, token_ids=tokens_of[:1], **output)
        trace.emit("finish", number, step=four)
        trace.exit(number, step=four, num_registered_tokens=four, look_up=four)
        trace.violation(number, step=four, sentence="a remark")
        with pytest.raises(TraceError, match="request 1 is not known"):
            trace.exit(1, step=0, num_registered_tokens=0)
    report = checked(path)
    assert (report.verdict, report.num_judged, len(report.remarks)) == ("clean", 5, 1), report.damages


def test_more_rows_than_a_block_has_come_in_one_call(tmp_path: Path) -> None:
    path = tmp_path / "t.ndjson"
    with TraceWriter(path, header_for(rules_for(False))) as trace:
        numbers = [trace.request(str(place), 4, step=0) for place in range(NUM_ROWS + 5)]
        rows = np.full((NUM_ROWS + 5, columns.NUM_LINES), ABSENT, np.int64)  # any integers will do
        rows[:, columns.CODE], rows[:, columns.STEP] = EVENT_NAMES.index("abort"), 0
        rows[:, columns.REQUEST_NUMBER] = numbers
        trace.emit_rows(np.asfortranarray(rows))
        for _ in range(2 * trace_output.MAX_WAITING):  # the blocks behind it: more than may wait at once
            trace.emit_rows(rows)
    report = checked(path)
    assert set(report.damage_counts) == {"unknown"}  # who has left is not remembered for ever
    assert report.num_records == (2 + 2 * trace_output.MAX_WAITING) * (NUM_ROWS + 5)


def test_a_full_disk_ends_the_recording_and_not_the_engine(tmp_path: Path, monkeypatch: Any) -> None:
    trace = TraceWriter(tmp_path / "t.ndjson", header_for(rules_for(False)), in_background=False)
    number = trace.request("a", 4, step=0)

    def refuse(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace._output._file, "write", refuse)
    with pytest.warns(RuntimeWarning, match="recording ended: .*No space left"):
        for _ in range(5_000):
            trace.emit("admit", number, step=0, num_hit_tokens=0)
    with pytest.raises(TraceError, match="No space left"):
        trace.close()


@pytest.mark.parametrize(
    "event, request_number, arguments, says",
    [
        ("teleport", 0, {}, "is no event"),
        ("admit", 0, {}, "the integers of admit"),
        ("admit", 0, {"num_hit_tokens": 0, "num_kept": 0}, "the integers of admit"),
        ("admit", 9, {"num_hit_tokens": 0}, "request 9 is not known"),
        ("admit", 0, {"num_hit_tokens": 2**40}, "no integer of 32 bits"),
        ("admit", 0, {"num_hit_tokens": "3"}, "no integer of 32 bits"),
        ("admit", 0, {"num_hit_tokens": 0, "after": {"num_pages": 3}}, "is no counter"),
        ("admit", 0, {"num_hit_tokens": 0, "after": {"status": "asleep"}}, "is no status"),
    ],
)
def test_a_wrong_call_is_told_and_nothing_is_written(
    tmp_path: Path, event: str, request_number: int, arguments: Any, says: str
) -> None:
    path = tmp_path / "t.ndjson"
    with TraceWriter(path, header_for(rules_for(False)), in_background=False) as trace:
        trace.request("a", 4, step=0)
        with pytest.raises(TraceError, match=says):
            trace.emit(event, request_number, step=0, **arguments)
        wrong = np.full((1, columns.NUM_LINES), ABSENT, np.int32)
        for rows in (wrong, wrong[:, :5]):
            with pytest.raises(TraceError):
                trace.emit_rows(rows)
    assert checked(path).num_records == 1 and not checked(path).damages


def test_a_trace_is_never_written_over_a_file(tmp_path: Path) -> None:
    recorded(tmp_path / "t.ndjson", False)
    with pytest.raises(TraceError, match="exists already"):
        recorded(tmp_path / "t.ndjson", False)
    with pytest.raises(TraceError, match="cannot be written"):
        recorded(tmp_path / "nowhere" / "t.ndjson", False)


def test_a_million_events_are_checked_in_little_memory(tmp_path: Path) -> None:
    """What Python and numpy hold at most; the same for ten times as many, since only pieces are read."""
    rules = rules_for(False)
    path = tmp_path / "t.parquet"
    small = recorded(tmp_path / "t.ndjson", False, count=60)
    chunks: list[Chunk] = []
    with ThreadPoolExecutor(1) as pool:
        for part in read_ndjson(str(small), pool, 1, lambda count: None):
            if isinstance(part, Chunk):
                chunks.append(part)
    (chunk,) = chunks
    keep = chunk.lines[columns.CODE] >= 0
    lines, size = chunk.lines[:, keep], int(keep.sum())
    writer = ParquetWriter(path, header_for(rules))
    times = 1_000_000 // size + 1
    many = 200
    for begin in range(0, times, many):
        copies = np.tile(lines, many)
        copies[columns.REQUEST_NUMBER] += np.repeat(np.arange(begin, begin + many) * 60, size).astype(
            np.int32
        )
        sequences = np.arange(begin * size, (begin + many) * size)
        writer.write(Chunk(copies, sequences, np.zeros(many * size, np.bool_)))
    total = writer.num_records
    writer.close(total)
    tracemalloc.start()
    report = check_source(Source((str(path),), 0), num_threads=2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.verdict == "clean" and report.num_records == total >= 1_000_000
    assert peak < 150 * 2**20
    assert pack(Source((str(small),), 0), tmp_path / "again.parquet") == size

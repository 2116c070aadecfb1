"""What is there to check? One recording of our own scheduler, and the same again and again.

256 running requests with three drafts: a complete recording, repeated with other request numbers until there
are as many events as asked for. And what recording takes of the thread that drives the scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.impl.scheduler.config import KVGroup, SchedulerConfig
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.impl.traces.columns import (
    CODE,
    FIRST_COUNTER,
    NUM_LINES,
    NUM_NEW_TOKENS,
    REQUEST_NUMBER,
    STEP,
    Chunk,
)
from draftproof.impl.traces.format import ABSENT, EVENT_NAMES
from draftproof.impl.traces.parquet import ParquetWriter
from draftproof.impl.traces.parts import Named
from draftproof.impl.traces.reading import read_ndjson
from draftproof.impl.traces.recorder import TraceWriter
from draftproof.impl.traces.recording_scheduler import RecordingScheduler, header_of

NUM_SEQS, NUM_DRAFTS, BLOCK_SIZE = 256, 3, 16


def configuration(num_seqs: int = NUM_SEQS) -> SchedulerConfig:
    """A synchronous scheduler with room for all."""
    return SchedulerConfig(
        max_model_len=512,
        num_blocks=num_seqs * 40,
        groups=(KVGroup(BLOCK_SIZE),),
        max_num_seqs=num_seqs,
        max_num_requests=num_seqs,
        max_num_batched_tokens=8192,
        num_speculative_tokens=NUM_DRAFTS,
    )


def drive(scheduler: Scheduler, num_steps: int, seed: int = 0) -> tuple[int, list[float]]:
    """Random acceptance, always as many requests as fit; then all come to their end. Processor seconds of
    each step's calls to the scheduler; and how many steps."""
    rng = np.random.default_rng(seed)
    seconds: list[float] = []
    count = 0
    num_seqs = scheduler.config.max_num_seqs
    while len(seconds) < num_steps or scheduler.has_unfinished_requests():
        while len(seconds) < num_steps and len(scheduler.rows) < num_seqs:
            prompt = rng.integers(0, 1000, int(rng.integers(10, 120))).tolist()
            scheduler.add(f"request {count}", prompt, max_tokens=int(rng.integers(20, 200)))
            count += 1
        begin = time.thread_time()
        batch = scheduler.schedule()
        spent = time.thread_time() - begin
        rows = batch.num_requests
        if rows == 0:
            continue
        sampled = rng.integers(0, 1000, (rows, 1 + NUM_DRAFTS)).astype(np.int32)
        accepted = np.minimum(rng.integers(0, NUM_DRAFTS + 2, rows), batch.num_draft_tokens[:rows])
        num_sampled = ((accepted + 1) * batch.samples[:rows]).astype(np.int32)
        drafts = rng.integers(0, 1000, (rows, NUM_DRAFTS)).astype(np.int32)
        num_drafts = np.full(rows, NUM_DRAFTS, np.int32)
        served = batch.rows[:rows].copy()
        begin = time.thread_time()
        scheduler.settle(batch, sampled, num_sampled)
        scheduler.take_drafts(served, drafts, num_drafts)
        seconds.append(spent + time.thread_time() - begin)
    return count, seconds


def record(folder: Path, num_steps: int) -> Path:
    """A recording as NDJSON."""
    path = folder / "recording.ndjson"
    config = configuration()
    with TraceWriter(path, header_of(config)) as trace:
        drive(RecordingScheduler(config, trace), num_steps)
    return path


def in_memory(path: Path) -> tuple[Any, list[Chunk]]:
    """The recording's header and its records."""
    header, chunks = None, []
    with ThreadPoolExecutor(1) as pool:
        for part in read_ndjson(str(path), pool, 2, lambda count: None):
            if isinstance(part, Chunk):
                chunks.append(part)
            elif not isinstance(part, Named):
                header = part
    return header, chunks


def num_records(chunks: list[Chunk]) -> int:
    """Records about requests; other lines have rows, too."""
    return sum(int(np.count_nonzero(chunk.lines[CODE] >= 0)) for chunk in chunks)


def repeat(header: Any, chunks: list[Chunk], num_events: int, path: Path, say: Callable[[int], None]) -> None:
    """The recording again and again, as one Parquet trace of so many events: the last one is cut. `say` is
    told how many there are so far."""
    writer = ParquetWriter(path, header)
    size = num_records(chunks)
    num_requests = 1 + max(int(chunk.lines[REQUEST_NUMBER].max()) for chunk in chunks)
    num_steps = 1 + max(int(chunk.lines[STEP].max()) for chunk in chunks)
    for time_ in range(-(-num_events // size)):
        for chunk in chunks:
            kept = np.flatnonzero(chunk.lines[CODE] >= 0)[: num_events - writer.num_records]
            if kept.size == 0:
                break
            lines = chunk.lines[:, kept]
            lines[REQUEST_NUMBER] += time_ * num_requests
            lines[STEP] += time_ * num_steps
            writer.write(Chunk(lines, chunk.sequences[kept] + time_ * size, chunk.tainted[kept]))
        say(writer.num_records)
    writer.close(num_events)


def recording_cost(folder: Path, num_steps: int = 300) -> tuple[float, float]:
    """Microseconds of a step at 256 running requests, without and with recording (the calling thread's)."""
    config = configuration()
    plain = Scheduler(config)
    drive(plain, num_steps)
    _, without = drive(plain, num_steps, 1)
    path = folder / "cost.ndjson"
    with TraceWriter(path, header_of(config)) as trace:
        scheduler = RecordingScheduler(config, trace)
        drive(scheduler, num_steps)
        _, with_it = drive(scheduler, num_steps, 1)
    path.unlink()
    return float(np.median(without)) * 1e6, float(np.median(with_it)) * 1e6


def hand_over_cost(folder: Path, num_steps: int = 2000) -> float:
    """Microseconds that a step's records of 256 requests take of the thread that hands them over."""
    rows = np.full((NUM_SEQS, NUM_LINES), ABSENT, np.int32)
    rows[:, CODE], rows[:, STEP] = EVENT_NAMES.index("schedule"), 0
    rows[:, REQUEST_NUMBER], rows[:, NUM_NEW_TOKENS] = range(NUM_SEQS), 1 + NUM_DRAFTS
    rows[:, FIRST_COUNTER:] = 1
    path = folder / "handed.ndjson"
    seconds = []
    with TraceWriter(path, header_of(configuration())) as trace:
        for place in range(NUM_SEQS):
            trace.request(str(place), 100, step=0)
        for _ in range(num_steps):
            begin = time.thread_time()
            trace.emit_rows(rows)
            seconds.append(time.thread_time() - begin)
            time.sleep(0.0005)  # an engine has a step to do: the blocks are written meanwhile
    path.unlink()
    return float(np.median(seconds)) * 1e6

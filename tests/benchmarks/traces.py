"""How fast are traces checked and recorded? `python tests/benchmarks/traces.py [--events N] [--json FILE]`.

One complete recording of our own scheduler (256 running requests, K = 3) is made, and repeated with other
request numbers until there are as many events as asked for. Times are of the processor (all threads), and of
the clock: on a busy machine only the former can be compared. Every figure is the best of several runs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from draftproof.impl.scheduler.config import KVGroup, SchedulerConfig
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.impl.traces import format as trace_format
from draftproof.impl.traces.checking import check_source
from draftproof.impl.traces.columns import CODE, REQUEST_NUMBER, STEP, Chunk
from draftproof.impl.traces.parquet import ParquetWriter
from draftproof.impl.traces.reading import Named, read_ndjson
from draftproof.impl.traces.recorder import TraceWriter
from draftproof.impl.traces.recording_scheduler import RecordingScheduler, header_of
from draftproof.impl.traces.sources import Source

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
    from concurrent.futures import ThreadPoolExecutor

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


def repeat(header: Any, chunks: list[Chunk], num_events: int, path: Path) -> int:
    """The recording again and again, as one Parquet trace of about so many events."""
    writer = ParquetWriter(path, header)
    size = num_records(chunks)
    num_requests = 1 + max(int(chunk.lines[REQUEST_NUMBER].max()) for chunk in chunks)
    num_steps = 1 + max(int(chunk.lines[STEP].max()) for chunk in chunks)
    times = max(1, num_events // size)
    for time_ in range(times):
        for chunk in chunks:
            lines = chunk.lines.copy()
            lines[REQUEST_NUMBER] += time_ * num_requests
            lines[STEP] += time_ * num_steps
            writer.write(Chunk(lines, chunk.sequences + time_ * size, chunk.tainted))
    writer.close(times * size)
    return times * size


def best(action: Callable[[], Any], times: int) -> tuple[float, float]:
    """Processor and clock seconds, the least of several runs."""
    found = []
    for _ in range(times):
        begin, clock = time.process_time(), time.perf_counter()
        action()
        found.append((time.process_time() - begin, time.perf_counter() - clock))
    return min(one for one, _ in found), min(one for _, one in found)


def measured(path: Path, threads: int) -> dict[str, float]:
    """A check in a process of its own, which has nothing else in memory: the best of three."""
    command = [sys.executable, __file__, "--measure", str(path), "--threads", str(threads)]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(3)]
    return {name: min(run[name] for run in runs) for name in runs[0]}


def peak_megabytes() -> float:
    """The most memory this process has had, from Linux if it says so: `getrusage` counts the parent, too."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(path: Path, threads: int) -> None:
    """What `measured` runs."""
    check_source(Source((str(path),), 0), num_threads=threads)  # compiled, and files in memory
    processor, clock = best(check(path, threads), 1)
    peak = peak_megabytes()
    print(json.dumps({"processor_seconds": processor, "seconds": clock, "peak_megabytes": peak}))


def check(path: Path, threads: int = 1) -> Callable[[], None]:
    """Check a trace that is clean."""

    def action() -> None:
        report = check_source(Source((str(path),), 0), num_threads=threads)
        assert report.verdict == "clean", (report.verdict, report.damages[:3])

    return action


def bare_decoder(path: Path) -> Callable[[], None]:
    """Every line of the file through the typed decoder, and nothing else done with it."""
    decode = msgspec.json.Decoder(trace_format.ANY_RECORD).decode

    def action() -> None:
        with path.open("rb") as file:
            for line in file:
                decode(line)

    return action


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


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=4_000_000, help="of the largest Parquet trace")
    parser.add_argument("--steps", type=int, default=1000, help="of the recording that is repeated")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help="of the checks of Parquet traces")
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.threads)
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ndjson = record(folder, options.steps)
        header, chunks = in_memory(ndjson)
        count = num_records(chunks)
        figures["recording"] = {"events": count, "bytes": ndjson.stat().st_size}
        check(ndjson)()  # compiles
        bare, _ = best(bare_decoder(ndjson), 3)
        checked, clock = best(check(ndjson), 3)
        figures["ndjson"] = {
            "events_per_processor_second": count / checked,
            "events_per_second": count / clock,
            "bare_decoder_per_processor_second": count / bare,
            "share_of_bare_decoder": bare / checked,
        }
        figures["parquet"] = []
        size = min(1_000_000, options.events)
        while size <= options.events:
            path = folder / "large.parquet"
            size_written = repeat(header, chunks, size, path)
            found = measured(path, options.threads)
            figures["parquet"].append(
                {
                    "events": size_written,
                    "bytes_per_event": path.stat().st_size / size_written,
                    "events_per_processor_second": size_written / found["processor_seconds"],
                    "events_per_second": size_written / found["seconds"],
                }
                | found
            )
            path.unlink()
            size *= 10 if size * 10 <= options.events else 2
        without, with_it = recording_cost(folder)
        figures["recording_cost"] = {"step_us": without, "recorded_step_us": with_it}
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

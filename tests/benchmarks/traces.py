"""How fast are traces checked and recorded, with how much memory, and does the time grow as the trace does?

A benchmark, not a test: nothing is asserted about time. One recording of our own scheduler (256 running
requests, three drafts) is checked as NDJSON beside the bare typed decoder, round by round in turn, and as
Parquet in several lengths, each check in a process of its own, the lengths in turn. Seconds are the
processor's, of all threads; of all rounds the fastest counts. `python -m tests.benchmarks.traces` prints a
table and writes build/bench/traces.json and a plot, build/bench/traces.svg; `--full` goes to 100 million
events (a quarter of an hour, 1.2 GB on the disk).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.benchmarks.line_plot import Axis, Panel, logarithmic, svg
from tests.benchmarks.traces_measure import check
from tests.benchmarks.traces_recordings import (
    hand_over_cost,
    in_memory,
    num_records,
    record,
    recording_cost,
    repeat,
)

from draftproof.impl.traces import format as trace_format

ROOT = Path(__file__).parents[2]
OUTPUT, PLOT = Path("build/bench/traces.json"), Path("build/bench/traces.svg")
SIZES, FULL_SIZES = "1,3,10", "1,3,10,30,100"
"""Millions of events."""
MILLION = 1_000_000
PARQUET_GOAL, NDJSON_GOAL, DECODER_GOAL, MEMORY_GOAL = 5_000_000, 250_000, 0.7, 500
Say = Callable[[str], None]


def bare_decoder(path: Path) -> Callable[[], None]:
    """Every line of the file through the typed decoder, and nothing else done with it."""
    decode = msgspec.json.Decoder(trace_format.ANY_RECORD).decode

    def action() -> None:
        with path.open("rb") as file:
            for line in file:
                decode(line)

    return action


def processor_seconds(action: Callable[[], None]) -> float:
    """Of all threads of this process."""
    begin = time.process_time()
    action()
    return time.process_time() - begin


def ndjson_figures(path: Path, count: int, num_rounds: int, say: Say) -> dict[str, Any]:
    """The check and the bare decoder, in turn."""
    say("NDJSON: compiling or loading the checker")
    check(str(path), 1)
    checked, bare = [], []
    decode = bare_decoder(path)
    for place in range(num_rounds):
        say(f"NDJSON, round {place + 1} of {num_rounds}")
        bare.append(processor_seconds(decode))
        checked.append(processor_seconds(lambda: check(str(path), 1)))
    return {
        "events": count,
        "bytes": path.stat().st_size,
        "events_per_second": count / min(checked),
        "bare_decoder_per_second": count / min(bare),
        "share_of_bare_decoder": min(bare) / min(checked),
        "rounds_seconds": {"checked": checked, "bare_decoder": bare},
    }


def measured(first: Path, path: Path, num_threads: int) -> dict[str, float]:
    """A check in a process of its own, which has nothing else in memory."""
    command = [sys.executable, "-m", "tests.benchmarks.traces_measure", str(first), str(path)]
    done = subprocess.run([*command, str(num_threads)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{path} was not checked: {done.stderr.strip()[-500:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def parquet_figures(
    folder: Path, ndjson: Path, sizes: list[int], num_rounds: int, num_threads: int, say: Say
) -> list[dict[str, Any]]:
    """A row for each length."""
    header, chunks = in_memory(ndjson)
    written: list[tuple[Path, int]] = []
    for size in sizes:
        path = folder / f"{size}.parquet"

        def told(done: int, size: int = size) -> None:
            say(f"Parquet: writing {done:,} of {size:,} events")

        repeat(header, chunks, size, path, told)
        written.append((path, size))
    runs: list[list[dict[str, float]]] = [[] for _ in written]
    for place in range(num_rounds):
        for (path, count), found in zip(written, runs, strict=True):
            say(f"Parquet, round {place + 1} of {num_rounds}: {count:,} events")
            found.append(measured(written[0][0], path, num_threads))
    return [
        {
            "events": count,
            "bytes_per_event": path.stat().st_size / count,
            "processor_seconds": min(run["processor_seconds"] for run in found),
            "seconds": min(run["seconds"] for run in found),
            "events_per_second": count / min(run["processor_seconds"] for run in found),
            "peak_megabytes": max(run["peak_megabytes"] for run in found),
            "rounds_seconds": [run["processor_seconds"] for run in found],
        }
        for (path, count), found in zip(written, runs, strict=True)
    ]


def line_through(rows: list[dict[str, Any]]) -> dict[str, float] | None:
    """A straight line: seconds that any check takes, and seconds a million events, with the least squares of
    the relative errors; and the largest of these errors. None for fewer than three lengths: a line goes
    through any two points."""
    if len(rows) < 3:
        return None
    events, seconds = (np.array([row[name] for row in rows]) for name in ("events", "processor_seconds"))
    terms = np.stack([1 / seconds, events / MILLION / seconds], axis=1)
    (start, slope), *_ = np.linalg.lstsq(terms, np.ones(len(rows)))
    errors = np.abs(terms @ (start, slope) - 1)
    return {"start": float(start), "seconds_per_million": float(slope), "largest_error": float(errors.max())}


def plot(figures: dict[str, Any]) -> str:
    """Time and memory against the length."""
    rows, fit = figures["parquet"], figures["line"]
    events = [row["events"] for row in rows]
    names = [(MILLION * power, f"{power:g}") for power in (0.01, 0.1, 1, 10, 100, 1000)]
    x = logarithmic("million events", events, names)
    seconds = [(row["events"], row["processor_seconds"]) for row in rows]
    line, text = [], "too few lengths for a line"
    if fit is not None:
        steps = np.geomspace(events[0], events[-1], 50).tolist()
        line = [(at, fit["start"] + fit["seconds_per_million"] * at / MILLION) for at in steps]
        line = [(at, height) for at, height in line if height > 0]
        slope, error = fit["seconds_per_million"], fit["largest_error"]
        text = f"a straight line: {slope:.3f} s a million, off by {error:.0%} at most"
    memory = [(row["events"], row["peak_megabytes"]) for row in rows]
    highest = max(600, 100 * math.ceil(max(peak for _, peak in memory) / 100))
    heights = [(height, f"{height}") for height in range(0, highest + 1, 100)]
    return svg(
        "Time and memory of checking a trace, by its length",
        "; ".join(
            f"{row['events']:,} events: {row['processor_seconds']:.2f} s, {row['peak_megabytes']:.0f} MB"
            for row in rows
        ),
        [
            Panel("Time to check a trace", text, x, logarithmic("processor seconds", [y for _, y in seconds]),
                  seconds, line),
            Panel("Memory of the process", "the most it ever had", x,
                  Axis("MB", 0, highest, heights), memory, memory, (MEMORY_GOAL, f"goal: {MEMORY_GOAL} MB")),
        ],
    )  # fmt: skip


def table(figures: dict[str, Any]) -> str:
    """For a terminal."""
    ndjson, fit, cost = figures["ndjson"], figures["line"], figures["recording"]
    lines = [
        "checking a trace in Parquet; seconds are the processor's, the least of all rounds",
        "",
        f"{'events':>12}{'seconds':>10}{'events/s a core':>18}{'bytes/event':>13}{'peak MB':>9}",
    ]
    for row in figures["parquet"]:
        lines.append(
            f"{row['events']:>12,}{row['processor_seconds']:>10.2f}{row['events_per_second']:>18,.0f}"
            f"{row['bytes_per_event']:>13.1f}{row['peak_megabytes']:>9.0f}"
        )
    lines.append(f"goals: at least {PARQUET_GOAL:,} events a second a core; under {MEMORY_GOAL} MB")
    if fit is not None:
        lines.append(
            f"a straight line, {fit['start']:.2f} s and {fit['seconds_per_million']:.3f} s a million events, "
            f"is nowhere off by more than {fit['largest_error']:.0%}"
        )
    return "\n".join(
        [
            *lines,
            "",
            f"NDJSON: {ndjson['events_per_second']:,.0f} events a second a core (goal: {NDJSON_GOAL:,}), "
            f"{ndjson['share_of_bare_decoder']:.0%} of the bare typed decoder's "
            f"{ndjson['bare_decoder_per_second']:,.0f} (goal: {DECODER_GOAL:.0%})",
            f"recording 256 requests: {cost['hand_over_us']:.1f} us to hand over a step's records; our own "
            f"scheduler's step {cost['step_us']:.0f} us, recorded {cost['recorded_step_us']:.0f} us",
        ]
    )


def sizes_of(text: str) -> list[int]:
    """Events, from millions: `0.5,1,10`."""
    try:
        found = sorted({round(float(part) * MILLION) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} are no millions such as 1,3,10") from None
    if not found or found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a trace has events")
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Time the checker of traces.")
    parser.add_argument("--sizes", type=sizes_of, help=f"of Parquet traces, in million events ({SIZES})")
    parser.add_argument("--full", action="store_true", help=f"the same as --sizes {FULL_SIZES}")
    parser.add_argument("--rounds", type=int, default=3, help="how often each check is run")
    parser.add_argument("--threads", type=int, default=1, help="of the checks of Parquet traces")
    parser.add_argument("--steps", type=int, default=1000, help="of the recording that is repeated")
    parser.add_argument("--json", type=Path, default=OUTPUT, help="where the figures go")
    parser.add_argument("--plot", type=Path, help=f"write the plot here, too, besides {PLOT}")
    arguments = parser.parse_args()
    sizes = arguments.sizes or sizes_of(FULL_SIZES if arguments.full else SIZES)
    watched = sys.stderr.isatty()

    def say(text: str) -> None:
        if watched:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        need, room = 12 * sum(sizes), shutil.disk_usage(folder).free
        if room < need:
            parser.error(
                f"{folder.parent} has {room / 1e9:.1f} GB left and {need / 1e9:.1f} GB are needed: "
                "TMPDIR names another folder"
            )
        say("recording a scheduler")
        ndjson = record(folder, arguments.steps)
        count = sum(num_records([chunk]) for chunk in in_memory(ndjson)[1])
        figures["ndjson"] = ndjson_figures(ndjson, count, arguments.rounds, say)
        figures["parquet"] = parquet_figures(folder, ndjson, sizes, arguments.rounds, arguments.threads, say)
        figures["line"] = line_through(figures["parquet"])
        say("recording: what it costs the engine")
        without, with_it = recording_cost(folder)
        figures["recording"] = {
            "step_us": without,
            "recorded_step_us": with_it,
            "hand_over_us": hand_over_cost(folder),
        }
    say("")
    figures["machine"] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "load": [round(load, 1) for load in os.getloadavg()],
    }
    drawn = plot(figures)
    for path, text in ((arguments.json, json.dumps(figures, indent=1) + "\n"), (PLOT, drawn)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    print(table(figures))
    print(f"written to {arguments.json} and {PLOT}")
    if arguments.plot:
        arguments.plot.write_text(drawn)


if __name__ == "__main__":
    main()

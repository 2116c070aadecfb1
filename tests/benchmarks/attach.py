"""What do the checks cost? vLLM's own scheduler step, and the same with the checks around it.

A benchmark, not a test: nothing is asserted about time. All sides run the same steps, round by round in turn;
of each step the fastest round counts, in thread CPU time, and a ratio is a checked mean over vLLM's. What
recording costs is what it adds to the checks in the engine's thread; the thread that writes is told apart.
`.venv-vllm/bin/python -m tests.benchmarks.attach` prints the table and writes build/bench/attach.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.vllm import (
    MODES,
    WARM_UP_STEPS,
    Run,
    build,
    decode_settings,
    decoding,
    drive,
    fastest,
    mean,
)

from draftproof.impl.attach.vllm.around import Around
from draftproof.impl.attach.vllm.install import Installed
from draftproof.impl.attach.vllm.reports import Report
from draftproof.impl.attach.vllm.settings import Settings

OUTPUT = Path("build/bench/attach.json")
STEPS = {1: 160, 8: 160, 32: 96, 256: 48, 1_024: 16}
"""By number of running requests; with three drafts a block is filled every fifth step or so."""


class Side(NamedTuple):
    """One way of running the steps."""

    name: str
    settings: Settings | None
    goal: float | None


SIDES = (
    Side("vllm", None, None),
    Side("counters", Settings(content=False), 1.5),
    Side("content", Settings(content=True), 3.0),
    Side("record", Settings(mode="record"), None),
)


@contextlib.contextmanager
def checked(side: Side, folder: str) -> Iterator[None]:
    """vLLM's scheduler with this side's checks in place."""
    if side.settings is None:
        yield
        return
    settings = side.settings
    if settings.mode == "record":
        settings = settings._replace(trace_path=str(Path(folder) / f"{len(os.listdir(folder))}.ndjson"))
    report = Report()
    installed = Installed(Around(settings, report))
    try:
        yield
    finally:
        installed.remove()
        installed.around.close()
    assert report.total("steps") > 0 and not report.violations and not report.unjudged, report.summary()


class Measured(NamedTuple):
    """One side's run, and what its other threads did: the one that writes the trace, if there is one."""

    run: Run
    others_us: float
    """Processor time a step."""


def measure_one(size: int, num_drafts: int, asynchronous: bool, side: Side) -> Measured:
    """One side's steps: all of them decode."""
    settings, count = decode_settings(size, num_drafts, asynchronous), STEPS[size]
    with tempfile.TemporaryDirectory() as folder:
        with checked(side, folder):
            scheduler = build("vllm", settings, size)
            begun = time.process_time_ns() - time.thread_time_ns()
            run = drive(scheduler, decoding(size), first=WARM_UP_STEPS, num_steps=count)
        others = time.process_time_ns() - time.thread_time_ns() - begun
    return Measured(run, others / 1_000 / (WARM_UP_STEPS + count))


def measure(
    num_rounds: int, sizes: list[int], sides: list[Side], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One row for each size, number of drafts and mode."""
    rows = []
    for mode, asynchronous in MODES.items():
        for num_drafts in (0, 3):
            for size in sizes:
                say(f"{size} requests, K={num_drafts}, {mode}")
                measured = [
                    {side.name: measure_one(size, num_drafts, asynchronous, side) for side in sides}
                    for _ in range(num_rounds)
                ]
                rounds = [{name: one.run for name, one in runs.items()} for runs in measured]
                means = {side.name: mean(fastest(rounds, side.name)) for side in sides}
                all_rounds = {side.name: [mean(runs[side.name].steps) for runs in rounds] for side in sides}
                row: dict[str, Any] = {"n": size, "k": num_drafts, "mode": mode}
                row |= {f"{name}_us": round(value, 1) for name, value in means.items()}
                row |= {
                    f"{name}_rounds_us": [round(value, 1) for value in values]
                    for name, values in all_rounds.items()
                }
                row |= {
                    f"{side.name}_ratio": round(means[side.name] / means["vllm"], 2)
                    for side in sides
                    if side.settings is not None
                }
                if "record" in means and "content" in means:
                    writing = min(runs["record"].others_us for runs in measured)
                    row["recording_share"] = round((means["record"] - means["content"]) / means["vllm"], 3)
                    row["writing_us"] = round(writing, 1)
                    row["writing_share"] = round(writing / means["vllm"], 3)
                rows.append(row)
    return rows


def table(rows: list[dict[str, Any]], sides: list[Side]) -> str:
    """For a terminal."""
    named = [side for side in sides if side.settings is not None]
    head = f"{'requests':>8}{'K':>3}  {'mode':13}{'vLLM us':>10}" + "".join(
        f"{side.name:>12}" for side in named
    )
    if rows and "recording_share" in rows[0]:
        head += f"{'recording':>11}{'writing':>11}"
    lines = [
        "a scheduler step of vLLM, and how many times as long it takes with the checks around it",
        "",
        head,
    ]
    for row in rows:
        cells = "".join(f"{row[f'{side.name}_ratio']:>11.2f}x" for side in named)
        if "recording_share" in row:
            cells += f"{row['recording_share']:>11.1%}{row['writing_share']:>11.1%}"
        lines.append(f"{row['n']:>8}{row['k']:>3}  {row['mode']:13}{row['vllm_us']:>10,.1f}{cells}")
    goals = ", ".join(f"{side.name} {side.goal}" for side in named if side.goal is not None)
    return "\n".join([*lines, "", f"goals: {goals}; recording 10% of vLLM's step at 256 requests"])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Time vLLM's scheduler with and without the checks.")
    parser.add_argument("--rounds", type=int, default=3, help="how often each workload is run on every side")
    parser.add_argument("--sizes", default="1,8,32,256,1024", help="running requests")
    parser.add_argument(
        "--sides", default="vllm,counters,content,record", help=", ".join(side.name for side in SIDES)
    )
    arguments = parser.parse_args()
    chosen = [side for side in SIDES if side.name in arguments.sides.split(",") or side.settings is None]
    watched = sys.stderr.isatty()

    def say(text: str) -> None:
        if watched:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    rows = measure(arguments.rounds, [int(size) for size in arguments.sizes.split(",")], chosen, say)
    say("")
    machine = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
    }
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps({"rows": rows, "machine": machine}, indent=1) + "\n")
    print(table(rows, chosen))
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()

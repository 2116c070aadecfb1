"""How much faster does the scheduler decide than vLLM 0.32's, on the same steps, side by side?

A benchmark, not a test: nothing is asserted about time. Both sides run in this process, one after the other,
round by round. Every round does the same work, so of each step the fastest round counts, on both sides; the
figures are means over the steps, of thread CPU time, and a ratio is vLLM's mean over ours.
vLLM builds one Python output object for each request and step; ours hands out arrays, and is measured with
such objects too. `make bench-vllm` prints the table and writes build/bench/scheduler.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.vllm.timed import Timed, TimedOurs, TimedTheirs
from tests.vllm.workloads import Settings

OUTPUT = Path("build/bench/scheduler.json")
MODES = {"synchronous": False, "asynchronous": True}
MOST_TOKENS = 100_000
WARM_UP_STEPS = 20
Request = tuple[int, Sequence[int], int]
"""Number, prompt and most output tokens."""


class Run(NamedTuple):
    """One side's run of a workload, in nanoseconds."""

    steps: list[int]
    arrivals: list[int]
    shapes: list[tuple[int, int]]
    """Requests and tokens of every step."""
    num_preemptions: int


class Goal(NamedTuple):
    """Ratios."""

    goal: int
    accepted: int


GOALS = {1: Goal(8, 5), 32: Goal(80, 50), 256: Goal(150, 100), 1_024: Goal(150, 100)}
"""By number of running requests."""
OBJECTS_GOAL, ARRIVALS_GOAL, PRESSURE_GOAL = Goal(40, 30), Goal(100, 80), Goal(100, 80)


def drive(
    side: Timed, arrivals: Mapping[int, Sequence[Request]], *, first: int = 0, num_steps: int | None = None
) -> Run:
    """Run a side: requests arrive before their steps, and asynchronously one step runs ahead.

    Kept are the steps from `first` on, to the end of the work or `num_steps` of them.
    """
    in_flight: deque[Any] = deque()
    run = Run([], [], [], 0)
    last_arrival = max(arrivals)
    gc.collect()
    gc.freeze()  # what was built before is no part of a step
    step = 0
    while step <= last_arrival or side.unfinished():
        if num_steps is not None and step == first + num_steps:
            break
        adding = [side.add(*request) for request in arrivals.get(step, ())]
        native, spent = side.schedule()
        if side.num_rows:
            in_flight.append(native)
        shape = side.num_rows, side.num_tokens
        if in_flight and not (side.settings.asynchronous and len(in_flight) < 2 and side.num_rows):
            spent += side.settle(in_flight.popleft())
        if step >= first:
            run.steps.append(spent)
            run.arrivals.extend(adding)
            run.shapes.append(shape)
        step += 1
    gc.unfreeze()
    return run._replace(num_preemptions=side.num_preemptions)


def prompt(number: int, length: int) -> list[int]:
    """A prompt that no other request shares."""
    return [(number * 7_919 + place * 13) % 29_000 + 5 for place in range(length)]


def decoding(num_requests: int) -> dict[int, list[Request]]:
    """So many requests of 40 tokens that decode for ever."""
    return {0: [(number, prompt(number, 40), MOST_TOKENS) for number in range(num_requests)]}


def decode_settings(num_requests: int, num_drafts: int, asynchronous: bool) -> Settings:
    """Room for all of them, and for all steps that are measured."""
    return Settings(
        num_blocks=num_requests * 160 + 2_000,
        max_num_seqs=num_requests,
        max_num_batched_tokens=max(8_192, num_requests * (num_drafts + 1) * 2),
        max_model_len=16_384,
        num_speculative_tokens=num_drafts,
        asynchronous=asynchronous,
    )


def decode(num_requests: int, num_drafts: int, asynchronous: bool, sides: Sequence[str]) -> dict[str, Run]:
    """Steps of running requests only, a multiple of 16: then a whole number of blocks is filled."""
    settings = decode_settings(num_requests, num_drafts, asynchronous)
    # Both measure about the same time, so ours runs more steps.
    steps = {"vllm": {1: 320, 32: 160, 256: 64, 1_024: 32}[num_requests]}
    steps |= dict.fromkeys(("ours", "objects"), 640)
    return {
        name: drive(
            build(name, settings, num_requests),
            decoding(num_requests),
            first=WARM_UP_STEPS,
            num_steps=steps[name],
        )
        for name in sides
    }


def build(name: str, settings: Settings, num_requests: int) -> Timed:
    """A side by its name: `vllm`, `ours` (arrays), `objects` (ours, with an output object a request)."""
    if name == "vllm":
        return TimedTheirs(settings)
    return TimedOurs(settings, num_requests=num_requests, objects=name == "objects")


def arrive(num_drafts: int, asynchronous: bool, sides: Sequence[str]) -> dict[str, Run]:
    """256 requests decode; 64 prompts of 2,000 tokens arrive at once, which share their first 1,000."""
    settings = Settings(
        num_blocks=40_000,
        max_num_seqs=512,
        max_num_batched_tokens=8_192,
        max_model_len=16_384,
        num_speculative_tokens=num_drafts,
        asynchronous=asynchronous,
    )
    shared = prompt(999, 1_000)
    work = decoding(256) | {
        30: [(1_000 + number, shared + prompt(5_000 + number, 1_000), MOST_TOKENS) for number in range(64)]
    }
    return {name: drive(build(name, settings, 512), work, first=30, num_steps=30) for name in sides}


def press(num_drafts: int, asynchronous: bool, sides: Sequence[str]) -> dict[str, Run]:
    """300 requests in a pool for about a hundred: preemptions from the first hundred steps to the last."""
    settings = Settings(
        num_blocks=1_600,
        max_num_seqs=128,
        max_num_batched_tokens=2_048,
        max_model_len=4_096,
        num_speculative_tokens=num_drafts,
        asynchronous=asynchronous,
    )
    work = {
        0: [(number, prompt(number, 100 + number % 57), 150 + number * 37 % 200) for number in range(300)]
    }
    return {name: drive(build(name, settings, 300), work) for name in sides}


def fastest(rounds: Sequence[dict[str, Run]], side: str) -> list[int]:
    """Of each step its fastest round: every round does the same work, and the neighbours on a shared machine
    take milliseconds now and then."""
    return [min(times) for times in zip(*(runs[side].steps for runs in rounds), strict=True)]


def mean(times: Iterable[int]) -> float:
    """In microseconds."""
    return statistics.fmean(times) / 1_000


def figures(
    rounds: Sequence[dict[str, Run]], ours: str, labels: dict[str, Any], goal: Goal
) -> dict[str, Any]:
    """One row: means over all steps, in microseconds, and their ratio."""
    steps = {name: fastest(rounds, name) for name in ("vllm", ours)}
    everything = {name: mean(one for runs in rounds for one in runs[name].steps) for name in steps}
    row = {
        **labels,
        "ratio": round(mean(steps["vllm"]) / mean(steps[ours]), 1),
        "ratio_of_all_rounds": round(everything["vllm"] / everything[ours], 1),
        "vllm_us": round(mean(steps["vllm"]), 2),
        "ours_us": round(mean(steps[ours]), 2),
        "worst_vllm_us": round(max(steps["vllm"]) / 1_000, 1),
        "worst_ours_us": round(max(steps[ours]) / 1_000, 1),
        "goal": goal.goal,
        "accepted_at": goal.accepted,
    }
    theirs, own = rounds[0]["vllm"], rounds[0][ours]
    if theirs.arrivals:
        for side, name in (("vllm", "add_vllm_us"), (ours, "add_ours_us")):
            adding = [time for runs in rounds for time in runs[side].arrivals]
            row[name] = round(statistics.median(adding) / 1_000, 2)
    if theirs.num_preemptions:
        row["preemptions"] = [theirs.num_preemptions, own.num_preemptions]
    return row


def measure(num_rounds: int, sizes: Sequence[int], say: Callable[[str], None]) -> dict[str, Any]:
    """All rows, by kind of workload."""
    report: dict[str, Any] = {"decode": [], "decode_with_objects": [], "arrivals": [], "pressure": []}
    say("compiling")
    decode(1, 3, False, ["vllm", "ours", "objects"])
    for mode, asynchronous in MODES.items():
        for num_drafts in (0, 3):
            labels: dict[str, Any] = {"k": num_drafts, "mode": mode}
            for size in sizes:
                say(f"decode, {size} requests, K={num_drafts}, {mode}")
                rounds = [
                    decode(size, num_drafts, asynchronous, ["vllm", "ours", "objects"])
                    for _ in range(num_rounds)
                ]
                report["decode"].append(figures(rounds, "ours", {"n": size} | labels, GOALS[size]))
                row = figures(rounds, "objects", {"n": size} | labels, OBJECTS_GOAL)
                if size != 1_024:
                    del row["goal"], row["accepted_at"]
                report["decode_with_objects"].append(row)
            for name, work, goal in (("arrivals", arrive, ARRIVALS_GOAL), ("pressure", press, PRESSURE_GOAL)):
                say(f"{name}, K={num_drafts}, {mode}")
                rounds = [work(num_drafts, asynchronous, ["vllm", "ours"]) for _ in range(num_rounds)]
                report[name].append(figures(rounds, "ours", labels, goal))
    return report


TITLES = {
    "decode": "decode, arrays out",
    "decode_with_objects": "decode, one output object per request",
    "arrivals": "64 arrivals of 2,000 tokens while 256 decode",
    "pressure": "memory pressure with preemptions",
}


def table(report: Mapping[str, Any]) -> str:
    """The report for a terminal."""
    lines = [
        "vLLM 0.32's scheduler and ours: mean microseconds of thread CPU time a step",
        "",
        _line("", "requests", "K", "mode", "vLLM", "ours", "ratio", "accepted at", "goal"),
    ]
    for kind, title in TITLES.items():
        for place, row in enumerate(report[kind]):
            lines.append(
                _line(
                    title if place == 0 else "",
                    row.get("n", ""),
                    row["k"],
                    row["mode"],
                    f"{row['vllm_us']:,.1f}",
                    f"{row['ours_us']:,.2f}",
                    f"{row['ratio']:,.0f}",
                    row.get("accepted_at", ""),
                    row.get("goal", ""),
                )
            )
    worst = max(row["worst_ours_us"] for row in report["arrivals"])
    lines += ["", f"our worst step while the 64 arrive: {worst:,.0f} microseconds"]
    return "\n".join(lines)


def _line(*cells: Any) -> str:
    """One line of the table: the title and the mode to the left, all else to the right."""
    title, size, num_drafts, mode, theirs, ours, ratio, accepted, goal = (str(cell) for cell in cells)
    return (
        f"{title:44}{size:>9}{num_drafts:>3}  {mode:13}{theirs:>10}{ours:>9}{ratio:>7}{accepted:>13}{goal:>6}"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Time our scheduler and vLLM's on the same steps.")
    parser.add_argument("--rounds", type=int, default=3, help="how often each workload is run on both sides")
    parser.add_argument("--sizes", default="1,32,256,1024", help="running requests while decoding")
    arguments = parser.parse_args()
    watched = sys.stderr.isatty()

    def say(text: str) -> None:
        if watched:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    report = measure(arguments.rounds, [int(size) for size in arguments.sizes.split(",")], say)
    say("")
    report["machine"] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
    }
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()

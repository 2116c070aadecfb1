"""The export follows the trace event format: what Perfetto draws is what was recorded."""

from __future__ import annotations

import io
import json
import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.impl.random_work import RandomWork, random_config
from tests.impl.traces.trace_world import header_for, lived, recorded, rules_for, write

from draftproof.impl.traces import chrome
from draftproof.impl.traces.format import decode
from draftproof.impl.traces.recorder import TraceWriter
from draftproof.impl.traces.recording_scheduler import RecordingScheduler, header_of
from draftproof.impl.traces.sources import Source

KEYS = {
    "X": {"pid", "tid", "ph", "name", "cat", "ts", "dur", "args"},
    "B": {"pid", "tid", "ph", "name", "cat", "ts", "args"},
    "i": {"pid", "tid", "ph", "s", "name", "cat", "ts"},
    "C": {"pid", "tid", "ph", "name", "ts", "args"},
    "M": {"pid", "tid", "ph", "name", "args"},
}
"""Phases of the format: a slice with its duration, one without an end, an instant, a counter, a name."""


def exported(path: Path) -> list[dict[str, Any]]:
    out = io.StringIO()
    count = chrome.export(Source((str(path),), 0), out)
    found = json.loads(out.getvalue())
    assert set(found) == {"displayTimeUnit", "traceEvents"} and found["displayTimeUnit"] == "ms"
    entries: list[dict[str, Any]] = found["traceEvents"]
    assert len(entries) == count
    return entries


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_entry_has_what_its_phase_needs(tmp_path: Path, asynchronous: bool, seed: int) -> None:
    for entry in exported(recorded(tmp_path / "a.ndjson", asynchronous, seed=seed)):
        assert set(entry) == KEYS[entry["ph"]]
        assert entry["pid"] > 0 and entry["tid"] > 0  # Perfetto takes 0 for the idle process
        assert entry.get("ts", 0) >= 0 and entry.get("dur", 1) > 0 and entry.get("s", "t") == "t"
        if entry["ph"] == "C":
            assert all(isinstance(value, int) for value in entry["args"].values())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_slices_of_a_row_do_not_overlap(tmp_path: Path, asynchronous: bool) -> None:
    """Perfetto draws no slice that reaches beyond another of its row: it would be lost."""
    rng, rules = random.Random(3), rules_for(asynchronous)
    path = write(tmp_path / "a.ndjson", rules, [lived(rng, rules, num_events=80) for _ in range(40)])
    rows: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    entries = exported(path)
    for entry in entries:
        if entry["ph"] in "XB":
            row = rows[entry["pid"], entry["tid"]]
            row.append((entry["ts"], entry["ts"] + entry.get("dur", 2**40)))
    assert sum(map(len, rows.values())) > 100
    for slices in rows.values():
        for (_, end), (begin, _) in pairwise(sorted(slices)):
            assert end <= begin
    long = [entry for entry in entries if entry["ph"] == "X" and entry["dur"] > 1000]
    assert long  # in these walks an event is a step, so steps come back later


def test_every_row_has_a_name_and_belongs_to_one_request(tmp_path: Path) -> None:
    entries = exported(recorded(tmp_path / "a.ndjson", True))
    names: dict[str, dict[Any, str]] = defaultdict(dict)
    processes: dict[int, set[int]] = defaultdict(set)
    for entry in entries:
        if entry["ph"] == "M" and "name" in entry["args"]:
            key = entry["pid"] if entry["name"] == "process_name" else (entry["pid"], entry["tid"])
            assert key not in names[entry["name"]]
            names[entry["name"]][key] = entry["args"]["name"]
        processes[entry["tid"]].add(entry["pid"])
    used = {(entry["pid"], entry["tid"]) for entry in entries}
    assert used == set(names["thread_name"]) and all(len(found) == 1 for found in processes.values())
    assert sorted(names["process_name"].values()) == [f"request request {place}" for place in range(8)]
    assert {entry["args"].get("labels") for entry in entries if entry["name"] == "process_labels"} == {
        "walk 1"
    }


def test_a_step_that_returns_after_the_end_is_drawn_and_one_that_never_does_too(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    with TraceWriter(path, header_for(rules_for(True)), in_background=False) as trace:
        number = trace.request("</script>\x1b", 4, step=0)
        trace.emit("admit", number, step=0, num_hit_tokens=0)
        trace.emit("schedule", number, step=0, num_new_tokens=3)
        trace.emit("schedule", number, step=1, num_new_tokens=1)
        trace.emit("abort", number, step=2)
        trace.emit("stale_output", number, step=3, num_returned=3, num_kept=0, stopped=0)
    entries = exported(path)
    slices = {entry["name"]: entry for entry in entries if entry["ph"] in "XB"}
    assert {entry["ph"] for entry in slices.values()} == {"X", "B"}
    assert set(slices) == {"stale_output 3", "not returned 1"}
    assert (slices["stale_output 3"]["ts"], slices["stale_output 3"]["dur"]) == (0, 3900)
    assert slices["stale_output 3"]["tid"] != slices["not returned 1"]["tid"]


@pytest.mark.parametrize("seed", [3, 5])
def test_time_does_not_run_backwards_in_our_own_recordings(tmp_path: Path, seed: int) -> None:
    """Asynchronously a step returns while a later one runs; its record says the later one."""
    config = random_config(seed, True)
    path = tmp_path / "a.ndjson"
    with TraceWriter(path, header_of(config)) as trace:
        RandomWork(RecordingScheduler(config, trace, compiled=False), seed).run(60)
    steps = [getattr(decode(line), "step", None) for line in path.read_bytes().splitlines()]
    told = [step for step in steps if step is not None]
    assert told == sorted(told) and told[-1] > 20
    overlapping = [entry for entry in exported(path) if entry["ph"] == "X" and entry["dur"] > 1000]
    assert overlapping

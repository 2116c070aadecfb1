"""A right engine is clean; whatever is wrong with an engine's counters is found, and named."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.impl.traces.trace_world import RIGHT, checked, header_for, lived, recorded, rules_for, told, write

from draftproof.impl.traces import checking, coverage
from draftproof.impl.traces.checking import check_source
from draftproof.impl.traces.files import part_path
from draftproof.impl.traces.format import COUNTERS
from draftproof.impl.traces.recorder import TraceWriter
from draftproof.impl.traces.replaying import records_of_request, replayed, rules_of
from draftproof.impl.traces.reports import as_text, exit_status
from draftproof.impl.traces.sources import Source, sources_of
from draftproof.proofs.faults import registry
from draftproof.proofs.faults.fault import ACCOUNTING
from draftproof.proofs.faults.patching import patched
from draftproof.proofs.faults.trace import committed

FAULTS = [
    fault for fault in registry.all_faults() if all(change.module == ACCOUNTING for change in fault.changes)
]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("fence", [0, 1])
def test_a_right_engine_is_clean(tmp_path: Path, asynchronous: bool, fence: int) -> None:
    rng, rules = random.Random(1), rules_for(asynchronous, fence)
    path = write(tmp_path / "t.ndjson", rules, [lived(rng, rules) for _ in range(20)])
    report = checked(path)
    assert report.verdict == "clean", report
    assert set(report.checked) == {"T1", "T2", "T3", "T4", "T5", "T6", "T7", "T12", "T14"}
    assert report.num_judged > 300 and report.num_requests == 20
    assert exit_status([report], []) == 0


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("counter", COUNTERS)
def test_each_counter_is_compared(tmp_path: Path, counter: str, asynchronous: bool) -> None:
    changed: list[tuple[int, int]] = []

    def change(request: int, place: int, told: dict[str, Any]) -> None:
        if request == 3 and place >= 5 and not changed:
            told[counter] = (told[counter] + 1) % 5 if counter == "status" else told[counter] + 1
            changed.append((request, place))

    path = recorded(tmp_path / "t.ndjson", asynchronous, change=change)
    report = checked(path)
    assert changed == [(3, 5)]
    assert report.verdict == "violated" and report.num_diverged == 1
    (found,) = report.divergences
    assert (found.request, found.id, found.step) == (3, "request 3", 5)
    assert set(found.counters) == {counter}
    expected, value = found.counters[counter]
    assert expected != value and found.checks and found.theorems
    assert exit_status([report], []) == 1
    assert counter in as_text([report], [], 10)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_an_engine_with_a_known_fault_diverges(fault: Any, tmp_path: Path) -> None:
    """The committed shortest trace of each fault, recorded from an engine with that fault in its code."""
    trace = committed(fault.name)
    engine = RIGHT | patched(fault.changes).transitions
    moments = told(trace.num_prompt_tokens, trace.events, trace.rules, engine)
    report = checked(write(tmp_path / "t.ndjson", trace.rules, [moments]))
    assert report.verdict == "violated", fault.title
    right = told(trace.num_prompt_tokens, trace.events[: report.divergences[0].step - 1], trace.rules, RIGHT)
    assert not checked(write(tmp_path / "right.ndjson", trace.rules, [right])).divergences


def test_the_trim_fault_is_told_by_its_theorem(tmp_path: Path) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == "trim-uncounted"]
    engine = RIGHT | patched(fault.changes).transitions
    for asynchronous in (False, True):
        rng, rules = random.Random(5), rules_for(asynchronous)
        requests = [lived(rng, rules, engine) for _ in range(40)]
        report = checked(write(tmp_path / f"{asynchronous}.ndjson", rules, requests))
        assert report.by_theorem["T2"] > 0
        found = next(one for one in report.divergences if "T2" in one.theorems)
        assert found.event.startswith("output") and "output_moves_frontier_by_kept" in found.checks


def test_blocks_lost_at_an_exit_are_found_without_any_counters(tmp_path: Path) -> None:
    rules = rules_for(False)
    with TraceWriter(tmp_path / "t.ndjson", header_for(rules), in_background=False) as trace:
        number = trace.request("a", 4, step=0)
        trace.emit("admit", number, step=0, num_hit_tokens=0)
        trace.emit("schedule", number, step=0, num_new_tokens=4)
        trace.emit(
            "output", number, step=0, num_returned=4, num_drafts=0, num_accepted=0, num_kept=1, stopped=1
        )
        trace.emit("finish", number, step=0)
        trace.exit(number, step=0, num_registered_tokens=2, look_up=2)
    report = checked(tmp_path / "t.ndjson")
    (found,) = report.divergences
    assert found.theorems == ("T4", "T13")
    assert found.counters == {"num_registered_tokens": (4, 2), "look_up": (4, 2)}
    assert set(report.checked) == {"T4", "T13"}
    assert "T1" in report.not_checked


def test_more_registered_than_settled_is_unsound(tmp_path: Path) -> None:
    rules = rules_for(False)
    with TraceWriter(tmp_path / "t.ndjson", header_for(rules), in_background=False) as trace:
        number = trace.request("a", 3, step=0)
        trace.emit("admit", number, step=0, num_hit_tokens=0)
        trace.emit("abort", number, step=0)
        trace.exit(number, step=0, num_registered_tokens=2)
    (found,) = checked(tmp_path / "t.ndjson").divergences
    assert found.theorems == ("T3",)


def test_an_event_that_may_not_come_is_named(tmp_path: Path) -> None:
    rules = rules_for(False)
    with TraceWriter(tmp_path / "t.ndjson", header_for(rules), in_background=False) as trace:
        number = trace.request("a", 4, step=0)
        trace.emit("admit", number, step=0, num_hit_tokens=3)
    (found,) = checked(tmp_path / "t.ndjson").divergences
    assert found.theorems == ("order",) and found.checks == ("hit_is_whole_blocks",)


def test_a_negative_counter_is_a_violation_and_no_damage(tmp_path: Path) -> None:
    def change(request: int, place: int, told: dict[str, Any]) -> None:
        if place == 4:
            told["num_output_placeholders"] = -3

    report = checked(recorded(tmp_path / "t.ndjson", True, change=change))
    assert report.verdict == "violated" and not report.damages
    assert "T5" in report.by_theorem


def test_without_counters_nothing_is_called_clean(tmp_path: Path) -> None:
    path = recorded(tmp_path / "t.ndjson", False, tells=(), exits=False)
    report = checked(path)
    assert report.verdict == "unchecked" and not report.checked
    assert exit_status([report], []) == 2
    assert "clean" not in as_text([report], [], 10)
    assert {f"T{number}" for number in range(1, 15)} <= set(report.not_checked)


def test_what_an_engine_does_not_tell_is_listed_with_the_reason(tmp_path: Path) -> None:
    path = recorded(tmp_path / "t.ndjson", True, tells=("num_tokens", "num_computed_tokens"), exits=False)
    report = checked(path)
    assert report.verdict == "clean" and set(report.checked) == {"T7"}
    assert report.not_checked["T1"] == "the engine does not tell num_output_placeholders"
    assert "num_registered_tokens" in report.not_checked["T3"]
    assert "exit" in report.not_checked["T4"]
    assert coverage.NEVER.items() <= report.not_checked.items()


def test_threads_find_the_same(tmp_path: Path) -> None:
    changed: set[int] = set()

    def change(request: int, place: int, told: dict[str, Any]) -> None:
        if request % 5 == 0 and place > 3 + request % 3:
            told["num_computed_tokens"] += 1
            changed.add(request)

    path = recorded(tmp_path / "t.ndjson", True, count=60, change=change)
    one, three = checked(path), checked(path, num_threads=3)
    assert one == three and one.num_diverged == len(changed) > 8


def test_parts_of_a_trace_are_one_trace_in_any_order(tmp_path: Path) -> None:
    rng, rules = random.Random(2), rules_for(False)
    requests = [lived(rng, rules, num_events=60) for _ in range(300)]
    path = write(tmp_path / "t.ndjson", rules, requests, max_bytes=1)
    parts = [part_path(path, part) for part in range(20) if part_path(path, part).exists()]
    assert len(parts) > 2
    (source,), unreadable = sources_of([str(part) for part in reversed(parts)])
    assert not unreadable and source.paths == tuple(map(str, parts))
    assert check_source(source).verdict == "clean"
    without = Source((*source.paths[:1], *source.paths[2:]), 0)
    report = check_source(without)
    assert report.verdict == "unreadable" and not report.num_diverged
    assert any("part" in sentence for sentence in report.damages)
    cut = check_source(Source(source.paths[:-1], 0))
    assert cut.verdict == "unreadable" and "goes on" in cut.damages[-1]


def test_requests_that_left_make_room_for_others(tmp_path: Path) -> None:
    """More requests than the table remembers, in a table that has to grow and to be cleaned."""
    rules = rules_for(False)
    with TraceWriter(tmp_path / "t.ndjson", header_for(rules)) as trace:
        for place in range(20_000):
            number = trace.request(str(place), 4, step=place)
            trace.emit("admit", number, step=place, num_hit_tokens=0, after={"num_computed_tokens": 0})
            trace.emit("abort", number, step=place, after={"num_tokens": 4, "num_computed_tokens": 0})
    report = checked(tmp_path / "t.ndjson")
    assert report.verdict == "clean" and report.num_requests == 20_000
    assert report.num_judged == 40_000


def test_more_open_requests_than_are_followed_are_no_clean_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "MAX_OPEN", 1024)
    with TraceWriter(tmp_path / "t.ndjson", header_for(rules_for(False))) as trace:
        for place in range(2_000):
            trace.request(str(place), 4, step=0)
        for place in range(2_000):
            trace.emit("admit", place, step=0, num_hit_tokens=0, after={"num_tokens": 4})
    report = checked(tmp_path / "t.ndjson")
    assert report.verdict == "unreadable" and not report.divergences
    assert report.damage_counts["too many"] == report.damage_counts["unknown"] == 2_000 - 1024


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_compiled_and_the_interpreted_replay_find_the_same(tmp_path: Path, asynchronous: bool) -> None:
    def change(request: int, place: int, told: dict[str, Any]) -> None:
        if request % 3 == 0 and place > request:
            told[COUNTERS[request % 7]] += 1 + place % 2

    path = recorded(tmp_path / "t.ndjson", asynchronous, count=24, change=change)
    found = {one.request: one for one in checked(path).divergences}
    assert len(found) > 3
    for request in range(24):
        header, records, _ = records_of_request(Source((str(path),), 0), str(request))
        *_, last = replayed(records, rules_of(header))
        expected = found.get(request)
        if expected is None or last.divergence is None:
            assert expected is None and last.divergence is None
        else:
            fields = ("sequence", "step", "index", "event", "theorems", "checks", "counters", "before")
            assert all(getattr(expected, name) == getattr(last.divergence, name) for name in fields)


def test_a_look_up_that_is_not_compared_is_not_counted(tmp_path: Path) -> None:
    """At a preemption the engine has not given the tokens up for good: nothing is asked of the look-up."""
    with TraceWriter(tmp_path / "t.ndjson", header_for(rules_for(False)), in_background=False) as trace:
        number = trace.request("a", 4, step=0)
        trace.emit("admit", number, step=0, num_hit_tokens=0)
        trace.emit("schedule", number, step=0, num_new_tokens=4)
        trace.emit(
            "output", number, step=0, num_returned=4, num_drafts=0, num_accepted=0, num_kept=1, stopped=0
        )
        trace.emit("preempt", number, step=1, drop=1)
        trace.exit(number, step=1, num_registered_tokens=4, look_up=0)
    report = checked(tmp_path / "t.ndjson")
    assert report.verdict == "clean" and report.checked == {"T4": 1}
    assert "T13" in report.not_checked

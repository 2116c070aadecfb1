"""A verdict claims no more than was shown, and whatever is in a file's name or text can be printed."""

from __future__ import annotations

import inspect
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.impl.traces.trace_world import checked, header_for, recorded, rules_for

from draftproof.impl.traces.coverage import IN_PART, NEEDS
from draftproof.impl.traces.format import COUNTERS
from draftproof.impl.traces.recorder import TraceWriter
from draftproof.impl.traces.reports import as_json, as_text
from draftproof.spec import invariants
from draftproof.spec.theorems import STEP_THEOREMS

DERIVED = {"num_in_flight_tokens", "num_stale_tokens", "status"}
"""What follows from the events themselves: a theorem about it is checked although no engine tells it."""


def test_every_counter_that_a_theorem_speaks_about_is_asked_for() -> None:
    helpers = {
        name: inspect.getsource(getattr(invariants, name)) for name in ("frontier", "num_live_in_flight")
    }
    for claim in STEP_THEOREMS:
        source = inspect.getsource(claim.predicate)
        source += "".join(text for name, text in helpers.items() if f"{name}(" in source)
        spoken = {name for name in COUNTERS if re.search(rf"\.{name}\b", source)}
        need = NEEDS.get(claim.theorem)
        if need is None:  # T4: by exits
            assert claim.theorem == "T4"
            continue
        known = {*need.counters, *need.asynchronously, *need.also}
        assert spoken - known - DERIVED <= {"num_tokens"} & spoken, claim.name
        if "num_tokens" in spoken - known:
            assert claim.name == "registered_is_valid"  # there it bounds a ghost, not a counter


def told_at(path: Path, **tells: dict[str, Any]) -> Path:
    """A request that is scheduled, returns twice and stops; what is told after which event."""
    sizes: Any = {"num_drafts": 0, "num_accepted": 0, "num_kept": 1}
    with TraceWriter(path, header_for(rules_for(False)), in_background=False) as trace:
        number = trace.request("a", 4, step=0)
        trace.emit("admit", number, step=0, num_hit_tokens=0)
        trace.emit("schedule", number, step=0, num_new_tokens=4, after=tells.get("schedule"))
        trace.emit("output", number, step=0, num_returned=4, stopped=0, after=tells.get("output"), **sizes)
        trace.emit("schedule", number, step=1, num_new_tokens=1)
        trace.emit("output", number, step=1, num_returned=1, stopped=1, **sizes)
        trace.emit("finish", number, step=1)
    return path


def test_the_frontier_is_not_checked_where_no_output_is_told(tmp_path: Path) -> None:
    told = {"num_tokens": 4, "num_computed_tokens": 4}
    report = checked(told_at(tmp_path / "a.ndjson", schedule=told))
    assert report.verdict == "clean" and set(report.checked) == {"T1", "T5"}
    assert report.not_checked["T2"] == "the engine does not tell num_tokens, num_computed_tokens"


def test_what_was_shown_at_some_events_only_is_said(tmp_path: Path) -> None:
    told = {"num_tokens": 5, "num_computed_tokens": 4}
    report = checked(told_at(tmp_path / "a.ndjson", output=told))
    assert set(report.checked) == {"T1", "T2", "T5"}
    assert report.not_checked[IN_PART] == (
        "T1 at 1 of 6 events; T2 at 1 of 3 events; T5 at 1 of 6 events; "
        "T5 without num_draft_tokens, num_in_flight_tokens, num_stale_tokens"
    )
    assert "  checked in part only: T1 at 1 of 6 events" in as_text([report], [], 10)


def test_nothing_is_said_of_a_trace_that_tells_everything(tmp_path: Path) -> None:
    report = checked(recorded(tmp_path / "a.ndjson", True))
    assert IN_PART not in report.not_checked
    assert "checked in part only" not in as_text([report], [], 10)


def test_a_look_up_after_a_preemption_is_not_held_against_the_engine(tmp_path: Path) -> None:
    """Other requests may have taken the blocks: what is reported is only what was registered."""
    path = tmp_path / "a.ndjson"
    with TraceWriter(path, header_for(rules_for(False)), in_background=False) as trace:
        number = trace.request("a", 4, step=0)
        trace.emit("admit", number, step=0, num_hit_tokens=0)
        trace.emit("schedule", number, step=0, num_new_tokens=4)
        trace.emit("preempt", number, step=1, drop=1)
        trace.exit(number, step=1, num_registered_tokens=0, look_up=0)
    (found,) = checked(path).divergences
    assert found.theorems == ("T4",) and set(found.counters) == {"num_registered_tokens"}


@pytest.mark.skipif(os.name == "nt", reason="file names are text there")
def test_a_name_that_is_no_text_is_printed(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.ndjson", False)
    strange = os.fsdecode(os.fsencode(path.parent) + b"/\xff\x1b[31m.ndjson")
    try:
        os.rename(path, strange)
    except OSError:
        pytest.skip("this file system has only text as names")
    report = checked(Path(strange))
    for text in (as_text([report], [], 10), as_json([report], [])):
        assert text.encode() and "\x1b" not in text
    assert json.loads(as_json([report], []))["reports"][0]["paths"] == [strange]

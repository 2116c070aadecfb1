"""In mode `record` the events become a trace, of which the checker says what the live checks say."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.vllm import engine
from tests.vllm.attach_traffic import Plan, Traffic
from tests.vllm.attach_world import EVERY_STEP, World, world
from tests.vllm.test_attach import session
from tests.vllm.workloads import Settings
from vllm.v1.outputs import DraftTokenIds

from draftproof.impl.attach.vllm import reports

pytest.importorskip("msgspec")

SETTINGS = Settings(
    num_blocks=2_000,
    max_num_seqs=12,
    max_num_batched_tokens=128,
    max_model_len=1_024,
    num_speculative_tokens=3,
)


def record(path: Path, settings: Settings, *, corrected: bool, **options: Any) -> World:
    """A scheduler that is recorded."""
    checks = EVERY_STEP._replace(mode="record", trace_path=str(path), **options)
    return world(settings, corrected=corrected, checks=checks)


def verdict(*paths: Path) -> Any:
    """What the checker of traces says."""
    from draftproof.impl.traces.checking import check_source
    from draftproof.impl.traces.sources import sources_of

    (source,), unreadable = sources_of([str(path) for path in paths])
    assert not unreadable
    return check_source(source, num_threads=1)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
def test_a_corrected_engine_leaves_a_clean_trace(tmp_path: Path, asynchronous: bool) -> None:
    settings = SETTINGS._replace(asynchronous=asynchronous)
    there = record(tmp_path / "run.ndjson", settings, corrected=True)
    Traffic(Plan(7, settings, num_requests=60, reset_percent=0), there.scheduler).run()
    there.around.close()
    assert not there.report.violations
    report = verdict(tmp_path / "run.ndjson")
    assert report.verdict == "clean", report


def test_a_fault_is_in_the_trace(tmp_path: Path) -> None:
    there = record(tmp_path / "run.ndjson", Settings(num_speculative_tokens=2), corrected=False)
    session(there, chunk=[7, 8])
    there.around.close()
    assert [one.kind for one in there.report.violations] == ["accounting"]
    report = verdict(tmp_path / "run.ndjson")
    assert report.verdict == "violated", report


def test_a_trace_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run.ndjson").write_text("somebody else's")
    there = record(tmp_path / "run.ndjson", Settings(num_speculative_tokens=2), corrected=False)
    session(there, chunk=[7, 8])
    assert "exists already" in caplog.text
    assert there.report.total("violations") == 1


def test_a_trace_goes_on_in_other_files_and_is_named_after_its_process(tmp_path: Path) -> None:
    there = record(tmp_path / "run-{pid}.ndjson", SETTINGS, corrected=True, trace_bytes=100_000)
    Traffic(Plan(7, SETTINGS, num_requests=150, reset_percent=0), there.scheduler).run()
    there.around.close()
    parts = sorted(tmp_path.iterdir())
    assert tmp_path / f"run-{os.getpid()}.ndjson" in parts and len(parts) > 1
    report = verdict(*parts)
    assert report.verdict == "clean" and len(report.paths) == len(parts), report


def test_the_counters_are_in_their_file_while_the_engine_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not only at the end: a server may kill its engine core."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    checks = EVERY_STEP._replace(metrics_path=str(tmp_path / "counters-{pid}"))
    there = world(Settings(), corrected=True, checks=checks)
    there.scheduler.add_request(engine.new_request("a", range(40), max_tokens=40))
    told = []
    for _ in range(3):
        there.settle(there.scheduler.schedule(), a=[10])
        told.append((tmp_path / f"counters-{os.getpid()}").read_text())
        clock[0] += 0.6 * reports.SECONDS
    told.append(there.report.metrics())
    steps = [re.search(r"^draftproof_vllm_steps_total (\d+)$", text, re.M) for text in told]
    assert [int(found[1]) for found in steps if found] == [1, 1, 3, 3]
    assert len(list(tmp_path.iterdir())) == 1
    tmp_path.joinpath(f"counters-{os.getpid()}").unlink()
    tmp_path.rmdir()
    for _ in range(2):
        clock[0] += 2 * reports.SECONDS
        there.settle(there.scheduler.schedule(), a=[10])
    assert caplog.text.count("the counters could not be written") == 1


def test_an_idle_engine_says_what_was_found_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for what is new, and the counters are in their file at once: the core may be killed now."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    checks = EVERY_STEP._replace(metrics_path=str(tmp_path / "counters"))
    there = world(Settings(num_speculative_tokens=2), corrected=False, checks=checks)

    def losing(name: str) -> None:
        """A request that is known to lose a block, and leaves the engine idle."""
        there.scheduler.add_request(engine.new_request(name, range(45), max_tokens=4))
        there.settle(there.scheduler.schedule(), **{name: [10]})
        there.scheduler.update_draft_token_ids(DraftTokenIds([name], [[11, 12]]))
        there.settle(there.scheduler.schedule(), **{name: [11, 12, 13]})
        assert not there.scheduler.requests

    for name in ("a", "b"):
        losing(name)
        clock[0] += 2 * reports.SECONDS
    assert there.report.total("exits_with_lost_blocks") == 2
    assert caplog.text.count("draftproof so far: 2 steps, 1 requests, 1 violations") == 1
    assert caplog.text.count("draftproof so far") == 1
    assert (tmp_path / "counters").read_text() == there.report.metrics()

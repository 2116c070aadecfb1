"""Debug mode and the middle mode: silent on right work; a fault is named in the first call that shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.impl.debug_runs import FAULTS

from draftproof.impl.scheduler import violation
from draftproof.impl.scheduler.checks import AccountingError
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.scheduler import Scheduler

OTHERS = (
    "synchronous_work",
    "asynchronous_work",
    "refused_calls",
    "a_trace_that_cannot_be_written",
    "compiled_is_refused",
    "a_long_life",
)


def runs(names: tuple[str, ...], mode: str, traces: Path) -> dict[str, Any]:
    """What came of the runs in a process of this mode."""
    environment = {**os.environ, "DRAFTPROOF_DEBUG": mode, "DRAFTPROOF_TRACE_DIR": str(traces)}
    environment.pop("DRAFTPROOF_CHECK_EVERY", None)
    program = str(Path(__file__).with_name("debug_runs.py"))
    done = subprocess.run(
        [sys.executable, program, *names], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    for name, result in found.items():
        assert not (isinstance(result, dict) and "raised" in result), f"{name}: {result['raised']}"
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every run but the middle mode's."""
    return runs((*FAULTS, *OTHERS), "1", tmp_path_factory.mktemp("traces") / "not made yet")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_in_the_first_call_that_shows_it(found: dict[str, Any], name: str) -> None:
    check, call, request_id = FAULTS[name]
    result = found[name]
    assert (result["check"], result["request"]) == (check, request_id)
    assert result["message"].startswith(f"in {call}, step ")
    assert check in result["message"]
    assert Path(result["trace"]).name.startswith("draftproof-violation-")
    records = [json.loads(line) for line in Path(result["trace"]).read_text().splitlines()]
    assert records[0]["kind"] == "config" and records[0]["config"]["hash_seed"] is None
    assert records[-1]["kind"] == "violation" and check in records[-1]["checks"]


def test_a_faulty_transition_is_told_with_theorem_and_counters_and_replays(found: dict[str, Any]) -> None:
    result = found["output_forgets_trimmed_tokens"]
    event = "output(n=3, d=2, a=2, k=1, stop=1) broke frontier"
    for part in (
        "in settle, step 1, request 'stops' (row 1): ",
        event,
        "contradicts T1 'computed never exceeds known', T2 'the frontier is exact'",
        "N 4 to 5",
        "before: L 3, N 4, C 6, P 0, F 3,",
    ):
        assert part in result["message"]
    # The faulty accounting shows the same again; on the right one the same events are in order.
    assert result["again"].startswith(event) and result["again"] in result["message"]
    assert (result["right"], result["num_events"]) == ("", 6)


def test_a_violation_outside_of_transitions_tells_what_the_call_changed_and_who_held_the_block(
    found: dict[str, Any],
) -> None:
    message = found["stop_without_publication"]["message"]
    assert "lost (T4)" in message
    assert "before this call it was held by request 'stops' (row 1) as block 0 of group 0" in message
    assert "this call changed N 4 to 5, C 6 to 4" in message


def test_a_trace_of_such_a_violation_leads_to_the_counters_in_the_table(found: dict[str, Any]) -> None:
    replayed = violation.replay(found["stop_without_publication"]["trace"])
    assert replayed.sentence == ""
    assert replayed.state.ledger.num_registered_tokens == 5
    stray = violation.replay(found["a_write_past_the_transitions"]["trace"])
    assert stray.sentence == "the table differs from what the events lead to: X 0 to 8"


def test_a_long_life_is_remembered_from_its_end(found: dict[str, Any]) -> None:
    assert found["a_long_life"]["check"] == "length_limit"
    assert (found["a_long_life"]["num_events"], found["a_long_life"]["sentence"]) == (256, "")


def test_a_trace_that_concerns_no_request_or_is_none_is_refused(
    found: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="concerns no request"):
        violation.replay(found["an_index_outside"]["trace"])
    other = tmp_path / "other.ndjson"
    other.write_text('{"kind": "config", "schema": 0}\n')
    with pytest.raises(ValueError, match="no trace of schema 1"):
        violation.replay(other)


def test_a_trace_that_cannot_be_written_hides_no_violation(found: dict[str, Any]) -> None:
    result = found["a_trace_that_cannot_be_written"]
    assert (result["check"], result["trace"]) == ("lost", "")
    assert "No trace: " in result["message"]


@pytest.mark.parametrize("name", ["synchronous_work", "asynchronous_work"])
def test_right_work_is_silent(found: dict[str, Any], name: str) -> None:
    """Arrivals, sessions, aborts, preemptions, failed steps, resets and refused calls were among it."""
    did = found[name]
    for what in ("finished", "paused", "chunk", "abort", "close", "preempted", "reset", "refused outcome"):
        assert did[what] > 5, (what, did)
    assert did["requests of failed steps"] > 5
    assert did["step"] > 1_000


def test_what_a_caller_does_wrong_stays_what_it_is(found: dict[str, Any]) -> None:
    assert found["refused_calls"] == ["RequestError", "RequestError", "OutcomeError", "StepError"]


def test_debug_mode_does_not_compile(found: dict[str, Any]) -> None:
    assert "leave compiled out" in found["compiled_is_refused"]


def test_the_middle_mode(tmp_path: Path) -> None:
    result = runs(("the_middle_mode",), "middle", tmp_path)["the_middle_mode"]
    assert result["did"]["finished"] > 20
    assert (result["corrupted"]["check"], result["corrupted"]["number"]) == ("reference_count", 2)
    assert result["corrupted"]["request"] == "running"
    assert result["idle"]["check"] == "free_count"
    assert result["outside"]["check"] == "bounds"
    records = [json.loads(line) for line in Path(result["corrupted"]["trace"]).read_text().splitlines()]
    assert [record["kind"] for record in records] == ["config", "violation"]


def test_a_scheduler_checks_itself_where_it_is_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any mode, too; and without being asked it is a plain one."""
    monkeypatch.setenv("DRAFTPROOF_TRACE_DIR", str(tmp_path))
    config = SchedulerConfig(max_model_len=64, num_blocks=30)
    assert type(Scheduler(config, compiled=False)) is Scheduler
    scheduler = Scheduler(config, compiled=False, check_every=2)
    scheduler.add("only", [1, 2, 3], max_tokens=9)
    scheduler.state.pool.num_free_blocks[0] -= 1
    batch = scheduler.schedule()
    scheduler.settle(batch, [[7]], [1])
    batch = scheduler.schedule()
    with pytest.raises(AccountingError, match="free_count"):
        scheduler.settle(batch, [[7]], [1])
    assert len(list(tmp_path.iterdir())) == 1

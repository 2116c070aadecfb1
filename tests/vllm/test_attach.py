"""The checked schedulers find, live, what is wrong in vLLM 0.32.0, and name the theorem."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from tests.vllm import engine
from tests.vllm.attach_world import EVERY_STEP, World, preempt, world
from tests.vllm.finished import BLOCK_SIZE, CASES, FIRST_TOKEN, NUM_DRAFTS, Case
from tests.vllm.workloads import Settings

from draftproof.impl.attach.vllm.reports import ContractViolationError

BOTH_MODES = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
BOTH_ENGINES = pytest.mark.parametrize("corrected", [False, True], ids=["as it is", "corrected"])


def session(there: World, *, chunk: list[int]) -> Any:
    """Prompt 1 2 3, two drafts; the turn stops at 11 and 12 and 13 are cut off; then the chunk arrives."""
    scheduler = there.scheduler
    request = engine.new_request("s", [1, 2, 3], max_tokens=2, resumable=True)
    scheduler.add_request(request)
    prefill = scheduler.schedule()
    if there.watch.view.rules.asynchronous:
        verify = scheduler.schedule()
        there.settle(prefill, s=[10])
    else:
        there.settle(prefill, s=[10])
        engine.propose(scheduler, {"s": [11, 12]})
        verify = scheduler.schedule()
    there.settle(verify, s=[11, 12, 13])
    scheduler.add_request(engine.new_request("s", chunk, max_tokens=2, resumable=True))
    return request


def test_a_streaming_session_counts_a_draft_as_its_own() -> None:
    """C is 6 and must be 4; position 5 then holds draft 12, and 7 is never computed."""
    there = world(Settings(num_speculative_tokens=2))
    session(there, chunk=[7, 8])
    there.settle(there.scheduler.schedule(), s=[20])
    (counter,), (content,) = there.of("accounting"), there.of("content")
    assert (counter.found["C"], counter.expected["C"], counter.found["N"]) == (6, 4, 5)
    assert counter.events == ("output", "end_turn") and "T1" in counter.theorems
    assert content.message.startswith("position 5 ")
    assert "KV of token 12" in content.message and content.message.endswith("the sequence says token 7")
    assert len(there.report.violations) == 2


@BOTH_MODES
def test_a_corrected_session_is_silent(asynchronous: bool) -> None:
    there = world(Settings(num_speculative_tokens=2, asynchronous=asynchronous), corrected=True)
    request = session(there, chunk=[7, 8])
    there.settle(there.scheduler.schedule(), s=[20])
    assert list(request.all_token_ids)[:6] == [1, 2, 3, 10, 7, 8]
    assert not there.report.violations and not there.report.unjudged


def test_an_engine_that_will_crash_is_told_before() -> None:
    """With a chunk of one token nothing is left to compute, and vLLM asserts in the next step."""
    there = world(Settings(num_speculative_tokens=2))
    session(there, chunk=[7])
    assert there.report.total("violations") == 1
    with pytest.raises(AssertionError) as caught:
        there.scheduler.schedule()
    assert not isinstance(caught.value, ContractViolationError)


@BOTH_ENGINES
def test_a_session_that_stops_while_preempted_is_lost(corrected: bool) -> None:
    """vLLM #58776: it is in no queue any more, and the fold cuts its tokens at C = 0."""
    there = world(Settings(asynchronous=True, num_blocks=64), corrected=corrected)
    request = engine.new_request("s", [1, 2, 3], max_tokens=2, resumable=True)
    there.scheduler.add_request(request)
    prefill, decode = there.scheduler.schedule(), there.scheduler.schedule()
    there.settle(prefill, s=[10])
    preempt(there.scheduler, request)
    there.settle(decode, s=[11])
    queues = there.of("queues")
    assert [one.rules for one in queues] == ([] if corrected else [("live_request_is_in_one_queue",)])
    there.scheduler.add_request(engine.new_request("s", [7, 8], max_tokens=2, resumable=True))
    accounting = there.of("accounting")
    if corrected:
        assert not there.report.violations and list(request.all_token_ids) == [1, 2, 3, 10, 7, 8]
    else:
        assert (accounting[0].found["N"], accounting[0].expected["N"]) == (2, 6)
        assert "T7" in accounting[0].theorems and "fold_keeps_all_but_one" in accounting[0].rules


@BOTH_ENGINES
def test_a_placeholder_leaks_at_a_trimmed_stop(corrected: bool) -> None:
    """Asynchronously a stop keeps three of four tokens, and three of four placeholders are released."""
    there = world(Settings(num_speculative_tokens=3, asynchronous=True), corrected=corrected)
    there.scheduler.add_request(engine.new_request("a", range(100, 144), max_tokens=4))
    prefill, verify = there.scheduler.schedule(), there.scheduler.schedule()
    there.settle(prefill, a=[10])
    there.scheduler.schedule()
    there.settle(verify, a=[11, 12, 13, 14])
    if corrected:
        assert not there.report.violations
        return
    (violation,) = there.of("accounting")
    assert (violation.found["P"], violation.expected["P"], violation.found["F"]) == (5, 4, 4)
    assert "placeholders_are_awaited" in violation.rules


def finish(case: Case, there: World) -> None:
    """A request of the table of finishes, to its end."""
    scheduler = there.scheduler
    scheduler.add_request(engine.new_request("a", case.prompt, max_tokens=case.max_tokens))
    prefill = scheduler.schedule()
    ahead = None
    if there.watch.view.rules.asynchronous:
        verify = scheduler.schedule()
        there.settle(prefill, a=[FIRST_TOKEN])
        ahead = scheduler.schedule()
    else:
        there.settle(prefill, a=[FIRST_TOKEN])
        engine.propose(scheduler, {"a": list(case.drafts)})
        verify = scheduler.schedule()
    there.settle(verify, a=list(case.response))
    if ahead is not None and ahead.num_scheduled_tokens:
        there.settle(ahead, a=[77])


@BOTH_ENGINES
@BOTH_MODES
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_blocks_that_are_lost_at_the_end_of_a_request_are_counted(
    case: Case, asynchronous: bool, corrected: bool
) -> None:
    """Whatever the table of finishes says is registered, against what vLLM without registration leaves: 32
    of 48, 0 of 32 ..."""
    settings = Settings(
        num_speculative_tokens=NUM_DRAFTS,
        block_size=BLOCK_SIZE,
        asynchronous=asynchronous,
        num_prefill_lookahead_tokens=case.num_prefill_lookahead_tokens,
    )
    there = world(settings, corrected=corrected)
    finish(case, there)
    without = case.without_asynchronous if asynchronous else case.without_synchronous
    dropped = BLOCK_SIZE if case.num_prefill_lookahead_tokens else 0  # a look-up gives one block back
    findable = case.registered if corrected else min(without + dropped, case.registered)
    found = there.of("completeness")
    assert there.report.total("blocks_lost") == (case.registered - findable) // BLOCK_SIZE
    if findable < case.registered:
        assert found[0].message == (
            f"{case.registered} tokens were settled in whole blocks, a repeat finds {findable}"
        )
        assert found[0].theorems == ("T4", "T13")
    if corrected:
        assert not there.report.violations


@BOTH_ENGINES
def test_a_block_is_lost_when_a_request_is_aborted(corrected: bool) -> None:
    """C = 48, N = 49, and the third block was never published (T4)."""
    there = world(Settings(num_speculative_tokens=3), corrected=corrected)
    there.scheduler.add_request(engine.new_request("a", range(1_000, 1_044), max_tokens=50))
    there.settle(there.scheduler.schedule(), a=[10])
    engine.propose(there.scheduler, {"a": [11, 12, 13]})
    there.settle(there.scheduler.schedule(), a=[11, 12, 13, 14])
    there.scheduler.finish_requests("a", engine_status("FINISHED_ABORTED"))
    there.scheduler.schedule()
    assert there.report.total("blocks_lost", exit="abort") == (0 if corrected else 1)
    assert [one.kind for one in there.report.violations] == ([] if corrected else ["completeness"])


def engine_status(name: str) -> Any:
    """One of vLLM's own statuses."""
    from vllm.v1.request import RequestStatus

    return RequestStatus[name]


@BOTH_ENGINES
def test_a_block_is_lost_when_a_request_is_preempted(corrected: bool) -> None:
    """The request whose last step filled its third block loses its blocks to another one."""
    there = world(Settings(num_speculative_tokens=3, num_blocks=4, max_model_len=256), corrected=corrected)
    there.scheduler.add_request(engine.new_request("first", range(2_000, 2_010), max_tokens=12))
    there.scheduler.add_request(engine.new_request("victim", range(1_000, 1_044), max_tokens=50))
    there.settle(there.scheduler.schedule(), first=[10], victim=[10])
    engine.propose(there.scheduler, {"victim": [11, 12, 13]})
    there.settle(there.scheduler.schedule(), first=[11], victim=[11, 12, 13, 14])
    for _ in range(8):
        step = there.scheduler.schedule()
        there.settle(step, **{name: [20] for name in step.num_scheduled_tokens})
        if there.report.total("exits", exit="preemption"):
            break
    assert there.report.total("exits", exit="preemption") == 1
    assert there.report.total("blocks_lost", exit="preemption") == (0 if corrected else 1)


def test_under_priority_a_victim_leaves_blocks_that_nobody_computed() -> None:
    """The victim stood in the step: its blocks were published, the step was taken back, and when it resumes
    it reads slots that were never written."""
    there = world(
        Settings(num_blocks=12, max_num_batched_tokens=64, long_prefill_token_threshold=32, by_priority=True)
    )
    late = engine.new_request("late", range(1_000, 1_160), priority=1, arrival_time=1.0, max_tokens=8)
    urgent = engine.new_request("urgent", range(2_000, 2_031), priority=0, arrival_time=2.0, max_tokens=4)
    there.scheduler.add_request(late)
    for place in range(10):
        if place == 1:
            there.scheduler.add_request(urgent)
        step = there.scheduler.schedule()
        sampling = [
            name for name in step.num_scheduled_tokens if not there.scheduler.requests[name].is_prefill_chunk
        ]
        there.settle(step, **{name: [10] for name in sampling})
    contents = there.of("content")
    assert contents and contents[0].request_id == "late" and "was never written" in contents[0].message
    assert "position 128 " in contents[0].message


def test_raise_stops_at_the_first_violation() -> None:
    there = world(Settings(num_speculative_tokens=2), checks=EVERY_STEP._replace(mode="raise"))
    with pytest.raises(ContractViolationError, match="C is 6, must be 4"):
        session(there, chunk=[7, 8])


def test_a_distinct_violation_is_logged_once_and_counted_always(caplog: pytest.LogCaptureFixture) -> None:
    there = world(Settings(num_speculative_tokens=3))
    caplog.set_level(logging.WARNING, logger="draftproof.attach.vllm")
    for name in ("a", "b"):
        there.scheduler.add_request(engine.new_request(name, range(1_000, 1_044), max_tokens=4))
        there.settle(there.scheduler.schedule(), **{name: [10]})
        engine.propose(there.scheduler, {name: [11, 12, 13]})
        there.settle(there.scheduler.schedule(), **{name: [11, 12, 13, 14]})
    told_of = [record.getMessage() for record in caplog.records]
    lines = [line for line in told_of if line.startswith("draftproof violation ")]
    assert len(lines) == len(there.report.distinct) == 2  # the counter, and the block that is lost
    assert there.report.total("violations", kind="accounting") == 2
    told = json.loads(lines[0].removeprefix("draftproof violation "))
    assert (told["before"]["C"], told["expected"]["C"], told["found"]["C"]) == (48, 47, 48)
    assert 'draftproof_vllm_violations_total{kind="accounting",theorem="T2+T3+invariant"} 2' in (
        there.report.metrics()
    )


def test_checks_that_cannot_be_loaded_do_not_stop_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As without Numba, or with one that does not fit: it is imported with the first scheduler that runs."""
    monkeypatch.setitem(sys.modules, "draftproof.impl.attach.vllm.watch", None)
    there = world(Settings())
    there.scheduler.add_request(engine.new_request("a", [1, 2, 3], max_tokens=2))
    there.settle(there.scheduler.schedule(), a=[10])
    assert there.scheduler.requests["a"].num_tokens == 4
    assert list(there.report.unjudged) == ["everything: the checks themselves failed"]
    assert caplog.text.count("the checks of this scheduler failed and are off now") == 1


def test_a_failure_of_the_checks_does_not_stop_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    there = world(Settings())
    there.scheduler.add_request(engine.new_request("a", [1, 2, 3], max_tokens=2))

    def fail(*_: Any) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(there.watch, "after_schedule", fail)
    there.settle(there.scheduler.schedule(), a=[10])
    there.settle(there.scheduler.schedule(), a=[11])
    assert not there.scheduler.requests
    assert there.report.unjudged == {"everything: the checks themselves failed": 1}

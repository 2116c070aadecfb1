"""What comes from elsewhere is not judged, and raises no alarm: KV over a connector, requests half computed.

All of these stood in vLLM's own tests, run with the plug-in for pytest.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from tests.vllm import engine
from tests.vllm.attach_world import World, world
from tests.vllm.workloads import Settings
from vllm.v1.request import RequestStatus


def step(there: World) -> Any:
    """The next step of the request `a`, which brings one token."""
    scheduled = there.scheduler.schedule()
    there.settle(scheduled, a=[10])
    return scheduled


def begun(connected: bool = True) -> World:
    """One request runs; KV may come from outside, or not."""
    there = world(Settings(), corrected=True)
    there.scheduler.defer_block_free = connected  # as with a connector that loads
    there.scheduler.add_request(engine.new_request("a", range(40), max_tokens=40))
    return there


@pytest.mark.parametrize("connected", [True, False])
def test_what_a_waiting_request_loads_counts_as_computed_already(connected: bool) -> None:
    there = begun(connected)
    waiting = engine.new_request("b", range(100, 140), max_tokens=40)
    there.scheduler.add_request(waiting)
    waiting.status, waiting.num_computed_tokens = RequestStatus.WAITING_FOR_REMOTE_KVS, 16
    there.scheduler.schedule()
    told = [violation.message for violation in there.report.violations]
    assert told == ([] if connected else ["C is 16, must be 0"])


def test_a_load_that_fails_leaves_nothing_to_judge() -> None:
    there = begun()
    scheduled = there.scheduler.schedule()
    brought = copy.copy(engine.returned(scheduled, {"a": [10]}))
    brought.kv_connector_output = SimpleNamespace(invalid_block_ids={1}, failed_recving=set())
    there.watch.before_update(there.scheduler, scheduled, brought)
    assert not there.watch.watched["a"].judged
    assert list(there.report.unjudged) == [
        "blocks, content and lost blocks: a connector moves KV from outside",
        "requests that were there when KV from outside did not come",
    ]


@pytest.mark.parametrize("num_blocks", [2_000, 6])
def test_a_request_that_comes_half_computed_is_a_stranger(num_blocks: int) -> None:
    """As on a decode worker of its own: all but the last token of the prompt are there. With few blocks it
    gets some in which the watch saw another's tokens."""
    there = world(Settings(num_blocks=num_blocks), corrected=True)
    there.scheduler.add_request(engine.new_request("a", range(40), max_tokens=1))
    step(there)
    half = engine.new_request("b", range(100, 140), max_tokens=3)
    half.num_computed_tokens = 39
    there.scheduler.add_request(half)
    for _ in range(4):
        scheduled = there.scheduler.schedule()
        there.settle(scheduled, **{name: [10] for name in scheduled.num_scheduled_tokens})
    assert not there.report.violations and not there.scheduler.requests
    assert list(there.report.unjudged.values()) == [1] and there.report.total("requests") == 2


def test_a_request_that_comes_with_a_status_of_its_own_is_a_stranger() -> None:
    there = begun(connected=False)
    waiting = engine.new_request("b", range(100, 140), max_tokens=40)
    waiting.status = RequestStatus.WAITING_FOR_STREAMING_REQ
    there.scheduler.add_request(waiting)
    step(there)
    assert not there.report.violations and sum(there.report.unjudged.values()) == 1


def test_without_samples_there_are_no_counters_and_no_content_to_judge() -> None:
    """A diffusion model's canvas is computed again and again."""
    there = world(Settings(), corrected=True)
    there.scheduler.num_sampled_tokens_per_step = 0
    there.scheduler.add_request(engine.new_request("a", range(40), max_tokens=40))
    assert there.watch.shadow is None and not there.watch.view.counts
    assert [reason.partition(":")[0] for reason in there.report.unjudged] == ["counters and content"]

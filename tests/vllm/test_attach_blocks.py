"""Faults that vLLM 0.32 does not have, put into a corrected one: checks of blocks and content see them."""

from __future__ import annotations

from typing import Any

from tests.vllm import engine
from tests.vllm.attach_world import EVERY_STEP, World, world
from tests.vllm.workloads import Settings


def rules_of(there: World) -> set[str]:
    """Which rules were broken."""
    return {rule for violation in there.report.violations for rule in violation.rules}


def arrive(there: World, name: str, tokens: Any, **options: Any) -> Any:
    """A request arrives."""
    request = engine.new_request(name, tokens, **options)
    there.scheduler.add_request(request)
    return request


def test_a_hit_on_somebody_elses_blocks_is_seen() -> None:
    """As if two prompts had the same hashes."""
    there = world(Settings(), corrected=True)
    first = arrive(there, "first", range(1_000, 1_040), max_tokens=1)
    there.settle(there.scheduler.schedule(), first=[10])
    second = engine.new_request("second", range(2_000, 2_040), max_tokens=3)
    second.block_hashes[:] = first.block_hashes
    there.scheduler.add_request(second)
    there.settle(there.scheduler.schedule(), second=[10])
    (violation,) = there.report.violations
    assert violation.message.startswith("position 0 ")
    assert "holds the KV of token 1000, the sequence says token 2000" in violation.message


def test_the_same_token_behind_another_prefix_is_seen() -> None:
    there = world(Settings(), corrected=True)
    first = arrive(there, "first", [1, *range(1_000, 1_039)], max_tokens=1)
    there.settle(there.scheduler.schedule(), first=[10])
    second = engine.new_request("second", [2, *range(1_000, 1_039)], max_tokens=3)
    second.block_hashes[1:] = first.block_hashes[1:]
    second.block_hashes[0] = first.block_hashes[0]
    there.scheduler.add_request(second)
    shadow: Any = there.watch.shadow
    there.watch.watched["second"].digests[0] = shadow._digests[1][0]
    there.settle(there.scheduler.schedule(), second=[10])
    assert "token 1000 in another context" in there.report.violations[0].message


def test_without_content_checks_it_is_not_looked_for() -> None:
    there = world(Settings(), corrected=True, checks=EVERY_STEP._replace(content=False))
    first = arrive(there, "first", range(1_000, 1_040), max_tokens=1)
    there.settle(there.scheduler.schedule(), first=[10])
    second = engine.new_request("second", range(2_000, 2_040), max_tokens=3)
    second.block_hashes[:] = first.block_hashes
    there.scheduler.add_request(second)
    there.settle(there.scheduler.schedule(), second=[10])
    assert not there.report.violations


def test_a_drafters_fence_that_is_forgotten_is_seen() -> None:
    """With multi-module MTP the last two computed tokens may not be published yet (T12)."""
    there = world(Settings(num_speculative_tokens=3, num_prefill_lookahead_tokens=3), corrected=True)
    there.scheduler.kv_cache_manager.coordinator.num_reprefillable_tokens = 0
    arrive(there, "a", range(1_000, 1_032), max_tokens=5)
    there.scheduler.schedule()
    violation = there.only()
    assert (
        violation.theorems == ("T3", "T12") and "32 tokens are published and 30 may be" in violation.message
    )


def test_a_step_that_writes_beyond_its_blocks_is_seen() -> None:
    there = world(Settings(), corrected=True)
    tables = there.scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
    request = arrive(there, "a", range(1_000, 1_020), max_tokens=40)
    allocate = there.scheduler.kv_cache_manager.allocate_slots

    def too_few(*args: Any, **kwargs: Any) -> Any:
        blocks = allocate(*args, **kwargs)
        there.scheduler.kv_cache_manager.block_pool.free_blocks([tables["a"].pop()])
        return blocks

    there.scheduler.kv_cache_manager.allocate_slots = too_few
    there.scheduler.schedule()
    assert "written_slots_are_reserved" in rules_of(there)
    assert request.num_computed_tokens == 20


def test_a_published_block_that_is_written_is_seen() -> None:
    """A block that is only half full is published, as if its request had all of its tokens."""
    there = world(Settings(), corrected=True)
    request = arrive(there, "a", range(1_000, 1_020), max_tokens=40)
    there.settle(there.scheduler.schedule(), a=[10])
    block = there.watch.watched["a"].table[1]
    block.set_block_hash(b"a hash that nobody asks for", 32)
    there.settle(there.scheduler.schedule(), a=[11])
    assert rules_of(there) == {"published_block_is_not_written"}
    assert request.num_tokens == 22


def test_a_reference_that_is_not_given_back_is_seen() -> None:
    there = world(Settings(), corrected=True)
    arrive(there, "a", range(1_000, 1_020), max_tokens=1)
    arrive(there, "b", range(2_000, 2_020), max_tokens=30)
    step = there.scheduler.schedule()
    there.watch.watched["a"].table[1].ref_cnt += 1
    there.settle(step, a=[10], b=[10])
    assert rules_of(there) == {"reference_count_is_owners"}
    assert "is counted 1 times and has 0 owners" in there.report.violations[0].message


def test_a_reset_of_the_prefix_cache_is_no_loss() -> None:
    there = world(Settings(asynchronous=True), corrected=True)
    arrive(there, "a", range(1_000, 1_040), max_tokens=30)
    step = there.scheduler.schedule()
    assert there.scheduler.reset_prefix_cache(reset_running_requests=True)
    ahead = there.scheduler.schedule()
    there.settle(step, a=[10])
    there.scheduler.finish_requests("a", type(there.scheduler.requests["a"].status).FINISHED_ABORTED)
    there.settle(ahead, a=[10])
    assert not there.report.violations and not there.report.unjudged


def test_a_second_owner_of_the_block_that_is_written_now_is_seen() -> None:
    """Not only of the one that was written when the request came."""
    there = world(Settings(), corrected=True, checks=EVERY_STEP._replace(sweep_interval=1_000))
    arrive(there, "a", range(1_000, 1_015), max_tokens=40)
    for _ in range(4):
        there.settle(there.scheduler.schedule(), a=[10])
    block = there.watch.watched["a"].table[1]
    there.watch.owners.counts[block.block_id] += 1
    block.ref_cnt += 1
    there.scheduler.schedule()
    assert rules_of(there) == {"writable_block_has_one_owner"}


def test_an_id_that_comes_again_is_another_request() -> None:
    """Alone in its step both times, so that the step looks like the one before."""
    there = world(Settings(), corrected=True)
    first = arrive(there, "a", range(1_000, 1_020), max_tokens=40)
    there.settle(there.scheduler.schedule(), a=[10])
    there.scheduler.finish_requests("a", type(first.status).FINISHED_ABORTED)
    arrive(there, "a", range(2_000, 2_050), max_tokens=40)
    there.settle(there.scheduler.schedule(), a=[11])
    assert not there.report.violations and there.report.total("requests") == 2

"""Runs in debug mode or in the middle mode: the switch is read when the package is imported.

`DRAFTPROOF_DEBUG=1 python debug_runs.py NAME...` prints what came of the runs, as JSON. Each is made in a
child of its own, because what it breaks in the loaded code stays broken.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from tests.impl.busy import EOS, LEAVING, busy_scheduler
from tests.impl.random_work import RandomWork, random_config

from draftproof.impl import accounting, contracts
from draftproof.impl.scheduler import violation
from draftproof.impl.scheduler.batch import Batch
from draftproof.impl.scheduler.checks import AccountingError
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.errors import OutcomeError, RequestError
from draftproof.impl.scheduler.layout import NUM_SETTLED
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.proofs.faults.patching import patched
from draftproof.proofs.faults.registry import find
from draftproof.spec.ledger import Ledger, Rules

ROOMS = "draftproof.impl.scheduler"
pool: Any = importlib.import_module("draftproof.impl.pool")
allocation: Any = importlib.import_module(f"{ROOMS}.allocation")
lifecycle: Any = importlib.import_module(f"{ROOMS}.lifecycle")
prefix_cache: Any = importlib.import_module(f"{ROOMS}.prefix_cache")
queues: Any = importlib.import_module(f"{ROOMS}.queues")
pressure: Any = importlib.import_module(f"{ROOMS}.pressure")
settle: Any = importlib.import_module(f"{ROOMS}.settle")
step: Any = importlib.import_module(f"{ROOMS}.step")
"""Modules in which something is replaced."""

Run = Callable[[], Any]
RUNS: dict[str, Run] = {}
FAULTS = {
    "output_forgets_trimmed_tokens": ("frontier", "settle", "stops"),
    "stale_output_changes_what_is_none_of_its_business": (
        "num_registered_at_preemption_unchanged",
        "settle",
        "leaving",
    ),
    "a_wrong_event": ("at_most_wanted", "schedule", "asked"),
    "stop_without_publication": ("lost", "settle", "stops"),
    "preemption_without_publication": ("lost", "schedule", "second"),
    "a_wrong_digest": ("digest", "add", "asked"),
    "other_tokens_are_published": ("content_tokens", "schedule", "asked"),
    "one_block_more_is_published": ("published_too_far", "schedule", "asked"),
    "one_block_too_few_is_taken": ("too_few_blocks", "schedule", "asked"),
    "a_running_request_goes_on_waiting": ("two_queues", "schedule", "asked"),
    "a_ring_is_off_by_one": ("waiting_links", "add", ""),
    "a_write_past_the_transitions": ("stray_write", "settle", "paused"),
    "a_lost_update": ("lost_update", "settle", "stops"),
    "a_ledger_in_another_row": ("lost_update", "settle", "paused"),
    "a_block_is_not_released": ("reference_count", "settle", "stops"),
    "heads_are_evicted_before_tails": ("eviction_order", "settle", "long"),
    "a_published_block_is_reused_first": ("eviction_order", "settle", "second"),
    "a_published_block_is_written_to": ("content_changed", "settle", ""),
    "a_held_block_is_withdrawn": ("withdrawn", "settle", "running"),
    "a_step_that_failed_is_believed": ("failed_step", "fail", "running"),
    "the_preempted_wait_behind_all": ("waiting_order", "reset_prefix_cache", "waiting 1"),
    "a_refused_call_changes_something": ("refused", "settle", ""),
    "an_index_outside": ("bounds", "settle", ""),
    "the_steps_in_flight_and_the_ghosts_differ": ("ghosts", "abort", "running"),
}
"""By run: the check that fails, the call in which it does, and the request."""


def run(function: Run) -> Run:
    """To be called by name."""
    RUNS[function.__name__] = function
    return function


def told(error: AccountingError) -> dict[str, Any]:
    """What the error says."""
    return {"check": error.check, "request": error.request_id, "trace": error.trace, "message": str(error)}


def violation_of(call: Callable[[], object]) -> dict[str, Any]:
    """What the call is refused with; the call must break something."""
    try:
        call()
    except AccountingError as error:
        return told(error)
    return {"check": "nothing"}


def stop_inside_an_accepted_run() -> dict[str, Any]:
    """A request stops at the first of two accepted drafts: two tokens are trimmed, a block is complete."""
    scheduler = Scheduler(
        SchedulerConfig(
            max_model_len=64,
            num_blocks=30,
            block_size=5,
            num_speculative_tokens=2,
            vocab_size=100,
        )
    )
    scheduler.add("before", [8, 9], max_tokens=9)
    scheduler.add("stops", [3, 4, 5], max_tokens=20, eos_token_id=EOS)
    batch = scheduler.schedule()
    scheduler.settle(batch, np.full((2, 3), 7, np.int32), batch.samples[:2].copy())
    scheduler.take_drafts(batch.rows[:2], np.array([[2, 2], [EOS, 9]], np.int32), np.array([2, 2], np.int32))
    batch = scheduler.schedule()
    outcome = np.array([[2, 9, 9], [EOS, 9, 9]], np.int32), np.array([1, 3], np.int32)
    return violation_of(lambda: scheduler.settle(batch, *outcome))


# ---- no false alarms ----


def work(asynchronous: bool) -> dict[str, int]:
    """Many small schedulers; `check_every` so that everything is checked often."""
    did: Counter[str] = Counter()
    for seed in range(20):
        scheduler = Scheduler(random_config(seed, asynchronous), check_every=10)
        assert type(scheduler).__name__ == "SelfCheckingScheduler" and not scheduler.is_compiled
        did.update(RandomWork(scheduler, seed).run(120))
    return dict(did)


@run
def synchronous_work() -> dict[str, int]:
    return work(False)


@run
def asynchronous_work() -> dict[str, int]:
    return work(True)


# ---- faulty transitions ----


@run
def output_forgets_trimmed_tokens() -> dict[str, Any]:
    """The fault that let a session read a draft's KV; replayed on the faulty and on the right accounting."""
    faulty = patched(find("trim-uncounted").changes).transitions["output"]
    settle.output = contracts.transition(faulty)
    found = stop_inside_an_accepted_run()
    again = violation.replay(found["trace"], {**accounting.TRANSITIONS, "output": faulty})
    right = violation.replay(found["trace"])
    return found | {"again": again.sentence, "right": right.sentence, "num_events": right.num_events}


@run
def stale_output_changes_what_is_none_of_its_business() -> dict[str, Any]:
    """Caught by the frame: a counter that the event may not change."""
    plain = contracts.plain(accounting.stale_output)

    def stale_output(ledger: Ledger, rules: Rules, *event: int) -> Ledger:
        after: Ledger = plain(ledger, rules, *event)
        return after._replace(num_registered_at_preemption=8)

    scheduler = busy_scheduler()
    settle.stale_output = contracts.transition(stale_output)
    return violation_of(lambda: finish_step(scheduler))


@run
def a_wrong_event() -> dict[str, Any]:
    """The loop asks for a step that no request wants."""
    right = step.tokens_to_schedule

    def tokens_to_schedule(*arguments: Any) -> Any:
        return right(*arguments) + 9

    step.tokens_to_schedule = tokens_to_schedule
    scheduler = Scheduler(SchedulerConfig(max_model_len=64, num_blocks=30))
    scheduler.add("asked", [1, 2, 3])
    return violation_of(scheduler.schedule)


# ---- faulty loops around right transitions ----


@run
def stop_without_publication() -> dict[str, Any]:
    """What a finished request has settled is registered, and not published."""
    settle.publish_row = lambda *arguments: None
    return stop_inside_an_accepted_run()


@run
def preemption_without_publication() -> dict[str, Any]:
    """What accepted drafts have settled, and no step has gone on from yet, is not published."""
    pressure.publish_row = lambda *arguments: None
    config = SchedulerConfig(max_model_len=64, num_blocks=11, block_size=4, num_speculative_tokens=2)
    scheduler = Scheduler(config)
    for name in ("first", "second"):
        scheduler.add(name, [len(name)] * 5, max_tokens=23)
    return violation_of(lambda: accept_everything(scheduler))


def accept_everything(scheduler: Scheduler) -> None:
    """Steps whose drafts are all accepted, until all requests are finished."""
    while scheduler.has_unfinished_requests():
        batch = scheduler.schedule()
        count = batch.num_requests
        scheduler.settle(batch, np.full((count, 3), 7, np.int32), 1 + batch.num_draft_tokens[:count])
        drafts = np.full((count, 2), 7, np.int32)
        scheduler.take_drafts(batch.rows[:count].copy(), drafts, np.full(count, 2, np.int32))


def ask() -> dict[str, Any]:
    """A request arrives, and starts with two thirds of its prompt."""
    config = SchedulerConfig(
        max_model_len=64, num_blocks=30, block_size=4, max_num_batched_tokens=8, num_lookahead_tokens=4
    )
    scheduler = Scheduler(config)

    def arrive_and_start() -> None:
        scheduler.add("asked", list(range(12)))
        scheduler.schedule()

    return violation_of(arrive_and_start)


@run
def a_wrong_digest() -> dict[str, Any]:
    prefix_cache.block_digest = lambda *arguments: (1, 2)
    return ask()


@run
def other_tokens_are_published() -> dict[str, Any]:
    right = prefix_cache.put
    prefix_cache.put = lambda array, place, value, condition: right(array, place, value + 1, condition)
    return ask()


@run
def one_block_more_is_published() -> dict[str, Any]:
    """A block that the next chunk will fill."""
    right = step.fill_step
    step.fill_step = lambda state, batch, row, first, last: right(state, batch, row, first, last + 4)
    return ask()


@run
def one_block_too_few_is_taken() -> dict[str, Any]:
    right = step.reserve
    step.reserve = lambda state, row, num_slots: right(state, row, num_slots - 4)
    return ask()


@run
def a_running_request_goes_on_waiting() -> dict[str, Any]:
    step.dequeue = lambda *arguments: None
    return ask()


@run
def a_ring_is_off_by_one() -> dict[str, Any]:
    """A row is put in front of the last one, where it belongs behind it."""
    right = queues.link

    def link(previous: Any, following: Any, before: int, node: int, condition: bool) -> None:
        right(previous, following, before, node, condition)
        previous[following[node]] = before

    scheduler = Scheduler(SchedulerConfig(max_model_len=64, num_blocks=30, block_size=4))
    scheduler.add("first", [1])
    queues.link = link
    return violation_of(lambda: scheduler.add("second", [2]))


@run
def a_write_past_the_transitions() -> dict[str, Any]:
    right = settle.count_output

    scheduler = busy_scheduler()

    def count_output(*arguments: Any) -> Any:
        scheduler.state.requests.ledgers[10, 1] += 4  # X of another row: no invariant speaks about it
        return right(*arguments)

    settle.count_output = count_output
    return violation_of(lambda: finish_step(scheduler))


def oldest(scheduler: Scheduler) -> Batch:
    """The batch of the oldest step in flight."""
    return scheduler.batch_of(int(scheduler.state.counts[NUM_SETTLED]))


def finish_step(scheduler: Scheduler) -> None:
    """The oldest step returns, all drafts rejected."""
    batch = oldest(scheduler)
    count = batch.num_requests
    scheduler.settle(batch, np.full((count, 3), 7, np.int32), batch.samples[:count].copy())


@run
def a_lost_update() -> dict[str, Any]:
    """The loop stores what it loaded before somebody else stored."""
    right = settle.stop_row

    def stop_row(state: Any, rows: Any, batch: Any, index: int, reason: int) -> None:
        row = batch.rows[index]
        ledger = settle.load(state.requests.ledgers, row)
        right(state, rows, batch, index, reason)
        settle.store(state.requests.ledgers, row, accounting.finish(ledger, state.rules))

    settle.stop_row = stop_row
    return stop_inside_an_accepted_run()


@run
def a_ledger_in_another_row() -> dict[str, Any]:
    right = settle.store

    def store(table: Any, row: int, ledger: Ledger) -> None:
        right(table, row + 1, ledger)

    scheduler = busy_scheduler()
    settle.store = store
    return violation_of(lambda: finish_step(scheduler))


@run
def a_block_is_not_released() -> dict[str, Any]:
    """The row forgets its blocks without giving them back."""

    def release_row(state: Any, row: int) -> None:
        for group in range(state.settings.num_groups):
            state.tables.num_blocks[group, row] = 0

    settle.release_row = release_row
    return stop_inside_an_accepted_run()


@run
def heads_are_evicted_before_tails() -> dict[str, Any]:
    """Blocks are given back from the first to the last."""

    def release_row(state: Any, row: int) -> None:
        for index in range(state.tables.num_blocks[0, row]):
            pool.release(state.pool, state.tables.block_ids[0, row, index], True)
        state.tables.num_blocks[0, row] = 0

    settle.release_row = release_row
    scheduler = Scheduler(SchedulerConfig(max_model_len=64, num_blocks=30, block_size=4))
    scheduler.add("long", list(range(12)), max_tokens=1)
    batch = scheduler.schedule()
    return violation_of(lambda: scheduler.settle(batch, np.array([[7]], np.int32), np.array([1], np.int32)))


@run
def a_published_block_is_reused_first() -> dict[str, Any]:
    """The wrong end of the free list."""
    right = pool.where

    def release(blocks: Any, block: int, condition: bool) -> None:
        pool.put(blocks.ref_count, block, blocks.ref_count[block] - 1, condition)
        freed = condition and blocks.ref_count[block] == 0
        pool.link(blocks.previous_free, blocks.next_free, 0, block, freed)
        blocks.num_free_blocks[0] += right(freed, 1, 0)

    scheduler = Scheduler(SchedulerConfig(max_model_len=64, num_blocks=30, block_size=4))
    answer_one(scheduler, "first")
    allocation.release = release
    return violation_of(lambda: answer_one(scheduler, "second"))


def answer_one(scheduler: Scheduler, name: str) -> None:
    """A request of one step. Different names share nothing."""
    scheduler.add(name, list(range(10)), max_tokens=1, cache_salt=name)
    batch = scheduler.schedule()
    scheduler.settle(batch, np.array([[7]], np.int32), np.array([1], np.int32))


@run
def a_published_block_is_written_to() -> dict[str, Any]:
    """One that nobody holds any more, and nobody's tokens can be compared with."""
    scheduler = busy_scheduler()
    blocks, right = scheduler.state.pool, settle.count_output
    leaving = int(scheduler.state.tables.block_ids[0, LEAVING, 0])
    finish_step(scheduler)
    assert blocks.ref_count[leaving] == 0 and blocks.next_in_chain[leaving] != 0

    def count_output(*arguments: Any) -> Any:
        blocks.token_ids[leaving, 0] += 1
        return right(*arguments)

    settle.count_output = count_output
    return violation_of(lambda: finish_step(scheduler))


@run
def a_held_block_is_withdrawn() -> dict[str, Any]:
    scheduler = busy_scheduler()

    def count_output(*arguments: Any) -> Any:
        state = scheduler._calls.state  # type: ignore[union-attr]
        lifecycle.withdraw_block(state, state.tables.block_ids[0, 0, 0])
        return right(*arguments)

    right, settle.count_output = settle.count_output, count_output
    return violation_of(lambda: finish_step(scheduler))


@run
def a_step_that_failed_is_believed() -> dict[str, Any]:
    """Nothing is withdrawn; the requests' blocks stay findable. No call of the pool is wrong by itself."""
    lifecycle.withdraw_step.__code__ = (lambda state, batch: None).__code__
    scheduler = busy_scheduler()
    return violation_of(lambda: scheduler.fail(oldest(scheduler)))


@run
def the_preempted_wait_behind_all() -> dict[str, Any]:
    right = pressure.enqueue

    def enqueue(queues: Any, counts: Any, requests: Any, row: int, by_priority: int, first: bool) -> None:
        right(queues, counts, requests, row, by_priority, False)

    pressure.enqueue = enqueue
    scheduler = busy_scheduler()
    return violation_of(lambda: scheduler.reset_prefix_cache(preempt_running=True))


@run
def a_refused_call_changes_something() -> dict[str, Any]:
    scheduler = busy_scheduler()
    right = settle.problem_of_outcome

    def problem_of_outcome(state: Any, *arguments: Any) -> Any:
        state.requests.finish_reason[0] = 2
        return right(state, *arguments)

    settle.problem_of_outcome = problem_of_outcome
    batch = oldest(scheduler)
    wrong = np.full(batch.num_requests, 9, np.int32)
    return violation_of(lambda: scheduler.settle(batch, np.zeros((batch.num_requests, 3), np.int32), wrong))


@run
def an_index_outside() -> dict[str, Any]:
    scheduler = busy_scheduler()
    settle.first_stop = lambda requests, *arguments: requests.eos_token_id[10_000]
    return violation_of(lambda: finish_step(scheduler))


@run
def the_steps_in_flight_and_the_ghosts_differ() -> dict[str, Any]:
    """What the batch says was dispatched is not what was scheduled."""
    scheduler = busy_scheduler()
    oldest(scheduler).num_draft_tokens[0] -= 1
    return violation_of(lambda: scheduler.abort("paused"))


# ---- what is no violation ----


@run
def refused_calls() -> list[str]:
    """A caller's mistakes stay what they are."""
    scheduler = busy_scheduler()
    batch: Batch = oldest(scheduler)
    wrong = np.full(batch.num_requests, 9, np.int32)
    found = []
    for call in (
        lambda: scheduler.add("running", [1]),
        lambda: scheduler.abort("nobody"),
        lambda: scheduler.settle(batch, np.zeros((batch.num_requests, 3), np.int32), wrong),
        scheduler.schedule,
    ):
        try:
            call()
        except (RequestError, OutcomeError, RuntimeError) as error:
            found.append(type(error).__name__)
    return found


@run
def a_trace_that_cannot_be_written() -> dict[str, Any]:
    """Where the folder is to be there is a file."""
    os.environ["DRAFTPROOF_TRACE_DIR"] = __file__
    settle.publish_row = lambda *arguments: None
    return stop_inside_an_accepted_run()


@run
def the_middle_mode() -> dict[str, Any]:
    """Compiled, every index checked, no contracts; everything is checked every few steps, and when idle."""
    assert contracts.MIDDLE and not contracts.DEBUG
    did: Counter[str] = Counter()
    for seed, asynchronous in ((0, False), (1, True), (2, True)):
        scheduler = Scheduler(random_config(seed, asynchronous), check_every=10)
        assert scheduler.is_compiled
        did.update(RandomWork(scheduler, seed).run(300))
    return {
        "did": dict(did),
        "corrupted": corrupted_in_the_middle(),
        "idle": corrupted_before_the_last_step(),
        "outside": violation_of(reach_outside),
    }


def corrupted_in_the_middle() -> dict[str, Any]:
    """An owner is lost; so many steps later it is found."""
    scheduler = busy_scheduler(check_every=6)
    scheduler.state.pool.ref_count[scheduler.state.tables.block_ids[0, 0, 0]] += 1
    for number in range(9):
        found = violation_of(lambda: finish_step(scheduler))
        if found["check"] != "nothing":
            return found | {"number": number}
        scheduler.schedule()
    return {}


def corrupted_before_the_last_step() -> dict[str, Any]:
    """Nothing is left to do: everything is checked."""
    scheduler = Scheduler(SchedulerConfig(max_model_len=64, num_blocks=30))
    scheduler.add("only", [1, 2, 3], max_tokens=1)
    batch = scheduler.schedule()
    scheduler.state.pool.num_free_blocks[0] += 1
    return violation_of(lambda: scheduler.settle(batch, np.array([[7]], np.int32), np.array([1], np.int32)))


def reach_outside() -> None:
    """A table names a block far outside; giving it back would write there."""
    scheduler = busy_scheduler()
    scheduler.state.tables.block_ids[0, 1, 0] = 1_000_000
    scheduler.abort("paused")


@run
def compiled_is_refused() -> str:
    try:
        Scheduler(SchedulerConfig(max_model_len=64, num_blocks=30), compiled=True)
    except ValueError as error:
        return str(error)
    return ""


@run
def a_long_life() -> dict[str, Any]:
    """More events than a journal remembers: the trace starts later, and leads to the table's counters."""
    scheduler = Scheduler(SchedulerConfig(max_model_len=2_000, num_blocks=500))
    scheduler.add("long", [1, 2, 3], max_tokens=500)
    for _ in range(300):
        batch = scheduler.schedule()
        scheduler.settle(batch, np.array([[7]], np.int32), np.array([1], np.int32))
    scheduler.state.requests.max_num_tokens[0] = 9
    found = violation_of(scheduler.schedule)
    replayed = violation.replay(found["trace"])
    return found | {"num_events": replayed.num_events, "sentence": replayed.sentence}


def in_a_child(name: str) -> Any:
    """What the run returns, made in a copy of this process; what it raised, if it did."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        try:
            result: Any = RUNS[name]()
        except BaseException:
            result = {"raised": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        result = json.load(pipe)
    os.wait()
    return result


if __name__ == "__main__":
    print(json.dumps({name: in_a_child(name) for name in sys.argv[1:]}))

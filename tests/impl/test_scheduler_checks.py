"""Every check of a scheduler's state is seen failing on a state that was corrupted for it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.impl.busy import (
    LEAVING,
    PAUSED,
    RUNNING,
    SHARING,
    STARTED,
    WAITING,
    WAITING_LONGER,
    busy_scheduler,
)
from tests.impl.debug_runs import FAULTS

from draftproof.impl import ledger_table as lines
from draftproof.impl.pool import sentinel
from draftproof.impl.scheduler import problems
from draftproof.impl.scheduler.batch import STEP
from draftproof.impl.scheduler.checks import AccountingError, assert_accounting, find_problem, owners_of
from draftproof.impl.scheduler.layout import NUM_SETTLED, NUM_WAITING, State
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.impl.scheduler.sweep import POOL
from draftproof.spec import ledger as status

Corruption = Callable[[Scheduler], object]
IDLE = 11
CORRUPTIONS: list[tuple[str, Corruption]] = []
"""Each with the name of the check that must fail."""


def fails(name: str) -> Callable[[Corruption], Corruption]:
    """Note a corruption."""

    def note(corruption: Corruption) -> Corruption:
        CORRUPTIONS.append((name, corruption))
        return corruption

    return note


def ledger(scheduler: Scheduler, line: int, row: int, value: int) -> None:
    """Add to one counter of a row."""
    scheduler.state.requests.ledgers[line, row] += value


def block_of(state: State, row: int, index: int) -> int:
    """A block of the row."""
    return int(state.tables.block_ids[0, row, index])


def free_blocks(state: State) -> list[int]:
    """The free blocks in their order."""
    found = [int(state.pool.next_free[0])]
    while found[-1] != 0:
        found.append(int(state.pool.next_free[found[-1]]))
    return found[:-1]


# ---- queues ----


@fails("queue_count")
def one_row_more_is_counted_as_waiting(scheduler: Scheduler) -> None:
    scheduler.state.counts[NUM_WAITING] += 1


@fails("queue_count")
def fewer_than_no_rows_wait(scheduler: Scheduler) -> None:
    scheduler.state.counts[NUM_WAITING] = -1


@fails("queue_entry")
def a_running_row_does_not_exist(scheduler: Scheduler) -> None:
    scheduler.state.queues.running[0] = 99


@fails("queue_entry")
def a_waiting_row_does_not_exist(scheduler: Scheduler) -> None:
    scheduler.state.queues.next_waiting[WAITING] = 99


@fails("two_queues")
def a_row_runs_twice(scheduler: Scheduler) -> None:
    scheduler.state.queues.running[1] = RUNNING


@fails("two_queues")
def a_running_row_waits(scheduler: Scheduler) -> None:
    scheduler.state.queues.next_waiting[WAITING] = RUNNING


@fails("two_queues")
def the_ring_of_waiting_rows_closes_too_early(scheduler: Scheduler) -> None:
    scheduler.state.queues.next_waiting[WAITING_LONGER] = WAITING


@fails("idle_row_in_use")
def an_unused_row_has_work_in_flight(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_IN_FLIGHT_TOKENS, IDLE, 1)


@fails("idle_row_in_use")
def an_unused_row_holds_a_block(scheduler: Scheduler) -> None:
    scheduler.state.tables.num_blocks[0, IDLE] = 1


@fails("running_status")
def a_paused_row_is_in_the_list_of_running_ones(scheduler: Scheduler) -> None:
    scheduler.state.requests.ledgers[lines.STATUS, RUNNING] = status.PAUSED


@fails("waiting_status")
def a_running_row_is_in_the_ring_of_waiting_ones(scheduler: Scheduler) -> None:
    scheduler.state.requests.ledgers[lines.STATUS, WAITING] = status.RUNNING


@fails("waiting_links")
def the_ring_of_waiting_rows_does_not_link_back(scheduler: Scheduler) -> None:
    scheduler.state.queues.previous_waiting[WAITING_LONGER] = WAITING_LONGER


@fails("waiting_order")
def a_row_that_arrived_later_waits_in_front(scheduler: Scheduler) -> None:
    arrival = scheduler.state.requests.arrival
    arrival[[WAITING, WAITING_LONGER]] = arrival[[WAITING_LONGER, WAITING]]


@fails("waiting_order")
def a_preempted_row_waits_behind_one_that_never_ran(scheduler: Scheduler) -> None:
    scheduler.state.requests.ledgers[lines.STATUS, WAITING_LONGER] = status.PREEMPTED
    scheduler.state.requests.metrics[0, WAITING_LONGER] = 1


@fails("waiting_order")
def a_row_that_holds_blocks_waits_behind_one_that_needs_some(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_COMPUTED_TOKENS, WAITING_LONGER, 4)


@fails("no_queue")
def a_waiting_session_is_forgotten(scheduler: Scheduler) -> None:
    scheduler.state.requests.ledgers[lines.STATUS, PAUSED] = status.WAITING


@fails("no_queue")
def a_row_that_has_left_is_not_unused(scheduler: Scheduler) -> None:
    scheduler.state.requests.ledgers[lines.NUM_IN_FLIGHT_TOKENS, LEAVING] = 0


# ---- tables ----


@fails("table_length")
def a_table_is_longer_than_there_is_room(scheduler: Scheduler) -> None:
    scheduler.state.tables.num_blocks[0, RUNNING] = 1_000


@fails("table_length")
def a_table_is_shorter_than_nothing(scheduler: Scheduler) -> None:
    scheduler.state.tables.num_blocks[0, RUNNING] = -1


@fails("table_entry")
def a_table_names_no_block(scheduler: Scheduler) -> None:
    scheduler.state.tables.block_ids[0, RUNNING, 1] = 31


@fails("null_block")
def a_table_names_the_null_block(scheduler: Scheduler) -> None:
    scheduler.state.tables.block_ids[0, RUNNING, 0] = 0


@fails("held_twice")
def a_table_names_a_block_twice(scheduler: Scheduler) -> None:
    scheduler.state.tables.block_ids[0, RUNNING, 4] = block_of(scheduler.state, RUNNING, 5)


@fails("held_without_kv")
def a_row_that_never_ran_holds_a_block(scheduler: Scheduler) -> None:
    state = scheduler.state
    state.tables.block_ids[0, WAITING, 0] = block_of(state, RUNNING, 0)
    state.tables.num_blocks[0, WAITING] = 1
    state.pool.ref_count[block_of(state, RUNNING, 0)] += 1


@fails("too_few_blocks")
def a_row_gave_its_last_block_back(scheduler: Scheduler) -> None:
    state = scheduler.state
    state.pool.ref_count[block_of(state, RUNNING, 5)] -= 1
    state.tables.num_blocks[0, RUNNING] -= 1


@fails("reference_count")
def an_owner_is_not_counted(scheduler: Scheduler) -> None:
    scheduler.state.pool.ref_count[block_of(scheduler.state, RUNNING, 0)] -= 1


@fails("reference_count")
def a_block_is_given_to_two(scheduler: Scheduler) -> None:
    state = scheduler.state
    state.tables.block_ids[0, STARTED, 1] = block_of(state, RUNNING, 5)


@fails("reference_count")
def a_free_block_has_an_owner(scheduler: Scheduler) -> None:
    state = scheduler.state
    state.tables.block_ids[0, STARTED, 1] = free_blocks(state)[0]


@fails("published_empty")
def a_published_block_is_empty(scheduler: Scheduler) -> None:
    scheduler.state.pool.num_tokens[block_of(scheduler.state, RUNNING, 0)] = 0


# ---- content ----


@fails("unknown_token")
def a_known_token_is_none(scheduler: Scheduler) -> None:
    scheduler.state.requests.token_ids[WAITING, 2] = -1


@fails("unknown_token")
def a_request_knows_no_token(scheduler: Scheduler) -> None:
    scheduler.state.requests.ledgers[lines.NUM_TOKENS, WAITING] = 0


@fails("hashed_too_far")
def a_digest_of_unknown_tokens_is_kept(scheduler: Scheduler) -> None:
    scheduler.state.requests.num_hashed_blocks[WAITING] += 1


@fails("digest")
def a_stale_digest_is_kept(scheduler: Scheduler) -> None:
    scheduler.state.requests.token_ids[WAITING, 2] += 1


@fails("content_beyond_known")
def a_block_has_tokens_that_nobody_knows(scheduler: Scheduler) -> None:
    scheduler.state.pool.num_tokens[block_of(scheduler.state, RUNNING, 4)] = 4


@fails("content_tokens")
def a_published_block_holds_other_tokens(scheduler: Scheduler) -> None:
    scheduler.state.pool.token_ids[block_of(scheduler.state, RUNNING, 1), 3] += 1


@fails("content_tokens")
def a_published_block_is_not_full(scheduler: Scheduler) -> None:
    scheduler.state.pool.num_tokens[block_of(scheduler.state, RUNNING, 1)] = 3


@fails("content_digest")
def a_block_was_published_under_another_digest(scheduler: Scheduler) -> None:
    scheduler.state.pool.digest_second[block_of(scheduler.state, RUNNING, 1)] += 1


@fails("registered_not_held")
def more_is_registered_than_held(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_REGISTERED_TOKENS, RUNNING, 40)


@fails("registered_not_written")
def one_block_too_many_counts_as_registered(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_REGISTERED_TOKENS, RUNNING, 4)


@fails("published_too_far")
def a_block_is_published_that_does_not_count_as_registered(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_REGISTERED_TOKENS, RUNNING, -4)


# ---- the pool ----


@fails("free_count")
def one_free_block_too_many_is_counted(scheduler: Scheduler) -> None:
    scheduler.state.pool.num_free_blocks[0] += 1


@fails("free_list_entry")
def a_held_block_is_in_the_free_list(scheduler: Scheduler) -> None:
    scheduler.state.pool.next_free[0] = block_of(scheduler.state, RUNNING, 0)


@fails("free_list_links")
def the_free_list_does_not_link_back(scheduler: Scheduler) -> None:
    second = free_blocks(scheduler.state)[1]
    scheduler.state.pool.previous_free[second] = second


@fails("free_list_incomplete")
def a_free_block_is_lost(scheduler: Scheduler) -> None:
    pool = scheduler.state.pool
    _, second, third = free_blocks(scheduler.state)[:3]
    before = pool.previous_free[second]
    pool.next_free[before] = third
    pool.previous_free[third] = before


@fails("chain_entry")
def a_chain_holds_a_block_that_is_not_published(scheduler: Scheduler) -> None:
    pool = scheduler.state.pool
    pool.next_in_chain[sentinel(pool, 0)] = block_of(scheduler.state, RUNNING, 5)


@fails("chain_links")
def a_chain_does_not_link_back(scheduler: Scheduler) -> None:
    block = block_of(scheduler.state, RUNNING, 0)
    scheduler.state.pool.previous_in_chain[block] = block


@fails("chain_incomplete")
def a_published_block_cannot_be_found(scheduler: Scheduler) -> None:
    pool = scheduler.state.pool
    block = block_of(scheduler.state, RUNNING, 0)
    before, after = pool.previous_in_chain[block], pool.next_in_chain[block]
    pool.next_in_chain[before] = after
    pool.previous_in_chain[after] = before


@fails("null_block_in_use")
def the_null_block_has_an_owner(scheduler: Scheduler) -> None:
    scheduler.state.pool.ref_count[0] = 1


@fails("too_many_tokens")
def a_free_block_holds_too_many_tokens(scheduler: Scheduler) -> None:
    scheduler.state.pool.num_tokens[free_blocks(scheduler.state)[0]] = 5


# ---- counters ----


@fails("steps_in_flight")
def a_settled_step_counts_as_in_flight(scheduler: Scheduler) -> None:
    scheduler.state.counts[NUM_SETTLED] -= 1


@fails("step_of_batch")
def a_batch_is_overwritten_by_another_step(scheduler: Scheduler) -> None:
    scheduler.batch_of(int(scheduler.state.counts[NUM_SETTLED])).counts[STEP] += 3


@fails("rows_of_batch")
def a_batch_names_a_row_twice(scheduler: Scheduler) -> None:
    batch = scheduler.batch_of(int(scheduler.state.counts[NUM_SETTLED]))
    batch.rows[1] = batch.rows[0]


@fails("in_flight_tokens")
def work_is_forgotten_that_is_in_flight(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_IN_FLIGHT_TOKENS, SHARING, -1)


@fails("stale_tokens")
def stale_work_ends_within_a_step(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_STALE_TOKENS, SHARING, 1)


@fails("awaited_outputs")
def an_output_is_not_awaited(scheduler: Scheduler) -> None:
    scheduler.state.requests.num_awaited_outputs[RUNNING] -= 1


@fails("stop_left")
def a_stop_is_not_handled(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.STOP_PENDING, RUNNING, 1)


@fails("length_limit")
def a_request_is_longer_than_it_may_be(scheduler: Scheduler) -> None:
    scheduler.state.requests.max_num_tokens[RUNNING] = 15


@fails("leaving")
def a_finished_request_has_drafts(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_DRAFT_TOKENS, LEAVING, 1)


@fails("invalid_drafts")
def more_drafts_are_invalid_than_there_are(scheduler: Scheduler) -> None:
    scheduler.state.requests.num_invalid_drafts[RUNNING] = 3


@fails("metrics")
def more_drafts_are_accepted_than_verified(scheduler: Scheduler) -> None:
    scheduler.state.requests.metrics[5, RUNNING] = scheduler.state.requests.metrics[4, RUNNING] + 1


@fails("metrics")
def a_count_is_negative(scheduler: Scheduler) -> None:
    scheduler.state.requests.metrics[6, RUNNING] = -1


@fails("request_ids")
def an_id_is_forgotten(scheduler: Scheduler) -> None:
    del scheduler.rows["paused"]


@fails("request_ids")
def an_id_is_known_that_has_left(scheduler: Scheduler) -> None:
    scheduler.rows["leaving"] = LEAVING


@fails("waiting_chunks")
def a_chunk_waits_for_what_is_no_session(scheduler: Scheduler) -> None:
    scheduler.append_chunk("paused", [2, 3])
    scheduler.append_chunk("paused", [4, 5])
    scheduler.state.requests.resumable[PAUSED] = 0


@fails("placeholders_are_awaited")
def a_placeholder_is_missing(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_OUTPUT_PLACEHOLDERS, RUNNING, -1)


@fails("frontier_exact_when_sampling")
def rejected_drafts_stay_computed(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_COMPUTED_TOKENS, RUNNING, -1)


@fails("paused_keeps_all_but_one")
def a_paused_session_lost_a_token(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_COMPUTED_TOKENS, PAUSED, -1)


@fails("nothing_live_unless_running")
def a_waiting_row_has_drafts(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_DRAFT_TOKENS, PAUSED, 1)


@fails("prompt_is_known")
def a_prompt_is_longer_than_what_is_known(scheduler: Scheduler) -> None:
    ledger(scheduler, lines.NUM_PROMPT_TOKENS, RUNNING, 9)


@pytest.mark.parametrize(("name", "corruption"), CORRUPTIONS, ids=[one.__name__ for _, one in CORRUPTIONS])
def test_a_corrupted_state_is_named(name: str, corruption: Corruption) -> None:
    scheduler = busy_scheduler(compiled=False)
    assert_accounting(scheduler)
    corruption(scheduler)
    with pytest.raises(AccountingError, match=rf"^{name} \(") as caught:
        assert_accounting(scheduler)
    assert caught.value.check == name


def test_every_check_was_seen_failing() -> None:
    named = {name for name, _ in CORRUPTIONS}
    others = {value.name for value in vars(problems).values() if isinstance(value, problems.Check)}
    swept = {check.name for number, check in problems.BY_NUMBER.items() if number not in (0, POOL)}
    in_debug_mode = {check for check, _, _ in FAULTS.values()}  # seen failing in `test_scheduler_debug`
    assert swept | others <= named | in_debug_mode


def test_the_compiled_sweep_says_the_same() -> None:
    scheduler = busy_scheduler()
    assert scheduler.is_compiled
    assert find_problem(scheduler) is None
    before = [memory.copy() for memory in scheduler.memory[:2]]
    for name, corruption in CORRUPTIONS:
        if name in ("step_of_batch", "rows_of_batch", "request_ids", "waiting_chunks"):
            continue  # these are outside the memory, and checked in Python either way
        corruption(scheduler)
        problem = find_problem(scheduler)
        assert problem is not None, corruption.__name__
        assert problem.check.name == name
        for memory, saved in zip(scheduler.memory[:2], before, strict=True):
            memory[:] = saved
    assert find_problem(scheduler) is None


def test_nothing_is_changed_by_a_check() -> None:
    scheduler = busy_scheduler(compiled=False)
    before = [memory.copy() for memory in scheduler.memory[:2]]
    assert_accounting(scheduler)
    for memory, saved in zip(scheduler.memory[:2], before, strict=True):
        assert (memory == saved).all()


def test_owners_are_named() -> None:
    scheduler = busy_scheduler(compiled=False)
    a_block_is_given_to_two(scheduler)
    block = block_of(scheduler.state, RUNNING, 5)
    assert owners_of(scheduler.state, block) == [(RUNNING, 0, 5), (STARTED, 0, 1)]
    with pytest.raises(AccountingError) as caught:
        assert_accounting(scheduler)
    assert str(caught.value) == (
        "reference_count (P2): the reference count is not the number of owners; "
        f"block {block} is not published with 1 references and 2 owners: "
        "request 'running' (row 0) as block 5 of group 0, request 'waiting 0' (row 4) as block 1 of group 0"
    )
    assert caught.value.request_id == "running"


def test_a_counter_is_named_with_its_request() -> None:
    scheduler = busy_scheduler(compiled=False)
    work_is_forgotten_that_is_in_flight(scheduler)
    with pytest.raises(AccountingError, match=re.escape("request 'sharing' (row 2) has L 11, N 12, C 17,")):
        assert_accounting(scheduler)


def test_the_helper_is_at_hand_without_the_compiler() -> None:
    """Importing the package loads nothing; asking for the helper does not load Numba."""
    program = (
        "import sys, draftproof.impl as impl;"
        "before = len([name for name in sys.modules if name.startswith('draftproof.')]);"
        "from draftproof.impl import assert_accounting; from draftproof.impl.scheduler import checks;"
        "print(before, assert_accounting is checks.assert_accounting, 'numba' in sys.modules, "
        "'assert_accounting' in dir(impl))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "True", "False", "True"]
    with pytest.raises(ImportError):
        from draftproof.impl import assert_nothing  # noqa: F401


def test_every_interval_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftproof.impl.scheduler.debug import check_interval

    assert check_interval(7) == 7
    monkeypatch.setenv("DRAFTPROOF_CHECK_EVERY", "9")
    assert check_interval(None) == 9
    assert check_interval(7) == 7
    wrong: Any
    for wrong in (0, -1, "x"):
        with pytest.raises(ValueError, match="check_every"):
            check_interval(wrong)

"""Who gives blocks back when there are too few? Idle sessions first, then the running row served last.

A session that pauses, or waits with the KV of its earlier turns, holds blocks without using them; what they
hold was published when its turn ended, so it may find most of it again. Preemption is recomputation: the row
gives all its blocks back and starts over. Either way what is settled is published first (T4).
"""

from __future__ import annotations

from draftproof.impl.accounting import preempt
from draftproof.impl.ledger_table import NUM_COMPUTED_TOKENS, STATUS, load, store
from draftproof.impl.scheduler.allocation import release_row
from draftproof.impl.scheduler.batch import NUM_PREEMPTED, Batch
from draftproof.impl.scheduler.layout import TOTAL_PREEMPTIONS, State
from draftproof.impl.scheduler.prefix_cache import publish_row
from draftproof.impl.scheduler.queues import enqueue
from draftproof.impl.scheduler.recurrent_rows import leave_states
from draftproof.spec.ledger import PAUSED, WAITING


def give_back(state: State, row: int, drop: bool) -> None:
    """The row's ledger starts over, what is settled of it is published, and its blocks are free."""
    ledger = load(state.requests.ledgers, row)
    after = preempt(ledger, state.rules, drop)
    publish_row(state, row, ledger.num_registered_tokens, after.num_registered_at_preemption)
    leave_states(state, state.recurrent, row, ledger)
    store(state.requests.ledgers, row, after)
    state.counts[TOTAL_PREEMPTIONS] += 1
    state.requests.num_awaited_outputs[row] = 0
    release_row(state, row)


def preempt_row(state: State, batch: Batch, row: int, drop: bool) -> None:
    """The row, no longer in the list of running ones, gives its blocks back and waits to start over."""
    give_back(state, row, drop)
    enqueue(state.queues, state.counts, state.requests, row, state.settings.by_priority, True)
    batch.preempted[batch.counts[NUM_PREEMPTED]] = row
    batch.counts[NUM_PREEMPTED] += 1


def reclaim(state: State, needed_by: int) -> bool:
    """An idle session other than `needed_by` gives its blocks back; false when there is none.

    The one that paused the longest time ago; else the last of those that wait for their turn.
    """
    row = longest_paused(state)
    if row < 0:
        row = last_waiting_holder(state, needed_by)
    if row < 0:
        return False
    give_back(state, row, state.settings.drop_stale_output != 0)
    return True


def num_idle_blocks(state: State, needed_by: int) -> int:
    """Blocks that idle sessions other than `needed_by` hold: no more can be reclaimed."""
    requests, tables = state.requests, state.tables
    count = 0
    for row in range(state.settings.num_rows):
        status = requests.ledgers[STATUS, row]
        if row != needed_by and status in (PAUSED, WAITING):
            for group in range(state.settings.num_groups):
                count += tables.num_blocks[group, row]
    return count


def longest_paused(state: State) -> int:
    """The paused session with KV whose turn ended first; -1 when there is none."""
    requests = state.requests
    found = -1
    for row in range(state.settings.num_rows):
        if requests.ledgers[STATUS, row] != PAUSED or requests.ledgers[NUM_COMPUTED_TOKENS, row] == 0:
            continue
        if found < 0 or requests.paused_at[row] < requests.paused_at[found]:
            found = row
    return found


def last_waiting_holder(state: State, needed_by: int) -> int:
    """The last waiting row that holds KV, but for `needed_by`; -1 when there is none."""
    queues, sentinel = state.queues, state.settings.num_rows
    row = queues.previous_waiting[sentinel]
    while row != sentinel:
        if row != needed_by and state.requests.ledgers[NUM_COMPUTED_TOKENS, row] > 0:
            return row  # type: ignore[no-any-return]
        row = queues.previous_waiting[row]
    return -1

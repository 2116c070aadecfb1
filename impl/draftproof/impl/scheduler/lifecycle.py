"""How does a request come and go, outside of steps? Arrival, the next chunk of a session, abort; and what
befalls all of them: the cache is emptied, a step fails."""

from __future__ import annotations

from typing import Any

from draftproof.impl.accounting import abort, fold, stale_output
from draftproof.impl.decisions import hashes_to_keep
from draftproof.impl.dispatch import publishable_if_all_in_flight_fails
from draftproof.impl.ledger_table import STATUS, load, store
from draftproof.impl.pool import published, withdraw
from draftproof.impl.scheduler.batch import NUM_PREEMPTED, NUM_PUBLISHED, NUM_REQUESTS, Batch
from draftproof.impl.scheduler.kv_notes import note_cleared, note_withdrawn
from draftproof.impl.scheduler.layout import (
    CLEARED_AT,
    NUM_ARRIVED,
    NUM_DISPATCHED,
    NUM_RUNNING,
    NUM_SETTLED,
    State,
    wide,
)
from draftproof.impl.scheduler.metrics import store_metrics
from draftproof.impl.scheduler.prefix_cache import hash_row, look_up_row, publish_row
from draftproof.impl.scheduler.pressure import preempt_row, reclaim
from draftproof.impl.scheduler.queues import dequeue, enqueue, retire, stop_running, unused_row
from draftproof.impl.scheduler.recurrent_blocks import finish_copies, withdraw_failed
from draftproof.impl.scheduler.recurrent_rows import leave_states
from draftproof.impl.scheduler.settle import ABORTED, NOT_FINISHED, leave
from draftproof.spec.decision_inputs import Metrics
from draftproof.spec.ledger import FINISHED, PAUSED, RUNNING, initial

MAX_TOKENS, MIN_TOKENS, EOS_TOKEN_ID, RESUMABLE, PRIORITY, SALT_FIRST, SALT_SECOND = range(7)
"""Indices of a new request's parameters."""
NUM_PARAMETERS = 7


def set_limits(state: State, row: int, num_prompt_tokens: int, max_tokens: int, min_tokens: int) -> None:
    """When the row's present turn stops."""
    requests = state.requests
    requests.max_tokens[row] = max_tokens
    requests.min_tokens[row] = min_tokens
    requests.max_num_tokens[row] = min(num_prompt_tokens + max_tokens, state.settings.max_model_len)
    requests.min_num_tokens[row] = num_prompt_tokens + min_tokens
    requests.finish_reason[row] = NOT_FINISHED


def add_row(state: State, token_ids: Any, parameters: Any, stop_token_ids: Any) -> int:
    """A new request: int32[L] tokens, int64[NUM_PARAMETERS], int32[m] stop tokens; -1 if no row is unused."""
    requests, counts = state.requests, state.counts
    row = unused_row(state.queues, counts)
    if row < 0:
        return row
    num_tokens = token_ids.shape[0]
    for index in range(num_tokens):
        requests.token_ids[row, index] = token_ids[index]
    for index in range(stop_token_ids.shape[0]):
        requests.stop_token_ids[row, index] = stop_token_ids[index]
    requests.num_stop_token_ids[row] = stop_token_ids.shape[0]
    requests.eos_token_id[row] = parameters[EOS_TOKEN_ID]
    requests.resumable[row] = parameters[RESUMABLE]
    requests.priority[row] = parameters[PRIORITY]
    requests.salt_first[row] = parameters[SALT_FIRST]
    requests.salt_second[row] = parameters[SALT_SECOND]
    requests.arrival[row] = counts[NUM_ARRIVED]
    requests.num_awaited_outputs[row] = 0
    requests.was_in_prefill[row] = 0
    requests.num_invalid_drafts[row] = 0
    requests.num_hashed_blocks[row] = 0
    set_limits(state, row, num_tokens, parameters[MAX_TOKENS], parameters[MIN_TOKENS])
    store(requests.ledgers, row, initial(num_tokens))
    store_metrics(requests.metrics, row, Metrics(0, 0, 0, 0, 0, 0, 0))
    if state.settings.caching != 0:
        hash_row(state, row, num_tokens)
    counts[NUM_ARRIVED] += 1
    enqueue(state.queues, counts, requests, row, state.settings.by_priority, False)
    return row


def fold_row(state: State, row: int, token_ids: Any, max_tokens: int, min_tokens: int) -> None:
    """The next chunk of a paused session: its last token goes, the chunk comes, and it waits for its turn."""
    requests, settings = state.requests, state.settings
    ledger = load(requests.ledgers, row)
    num_kept = hashes_to_keep(ledger, state.rules)
    after = fold(ledger, state.rules, token_ids.shape[0])
    first = after.num_tokens - token_ids.shape[0]
    for index in range(token_ids.shape[0]):
        requests.token_ids[row, first + index] = token_ids[index]
    # Digests of blocks whose tokens, and those they look ahead to, all stay.
    num_hashes = max(num_kept - settings.num_hash_lookahead_tokens, 0) // settings.hash_block_size
    requests.num_hashed_blocks[row] = min(requests.num_hashed_blocks[row], num_hashes)
    store(requests.ledgers, row, after)
    set_limits(state, row, after.num_prompt_tokens, max_tokens, min_tokens)
    holds_blocks = after.num_computed_tokens > 0
    enqueue(state.queues, state.counts, requests, row, settings.by_priority, holds_blocks)


def abort_row(state: State, row: int) -> None:
    """The request leaves without having stopped. What is settled of a running one is published first."""
    requests = state.requests
    ledger = load(requests.ledgers, row)
    if ledger.status == RUNNING:
        stop_running(state.queues, state.counts, row)
    elif ledger.status != PAUSED:
        dequeue(state.queues, state.counts, row)
    after = abort(ledger, state.rules)
    publish_row(state, row, ledger.num_registered_tokens, after.num_registered_tokens)
    leave_states(state, state.recurrent, row, ledger)
    store(requests.ledgers, row, after)
    requests.num_awaited_outputs[row] = 0
    requests.finish_reason[row] = ABORTED
    leave(state, row, after)


def withdraw_block(state: State, block: int) -> None:
    """The block is found no more; its owners keep it."""
    if published(state.pool, block):
        withdraw(state.pool, block, True)
        note_withdrawn(state, block)


def clear_cache(state: State) -> None:
    """Nothing that was published is found any more."""
    for block in range(1, state.settings.num_blocks + 1):
        withdraw(state.pool, block, True)
    state.counts[CLEARED_AT] = state.counts[NUM_DISPATCHED]
    note_cleared(state)


def preempt_all(state: State, batch: Batch) -> None:
    """All running rows, the last first, and all idle sessions give their blocks back; what the running ones
    have in flight is dropped."""
    batch.counts[NUM_PREEMPTED] = 0
    while state.counts[NUM_RUNNING] > 0:
        row = state.queues.running[state.counts[NUM_RUNNING] - 1]
        state.counts[NUM_RUNNING] -= 1
        preempt_row(state, batch, row, True)
    while reclaim(state, -1):
        pass


def withdraw_step(state: State, batch: Batch) -> None:
    """A step will never return: what was published when it was dispatched was never computed."""
    withdraw_failed(state, state.recurrent, int(state.counts[NUM_SETTLED]))
    if batch.counts[NUM_PUBLISHED] > batch.published.shape[0]:
        clear_cache(state)
        return
    for index in range(batch.counts[NUM_PUBLISHED]):
        withdraw_block(state, wide(batch.published[index]))


def drop_step(state: State, batch: Batch) -> None:
    """Settle a step that will never return: all its rows have been preempted, stopped or aborted before."""
    requests = state.requests
    for index in range(batch.counts[NUM_REQUESTS]):
        row = wide(batch.rows[index])
        ledger = load(requests.ledgers, row)
        after = stale_output(ledger, state.rules, wide(batch.num_scheduled_tokens[index]), 0, 0)
        store(requests.ledgers, row, after)
        if after.status == FINISHED:
            leave(state, row, after)
    finish_copies(state, state.recurrent, batch)
    state.counts[NUM_SETTLED] += 1


def publish_settled(state: State, row: int) -> None:
    """Publish again what was withdrawn although the row's returned steps had computed it.

    A block is published when a step is dispatched that knows its last token; the step that wrote it may have
    returned before. A row that started with a step that failed has computed nothing, and may have started on
    blocks that were never written: nothing of it is published.
    """
    requests = state.requests
    started_at = requests.started_at[row]
    if started_at >= state.counts[NUM_SETTLED] or started_at < state.counts[CLEARED_AT]:
        return  # it began with a step that failed, or what it computed was to be forgotten
    if state.tables.num_blocks[0, row] == 0:
        return
    ledger = load(requests.ledgers, row)
    limit = ledger.num_registered_tokens
    if ledger.status != FINISHED:
        limit = min(limit, publishable_if_all_in_flight_fails(ledger, state.rules))
    elif requests.finish_reason[row] == ABORTED:
        limit = 0
    publish_row(state, row, 0, limit)


def give_up_step(state: State, batch: Batch, report: Batch) -> None:
    """Of a step that will never return, preempt the running rows, the last first; noted in `report`."""
    for index in range(batch.counts[NUM_REQUESTS] - 1, -1, -1):
        row = wide(batch.rows[index])
        publish_settled(state, row)
        if state.requests.ledgers[STATUS, row] == RUNNING:
            stop_running(state.queues, state.counts, row)
            preempt_row(state, report, row, True)


def num_cached_tokens(state: State, token_ids: Any, salt_first: int, salt_second: int) -> int:
    """How many tokens a new request with these tokens would take over if it started now; nothing is taken.

    An unused row is borrowed; -1 when there is none.
    """
    requests = state.requests
    row = unused_row(state.queues, state.counts)
    if row < 0:
        return row
    for index in range(token_ids.shape[0]):
        requests.token_ids[row, index] = token_ids[index]
    requests.salt_first[row] = salt_first
    requests.salt_second[row] = salt_second
    requests.num_hashed_blocks[row] = 0
    num_hit_tokens = look_up_row(state, row, initial(token_ids.shape[0]))
    retire(state.queues, state.counts, row)
    return num_hit_tokens

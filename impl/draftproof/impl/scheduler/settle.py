"""A step has returned: what of it stays, who is done? Rows in the order of the batch.

A row's output belongs to its present life, or is stale: from before a preemption, or of a turn or request
that is over. Either way the ledger says what is charged to whom; here are the tokens, the stop rules and
the queues. Everything is checked before anything is changed: a wrong outcome leaves the state as it was.
"""

from __future__ import annotations

from typing import Any

from draftproof.impl.accounting import chunk_output, draft, end_turn, finish, output, stale_output
from draftproof.impl.decisions import count_output, drafts_allowed, may_release, tokens_to_keep
from draftproof.impl.ledger_table import STATUS, load, store
from draftproof.impl.scheduler.allocation import release_row
from draftproof.impl.scheduler.batch import NUM_FINISHED, NUM_PAUSED, NUM_REQUESTS, STEP, STEP_MASK, Batch
from draftproof.impl.scheduler.layout import (
    NUM_DISPATCHED,
    NUM_RUNNING,
    NUM_SETTLED,
    TOTAL_ACCEPTED_DRAFTS,
    TOTAL_DRAFTS,
    TOTAL_KEPT_TOKENS,
    TOTAL_STOPPED,
    RecurrentRows,
    Requests,
    State,
    wide,
)
from draftproof.impl.scheduler.metrics import load_metrics, store_metrics
from draftproof.impl.scheduler.prefix_cache import publish_row
from draftproof.impl.scheduler.queues import dequeue, retire
from draftproof.impl.scheduler.recurrent_blocks import finish_copies
from draftproof.impl.scheduler.recurrent_rows import leave_states, pause_states, settle_states
from draftproof.spec.ledger import FINISHED, RUNNING, Ledger, Rules

NOT_FINISHED, STOPPED, LENGTH, ABORTED = range(4)
FINISH_REASONS = ("", "stop", "length", "abort")

ACCEPTED, NOT_IN_FLIGHT, OUT_OF_ORDER, WRONG_SHAPE, WRONG_COUNT, WRONG_TOKEN, NOT_SCHEDULED = range(7)
"""What `problem_of_outcome` can find."""


def problem_of_outcome(state: State, batch: Batch, sampled: Any, num_sampled: Any) -> tuple[int, int]:
    """What is wrong with an outcome, and at which place in the batch."""
    vocab_size = state.settings.vocab_size
    # A batch keeps its step's number modulo 2**31: the distance from the oldest step in flight counts.
    distance = (batch.counts[STEP] - state.counts[NUM_SETTLED]) & STEP_MASK
    if (
        batch.counts[NUM_REQUESTS] == 0
        or distance >= state.counts[NUM_DISPATCHED] - state.counts[NUM_SETTLED]
    ):
        return NOT_IN_FLIGHT, 0
    if distance != 0:
        return OUT_OF_ORDER, 0
    num_requests = wide(batch.counts[NUM_REQUESTS])
    if sampled.shape[0] < num_requests or num_sampled.shape[0] < num_requests:
        return WRONG_SHAPE, 0
    for index in range(num_requests, num_sampled.shape[0]):
        if num_sampled[index] != 0:
            return NOT_SCHEDULED, index
    for index in range(num_requests):
        count = wide(num_sampled[index])
        num_drafts, num_invalid = batch.num_draft_tokens[index], batch.num_invalid_drafts[index]
        if num_invalid < 0 or num_invalid > num_drafts:
            return WRONG_COUNT, index
        if batch.samples[index] == 0:
            if count != 0:
                return WRONG_COUNT, index
        elif count < 1 or count > num_drafts - num_invalid + 1:
            return WRONG_COUNT, index
        if count > sampled.shape[1]:
            return WRONG_SHAPE, index
        for offset in range(count):
            if sampled[index, offset] < 0 or sampled[index, offset] >= vocab_size:
                return WRONG_TOKEN, index
    return ACCEPTED, 0


def settle_step(
    state: State, rows: RecurrentRows | None, batch: Batch, sampled: Any, num_sampled: Any
) -> None:
    """Take in a step's outcome. `sampled`: int32[requests, >= 1 + K], accepted drafts and the token sampled
    after them; `num_sampled`: int32[requests], 0 for a prefill chunk."""
    requests, rules, counts = state.requests, state.rules, state.counts
    num_kept_tokens, num_drafts_verified, num_drafts_accepted = 0, 0, 0
    for index in range(batch.counts[NUM_REQUESTS]):
        row = wide(batch.rows[index])
        num_returned = wide(batch.num_scheduled_tokens[index])
        num_drafts = wide(batch.num_draft_tokens[index])
        num_generated = wide(num_sampled[index])
        ledger = load(requests.ledgers, row)
        batch.finish_reason[index] = NOT_FINISHED
        if ledger.num_stale_tokens > 0:
            settle_stale(state, batch, index, ledger, sampled, num_generated)
            continue
        if num_generated == 0:
            batch.num_kept_tokens[index] = 0
            after = chunk_output(ledger, rules, num_returned)
            store(requests.ledgers, row, after)
            if rows is not None:
                settle_states(state, rows, batch, index, after, 0, 0, False)
            continue
        num_accepted = num_generated - 1
        num_kept, reason = keep_tokens(requests, rules, row, ledger, sampled, index, num_generated)
        stopped = reason != NOT_FINISHED
        after = output(ledger, rules, num_returned, num_drafts, num_accepted, num_kept, 1 if stopped else 0)
        store(requests.ledgers, row, after)
        requests.num_awaited_outputs[row] -= 1
        batch.num_kept_tokens[index] = num_kept
        num_kept_tokens += num_kept
        if num_drafts > 0:
            num_verified = num_drafts - wide(batch.num_invalid_drafts[index])
            num_drafts_verified += num_verified
            num_drafts_accepted += min(num_accepted, num_kept)
            metrics = load_metrics(requests.metrics, row)
            metrics = count_output(ledger, rules, metrics, num_verified, num_accepted, num_kept)
            store_metrics(requests.metrics, row, metrics)
        if after.num_registered_tokens > ledger.num_registered_tokens:
            publish_row(state, row, ledger.num_registered_tokens, after.num_registered_tokens)
        if rows is not None:
            settle_states(state, rows, batch, index, after, num_accepted, num_kept, stopped)
        if stopped:
            stop_row(state, rows, batch, index, reason)
    if rows is not None:
        finish_copies(state, rows, batch)
    counts[NUM_SETTLED] += 1
    counts[TOTAL_KEPT_TOKENS] += num_kept_tokens
    counts[TOTAL_DRAFTS] += num_drafts_verified
    counts[TOTAL_ACCEPTED_DRAFTS] += num_drafts_accepted
    if batch.counts[NUM_FINISHED] + batch.counts[NUM_PAUSED] > 0:
        forget_stopped(state)


def keep_tokens(
    requests: Requests, rules: Rules, row: int, ledger: Ledger, sampled: Any, index: int, num_generated: int
) -> tuple[int, int]:
    """Append the generated tokens up to a stop: how many stay, and why the row stops with them."""
    stop_index = first_stop(requests, row, ledger.num_tokens, sampled, index, num_generated)
    max_num_tokens = requests.max_num_tokens[row]
    num_kept = tokens_to_keep(ledger, rules, num_generated, stop_index, max_num_tokens)
    for offset in range(num_kept):
        requests.token_ids[row, ledger.num_tokens + offset] = sampled[index, offset]
    if stop_index < num_kept:
        return num_kept, STOPPED
    if ledger.num_tokens + num_kept >= max_num_tokens:
        return num_kept, LENGTH
    return num_kept, NOT_FINISHED


def first_stop(
    requests: Requests, row: int, num_tokens: int, sampled: Any, index: int, num_generated: int
) -> int:
    """The first generated token that stops the request, EOS or one of its stop tokens, once it has its least
    number of tokens; the count of generated tokens if none does."""
    eos_token_id, num_stops = requests.eos_token_id[row], requests.num_stop_token_ids[row]
    if eos_token_id < 0 and num_stops == 0:
        return num_generated
    for offset in range(max(requests.min_num_tokens[row] - num_tokens - 1, 0), num_generated):
        token = sampled[index, offset]
        if token == eos_token_id:
            return offset
        for place in range(num_stops):
            if token == requests.stop_token_ids[row, place]:
                return offset
    return num_generated


def settle_stale(
    state: State, batch: Batch, index: int, ledger: Ledger, sampled: Any, num_generated: int
) -> None:
    """Output of an earlier life: delivered unless dropped, never charged to this one."""
    requests, rules = state.requests, state.rules
    row = wide(batch.rows[index])
    num_returned = wide(batch.num_scheduled_tokens[index])
    num_kept, reason = 0, NOT_FINISHED
    if num_generated > 0 and not ledger.drop_stale:
        num_kept, reason = keep_tokens(requests, rules, row, ledger, sampled, index, num_generated)
    stopped = reason != NOT_FINISHED
    after = stale_output(ledger, rules, num_returned, num_kept, 1 if stopped else 0)
    store(requests.ledgers, row, after)
    batch.num_kept_tokens[index] = num_kept
    state.counts[TOTAL_KEPT_TOKENS] += num_kept
    num_verified = wide(batch.num_draft_tokens[index] - batch.num_invalid_drafts[index])
    if num_verified > 0 and num_kept > 0:
        state.counts[TOTAL_DRAFTS] += num_verified
        state.counts[TOTAL_ACCEPTED_DRAFTS] += min(num_generated - 1, num_kept)
        metrics = load_metrics(requests.metrics, row)
        metrics = count_output(ledger, rules, metrics, num_verified, num_generated - 1, num_kept)
        store_metrics(requests.metrics, row, metrics)
    if stopped:
        stop_row(state, state.recurrent, batch, index, reason)
    elif after.status == FINISHED:
        leave(state, row, after)


def stop_row(state: State, rows: RecurrentRows | None, batch: Batch, index: int, reason: int) -> None:
    """A row's stop is handled: a session's turn ends, any other request finishes."""
    requests, rules = state.requests, state.rules
    row = wide(batch.rows[index])
    batch.finish_reason[index] = reason
    ledger = load(requests.ledgers, row)
    if ledger.status != RUNNING:  # its late output stopped it while it waited
        dequeue(state.queues, state.counts, row)
    requests.finish_reason[row] = reason
    state.counts[TOTAL_STOPPED] += 1
    requests.num_awaited_outputs[row] = 0
    if requests.resumable[row] != 0:
        after = end_turn(ledger, rules)
        requests.paused_at[row] = state.counts[NUM_SETTLED]
        batch.paused[batch.counts[NUM_PAUSED]] = row
        batch.counts[NUM_PAUSED] += 1
        if rows is not None:
            pause_states(state, rows, row, ledger)
    else:
        after = finish(ledger, rules)
        batch.finished[batch.counts[NUM_FINISHED]] = row
        batch.counts[NUM_FINISHED] += 1
        if rows is not None:
            leave_states(state, rows, row, ledger)
    publish_row(state, row, ledger.num_registered_tokens, after.num_registered_tokens)
    store(requests.ledgers, row, after)
    if after.status == FINISHED:
        leave(state, row, after)


def leave(state: State, row: int, ledger: Ledger) -> None:
    """A finished row gives its blocks back once its last step has returned, or at once if so configured;
    with its last step the row itself becomes unused."""
    returned = may_release(ledger, state.rules, 0)
    if returned or state.settings.release_at_once != 0:
        release_row(state, row)
    if returned:
        retire(state.queues, state.counts, row)


def forget_stopped(state: State) -> None:
    """Leave the rows that stopped out of the list of running ones."""
    running, counts = state.queues.running, state.counts
    num_running = 0
    for place in range(counts[NUM_RUNNING]):
        row = running[place]
        if state.requests.ledgers[STATUS, row] == RUNNING:
            running[num_running] = row
            num_running += 1
    counts[NUM_RUNNING] = num_running


def wrong_draft(state: State, rows: Any, draft_token_ids: Any, num_drafts: Any) -> int:
    """The first place with a row, a count or a token that cannot be; the number of rows if a token list or a
    count is missing; -1 when nothing is wrong."""
    settings = state.settings
    if rows.shape[0] > draft_token_ids.shape[0] or rows.shape[0] > num_drafts.shape[0]:
        return rows.shape[0]  # type: ignore[no-any-return]
    for index in range(rows.shape[0]):
        if rows[index] < 0 or rows[index] >= settings.num_rows:
            return index
        if num_drafts[index] < 0 or num_drafts[index] > draft_token_ids.shape[1]:
            return index
        for offset in range(min(num_drafts[index], settings.num_speculative_tokens)):
            if draft_token_ids[index, offset] < -1 or draft_token_ids[index, offset] >= settings.vocab_size:
                return index
    return -1


def take_drafts(state: State, rows: Any, draft_token_ids: Any, num_drafts: Any) -> None:
    """The drafter's proposals for the next step: int32[m], int32[m, >= K], int32[m]; a token of -1 is one
    that a grammar ruled out. Cut to what may be verified; passed over are rows that cannot use any: they
    finished, were preempted, pause, are in prefill, or have work in flight."""
    requests, rules = state.requests, state.rules
    for index in range(rows.shape[0]):
        row = wide(rows[index])
        ledger = load(requests.ledgers, row)
        num_live = ledger.num_in_flight_tokens - ledger.num_stale_tokens
        if ledger.status != RUNNING or num_live > 0 or ledger.num_computed_tokens < ledger.num_tokens - 1:
            continue
        count = min(wide(num_drafts[index]), drafts_allowed(ledger, rules, state.settings.max_model_len))
        num_invalid = 0
        for offset in range(count):
            requests.draft_token_ids[row, offset] = draft_token_ids[index, offset]
            num_invalid += draft_token_ids[index, offset] < 0
        requests.num_invalid_drafts[row] = num_invalid
        store(requests.ledgers, row, draft(ledger, rules, count))

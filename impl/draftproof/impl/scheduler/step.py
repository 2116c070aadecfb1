"""What does the next step compute? Running requests first, then waiting ones, within the token budget.

Three passes, each in the order of service. *Decide*: how many tokens each running row gets, and its blocks;
rows to be served last are preempted to make room. *Commit*: the decided rows' ledgers move, and what the
step fills is published. *Admit*: waiting rows start, on what the prefix cache holds of them. Deciding and
committing are apart because a preempted row may have been decided already (priorities): nothing of it may
have been published.

Sizes are decisions, counters move by transitions; both are proved.
"""

from __future__ import annotations

from draftproof.impl.accounting import admit, draft, schedule
from draftproof.impl.decisions import (
    count_admission,
    seats_free,
    slots_to_admit,
    slots_to_reserve,
    tokens_before_lookahead,
    tokens_to_schedule,
)
from draftproof.impl.dispatch import num_drafts_in_step, samples_in_step
from draftproof.impl.ledger_table import load, store
from draftproof.impl.scheduler.allocation import (
    num_hit_blocks,
    num_missing_blocks,
    num_unowned_hits,
    prune,
    reserve,
    take_over,
)
from draftproof.impl.scheduler.batch import (
    NEW,
    NUM_ADMITTED,
    NUM_BATCH_COUNTS,
    NUM_IN_PREFILL,
    NUM_LEFT_OUT,
    NUM_PREEMPTED,
    NUM_PUBLISHED,
    NUM_REQUESTS,
    NUM_TOKENS,
    RESUMED,
    RUNNING,
    STEP,
    STEP_MASK,
    Batch,
)
from draftproof.impl.scheduler.config import FULL_ATTENTION, RECURRENT
from draftproof.impl.scheduler.layout import (
    NUM_DISPATCHED,
    NUM_RUNNING,
    NUM_WAITING,
    TOTAL_HIT_TOKENS,
    TOTAL_LOOKED_UP_TOKENS,
    RecurrentRows,
    Requests,
    Settings,
    State,
    wide,
)
from draftproof.impl.scheduler.metrics import load_metrics, store_metrics
from draftproof.impl.scheduler.prefix_cache import fill_block, look_up_row, publish_block
from draftproof.impl.scheduler.pressure import num_idle_blocks, preempt_row, reclaim
from draftproof.impl.scheduler.queues import dequeue, lowest, run, stop_running
from draftproof.impl.scheduler.recurrent_rows import (
    dispatch_states,
    num_state_blocks,
    num_state_blocks_to_start,
    start_states,
    up_to_boundary,
)
from draftproof.spec.ledger import Ledger, Rules


def schedule_step(state: State, batch: Batch) -> None:
    """Fill the batch with the next step, and count it as dispatched if there is anything in it."""
    for index in range(NUM_BATCH_COUNTS):
        batch.counts[index] = 0
    batch.counts[STEP] = state.counts[NUM_DISPATCHED] & STEP_MASK
    decide_running(state, state.recurrent, batch)
    commit(state, state.recurrent, batch, 0, RUNNING)
    if batch.counts[NUM_PREEMPTED] == 0 and state.counts[NUM_WAITING] > 0:
        admit_waiting(state, batch)
    if batch.counts[NUM_REQUESTS] > 0:
        state.counts[NUM_DISPATCHED] += 1


def step_limit(state: State) -> int:
    """What one request may get of a step: a request that is alone need not leave room for others."""
    settings, counts = state.settings, state.counts
    alone = counts[NUM_RUNNING] + counts[NUM_WAITING] <= 1
    return settings.max_num_batched_tokens if alone else settings.max_num_step_tokens


def step_size(
    settings: Settings,
    rules: Rules,
    rows: RecurrentRows | None,
    ledger: Ledger,
    budget: int,
    max_num_tokens: int,
    num_awaited: int,
) -> int:
    """How many tokens of the step a row gets; 0 leaves it out."""
    if settings.num_prefill_lookahead_tokens > 1:
        budget = tokens_before_lookahead(ledger, rules, budget, settings.num_prefill_lookahead_tokens)
    num_tokens = tokens_to_schedule(
        ledger, rules, budget, settings.max_model_len, max_num_tokens, num_awaited, 1
    )
    if rows is not None:
        num_tokens = up_to_boundary(settings, rules, rows, ledger, num_tokens)
    return num_tokens


def decide_running(state: State, rows: RecurrentRows | None, batch: Batch) -> None:
    """Give the running rows their tokens and blocks; the batch's rows and sizes are the result."""
    settings, rules, counts, running = state.settings, state.rules, state.counts, state.queues.running
    requests, pool = state.requests, state.pool
    budget, limit = settings.max_num_batched_tokens, step_limit(state)
    num_promised = 0  # blocks for states, taken when the rows decided so far are committed
    place = 0
    index = 0
    while place < counts[NUM_RUNNING] and budget > 0 and index < settings.max_num_seqs:
        row = running[place]
        place += 1
        ledger = load(requests.ledgers, row)
        num_tokens = step_size(
            settings,
            rules,
            rows,
            ledger,
            min(budget, limit),
            requests.max_num_tokens[row],
            requests.num_awaited_outputs[row],
        )
        if num_tokens == 0:
            batch.counts[NUM_LEFT_OUT] += requests.num_awaited_outputs[row] == 0
            continue
        if settings.num_groups > 1 or state.groups.kind[0] != FULL_ATTENTION:
            prune(state, row, ledger)
        after = schedule(ledger, rules, num_tokens)
        num_slots = slots_to_reserve(after, rules, settings.num_lookahead_tokens)
        missing = num_missing_blocks(state.tables, state.groups, row, num_slots, settings.max_model_len)
        num_for_states = 0
        if rows is not None:
            num_for_states = num_state_blocks(state, rows, row, num_tokens)
        while missing + num_promised + num_for_states > pool.num_free_blocks[0]:
            if reclaim(state, row):
                continue
            victim = running[counts[NUM_RUNNING] - 1]
            if settings.by_priority != 0:
                victim = lowest(state.queues, counts, requests)
            if stop_running(state.queues, counts, victim) < place:
                place -= 1
                num_taken_back = take_back(batch, victim)
                budget += num_taken_back
                if rows is not None and num_taken_back > 0:
                    num_promised -= num_state_blocks(state, rows, victim, num_taken_back)
                index = wide(batch.counts[NUM_REQUESTS])
            preempt_row(state, batch, victim, settings.drop_stale_output != 0)
            if victim == row:
                return
        batch.rows[index] = row
        batch.num_scheduled_tokens[index] = num_tokens
        index += 1
        batch.counts[NUM_REQUESTS] = index
        budget -= num_tokens
        num_promised += num_for_states
        if missing > 0:
            reserve(state, row, num_slots)


def take_back(batch: Batch, row: int) -> int:
    """Leave a row that was decided out of the batch; returns its tokens, 0 if it was not decided."""
    num_requests = wide(batch.counts[NUM_REQUESTS])
    for place in range(num_requests):
        if batch.rows[place] == row:
            num_tokens = wide(batch.num_scheduled_tokens[place])
            for index in range(place, num_requests - 1):
                batch.rows[index] = batch.rows[index + 1]
                batch.num_scheduled_tokens[index] = batch.num_scheduled_tokens[index + 1]
            batch.counts[NUM_REQUESTS] = num_requests - 1
            return num_tokens
    return 0


def commit(state: State, rows: RecurrentRows | None, batch: Batch, first: int, kind: int) -> None:
    """Dispatch the decided rows from the place `first` on: ledgers move, the runner is told, what the step
    fills is published."""
    requests, rules, tables = state.requests, state.rules, state.tables
    num_tokens_in_step = 0
    num_in_prefill = 0
    num_published = wide(batch.counts[NUM_PUBLISHED])
    for index in range(first, batch.counts[NUM_REQUESTS]):
        row = wide(batch.rows[index])
        num_tokens = wide(batch.num_scheduled_tokens[index])
        ledger = load(requests.ledgers, row)
        num_drafts = num_drafts_in_step(ledger, num_tokens)
        samples = samples_in_step(ledger, num_tokens)
        after = schedule(ledger, rules, num_tokens)
        store(requests.ledgers, row, after)
        batch.num_draft_tokens[index] = num_drafts
        batch.num_invalid_drafts[index] = num_invalid(requests, row, num_drafts)
        requests.num_invalid_drafts[row] = 0
        batch.num_computed_tokens[index] = ledger.num_computed_tokens
        batch.num_output_placeholders[index] = ledger.num_output_placeholders
        batch.samples[index] = samples
        batch.kind[index] = kind
        if rows is not None:
            dispatch_states(state, rows, batch, index, ledger, after)
        for group in range(tables.num_blocks.shape[0]):
            batch.num_blocks[group, index] = tables.num_blocks[group, row]
        num_tokens_in_step += num_tokens
        num_in_prefill += requests.was_in_prefill[row]
        requests.was_in_prefill[row] = not samples
        for offset in range(num_drafts):
            batch.draft_token_ids[index, offset] = requests.draft_token_ids[row, offset]
        if samples:
            requests.num_awaited_outputs[row] += 1
            if rules.asynchronous:
                for offset in range(after.num_draft_tokens):
                    requests.draft_token_ids[row, offset] = -1  # known to the device only
        if after.num_registered_tokens > ledger.num_registered_tokens:
            fill_step(state, batch, row, ledger.num_registered_tokens, after.num_registered_tokens)
    publish_step(state, batch, num_published)
    batch.counts[NUM_TOKENS] += num_tokens_in_step
    batch.counts[NUM_IN_PREFILL] += num_in_prefill


def num_invalid(requests: Requests, row: int, num_drafts: int) -> int:
    """Of the drafts that a step takes, how many are certain to be rejected: it may take fewer than wait."""
    if requests.num_invalid_drafts[row] == 0:
        return 0
    count = 0
    for offset in range(num_drafts):
        count += requests.draft_token_ids[row, offset] < 0
    return count


def fill_step(state: State, batch: Batch, row: int, num_before: int, num_registered: int) -> None:
    """Fill the blocks that the step completes for a row, and note them for `publish_step`."""
    if state.settings.caching == 0:
        return
    for group in range(state.settings.num_groups):
        if state.groups.kind[group] == RECURRENT:
            continue
        size = state.groups.block_size[group]
        index = num_before // size
        while (index + 1) * size <= num_registered:
            if fill_block(state, row, group, index):
                note_filled(state, batch, row, group, index)
            index += 1


def note_filled(state: State, batch: Batch, row: int, group: int, index: int) -> None:
    """A block is filled, and `publish_step` will publish it."""
    place = wide(batch.counts[NUM_PUBLISHED])
    batch.counts[NUM_PUBLISHED] += 1
    if place < batch.published.shape[0]:
        batch.filled[0, place] = row
        batch.filled[1, place] = group
        batch.filled[2, place] = index
    else:  # beyond the room: should the step fail, everything is withdrawn
        if place == batch.published.shape[0]:
            publish_step(state, batch, 0)  # what was noted comes before
        publish_block(state, row, group, index)


def publish_step(state: State, batch: Batch, first: int) -> None:
    """Publish the blocks that were filled, from the place `first` on: should the step fail, they are
    withdrawn.

    One after the other in a loop of its own: each touches a place of the index that is in no near cache, and
    the processor waits for many of them at once only if they stand close together.
    """
    num_noted = wide(batch.counts[NUM_PUBLISHED])
    room = batch.published.shape[0]
    num_published = first
    for place in range(first, min(num_noted, room)):
        row, group, index = batch.filled[0, place], batch.filled[1, place], batch.filled[2, place]
        block = publish_block(state, wide(row), wide(group), wide(index))
        if block != 0:
            batch.published[num_published] = block
            num_published += 1
    if num_noted <= room:
        batch.counts[NUM_PUBLISHED] = num_published


def admit_waiting(state: State, batch: Batch) -> None:
    """Start waiting rows in their order, until one does not fit.

    A preempted row whose late output is still to be delivered is passed over until it has arrived.
    """
    settings, counts, queues = state.settings, state.counts, state.queues
    sentinel = settings.num_rows
    limit = step_limit(state)
    budget = settings.max_num_batched_tokens - batch.counts[NUM_TOKENS]
    row = queues.next_waiting[sentinel]
    while row != sentinel and budget > 0:
        following = queues.next_waiting[row]
        ledger = load(state.requests.ledgers, row)
        num_seated = batch.counts[NUM_REQUESTS] + batch.counts[NUM_LEFT_OUT]
        if seats_free(ledger, state.rules, num_seated, counts[NUM_RUNNING], settings.max_num_seqs) <= 0:
            return
        if ledger.num_stale_tokens == 0 or ledger.drop_stale:
            num_tokens = admit_row(state, state.recurrent, batch, row, ledger, budget, limit)
            if num_tokens == 0:
                return
            budget -= num_tokens
        row = following


def admit_row(
    state: State,
    rows: RecurrentRows | None,
    batch: Batch,
    row: int,
    ledger: Ledger,
    budget: int,
    limit: int,
) -> int:
    """Start one row if the whole of it fits; returns its tokens, 0 if it must go on waiting."""
    settings, requests, rules = state.settings, state.requests, state.rules
    num_lookahead = settings.num_lookahead_tokens
    starts_at_zero = ledger.num_computed_tokens == 0
    num_hit_tokens = 0
    if starts_at_zero:
        num_hit_tokens = look_up_row(state, row, ledger)
    started = admit(ledger, rules, num_hit_tokens)
    if pads(settings, batch, started, limit):
        started = draft(started, rules, rules.num_speculative_tokens)
    max_num_tokens = requests.max_num_tokens[row]
    num_tokens = step_size(settings, rules, rows, started, min(budget, limit), max_num_tokens, 0)
    if num_tokens <= started.num_draft_tokens:  # nothing, or a padded step that would not be uniform
        return 0
    num_slots = slots_to_reserve(schedule(started, rules, num_tokens), rules, num_lookahead)
    num_slots_to_fit = max(num_slots, slots_to_admit(started, rules, num_lookahead))
    missing = num_missing_blocks(state.tables, state.groups, row, num_slots_to_fit, settings.max_model_len)
    missing -= num_hit_blocks(state.groups, num_hit_tokens)
    if rows is not None:
        missing += num_state_blocks_to_start(state, rows, row, started, num_tokens, starts_at_zero)
    lacking = missing + num_unowned_hits(state, row, num_hit_tokens) - state.pool.num_free_blocks[0]
    if lacking > 0 and lacking > num_idle_blocks(state, row):
        return 0  # no idle session is disturbed in vain
    while missing + num_unowned_hits(state, row, num_hit_tokens) > state.pool.num_free_blocks[0]:
        if not reclaim(state, row):
            return 0
    metrics = load_metrics(requests.metrics, row)
    store_metrics(requests.metrics, row, count_admission(ledger, rules, metrics, num_hit_tokens, 0))
    store(requests.ledgers, row, started)
    for offset in range(started.num_draft_tokens):
        requests.draft_token_ids[row, offset] = -1
    requests.num_invalid_drafts[row] = started.num_draft_tokens
    if starts_at_zero:
        take_over(state, row, num_hit_tokens)
        state.counts[TOTAL_LOOKED_UP_TOKENS] += ledger.num_tokens
        state.counts[TOTAL_HIT_TOKENS] += num_hit_tokens
    if rows is not None:
        start_states(state, rows, row, started, starts_at_zero)
    reserve(state, row, num_slots)
    dequeue(state.queues, state.counts, row)
    run(state.queues, state.counts, row)
    index = wide(batch.counts[NUM_REQUESTS])
    batch.rows[index] = row
    batch.num_scheduled_tokens[index] = num_tokens
    batch.counts[NUM_REQUESTS] += 1
    batch.counts[NUM_ADMITTED] += 1
    requests.was_in_prefill[row] = 0
    requests.started_at[row] = state.counts[NUM_DISPATCHED]
    commit(state, rows, batch, index, NEW if metrics.num_admissions == 0 else RESUMED)
    return num_tokens


def pads(settings: Settings, batch: Batch, started: Ledger, limit: int) -> bool:
    """Whether a start of one token is padded with drafts that are certain to be rejected.

    All rows of a decode step then have 1 + K tokens, and the runner can use one captured graph (vLLM). Not
    beside a row that was in prefill; and a request of one token that starts the batch is not padded.
    """
    width = 1 + settings.num_speculative_tokens
    if width == 1 or width > limit or started.num_tokens - started.num_computed_tokens != 1:
        return False
    if started.num_computed_tokens + width + 1 > settings.max_model_len:
        return False
    some_running = batch.counts[NUM_REQUESTS] > batch.counts[NUM_ADMITTED]
    return batch.counts[NUM_IN_PREFILL] == 0 and (some_running or started.num_computed_tokens > 0)

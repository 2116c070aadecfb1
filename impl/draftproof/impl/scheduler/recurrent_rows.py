"""What does an event of a row mean for its recurrent state? One function for each, called by the scheduler.

Without recurrent groups what the scheduler keeps for them is None. Compiled code asks that of an argument
before it calls anything here; the compiler sees the None and leaves the call out, so that a scheduler without
such groups neither compiles nor runs any of it. How much is done is the record's word
(`draftproof.impl.recurrent`), how much may be published the ledger's; `recurrent_blocks` moves the blocks.
"""

from __future__ import annotations

from draftproof.impl.decisions import checkpoint_to_keep
from draftproof.impl.dispatch import num_drafts_in_step
from draftproof.impl.ledger_table import load
from draftproof.impl.recurrent import (
    chunk_to_schedule,
    next_turn,
    registrable_at_exit,
    registrable_at_turn_end,
    registrable_in_service,
    slot_to_read,
    start,
)
from draftproof.impl.scheduler.batch import Batch
from draftproof.impl.scheduler.layout import RecurrentRows, Settings, State, wide
from draftproof.impl.scheduler.recurrent_blocks import (
    acquire_states,
    dispatch_row,
    end_turn_row,
    leave_row,
    load_record,
    next_turn_row,
    num_blocks_to_dispatch,
    num_blocks_to_start,
    offer_row,
    recurrent_rules,
    settle_row,
    start_row,
)
from draftproof.spec.ledger import RUNNING, Ledger, Rules
from draftproof.spec.recurrent import RecurrentRules


def up_to_boundary(
    settings: Settings, rules: Rules, rows: RecurrentRows, ledger: Ledger, num_tokens: int
) -> int:
    """Of a step's tokens, how many to compute so that a prefill chunk ends where its state may be kept."""
    if settings.caching == 0:
        return num_tokens
    return chunk_to_schedule(
        ledger.num_computed_tokens,
        num_tokens,
        ledger.num_tokens,
        checkpoint_to_keep(ledger, rules, settings.drops_block != 0),
        RecurrentRules(settings.num_speculative_tokens, settings.chunk_alignment),
    )


def num_state_blocks(state: State, rows: RecurrentRows, row: int, num_tokens: int) -> int:
    """Blocks that a running row takes when it is dispatched with so many tokens."""
    ledger = load(state.requests.ledgers, row)
    num_drafts = num_drafts_in_step(ledger, num_tokens)
    record = load_record(rows.records, row)
    return num_blocks_to_dispatch(state, record, num_tokens, num_drafts, ledger.num_tokens)


def num_state_blocks_to_start(
    state: State, rows: RecurrentRows, row: int, ledger: Ledger, num_tokens: int, starts_anew: bool
) -> int:
    """Blocks that a waiting row takes with its first step, beside the states that a look-up found.

    `ledger` is the row's once it is admitted. `starts_anew` is false for a session that kept its state.
    """
    num_slots, record = 0, load_record(rows.records, row)
    rules = recurrent_rules(state)
    if starts_anew:
        record = start(record, rules, ledger.num_computed_tokens, 0)
        num_slots = num_blocks_to_start(state, ledger.num_computed_tokens)
    else:
        record = next_turn(record, rules, 0)
    num_drafts = num_drafts_in_step(ledger, num_tokens)
    return num_slots + num_blocks_to_dispatch(state, record, num_tokens, num_drafts, ledger.num_tokens)


def start_states(state: State, rows: RecurrentRows, row: int, ledger: Ledger, starts_anew: bool) -> None:
    """A waiting row is admitted: on the states that a look-up found, on none, or on those that it kept."""
    checkpoint = checkpoint_to_keep(ledger, state.rules, state.settings.drops_block != 0)
    if starts_anew:
        if ledger.num_computed_tokens > 0:
            acquire_states(state, row)
        start_row(state, rows, row, ledger.num_computed_tokens, checkpoint)
    else:
        next_turn_row(state, rows, row, checkpoint)


def dispatch_states(
    state: State, rows: RecurrentRows, batch: Batch, index: int, before: Ledger, after: Ledger
) -> None:
    """The row at this place of the batch is dispatched; the runner is told where its state is."""
    row = wide(batch.rows[index])
    num_tokens, num_drafts = wide(batch.num_scheduled_tokens[index]), wide(batch.num_draft_tokens[index])
    batch.source_slot[index] = slot_to_read(load_record(rows.records, row), -1)
    limit = registrable_in_service(after)
    dispatch_row(state, rows, batch, row, num_tokens, num_drafts, before.num_tokens, limit)


def settle_states(
    state: State,
    rows: RecurrentRows,
    batch: Batch,
    index: int,
    ledger: Ledger,
    num_accepted: int,
    num_kept: int,
    stopped: bool,
) -> None:
    """Live output of the row at this place of the batch, `num_kept` 0 for a chunk.

    What it settles is published, unless a stop follows, which does that. `ledger` is the row's afterwards.
    """
    row = wide(batch.rows[index])
    num_returned, num_drafts = wide(batch.num_scheduled_tokens[index]), wide(batch.num_draft_tokens[index])
    settle_row(state, rows, row, num_returned, num_drafts, num_accepted, num_kept)
    if not stopped:
        offer_row(state, rows, row, registrable_in_service(ledger))


def pause_states(state: State, rows: RecurrentRows, row: int, ledger: Ledger) -> None:
    """A session's turn ends: it keeps its state, if it has any. `ledger` is the row's before."""
    if ledger.status == RUNNING:
        offer_row(state, rows, row, registrable_at_turn_end(ledger))
        end_turn_row(state, rows, row)


def leave_states(state: State, rows: RecurrentRows | None, row: int, ledger: Ledger) -> None:
    """The row gives its state up, having published what is settled of it; its blocks are given back by
    `release_row`. `ledger` is the row's before; what an idle session keeps was published with its turn."""
    if rows is None:
        return
    if ledger.status == RUNNING:
        offer_row(state, rows, row, registrable_at_exit(ledger))
    leave_row(state, rows, row)

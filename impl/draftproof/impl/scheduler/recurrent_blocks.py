"""Which blocks hold a row's recurrent state? The block work of recurrent groups, around the proven record.

A row of a recurrent group's table has its working slots in the columns 0 to K, and in column K + i the target
block of the boundary at i blocks (0 where there is none). When to copy, how far to set targets aside and what
to publish is the record's word (`draftproof.impl.recurrent`, M1 to M4); nothing here counts tokens by itself.
All recurrent groups of a row move alike, so a row has one record; all have the same block size.

A copy's two ends keep a claim each until the step before which it ran has been settled (`finish_copies`). A
state is published under the digest of everything it consumed, and holds the tokens of its last hash block.
"""

from __future__ import annotations

from typing import Any

from draftproof.impl.pool import acquire, append, publish, published, release, withdraw
from draftproof.impl.recurrent import (
    copy_needed,
    dispatch,
    end_turn,
    first_unreserved,
    leave,
    make_private,
    must_withdraw,
    next_turn,
    settle,
    start,
)
from draftproof.impl.recurrent import publish as publish_states
from draftproof.impl.scheduler.allocation import take_block
from draftproof.impl.scheduler.batch import NUM_COPIES, Batch
from draftproof.impl.scheduler.config import RECURRENT
from draftproof.impl.scheduler.kv_notes import note_state_stored, note_withdrawn
from draftproof.impl.scheduler.layout import NUM_DISPATCHED, RecurrentRows, State, wide
from draftproof.impl.scheduler.prefix_cache import group_word, hash_row
from draftproof.spec.recurrent import Recurrent, RecurrentRules


def load_record(records: Any, row: int) -> Recurrent:
    """A row's record."""
    return Recurrent(
        records[0, row],
        records[1, row],
        records[2, row],
        records[3, row],
        records[4, row],
        records[5, row],
        records[6, row],
        records[7, row],
        records[8, row],
        records[9, row],
    )


def store_record(records: Any, row: int, recurrent: Recurrent) -> None:
    """A row's record, kept."""
    records[0, row] = recurrent.holds_state
    records[1, row] = recurrent.num_state_tokens
    records[2, row] = recurrent.num_in_flight_tokens
    records[3, row] = recurrent.num_in_flight_drafts
    records[4, row] = recurrent.num_trimmed_tokens
    records[5, row] = recurrent.state_slot
    records[6, row] = recurrent.num_reserved_tokens
    records[7, row] = recurrent.num_published_tokens
    records[8, row] = recurrent.running_key
    records[9, row] = recurrent.num_checkpoint_tokens


def recurrent_rules(state: State) -> RecurrentRules:
    """The rules of the recurrent groups; there is at least one."""
    return RecurrentRules(state.settings.num_speculative_tokens, state.settings.chunk_alignment)


def target_column(rules: RecurrentRules, boundary: int) -> int:
    """Where in a row's table the target block of a boundary is."""
    return rules.num_speculative_tokens + boundary // rules.block_size


# ---- a life begins


def num_blocks_to_start(state: State, num_hit_tokens: int) -> int:
    """Blocks that a row takes when it starts: its working slots, but for the one that a hit brings."""
    num_slots = 1 + state.settings.num_speculative_tokens - min(num_hit_tokens, 1)
    return state.settings.num_recurrent_groups * num_slots


def acquire_states(state: State, row: int) -> None:
    """Become an owner of the states that a look-up found, before anything is taken."""
    for group in range(state.settings.num_groups):
        if state.groups.kind[group] == RECURRENT:
            acquire(state.pool, wide(state.tables.block_ids[group, row, 0]), True)


def start_row(
    state: State, rows: RecurrentRows, row: int, num_hit_tokens: int, num_checkpoint_tokens: int
) -> None:
    """Take the working slots; with a hit the first is the state that was acquired."""
    first = 1 if num_hit_tokens > 0 else 0
    for group in range(state.settings.num_groups):
        if state.groups.kind[group] == RECURRENT:
            for slot in range(first, 1 + state.settings.num_speculative_tokens):
                state.tables.block_ids[group, row, slot] = take_block(state)
            state.tables.num_blocks[group, row] = 1 + state.settings.num_speculative_tokens
    record = load_record(rows.records, row)
    record = start(record, recurrent_rules(state), num_hit_tokens, num_checkpoint_tokens)
    store_record(rows.records, row, record)


# ---- a step


def known_end(state: State, num_tokens: int) -> int:
    """Up to where a step's end counts as known. Nothing needs a target if nothing is published."""
    return num_tokens if state.settings.caching != 0 else int(state.settings.max_model_len)


def num_blocks_to_dispatch(
    state: State, before: Recurrent, num_new_tokens: int, num_drafts: int, num_tokens: int
) -> int:
    """Blocks that a row takes for a step: its private copy, and the targets of what the step may cross."""
    rules = recurrent_rules(state)
    after = dispatch(before, rules, num_new_tokens, num_drafts, known_end(state, num_tokens))
    first = first_unreserved(before, rules)
    num_targets = max(after.num_reserved_tokens - first, 0) // rules.block_size
    return state.settings.num_recurrent_groups * (num_targets + copy_needed(before))


def dispatch_row(
    state: State,
    rows: RecurrentRows,
    batch: Batch,
    row: int,
    num_new_tokens: int,
    num_drafts: int,
    num_tokens: int,
    num_registrable_tokens: int,
) -> None:
    """A step goes out: on a private slot, with targets, and what it leaves on a boundary is published."""
    rules = recurrent_rules(state)
    record = load_record(rows.records, row)
    if copy_needed(record):
        for group in range(state.settings.num_groups):
            if state.groups.kind[group] == RECURRENT:
                move_to_copy(state, batch, row, group, int(record.state_slot))
        record = make_private(record, rules)
    first = first_unreserved(record, rules)
    record = dispatch(record, rules, num_new_tokens, num_drafts, known_end(state, num_tokens))
    for boundary in range(first + rules.block_size, record.num_reserved_tokens + 1, rules.block_size):
        for group in range(state.settings.num_groups):
            if state.groups.kind[group] == RECURRENT:
                set_target(state, row, group, target_column(rules, boundary))
    publish_kept(state, rows, row, record, num_registrable_tokens, int(state.counts[NUM_DISPATCHED]))


def move_to_copy(state: State, batch: Batch, row: int, group: int, slot: int) -> None:
    """The runner copies the slot's block to a fresh one before the step. The claim on the source goes to the
    batch, and the copy gets a second one for it."""
    source, copy = wide(state.tables.block_ids[group, row, slot]), take_block(state)
    acquire(state.pool, copy, True)
    state.tables.block_ids[group, row, slot] = copy
    place = batch.counts[NUM_COPIES]
    batch.copies[0, place] = source
    batch.copies[1, place] = copy
    batch.counts[NUM_COPIES] = place + 1


def set_target(state: State, row: int, group: int, column: int) -> None:
    """A block for a boundary; null blocks before it."""
    tables = state.tables
    for index in range(tables.num_blocks[group, row], column):
        tables.block_ids[group, row, index] = 0
    tables.block_ids[group, row, column] = take_block(state)
    tables.num_blocks[group, row] = max(int(tables.num_blocks[group, row]), column + 1)


def finish_copies(state: State, rows: RecurrentRows | None, batch: Batch) -> None:
    """The step has been settled, or will never return: its copies need their blocks no more."""
    if rows is None:
        return
    for place in range(batch.counts[NUM_COPIES]):
        release(state.pool, wide(batch.copies[1, place]), True)
        release(state.pool, wide(batch.copies[0, place]), True)
    batch.counts[NUM_COPIES] = 0


def settle_row(
    state: State,
    rows: RecurrentRows,
    row: int,
    num_returned: int,
    num_drafts: int,
    num_accepted: int,
    num_kept: int,
) -> None:
    """The row's oldest step returned; `num_kept` is 0 for a chunk. Targets that were crossed before, and are
    published, are given back: the cache has them. Not earlier: until then the device still fills them."""
    record = load_record(rows.records, row)
    rules = recurrent_rules(state)
    after = settle(record, rules, num_returned, num_drafts, num_accepted, num_kept)
    returned = after.num_state_tokens + after.num_trimmed_tokens
    release_passed(state, row, rules, min(int(returned), int(after.num_published_tokens)))
    store_record(rows.records, row, after)


def release_passed(state: State, row: int, rules: RecurrentRules, num_tokens: int) -> None:
    """Give back the targets of boundaries up to `num_tokens`, the last first."""
    tables = state.tables
    for group in range(state.settings.num_groups):
        if state.groups.kind[group] != RECURRENT:
            continue
        last = min(target_column(rules, num_tokens), int(tables.num_blocks[group, row]) - 1)
        for column in range(last, rules.num_speculative_tokens, -1):
            block = wide(tables.block_ids[group, row, column])
            if block == 0:
                break
            release(state.pool, block, True)
            tables.block_ids[group, row, column] = 0


def offer_row(state: State, rows: RecurrentRows, row: int, num_registrable_tokens: int) -> None:
    """Publish what is kept up to a position: in service after an output, or before the row leaves."""
    last_step = int(state.counts[NUM_DISPATCHED]) - 1
    publish_kept(state, rows, row, load_record(rows.records, row), num_registrable_tokens, last_step)


# ---- publication


def publish_kept(
    state: State, rows: RecurrentRows, row: int, record: Recurrent, num_registrable_tokens: int, step: int
) -> None:
    """Do with the blocks what the record's publication says."""
    rules = recurrent_rules(state)
    if record.holds_state == 0 or state.settings.caching == 0:
        store_record(rows.records, row, record)
        return
    after = publish_states(record, rules, num_registrable_tokens)
    size = rules.block_size
    first = record.num_published_tokens // size * size
    for group in range(state.settings.num_groups):
        if state.groups.kind[group] != RECURRENT:
            continue
        for boundary in range(first + size, after.num_published_tokens + 1, size):
            column = target_column(rules, boundary)
            if (
                column < state.tables.num_blocks[group, row]
                and state.tables.block_ids[group, row, column] != 0
            ):
                publish_state(state, rows, row, group, column, boundary, step)
        if record.running_key == 0 and after.running_key > 0:
            slot = int(record.state_slot)
            publish_state(state, rows, row, group, slot, int(after.running_key), step)
    store_record(rows.records, row, after)


def publish_state(
    state: State, rows: RecurrentRows, row: int, group: int, column: int, num_tokens: int, step: int
) -> None:
    """Make the state after the row's first `num_tokens` findable; the block is not published yet."""
    requests, pool, size = state.requests, state.pool, state.settings.hash_block_size
    block = wide(state.tables.block_ids[group, row, column])
    hash_row(state, row, num_tokens)
    for offset in range(size):
        append(pool, block, requests.token_ids[row, num_tokens - size + offset], True)
    last = num_tokens // size - 1
    first, second = requests.digest_first[row, last], group_word(requests.digest_second[row, last], group)
    note_state_stored(state, row, group, block, num_tokens, first, second)
    publish(pool, block, first, second, True)
    rows.published_in_step[block] = step


def withdraw_failed(state: State, rows: RecurrentRows | None, failed_step: int) -> None:
    """A step will never return: states published since it was dispatched are found no more."""
    if rows is None:
        return
    for block in range(1, state.settings.num_blocks + 1):
        step = rows.published_in_step[block]
        if step >= 0 and must_withdraw(step, failed_step) and published(state.pool, block):
            withdraw(state.pool, block, True)
            note_withdrawn(state, block)


# ---- a turn, and a life, ends


def end_turn_row(state: State, rows: RecurrentRows, row: int) -> None:
    """A session keeps its working slots and gives its targets back; what stays has been offered."""
    record = load_record(rows.records, row)
    release_targets(state, row)
    store_record(rows.records, row, end_turn(record, recurrent_rules(state)))


def release_targets(state: State, row: int) -> None:
    """Give the blocks behind the working slots back, the last first."""
    tables, num_slots = state.tables, 1 + state.settings.num_speculative_tokens
    for group in range(state.settings.num_groups):
        if state.groups.kind[group] != RECURRENT:
            continue
        for index in range(tables.num_blocks[group, row] - 1, num_slots - 1, -1):
            block = wide(tables.block_ids[group, row, index])
            release(state.pool, block, block != 0)
        tables.num_blocks[group, row] = min(int(tables.num_blocks[group, row]), num_slots)


def next_turn_row(state: State, rows: RecurrentRows, row: int, num_checkpoint_tokens: int) -> None:
    """The session's next turn starts from the state that it kept."""
    record = load_record(rows.records, row)
    store_record(rows.records, row, next_turn(record, recurrent_rules(state), num_checkpoint_tokens))


def leave_row(state: State, rows: RecurrentRows, row: int) -> None:
    """The row holds no state any more. Its blocks are given back like any other (`release_row`)."""
    record = load_record(rows.records, row)
    store_record(rows.records, row, leave(record, recurrent_rules(state)))

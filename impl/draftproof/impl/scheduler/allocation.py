"""Which blocks does a request hold? Reserving them, taking hits over, giving them back.

How many slots are needed is a decision (`slots_to_reserve`, `slots_to_admit`; T10). A free block may be
published: taking it evicts it, the least recently used first. Hits are acquired before anything is taken,
and released blocks go from the last to the first, so that tails are evicted before heads (P7).

Blocks of recurrent groups do not grow with a row's tokens: see `recurrent_blocks`.
"""

from __future__ import annotations

from draftproof.impl.decisions import window_to_prune
from draftproof.impl.pool import acquire, release, take
from draftproof.impl.scheduler.config import RECURRENT, SLIDING_WINDOW
from draftproof.impl.scheduler.kv_notes import note_withdrawn, was_published
from draftproof.impl.scheduler.layout import Groups, RecurrentRows, State, Tables, wide
from draftproof.spec.ledger import Ledger


def blocks_for(block_size: int, num_slots: int, max_model_len: int) -> int:
    """Blocks that hold this many slots; no request has slots beyond the model's length."""
    return (min(num_slots, max_model_len) + block_size - 1) // block_size


def num_missing_blocks(tables: Tables, groups: Groups, row: int, num_slots: int, max_model_len: int) -> int:
    """Blocks that the row lacks to have this many slots, over all groups of attention."""
    missing = 0
    for group in range(groups.block_size.shape[0]):
        if groups.kind[group] == RECURRENT:
            continue
        needed = blocks_for(groups.block_size[group], num_slots, max_model_len)
        missing += max(needed - tables.num_blocks[group, row], 0)
    return missing


def num_hit_blocks(groups: Groups, num_hit_tokens: int) -> int:
    """Blocks that a hit of this many tokens brings, over all groups of attention."""
    count = 0
    for group in range(groups.block_size.shape[0]):
        if groups.kind[group] != RECURRENT:
            count += num_hit_tokens // groups.block_size[group]
    return count


def take_block(state: State) -> int:
    """The least recently used free block; there is one. Routers learn what it evicts."""
    evicted = was_published(state)
    block = int(take(state.pool, True))
    if evicted != 0:
        note_withdrawn(state, evicted)
    forget_state(state.recurrent, block)
    return block


def forget_state(rows: RecurrentRows | None, block: int) -> None:
    """Whatever the block held, it is no published state now."""
    if rows is None:
        return
    rows.published_in_step[block] = -1


def reserve(state: State, row: int, num_slots: int) -> None:
    """Take the blocks that the row lacks; there are enough free ones."""
    for group in range(state.settings.num_groups):
        if state.groups.kind[group] == RECURRENT:
            continue
        needed = blocks_for(state.groups.block_size[group], num_slots, state.settings.max_model_len)
        for index in range(state.tables.num_blocks[group, row], needed):
            state.tables.block_ids[group, row, index] = take_block(state)
        if needed > state.tables.num_blocks[group, row]:
            state.tables.num_blocks[group, row] = needed


def num_unowned_hits(state: State, row: int, num_hit_tokens: int) -> int:
    """Of the blocks that a look-up found, how many are free: acquiring them leaves fewer to take."""
    unowned = 0
    for group in range(state.settings.num_groups):
        num_hits = num_hit_tokens // state.groups.block_size[group]
        if state.groups.kind[group] == RECURRENT:
            num_hits = min(num_hit_tokens, 1)  # one state, whatever it has consumed
        for index in range(num_hits):
            block = wide(state.tables.block_ids[group, row, index])
            unowned += block != 0 and state.pool.ref_count[block] == 0
    return unowned


def take_over(state: State, row: int, num_hit_tokens: int) -> None:
    """Become an owner of the blocks that a look-up found."""
    for group in range(state.settings.num_groups):
        if state.groups.kind[group] == RECURRENT:
            continue
        num_hits = num_hit_tokens // state.groups.block_size[group]
        for index in range(num_hits):
            block = wide(state.tables.block_ids[group, row, index])
            acquire(state.pool, block, block != 0)
        state.tables.num_blocks[group, row] = num_hits


def prune(state: State, row: int, ledger: Ledger) -> None:
    """Give back what sliding windows have left behind for good, the last block first.

    Only what is published already: it may still be found by others.
    """
    for group in range(state.settings.num_groups):
        if state.groups.kind[group] != SLIDING_WINDOW:
            continue
        num_left = window_to_prune(ledger, state.rules, state.groups.window[group])
        num_left = min(num_left, ledger.num_registered_tokens)
        for index in range(num_left // state.groups.block_size[group] - 1, -1, -1):
            block = wide(state.tables.block_ids[group, row, index])
            if block == 0:
                break
            release(state.pool, block, True)
            state.tables.block_ids[group, row, index] = 0


def release_row(state: State, row: int) -> None:
    """Give all blocks of the row back, the last first."""
    for group in range(state.settings.num_groups):
        for index in range(state.tables.num_blocks[group, row] - 1, -1, -1):
            block = wide(state.tables.block_ids[group, row, index])
            release(state.pool, block, block != 0)
        state.tables.num_blocks[group, row] = 0

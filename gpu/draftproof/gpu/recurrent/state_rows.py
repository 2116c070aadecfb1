"""Which state does a row start from, and where does it leave which? By the batch and the device's own count.

A row's table in a recurrent group has its working slots in the columns 0 to K: after a step with D drafts,
slot j holds the state with j of them accepted. Column K + p / B has the block for the state at boundary p, a
multiple of B; the null block where none is kept. The host says which slot a row starts from, or that it is
what the row's last step accepted (-1): with that step in flight only the device knows. So it does the length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from draftproof.gpu.attention.kv_cache import NULL_BLOCK
from draftproof.gpu.attention.step_rows import BlockTableError, StepRows
from draftproof.impl.scheduler.batch import NUM_COPIES, Batch

ROW_ID, SOURCE_SLOT, STARTS_ANEW, NUM_DRAFTS, FIRST_BLOCK = range(5)
"""Columns of `HostStates.rows`; the block table follows."""


class HostStates(NamedTuple):
    """What the host says of a step's states: numpy arrays of int64, which the scheduler does not touch."""

    rows: Any
    """[R, 4 + W]: the columns above, and W of the group's table; the null block where there is none"""
    copies: Any
    """[2, n], sources and targets: the blocks that are to be copied before the step"""


class StateRows(NamedTuple):
    """Its R rows on the device."""

    row_ids: Any
    """int64[R]: lines of `accepted_slots`; for padding rows a line that no request has"""
    source_slots: Any
    """int64[R]: the column to start from, -1 for what was accepted last"""
    starts_anew: Any
    """bool[R]: from no state, whatever the block holds"""
    num_drafts: Any
    """int64[R]"""
    block_tables: Any
    """int64[R, W]"""


class StateMoves(NamedTuple):
    """A step's states by block: R are read, and then R * (K + 2) written."""

    sources: Any
    """int64[R]"""
    starts_anew: Any
    """bool[R]"""
    targets: Any
    """int64[R * (K + 2)]; the null block for what is not kept. The others differ from each other."""
    tokens: Any
    """int64[R * (K + 2)]: the token of the step after which the state is kept"""


def host_states(
    batch: Batch,
    block_ids: Any,
    group: int,
    *,
    num_rows: int,
    num_padding_rows: int = 0,
    table_width: int = 0,
) -> HostStates:
    """A batch's states in one recurrent group, from the scheduler's own arrays.

    `block_ids` are the block tables, `scheduler.state.tables.block_ids`: int32[groups, rows, blocks].
    `num_padding_rows` rows follow the batch's, on line `num_rows` of the device's tables. `table_width` is W;
    0 for what the longest row needs.

    Raises BlockTableError if a row lacks a working slot that the step writes, or the state to start from.
    """
    count = batch.num_requests
    rows = np.asarray(batch.rows[:count])
    num_blocks = np.asarray(batch.num_blocks[group, :count])
    width = table_width or max(1, int(num_blocks.max(initial=1)))
    lines = np.zeros((count + num_padding_rows, FIRST_BLOCK + width), np.int64)
    lines[:, ROW_ID] = num_rows
    lines[:count, ROW_ID] = rows
    lines[:count, SOURCE_SLOT] = batch.source_slot[:count]
    lines[:count, NUM_DRAFTS] = batch.num_draft_tokens[:count]
    # Nothing computed: the first step of a life that found nothing in the prefix cache.
    lines[:count, STARTS_ANEW] = batch.num_computed_tokens[:count] == 0
    table = block_ids[group, rows, :width]
    # Beyond its blocks a row's table may still name those of whoever had the row before.
    held = np.arange(table.shape[1]) < num_blocks[:, None]
    lines[:count, FIRST_BLOCK : FIRST_BLOCK + table.shape[1]] = np.where(held, table, NULL_BLOCK)
    if count:
        _check_slots(rows, lines[:count])
    return HostStates(lines, np.array(batch.copies[:, : int(batch.counts[NUM_COPIES])], np.int64))


def state_rows(lines: Any) -> StateRows:
    """The rows on the device, from `HostStates.rows` there. Only enqueues work."""
    return StateRows(
        lines[:, ROW_ID],
        lines[:, SOURCE_SLOT],
        lines[:, STARTS_ANEW] != 0,
        lines[:, NUM_DRAFTS],
        lines[:, FIRST_BLOCK:],
    )


def state_moves(
    rows: StateRows, step: StepRows, accepted_slots: Any, block_size: int, num_speculative_tokens: int
) -> StateMoves:
    """Where the states of a step are read and written. Only enqueues work.

    `step` has the lengths that the device knows, of the same rows; a row of length 0, which pads the batch or
    has stopped, starts from the null block and leaves nothing. `accepted_slots` is int64[lines]: the working
    slot in which each row's last step left its state. `block_size` is B, at least 1 + K: a step with its
    drafts passes one boundary at most, and its state may be kept there.
    """
    slots = torch.arange(num_speculative_tokens + 1, device=rows.row_ids.device)
    slots = slots.expand(rows.row_ids.shape[0], -1)
    lengths, num_drafts = step.sequence_lengths.to(torch.int64)[:, None], rows.num_drafts[:, None]
    tables = torch.where(lengths > 0, rows.block_tables, NULL_BLOCK)
    accepted = accepted_slots.index_select(0, rows.row_ids)
    source_slots = torch.where(rows.source_slots < 0, accepted, rows.source_slots)
    num_known = lengths - num_drafts
    past = -num_known % block_size  # how many drafts must be accepted to reach the boundary
    column = num_speculative_tokens + (num_known + past) // block_size
    # Which states are kept, after how many drafts, and in which column.
    num_accepted, columns = torch.cat([slots, past], 1), torch.cat([slots, column], 1)
    targets = torch.where(num_accepted <= num_drafts, _blocks(tables, columns), NULL_BLOCK)
    last_known = step.query_starts[1:].to(torch.int64)[:, None] - 1 - num_drafts
    return StateMoves(
        _blocks(tables, source_slots[:, None]).flatten(),
        rows.starts_anew,
        targets.flatten(),
        torch.where(targets == NULL_BLOCK, 0, last_known + num_accepted).flatten(),
    )


def note_accepted(accepted_slots: Any, rows: StateRows, num_sampled: Any) -> None:
    """After every step, of all its rows: where they left their states. Only enqueues work.

    `num_sampled` is int[R]: accepted drafts and the token after them; 0 for a prefill chunk, which leaves its
    state in slot 0, whatever the row accepted in an earlier life, and for a padding row.
    """
    accepted_slots.index_copy_(0, rows.row_ids, (num_sampled.to(torch.int64) - 1).clamp_min(0))


def _blocks(block_tables: Any, columns: Any) -> Any:
    """int64[R, n]; the null block beyond the table."""
    width = block_tables.shape[1]
    blocks = block_tables.gather(1, columns.clamp(0, width - 1))
    return torch.where(columns < width, blocks, NULL_BLOCK)


def _check_slots(rows: Any, lines: Any) -> None:
    """What a row starts from and writes must be there. What it accepted last, it has written."""
    table = lines[:, FIRST_BLOCK:]
    columns = np.arange(max(table.shape[1], int(lines[:, (SOURCE_SLOT, NUM_DRAFTS)].max()) + 1))
    is_missing = np.ones((len(table), len(columns)), np.bool_)
    is_missing[:, : table.shape[1]] = table == NULL_BLOCK
    for what, is_used in (
        ("starts from", columns == lines[:, SOURCE_SLOT, None]),
        ("writes", columns <= lines[:, NUM_DRAFTS, None]),
    ):
        places, slots = np.nonzero(is_missing & is_used)
        if len(places):
            raise BlockTableError(
                f"row {int(rows[places[0]])} {what} working slot {int(slots[0])} of its recurrent state, for "
                "which its block table has no block"
            )

"""Which tokens does a step compute, where do their keys go, and what do they read? Made from the batch.

A step is ragged: row `r` of the batch has the tokens `query_starts[r]` to `query_starts[r + 1]`: one for
plain decoding, 1 + K with drafts, or a prefill chunk. The host says which rows and how many tokens, and gives
the block tables (`HostRows`); where a row's tokens stand is the device's to say (`at_lengths`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from draftproof.gpu.attention.kv_cache import NULL_BLOCK
from draftproof.impl.scheduler.batch import Batch

MAX_SHORT_QUERY = 16
"""Rows of at most this many tokens are attended together, padded to the longest; a longer chunk alone."""


SPLIT_KEYS = 200
"""Padding keys that cost about as much as attending some rows apart (measured on a CPU, all layers alike)."""


class BlockTableError(RuntimeError):
    """A row is to write where its block table has no block: the accounting and the tables disagree."""


class RowSpan(NamedTuple):
    """Neighbouring rows that a backend attends in one go. Integers of the host: shapes come from them."""

    first_row: int
    last_row: int
    """One past the last, as for tokens."""
    first_token: int
    last_token: int
    max_query_length: int
    max_sequence_length: int
    """No row of the span has more tokens in the cache; the device may know that it has fewer."""


class StepRows(NamedTuple):
    """One step's rows on the device: R rows, T tokens, W blocks in a table."""

    block_tables: Any
    """int32[R, W]; the null block where a row has none"""
    query_starts: Any
    """int32[R + 1]"""
    sequence_lengths: Any
    """int32[R]: tokens known to the cache after this step; 0 for a row that only pads the batch"""
    slot_mapping: Any
    """int64[T]; 0 for tokens of padding rows"""
    positions: Any
    """int64[T]; 0 for tokens of padding rows"""
    spans: tuple[RowSpan, ...]
    parts: tuple[RowSpan, ...] = ()
    """The spans again, cut where the rows' lengths differ much, for backends that pad; empty for no cuts"""

    @property
    def num_rows(self) -> int:
        """R, padding rows included."""
        return int(self.sequence_lengths.shape[0])

    @property
    def num_tokens(self) -> int:
        """T, tokens of padding rows included."""
        return int(self.slot_mapping.shape[0])


class HostRows(NamedTuple):
    """The same as far as the host knows it: numpy arrays of int32."""

    block_tables: Any
    """[R, W]"""
    query_starts: Any
    """[R + 1]"""
    sequence_lengths: Any
    """[R]: work in flight counted as computed, so none is below the device's"""
    spans: tuple[RowSpan, ...]
    parts: tuple[RowSpan, ...] = ()

    @property
    def num_tokens(self) -> int:
        """T, tokens of padding rows included."""
        return int(self.query_starts[-1])


def host_rows(
    batch: Batch,
    block_ids: Any,
    block_size: int,
    *,
    group: int = 0,
    num_padding_rows: int = 0,
    padding_query_length: int = 1,
    table_width: int = 0,
    num_lookahead_tokens: int = 0,
) -> HostRows:
    """The rows of a batch, from the scheduler's own arrays.

    `block_ids` are the block tables, `scheduler.state.tables.block_ids`: int32[groups, rows, blocks]. Those
    of one group, of full attention, are copied, so the scheduler may go on. `num_padding_rows` rows of
    `padding_query_length` tokens follow the batch's. `table_width` is W; 0 for what the longest row needs,
    and `num_lookahead_tokens` behind it. Raises BlockTableError if a row lacks a block for a token it
    computes.
    """
    count = batch.num_requests
    rows = np.asarray(batch.rows[:count])
    query_lengths = np.full(count + num_padding_rows, padding_query_length, np.int32)
    query_lengths[:count] = batch.num_scheduled_tokens[:count]
    sequence_lengths = np.zeros(count + num_padding_rows, np.int32)
    sequence_lengths[:count] = batch.num_computed_tokens[:count]
    sequence_lengths[:count] += query_lengths[:count]
    longest = int(sequence_lengths.max(initial=0)) + num_lookahead_tokens
    width = table_width or max(1, -(-longest // block_size))
    _check_room(
        rows, sequence_lengths[:count], np.minimum(batch.num_blocks[group, :count], width) * block_size
    )
    block_tables = np.zeros((len(query_lengths), width), np.int32)
    block_tables[:count, : block_ids.shape[2]] = block_ids[group, rows, :width]
    _check_blocks(rows, batch.num_computed_tokens[:count], sequence_lengths[:count], block_tables, block_size)
    query_starts = np.zeros(len(query_lengths) + 1, np.int32)
    np.cumsum(query_lengths, out=query_starts[1:])
    lengths = (query_lengths, query_starts, sequence_lengths)
    spans = spans_of(*lengths)
    return HostRows(block_tables, query_starts, sequence_lengths, spans, parts_of(spans, *lengths))


def rows_of(batch: Batch, block_ids: Any, block_size: int, device: Any = "cpu", **options: Any) -> StepRows:
    """The rows of a batch on the device, their first token at C before the step; options as of `host_rows`.

    Asynchronously C counts drafts in flight as computed, so these lengths are upper bounds; `at_lengths`
    replaces them on the device.
    """
    rows = host_rows(batch, block_ids, block_size, **options)
    tables, starts, lengths = to_device((rows.block_tables, rows.query_starts, rows.sequence_lengths), device)
    return step_rows(tables, starts, lengths, rows.spans, rows.num_tokens, block_size, rows.parts)


def step_rows(
    block_tables: Any,
    query_starts: Any,
    sequence_lengths: Any,
    spans: tuple[RowSpan, ...],
    num_tokens: int,
    block_size: int,
    parts: tuple[RowSpan, ...] = (),
) -> StepRows:
    """Rows of these lengths, int32[R] on the device, which are not above the host's; 0 makes padding.

    Only enqueues work. The last token of a row is the last one in the cache: so a step that was dispatched
    before the last one's drafts were verified finds its slots.
    """
    tokens = torch.arange(num_tokens, device=query_starts.device)
    ends = query_starts[1:].to(torch.int64)
    token_rows = torch.searchsorted(ends, tokens, right=True)
    positions = sequence_lengths.to(torch.int64)[token_rows] - ends[token_rows] + tokens
    is_padding = sequence_lengths[token_rows] == 0
    positions = torch.where(is_padding, 0, positions)
    blocks = block_tables[token_rows, positions // block_size].to(torch.int64)
    slot_mapping = torch.where(is_padding, 0, blocks * block_size + positions % block_size)
    lengths = sequence_lengths.to(torch.int32)
    return StepRows(block_tables, query_starts, lengths, slot_mapping, positions, spans, parts)


def at_lengths(rows: StepRows, sequence_lengths: Any, block_size: int) -> StepRows:
    """The same rows, with the lengths that the device knows (int32[R], none above the host's)."""
    return step_rows(
        rows.block_tables,
        rows.query_starts,
        sequence_lengths,
        rows.spans,
        rows.num_tokens,
        block_size,
        rows.parts,
    )


def spans_of(query_lengths: Any, query_starts: Any, sequence_lengths: Any) -> tuple[RowSpan, ...]:
    """Rows in their order: long chunks alone, runs of short rows together."""
    is_long = query_lengths > MAX_SHORT_QUERY
    # A span begins at a long row, and behind one.
    begins = np.ones(len(query_lengths), np.bool_)
    begins[1:] = is_long[1:] | is_long[:-1]
    edges = [*np.flatnonzero(begins).tolist(), len(query_lengths)]
    return _between(edges, query_lengths, query_starts, sequence_lengths)


def parts_of(
    spans: tuple[RowSpan, ...], query_lengths: Any, query_starts: Any, sequence_lengths: Any
) -> tuple[RowSpan, ...]:
    """The spans, cut where padding a row to its neighbours' length would cost more than going on apart."""
    edges, lengths = [], sequence_lengths.tolist()
    for span in spans:
        count = longest = 0
        for row in range(span.first_row, span.last_row):
            longer = max(longest, lengths[row])
            is_apart = (count + 1) * longer - count * longest > lengths[row] + SPLIT_KEYS
            if count == 0 or is_apart:
                edges.append(row)
                count = longest = 0
            count, longest = count + 1, max(longest, lengths[row])
    return _between([*edges, len(query_lengths)], query_lengths, query_starts, sequence_lengths)


def _between(
    edges: list[int], query_lengths: Any, query_starts: Any, sequence_lengths: Any
) -> tuple[RowSpan, ...]:
    return tuple(
        [
            RowSpan(
                first, last, int(query_starts[first]), int(query_starts[last]),
                int(query_lengths[first:last].max()), int(sequence_lengths[first:last].max()),
            )
            for first, last in pairwise(edges)
        ]
    )  # fmt: skip


def to_device(arrays: tuple[Any, ...], device: Any) -> list[Any]:
    """numpy arrays of int64 and int32, those of 64 bits first, in one piece of memory and one transfer."""
    memory = torch.from_numpy(
        np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays])
    )
    if torch.device(device).type == "cuda":
        # From pinned memory the host need not wait; torch keeps that memory until the copy is done.
        memory = memory.pin_memory().to(device, non_blocking=True)
    views, place = [], 0
    for array in arrays:
        dtype = torch.int64 if array.dtype == np.int64 else torch.int32
        part: Any = memory[place : place + array.nbytes]
        views.append(part.view(dtype).view(array.shape))
        place += array.nbytes
    return views


def _check_room(rows: Any, sequence_lengths: Any, room: Any) -> None:
    beyond = np.flatnonzero(sequence_lengths > room)
    if len(beyond):
        place = int(beyond[0])
        raise BlockTableError(
            f"row {int(rows[place])} has {int(sequence_lengths[place])} tokens with this step, and its block "
            f"table has room for {int(room[place])}"
        )


def _check_blocks(rows: Any, num_computed: Any, lengths: Any, block_tables: Any, block_size: int) -> None:
    columns = np.arange(block_tables.shape[1]) * block_size
    written = (columns + block_size > num_computed[:, None]) & (columns < lengths[:, None])
    missing = np.argwhere(written & (block_tables[: len(rows)] == NULL_BLOCK))
    if len(missing):
        place, column = missing[0].tolist()
        position = max(int(columns[column]), int(num_computed[place]))
        raise BlockTableError(
            f"row {int(rows[place])} computes position {position}, for which its block table has no block"
        )

"""Which tokens does a step compute, and after which of them does it sample? From the scheduler's arrays.

A row of the batch computes the tokens that follow the C it has computed: known ones, then its drafts. It
samples after its last known token and after each draft: 1 + D places, where D may differ from row to row.
Logits are computed for these places alone, and brought into a rectangle for the verification.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from draftproof.impl.scheduler.batch import Batch


class StepInputs(NamedTuple):
    """Of T tokens in the step and R rows that sample, S places at which they do. numpy arrays on the host."""

    token_ids: Any
    """int64[T]; a null draft, -1, is computed as token 0: what it leaves behind is never read."""
    sampling_places: Any
    """int64[R]: the places in the batch of the rows that sample"""
    logit_tokens: Any
    """int64[S]: tokens of the step whose logits are needed, row by row"""
    rectangle: Any
    """int64[R, 1 + D]: which of the S belong to each row, its last one repeated up to the largest D"""
    draft_token_ids: Any
    """int64[R, D]: -1 for a null draft, and beyond a row's own"""
    num_draft_tokens: Any
    """int64[R]"""
    first_position: Any
    """int64[R]: where in the request the first sampled token stands"""


def step_inputs(batch: Batch, known_token_ids: Any) -> StepInputs:
    """The inputs of a step. `known_token_ids`: int32[rows, >= max_model_len], the scheduler's."""
    count = batch.num_requests
    rows = np.asarray(batch.rows[:count])
    num_tokens = np.asarray(batch.num_scheduled_tokens[:count], np.int64)
    num_drafts = np.asarray(batch.num_draft_tokens[:count], np.int64)
    num_computed = np.asarray(batch.num_computed_tokens[:count], np.int64)
    ends = np.cumsum(num_tokens)
    return _with_places(
        batch,
        _token_ids(batch, known_token_ids, rows, num_tokens, num_drafts, num_computed),
        ends,
        num_drafts,
        num_computed + num_tokens - num_drafts,
    )


def _token_ids(
    batch: Batch, known_token_ids: Any, rows: Any, num_tokens: Any, num_drafts: Any, num_computed: Any
) -> Any:
    """int64[T]"""
    place = np.repeat(np.arange(len(rows)), num_tokens)
    offset = np.arange(len(place)) - (np.cumsum(num_tokens) - num_tokens)[place]
    known = known_token_ids[rows[place], num_computed[place] + offset]
    draft_index = offset - (num_tokens - num_drafts)[place]
    drafts = batch.draft_token_ids[place, np.maximum(draft_index, 0)]
    return np.where(draft_index < 0, known, np.maximum(drafts, 0)).astype(np.int64)


def _with_places(batch: Batch, token_ids: Any, ends: Any, num_drafts: Any, first_position: Any) -> StepInputs:
    places = np.flatnonzero(batch.samples[: len(ends)])
    counts = 1 + num_drafts[places]
    width = int(counts.max(initial=1))
    columns = np.arange(width)
    first = np.cumsum(counts) - counts
    rectangle = first[:, None] + np.minimum(columns, counts[:, None] - 1)
    row_of = np.repeat(np.arange(len(places)), counts)
    logit_tokens = (ends[places] - counts)[row_of] + np.arange(len(row_of)) - first[row_of]
    drafts = np.asarray(batch.draft_token_ids)[places, : width - 1].astype(np.int64)
    drafts = np.where(columns[: width - 1] < counts[:, None] - 1, drafts, -1)
    return StepInputs(token_ids, places, logit_tokens, rectangle, drafts, counts - 1, first_position[places])

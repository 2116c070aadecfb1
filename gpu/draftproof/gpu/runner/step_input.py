"""What does the host tell the device about a step? Which rows, how many tokens, where their blocks are.

Self-contained arrays, made from the scheduler's batch: the scheduler may go on, and the runner may be in a
process of its own. Which tokens those are, and where they stand, is the device's to know; only of a request
that starts, resumes or begins a turn the host sends text, counters and limits along.

A row that samples does so after its last known token and after each of its drafts: 1 + D places, where D may
differ from row to row. Logits are computed for these places alone, and brought into a rectangle for the
verification.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from draftproof.gpu.attention import HostRows, host_rows
from draftproof.gpu.device_ledger import before_dispatch
from draftproof.gpu.recurrent import HostStates, host_states
from draftproof.gpu.sampling.parameters import SamplingParameters
from draftproof.impl.ledger_table import NUM_FIELDS, NUM_PROMPT_TOKENS, NUM_TOKENS
from draftproof.impl.scheduler.batch import RUNNING, Batch
from draftproof.impl.scheduler.layout import State

NO_BLOCKS = np.zeros(0, np.int64)


class RowSampling(NamedTuple):
    """How a row's tokens are chosen, from a start on."""

    parameters: SamplingParameters
    seed: int
    num_prompt_tokens: int
    """Tokens before the turn's first output."""


class Starts(NamedTuple):
    """The m rows that start with a step, or resume, or begin a turn."""

    lines: Any
    """int64[m]: the scheduler's rows"""
    ledgers: Any
    """int32[fields, m]: their counters before the dispatch"""
    token_ids: Any
    """int32[m, n]: prompt and output so far; beyond a row's own anything"""
    num_tokens: Any
    """int64[m]"""
    stop_token_ids: Any
    """int32[m, S], -1 for none"""
    limits: Any
    """int32[2, m]: N below which no stop token counts, and N at which the row stops"""
    sampling: tuple[RowSampling, ...]


class StepInput(NamedTuple):
    """One step of R rows, T tokens, S of which are sampled from."""

    step: int
    request_ids: tuple[str, ...]
    """For messages."""
    lines: Any
    """int64[R]: the scheduler's rows"""
    num_tokens: Any
    """int32[R]"""
    num_drafts: Any
    """int32[R]: of the tokens"""
    rows: HostRows
    states: HostStates | None
    """Of a model with recurrent layers."""
    sampling_places: Any
    """int64[r]: the places in the batch of the rows that sample"""
    logit_tokens: Any
    """int64[S]: tokens of the step whose logits are needed, row by row"""
    rectangle: Any
    """int64[r, 1 + D]: which of the S belong to each row, its last one repeated up to the largest D"""
    starts: Starts | None
    max_num_tokens: int
    """No row has more tokens after the step."""
    freed_blocks: Any
    """int64[n]: blocks that nobody may read any more; only filled in debug mode"""

    @property
    def num_rows(self) -> int:
        """R"""
        return len(self.lines)


def step_input(
    batch: Batch,
    state: State,
    request_ids: Sequence[str],
    sampling: Sequence[RowSampling],
    *,
    num_lookahead_tokens: int = 0,
    recurrent_group: int | None = None,
    freed_blocks: Any = NO_BLOCKS,
) -> StepInput:
    """The input of a step that has just been scheduled; `request_ids` and `sampling` in the batch's order.

    `recurrent_group`: which KV cache group holds recurrent states; the first group is of attention.
    """
    count, settings = batch.num_requests, state.settings
    rows = host_rows(
        batch, state.tables.block_ids, settings.rules_block_size, num_lookahead_tokens=num_lookahead_tokens
    )
    num_tokens, num_drafts = [
        np.array(column[:count], np.int32) for column in (batch.num_scheduled_tokens, batch.num_draft_tokens)
    ]
    places = np.flatnonzero(batch.samples[:count])
    return StepInput(
        batch.step,
        tuple(request_ids),
        np.array(batch.rows[:count], np.int64),
        num_tokens,
        num_drafts,
        rows,
        None
        if recurrent_group is None
        else host_states(batch, state.tables.block_ids, recurrent_group, num_rows=settings.num_rows),
        places,
        *_rectangle(places, rows.query_starts[1:], 1 + num_drafts[places].astype(np.int64)),
        _starts(batch, state, sampling),
        int(rows.sequence_lengths.max()) + 1,
        freed_blocks,
    )


def _rectangle(places: Any, ends: Any, counts: Any) -> tuple[Any, Any]:
    """`logit_tokens` and `rectangle`, for rows that sample after each of their last `counts` tokens."""
    first = np.cumsum(counts) - counts
    rectangle = first[:, None] + np.minimum(np.arange(int(counts.max(initial=1))), counts[:, None] - 1)
    row_of = np.repeat(np.arange(len(places)), counts)
    logit_tokens = (ends[places] - counts)[row_of] + np.arange(len(row_of)) - first[row_of]
    return logit_tokens, rectangle


def _starts(batch: Batch, state: State, sampling: Sequence[RowSampling]) -> Starts | None:
    places = np.flatnonzero(batch.kind[: batch.num_requests] != RUNNING)
    if len(places) == 0:
        return None
    requests, rows = state.requests, batch.rows[places]
    ledgers = requests.ledgers[:NUM_FIELDS, rows]
    num_tokens = ledgers[NUM_TOKENS].astype(np.int64)
    stops = np.asarray(requests.stop_token_ids)[rows, : state.settings.max_stop_token_ids].astype(np.int32)
    stops[np.arange(stops.shape[1]) >= requests.num_stop_token_ids[rows][:, None]] = -1
    stops = np.concatenate([requests.eos_token_id[rows].astype(np.int32)[:, None], stops], 1)
    return Starts(
        rows.astype(np.int64),
        before_dispatch(
            ledgers,
            batch.num_scheduled_tokens[places],
            batch.num_draft_tokens[places],
            batch.num_computed_tokens[places],
            batch.num_output_placeholders[places],
        ),
        np.array(requests.token_ids[rows, : int(num_tokens.max())]),
        num_tokens,
        stops,
        np.array([requests.min_num_tokens[rows], requests.max_num_tokens[rows]], np.int32),
        tuple(
            [
                sampling[place]._replace(num_prompt_tokens=int(num_prompt_tokens))
                for place, num_prompt_tokens in zip(
                    places.tolist(), ledgers[NUM_PROMPT_TOKENS].tolist(), strict=True
                )
            ]
        ),
    )

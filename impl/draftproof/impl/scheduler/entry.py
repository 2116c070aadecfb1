"""Where does Python call into the scheduler? Each entry point lays the views over the memory and calls one
function of the rooms beside it. Compiled, a few arrays cross the border instead of fifty."""

from __future__ import annotations

from typing import Any

from draftproof.impl.scheduler import lifecycle, settle, step
from draftproof.impl.scheduler.batch import NUM_FINISHED, NUM_PAUSED, batch_views
from draftproof.impl.scheduler.layout import views


def schedule_step(memory64: Any, memory32: Any, recurrent_memory: Any, batch_memory: Any) -> None:
    """See `step.schedule_step`."""
    state = views(memory64, memory32, recurrent_memory)
    step.schedule_step(state, batch_views(batch_memory, state.settings))


def settle_step(
    memory64: Any, memory32: Any, recurrent_memory: Any, batch_memory: Any, sampled: Any, num_sampled: Any
) -> tuple[int, int]:
    """See `settle.settle_step`. Returns `settle.ACCEPTED` and how many requests stopped; an outcome that is
    wrong changes nothing, and its problem is returned, with the place in the batch."""
    state = views(memory64, memory32, recurrent_memory)
    batch = batch_views(batch_memory, state.settings)
    problem, index = settle.problem_of_outcome(state, batch, sampled, num_sampled)
    if problem == settle.ACCEPTED:
        settle.settle_step(state, state.recurrent, batch, sampled, num_sampled)
        index = batch.counts[NUM_FINISHED] + batch.counts[NUM_PAUSED]
    return problem, index


def take_drafts(
    memory64: Any, memory32: Any, recurrent_memory: Any, rows: Any, draft_token_ids: Any, num_drafts: Any
) -> int:
    """See `settle.take_drafts`; the place of the first wrong proposal, or -1 when they were taken."""
    state = views(memory64, memory32, recurrent_memory)
    index = settle.wrong_draft(state, rows, draft_token_ids, num_drafts)
    if index < 0:
        settle.take_drafts(state, rows, draft_token_ids, num_drafts)
    return index


def add_row(
    memory64: Any, memory32: Any, recurrent_memory: Any, token_ids: Any, parameters: Any, stop_token_ids: Any
) -> int:
    """See `lifecycle.add_row`."""
    return lifecycle.add_row(
        views(memory64, memory32, recurrent_memory), token_ids, parameters, stop_token_ids
    )


def fold_row(
    memory64: Any,
    memory32: Any,
    recurrent_memory: Any,
    row: int,
    token_ids: Any,
    max_tokens: int,
    min_tokens: int,
) -> None:
    """See `lifecycle.fold_row`."""
    lifecycle.fold_row(views(memory64, memory32, recurrent_memory), row, token_ids, max_tokens, min_tokens)


def abort_row(memory64: Any, memory32: Any, recurrent_memory: Any, row: int) -> None:
    """See `lifecycle.abort_row`."""
    lifecycle.abort_row(views(memory64, memory32, recurrent_memory), row)


def clear_cache(memory64: Any, memory32: Any, recurrent_memory: Any) -> None:
    """See `lifecycle.clear_cache`."""
    lifecycle.clear_cache(views(memory64, memory32, recurrent_memory))


def preempt_all(memory64: Any, memory32: Any, recurrent_memory: Any, batch_memory: Any) -> None:
    """See `lifecycle.preempt_all`."""
    state = views(memory64, memory32, recurrent_memory)
    lifecycle.preempt_all(state, batch_views(batch_memory, state.settings))


def withdraw_step(memory64: Any, memory32: Any, recurrent_memory: Any, batch_memory: Any) -> None:
    """See `lifecycle.withdraw_step`."""
    state = views(memory64, memory32, recurrent_memory)
    lifecycle.withdraw_step(state, batch_views(batch_memory, state.settings))


def give_up_step(
    memory64: Any, memory32: Any, recurrent_memory: Any, batch_memory: Any, report_memory: Any
) -> None:
    """See `lifecycle.give_up_step`."""
    state = views(memory64, memory32, recurrent_memory)
    lifecycle.give_up_step(
        state, batch_views(batch_memory, state.settings), batch_views(report_memory, state.settings)
    )


def drop_step(memory64: Any, memory32: Any, recurrent_memory: Any, batch_memory: Any) -> None:
    """See `lifecycle.drop_step`."""
    state = views(memory64, memory32, recurrent_memory)
    lifecycle.drop_step(state, batch_views(batch_memory, state.settings))


def num_cached_tokens(
    memory64: Any, memory32: Any, recurrent_memory: Any, token_ids: Any, salt_first: int, salt_second: int
) -> int:
    """See `lifecycle.num_cached_tokens`."""
    return lifecycle.num_cached_tokens(
        views(memory64, memory32, recurrent_memory), token_ids, salt_first, salt_second
    )

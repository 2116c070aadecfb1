"""A step as Python objects, for those who ask. The arrays are what the scheduler works with; building one
object for each request takes longer than scheduling it."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from draftproof.impl.scheduler import layout
from draftproof.impl.scheduler.batch import Batch
from draftproof.impl.scheduler.metrics import load_metrics
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.impl.scheduler.settle import FINISH_REASONS
from draftproof.spec.decision_inputs import Metrics


class RequestOutput(NamedTuple):
    """What a step brought one request (vLLM's EngineCoreOutput)."""

    request_id: str
    new_token_ids: list[int]
    """The tokens kept: accepted drafts and the one sampled after them, less what a stop cut off."""
    finish_reason: str
    """`stop`, `length`, `abort`, or empty while the request goes on. A session's turn ends with one, too."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What happened since the start, over all requests. Counts are tokens unless said."""

    num_running_requests: int
    num_waiting_requests: int
    num_free_blocks: int
    num_blocks: int
    num_stopped_requests: int
    """Stops since the start, those that ended a session's turn included."""
    num_preemptions: int
    """How often a request gave its blocks back, idle sessions included."""
    num_looked_up_tokens: int
    """Tokens of all requests that looked the prefix cache up, resumed ones included."""
    num_hit_tokens: int
    num_draft_tokens: int
    """Drafts verified; padding and drafts that a grammar ruled out are none."""
    num_accepted_tokens: int
    """Drafts accepted and kept."""
    num_output_tokens: int

    @property
    def acceptance_rate(self) -> float:
        """Accepted of the verified drafts, 0.0 without any."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def kv_cache_usage(self) -> float:
        """The share of the blocks that requests hold."""
        return 1.0 - self.num_free_blocks / self.num_blocks


_make_output = functools.partial(tuple.__new__, RequestOutput)
"""A RequestOutput of a tuple of its fields: a third of the time that naming them takes."""


def outputs(scheduler: Scheduler, batch: Batch, sampled_token_ids: Any) -> list[RequestOutput]:
    """What a settled step brought, for each request that got tokens, in the order of the batch.

    To be called after `settle` with the same arguments, and before the next `add`.
    """
    num_requests, ids = batch.num_requests, scheduler.request_ids
    kept = batch.num_kept_tokens[:num_requests]
    got_some = kept > 0
    if not got_some.all():
        places = np.flatnonzero(got_some)
        rows, kept = batch.rows[places], kept[places]
        tokens, reasons = np.asarray(sampled_token_ids)[places], batch.finish_reason[places]
    else:
        rows, tokens = batch.rows[:num_requests], np.asarray(sampled_token_ids)[:num_requests]
        reasons = batch.finish_reason[:num_requests]
    most = kept.max(initial=0)
    new_token_ids: list[list[int]] = tokens[:, :most].tolist()
    shorter = np.flatnonzero(kept < most)
    for place, count in zip(shorter.tolist(), kept[shorter].tolist(), strict=True):
        del new_token_ids[place][count:]
    request_ids = list(map(ids.__getitem__, rows.tolist()))
    if not reasons.any():
        return list(map(_make_output, zip(request_ids, new_token_ids, itertools.repeat(""))))
    words = [FINISH_REASONS[reason] for reason in reasons.tolist()]
    return list(map(_make_output, zip(request_ids, new_token_ids, words, strict=True)))


def metrics_of(scheduler: Scheduler, request_id: str) -> Metrics:
    """The metrics of a request that is known, or has finished and whose row is not used again yet.

    Raises KeyError for any other.
    """
    row = scheduler.rows.get(request_id)
    if row is None:
        if not request_id or request_id not in scheduler.request_ids:
            raise KeyError(request_id)
        row = scheduler.request_ids.index(request_id)
    values = load_metrics(scheduler.state.requests.metrics, row)
    return Metrics(*[int(value) for value in values])


def statistics(scheduler: Scheduler) -> Statistics:
    """What happened since the start."""
    counts = scheduler.state.counts.tolist()
    return Statistics(
        num_running_requests=counts[layout.NUM_RUNNING],
        num_waiting_requests=counts[layout.NUM_WAITING],
        num_free_blocks=int(scheduler.state.pool.num_free_blocks[0]),
        num_blocks=scheduler.config.num_blocks,
        num_stopped_requests=counts[layout.TOTAL_STOPPED],
        num_preemptions=counts[layout.TOTAL_PREEMPTIONS],
        num_looked_up_tokens=counts[layout.TOTAL_LOOKED_UP_TOKENS],
        num_hit_tokens=counts[layout.TOTAL_HIT_TOKENS],
        num_draft_tokens=counts[layout.TOTAL_DRAFTS],
        num_accepted_tokens=counts[layout.TOTAL_ACCEPTED_DRAFTS],
        num_output_tokens=counts[layout.TOTAL_KEPT_TOKENS],
    )

"""vLLM 0.32's schedulers with their known faults corrected: a check that still complains is wrong itself.

Corrected are: trimmed tokens are uncounted, and their placeholders released; a session keeps all of its
tokens but the last, stays in its queue when it stops while preempted, and takes no drafts between turns;
whoever gives blocks back publishes first what is settled. Not corrected: under priority, a
victim that stood in the step.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from draftproof.impl.attach.vllm.schedulers import Checks


class Corrections:
    """The corrections, for a class before vLLM's in the order of bases."""

    def _update_request_with_output(
        self, request: Any, new_token_ids: list[int], is_stale: bool = False
    ) -> Any:
        count = len(new_token_ids)
        above: Any = super()
        kept, stopped = above._update_request_with_output(request, new_token_ids, is_stale)
        request.num_trimmed_tokens = 0
        if not is_stale:
            request.num_trimmed_tokens = count - len(kept)
            request.num_computed_tokens -= request.num_trimmed_tokens
            if isinstance(self, AsyncScheduler):
                request.num_output_placeholders -= request.num_trimmed_tokens
        return kept, stopped

    def _handle_stopped_request(self, request: Any) -> Any:
        if request.resumable:
            request.num_trimmed_tokens = 0
        above: Any = super()
        return above._handle_stopped_request(request)

    def _update_request_as_session(self, session: Any, update: Any) -> None:
        num_computed_tokens = session.num_computed_tokens
        session.num_computed_tokens = session.num_tokens - 1
        above: Any = super()
        above._update_request_as_session(session, update)
        session.num_computed_tokens = num_computed_tokens

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        above: Any = super()
        above.update_draft_token_ids(draft_token_ids)
        scheduler: Any = self
        for request_id in draft_token_ids.req_ids:
            request = scheduler.requests.get(request_id)
            if request is not None and request.status != RequestStatus.RUNNING:
                request.spec_token_ids = []

    def _free_request_blocks(self, request: Any) -> None:
        num_live = request.num_in_flight_tokens - request.num_stale_output_tokens
        settled = request.num_computed_tokens + getattr(request, "num_trimmed_tokens", 0) - num_live
        manager: Any = self
        if request.num_computed_tokens > 0:
            manager.kv_cache_manager.cache_blocks(request, min(settled, request.num_tokens))
        above: Any = super()
        above._free_request_blocks(request)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        above: Any = super()
        result = above.update_from_output(scheduler_output, model_runner_output)
        scheduler: Any = self
        placed = {*scheduler.running, *scheduler.waiting, *scheduler.kv_holding_waiting}
        for request in scheduler.requests.values():
            if request not in placed and not request.is_finished():
                scheduler._enqueue_waiting_request(request)
        return result


class CorrectedScheduler(Checks, Corrections, Scheduler):  # type: ignore[misc]
    """Synchronous, corrected, checked."""


class CorrectedAsyncScheduler(Checks, Corrections, AsyncScheduler):  # type: ignore[misc]
    """Asynchronous, corrected, checked."""


class FaultyScheduler(Checks, Scheduler):  # type: ignore[misc]
    """Synchronous, as vLLM ships it, checked."""


class FaultyAsyncScheduler(Checks, AsyncScheduler):  # type: ignore[misc]
    """Asynchronous, as vLLM ships it, checked."""

"""What has a step brought, and what did the engine make of it? Outputs and ends, replayed."""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from draftproof.impl.attach.vllm import engine_view
from draftproof.impl.attach.vllm.content import chain
from draftproof.impl.attach.vllm.kernel import ENDING, UNFIT, VERDICT, WIDTH
from draftproof.impl.attach.vllm.leaving import FINISH, TRIMMED
from draftproof.impl.attach.vllm.reading import verify
from draftproof.impl.attach.vllm.watched import Dispatched, Watched
from draftproof.impl.ledger_table import NUM_TOKENS

if TYPE_CHECKING:
    from draftproof.impl.attach.vllm.watch import Watch

_resumable = attrgetter("resumable")
_NO_SESSIONS = np.zeros((2, 0), np.int64)


class Returning(NamedTuple):
    """A step that is about to be settled by the engine."""

    step: Dispatched | None
    counts: Any
    """int64[n]: tokens that the runner brought for each request, before a stop cuts any."""
    next_chunks: dict[str, Any]
    """Of sessions in the step: what waits in their queues, and None where their end does."""


class Settler:
    """Takes a step's results apart, for one watch."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def returning(self, output: Any, brought: Any) -> Returning:
        """A step has returned, and the engine has not seen it yet: judge what it read, note what it wrote."""
        watch = self._watch
        step = self._step(output)
        if step is None:
            return Returning(None, None, {})
        party = step.party
        counts = engine_view.num_sampled(brought, party.request_ids)
        if watch.shadow is not None:
            sampled = [engine_view.sampled(brought, request_id) for request_id in party.request_ids]
            verify(watch.accounts, watch.shadow, step, sampled, output.scheduled_spec_decode_tokens)
        next_chunks = {}
        if any(map(_resumable, party.requests)):
            next_chunks = {
                watched.request_id: watched.request.streaming_queue[0]
                for watched in party.watched
                if watched.row >= 0 and watched.request.resumable and watched.request.streaming_queue
            }
        return Returning(step, counts, next_chunks)

    def _step(self, output: Any) -> Dispatched | None:
        """The step that this output was dispatched as; steps return in order."""
        watch = self._watch
        if watch.in_flight and watch.in_flight[0].output is output:
            return watch.in_flight.popleft()
        for request_id in output.num_scheduled_tokens:
            if (watched := watch.watched.get(request_id)) is not None:
                watch.unjudge(
                    watched, "requests in a step that was not seen when it was scheduled, or overtook"
                )
        watch.in_flight = deque(step for step in watch.in_flight if step.output is not output)
        return None

    def settle(self, scheduler: Any, returning: Returning, results: Any) -> None:
        """The engine has settled a step: replay what it made of it, and compare."""
        watch = self._watch
        step = returning.step
        assert step is not None
        party, brought = step.party, returning.counts
        if party.generation != watch.accounts.generation:
            here = [place for place, watched in enumerate(party.watched) if watched.row >= 0]
            if not here:
                return
            places = np.array(here, np.int64)
            party, brought = watch.accounts.party([party.watched[place] for place in here]), brought[places]
        else:
            places = engine_view.NOTHING
        several, requests, rows = party.watched, party.requests, party.rows
        ledgers = watch.accounts.ledgers
        numbers, drafts = engine_view.read(requests)
        published = watch.published_blocks(scheduler, party.request_ids)
        known = ledgers.table[NUM_TOKENS, rows].tolist() if watch.shadow is not None else []
        work = np.empty((WIDTH, rows.shape[0]), np.int64)
        verdicts = ledgers.passes.settle(
            ledgers.table,
            ledgers.judged,
            ledgers.words,
            watch.accounts.statuses,
            rows,
            step.work,
            places,
            brought,
            self._turns(requests, results),
            numbers,
            drafts,
            published,
            work,
        )
        watch.accounts.moved(rows, work, rows.shape[0])
        if watch.shadow is not None:
            for watched, num_known in zip(several, known, strict=True):
                self._extend(watched, num_known)
        if not verdicts:
            watch.accounts.told(rows, work)
            return
        (still,) = np.nonzero((work[VERDICT] & ENDING) == 0)
        watch.accounts.told(rows[still], work[:, still])
        for place in np.nonzero(work[VERDICT] & UNFIT)[0].tolist():
            watch.unjudge(several[place], "a step that samples brought nothing, or more than was drafted")
        watch.accounts.explain(several, work, published)
        for place in np.nonzero(work[VERDICT] & ENDING)[0].tolist():
            self._stop(scheduler, several[place], returning.next_chunks)

    def _turns(self, requests: list[Any], results: Any) -> Any:
        """What became of sessions: int64[2, n], tokens kept and whether the turn ended; -1 for all others."""
        if not any(map(_resumable, requests)):
            return _NO_SESSIONS
        told, found = _told(results), np.full((2, len(requests)), -1, np.int64)
        for place, request in enumerate(requests):
            if request.resumable:
                found[:, place] = _turn(told.get(request.request_id))
        return found

    def _extend(self, watched: Watched, num_known: int) -> None:
        """The digests of the tokens that have come."""
        if watched.request.resumable and watched.request.num_tokens < num_known:
            return  # it was folded: `fold` sees to it
        last = watched.digests[-1] if watched.digests else watched.start_digest
        watched.digests += chain(last, engine_view.tokens(watched.request, len(watched.digests)))

    def _stop(self, scheduler: Any, watched: Watched, next_chunks: dict[str, Any]) -> None:
        """A request has stopped: it leaves, or its turn ends and the next may begin at once."""
        watch = self._watch
        request = watched.request
        here = scheduler.requests.get(watched.request_id) is request and not request.is_finished()
        known = watched.judged  # a counter that is wrong only now leaves the core's own ledger right
        if not request.resumable:
            watch.accounts.compare([watched], left=True)
            trimmed = watch.accounts.state(watched).ledger.num_trimmed_tokens > 0
            watch.leaving.leave(scheduler, watched, "finish", TRIMMED if trimmed else FINISH, known=known)
            return
        watch.accounts.move("end_turn", [watched])
        if watched.life is not None:
            watched.life.over = True
        if not here:
            watch.accounts.compare([watched], left=True)
            watch.leaving.leave(scheduler, watched, "abort", FINISH, known=known)
            return
        update = next_chunks.get(watched.request_id)
        if update is not None:
            watch.fold(watched, len(update.prompt_token_ids or ()))
        watch.accounts.compare([watched])


def _turn(output: Any) -> tuple[int, int]:
    """What an engine's output says of a session: tokens kept, and whether its turn ended."""
    return (0, 0) if output is None else (len(output.new_token_ids), int(output.finish_reason is not None))


def _told(results: Any) -> dict[str, Any]:
    """The engine's outputs of a step, by request."""
    return {output.request_id: output for client in results.values() for output in client.outputs}

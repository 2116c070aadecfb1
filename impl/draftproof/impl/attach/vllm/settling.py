"""What has a step brought, and what did the engine make of it? Outputs and ends, replayed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from draftproof.impl.attach.vllm import engine_view
from draftproof.impl.attach.vllm.content import chain
from draftproof.impl.attach.vllm.leaving import FINISH, TRIMMED
from draftproof.impl.attach.vllm.reading import verify
from draftproof.impl.attach.vllm.watched import Dispatched, Watched
from draftproof.impl.ledger_table import NUM_STALE_TOKENS, NUM_TOKENS
from draftproof.spec.ledger import FINISHED

if TYPE_CHECKING:
    from draftproof.impl.attach.vllm.watch import Watch


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
        places, tokens = brought.req_id_to_index, brought.sampled_token_ids
        ids = [watched.request_id for watched in step.watched]
        counts = np.array([len(tokens[places[name]]) if tokens and name in places else 0 for name in ids])
        if watch.shadow is not None:
            sampled = [engine_view.sampled(brought, watched.request_id) for watched in step.watched]
            verify(watch.accounts, watch.shadow, step, sampled, output.scheduled_spec_decode_tokens)
        next_chunks = {
            watched.request_id: watched.request.streaming_queue[0]
            for watched in step.watched
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
        here = np.array([place for place, watched in enumerate(step.watched) if watched.row >= 0], np.int64)
        if not here.size:
            return
        several = [step.watched[place] for place in here.tolist()]
        rows = np.array([watched.row for watched in several])
        table = watch.accounts.ledgers.table
        known, stale = table[NUM_TOKENS, rows], table[NUM_STALE_TOKENS, rows] > 0
        found = watch.accounts.read(several)
        kept, stopped = found[:, 0] - known, (found[:, 6] == FINISHED).astype(np.int64)
        told = None
        for place, watched in enumerate(several):
            if watched.request.resumable:
                told = _told(results) if told is None else told
                kept[place], stopped[place] = _turn(told.get(watched.request_id))
        brought = returning.counts[here]
        samples = step.samples[here] & ~stale
        fits = (kept >= 1) & (kept <= brought) & (brought <= step.num_drafts[here] + 1)
        for place in np.nonzero(samples & ~fits)[0].tolist():
            watch.unjudge(several[place], "a step that samples brought nothing, or more than was drafted")
            kept[place] = max(int(kept[place]), 1)
        for name, chosen in (
            ("chunk_output", ~step.samples[here] & ~stale),
            ("output", samples),
            ("stale_output", stale),
        ):
            places = np.nonzero(chosen)[0]
            if not places.size:
                continue
            arguments = [step.num_tokens[here][places]]
            if name == "output":
                arguments += [step.num_drafts[here][places], np.maximum(brought[places] - 1, 0)]
            if name != "chunk_output":
                arguments += [kept[places], stopped[places]]
            moved = several if places.size == len(several) else [several[place] for place in places.tolist()]
            watch.accounts.move(name, moved, *arguments)
        if watch.shadow is not None:
            for watched, num_known in zip(several, known.tolist(), strict=True):
                self._extend(watched, num_known)
        ending = (stopped > 0) & (samples | stale)
        if not ending.any():
            watch.accounts.compare(several, found=found)
            watch.accounts.compare_registered(scheduler, several)
            return
        still = [watched for watched, ends in zip(several, ending.tolist(), strict=True) if not ends]
        watch.accounts.compare(still, found=found[~ending])
        watch.accounts.compare_registered(scheduler, still)
        for place in np.nonzero(ending)[0].tolist():
            self._stop(scheduler, several[place], returning.next_chunks)

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

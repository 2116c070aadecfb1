"""What did the engine decide? A step's messages, as events: preempted, admitted, drafts padded, scheduled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from draftproof.impl.attach.vllm import engine_view
from draftproof.impl.attach.vllm.watched import Chunk, Dispatched, Life, Watched
from draftproof.impl.ledger_table import NUM_COMPUTED_TOKENS
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import RUNNING

if TYPE_CHECKING:
    from draftproof.impl.attach.vllm.watch import Watch


class Dispatcher:
    """Takes a step's messages apart, for one watch."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def dispatch(self, scheduler: Any, output: Any) -> list[Watched]:
        """Replay what was decided. Returns the requests in the step, and those preempted by it."""
        watch = self._watch
        preempted = self._preempted(scheduler, output)
        scheduled = output.num_scheduled_tokens
        several = [
            watch.watched.get(request_id) or watch.stranger(scheduler.requests[request_id])
            for request_id in scheduled
        ]
        num_tokens = np.fromiter(scheduled.values(), np.int64, len(several))
        fresh = {one.req_id for one in output.scheduled_new_reqs}
        fresh |= set(getattr(output.scheduled_cached_reqs, "resumed_req_ids", None) or ())
        self._admit(several, num_tokens, fresh, output.scheduled_spec_decode_tokens)
        if several:
            before, step = watch.accounts.schedule(several, num_tokens)
            self._drafts(several, step.num_drafts, output.scheduled_spec_decode_tokens)
            if watch.view.blocks:
                self._blocks(scheduler, output, several, num_tokens, fresh, before)
            lives, chunks = self._content(several, num_tokens, output, fresh)
            watch.in_flight.append(
                Dispatched(
                    output,
                    several,
                    num_tokens,
                    np.asarray(step.num_drafts),
                    np.asarray(step.samples),
                    lives,
                    chunks,
                )
            )
        if watch.view.blocks:
            for problem in watch.owners.problems():
                watch.tell_of_blocks(problem)
        return [*several, *(one for one in preempted if one.request_id not in scheduled)]

    def _preempted(self, scheduler: Any, output: Any) -> list[Watched]:
        watch = self._watch
        found = []
        for request_id in sorted(output.preempted_req_ids or ()):
            watched = watch.watched.get(request_id)
            if watched is not None and watch.accounts.is_status(watched, RUNNING):
                found.append(watched)
        for watched in found:
            watch.leaving.preempt(scheduler, watched, alone=len(found) == 1)
        return found

    def _admit(self, several: list[Watched], num_tokens: Any, fresh: set[str], drafted: Any) -> None:
        """Requests that start or resume, and the padding of those that do so with one token."""
        watch = self._watch
        places = [place for place, watched in enumerate(several) if watched.request_id in fresh]
        if not places:
            return
        admitted = [several[place] for place in places]
        rows = np.array([watched.row for watched in admitted])
        starts = np.array([watched.request.num_computed_tokens for watched in admitted]) - num_tokens[places]
        kept = watch.accounts.ledgers.table[NUM_COMPUTED_TOKENS, rows] > 0
        watch.accounts.move("admit", admitted, np.where(kept, 0, starts))
        if watch.view.counts and watch.view.blocks:
            for watched in admitted:
                watch.accounts.forbid(watched)
        padded = [watched for watched in admitted if drafted.get(watched.request_id)]
        counts = np.array([len(drafted[watched.request_id]) for watched in padded])
        watch.accounts.move("draft", padded, counts)

    def _drafts(self, several: list[Watched], num_drafts: Any, drafted: Any) -> None:
        """A step verifies the drafts that its size says."""
        watch = self._watch
        found = np.array([len(drafted.get(watched.request_id, ())) for watched in several])
        for place in np.nonzero(found != num_drafts)[0].tolist():
            if several[place].judged and watch.view.counts:
                watch.accounts.tell(
                    several[place], "accounting", ("T2",), ("drafts_as_scheduled",),
                    f"a step verifies {int(found[place])} drafts, its size leaves room for "
                    f"{int(np.asarray(num_drafts)[place])}",
                )  # fmt: skip

    def _blocks(
        self,
        scheduler: Any,
        output: Any,
        several: list[Watched],
        num_tokens: Any,
        fresh: set[str],
        before: State,
    ) -> None:
        """Who owns what now, and what this step will write."""
        watch = self._watch
        cached = output.scheduled_cached_reqs
        grown = {
            request_id
            for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True)
            if blocks is not None
        } | fresh
        size = watch.view.rules.block_size
        awaited = np.asarray(before.ghosts.num_awaited_samples)
        # Each step that is awaited brings at least one token, so the device starts at least that far.
        starts = np.asarray(before.ledger.num_computed_tokens) - awaited + (awaited > 0)
        ends = (np.asarray(before.ledger.num_computed_tokens) + num_tokens).tolist()
        published = np.asarray(before.ledger.num_registered_tokens).tolist()
        known = np.asarray(before.ledger.num_tokens).tolist()
        for watched in several:
            if watched.request_id in grown:
                watch.owners.take(watched, engine_view.block_table(scheduler, watched.request_id))
        for place in _suspects(several, (starts // size).tolist(), ends, size):
            watched, start = several[place], int(starts[place])
            if not watched.judged or start >= ends[place]:
                continue
            problem = watch.owners.written(watched, start, ends[place], published[place], known[place], size)
            if problem is not None:
                watch.tell_of_blocks(problem, watched)

    def _content(
        self, several: list[Watched], num_tokens: Any, output: Any, fresh: set[str]
    ) -> tuple[list[Life | None], dict[int, Chunk]]:
        """The lives of the step's requests, and what its prefill chunks will write."""
        if self._watch.shadow is None:
            return [], {}
        lives: list[Life | None] = []
        chunks: dict[int, Chunk] = {}
        asynchronous = self._watch.view.rules.asynchronous
        drafted = output.scheduled_spec_decode_tokens
        for place, (watched, count) in enumerate(zip(several, num_tokens.tolist(), strict=True)):
            request = watched.request
            start = request.num_computed_tokens - count
            if watched.request_id in fresh or watched.life is None:
                kept = watched.life.num_verified if watched.life is not None else 0
                watched.life = Life(
                    watched.table,
                    request.num_tokens,
                    watched.digests[-1],
                    request.all_token_ids[-1],
                    min(kept, start),
                )
            lives.append(watched.life)
            awaited = request.num_output_placeholders
            if asynchronous and not request.is_prefill_chunk:
                awaited -= 1 + len(drafted.get(watched.request_id, ()))
            if awaited == 0 and start < request.num_tokens - 1:
                end = start + count
                chunks[place] = Chunk(
                    start, watched.digests[start:end], list(engine_view.tokens(request, start)[:count])
                )
        return lives, chunks


def _suspects(several: list[Watched], firsts: list[int], ends: list[int], size: int) -> list[int]:
    """Places of the requests whose written blocks must be looked at closely: not those that write into one
    block which is theirs alone and unpublished."""
    found = []
    for place, (watched, first, end) in enumerate(zip(several, firsts, ends, strict=True)):
        last = (end - 1) // size
        table = watched.table
        if first == last < len(table):
            block = table[last]
            if block.ref_cnt == 1 and block.block_hash is None:
                continue
        found.append(place)
    return found

"""What did the engine decide? A step's messages, as events: preempted, admitted, drafts padded, scheduled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from draftproof.impl.attach.vllm import engine_view
from draftproof.impl.attach.vllm.kernel import (
    CODE,
    DIFFERS,
    DRAFTS_DIFFER,
    END,
    FIRST_BEFORE,
    MOVE_WIDTH,
    MOVES_ON,
    NOTHING,
    NUM_DRAFTS,
    PUBLISHED,
    START,
    TOO_MANY,
    VERDICT,
    WIDTH,
)
from draftproof.impl.attach.vllm.watched import Chunk, Dispatched, Life, Party, Watched
from draftproof.impl.ledger_table import NUM_COMPUTED_TOKENS, NUM_REGISTERED_TOKENS, NUM_TOKENS
from draftproof.spec.ledger import RUNNING

if TYPE_CHECKING:
    from draftproof.impl.attach.vllm.watch import Watch

_NOBODY: set[str] = set()


class Dispatcher:
    """Takes a step's messages apart, for one watch."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._party = watch.accounts.party([])
        """Of the last step."""

    def propose(self, scheduler: Any) -> None:
        """What a drafter has left with the running requests since the last call."""
        watch = self._watch
        if not watch.view.rules.num_speculative_tokens or not scheduler.running:
            return
        party = self._party
        if party.generation != watch.accounts.generation or party.requests != scheduler.running:
            known = [watch.watched.get(request.request_id) for request in scheduler.running]
            party = watch.accounts.party([watched for watched in known if watched is not None])
        drafts, rows = engine_view.num_drafts(party.requests), party.rows
        work = np.empty((MOVE_WIDTH, rows.shape[0]), np.int64)
        ledgers = watch.accounts.ledgers
        verdicts = ledgers.passes.propose(ledgers.table, ledgers.judged, ledgers.words, rows, drafts, work)
        count = int(np.count_nonzero(work[CODE] != NOTHING))
        if count:
            watch.accounts.moved(rows, work, count)
        if verdicts:
            for place in np.nonzero(work[VERDICT])[0].tolist():
                watch.unjudge(party.watched[place], "drafts that changed while a step was in flight")

    def dispatch(self, scheduler: Any, output: Any) -> None:
        """Replay what was decided, and hold it against the engine's counters."""
        watch = self._watch
        preempted = self._preempted(scheduler, output)
        scheduled = output.num_scheduled_tokens
        if scheduled:
            party = self._together(scheduler, scheduled)
            num_tokens = np.fromiter(scheduled.values(), np.int64, len(scheduled))
            fresh = self._fresh(output)
            drafted = output.scheduled_spec_decode_tokens
            if fresh:
                self._admit(party.watched, num_tokens, fresh, drafted)
            published = watch.published_blocks(scheduler, party.request_ids)
            verdicts, work = self._replay(party, num_tokens, drafted, published)
            if watch.view.blocks:
                self._blocks(scheduler, output, party, fresh, work, bool(verdicts & MOVES_ON))
            lives, chunks = self._content(party.watched, num_tokens, output, fresh)
            watch.in_flight.append(Dispatched(output, party, work, lives, chunks))
        if watch.view.blocks:
            for problem in watch.owners.problems():
                watch.tell_of_blocks(problem)
        if scheduled and verdicts & (DIFFERS | PUBLISHED):
            watch.accounts.explain(party.watched, work, published)
        if preempted:
            watch.accounts.compare([one for one in preempted if one.request_id not in scheduled])

    def _fresh(self, output: Any) -> set[str]:
        """Who starts, or starts again."""
        resumed = getattr(output.scheduled_cached_reqs, "resumed_req_ids", None)
        if not resumed and not output.scheduled_new_reqs:
            return _NOBODY
        return {one.req_id for one in output.scheduled_new_reqs} | set(resumed or ())

    def _together(self, scheduler: Any, scheduled: Any) -> Party:
        """The requests of a step; often those of the last one."""
        watch, request_ids = self._watch, list(scheduled)
        kept = self._party
        if kept.generation == watch.accounts.generation and kept.request_ids == request_ids:
            return kept
        several = [
            watch.watched.get(request_id) or watch.stranger(scheduler.requests[request_id])
            for request_id in request_ids
        ]
        self._party = watch.accounts.party(several)
        return self._party

    def _replay(self, party: Party, num_tokens: Any, drafted: Any, published: Any) -> tuple[int, Any]:
        """One pass over the step: what was dispatched, and what the engine says afterwards."""
        watch = self._watch
        rows, ledgers = party.rows, watch.accounts.ledgers
        num_drafts = engine_view.NOTHING
        if drafted:
            asked = [drafted.get(request_id, ()) for request_id in party.request_ids]
            num_drafts = np.fromiter(map(len, asked), np.int64, len(asked))
        numbers, drafts = engine_view.read(party.requests)
        work = np.empty((WIDTH, rows.shape[0]), np.int64)
        allowed = False
        while True:
            verdicts = ledgers.passes.dispatch(
                ledgers.table,
                ledgers.judged,
                ledgers.words,
                watch.accounts.statuses,
                rows,
                num_tokens,
                num_drafts,
                numbers,
                drafts,
                published,
                watch.tails.indices if watch.view.blocks else engine_view.NOTHING,
                work,
                allowed,
            )
            if verdicts != TOO_MANY:  # which comes alone
                break
            for place in np.nonzero(work[VERDICT])[0].tolist():
                watch.accounts.too_many(party.watched[place], int(num_tokens[place]))
            allowed = True
        watch.accounts.moved(rows, work, rows.shape[0])
        watch.accounts.told(rows, work, published)
        if verdicts & DRAFTS_DIFFER:
            self._say_of_drafts(party.watched, work, num_drafts)
        return verdicts, work

    def _preempted(self, scheduler: Any, output: Any) -> list[Watched]:
        if not output.preempted_req_ids:
            return []
        watch = self._watch
        found = []
        for request_id in sorted(output.preempted_req_ids):
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

    def _say_of_drafts(self, several: list[Watched], work: Any, found: Any) -> None:
        """A step verifies the drafts that its size says."""
        watch = self._watch
        for place in np.nonzero(work[VERDICT] & DRAFTS_DIFFER)[0].tolist():
            if several[place].judged and watch.view.counts:
                watch.accounts.tell(
                    several[place], "accounting", ("T2",), ("drafts_as_scheduled",),
                    f"a step verifies {int(found[place])} drafts, its size leaves room for "
                    f"{int(work[NUM_DRAFTS, place])}",
                )  # fmt: skip

    def _blocks(
        self, scheduler: Any, output: Any, party: Party, fresh: set[str], work: Any, moves_on: bool
    ) -> None:
        """Who owns what now, and what this step will write."""
        watch = self._watch
        cached = output.scheduled_cached_reqs
        grown = []
        if any(cached.new_block_ids):
            new = zip(cached.req_ids, cached.new_block_ids, strict=True)
            grown = [request_id for request_id, blocks in new if blocks is not None]
        for request_id in (*fresh, *grown):
            if (watched := watch.watched.get(request_id)) is not None:
                watch.owners.take(watched, engine_view.block_table(scheduler, request_id))
        size = watch.view.rules.block_size
        for place in watch.tails.suspects(party, work, moves_on):
            watched = party.watched[place]
            start, end = int(work[START, place]), int(work[END, place])
            if not watched.judged or start >= end:
                continue
            published = int(work[FIRST_BEFORE + NUM_REGISTERED_TOKENS, place])
            known = int(work[FIRST_BEFORE + NUM_TOKENS, place])
            problem = watch.owners.written(watched, start, end, published, known, size)
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
                if watched.is_stranger:
                    self._watch.shadow.forget(watched.table, start)
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

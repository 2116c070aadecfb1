"""What happens around each call of a scheduler? The events are told from its messages, replayed and judged.

A `Watch` belongs to one scheduler. It is called before and after `schedule`, `update_from_output` and
`add_request`; everything else (aborts, proposals of a drafter, resets of the prefix cache) is told from what
is different at the next call. It never changes the engine.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from draftproof.impl.attach.vllm import engine_view, versions
from draftproof.impl.attach.vllm.accounts import Accounts
from draftproof.impl.attach.vllm.blocks import Owners
from draftproof.impl.attach.vllm.content import Shadow, chain
from draftproof.impl.attach.vllm.dispatch import Dispatcher
from draftproof.impl.attach.vllm.leaving import ABORT, Leaving, published
from draftproof.impl.attach.vllm.recording import Recording
from draftproof.impl.attach.vllm.reports import ContractViolationError, Report
from draftproof.impl.attach.vllm.settings import Settings
from draftproof.impl.attach.vllm.settling import Returning, Settler
from draftproof.impl.attach.vllm.tails import Tails
from draftproof.impl.attach.vllm.watched import Dispatched, Watched
from draftproof.spec.ledger import PAUSED, RUNNING, WAITING

logger = logging.getLogger("draftproof.attach.vllm")


class Watch:
    """The checks of one scheduler."""

    def __init__(
        self, scheduler: Any, settings: Settings, report: Report, codes: dict[Any, int], *, asynchronous: bool
    ) -> None:
        self.settings, self.report, self.codes = settings, report, codes
        self.view = engine_view.view(scheduler, asynchronous=asynchronous)
        for reason in self.view.left_out:
            report.leave_out(reason)
        self.accounts = Accounts(self.view, report, codes)
        self.owners, self.tails = Owners(), Tails()
        content = settings.content and self.view.blocks and self.view.counts
        self.shadow = Shadow(self.view.rules.block_size, complete=not scheduler.requests) if content else None
        self.watched: dict[str, Watched] = {}
        self.in_flight: deque[Dispatched] = deque()
        self.dispatcher, self.settler, self.leaving = Dispatcher(self), Settler(self), Leaving(self)
        self._told = 0
        self._queues_of = engine_view.queues(scheduler)
        self._lost: frozenset[str] = frozenset()
        self.index = published(scheduler)
        self.recording = self._record(scheduler)
        for request in list(scheduler.requests.values()):
            self.stranger(request)

    def _record(self, scheduler: Any) -> Recording | None:
        """In mode `record`, a trace; if it cannot be written, one log line and no trace."""
        if self.settings.mode != "record":
            return None
        lookahead = int(getattr(scheduler, "num_lookahead_tokens", 0) or 0)
        try:
            recording = Recording(self.view, self.codes, self.settings, versions.installed(), lookahead)
        except (RuntimeError, ValueError) as error:
            self.report.leave_out("the trace")
            logger.error("draftproof: %s", error)
            return None
        self.accounts.recording = recording
        return recording

    def _flush(self) -> None:
        """A call is over."""
        if self.recording is not None:
            self.recording.flush()

    # What the engine does not tell, told from what is different.

    def stranger(self, request: Any) -> Watched:
        """A request whose beginning was not seen: its counters are not judged."""
        self.report.leave_out("counters of a request that was there before the watch, or came another way")
        watched = self._start(request)
        watched.judged = False
        watched.is_stranger = True
        return watched

    def _begin(self, scheduler: Any) -> None:
        """A call begins: what has happened since the last one?"""
        self.accounts.begin()
        self.leavers(scheduler)
        reset = getattr(scheduler, "reset_preempted_req_ids", None)
        for request_id in sorted(reset) if reset else ():
            watched = self.watched.get(request_id)
            if (
                watched is not None
                and self.accounts.is_status(watched, RUNNING)
                and self.codes[watched.request.status] != RUNNING
            ):
                self.leaving.preempt(scheduler, watched, alone=False)
        self.index = published(scheduler)
        if self.view.blocks:
            self._blocks()

    def leavers(self, scheduler: Any) -> None:
        """Requests that have gone since the last call, without an output: aborted."""
        connected = getattr(scheduler, "connector", None) is not None
        if len(self.watched) == len(scheduler.requests) and not connected:
            return  # nobody comes without `add_request`
        gone = self.watched.keys() - scheduler.requests.keys()
        if connected:
            gone |= {one.request_id for one in self.watched.values() if one.request.is_finished()}
        for request_id in sorted(gone):
            self.leaving.leave(scheduler, self.watched[request_id], "abort", ABORT)

    # Around `schedule`.

    def before_schedule(self, scheduler: Any) -> None:
        """The engine is about to decide a step."""
        self._begin(scheduler)
        self.dispatcher.propose(scheduler)

    def after_schedule(self, scheduler: Any, output: Any) -> None:
        """The engine has decided a step."""
        self.accounts.step += 1
        self.report.count("steps")
        self.dispatcher.dispatch(scheduler, output)
        due = self.accounts.step % self.settings.sweep_interval == 0
        self._queues(scheduler, thoroughly=due)
        if due:
            self.sweep(scheduler)
        self._flush()

    # Around `update_from_output`.

    def before_update(self, scheduler: Any, output: Any, brought: Any) -> Returning:
        """A step has returned, and the engine has not seen it yet: so far the step's content is judged."""
        self._begin(scheduler)
        if engine_view.has_failed_loads(brought):
            for watched in self.watched.values():
                if watched.judged:
                    self.unjudge(watched, "requests that were there when KV from outside did not come")
        return self.settler.returning(output, brought)

    def after_update(self, scheduler: Any, returning: Returning, results: Any) -> None:
        """The engine has settled a step."""
        if returning.step is not None:
            self.settler.settle(scheduler, returning, results or {})
        self.leavers(scheduler)
        self._queues(scheduler)
        if self.view.blocks:
            self._blocks()
        self._flush()

    # Around `add_request`.

    def before_add(self, scheduler: Any, request: Any) -> bool:
        """A request, or a session's next chunk, is about to arrive. Whether a session waits for it."""
        self._begin(scheduler)
        there = scheduler.requests.get(request.request_id)
        return there is not None and self.codes[there.status] == PAUSED

    def after_add(self, scheduler: Any, request: Any, *, awaited: bool) -> None:
        """It has arrived."""
        there = scheduler.requests.get(request.request_id)
        watched = self.watched.get(request.request_id)
        if watched is not None and watched.request is not there:
            self.leaving.leave(scheduler, watched, "abort", ABORT)
            watched = None
        if there is not None and watched is None:
            if there is request and self._begins(request):
                watched = self._start(request)
                if self.recording is not None and watched.judged:
                    self.recording.arrive(watched, request.num_prompt_tokens, self.accounts.step)
            else:
                self.stranger(there)
        elif watched is not None and awaited:
            self.fold(watched, len(request.prompt_token_ids or ()))
            self.accounts.compare([watched])
        self._queues(scheduler)
        self._flush()

    def _begins(self, request: Any) -> bool:
        """Whether nothing has happened to the request yet."""
        nothing = request.num_computed_tokens == 0 and not request.num_output_tokens
        return nothing and self.codes[request.status] == WAITING

    def _start(self, request: Any) -> Watched:
        watched = self.accounts.start(request)
        if getattr(request, "pooling_params", None) is not None:
            self.unjudge(watched, "counters of a pooling request")
        if self.shadow is not None:
            watched.start_digest = hash((request.cache_salt, str(getattr(request, "lora_request", None))))
            watched.digests = chain(watched.start_digest, engine_view.tokens(request))
        self.watched[request.request_id] = watched
        return watched

    def fold(self, watched: Watched, num_chunk_tokens: int) -> None:
        """A session's next chunk has been appended."""
        self.accounts.move("fold", [watched], num_chunk_tokens)
        if self.view.counts:
            self.accounts.forbid(watched)
        if self.shadow is None:
            return
        # The engine's own idea of its tokens, also where it is wrong: that is what its slots are read as.
        keep = max(0, min(len(watched.digests), watched.request.num_tokens - num_chunk_tokens))
        del watched.digests[keep:]
        if watched.life is not None:
            watched.life.num_verified = min(watched.life.num_verified, keep)
        last = watched.digests[-1] if watched.digests else watched.start_digest
        watched.digests += chain(last, engine_view.tokens(watched.request, keep))

    def _queues(self, scheduler: Any, *, thoroughly: bool = False) -> None:
        """One queue per live request. Usually it is enough to count."""
        lengths = sum(map(len, self._queues_of(scheduler)))
        if lengths == len(scheduler.requests) and not thoroughly:
            self._lost = frozenset()
            return
        places: dict[str, int] = {}
        for request in engine_view.queued(scheduler):
            places[request.request_id] = places.get(request.request_id, 0) + 1
        wrong = {
            request_id
            for request_id, request in scheduler.requests.items()
            if places.get(request_id, 0) != 1 and not request.is_finished()
        }
        for request_id in sorted(wrong - self._lost):
            if (watched := self.watched.get(request_id)) is not None:
                self.accounts.tell(
                    watched, "queues", ("T6",), ("live_request_is_in_one_queue",),
                    f"a live request is in {places.get(request_id, 0)} queues",
                )  # fmt: skip
        self._lost = frozenset(wrong)

    def _blocks(self) -> None:
        for problem in self.owners.problems():
            self.tell_of_blocks(problem)

    def tell_of_blocks(self, problem: Any, watched: Watched | None = None) -> None:
        """Report a problem of a block, and of nobody if its owner is not known."""
        about = watched or next(iter(self.watched.values()), None)
        if about is not None:
            self.accounts.tell(about, "blocks", (problem.theorem,), (problem.rule,), problem.message)

    def sweep(self, scheduler: Any) -> None:
        """Compare everything with everything."""
        self.accounts.compare(list(self.watched.values()))
        if self.view.blocks:
            for problem in self.owners.sweep(scheduler, self.watched.values()):
                self.tell_of_blocks(problem)

    def published_blocks(self, scheduler: Any, request_ids: list[str]) -> Any:
        """How many blocks the engine has published for each: int64[n], or of length 0 without a cache."""
        if not self.view.caching:
            return engine_view.NOTHING
        return engine_view.num_registered_blocks(scheduler, request_ids)

    def unjudge(self, watched: Watched, reason: str) -> None:
        """From now on this request's counters are not judged."""
        if watched.judged:
            watched.judged = False
            self.report.leave_out(reason)

    def raise_if_asked(self) -> None:
        """In mode `raise`: raise what was found since the last question."""
        if self.settings.mode != "raise":
            return
        found = self.report.total("violations")
        new, self._told = found - self._told, found
        if new > 0:
            raise ContractViolationError(str(self.report.violations[-new]))

"""A scheduler with the truth beside it: every call is made on both, and compared at once.

The truth is a `Request` for each request and one `Device` for the KV memory. Neither knows how a scheduler
decides what to run: they are told what it decided, and say whether it may, what the counters must be then,
and whether every slot that is read holds the right KV. AssertionError where anything differs (`agreement`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
from tests.impl import agreement
from tests.impl.device import Device, Row
from tests.impl.findable import Exit
from tests.impl.request_truth import Choices, Request, Turn, Words, rules_of
from tests.impl.service_order import ServiceOrder

from draftproof.impl.scheduler import layout
from draftproof.impl.scheduler.batch import (
    NUM_COPIES,
    NUM_FINISHED,
    NUM_PAUSED,
    NUM_PREEMPTED,
    RUNNING,
    Batch,
)
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.errors import RequestError
from draftproof.impl.scheduler.requests import check_fits
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.spec import ledger as status
from draftproof.spec import tokens
from draftproof.spec.events import Abort, EndTurn, Finish

IDLE = (status.WAITING, status.PAUSED)
"""A session may hold KV without running."""


class WatchedScheduler:
    """Makes every call on a scheduler and on the truth, and compares."""

    def __init__(
        self,
        config: SchedulerConfig,
        scheduler: Scheduler | None = None,
        *,
        checks: bool = True,
        acceptance_percent: int | None = None,
    ) -> None:
        self.config = config
        self.rules = rules_of(config)
        self.scheduler = scheduler or Scheduler(config, compiled=False)
        self.device = Device(config)
        self.order = ServiceOrder(config.policy == "priority")
        self.requests: dict[str, Request] = {}
        """Those that are known, by id."""
        self.by_row: dict[int, Request] = {}
        """Those that have a row: finished ones too, until their last step has returned."""
        self.steps: deque[tuple[Batch, list[Request]]] = deque()
        """In flight."""
        self.num_run = 0
        """How many of the steps in flight the device has run already."""
        self.num_steps = 0
        self.exits: list[Exit] = []
        """Since this was emptied."""
        self.seen: Counter[str] = Counter()
        """How often which kind of thing has happened: tests say what must have."""
        self.checks = checks
        self.acceptance_percent = acceptance_percent
        self.digests: dict[int, tuple[int, int]] = {}
        """Of prefixes of whole blocks, as `agreement` works them out."""

    # ---- requests ----

    def add(
        self,
        request_id: str,
        token_ids: Sequence[int],
        words: Words,
        *,
        max_tokens: int = 16,
        min_tokens: int = 0,
        stop_token_ids: Sequence[int] = (),
        eos_token_id: int | None = None,
        resumable: bool = False,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Request:
        """See `Scheduler.add`."""
        row = self.scheduler.add(
            request_id,
            token_ids,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=stop_token_ids,
            eos_token_id=eos_token_id,
            resumable=resumable,
            priority=priority,
            cache_salt=cache_salt,
        )
        assert row not in self.by_row, f"row {row} was given out while it is in use"
        stops = frozenset(stop_token_ids) | (frozenset() if eos_token_id is None else {eos_token_id})
        request = Request(
            config=self.config,
            rules=self.rules,
            known_prefixes=self.device.prefixes,
            number=int(self.scheduler.state.counts[layout.NUM_ARRIVED]),
            request_id=request_id,
            row=row,
            salt=cache_salt,
            priority=priority,
            stop_token_ids=stops,
            resumable=resumable,
            words=words,
            reference=tokens.start(len(token_ids)),
            max_num_tokens=0,
            min_num_tokens=0,
            acceptance_percent=self.acceptance_percent,
        )
        request.learns(token_ids)
        request.limit(max_tokens, min_tokens)
        self.requests[request_id] = self.by_row[row] = request
        self.order.arrives(request)
        self.check()
        return request

    def append_chunk(
        self, request_id: str, token_ids: Sequence[int], *, max_tokens: int = 16, min_tokens: int = 0
    ) -> None:
        """See `Scheduler.append_chunk`."""
        request = self.requests[request_id]
        self.scheduler.append_chunk(request_id, token_ids, max_tokens=max_tokens, min_tokens=min_tokens)
        request.turns.append(Turn(tuple(token_ids), max_tokens, min_tokens))
        if request.ledger.status == status.PAUSED:
            request.next_turn()
            self.order.goes_on(request)
        self.check()

    def close_session(self, request_id: str) -> None:
        """See `Scheduler.close_session`."""
        request = self.requests[request_id]
        self.scheduler.close_session(request_id)
        if request.turns:
            request.closing = True
        elif request.ledger.status == status.PAUSED:
            self._leaves("abort", request)
        else:
            request.resumable = False
        self.check()

    def abort(self, request_id: str) -> None:
        """See `Scheduler.abort`."""
        self.scheduler.abort(request_id)
        self._leaves("abort", self.requests[request_id])
        self.check()

    # ---- steps ----

    def can_schedule(self) -> bool:
        """Whether one step more may be in flight."""
        return len(self.steps) < self.config.max_in_flight_steps

    def schedule(self, choices: Choices) -> Batch:
        """The next step. What the model will answer is chosen now; the device runs it later."""
        before = int(self.scheduler.state.counts[layout.TOTAL_PREEMPTIONS])
        batch = self.scheduler.schedule()
        preempted = batch.preempted[: batch.counts[NUM_PREEMPTED]].tolist()
        for row in preempted:
            self.by_row[row].is_preempted(self.config.drop_stale_output)
            # Idle sessions have given their KV up before, so that nobody waits with any.
            self.order.running.remove(self.by_row[row])
            self.order.wait(self.by_row[row], 0)
        after = int(self.scheduler.state.counts[layout.TOTAL_PREEMPTIONS])
        self.seen["preempted"] += len(preempted)
        requests = [self.by_row[row] for row in batch.rows[: batch.num_requests].tolist()]
        num_reclaimed = after - before - len(preempted)
        for one in agreement.idle_sessions_without_kv(self, batch, requests, num_reclaimed):
            one.is_preempted(self.config.drop_stale_output)
        self.seen["idle session gave its KV up"] += num_reclaimed
        rows = [self._dispatched(batch, index, one, choices) for index, one in enumerate(requests)]
        if requests:
            agreement.check_batch(self, batch, requests)
            copies = batch.copies[:, : batch.counts[NUM_COPIES]].T.tolist()
            self.seen["copy"] += len(copies)
            self.seen["pruned"] += any(0 in table for row in rows for table in row.block_tables)
            self.device.dispatch(rows, [(source, target) for source, target in copies])
            self.steps.append((batch, requests))
            self.num_steps += 1
            self.seen["step"] += 1
        self.check()
        return batch

    def run_device(self) -> None:
        """The device runs the oldest step that it has not run."""
        self.device.run()
        self.num_run += 1

    def settle(self) -> Batch:
        """The oldest step returns."""
        if self.num_run == 0:
            self.run_device()
        self.num_run -= 1
        batch, requests = self.steps.popleft()
        width = 1 + self.config.num_speculative_tokens
        sampled = np.full((len(requests), width), self.config.vocab_size - 1, np.int32)
        counts = np.zeros(len(requests), np.int32)
        for index, request in enumerate(requests):
            generated = request.in_flight[0].generated
            sampled[index, : len(generated)] = generated
            counts[index] = len(generated)
        self.scheduler.settle(batch, sampled, counts)
        stopped: list[int] = []
        for index, request in enumerate(requests):
            late, num_generated = request.ledger.num_stale_tokens > 0, len(request.in_flight[0].generated)
            num_kept, reason = request.returns()
            self.seen["late output delivered"] += late and num_kept > 0
            self.seen["late output dropped"] += late and num_kept < num_generated
            self.seen["late output stops"] += late and reason > 0
            self.seen["stop inside an accepted run"] += not late and 0 < num_kept < num_generated
            assert batch.num_kept_tokens[index] == num_kept, (
                f"{request.request_id}: {batch.num_kept_tokens[index]} tokens are kept, must be {num_kept}"
            )
            assert batch.finish_reason[index] == reason, (
                f"{request.request_id}: reason {batch.finish_reason[index]} for its stop, must be {reason}"
            )
            if reason:
                stopped.append(request.row)
        self._stopped(batch, stopped)
        for request in requests:
            self._retires(request)
        self.check()
        return batch

    def propose(self, rows: Sequence[int], proposals: Sequence[list[int]]) -> None:
        """The drafter proposes, also for rows that cannot use it."""
        width = self.config.num_speculative_tokens
        table = np.zeros((len(rows), width), np.int32)
        for index, proposal in enumerate(proposals):
            table[index, : len(proposal)] = proposal
        counts = np.array([len(one) for one in proposals], np.int32)
        self.scheduler.take_drafts(np.array(rows, np.int32), table, counts)
        for row, proposal in zip(rows, proposals, strict=True):
            if row in self.by_row:
                self.by_row[row].proposed(proposal)
        self.check()

    def fail(self) -> None:
        """The oldest step, and all after it, will never return."""
        names = self.scheduler.fail(self.steps[0][0])
        self.seen["steps lost"] += len(self.steps)
        self.device.fail()
        self.num_run = 0
        expected, first_lost = [], self.num_steps - len(self.steps)
        for _, requests in self.steps:
            for request in requests:
                if request.ledger.status == status.RUNNING:
                    if request.first_step < first_lost:  # else it may have hit what was never computed
                        self._exits("failed step", request)
                    request.is_preempted(True)
                    expected.append(request.request_id)
        assert sorted(names) == sorted(expected), f"{names} start over, must be {expected}"
        for name in names:
            self.order.is_preempted(self.requests[name])
        for _, requests in self.steps:
            for request in requests:
                request.never_returns()
                self._retires(request)
        self.steps.clear()
        self.check()

    def reset_prefix_cache(self, preempt_running: bool) -> bool:
        """See `Scheduler.reset_prefix_cache`."""
        done = self.scheduler.reset_prefix_cache(preempt_running=preempt_running)
        if preempt_running:
            for request in self.order.running[::-1]:
                request.is_preempted(True)
                self.order.is_preempted(request)
            for request in self.by_row.values():
                if request.ledger.status in IDLE and request.ledger.num_computed_tokens > 0:
                    request.is_preempted(self.config.drop_stale_output)
        held = [one.request_id for one in self.requests.values() if one.ledger.num_computed_tokens > 0]
        assert done == (not held), f"the reset says {done}, and {held} hold blocks"
        if done:
            while self.device.num_steps():
                self.run_device()
            self.device.forget()
            found = agreement.published_blocks(self)
            assert not found, f"blocks {found} are published after a reset"
        self.check()
        return done

    def check(self) -> None:
        """Compare everything."""
        if self.checks:
            agreement.check_all(self)

    # ---- inside ----

    def _dispatched(self, batch: Batch, index: int, request: Request, choices: Choices) -> Row:
        first, num_tokens = int(batch.num_computed_tokens[index]), int(batch.num_scheduled_tokens[index])
        starts = batch.kind[index] != RUNNING
        if starts:
            self.order.starts(request)
            self.seen["hit"] += first > 0 and request.ledger.num_computed_tokens == 0
            self.seen["padded"] += int(batch.num_draft_tokens[index]) > 0
            request.starts(first, int(batch.num_draft_tokens[index]))
            request.first_step = self.num_steps
        before = request.ledger
        agreement.check_row(batch, index, request)
        host = tuple(request.prefixes)
        answer = request.dispatched(num_tokens, choices)
        agreement.check_answer(batch, index, request, answer)
        tables, row = self.scheduler.state.tables, request.row
        held = tables.num_blocks[:, row].tolist()
        return Row(
            name=f"request {request.request_id!r} in step {self.num_steps}",
            request=request.number,
            starts=starts,
            first=first,
            num_placeholders=before.num_output_placeholders,
            num_tokens=num_tokens,
            num_drafts=answer.num_drafts,
            source_slot=int(batch.source_slot[index]),
            root=self.device.prefixes.root(request.salt),
            host=host,
            block_tables=[tables.block_ids[group, row, :count].tolist() for group, count in enumerate(held)],
            generated=answer.generated,
        )

    def _stopped(self, batch: Batch, stopped: Sequence[int]) -> None:
        """Requests whose stop fired finish, or their turn ends and the next chunk is folded in."""
        finished, paused = [], []
        for row in stopped:
            request = self.by_row[row]
            if request.resumable:
                self.seen["turn ends while preempted"] += request.ledger.status == status.PREEMPTED
                request.happens(EndTurn())
                self.order.leaves(request)
                self._exits("end of turn", request)
                paused.append(row)
                if request.turns and not self._next_turn(request):
                    finished.append(row)
            else:
                self._leaves("finish", request)
                finished.append(row)
        told = batch.finished[: batch.counts[NUM_FINISHED]].tolist()
        assert sorted(told) == sorted(finished), f"rows {told} finished, must be {finished}"
        told = batch.paused[: batch.counts[NUM_PAUSED]].tolist()
        assert sorted(told) == sorted(paused), f"rows {told} pause, must be {paused}"

    def _next_turn(self, request: Request) -> bool:
        """The session goes on; false if it has become too long for its next chunk, and leaves."""
        turn = request.turns[0]
        try:
            check_fits(self.config, len(request.token_ids) - 1 + len(turn.token_ids), turn.max_tokens)
        except RequestError:
            self._leaves("abort", request)
            return False
        request.next_turn()
        self.order.goes_on(request)
        self.seen["next turn"] += 1
        return True

    def _leaves(self, kind: str, request: Request) -> None:
        """The request finishes, or is aborted."""
        self._exits(kind, request)
        self.order.leaves(request)
        self.seen[kind] += 1
        request.happens(Finish() if kind == "finish" else Abort())
        del self.requests[request.request_id]
        self._retires(request)

    def _exits(self, kind: str, request: Request) -> None:
        """What is settled must be findable now."""
        settled = request.num_settled_tokens
        self.exits.append(Exit(kind, tuple(request.token_ids), request.salt, settled))

    def _retires(self, request: Request) -> None:
        """Once its last step has returned the row is unused."""
        if request.is_over:
            self.by_row.pop(request.row, None)

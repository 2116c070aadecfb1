"""The scheduler, as Python sees it: requests by id, errors in words, arrays for the runner.

```python
scheduler = Scheduler(SchedulerConfig(max_model_len=4096, num_blocks=2000, num_speculative_tokens=3))
scheduler.add("a", prompt_token_ids, max_tokens=100)
while scheduler.has_unfinished_requests():
    batch = scheduler.schedule()
    if batch.num_requests == 0:
        continue
    sampled_token_ids, num_sampled = run(batch)  # the model
    scheduler.settle(batch, sampled_token_ids, num_sampled)
    scheduler.take_drafts(batch.rows[: batch.num_requests], draft_token_ids, num_drafts)
```

Asynchronously a step is scheduled before the last one has been settled; steps are settled in order. All
state is in two arrays (`layout`), all work is done by functions that also run compiled; nothing here counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from draftproof.impl.contracts import DEBUG, MIDDLE
from draftproof.impl.ledger_table import NUM_TOKENS, STATUS
from draftproof.impl.scheduler import lifecycle, settle
from draftproof.impl.scheduler.batch import (
    NUM_FINISHED,
    NUM_PAUSED,
    NUM_PREEMPTED,
    STEP_MASK,
    Batch,
    batch_size,
    batch_views,
)
from draftproof.impl.scheduler.calls import Calls, CompiledCalls, InterpretedCalls
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.errors import OutcomeError, RequestError, StepError
from draftproof.impl.scheduler.kv_events import KVEventBatch, read
from draftproof.impl.scheduler.layout import (
    NUM_DISPATCHED,
    NUM_RUNNING,
    NUM_SETTLED,
    NUM_WAITING,
    views,
)
from draftproof.impl.scheduler.memory import new_memory, salt_words, settings_for
from draftproof.impl.scheduler.outcome import error_of, int32_array
from draftproof.impl.scheduler.requests import (
    Chunk,
    check_chunk,
    check_fits,
    check_request,
    check_salt,
    tokens_of,
)
from draftproof.spec.ledger import PAUSED


class Scheduler:
    """Continuous batching with speculative decoding and a prefix cache over the proven accounting.

    `compiled=False` interprets the same source, for debugging; with `DRAFTPROOF_DEBUG=1` that is the
    default, and every transition is checked against its contract. There, in the middle mode, and with
    `check_every`, it checks itself (`draftproof.impl.scheduler.debug`).
    """

    def __new__(cls, *arguments: Any, check_every: int | None = None, **options: Any) -> Scheduler:
        """A scheduler that checks itself, where it is asked for."""
        if cls is Scheduler and (DEBUG or MIDDLE or check_every is not None):
            from draftproof.impl.scheduler.debug import SelfCheckingScheduler

            return object.__new__(SelfCheckingScheduler)
        return super().__new__(cls)

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        compiled: bool = not DEBUG,
        num_kv_events: int = 0,
        check_every: int | None = None,
    ) -> None:
        self.config = config
        self.is_compiled = compiled
        self.settings = settings_for(config, num_kv_events)
        self.memory = new_memory(config, self.settings)
        self.state = views(*self.memory)
        """The named arrays; to be read, not written."""
        # One batch more than may be in flight: the one settled last stays readable while the next is filled.
        # The last is no step: it reports which rows a reset or a failed step preempted.
        size = batch_size(self.settings)
        memories = [np.zeros(size, np.int32) for _ in range(config.max_in_flight_steps + 2)]
        self._batches = [batch_views(memory, self.settings) for memory in memories]
        self._report = len(memories) - 1
        self._places = {id(batch): place for place, batch in enumerate(self._batches)}
        calls = CompiledCalls if compiled else InterpretedCalls
        self._calls: Calls = calls(self.memory, memories, self.settings)
        self._converts = not compiled
        """Whether what a runner hands in is made int32 arrays before it is used."""
        self._counts = memoryview(self.state.counts)  # gives Python integers
        self.rows: dict[str, int] = {}
        """The row of every request that is known and has not finished, by id."""
        self.request_ids: list[str] = [""] * config.max_num_requests
        """The id of every row's request; of a finished one until the row is used again."""
        self._chunks: dict[int, deque[Chunk]] = {}
        """By row: chunks that wait for the end of a turn."""
        self._closing: set[int] = set()
        """Sessions that finish once their last chunk has been answered."""

    # ---- requests ----

    def add(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int] | Any,
        *,
        max_tokens: int = 16,
        min_tokens: int = 0,
        stop_token_ids: Sequence[int] = (),
        eos_token_id: int | None = None,
        ignore_eos: bool = False,
        resumable: bool = False,
        priority: int = 0,
        cache_salt: str = "",
    ) -> int:
        """Let a request wait for its first step; returns its row.

        `resumable` opens a session: a stop ends its turn, and `append_chunk` starts the next one. Raises
        RequestError for what cannot be served, with the reason.
        """
        if not isinstance(request_id, str):
            raise RequestError(f"a request's id must be a string, got {request_id!r}")
        if request_id in self.rows:
            raise RequestError(f"request {request_id!r} is known already: choose another id")
        request = check_request(
            self.config,
            token_ids=prompt_token_ids,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=stop_token_ids,
            eos_token_id=eos_token_id,
            ignore_eos=ignore_eos,
            resumable=resumable,
            priority=priority,
            cache_salt=cache_salt,
        )
        parameters = np.zeros(lifecycle.NUM_PARAMETERS, np.int64)
        parameters[lifecycle.MAX_TOKENS] = request.max_tokens
        parameters[lifecycle.MIN_TOKENS] = request.min_tokens
        parameters[lifecycle.EOS_TOKEN_ID] = request.eos_token_id
        parameters[lifecycle.RESUMABLE] = request.resumable
        parameters[lifecycle.PRIORITY] = request.priority
        salt = salt_words(self.settings.key_first, self.settings.key_second, request.cache_salt)
        parameters[lifecycle.SALT_FIRST], parameters[lifecycle.SALT_SECOND] = salt
        row: int = self._calls.add_row(request.token_ids, parameters, request.stop_token_ids)
        if row < 0:
            raise RequestError(
                f"all max_num_requests={self.config.max_num_requests} rows are in use: let some finish, "
                "or raise it in the configuration"
            )
        self.rows[request_id] = row
        self.request_ids[row] = request_id
        return row

    def append_chunk(
        self,
        request_id: str,
        token_ids: Sequence[int] | Any,
        *,
        max_tokens: int = 16,
        min_tokens: int = 0,
        stop_token_ids: Sequence[int] | None = None,
        eos_token_id: int | None = None,
        ignore_eos: bool = False,
    ) -> None:
        """The next input of a session. Several may be appended; each waits for the end of the turn before.

        Without `stop_token_ids` what stopped the turns before stops this one; with them, this and
        `eos_token_id` say it anew, from this turn on.

        Raises RequestError for an unknown id, a request that is no session, an empty chunk, or one that
        does not fit behind what the session knows. A chunk that waits and no longer fits when its turn comes,
        because more was generated than its room allowed, ends the session with the reason `length`.
        """
        row = self._row_of(request_id)
        self._check_session(row, request_id)
        chunk = check_chunk(
            self.config,
            token_ids,
            max_tokens,
            min_tokens,
            stop_token_ids=stop_token_ids,
            eos_token_id=eos_token_id,
            ignore_eos=ignore_eos,
        )
        waiting = self._chunks.setdefault(row, deque())
        num_known = int(self.state.requests.ledgers[NUM_TOKENS, row])
        num_known += sum(one.token_ids.size - 1 for one in waiting)
        check_fits(self.config, num_known - 1 + chunk.token_ids.size, chunk.max_tokens)
        if waiting or self.state.requests.ledgers[STATUS, row] != PAUSED:
            waiting.append(chunk)
        else:
            self._fold(row, chunk)

    def close_session(self, request_id: str) -> None:
        """No more chunks will come: a paused session leaves now, any other finishes with its turn.

        Chunks that wait are answered first. Raises RequestError for an unknown id, or one of no session.
        """
        row = self._row_of(request_id)
        self._check_session(row, request_id)
        if self._chunks.get(row):
            self._closing.add(row)
        elif self.state.requests.ledgers[STATUS, row] == PAUSED:
            self.abort(request_id)
        else:
            self.state.requests.resumable[row] = 0

    def abort(self, request_id: str) -> None:
        """The request leaves now; what of it is still in flight is dropped. Raises RequestError."""
        row = self._row_of(request_id)
        self._calls.abort_row(row)
        self._forget(row)

    def has_unfinished_requests(self) -> bool:
        """Whether any request runs or waits, or a step is in flight; a paused session does neither."""
        num_busy = self._counts[NUM_RUNNING] + self._counts[NUM_WAITING]
        return bool(num_busy > 0) or self.num_in_flight_steps() > 0

    def num_in_flight_steps(self) -> int:
        """Steps dispatched and not settled."""
        return int(self._counts[NUM_DISPATCHED] - self._counts[NUM_SETTLED])

    # ---- steps ----

    def schedule(self) -> Batch:
        """The next step. An empty one (`num_requests` 0) is not dispatched, and not to be settled; there may
        be one although requests run, after a preemption or while all await their last output.

        Raises StepError when `max_in_flight_steps` wait to be settled.
        """
        num_dispatched = self._counts[NUM_DISPATCHED]
        if num_dispatched - self._counts[NUM_SETTLED] >= self.config.max_in_flight_steps:
            raise StepError(
                f"max_in_flight_steps={self.config.max_in_flight_steps} steps are in flight: settle the "
                "oldest one first"
            )
        place = self._place(num_dispatched)
        self._calls.schedule_step(place)
        return self._batches[place]

    def settle(self, batch: Batch, sampled_token_ids: Any, num_sampled_tokens: Any) -> None:
        """A step has returned. `sampled_token_ids`: int32[requests, >= 1 + K], for each row of the batch the
        accepted drafts and the token sampled after them; `num_sampled_tokens`: int32[requests], how many
        these are, 0 for a row that did not sample.

        Afterwards the batch says what became of it: `num_kept_tokens` of each row, and the rows that
        `finished` or `paused`. Raises StepError for a step that is not the oldest in flight, OutcomeError
        for an outcome that does not fit it; then nothing has changed.
        """
        place = self._place_of(batch)
        found, (sampled, num_sampled) = self._with_arrays(
            partial(self._calls.settle_step, place), (sampled_token_ids, num_sampled_tokens), (2, 1)
        )
        problem, index = found
        if problem != settle.ACCEPTED:
            raise error_of(
                problem, index, batch, sampled, num_sampled, self.request_ids, self.config.vocab_size
            )
        if index > 0:  # that many requests stopped
            self._after_stops(batch)

    def take_drafts(self, rows: Any, draft_token_ids: Any, num_draft_tokens: Any) -> None:
        """The drafter's proposals for the next step: int32[m] rows, int32[m, >= K] tokens, int32[m] counts.

        A token of -1 is one that a grammar ruled out. Rows that cannot use drafts now are passed over.
        Raises OutcomeError for a row or token that cannot be; then nothing has changed.
        """
        index, arrays = self._with_arrays(
            self._calls.take_drafts, (rows, draft_token_ids, num_draft_tokens), (1, 2, 1)
        )
        if index >= 0:
            if index == arrays[0].shape[0]:
                raise OutcomeError("drafts need a row of tokens and a count for each request")
            raise OutcomeError(
                f"the drafts of row {arrays[0][index]} cannot be: {arrays[2][index]} drafts, tokens "
                f"{arrays[1][index].tolist()}"
            )

    def fail(self, batch: Batch) -> list[str]:
        """The step will never return: it and all steps dispatched after it are given up.

        What was published since it was dispatched is withdrawn, then its requests give their blocks back and
        start over; returns their ids. Raises StepError for a step that is not the oldest in flight.
        """
        self._place_of(batch)
        oldest, end = self._counts[NUM_SETTLED], self._counts[NUM_DISPATCHED]
        if batch.num_requests == 0 or oldest == end or batch.step != oldest & STEP_MASK:
            raise StepError(f"step {batch.step} is not the oldest in flight: settle the ones before it first")
        places = [self._place(step) for step in range(oldest, end)]
        report = self._batches[self._report]
        report.counts[:] = 0
        for place in places:
            self._calls.withdraw_step(place)
        for place in reversed(places):
            self._calls.give_up_step(place, self._report)
        for place in places:
            self._calls.drop_step(place)
        return [self.request_ids[row] for row in report.preempted[: report.counts[NUM_PREEMPTED]]]

    # ---- the prefix cache ----

    def num_cached_tokens(self, token_ids: Sequence[int] | Any, cache_salt: str = "") -> int:
        """How many tokens a request with this prompt would find in the cache if it started now.

        Raises RequestError for tokens that cannot be a prompt, or when every row is in use.
        """
        tokens = tokens_of(token_ids, "the prompt", self.config.vocab_size)
        if tokens.size > self.config.max_model_len:
            raise RequestError(
                f"{tokens.size} tokens are more than max_model_len={self.config.max_model_len}"
            )
        check_salt(cache_salt)
        salt = salt_words(self.settings.key_first, self.settings.key_second, cache_salt)
        found = self._calls.num_cached_tokens(tokens, *salt)
        if found < 0:
            raise RequestError("every row is in use: none is left to look up with")
        return int(found)

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> bool:
        """Forget all cached KV, as after a change of weights. Returns whether it was done.

        It is not while requests hold blocks, unless `preempt_running`: then the running ones start over,
        what they have in flight is dropped, and idle sessions give their KV up.
        """
        if preempt_running:
            self._batches[self._report].counts[:] = 0
            self._calls.preempt_all(self._report)
        held = self.state.tables.num_blocks[:, list(self.rows.values())] if self.rows else np.zeros(0)
        if held.any():
            return False
        self._calls.clear_cache()
        return True

    def read_kv_events(self) -> KVEventBatch:
        """What the prefix cache stored, removed and cleared since the last reading, for routers.

        Raises StepError without a stream: give the scheduler `num_kv_events`.
        """
        if self.settings.num_kv_events == 0:
            raise StepError("there is no stream of KV events: make the scheduler with num_kv_events")
        return read(self.state.kv_events)

    # ---- inside ----

    def batch_of(self, step: int) -> Batch:
        """The batch of a step in flight."""
        return self._batches[self._place(step)]

    def rows_with_chunks(self) -> set[int]:
        """Rows of the sessions for which chunks wait."""
        return {row for row, chunks in self._chunks.items() if chunks}

    def _with_arrays(
        self, call: Callable[..., Any], given: tuple[Any, ...], dimensions: tuple[int, ...]
    ) -> tuple[Any, tuple[Any, ...]]:
        """What the call returns for int32 arrays, and these arrays.

        Compiled code takes such arrays only. It says so itself, so they are not looked at before; but that
        takes it a tenth of a millisecond, so where anything else came once, it is converted from then on.
        """
        if not self._converts:
            try:
                return call(*given), given
            except (TypeError, ValueError):
                self._converts = True
        arrays = tuple(int32_array(one, ndim) for one, ndim in zip(given, dimensions, strict=True))
        return call(*arrays), arrays

    def _place(self, step: int) -> int:
        """Where a step's batch is in the ring."""
        return step % self._report

    def _place_of(self, batch: Batch) -> int:
        """The place of a batch that was handed out by this scheduler."""
        place = self._places.get(id(batch))
        if place is None:
            raise StepError("this batch is not one of this scheduler's")
        return place

    def _row_of(self, request_id: str) -> int:
        row = self.rows.get(request_id) if isinstance(request_id, str) else None
        if row is None:
            raise RequestError(f"request {request_id!r} is not known, or has finished")
        return row

    def _check_session(self, row: int, request_id: str) -> None:
        """The row's request takes further chunks."""
        if row in self._closing:
            raise RequestError(f"session {request_id!r} has been closed")
        if self.state.requests.resumable[row] == 0:
            raise RequestError(
                f"request {request_id!r} is no session, or has been closed: add it with resumable=True"
            )

    def _forget(self, row: int) -> None:
        """The row's request has finished: its id may be used again."""
        self.rows.pop(self.request_ids[row], None)
        self._chunks.pop(row, None)
        self._closing.discard(row)

    def _after_stops(self, batch: Batch) -> None:
        """Ids of finished requests are free again; paused sessions take their next chunk."""
        for row in batch.finished[: batch.counts[NUM_FINISHED]].tolist():
            self._forget(row)
        for row in batch.paused[: batch.counts[NUM_PAUSED]].tolist():
            waiting = self._chunks.get(row)
            if waiting:
                self._next_turn(batch, row, waiting)

    def _next_turn(self, batch: Batch, row: int, waiting: deque[Chunk]) -> None:
        """Fold the next chunk in; a session that has become too long for it finishes instead."""
        chunk = waiting.popleft()
        try:
            self._fold(row, chunk)
        except RequestError:
            self._calls.abort_row(row)
            self.state.requests.finish_reason[row] = settle.LENGTH
            batch.finished[batch.counts[NUM_FINISHED]] = row
            batch.counts[NUM_FINISHED] += 1
            self._forget(row)
            return
        if not waiting and row in self._closing:
            self.state.requests.resumable[row] = 0

    def _fold(self, row: int, chunk: Chunk) -> None:
        num_kept = int(self.state.requests.ledgers[NUM_TOKENS, row]) - 1
        check_fits(self.config, num_kept + chunk.token_ids.size, chunk.max_tokens)
        if chunk.stops is not None:
            requests, (stop_token_ids, eos_token_id) = self.state.requests, chunk.stops
            requests.stop_token_ids[row, : stop_token_ids.size] = stop_token_ids
            requests.num_stop_token_ids[row] = stop_token_ids.size
            requests.eos_token_id[row] = eos_token_id
        self._calls.fold_row(row, chunk.token_ids, chunk.max_tokens, chunk.min_tokens)

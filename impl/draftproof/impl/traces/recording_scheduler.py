"""How is a run of our own scheduler recorded? By looking at its ledgers before and after each call.

`RecordingScheduler` is a `Scheduler` that writes a trace. It touches nothing of the compiled code: what a
call did to a request follows from its batch and from the request's counters on both sides of the call. Where
a call does several things to a request, only the last event tells the counters: nobody saw those in between.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draftproof.impl.ledger_table import (
    DROP_STALE,
    NUM_COMPUTED_TOKENS,
    NUM_DRAFT_TOKENS,
    NUM_FIELDS,
    NUM_REGISTERED_AT_PREEMPTION,
    NUM_REGISTERED_TOKENS,
    NUM_STALE_TOKENS,
    NUM_TOKENS,
    STATUS,
)
from draftproof.impl.scheduler.batch import NUM_FINISHED, NUM_PAUSED, NUM_PREEMPTED, Batch
from draftproof.impl.scheduler.batch import RUNNING as RUNNING_KIND
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.layout import NUM_DISPATCHED, NUM_SETTLED
from draftproof.impl.scheduler.requests import Chunk
from draftproof.impl.scheduler.scheduler import Scheduler
from draftproof.impl.traces import columns, compiled
from draftproof.impl.traces.columns import (
    CODE,
    FIRST_COUNTER,
    NUM_LINES,
)
from draftproof.impl.traces.format import ABSENT, COUNTERS, EVENT_NAMES, NO_TOKENS, Header
from draftproof.impl.traces.recorder import TraceWriter, engine_version, header
from draftproof.spec.events import EVENTS
from draftproof.spec.ledger import FINISHED, PAUSED, RUNNING, WAITING, Ledger

_LEDGER_LINES = np.array([Ledger._fields.index(name) for name in COUNTERS])
_SCHEDULED_LINES = (NUM_COMPUTED_TOKENS, slice(NUM_REGISTERED_AT_PREEMPTION, DROP_STALE + 1))
_SETTLED_LINES = np.array([[NUM_STALE_TOKENS], [NUM_TOKENS]])
_CODES = {name: code for code, name in enumerate(EVENT_NAMES)}


def header_of(config: SchedulerConfig, **more: Any) -> Header:
    """The header of a trace of a scheduler with this configuration."""
    return header(
        engine="draftproof",
        engine_version=engine_version("draftproof"),
        num_speculative_tokens=config.num_speculative_tokens,
        block_size=config.rules_block_size,
        asynchronous=config.asynchronous,
        registration_fence=config.registration_fence,
        max_model_len=config.max_model_len,
        num_lookahead_tokens=config.num_lookahead_tokens,
        groups=[group.kind for group in config.groups],
        **more,
    )


class RecordingScheduler(Scheduler):
    """A scheduler that writes what happens to `trace`; make the writer with `header_of(config)`.

    With `looks_up` each request that finishes is looked up at once, so that T13 can be checked; that costs a
    search of the prefix cache for every one. It is done for one group of full attention, without a drop rule,
    and until a step fails, which withdraws blocks.
    """

    def __init__(
        self, config: SchedulerConfig, trace: TraceWriter, *, looks_up: bool = False, **options: Any
    ) -> None:
        super().__init__(config, **options)
        self.trace = trace
        self._looks_up = (
            looks_up
            and config.enable_prefix_caching
            and [group.kind for group in config.groups] == ["full_attention"]
            and config.num_prefill_lookahead_tokens == 0
        )
        self._numbers = np.full(config.max_num_requests, -1, np.int32)
        """By row: the request's number in the trace."""
        self._folded: dict[int, Chunk] = {}
        """Chunks that were folded in during a call that is not over."""
        self._rows: list[Any] = []
        self._step = 0
        self._before = np.zeros((NUM_FIELDS, self.settings.num_rows), np.int64)
        """What of the ledgers is looked at again after a step was scheduled, as it was before."""
        self._fill, self._fill_outputs = compiled.fill(), compiled.fill_outputs()

    # ---- requests ----

    def add(self, request_id: str, prompt_token_ids: Any, **options: Any) -> int:
        """See `Scheduler.add`."""
        row = super().add(request_id, prompt_token_ids, **options)
        self._reach(self._counts[NUM_DISPATCHED])
        tokens = self._known_tokens(row) if self.trace.header.tokens != NO_TOKENS else None
        num_prompt_tokens = int(self.state.requests.ledgers[NUM_TOKENS, row])
        self._numbers[row] = self.trace.request(
            request_id, num_prompt_tokens, step=self._step & 2**31 - 1, token_ids=tokens
        )
        return row

    def abort(self, request_id: str) -> None:
        """See `Scheduler.abort`."""
        row = self._row_of(request_id)
        super().abort(request_id)
        self._reach(self._counts[NUM_DISPATCHED])
        self._note("abort", [row])
        self._exit(row, NUM_REGISTERED_TOKENS)

    def _fold(self, row: int, chunk: Chunk) -> None:
        super()._fold(row, chunk)
        if self._in_settle:
            self._folded[row] = chunk
        else:
            self._reach(self._counts[NUM_DISPATCHED])
            self._note_fold(row, chunk)

    # ---- steps ----

    def schedule(self) -> Batch:
        """See `Scheduler.schedule`."""
        before, ledgers = self._before, self._ledger_table()
        for lines in _SCHEDULED_LINES:
            before[lines] = ledgers[lines, : self.settings.num_rows]
        self._reach(self._counts[NUM_DISPATCHED])
        batch = super().schedule()
        count = batch.num_requests
        rows, kinds = batch.rows[:count], batch.kind[:count]
        preempted = batch.preempted[: batch.counts[NUM_PREEMPTED]].tolist()
        self._note_preempted(preempted, self.settings.drop_stale_output != 0)
        started = np.flatnonzero(kinds != RUNNING_KIND).tolist()
        self._note_reclaimed(before, batch, {int(rows[index]): index for index in started})
        if started:
            self._note_starts(before, batch, started)
        self._rows.append(self._block("schedule", rows, num_new_tokens=batch.num_scheduled_tokens[:count]))
        self._emit()
        return batch

    def settle(self, batch: Batch, sampled_token_ids: Any, num_sampled_tokens: Any) -> None:
        """See `Scheduler.settle`."""
        count = batch.num_requests
        rows = batch.rows[:count].astype(np.int64)
        num_stale, num_tokens = self._ledger_table()[_SETTLED_LINES, rows]
        self._folded.clear()
        self._in_settle = True
        try:
            super().settle(batch, sampled_token_ids, num_sampled_tokens)
        finally:
            self._in_settle = False
        self._reach(self._counts[NUM_DISPATCHED] - 1)
        lines = np.empty((count, NUM_LINES), np.int32)
        self._fill_outputs(
            lines,
            self._step & 2**31 - 1,
            rows,
            self._numbers,
            self._ledger_table(),
            _LEDGER_LINES,
            num_stale,
            np.ascontiguousarray(num_sampled_tokens, np.int32)[:count],
            batch.num_scheduled_tokens[:count],
            batch.num_draft_tokens[:count],
            batch.num_kept_tokens[:count],
            batch.finish_reason[:count],
        )
        if self.trace.header.tokens != NO_TOKENS:
            self._emit_with_tokens(lines, num_tokens, rows)
        else:
            self._rows.append(lines)
        finished = batch.finished[: batch.counts[NUM_FINISHED]].tolist()
        paused = batch.paused[: batch.counts[NUM_PAUSED]].tolist()
        finished = [row for row in finished if row not in paused]
        look_ups = self._look_up(finished) if self._looks_up else [None] * len(finished)
        if finished:
            self._note("finish", finished)
        for row, look_up in zip(finished, look_ups, strict=True):
            self._exit(row, NUM_REGISTERED_TOKENS, look_up)
        for row in paused:
            self._after_turn(row)
        self._emit()

    def take_drafts(self, rows: Any, draft_token_ids: Any, num_draft_tokens: Any) -> None:
        """See `Scheduler.take_drafts`."""
        before = self.state.requests.ledgers[NUM_DRAFT_TOKENS].copy()
        super().take_drafts(rows, draft_token_ids, num_draft_tokens)
        self._reach(self._counts[NUM_DISPATCHED])
        after = self.state.requests.ledgers[NUM_DRAFT_TOKENS]
        changed = np.flatnonzero(before != after)
        if changed.size:
            self._rows.append(self._block("draft", changed, num_drafts=after[changed]))
            self._emit()

    def fail(self, batch: Batch) -> list[str]:
        """See `Scheduler.fail`."""
        before = self._ledgers()
        oldest, end = int(self._counts[NUM_SETTLED]), int(self._counts[NUM_DISPATCHED])
        lost = []
        for step in range(oldest, end):
            one = self._batches[self._place(step)]
            count = one.num_requests
            lost.append((one.rows[:count].copy(), one.num_scheduled_tokens[:count].copy()))
        preempted = super().fail(batch)
        self._looks_up = False
        self._reach(self._counts[NUM_DISPATCHED] - 1)
        running = before[STATUS] == RUNNING
        rows = [self.rows[name] for name in preempted]
        self._note_preempted([row for row in rows if running[row]], True, tells=False)
        for lost_rows, num_tokens in lost:
            lines = self._block("stale_output", lost_rows, tells=False)
            lines[:, columns.NUM_RETURNED] = num_tokens
            lines[:, columns.NUM_KEPT] = lines[:, columns.STOPPED] = 0
            self._rows.append(lines)
        self._emit()
        return preempted

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> bool:
        """See `Scheduler.reset_prefix_cache`."""
        before = self._ledgers()
        done = super().reset_prefix_cache(preempt_running=preempt_running)
        after = self.state.requests.ledgers
        self._reach(self._counts[NUM_DISPATCHED])
        started_over = (before[STATUS] == RUNNING) & (after[STATUS, : before.shape[1]] != RUNNING)
        self._note_preempted(np.flatnonzero(started_over).tolist(), True)
        idle = (before[STATUS] == PAUSED) | (before[STATUS] == WAITING)
        gave_up = idle & (before[NUM_COMPUTED_TOKENS] > 0) & (after[NUM_COMPUTED_TOKENS, : idle.size] == 0)
        drop = self.settings.drop_stale_output != 0
        self._note_preempted([row for row in np.flatnonzero(gave_up).tolist() if self._is_known(row)], drop)
        self._emit()
        return done

    # ---- inside ----

    _in_settle = False

    def _reach(self, step: int) -> None:
        """Events come in this step from now on, or in a later one that others came in. What comes between
        two steps comes in the next; what returns, in the last that was dispatched."""
        self._step = max(self._step, int(step))

    def _ledger_table(self) -> Any:
        """int64[fields, rows]; of an observed table the cells."""
        return np.asarray(self.state.requests.ledgers)

    def _ledgers(self) -> Any:
        return self.state.requests.ledgers[:NUM_FIELDS, : self.settings.num_rows].copy()

    def _is_known(self, row: int) -> bool:
        return self.rows.get(self.request_ids[row]) == row

    def _known_tokens(self, row: int, begin: int = 0) -> list[int]:
        requests = self.state.requests
        found: list[int] = requests.token_ids[row, begin : int(requests.ledgers[NUM_TOKENS, row])].tolist()
        return found

    def _block(self, event: str, rows: Any, tells: bool = True, **arguments: Any) -> Any:
        """One event for each row; with its counters now, if it `tells` them."""
        rows = np.asarray(rows, np.int64)
        lines = np.empty((rows.size, NUM_LINES), np.int32)
        step = self._step & 2**31 - 1
        self._fill(
            lines, _CODES[event], step, rows, self._numbers, self._ledger_table(), _LEDGER_LINES, tells
        )
        for name, value in arguments.items():
            lines[:, columns.COLUMN_NAMES.index(name)] = value
        return lines

    def _note(self, event: str, rows: list[int], tells: bool = True, **arguments: int) -> None:
        self._rows.append(self._block(event, rows, tells, **arguments))

    def _emit(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self.trace.emit_rows(np.concatenate(rows) if len(rows) > 1 else rows[0])

    def _exit(self, row: int, line: int, look_up: int | None = None) -> None:
        self._emit()
        self.trace.exit(
            int(self._numbers[row]),
            step=self._step & 2**31 - 1,
            num_registered_tokens=int(self.state.requests.ledgers[line, row]),
            look_up=look_up,
        )

    def _look_up(self, rows: list[int]) -> list[int | None]:
        """What requests like those of the rows would hit now. A look-up borrows an unused row, which may be
        one of these: so the tokens are taken first."""
        requests = self.state.requests
        asked = [
            (
                requests.token_ids[row, : int(requests.ledgers[NUM_TOKENS, row])].copy(),
                int(requests.salt_first[row]),
                int(requests.salt_second[row]),
            )
            for row in rows
        ]
        found = [int(self._calls.num_cached_tokens(*one)) for one in asked]
        return [None if hit < 0 else hit for hit in found]

    def _note_preempted(self, rows: list[int], drop: bool, tells: bool = True) -> None:
        if rows:
            self._note("preempt", rows, tells, drop=int(drop))
        for row in rows:
            self._exit(row, NUM_REGISTERED_AT_PREEMPTION)

    def _note_reclaimed(self, before: Any, batch: Batch, started: dict[int, int]) -> None:
        """Idle sessions that gave their blocks up; one may have `started` again in the same step, at a place
        of the batch."""
        after = self.state.requests.ledgers
        idle = ((before[STATUS] == PAUSED) | (before[STATUS] == WAITING)) & (before[NUM_COMPUTED_TOKENS] > 0)
        drop = self.settings.drop_stale_output != 0
        for row in np.flatnonzero(idle).tolist():
            if not self._is_known(row):
                continue
            if row in started:
                changed = (
                    batch.num_computed_tokens[started[row]] != before[NUM_COMPUTED_TOKENS, row]
                    or after[NUM_REGISTERED_AT_PREEMPTION, row] != before[NUM_REGISTERED_AT_PREEMPTION, row]
                    or after[DROP_STALE, row] != before[DROP_STALE, row]
                )
                if changed:
                    self._note_preempted([row], drop, tells=False)
                    before[NUM_COMPUTED_TOKENS, row] = 0
            elif after[NUM_COMPUTED_TOKENS, row] == 0:
                self._note_preempted([row], drop)

    def _note_starts(self, before: Any, batch: Batch, places: list[int]) -> None:
        """Rows are admitted, and padded with drafts where their step has any."""
        rows = batch.rows[places]
        starts_at_zero = (before[NUM_COMPUTED_TOKENS, rows] == 0) | (before[STATUS, rows] == RUNNING)
        num_hit_tokens = np.where(starts_at_zero, batch.num_computed_tokens[places], 0)
        self._rows.append(self._block("admit", rows, False, num_hit_tokens=num_hit_tokens))
        num_drafts = batch.num_draft_tokens[places]
        if (padded := num_drafts > 0).any():
            self._rows.append(self._block("draft", rows[padded], False, num_drafts=num_drafts[padded]))

    def _note_fold(self, row: int, chunk: Chunk) -> None:
        if self.trace.header.tokens == NO_TOKENS:
            self._note("fold", [row], num_chunk_tokens=int(chunk.token_ids.size))
            self._emit()
            return
        self._emit()
        self.trace.emit(
            "fold",
            int(self._numbers[row]),
            step=self._step & 2**31 - 1,
            token_ids=chunk.token_ids.tolist(),
            num_chunk_tokens=int(chunk.token_ids.size),
        )

    def _after_turn(self, row: int) -> None:
        """A turn has ended; its next chunk may have been folded in, or have been too long for the session."""
        folded = self._folded.pop(row, None)
        finished = folded is None and self.state.requests.ledgers[STATUS, row] == FINISHED
        self._note("end_turn", [row], folded is None and not finished)
        self._exit(row, NUM_REGISTERED_TOKENS)
        if folded is not None:
            self._note_fold(row, folded)
        elif finished:
            self._note("abort", [row])
            self._exit(row, NUM_REGISTERED_TOKENS)

    def _emit_with_tokens(self, lines: Any, num_tokens: Any, rows: Any) -> None:
        """Outputs one by one, each with the tokens it kept behind those that were there."""
        self._emit()
        names = columns.COLUMN_NAMES
        for index, row in enumerate(rows.tolist()):
            name = EVENT_NAMES[lines[index, CODE]]
            if name == "chunk_output":
                self.trace.emit_rows(lines[index : index + 1])
                continue
            begin = int(num_tokens[index])
            kept = int(lines[index, columns.NUM_KEPT])
            tokens = self.state.requests.token_ids[row, begin : begin + kept].tolist()
            fields = EVENTS[name]._fields
            counters = {
                counter: int(lines[index, FIRST_COUNTER + offset])
                for offset, counter in enumerate(COUNTERS)
                if lines[index, FIRST_COUNTER + offset] != ABSENT
            }
            self.trace.emit(
                name,
                int(self._numbers[row]),
                step=self._step & 2**31 - 1,
                after=counters,
                token_ids=tokens,
                **{field: int(lines[index, names.index(field)]) for field in fields},
            )

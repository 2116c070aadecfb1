"""What happens in what order? Schedule, launch, settle; requests come in, outputs go out.

Synchronously a step is settled before the next one is scheduled. Asynchronously the next one is scheduled and
launched first: the device has counted by itself, and the host reads one step late. Nothing here counts
tokens: what is computed, kept and published is the scheduler's to say, and when a step has been settled its
counters are held against the device's (T9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from draftproof.gpu.runner.comparison import Flight, compare_dispatch, compare_end
from draftproof.gpu.runner.outcome import Outcome
from draftproof.gpu.runner.requests import (
    Request,
    RequestOutput,
    RequestResult,
    TokenLogprobs,
    Turn,
    token_logprobs,
)
from draftproof.gpu.runner.step_input import NO_BLOCKS, RowSampling, step_input
from draftproof.gpu.sampling import SamplingParameters
from draftproof.impl.ledger_table import NUM_FIELDS
from draftproof.impl.scheduler import Batch, Scheduler, SchedulerConfig, metrics_of
from draftproof.impl.scheduler.batch import NUM_FINISHED, NUM_PREEMPTED
from draftproof.impl.scheduler.requests import check_request
from draftproof.impl.scheduler.settle import FINISH_REASONS

MAX_EMPTY_STEPS = 100
"""In a row, while requests wait and nothing is in flight."""


class StalledError(RuntimeError):
    """Requests wait, nothing is in flight, and no step is scheduled: the scheduler is at fault."""


@dataclass
class EngineTotals:
    """What happened since the start."""

    num_steps: int = 0
    num_prefill_chunks: int = 0
    """Rows that computed a part of their prompt and did not sample."""
    num_preemptions: int = 0
    num_folds: int = 0
    """Turns of sessions that followed another one."""
    num_drafts: int = 0
    """Drafts computed, null ones included."""
    num_accepted_drafts: int = 0
    """As verified, before a stop cut any off."""
    num_compared: int = 0
    """Rows of steps whose counters on the host were held against the device's."""

    @property
    def num_rejected_drafts(self) -> int:
        return self.num_drafts - self.num_accepted_drafts


class Engine:
    """The loop over one runner and one scheduler."""

    def __init__(
        self,
        runner: Any,
        config: SchedulerConfig,
        *,
        eos_token_ids: Sequence[int] = (),
        scheduler: Scheduler | None = None,
        debug: bool = False,
    ) -> None:
        """`runner` launches and reads steps: a `Runner`, or a `RunnerProcess`. `debug` poisons blocks that
        nobody may read."""
        self.runner, self.config, self.eos_token_ids = runner, config, tuple(eos_token_ids)
        self.scheduler = Scheduler(config) if scheduler is None else scheduler
        self.totals = EngineTotals()
        self.requests: dict[int, Request] = {}
        """Those that have not finished, by the scheduler's row."""
        kinds = [group.kind for group in config.groups]
        self._recurrent_group = kinds.index("recurrent") if "recurrent" in kinds else None
        self._in_flight: deque[Flight] = deque()
        self._num_empty_steps = 0
        self._is_clean = np.ones(config.num_blocks + 1, np.bool_) if debug else None
        """In debug mode: blocks that nobody holds, that the cache does not know, and that were poisoned."""

    # ---- requests ----

    def check(self, prompt_token_ids: Sequence[int], parameters: SamplingParameters) -> None:
        """Raises RequestError for what cannot be served; changes nothing."""
        check_request(
            self.config,
            token_ids=prompt_token_ids,
            resumable=False,
            priority=0,
            cache_salt="",
            **self._limits(parameters),
        )

    def add(self, request: Request) -> None:
        """Let a request wait for its first step. Raises RequestError for what cannot be served."""
        row = self.scheduler.add(
            request.request_id,
            request.prompt_token_ids,
            resumable=request.is_session,
            **self._limits(request.parameters),
        )
        self.requests[row] = request

    def append(self, request_id: str, turn: Turn) -> None:
        """The next chunk of a session. Raises RequestError for one that cannot be served."""
        row = self.scheduler.rows.get(request_id, -1)
        request = self.requests.get(row)
        limits = self._limits(turn.parameters)
        self.scheduler.append_chunk(request_id, turn.token_ids, **limits)
        assert request is not None
        request.turns.append(turn)
        if request.is_paused:
            self._next_turn(request)

    def close(self, request_id: str) -> None:
        """No more chunks will come. Raises RequestError for an unknown id, or one of no session."""
        row = self.scheduler.rows.get(request_id, -1)
        self.scheduler.close_session(request_id)
        if request_id not in self.scheduler.rows:  # it was between turns
            del self.requests[row]

    def abort(self, request_id: str) -> RequestResult:
        """The request leaves now, with what it has. Raises RequestError for an unknown id."""
        row = self.scheduler.rows.get(request_id, -1)
        self.scheduler.abort(request_id)
        request = self.requests.pop(row)
        request.finish()
        return request.result("abort", metrics_of(self.scheduler, request_id))

    def _limits(self, parameters: SamplingParameters) -> dict[str, Any]:
        """When a request ends. Of several EOS tokens the first is the scheduler's, the others stop tokens."""
        eos = () if parameters.ignore_eos else self.eos_token_ids
        return {
            "max_tokens": parameters.max_tokens,
            "min_tokens": parameters.min_tokens,
            "stop_token_ids": (*parameters.stop_token_ids, *eos[1:]),
            "eos_token_id": eos[0] if eos else None,
            "ignore_eos": parameters.ignore_eos,
        }

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._in_flight) or self.scheduler.has_unfinished_requests()

    # ---- steps ----

    def step(self) -> list[RequestOutput]:
        """Launch a step, and settle the oldest one if as many are in flight as may be.

        A step for which memory does not suffice ends the largest of its requests, with an error; the others
        start over. Whatever else goes wrong gives up all steps in flight and is raised.
        """
        depth = self.config.max_in_flight_steps
        launched, outputs = self._launch()
        if self._in_flight and (not launched or len(self._in_flight) == depth):
            outputs += self._settle()
        return outputs

    def _drain(self, failed: Any) -> list[RequestOutput]:
        """Settle all steps in flight, although one more, of these rows, has been dispatched and failed."""
        outputs: list[RequestOutput] = []
        while self._in_flight:
            outputs += self._settle(failed)
        return outputs

    def _launch(self) -> tuple[bool, list[RequestOutput]]:
        batch = self.scheduler.schedule()
        self.totals.num_preemptions += int(batch.counts[NUM_PREEMPTED])
        count = batch.num_requests
        if count == 0:
            self._check_progress()
            return False, []
        self._num_empty_steps = 0
        rows = np.array(batch.rows[:count], np.int64)
        requests = [self.requests[row] for row in rows.tolist()]
        try:
            launched = self._enqueue(batch, requests)
        except BaseException as problem:
            outputs = self._drain(rows)  # what came before it is not touched by its failing
            if self.scheduler.num_in_flight_steps():  # or one before it failed as well
                self.scheduler.fail(batch)
            if not is_out_of_memory(problem):
                raise
            return False, outputs + self._end_largest(batch, requests, rows)
        flight = Flight(batch, launched, requests, rows)
        if not self._in_flight:
            flight.expected = self._ledgers(rows)
        self._in_flight.append(flight)
        return True, []

    def _check_progress(self) -> None:
        """After a step with nothing in it: one may follow a preemption, many would go on for ever."""
        if self._in_flight or not self.scheduler.has_unfinished_requests():
            self._num_empty_steps = 0
            return
        self._num_empty_steps += 1
        if self._num_empty_steps > MAX_EMPTY_STEPS:
            waiting = [request.request_id for request in self.requests.values() if not request.is_paused]
            self._num_empty_steps = 0
            raise StalledError(
                f"nothing can be scheduled of requests {', '.join(waiting):.200}, although nothing is in "
                "flight: the scheduler's counters are wrong (DRAFTPROOF_DEBUG=1 says which)"
            )

    def _enqueue(self, batch: Batch, requests: list[Request]) -> Any:
        return self.runner.launch(self._input(batch, requests))

    def _read(self, flight: Flight) -> Outcome:
        outcome: Outcome = self.runner.read(flight.launched)
        return outcome

    def _input(self, batch: Batch, requests: list[Request]) -> Any:
        return step_input(
            batch,
            self.scheduler.state,
            [request.request_id for request in requests],
            [RowSampling(request.parameters, request.seed, 0) for request in requests],
            num_lookahead_tokens=self.config.num_lookahead_tokens,
            recurrent_group=self._recurrent_group,
            freed_blocks=self._freed_blocks(),
        )

    def _freed_blocks(self) -> Any:
        """Blocks that nobody may read from now on, and were not poisoned yet."""
        if self._is_clean is None:
            return NO_BLOCKS
        pool, num_blocks = self.scheduler.state.pool, self.config.num_blocks
        is_free = np.zeros(num_blocks + 1, np.bool_)
        is_free[1:] = (pool.ref_count[1 : num_blocks + 1] == 0) & (
            pool.next_in_chain[1 : num_blocks + 1] == 0
        )
        freed = np.flatnonzero(is_free & ~self._is_clean)
        self._is_clean = is_free
        return freed

    def _end_largest(self, batch: Batch, requests: list[Request], rows: Any) -> list[RequestOutput]:
        """A step did not fit the memory: of its requests that are still here, the one with the most tokens of
        it ends."""
        pairs = zip(rows.tolist(), requests, strict=True)
        mine = [self.requests.get(row) is request for row, request in pairs]
        if not any(mine):
            return []
        place = int(np.argmax(np.where(mine, batch.num_scheduled_tokens[: len(requests)], 0)))
        request = requests[place]
        request.error = (
            f"no memory for a step of {batch.num_tokens} tokens, of which this request had the most "
            f"({int(batch.num_scheduled_tokens[place])}): lower max_num_batched_tokens or max_num_seqs"
        )
        result = self.abort(request.request_id)
        return [RequestOutput(request.request_id, (), "", (), result), *self._refused(request)]

    def _settle(self, failed: Any = NO_BLOCKS) -> list[RequestOutput]:
        flight = self._in_flight.popleft()
        batch, requests = flight.batch, flight.requests
        try:
            outcome = self._read(flight)
            batch.num_invalid_drafts[: len(requests)] = outcome.num_null_drafts
            self._compare_dispatch(flight, outcome)
            self.scheduler.settle(batch, outcome.sampled_token_ids, outcome.num_sampled_tokens)
        except BaseException as problem:
            self.scheduler.fail(batch)
            self._in_flight.clear()
            if not is_out_of_memory(problem):  # launched in a process of its own, or behind the launch
                raise
            return self._end_largest(batch, requests, flight.rows)
        self._compare_end(flight, outcome, failed)
        self._count(batch, outcome)
        outputs = self._outputs(flight, outcome)
        if not self.config.asynchronous and self.config.num_speculative_tokens:
            self.scheduler.take_drafts(
                flight.rows.astype(np.int32), outcome.draft_token_ids, outcome.num_draft_tokens
            )
        if self._in_flight:
            self._in_flight[0].expected = self._ledgers(self._in_flight[0].rows)
        return outputs

    def _ledgers(self, rows: Any) -> Any:
        return np.array(self.scheduler.state.requests.ledgers[:NUM_FIELDS, rows])

    def _compare_dispatch(self, flight: Flight, outcome: Outcome) -> None:
        pairs = zip(flight.rows.tolist(), flight.requests, strict=True)
        is_here = np.array([self._is_here(row, request) for row, request in pairs])
        self.totals.num_compared += compare_dispatch(flight, outcome, is_here)

    def _compare_end(self, flight: Flight, outcome: Outcome, failed: Any) -> None:
        later = np.concatenate([failed, *[ahead.rows for ahead in self._in_flight]])
        self.totals.num_compared += compare_end(flight, outcome, self._ledgers(flight.rows), later)

    # ---- what comes of it ----

    def _count(self, batch: Batch, outcome: Outcome) -> None:
        count, totals = batch.num_requests, self.totals
        totals.num_steps += 1
        totals.num_prefill_chunks += int((batch.samples[:count] == 0).sum())
        totals.num_drafts += int(batch.num_draft_tokens[:count].sum())
        totals.num_accepted_drafts += int(np.maximum(outcome.num_sampled_tokens - 1, 0).sum())

    def _outputs(self, flight: Flight, outcome: Outcome) -> list[RequestOutput]:
        """Give every request the tokens that were kept; what of it ends with the step."""
        batch = flight.batch
        outputs: list[RequestOutput] = []
        finished = set(batch.finished[: batch.counts[NUM_FINISHED]].tolist())
        for index, place in enumerate(outcome.sampling_places.tolist()):
            row, request = int(flight.rows[place]), flight.requests[place]
            count = int(batch.num_kept_tokens[place])
            if count == 0 or not self._is_here(row, request):
                continue
            reason = FINISH_REASONS[batch.finish_reason[place]]
            kept = request.keep(
                *self._kept(outcome, place, index, count, request), is_stopped=reason == "stop"
            )
            accepted = int(outcome.num_sampled_tokens[place]) - 1
            request.num_dropped_drafts = min(accepted, count) - min(accepted, len(kept.token_ids))
            result = None
            if reason or request.error or kept.is_end:
                text = kept.text + request.finish()
                result = self._result(request, "stop" if kept.is_end else reason)
                kept = kept._replace(text=text)
            outputs.append(
                RequestOutput(request.request_id, kept.token_ids, kept.text, kept.logprobs, result)
            )
            if result is not None:
                outputs += self._after_end(row, request, is_over=row in finished, is_turn=bool(reason))
        return outputs

    def _is_here(self, row: int, request: Request) -> bool:
        """Whether the row is still that request's: it may have finished since the step was launched."""
        return self.requests.get(row) is request

    def _kept(
        self, outcome: Outcome, place: int, index: int, count: int, request: Request
    ) -> tuple[list[int], list[TokenLogprobs]]:
        """A request's new tokens and their log-probabilities; none if the logits were no numbers."""
        if not outcome.are_numbers[index]:
            request.error = "the model's logits were not numbers"
            return [], []
        token_ids = outcome.sampled_token_ids[place, :count].tolist()
        if request.parameters.logprobs is None or outcome.logprobs is None:
            return token_ids, []
        return token_ids, token_logprobs(outcome.logprobs, index, token_ids, request.parameters.logprobs)

    def _result(self, request: Request, reason: str) -> RequestResult:
        # The row keeps its metrics until the next request is added.
        return request.result(reason, metrics_of(self.scheduler, request.request_id))

    def _after_end(self, row: int, request: Request, *, is_over: bool, is_turn: bool) -> list[RequestOutput]:
        """A request or a turn has come to its end: the scheduler knows (`is_turn`), or is told now."""
        if is_turn and not is_over:  # a session, between turns
            if request.turns:
                self._next_turn(request)
            else:
                request.is_paused = True
            return []
        if not is_over:
            self.scheduler.abort(request.request_id)
        del self.requests[row]
        return self._refused(request)

    def _next_turn(self, request: Request) -> None:
        self.totals.num_folds += 1
        request.begin(request.turns.popleft())

    def _refused(self, request: Request) -> list[RequestOutput]:
        """Chunks that waited in vain: the session has ended, or has become too long for them."""
        outputs = []
        while request.turns:
            request.begin(request.turns.popleft())
            request.error = "the session ended before this chunk: it had become too long for it, or failed"
            result = self._result(request, "length")
            outputs.append(RequestOutput(request.request_id, (), "", (), result))
        return outputs


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether memory did not suffice, of a GPU or of the host."""
    if isinstance(problem, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(problem, RuntimeError) and "can't allocate memory" in str(problem)

"""How long does each scheduler take for the same steps? The calls alone, in thread CPU time.

What a runner would do, to read a step and to bring its tokens, is done between the calls and not timed. The
model is as simple as can be: a verification step accepts two drafts, every other step brings one token.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.vllm import engine
from tests.vllm.ours import configuration
from tests.vllm.workloads import Settings
from vllm.v1.outputs import DraftTokenIds

from draftproof.impl.scheduler import client
from draftproof.impl.scheduler.batch import NUM_FINISHED, NUM_PREEMPTED, RUNNING
from draftproof.impl.scheduler.scheduler import Scheduler

clock = time.thread_time_ns
ACCEPTED = (12, 13)
DRAFTS = (12, 13, 14)
SAMPLED = 21


class Timed(ABC):
    """A scheduler under the clock: how many nanoseconds its calls took is what the methods return."""

    num_preemptions = 0
    num_rows = 0
    """Requests in the step that was scheduled last."""
    num_tokens = 0
    """Tokens in it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.brought = (*ACCEPTED[: settings.num_speculative_tokens], SAMPLED)
        self.proposes = settings.num_speculative_tokens > 0 and not settings.asynchronous

    @abstractmethod
    def add(self, number: int, prompt_token_ids: Sequence[int], max_tokens: int) -> int:
        """A request arrives."""

    @abstractmethod
    def schedule(self) -> tuple[Any, int]:
        """The next step, in the scheduler's own form."""

    @abstractmethod
    def settle(self, step: Any) -> int:
        """The step has returned; synchronously the drafter has proposed, too."""

    @abstractmethod
    def unfinished(self) -> bool:
        """Whether any request is left."""


class TimedTheirs(Timed):
    """vLLM's scheduler. It always builds one output object for each request."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.scheduler = engine.new_scheduler(settings)

    def add(self, number: int, prompt_token_ids: Sequence[int], max_tokens: int) -> int:
        start = clock()
        self.scheduler.add_request(engine.new_request(str(number), prompt_token_ids, max_tokens=max_tokens))
        return clock() - start

    def schedule(self) -> tuple[Any, int]:
        start = clock()
        step = self.scheduler.schedule()
        spent = clock() - start
        self.num_preemptions += len(step.preempted_req_ids or ())
        self.num_rows, self.num_tokens = len(step.num_scheduled_tokens), step.total_num_scheduled_tokens
        # Asynchronously the next step is scheduled before this one returns: note now who samples.
        admitted = {
            one.req_id for one in step.scheduled_new_reqs
        } | step.scheduled_cached_reqs.resumed_req_ids
        drafted = step.scheduled_spec_decode_tokens
        sampled = {
            request_id: self.brought if request_id in drafted and request_id not in admitted else (SAMPLED,)
            for request_id in step.num_scheduled_tokens
            if not self.scheduler.requests[request_id].is_prefill_chunk
        }
        return (step, sampled), spent

    def settle(self, step: Any) -> int:
        native, sampled = step
        returned = engine.returned(native, sampled)
        start = clock()
        self.scheduler.update_from_output(native, returned)
        spent = clock() - start
        if self.proposes:
            ids = [
                request_id
                for request_id in native.num_scheduled_tokens
                if request_id in self.scheduler.requests
            ]
            drafts = DraftTokenIds(ids, [list(DRAFTS) for _ in ids])
            start = clock()
            self.scheduler.update_draft_token_ids(drafts)
            spent += clock() - start
        return spent

    def unfinished(self) -> bool:
        left: bool = self.scheduler.has_unfinished_requests()
        return left


class TimedOurs(Timed):
    """Our scheduler, compiled: arrays, or with one output object for each request."""

    def __init__(self, settings: Settings, *, num_requests: int, objects: bool = False) -> None:
        super().__init__(settings)
        self.scheduler = Scheduler(configuration(settings, num_requests), compiled=True)
        self.objects = objects
        self.num_left = 0

    def add(self, number: int, prompt_token_ids: Sequence[int], max_tokens: int) -> int:
        tokens = np.array(prompt_token_ids, np.int32)
        self.num_left += 1
        start = clock()
        self.scheduler.add(str(number), tokens, max_tokens=max_tokens)
        return clock() - start

    def schedule(self) -> tuple[Any, int]:
        start = clock()
        batch = self.scheduler.schedule()
        spent = clock() - start
        self.num_preemptions += int(batch.counts[NUM_PREEMPTED])
        self.num_rows, self.num_tokens = batch.num_requests, batch.num_tokens
        return batch, spent

    def settle(self, step: Any) -> int:
        count, width = step.num_requests, 1 + self.settings.num_speculative_tokens
        verified = (step.num_draft_tokens[:count] > 0) & (step.kind[:count] == RUNNING)
        tokens = np.zeros((count, width), np.int32)
        tokens[verified, : len(self.brought)] = self.brought
        tokens[~verified, 0] = SAMPLED
        counts = np.where(verified, len(self.brought), 1).astype(np.int32) * step.samples[:count]
        start = clock()
        self.scheduler.settle(step, tokens, counts)
        if self.objects:
            client.outputs(self.scheduler, step, tokens)
        spent = clock() - start
        self.num_left -= int(step.counts[NUM_FINISHED])
        if self.proposes:
            rows = step.rows[:count].copy()
            drafts = np.tile(np.array(DRAFTS[: width - 1], np.int32), (count, 1))
            num_drafts = np.full(count, width - 1, np.int32)
            start = clock()
            self.scheduler.take_drafts(rows, drafts, num_drafts)
            spent += clock() - start
        return spent

    def unfinished(self) -> bool:
        return self.num_left > 0

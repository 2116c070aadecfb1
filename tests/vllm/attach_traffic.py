"""What do clients do to an engine? Random requests of all kinds, and a device that accepts drafts at random.

Plain requests that share prefixes, sessions of several turns whose chunks come early or late, clients that
hang up, resets of the prefix cache, pools so small that requests are preempted.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any, NamedTuple

from tests.vllm import engine
from tests.vllm.workloads import Settings
from vllm.v1.request import RequestStatus

STOP = 3
MOST_STEPS = 4_000


class Plan(NamedTuple):
    """What is varied."""

    seed: int
    settings: Settings
    num_requests: int = 125
    session_percent: int = 30
    abort_percent: int = 12
    reset_percent: int = 1
    acceptance_percent: int = 70


class Traffic:
    """One run of a plan against a scheduler."""

    def __init__(self, plan: Plan, scheduler: Any) -> None:
        self.plan, self.scheduler = plan, scheduler
        self.source = random.Random(plan.seed)
        self.in_flight: deque[tuple[Any, set[str], set[str]]] = deque()
        self.turns_left: dict[str, int] = {}
        """Of sessions: chunks that are still to come; 0: only their end."""
        self.seen: Counter[str] = Counter()
        self.prefixes = [self._words(70) for _ in range(3)]

    def _words(self, count: int) -> list[int]:
        return [self.source.randrange(5, 300) for _ in range(count)]

    def run(self) -> Counter[str]:
        """Send all requests, let them all finish; returns what happened."""
        sent = 0
        for _ in range(MOST_STEPS):
            while sent < self.plan.num_requests and self.source.random() < 0.4:
                self._arrive(f"r{sent}")
                sent += 1
            self._clients()
            self._step()
            if sent == self.plan.num_requests and not self.scheduler.requests and not self.in_flight:
                return self.seen
        left = {name: str(one.status) for name, one in self.scheduler.requests.items()}
        raise AssertionError(f"these have not finished: {left}")

    def _arrive(self, request_id: str) -> None:
        source = self.source
        prompt = source.choice(self.prefixes)[: source.randrange(1, 71)] if source.random() < 0.5 else []
        prompt = prompt + self._words(source.randrange(0 if prompt else 1, 60))
        session = source.randrange(100) < self.plan.session_percent
        if session:
            self.turns_left[request_id] = source.randrange(0, 4)
        self.seen["sessions" if session else "plain requests"] += 1
        self._send(request_id, prompt, resumable=session)

    def _send(self, request_id: str, prompt: list[int], *, resumable: bool) -> None:
        self.scheduler.add_request(
            engine.new_request(
                request_id,
                prompt,
                max_tokens=self.source.randrange(1, 40),
                stop_token_ids=[STOP],
                resumable=resumable,
                block_size=self.plan.settings.block_size,
            )
        )

    def _clients(self) -> None:
        """Sessions go on, clients hang up, somebody resets the cache."""
        source = self.source
        for request_id in list(self.scheduler.requests):
            if source.randrange(1_500) < self.plan.abort_percent:
                self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
                self.turns_left.pop(request_id, None)
                self.seen["aborts"] += 1
        for request_id, left in list(self.turns_left.items()):
            request = self.scheduler.requests.get(request_id)
            if request is None:
                del self.turns_left[request_id]
                continue
            waits = request.status == RequestStatus.WAITING_FOR_STREAMING_REQ
            if source.random() > (0.3 if waits else 0.02):
                continue
            self.seen["chunks after the turn" if waits else "chunks before the end of the turn"] += 1
            if left:
                self.turns_left[request_id] = left - 1
                self._send(request_id, self._words(source.choice((1, 1, 2, 20))), resumable=True)
            else:
                del self.turns_left[request_id]
                self._send(request_id, [1], resumable=False)
        # While a session between turns holds blocks, vLLM refuses the reset.
        held = any(
            request.num_computed_tokens > 0 and request.status != RequestStatus.RUNNING
            for request in self.scheduler.requests.values()
        )
        if source.randrange(100) < self.plan.reset_percent and not held:
            self.scheduler.reset_prefix_cache(reset_running_requests=True)
            self.seen["resets"] += 1

    def _step(self) -> None:
        step = self.scheduler.schedule()
        self.seen["steps"] += 1
        self.seen["preemptions"] += len(step.preempted_req_ids or ())
        admitted = {
            one.req_id for one in step.scheduled_new_reqs
        } | step.scheduled_cached_reqs.resumed_req_ids
        for one in step.scheduled_new_reqs:
            self.seen["hits"] += one.num_computed_tokens > 0
        samples = {
            request_id
            for request_id in step.num_scheduled_tokens
            if not self.scheduler.requests[request_id].is_prefill_chunk
        }
        if step.num_scheduled_tokens:
            self.in_flight.append((step, samples, admitted))
            if self.plan.settings.asynchronous and len(self.in_flight) < 2:
                return
        if self.in_flight:
            self._return(*self.in_flight.popleft())

    def _return(self, step: Any, samples: set[str], admitted: set[str]) -> None:
        source = self.source
        sampled = {}
        for request_id in samples:
            drafts = step.scheduled_spec_decode_tokens.get(request_id, ())
            tokens: list[int] = []
            for draft in () if request_id in admitted else drafts:
                if source.randrange(100) >= self.plan.acceptance_percent:
                    break
                tokens.append(source.randrange(3, 300) if draft == -1 else draft)
            sampled[request_id] = [*tokens, source.randrange(3, 100)]
            self.seen["drafts accepted"] += len(tokens)
        returned = engine.returned(step, sampled)
        results = self.scheduler.update_from_output(step, returned)
        for client in results.values():
            for output in client.outputs:
                trimmed = len(sampled.get(output.request_id, ())) > len(output.new_token_ids)
                self.seen["trimmed stops"] += trimmed and output.finish_reason is not None
        count = self.plan.settings.num_speculative_tokens
        if count and not self.plan.settings.asynchronous:
            engine.propose(
                self.scheduler,
                {
                    request_id: self._words(source.randrange(0, count + 1))
                    for request_id in samples
                    if request_id in self.scheduler.requests
                },
            )

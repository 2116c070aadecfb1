"""Random work for a scheduler: arrivals, sessions, aborts, pressure, failed steps and resets, from a seed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np

from draftproof.impl.scheduler.batch import NUM_FINISHED, NUM_PAUSED, NUM_PREEMPTED, Batch
from draftproof.impl.scheduler.config import KVGroup, SchedulerConfig
from draftproof.impl.scheduler.errors import OutcomeError, RequestError, StepError
from draftproof.impl.scheduler.scheduler import Scheduler

VOCAB_SIZE, EOS, STOP = 50, 3, 5


def random_config(seed: int, asynchronous: bool) -> SchedulerConfig:
    """A small scheduler with little room."""
    rng = random.Random(f"{seed} {asynchronous}")
    num_drafts = rng.choice([0, 1, 3])
    block_size = rng.choice([4, 8])
    groups: tuple[KVGroup, ...] = (KVGroup(block_size),)
    if rng.random() < 0.3:
        window = KVGroup(rng.choice([block_size, 2 * block_size]), "sliding_window", rng.choice([5, 9, 16]))
        groups = (*groups, window)
    return SchedulerConfig(
        max_model_len=rng.choice([64, 128]),
        num_blocks=rng.choice([20, 26, 40]) * len(groups),
        groups=groups,
        max_num_seqs=rng.choice([2, 4, 8]),
        max_num_requests=20,
        max_num_batched_tokens=rng.choice([32, 64]),
        long_prefill_token_threshold=rng.choice([0, 16]),
        num_speculative_tokens=num_drafts,
        num_lookahead_tokens=rng.choice([0, num_drafts]),
        num_prefill_lookahead_tokens=rng.choice([0, 0, min(1, num_drafts), num_drafts]),
        lookahead=rng.choice(["drop", "hash"]),
        asynchronous=asynchronous,
        max_in_flight_steps=rng.choice([2, 3]) if asynchronous else 1,
        policy=rng.choice(["fcfs", "priority"]),
        enable_prefix_caching=rng.random() < 0.85,
        drop_stale_output=rng.random() < 0.4,
        release=rng.choice(["at_return", "at_once"]),
        vocab_size=VOCAB_SIZE,
        hash_seed=rng.choice([None, 7]),
    )


class RandomWork:
    """A scheduler and what is done to it."""

    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        self.scheduler = scheduler
        self.rng = random.Random(seed)
        self.prefix = [self.token() for _ in range(40)]
        self.in_flight: list[Batch] = []
        self.did: Counter[str] = Counter()

    def token(self) -> int:
        """Any token."""
        return self.rng.randrange(VOCAB_SIZE)

    def run(self, num_rounds: int) -> Counter[str]:
        """So many rounds, then everything comes to its end. Returns what happened how often."""
        for _ in range(num_rounds):
            self.between_steps()
            if self.scheduler.num_in_flight_steps() < self.scheduler.config.max_in_flight_steps:
                self.schedule()
            full = len(self.in_flight) >= self.scheduler.config.max_in_flight_steps
            if self.in_flight and self.rng.random() < (0.8 if full else 0.3):
                self.settle()
        for request_id in list(self.scheduler.rows):
            self.scheduler.abort(request_id)
        while self.in_flight:
            self.settle()
        return self.did

    def between_steps(self) -> None:
        """At most one of the calls that come at any time."""
        calls = (self.add, self.chunk, self.abort, self.close, self.reset, self.ask, self.fail, None)
        call = self.rng.choices(calls, (25, 12, 5, 2, 2, 2, 2, 50))[0]
        if call is None:
            return
        try:
            call()
            self.did[call.__name__] += 1
        except RequestError:
            self.did["refused request"] += 1

    def known(self) -> str:
        """The id of some request."""
        return self.rng.choice(list(self.scheduler.rows) or ["nobody"])

    def add(self) -> None:
        """A request, often with a known beginning."""
        shared = self.prefix[: self.rng.randrange(40)] if self.rng.random() < 0.6 else []
        self.scheduler.add(
            f"request {self.did['add']}",
            shared + [self.token() for _ in range(self.rng.randrange(1, 20))],
            max_tokens=self.rng.randrange(1, 30),
            eos_token_id=self.rng.choice([None, EOS]),
            stop_token_ids=self.rng.choice([[], [], [STOP]]),
            resumable=self.rng.random() < 0.3,
            priority=self.rng.randrange(3),
            cache_salt=self.rng.choice(["", "", "a tenant"]),
        )

    def chunk(self) -> None:
        """Perhaps for a request that is no session."""
        tokens = [self.token() for _ in range(self.rng.randrange(1, 9))]
        self.scheduler.append_chunk(self.known(), tokens, max_tokens=self.rng.randrange(1, 12))

    def abort(self) -> None:
        """Somebody leaves."""
        self.scheduler.abort(self.known())

    def close(self) -> None:
        """A session ends, once it has been answered."""
        self.scheduler.close_session(self.known())

    def reset(self) -> None:
        """The cache is emptied, if nobody needs it."""
        self.scheduler.reset_prefix_cache(preempt_running=self.rng.random() < 0.5)

    def ask(self) -> None:
        """What would be found."""
        self.scheduler.num_cached_tokens(self.prefix[:20])

    def fail(self) -> None:
        """All that is in flight is lost."""
        if self.in_flight:
            self.did["requests of failed steps"] += len(self.scheduler.fail(self.in_flight[0]))
            self.in_flight.clear()

    def schedule(self) -> None:
        """The next step."""
        batch = self.scheduler.schedule()
        self.did["preempted"] += int(batch.counts[NUM_PREEMPTED])
        if batch.num_requests > 0:
            self.in_flight.append(batch)
            self.did["step"] += 1

    def settle(self) -> None:
        """The oldest step returns, perhaps after an outcome that cannot be; then drafts are proposed."""
        batch = self.in_flight.pop(0)
        count, width = batch.num_requests, 1 + self.scheduler.config.num_speculative_tokens
        sampled: Any = np.array([[self.token() for _ in range(width)] for _ in range(count)], np.int32)
        num_drafts = (batch.num_draft_tokens - batch.num_invalid_drafts)[:count].tolist()
        accepted = [self.rng.randrange(drafts + 1) for drafts in num_drafts]
        num_sampled = (np.array(accepted) + 1) * batch.samples[:count]
        if self.rng.random() < 0.05:
            wrong = num_sampled.copy()
            wrong[0] = width + 1
            try:
                self.scheduler.settle(batch, sampled, wrong.astype(np.int32))
            except (OutcomeError, StepError):
                self.did["refused outcome"] += 1
        self.scheduler.settle(batch, sampled, num_sampled.astype(np.int32))
        self.did["finished"] += int(batch.counts[NUM_FINISHED])
        self.did["paused"] += int(batch.counts[NUM_PAUSED])
        if width > 1:
            drafts = [[self.rng.randrange(-1, VOCAB_SIZE) for _ in range(width - 1)] for _ in range(count)]
            counts = [self.rng.randrange(width) for _ in range(count)]
            self.scheduler.take_drafts(
                batch.rows[:count].copy(), np.array(drafts, np.int32), np.array(counts, np.int32)
            )

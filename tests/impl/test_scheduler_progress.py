"""Under the hardest pressure every request that was admitted ends: in a pool just large enough for one.

What can never end is refused when it arrives, with the reason. The bound on the steps is that of one request
after the other, as if each had the pool for itself and no draft were ever right.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
from tests.impl.agreement import everything_of
from tests.impl.request_truth import Choices
from tests.impl.scheduler_world import VOCAB_SIZE, model, word, written
from tests.impl.watched import WatchedScheduler

from draftproof.impl.scheduler import step
from draftproof.impl.scheduler.config import SchedulerConfig
from draftproof.impl.scheduler.errors import RequestError
from draftproof.impl.scheduler.requests import check_fits

NUM_REQUESTS = 7
NUM_TURNS = 3
REJECTED = 2**4_000
"""As choices: no draft is right."""


class Engine(NamedTuple):
    """What progress may depend on."""

    depth: int
    """0 is synchronous."""
    num_drafts: int
    block_size: int
    policy: str
    release: str
    lookahead: int = 0

    @property
    def num_prompt_tokens(self) -> int:
        """Two blocks and a bit."""
        return 2 * self.block_size + 1

    @property
    def max_tokens(self) -> int:
        """A block and a bit."""
        return self.block_size + 2

    @property
    def num_steps_alone(self) -> int:
        """Steps that one request needs, at most, from its arrival to the return of its last step: its chunks,
        one for each token, those in flight when it stops, and one for late output to arrive."""
        return 2 + self.max_tokens + max(self.depth, 1) + 1

    def with_blocks(self, num_blocks: int) -> SchedulerConfig:
        """The configuration of a pool of this size."""
        return SchedulerConfig(
            max_model_len=100,
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_num_seqs=4,
            max_num_requests=16,
            max_num_batched_tokens=2 * self.block_size + 1 + self.num_drafts,
            num_speculative_tokens=self.num_drafts,
            asynchronous=self.depth > 0,
            max_in_flight_steps=max(self.depth, 1),
            policy=self.policy,
            num_lookahead_tokens=self.num_drafts if self.lookahead else 0,
            num_prefill_lookahead_tokens=self.lookahead,
            release=self.release,
            vocab_size=VOCAB_SIZE,
            hash_seed=3,
        )

    def for_one(self) -> SchedulerConfig:
        """The least pool in which one of the requests is accepted."""
        for num_blocks in itertools.count(1):
            config = self.with_blocks(num_blocks)
            try:
                check_fits(config, self.num_prompt_tokens, self.max_tokens)
            except RequestError:
                continue
            return config
        raise AssertionError


ENGINES = [
    Engine(depth, num_drafts, block_size, policy, release, lookahead)
    for depth, num_drafts, block_size, policy, release in itertools.product(
        (0, 1, 3), (0, 3), (1, 4), ("fcfs", "priority"), ("at_return", "at_once")
    )
    for lookahead in sorted({0, min(num_drafts, block_size)})
]
EVERY_ENGINE = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: "-".join(map(str, engine)))


def add(watched: WatchedScheduler, engine: Engine, number: int, *, resumable: bool = False) -> None:
    """One more request of the largest size that fits; a session has that size after its last turn."""
    watched.add(
        str(number),
        written(number, number, 0, engine.num_prompt_tokens),
        model(number),
        max_tokens=1 if resumable else engine.max_tokens,
        resumable=resumable,
        priority=number % 3,
        cache_salt=str(number),  # nobody finds what others computed
    )


def run_to_the_end(watched: WatchedScheduler) -> int:
    """Schedule and settle until nobody runs or waits; how many steps that took.

    An empty step while nothing is in flight may come once, if a row has just been preempted in it: whatever
    it decided would be decided again for ever.
    """
    width = watched.config.num_speculative_tokens
    num_empty = 0
    for count in itertools.count():
        if not watched.scheduler.has_unfinished_requests():
            return count
        batch = watched.schedule(Choices(REJECTED)) if watched.can_schedule() else None
        num_empty = 0 if watched.steps else num_empty + 1
        assert num_empty < 2, f"stuck after {count} steps: {sorted(watched.requests)} have not finished"
        if watched.steps and (batch is None or batch.num_requests == 0 or not watched.can_schedule()):
            settled = watched.settle()
            rows = settled.rows[: settled.num_requests].tolist()
            if not watched.config.asynchronous and width > 0:
                watched.propose(rows, [[word(row, place) for place in range(width)] for row in rows])
    raise AssertionError


@EVERY_ENGINE
def test_every_request_ends_in_a_pool_for_one(engine: Engine) -> None:
    watched = WatchedScheduler(engine.for_one())
    for number in range(NUM_REQUESTS):
        add(watched, engine, number)
    assert run_to_the_end(watched) <= NUM_REQUESTS * engine.num_steps_alone
    assert not watched.by_row


@EVERY_ENGINE
def test_sessions_end_too_though_idle_ones_hold_blocks(engine: Engine) -> None:
    watched = WatchedScheduler(engine.for_one())
    for number in range(NUM_REQUESTS):
        add(watched, engine, number, resumable=number % 2 == 0)
    for turn in range(NUM_TURNS):
        assert run_to_the_end(watched) <= NUM_REQUESTS * engine.num_steps_alone
        assert all(request.resumable for request in watched.requests.values())
        for name, request in watched.requests.items():
            if len(request.token_ids) < engine.num_prompt_tokens + engine.max_tokens:
                watched.append_chunk(name, [word(turn, 0)], max_tokens=1)
    run_to_the_end(watched)
    for name in list(watched.requests):
        watched.close_session(name)
    assert not watched.by_row


def test_there_was_pressure() -> None:
    """Or the two above show nothing."""
    watched = WatchedScheduler(ENGINES[-1].for_one())
    for number in range(NUM_REQUESTS):
        add(watched, ENGINES[-1], number, resumable=number % 2 == 0)
    run_to_the_end(watched)
    for name in list(watched.requests):
        watched.append_chunk(name, [word(1, 0)], max_tokens=1)
    run_to_the_end(watched)
    assert watched.seen["preempted"] > 0
    assert watched.seen["idle session gave its KV up"] > 0


def test_idle_sessions_that_keep_their_blocks_would_lock_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "reclaim", lambda *_: False)
    watched = WatchedScheduler(ENGINES[0].for_one())
    for number in range(NUM_REQUESTS):
        add(watched, ENGINES[0], number, resumable=number % 2 == 0)
    with pytest.raises(AssertionError, match="stuck"):
        run_to_the_end(watched)


@EVERY_ENGINE
def test_a_request_that_can_never_fit_is_refused_with_the_reason(engine: Engine) -> None:
    config = engine.for_one()
    smaller = WatchedScheduler(engine.with_blocks(config.num_blocks - 1))
    before = everything_of(smaller.scheduler)
    reason = rf"can need {config.num_blocks} blocks and there are {config.num_blocks - 1}"
    with pytest.raises(RequestError, match=reason):
        add(smaller, engine, 0)
    assert everything_of(smaller.scheduler) == before

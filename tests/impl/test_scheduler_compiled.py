"""Interpreted and compiled, the scheduler does the same to every byte of its memory, in every call."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.impl.request_truth import Choices
from tests.impl.scheduler_world import GROUPS, Settings, World
from tests.impl.twin import twin_scheduler

from draftproof.impl.scheduler import settle
from draftproof.impl.scheduler.calls import CompiledCalls

NUM_WORLDS = 30
NUM_TURNS = 60


def some_settings(chosen: random.Random, asynchronous: bool) -> Settings:
    """A small scheduler, any."""
    block_size, num_drafts = chosen.randint(1, 4), chosen.randint(0, 4)
    lookaheads = [one for one in (0, 1, num_drafts) if one <= min(block_size, num_drafts)]
    return Settings(
        asynchronous=asynchronous,
        depth=chosen.randint(1, 3),
        num_drafts=num_drafts,
        block_size=block_size,
        groups=chosen.choice(sorted(GROUPS)),
        lookahead=chosen.choice(lookaheads),
        hash_lookahead=chosen.random() < 0.5,
        num_lookahead_slots=chosen.choice((0, num_drafts)),
        extra_blocks=chosen.choice((0, 1, 5, 20)),
        max_num_seqs=chosen.randint(1, 4),
        extra_budget=chosen.choice((60, 0, 2, 6)),
        threshold=chosen.choice((0, 0, 1, 3)),
        by_priority=chosen.random() < 0.5,
        caching=chosen.random() < 0.8,
        drop_stale=chosen.random() < 0.5,
        release_at_once=chosen.random() < 0.5,
    )


def wander(world: World, chosen: random.Random, num_turns: int) -> None:
    """Random calls, all kinds."""
    for _ in range(num_turns):
        what = chosen.randrange(16)
        if what == 0:
            world.arrive(Choices(chosen.getrandbits(64)))
        elif what == 1:
            world.append_chunk(chosen.randrange(8), chosen.randint(1, 5), text=chosen.randrange(3))
        elif what == 2 and chosen.random() < 0.3:
            world.close_session(chosen.randrange(8))
        elif what == 3 and chosen.random() < 0.5:
            world.abort(chosen.randrange(8))
        elif what == 4 and chosen.random() < 0.3:
            world.fail()
        elif what == 5 and chosen.random() < 0.3:
            world.reset_prefix_cache(chosen.random() < 0.5)
        elif what == 6:
            world.look_up(chosen.randint(1, 16), text=chosen.randrange(3), switch=chosen.randrange(16))
        elif what == 7:
            world.settle(chosen.getrandbits(32))
        else:
            world.advance(chosen.randint(1, 8), chosen.getrandbits(800))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_call_does_the_same_compiled(asynchronous: bool) -> None:
    num_calls: Counter[str] = Counter()
    for seed in range(NUM_WORLDS):
        chosen = random.Random(seed)
        settings = some_settings(chosen, asynchronous)
        scheduler, twin = twin_scheduler(settings.config())
        world = World(settings, scheduler, checks=False, sweeps=False)
        wander(world, chosen, NUM_TURNS)
        world.finish_all()
        num_calls.update(twin.num_calls)
    calls = {name for name in vars(CompiledCalls) if not name.startswith("_")}
    assert {name for name in calls if num_calls[name] == 0} == set()
    assert num_calls["schedule_step"] > 1_000


def test_a_twin_that_differs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "tokens_to_keep", lambda *_: 1)  # of the interpreted one only
    settings = Settings()
    scheduler, _ = twin_scheduler(settings.config())
    world = World(settings, scheduler, checks=False, sweeps=False)
    with pytest.raises(AssertionError, match="settle_step: "):
        for number in range(200):
            world.advance(8, random.Random(number).getrandbits(800))

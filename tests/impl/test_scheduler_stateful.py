"""Whatever happens to it, in whatever order: a scheduler agrees with the truth beside it after every call.

Hypothesis chooses a small scheduler and a sequence of calls, and shrinks what fails to the shortest. Compared
are all counters of every request, every slot that a step reads, what is published and found, the queues and
the pool (`agreement`). The sequences at the end once failed, or are a short way to what seldom happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from tests.impl.request_truth import INVALID
from tests.impl.scheduler_world import GROUPS, Settings, World

MAX_EXAMPLES = 500
NUM_RULES = 50
LEAST_STEPS = 12_000
"""Of each mode, about half of what the examples come to."""

seen: Counter[str] = Counter()
"""What has happened in all examples of a run: a machine that never preempts shows nothing."""
HAPPENS = (
    "hit",
    "padded",
    "preempted",
    "idle session gave its KV up",
    "stop inside an accepted run",
    "late output dropped",
    "next turn",
    "steps lost",
    "reset",
    "abort",
    "finish",
    "copy",
    "pruned",
)
HAPPENS_AHEAD = (*HAPPENS, "late output delivered")

SELDOM = ("close", "close", "abort", "abort", "fail", "reset", "nothing", "nothing")

numbers = strategies.integers(0, 2**64 - 1)
long_numbers = strategies.integers(0, 2**800 - 1)
lengths = strategies.integers(1, 16)
places = strategies.integers(0, 7)
texts = strategies.integers(0, 2)
flags = strategies.booleans()


@strategies.composite
def settings(draw: Callable[..., Any], asynchronous: bool) -> Settings:
    """A scheduler with small numbers."""
    block_size, num_drafts = draw(strategies.integers(1, 4)), draw(strategies.integers(0, 4))
    lookaheads = [one for one in {0, 1, num_drafts} if one <= min(block_size, num_drafts)]
    return Settings(
        asynchronous=asynchronous,
        depth=draw(strategies.integers(1, 3)),
        num_drafts=num_drafts,
        block_size=block_size,
        groups=draw(strategies.sampled_from(sorted(GROUPS))),
        lookahead=draw(strategies.sampled_from(sorted(lookaheads))),
        hash_lookahead=draw(flags),
        num_lookahead_slots=draw(strategies.sampled_from(sorted({0, num_drafts}))),
        extra_blocks=draw(strategies.sampled_from((0, 0, 1, 2, 5, 20))),
        max_num_seqs=draw(strategies.integers(1, 4)),
        extra_budget=draw(strategies.sampled_from((60, 0, 2, 6))),
        threshold=draw(strategies.sampled_from((0, 0, 1, 3))),
        by_priority=draw(flags),
        caching=draw(strategies.sampled_from((True, True, True, False))),
        drop_stale=draw(flags),
        release_at_once=draw(flags),
    )


class Calls(RuleBasedStateMachine):
    """Every call there is, on a scheduler of one mode."""

    asynchronous = False
    world: World

    @initialize(data=strategies.data())
    def start(self, data: Any) -> None:
        """A new scheduler."""
        self.world = World(data.draw(settings(self.asynchronous)))

    @rule(
        length=strategies.integers(1, 24),
        text=texts,
        other=texts,
        switch=lengths,
        max_tokens=strategies.integers(1, 20),
        min_tokens=strategies.integers(0, 3),
        stops=flags,
        resumable=strategies.sampled_from((False, False, True)),
        priority=strategies.integers(0, 2),
        salted=strategies.sampled_from((False, False, False, True)),
    )
    def add(self, **arguments: Any) -> None:
        """A request arrives."""
        self.world.add(**arguments)

    @rule(count=strategies.integers(1, 8), choices=long_numbers)
    def advance(self, count: int, choices: int) -> None:
        """Steps are dispatched and return."""
        self.world.advance(count, choices)

    @rule(count=strategies.integers(8, 24), choices=long_numbers)
    def advance_far(self, count: int, choices: int) -> None:
        """Many steps are dispatched and return."""
        self.world.advance(count, choices)

    @rule(choices=numbers)
    def schedule(self, choices: int) -> None:
        """A step is dispatched."""
        self.world.schedule(choices)

    @rule(choices=numbers, proposes=flags)
    def settle(self, choices: int, proposes: bool) -> None:
        """A step returns."""
        self.world.settle(choices, proposes=proposes)

    @rule(index=places, length=strategies.integers(1, 5), text=texts, max_tokens=strategies.integers(1, 4))
    def append_chunk(self, index: int, length: int, text: int, max_tokens: int) -> None:
        """A session is told more."""
        self.world.append_chunk(index, length, text=text, max_tokens=max_tokens)

    @rule(length=lengths, text=texts, other=texts, switch=lengths)
    def look_up(self, length: int, text: int, other: int, switch: int) -> None:
        """Somebody asks what is cached."""
        self.world.look_up(length, text=text, other=other, switch=switch)

    @rule(what=strategies.sampled_from(SELDOM), index=places)
    def seldom(self, what: str, index: int) -> None:
        """Something that would keep anything else from happening if it came often."""
        world = self.world
        if what == "close":
            world.close_session(index)
        elif what == "abort":
            world.abort(index)
        elif what == "fail":
            for _ in range(index % 3):  # some of the lost steps have run
                world.run_device()
            world.fail()
        elif what == "reset":
            seen["reset"] += world.watched.reset_prefix_cache(index % 2 == 0)

    def teardown(self) -> None:
        """Everybody comes to an end."""
        if hasattr(self, "world"):  # what failed in `start` is told without it
            self.world.finish_all()
            seen.update(self.world.watched.seen)


class AsynchronousCalls(Calls):
    """The same with steps ahead."""

    asynchronous = True


@pytest.mark.parametrize(("machine", "happens"), [(Calls, HAPPENS), (AsynchronousCalls, HAPPENS_AHEAD)])
def test_a_scheduler_agrees_with_the_truth_after_every_call(
    machine: type[Calls], happens: tuple[str, ...]
) -> None:
    seen.clear()
    run_state_machine_as_test(
        machine,
        settings=hypothesis.settings(
            max_examples=MAX_EXAMPLES,
            stateful_step_count=NUM_RULES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
    assert seen["step"] >= LEAST_STEPS
    assert [one for one in happens if seen[one] == 0] == []


# ---- sequences ----


def preempted_at_its_limit(world: World, *, resumable: bool) -> None:
    """The second request's last step is in flight when the first takes its blocks: late output ends it."""
    world.add(3, max_tokens=4, stops=False)
    world.add(5, text=2, max_tokens=1, stops=False, resumable=resumable)
    world.schedule(0)
    world.schedule(0)
    world.settle()


def late_output_stops(world: World) -> None:
    """A request that waits finishes."""
    preempted_at_its_limit(world, resumable=False)


def turn_ends_while_preempted(world: World) -> None:
    """A session that waits pauses without KV, and goes on with all its tokens."""
    preempted_at_its_limit(world, resumable=True)
    world.append_chunk(0, 2)


def idle_session_makes_room(world: World) -> None:
    """A paused session holds five of eight blocks, the next request needs six."""
    world.add(5, max_tokens=1, resumable=True)
    world.schedule(0)
    world.settle()
    world.add(6, text=2)
    world.schedule(0)


def one_token_goes_on(world: World) -> None:
    """A session goes on with one token: its step is padded to the shape of a verification."""
    world.add(3, max_tokens=1, resumable=True)
    world.schedule(0)
    world.settle()
    world.append_chunk(0, 1)
    world.schedule(0)


def ruled_out_and_cut(world: World) -> None:
    """A draft is ruled out, and then the model's length leaves no room for it in the step."""
    request = world.add(world.settings.max_model_len - 2, max_tokens=2, stops=False)
    assert request is not None
    world.schedule(0)
    world.settle(proposes=False)
    world.watched.propose([request.row], [[INVALID]])
    assert request.proposal == [INVALID]
    world.schedule(0)
    world.settle()


def shorter_than_the_lookahead(world: World) -> None:
    """A digest covers two tokens behind its block; the prompt has one token in all."""
    world.add(1)
    world.schedule(0)


AHEAD = Settings(asynchronous=True, depth=2, num_drafts=0, block_size=1)


@pytest.mark.parametrize(
    ("calls", "settings", "happens"),
    [
        (late_output_stops, AHEAD, "late output stops"),
        (turn_ends_while_preempted, AHEAD, "turn ends while preempted"),
        (idle_session_makes_room, AHEAD, "idle session gave its KV up"),
        (one_token_goes_on, Settings(), "padded"),
        (one_token_goes_on, Settings(asynchronous=True), "padded"),
        (ruled_out_and_cut, Settings(), "step"),
        (shorter_than_the_lookahead, Settings(lookahead=2, hash_lookahead=True), "step"),
    ],
)
def test_what_seldom_happens_agrees_too(
    calls: Callable[[World], None], settings: Settings, happens: str
) -> None:
    world = World(settings)
    calls(world)
    assert world.watched.seen[happens] > 0
    world.finish_all()

"""Recurrent state, token by token: what is found is what it says, nothing is lost, ghosts are the truth."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from draftproof.impl import accounting, recurrent
from draftproof.impl.decisions import checkpoint_to_keep
from draftproof.impl.dispatch import num_drafts_in_step
from draftproof.proofs.recurrent_mutant import changed_code
from draftproof.spec.ghosts import initial_state
from draftproof.spec.ledger import Rules
from draftproof.spec.recurrent import Recurrent, RecurrentRules
from draftproof.spec.recurrent_events import Dispatch, NextStep, Publish, Settle
from draftproof.spec.recurrent_tokens import (
    Code,
    Reference,
    advance,
    complaints,
    new_reference,
    unsafe,
)
from draftproof.spec.recurrent_walks import (
    Bounds,
    Protocol,
    Walk,
    admitted,
    dispatched,
    explore,
    left,
    moves,
    published,
)

CODE = Code(recurrent.TRANSITIONS, recurrent.DECISIONS)

# vLLM #54979 without its guard: what returned last is attached to the slot in use, whatever is in flight.
UNGUARDED: Callable[..., Recurrent] = changed_code(
    "publish",
    (
        ("end = num_possible_tokens(recurrent)", "end = recurrent.num_state_tokens"),
        ("end > recurrent.num_published_tokens, ", ""),
    ),
).transitions["publish"]


# ---- every state within small bounds


@pytest.mark.parametrize(
    ("rules", "bounds"),
    [
        (RecurrentRules(1, 2), Bounds(3, 5, 1, 4, 0, others=False, sessions=False)),
        (RecurrentRules(1, 2), Bounds(3, 4, 2, 4, 0, others=False, sessions=True)),
        (RecurrentRules(0, 2), Bounds(3, 5, 3, 3, 0, others=False, sessions=False)),
        (RecurrentRules(0, 3), Bounds(4, 5, 2, 3, 2, others=False, sessions=True)),
        (RecurrentRules(1, 2), Bounds(2, 3, 1, 4, 0, others=True, sessions=False)),
    ],
    ids=["drafts", "run-ahead-sessions", "deep-run-ahead", "partial-checkpoint", "other-requests"],
)
def test_in_every_state_what_is_found_is_right_nothing_is_lost_and_ghosts_are_the_truth(
    rules: RecurrentRules, bounds: Bounds
) -> None:
    start = new_reference(bounds.num_prompt_tokens, bounds.num_blocks)
    explored = explore(start, Walk(rules, CODE, bounds), complaints, limit=6_000)
    assert explored.found == {}
    assert explored.complete
    assert explored.num_states > 300


@pytest.mark.parametrize("seed", range(8))
def test_random_walks_stay_right(seed: int) -> None:
    """Longer texts, more drafts, a checkpoint inside a block, other requests, and a pool that runs dry."""
    chooser = random.Random(seed)
    rules = RecurrentRules(chooser.randrange(0, 4), chooser.randrange(1, 6))
    bounds = Bounds(
        num_prompt_tokens=chooser.randrange(2, 9),
        max_num_tokens=24,
        max_num_steps_in_flight=chooser.randrange(1, 4),
        num_blocks=rules.num_speculative_tokens + chooser.randrange(3, 8),
        num_checkpoint_tokens=chooser.randrange(0, 8),
    )
    walk = Walk(rules, CODE, bounds)
    reference = new_reference(bounds.num_prompt_tokens, bounds.num_blocks)
    kinds: set[str] = set()
    for _ in range(250):
        options = list(moves(reference, walk))
        if not options:
            break
        # Leaving starts everything over: seldom, or no text would get long.
        rare = ("leave", "fail", "finish", "end turn")
        weights = [1 if label.startswith(rare) else 8 for label, _ in options]
        label, reference = chooser.choices(options, weights)[0]
        kinds.add(label.split("(")[0])
        assert complaints(reference, rules) == [], label
    assert {"admit", "step", "return", "next step"} <= kinds


# ---- the four corners: terminal registration, and the guard of M4


class Corner(NamedTuple):
    """What may go wrong within the bounds, by its first word."""

    lost: bool
    unsafe: bool


@pytest.mark.parametrize(
    ("terminal", "guarded", "expected"),
    [
        (False, False, Corner(lost=True, unsafe=False)),  # the guard is of a publication that is not made
        (False, True, Corner(lost=True, unsafe=False)),
        (True, False, Corner(lost=False, unsafe=True)),
        (True, True, Corner(lost=False, unsafe=False)),
    ],
)
def test_terminal_registration_and_its_guard_are_each_needed(
    terminal: bool, guarded: bool, expected: Corner
) -> None:
    bounds = Bounds(3, 5, 2, 5, 0, others=False, sessions=False)
    protocol = Protocol(terminal, None if guarded else UNGUARDED)
    explored = explore(
        new_reference(bounds.num_prompt_tokens, bounds.num_blocks),
        Walk(RecurrentRules(1, 2), CODE, bounds, protocol),
        lambda reference, rules: unsafe(reference),
        limit=6_000,
        stop_at_first=False,
    )
    assert explored.complete
    found = Corner(
        lost=any(complaint.startswith("lost") for complaint in explored.found),
        unsafe=any(complaint.startswith("the state of") for complaint in explored.found),
    )
    assert found == expected


def test_without_its_guard_the_shortest_damage_is_a_leave_with_a_step_in_flight() -> None:
    bounds = Bounds(3, 5, 2, 5, 0, others=False, sessions=False)
    walk = Walk(RecurrentRules(1, 2), CODE, bounds, Protocol(publish_at_exit=UNGUARDED))
    start = new_reference(bounds.num_prompt_tokens, bounds.num_blocks)
    explored = explore(start, walk, lambda reference, _: unsafe(reference), limit=6_000)
    assert list(explored.found.items()) == [
        (
            "the state of (0, 1, 2) is found for (0, 1)",
            ("admit(hit=0)", "step(n=2, d=0, a=0)", "next step", "step(n=1, d=0, a=0)", "return", "leave"),
        )
    ]


# ---- the seed's cases, in its numbers: K = 3, blocks of 16


class Case(NamedTuple):
    """A prompt, one sampled token, then a step of three drafts at which the request stops."""

    num_prompt_tokens: int
    num_accepted: int
    num_kept: int
    fence: int


LOSSES = {
    "last response fully accepted, N=49": (Case(44, 3, 4, 0), 48),
    "stop on an accepted draft, N=48": (Case(44, 3, 3, 0), 48),
    "multi-module MTP, N=35": (Case(30, 3, 4, 2), 32),
    "multi-module MTP, stop on an accepted draft, N=34": (Case(30, 3, 3, 2), 32),
}
"""The boundary that is lost when nothing is registered at the end."""

SAFETY = {
    "MTP safety boundary, C=33": (Case(29, 3, 4, 2), 16),
    "final sampled token never written, C=47, N=48": (Case(43, 3, 4, 0), 32),
    "stop cuts inside the block, C=49, N=47": (Case(45, 3, 1, 0), 32),
    "every draft rejected, N=46": (Case(44, 0, 1, 0), 32),
}
"""What attention may publish; nothing beyond may be hit."""


class Finished(NamedTuple):
    attention: int
    """R at the finish."""
    states: set[int]
    """Positions of the request's own text whose state can be found."""
    problems: list[str]

    @property
    def reusable(self) -> int:
        """What a longer look-up can hit: all of it, in attention's blocks and with a state at its end."""
        return max((position for position in self.states if position <= self.attention), default=0)


def finished(case: Case, asynchronous: bool, protocol: Protocol) -> Finished:
    """Run a case on ledger and record side by side, with the token-level truth beneath."""
    rules, group = Rules(3, 16, asynchronous, case.fence), RecurrentRules(3, 16)
    walk = Walk(group, CODE, Bounds(), protocol)
    ledger = accounting.admit(initial_state(case.num_prompt_tokens).ledger, rules, 0)
    checkpoint = checkpoint_to_keep(ledger, rules, False)
    started = admitted(new_reference(case.num_prompt_tokens, 12), walk, checkpoint)
    assert started is not None
    reference: Reference = started
    problems: list[str] = []

    def schedule(num_tokens: int, num_accepted: int) -> None:
        nonlocal ledger, reference
        reference = advance(reference, "next_step", NextStep(), {}, CODE, group)
        num_drafts = num_drafts_in_step(ledger, num_tokens)
        event = Dispatch(num_tokens, num_drafts, ledger.num_tokens, num_accepted)
        after = dispatched(reference, walk, event)
        assert after is not None
        ledger, reference = accounting.schedule(ledger, rules, num_tokens), after
        limit = recurrent.registrable_in_service(ledger)
        assert reference.ghosts.num_offered_tokens >= limit
        problems.extend(complaints(reference, group))

    def settle(num_kept: int, stopped: int) -> None:
        nonlocal ledger, reference
        head = reference.in_flight[0]
        if head.generated:
            ledger = accounting.output(
                ledger, rules, head.num_tokens, head.num_drafts, head.num_accepted, num_kept, stopped
            )
        else:
            ledger = accounting.chunk_output(ledger, rules, head.num_tokens)
        event = Settle(head.num_tokens, head.num_drafts, head.num_accepted, num_kept)
        reference = advance(reference, "settle", event, {}, CODE, group)
        if not stopped:
            reference = published(reference, walk)
        assert (
            reference.recurrent.num_state_tokens == ledger.num_computed_tokens - ledger.num_in_flight_tokens
        )
        assert reference.recurrent.num_trimmed_tokens == ledger.num_trimmed_tokens
        problems.extend(complaints(reference, group))

    start = 0
    while start < case.num_prompt_tokens:
        known = case.num_prompt_tokens
        chunk = recurrent.chunk_to_schedule(start, known - start, known, checkpoint, group)
        start += chunk
        schedule(chunk, 0)
        if start < known:
            settle(0, 0)
    if asynchronous:
        schedule(4, case.num_accepted)
        settle(1, 0)
        schedule(4, 0)
    else:
        settle(1, 0)
        ledger = accounting.draft(ledger, rules, 3)
        schedule(4, case.num_accepted)
    settle(case.num_kept, 1)
    limit = recurrent.registrable_at_exit(ledger)
    reference = left(reference, walk, num_replaced=0)
    if protocol.publishes_at_exit:
        ledger = accounting.finish(ledger, rules)
        assert limit <= len(reference.tokens)
    text = reference.tokens
    found = {
        len(block.found_for)
        for block in reference.blocks
        if block.found_for == text[: len(block.found_for or ())] and block.found_for
    }
    problems.extend(problem for problem in unsafe(reference) if not problem.startswith("lost"))
    return Finished(ledger.num_registered_tokens, found, problems)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_case_loses_its_block_exactly_without_terminal_registration(
    name: str, asynchronous: bool
) -> None:
    case, boundary = LOSSES[name]
    with_it = finished(case, asynchronous, Protocol())
    assert (with_it.reusable, with_it.problems) == (boundary, [])
    without = finished(case, asynchronous, Protocol(publishes_at_exit=False))
    assert (boundary in without.states, without.problems) == (False, [])
    unguarded = finished(case, asynchronous, Protocol(publish_at_exit=UNGUARDED))
    assert unguarded.reusable == boundary


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("name", SAFETY)
def test_a_safety_case_publishes_nothing_beyond(name: str, asynchronous: bool) -> None:
    case, boundary = SAFETY[name]
    with_it = finished(case, asynchronous, Protocol())
    assert (with_it.attention, with_it.reusable, with_it.problems) == (boundary, boundary, [])


def test_a_stop_at_a_settled_checkpoint_with_a_step_in_flight_needs_the_guard() -> None:
    """vLLM #54979: a partial tail at 6 settled, its owner runs ahead, and the request leaves."""
    group = RecurrentRules(0, 4)
    for publish, safe in ((None, True), (UNGUARDED, False)):
        walk = Walk(group, CODE, Bounds(), Protocol(publish_at_exit=publish))
        started = admitted(new_reference(7, 6), walk, 6)
        assert started is not None
        first = dispatched(started, walk, Dispatch(6, 0, 7, 0))
        assert first is not None and first.recurrent.running_key == 6
        later = advance(first, "next_step", NextStep(), {}, CODE, group)
        second = dispatched(later, walk, Dispatch(1, 0, 7, 0))
        assert second is not None and second.recurrent.running_key == 0, "the slot is private again"
        settled = published(advance(second, "settle", Settle(6, 0, 0, 0), {}, CODE, group), walk)
        gone = left(settled, walk, num_replaced=0)
        assert (unsafe(gone) == []) == safe
        right = [block for block in gone.blocks if block.found_for == tuple(range(6)) == block.consumed]
        assert len(right) == 1, "the durable copy is there in either case"


# ---- the model notices what is wrong


def test_complaints_are_made() -> None:
    group, walk = RecurrentRules(0, 2), Walk(RecurrentRules(0, 2), CODE, Bounds())
    started = admitted(new_reference(3, 4), walk, 0)
    assert started is not None
    reference = dispatched(started, walk, Dispatch(2, 0, 3, 0))
    assert reference is not None and complaints(reference, group) == []
    index = next(index for index, block in enumerate(reference.blocks) if block.found_for is not None)
    blocks = list(reference.blocks)
    blocks[index] = blocks[index]._replace(consumed=(7,))
    wrong = reference._replace(blocks=tuple(blocks))
    assert "the state of (7,) is found for (0, 1)" in complaints(wrong, group)
    assert f"block {index} should hold 2 tokens, it has (7,)" in complaints(wrong, group)
    blocks[index] = reference.blocks[index]._replace(ghost=blocks[index].ghost._replace(holds=1))
    assert any(
        "published_holds_its_key" in one
        for one in complaints(reference._replace(blocks=tuple(blocks)), group)
    )
    early = advance(reference, "publish", Publish(3), {}, CODE, group)
    assert any("offered" in one for one in complaints(early, group)), "published beyond what was dispatched"

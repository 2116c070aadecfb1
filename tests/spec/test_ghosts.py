"""Ghosts mean what they say: V and W are the token-level truth, on random and on all small traces.

The exhaustive half enumerates every state that requests of at most `max_num_tokens` tokens can reach,
with at most so many steps in flight, whatever the order and number of events. The search ends by itself:
situations that differ only in the names of tokens are one. So every trace of any length within the sizes
is covered, preemptions, stops and session turns included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftproof.impl.accounting import TRANSITIONS
from draftproof.impl.contracts import plain
from draftproof.impl.decisions import may_release
from draftproof.spec import ghosts, guards, tokens
from draftproof.spec.algebra import floor_to_block
from draftproof.spec.events import EndTurn, Output, Preempt, Schedule, StaleOutput, event_name
from draftproof.spec.ghosts import Ghosts
from draftproof.spec.invariants import invariants
from draftproof.spec.ledger import FINISHED, PAUSED, RUNNING, Ledger, Rules
from draftproof.spec.queue import Transitions
from draftproof.spec.tokens import Reference
from draftproof.spec.walks import Move, Sizes, moves, pick

CODE: Transitions = {name: plain(function) for name, function in TRANSITIONS.items()}

SMALL = Sizes(4, 1, 2)
SYNCHRONOUS, ASYNCHRONOUS = Rules(1, 2, False, 0), Rules(1, 2, True, 0)

# Rules, prompt, sizes, and the numbers of states and of steps between them that were found: written down
# so that a search which suddenly sees less does not pass unnoticed.
EXHAUSTIVE = {
    "synchronous": (Rules(1, 2, False, 0), 2, Sizes(5, 2, 2), 48_262, 160_144),
    "asynchronous": (Rules(1, 2, True, 0), 2, Sizes(5, 2, 2), 56_548, 194_905),
    "synchronous, two drafts": (Rules(2, 2, False, 0), 2, Sizes(4, 1, 2), 15_934, 59_672),
    "asynchronous, two drafts": (Rules(2, 2, True, 0), 1, Sizes(4, 1, 2), 26_870, 105_193),
    "asynchronous, three in flight, fence": (Rules(2, 3, True, 1), 1, Sizes(3, 1, 3), 15_196, 65_311),
}


def broken_state(reference: Reference, rules: Rules) -> list[str]:
    """Everything that is wrong in a state: invariants, and ghosts against tokens."""
    holds = invariants(reference.run.state, rules)
    return [f"invariant {key}" for key in holds if not holds[key]] + tokens.disagreements(reference)


def broken_step(before: Reference, rules: Rules, move: Move, after: Reference) -> list[str]:
    """Everything that is wrong with a step: its whole guard, and the exits."""
    facts = guards.conditions(event_name(move.event), before.run.state, rules, move.event)
    return [f"guard {key}" for key in facts if not facts[key]] + broken_exit(before, rules, move, after)


def broken_exit(before: Reference, rules: Rules, move: Move, after: Reference) -> list[str]:
    """T4 against the tokens: every whole settled block is registered at an exit, and no more."""
    old, new = before.run.state.ledger, after.run.state.ledger
    name = event_name(move.event)
    if name not in ("finish", "abort", "preempt", "end_turn"):
        return []
    settled = tokens.num_settled_tokens(before)
    registered = new.num_registered_tokens
    if isinstance(move.event, Preempt):
        registered = new.num_registered_at_preemption
    # Between turns the last known position counts for nothing: the next chunk overwrites it.
    if old.status == PAUSED:
        settled = min(settled, old.num_tokens - 1)
    if isinstance(move.event, EndTurn):
        settled = old.num_tokens - 1 if old.status == RUNNING else 0
    whole = floor_to_block(max(settled - rules.registration_fence, 0), rules.block_size)
    found = []
    if registered != max(old.num_registered_tokens, whole):
        found.append(f"{name} registered {registered}, settled blocks reach {whole}")
    if registered > tokens.num_valid_tokens(before):
        found.append(f"{name} registered {registered} of {tokens.num_valid_tokens(before)} valid")
    return found


def enumerated(
    rules: Rules, num_prompt_tokens: int, sizes: Sizes, code: Transitions = CODE
) -> Iterator[tuple[Reference, Move, Reference, bool]]:
    """Every step between reachable states, breadth first: before, move, after, and whether after is new."""
    frontier = [tokens.renamed(tokens.start(num_prompt_tokens))]
    seen = set(frontier)
    while frontier:
        reached = []
        for before in frontier:
            for move in moves(before, rules, sizes):
                after = tokens.renamed(tokens.advance(before, rules, move.event, code, move.num_accepted))
                is_new = after not in seen
                if is_new:
                    seen.add(after)
                    reached.append(after)
                yield before, move, after, is_new
        frontier = reached


def first_broken(rules: Rules, code: Transitions = CODE) -> list[str]:
    """What is wrong at the first step of a small enumeration that breaks something; empty if none does."""
    for before, move, after, _ in enumerated(rules, 2, SMALL, code):
        found = broken_step(before, rules, move, after) + broken_state(after, rules)
        if found:
            return found
    return []


def first_disagreement(rules: Rules, num_prompt_tokens: int, sizes: Sizes, code: Transitions = CODE) -> str:
    """Where ghosts and tokens first part in an enumeration, whatever the invariants say; empty if nowhere."""
    for _, _, after, _ in enumerated(rules, num_prompt_tokens, sizes, code):
        found = tokens.disagreements(after)
        if found:
            return found[0]
    return ""


@pytest.mark.parametrize("case", EXHAUSTIVE)
def test_ghosts_are_the_truth_in_every_small_state(case: str) -> None:
    rules, num_prompt_tokens, sizes, num_states, num_steps = EXHAUSTIVE[case]
    states, steps = 1, 0
    for before, move, after, is_new in enumerated(rules, num_prompt_tokens, sizes):
        steps += 1
        states += is_new
        found = broken_step(before, rules, move, after) + (broken_state(after, rules) if is_new else [])
        assert not found, (found, before, move, after)
    assert (states, steps) == (num_states, num_steps)


@st.composite
def walked(draw: st.DrawFn) -> tuple[Rules, int, Sizes, list[int]]:
    """Rules, a prompt, sizes and the numbers that pick the moves."""
    num_drafts = draw(st.integers(0, 4))
    rules = Rules(
        num_speculative_tokens=num_drafts,
        block_size=draw(st.integers(1, 4)),
        asynchronous=draw(st.booleans()),
        registration_fence=draw(st.integers(0, max(num_drafts - 1, 0))),
    )
    sizes = Sizes(max_num_tokens=40, max_num_chunk_tokens=4, max_num_steps_in_flight=draw(st.integers(1, 4)))
    return (
        rules,
        draw(st.integers(1, 12)),
        sizes,
        draw(st.lists(st.integers(0, 2**16), min_size=20, max_size=50)),
    )


def walk(rules: Rules, num_prompt_tokens: int, sizes: Sizes, numbers: list[int], code: Transitions) -> None:
    """Follow a random trace and assert after every move."""
    reference = tokens.start(num_prompt_tokens)
    for number in numbers:
        options = moves(reference, rules, sizes)
        if not options:
            return
        move = pick(options, number, lambda option: option.event)
        after = tokens.advance(reference, rules, move.event, code, move.num_accepted)
        found = broken_step(reference, rules, move, after) + broken_state(after, rules)
        assert not found, (found, reference, move, after)
        reference = after


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(walked())
def test_ghosts_are_the_truth_on_random_traces(setup: tuple[Rules, int, Sizes, list[int]]) -> None:
    walk(*setup, CODE)


def wrong_ghost(name: str, **changes: int) -> Any:
    """The ghost update of one transition, off by the given amounts."""
    right = getattr(ghosts, name)

    def update(state: Any, rules: Rules, event: Any) -> Ghosts:
        truth: Ghosts = right(state, rules, event)
        return truth._replace(**{field: getattr(truth, field) + by for field, by in changes.items()})

    return update


@pytest.mark.parametrize(
    ("name", "changes", "verdict"),
    [
        ("output", {"num_settled_tokens": 1}, "unsound: W"),
        ("output", {"num_settled_tokens": -1}, "incomplete: W"),
        ("schedule", {"num_valid_tokens": 1}, "unsound: V"),
        ("schedule", {"num_valid_tokens": -1}, "incomplete: V"),
        ("fold", {"num_settled_tokens": 1}, "unsound: W"),
        ("end_turn", {"num_valid_tokens": -1}, "incomplete: V"),
    ],
)
def test_a_wrong_ghost_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, int], verdict: str
) -> None:
    monkeypatch.setattr(ghosts, name, wrong_ghost(name, **changes))
    assert first_disagreement(ASYNCHRONOUS, 2, SMALL).startswith(verdict)


def test_a_ghost_that_ignores_rejections_is_found_on_random_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ghosts.output
    monkeypatch.setattr(
        ghosts,
        "output",
        lambda state, rules, event: right(state, rules, event._replace(num_accepted=event.num_drafts)),
    )
    with pytest.raises(AssertionError, match="unsound"):
        test_ghosts_are_the_truth_on_random_traces()


def with_fault(name: str, **changes: Any) -> Mapping[str, Any]:
    """The code with one transition's result changed: field to function of (ledger before, event, value)."""
    right = CODE[name]

    def wrong(ledger: Ledger, rules: Rules, *event: Any) -> Ledger:
        result = right(ledger, rules, *event)
        return result._replace(
            **{
                field: change(ledger, Output(*event) if name == "output" else event, getattr(result, field))
                for field, change in changes.items()
            }
        )

    return {**CODE, name: wrong}


def test_a_trim_left_counted_is_found_where_it_starts() -> None:
    def computed(ledger: Ledger, event: Any, value: int) -> int:
        return int(value + event.num_accepted + 1 - event.num_kept)

    code = with_fault("output", num_computed_tokens=computed)
    assert "invariant settled_is_computed_less_live" in first_broken(SYNCHRONOUS, code)


def test_a_draft_left_counted_makes_a_step_read_what_nobody_wrote() -> None:
    """Not only the invariants notice: with this fault the token-level truth itself parts from the ghosts."""

    def computed(ledger: Ledger, event: Any, value: int) -> int:
        return int(value + event.num_drafts - event.num_accepted)

    code = with_fault("output", num_computed_tokens=computed)
    assert first_disagreement(SYNCHRONOUS, 1, Sizes(3, 1, 1), code)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("finish", "num_registered_tokens"),
        ("abort", "num_registered_tokens"),
        ("end_turn", "num_registered_tokens"),
        ("preempt", "num_registered_at_preemption"),
    ],
)
def test_an_exit_that_registers_nothing_new_is_found(name: str, field: str) -> None:
    def registered(ledger: Ledger, event: Any, value: int) -> int:
        return ledger.num_registered_tokens

    code = with_fault(name, **{field: registered})
    assert any(
        message.startswith(f"{name} registered")
        for before, move, after, _ in enumerated(SYNCHRONOUS, 2, SMALL, code)
        for message in broken_exit(before, SYNCHRONOUS, move, after)
    )


def test_kv_computed_over_a_gap_belongs_to_no_prefix() -> None:
    """A step that starts beyond what is written yields nothing valid, whatever its own tokens are."""
    reference = tokens.start(3)
    ledger = reference.run.state.ledger._replace(status=RUNNING, num_computed_tokens=1)
    skipped = reference._replace(
        run=reference.run._replace(state=reference.run.state._replace(ledger=ledger))
    )
    after = tokens.advance(skipped, SYNCHRONOUS, Schedule(2), CODE)
    assert after.enqueued == (None, None, None)
    assert tokens.num_valid_tokens(after) == 0


@pytest.mark.parametrize("rules", [SYNCHRONOUS, ASYNCHRONOUS])
def test_a_finished_request_takes_its_steps_back_and_nothing_else(rules: Rules) -> None:
    """Whatever was in flight returns and is dropped; then the blocks may go to others."""
    seen = set()
    for _, _, after, is_new in enumerated(rules, 2, SMALL):
        ledger, steps = after.run.state.ledger, after.run.queue
        if not is_new or ledger.status != FINISHED:
            continue
        options = moves(after, rules, SMALL)
        assert {type(move.event) for move in options} == ({StaleOutput} if steps else set())
        assert may_release(ledger, rules, 0) == (not steps)
        for move in options:
            following = tokens.advance(after, rules, move.event, CODE).run
            assert following.state.ledger._replace(num_in_flight_tokens=0, num_stale_tokens=0) == (
                ledger._replace(num_in_flight_tokens=0, num_stale_tokens=0)
            )
        seen.add(len(steps))
    assert seen == {0, 1, 2}


def test_between_turns_the_deficit_of_one_really_occurs() -> None:
    """Otherwise the exception in `disagreements` would be dead weight."""
    deficits = {
        tokens.num_settled_tokens(after) - after.run.state.ghosts.num_settled_tokens
        for _, move, after, is_new in enumerated(SYNCHRONOUS, 2, SMALL)
        if is_new and isinstance(move.event, EndTurn)
    }
    assert deficits == {0, 1}

"""The functions of recurrent state: compiled and interpreted alike, and the rules told in numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import draftproof.impl.compiled  # noqa: F401 - registers the algebra for compiled code
from draftproof.impl import code_cache, recurrent
from draftproof.spec import recurrent as positions
from draftproof.spec import recurrent_textbook as textbook
from draftproof.spec.ledger import Ledger, initial
from draftproof.spec.recurrent import NO_STATE, Recurrent, RecurrentRules

for _helper in (
    positions.num_certain_tokens,
    positions.num_possible_tokens,
    positions.last_boundary,
    positions.is_boundary,
):
    code_cache.register(_helper)

RULES = RecurrentRules(num_speculative_tokens=3, block_size=16)

EXTRA_ARGUMENTS = {
    "start": 2,
    "make_private": 0,
    "dispatch": 3,
    "publish": 1,
    "settle": 4,
    "end_turn": 0,
    "next_turn": 1,
    "leave": 0,
}


def random_record(chooser: random.Random) -> Recurrent:
    return Recurrent(*[chooser.randrange(40) for _ in Recurrent._fields])


@pytest.mark.parametrize("name", recurrent.TRANSITIONS)
def test_a_transition_is_the_same_compiled_interpreted_and_in_the_textbook(name: str) -> None:
    run = recurrent.TRANSITIONS[name]
    arguments = [0] * EXTRA_ARGUMENTS[name]
    compiled = code_cache.compile(run, random_record(random.Random(0)), RULES, *arguments)
    plain: Callable[..., Recurrent] | None = getattr(textbook, name, None)
    chooser, distinct = random.Random(1), set()
    for _ in range(400):
        record = random_record(chooser)
        rules = RecurrentRules(chooser.randrange(4), chooser.randrange(1, 9))
        event = [chooser.randrange(40) for _ in arguments]
        result = run(record, rules, *event)
        assert tuple(compiled(record, rules, *event)) == tuple(result)
        if plain is not None:
            assert plain(record, rules, *event) == result
        distinct.add(result)
    assert len(distinct) > 300 or name in ("leave", "start")
    assert all(type(value) is int for value in result)


CHECKED_DECISIONS: dict[str, Callable[[random.Random], tuple[Any, ...]]] = {
    "copy_needed": lambda chooser: (random_record(chooser),),
    "may_withdraw": lambda chooser: (chooser.randrange(3),),
    "first_unreserved": lambda chooser: (random_record(chooser), RULES),
    "slot_to_read": lambda chooser: (
        random_record(chooser)._replace(num_in_flight_tokens=chooser.randrange(2)),
        5,
    ),
    "state_survives_turn": lambda chooser: (
        random_record(chooser)._replace(num_in_flight_tokens=chooser.randrange(2)),
    ),
    "may_hit": lambda chooser: (chooser.randrange(4), chooser.randrange(4)),
    "must_withdraw": lambda chooser: (chooser.randrange(4), chooser.randrange(4)),
    "chunk_to_schedule": lambda chooser: (*[chooser.randrange(90) for _ in range(4)], RULES),
    "registrable_in_service": lambda chooser: (random_ledger(chooser),),
    "registrable_at_exit": lambda chooser: (random_ledger(chooser),),
    "registrable_at_turn_end": lambda chooser: (random_ledger(chooser),),
}


def random_ledger(chooser: random.Random) -> Ledger:
    values: list[Any] = [*[chooser.randrange(30) for _ in range(12)], False]
    return Ledger(*values)


@pytest.mark.parametrize("name", recurrent.DECISIONS)
def test_a_decision_is_the_same_compiled_and_interpreted(name: str) -> None:
    run, inputs = recurrent.DECISIONS[name], CHECKED_DECISIONS[name]
    compiled = code_cache.compile(run, *inputs(random.Random(0)))
    plain = getattr(textbook, name, None)
    chooser, distinct = random.Random(1), set()
    for _ in range(400):
        asked = inputs(chooser)
        result = run(*asked)
        assert compiled(*asked) == result
        if plain is not None and min(asked[-1] if isinstance(asked[-1], tuple) else (1,)) >= 0:
            assert plain(*asked) == result
        distinct.add(result)
    assert len(distinct) > 1


# ---- in numbers


def after(
    record: Recurrent, *events: tuple[str, tuple[int, ...]], rules: RecurrentRules = RULES
) -> Recurrent:
    for name, event in events:
        record = recurrent.TRANSITIONS[name](record, rules, *event)
    return record


def test_chunks_of_a_prompt_of_50_stop_at_the_checkpoint_and_at_the_end() -> None:
    """Prompt 50, states every 32 tokens, checkpoint 48: chunks [0, 48) and [48, 50)."""
    rules = RecurrentRules(0, 32)
    assert recurrent.chunk_to_schedule(0, 50, 50, 48, rules) == 48
    assert recurrent.chunk_to_schedule(48, 2, 50, 48, rules) == 2
    assert recurrent.chunk_to_schedule(0, 40, 50, 48, rules) == 32, "a budget of 40 reaches the boundary"
    assert recurrent.chunk_to_schedule(0, 20, 50, 48, rules) == 0, "one of 20 does not"


def test_a_resumed_request_is_aligned_too() -> None:
    """vLLM #33706: prompt 10, 3 output tokens, states every 8: 13 tokens again are [0, 8), then [8, 13)."""
    rules = RecurrentRules(0, 8)
    assert recurrent.chunk_to_schedule(0, 12, 13, 8, rules) == 8
    assert recurrent.chunk_to_schedule(8, 5, 13, 8, rules) == 5
    assert recurrent.chunk_to_schedule(0, 13, 13, 0, rules) == 13, "without a checkpoint ahead in one go"


def test_a_chunk_on_a_boundary_is_published_at_once_and_left_before_the_next() -> None:
    record = after(NO_STATE, ("start", (0, 32)), ("dispatch", (32, 0, 40)), ("publish", (32,)))
    assert (record.running_key, record.num_published_tokens) == (32, 32)
    assert recurrent.copy_needed(record)
    private = after(record, ("make_private", ()), ("dispatch", (8, 0, 40)), ("publish", (40,)))
    assert (private.running_key, private.num_published_tokens) == (0, 32)
    assert not recurrent.copy_needed(private)


def test_drafts_that_may_cross_a_boundary_get_a_target_and_others_do_not() -> None:
    """vLLM #57605: a step of 1 + 3 from 45 known, 44 consumed may reach 48."""
    record = after(NO_STATE, ("start", (0, 32)), ("dispatch", (44, 0, 44)), ("settle", (44, 0, 0, 1)))
    assert record.num_state_tokens == 44
    ahead = after(record, ("dispatch", (4, 3, 45)))
    assert (recurrent.first_unreserved(record, RULES), ahead.num_reserved_tokens) == (32, 48)
    assert after(record, ("dispatch", (1, 0, 45))).num_reserved_tokens == 0, "where it ends is known"
    assert after(record, ("dispatch", (3, 2, 45))).num_reserved_tokens == 32, "47 at most: nothing to cross"


@pytest.mark.parametrize(
    ("num_accepted", "num_kept", "slot", "state", "trimmed"),
    [(0, 1, 0, 45, 0), (2, 3, 2, 47, 0), (3, 4, 3, 48, 0), (3, 3, 2, 47, 1), (3, 1, 0, 45, 3)],
    ids=["all rejected", "one rejected", "all accepted", "bonus trimmed", "all but one trimmed"],
)
def test_the_slot_after_a_step_of_three_drafts(
    num_accepted: int, num_kept: int, slot: int, state: int, trimmed: int
) -> None:
    record = Recurrent(1, 44, 4, 3, 0, 0, 48, 32, 0, 32)
    settled = after(record, ("settle", (4, 3, num_accepted, num_kept)))
    assert (settled.state_slot, settled.num_state_tokens, settled.num_trimmed_tokens) == (
        slot,
        state,
        trimmed,
    )
    assert recurrent.slot_to_read(settled, 99) == slot


def test_while_a_step_is_in_flight_the_device_knows_the_slot() -> None:
    record = Recurrent(1, 44, 4, 3, 0, 0, 48, 32, 0, 32)
    assert recurrent.slot_to_read(record, 2) == 2
    assert not recurrent.state_survives_turn(record)


def test_a_session_goes_on_from_the_state_before_its_last_token() -> None:
    record = Recurrent(1, 44, 4, 3, 0, 0, 48, 32, 0, 32)
    paused = after(record, ("settle", (4, 3, 3, 2)), ("end_turn", ()))
    assert (paused.num_state_tokens, paused.state_slot, paused.num_reserved_tokens) == (46, 1, 0)
    longer = after(paused, ("next_turn", (64,)))
    assert longer.num_checkpoint_tokens == 64
    assert after(paused, ("next_turn", (32,))).num_checkpoint_tokens == 0, "it lies behind the state"


def test_the_limits_of_publication() -> None:
    ledger = initial(40)._replace(num_tokens=48, num_computed_tokens=47, num_trimmed_tokens=1, status=1)
    assert recurrent.registrable_at_exit(ledger) == 48, "the last kept token was an accepted draft"
    assert recurrent.registrable_at_turn_end(ledger) == 47
    ahead = ledger._replace(num_computed_tokens=51, num_in_flight_tokens=4, num_trimmed_tokens=0)
    assert recurrent.registrable_at_exit(ahead) == 47
    assert recurrent.registrable_in_service(ahead) == 48


def test_a_hit_is_shared_and_a_failed_step_takes_its_keys() -> None:
    record = after(NO_STATE, ("start", (32, 48)))
    assert recurrent.copy_needed(record)
    assert recurrent.may_withdraw(1) and not recurrent.may_withdraw(2)
    assert recurrent.may_hit(4, 5) and not recurrent.may_hit(5, 5)
    assert (
        recurrent.must_withdraw(5, 5) and recurrent.must_withdraw(6, 5) and not recurrent.must_withdraw(4, 5)
    )
    assert after(record, ("leave", ())) == NO_STATE

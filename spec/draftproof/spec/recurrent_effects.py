"""What does each event change in a `Recurrent` record, and what does it leave alone?

Told from outside: where the device certainly is, where it possibly is, which boundaries are behind. With the
frame (`RECURRENT_CHANGES`: every other field is the same) these relations are complete, which is proved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftproof.spec.algebra import all_of, both, either, floor_to_block, implies, maximum, negate
from draftproof.spec.recurrent import (
    Recurrent,
    RecurrentRules,
    is_boundary,
    last_boundary,
    num_certain_tokens,
    num_possible_tokens,
)
from draftproof.spec.recurrent_events import Dispatch, NextTurn, Publish, Settle, Start

Conditions = dict[str, bool]

RECURRENT_CHANGES: dict[str, frozenset[str]] = {
    "start": frozenset(Recurrent._fields),
    "make_private": frozenset({"running_key"}),
    "dispatch": frozenset(
        {"num_in_flight_tokens", "num_in_flight_drafts", "state_slot", "num_reserved_tokens"}
    ),
    "publish": frozenset({"num_published_tokens", "running_key"}),
    "settle": frozenset(
        {
            "num_state_tokens",
            "num_in_flight_tokens",
            "num_in_flight_drafts",
            "num_trimmed_tokens",
            "state_slot",
        }
    ),
    "end_turn": frozenset({"num_trimmed_tokens", "num_reserved_tokens", "num_checkpoint_tokens"}),
    "next_turn": frozenset({"num_checkpoint_tokens"}),
    "leave": frozenset(Recurrent._fields),
}


def _start(before: Recurrent, rules: RecurrentRules, event: Start, after: Recurrent) -> Conditions:
    hit = event.num_hit_tokens
    return {
        "holds_state": after.holds_state == 1,
        "starts_at_the_hit": both(num_certain_tokens(after) == hit, num_possible_tokens(after) == hit),
        "nothing_is_in_flight": all_of(
            after.num_in_flight_tokens == 0, after.num_trimmed_tokens == 0, after.num_reserved_tokens == 0
        ),
        "hit_block_is_shared": after.running_key == hit,
        "hit_counts_as_published": after.num_published_tokens == hit,
        "first_slot": after.state_slot == 0,
        "checkpoint": after.num_checkpoint_tokens == event.num_checkpoint_tokens,
    }


def _make_private(before: Recurrent, rules: RecurrentRules, event: Any, after: Recurrent) -> Conditions:
    return {"not_published_any_more": after.running_key == 0}


def _dispatch(before: Recurrent, rules: RecurrentRules, event: Dispatch, after: Recurrent) -> Conditions:
    old, new = before.num_reserved_tokens, after.num_reserved_tokens
    reach = num_possible_tokens(after)
    return {
        "certain_end": num_certain_tokens(after)
        == num_certain_tokens(before) + event.num_new_tokens - event.num_drafts,
        "possible_end": reach == num_possible_tokens(before) + event.num_new_tokens,
        "nothing_reserved_within_what_is_known": implies(reach <= event.num_tokens, new == old),
        "every_reachable_boundary_is_reserved": implies(
            reach > event.num_tokens, reach - new < rules.block_size
        ),
        "no_other_is": all_of(
            new >= old, either(new == old, both(new <= reach, new == floor_to_block(new, rules.block_size)))
        ),
        "first_slot": after.state_slot == 0,
    }


def _publish(before: Recurrent, rules: RecurrentRules, event: Publish, after: Recurrent) -> Conditions:
    old, new = before.num_published_tokens, after.num_published_tokens
    checkpoint, end = before.num_checkpoint_tokens, num_possible_tokens(before)
    may_be_in_the_slot = all_of(
        before.num_in_flight_drafts == 0,
        before.num_trimmed_tokens == 0,
        is_boundary(end, checkpoint, rules),
        end <= event.num_registrable_tokens,
    )
    is_new = both(end > old, end > before.num_reserved_tokens)
    return {
        "never_less": new >= old,
        "only_boundaries_within_the_limit": either(
            new == old, both(new <= event.num_registrable_tokens, is_boundary(new, checkpoint, rules))
        ),
        "none_is_left_out": last_boundary(event.num_registrable_tokens, checkpoint, rules) <= new,
        "slot_is_published_where_it_stands": implies(
            after.running_key != before.running_key, after.running_key == end
        ),
        "slot_is_published_exactly_then": either(
            before.running_key > 0,
            both(
                implies(both(may_be_in_the_slot, is_new), after.running_key != before.running_key),
                implies(negate(both(may_be_in_the_slot, is_new)), after.running_key == before.running_key),
            ),
        ),
    }


def _settle(before: Recurrent, rules: RecurrentRules, event: Settle, after: Recurrent) -> Conditions:
    num_consumed_of_kept = maximum(event.num_kept - 1, 0)
    device = after.num_state_tokens + after.num_trimmed_tokens
    verified = event.num_returned - event.num_drafts + event.num_accepted
    return {
        "state_of_the_last_consumed_token": after.num_state_tokens
        == before.num_state_tokens + event.num_returned - event.num_drafts + num_consumed_of_kept,
        "device_is_where_it_accepted": device == before.num_state_tokens + verified,
        "no_longer_in_flight": both(
            after.num_in_flight_tokens + event.num_returned == before.num_in_flight_tokens,
            after.num_in_flight_drafts + event.num_drafts == before.num_in_flight_drafts,
        ),
        "slot_of_the_last_consumed_token": either(
            both(after.num_in_flight_tokens == 0, after.state_slot == num_consumed_of_kept),
            both(after.num_in_flight_tokens != 0, after.state_slot == 0),
        ),
    }


def _end_turn(before: Recurrent, rules: RecurrentRules, event: Any, after: Recurrent) -> Conditions:
    return {
        "nothing_is_trimmed_any_more": after.num_trimmed_tokens == 0,
        "targets_are_given_back": after.num_reserved_tokens == 0,
        "no_checkpoint_is_ahead": after.num_checkpoint_tokens == 0,
    }


def _next_turn(before: Recurrent, rules: RecurrentRules, event: NextTurn, after: Recurrent) -> Conditions:
    is_ahead = event.num_checkpoint_tokens > before.num_state_tokens
    return {
        "checkpoint_is_ahead": both(
            implies(is_ahead, after.num_checkpoint_tokens == event.num_checkpoint_tokens),
            implies(negate(is_ahead), after.num_checkpoint_tokens == 0),
        )
    }


def _leave(before: Recurrent, rules: RecurrentRules, event: Any, after: Recurrent) -> Conditions:
    return {"holds_nothing": all_of(*[getattr(after, field) == 0 for field in Recurrent._fields])}


_EFFECTS: dict[str, Callable[[Recurrent, RecurrentRules, Any, Recurrent], Conditions]] = {
    "start": _start,
    "make_private": _make_private,
    "dispatch": _dispatch,
    "publish": _publish,
    "settle": _settle,
    "end_turn": _end_turn,
    "next_turn": _next_turn,
    "leave": _leave,
}


def recurrent_effects(
    name: str, before: Recurrent, rules: RecurrentRules, event: Any, after: Recurrent
) -> Conditions:
    """The effects of the transition `name`, and its frame, by name."""
    frame = {
        f"frame/{field}": getattr(after, field) == getattr(before, field)
        for field in Recurrent._fields
        if field not in RECURRENT_CHANGES[name]
    }
    return _EFFECTS[name](before, rules, event, after) | frame

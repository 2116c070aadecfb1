"""When may an event of the recurrent state happen? Named conditions, all of which must hold.

*Control* conditions are what the host and the queue see to. *Facts* follow from steps returning in order,
exactly as dispatched, and from the ledger beside the record (`draftproof.proofs.recurrent_ledger`); the
exploration keeps the exact queue instead (`draftproof.spec.recurrent_tokens`). Where the host asks a decision
before it acts, the guard asks the running one: a wrong answer lets a wrong event happen, as in life.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from draftproof.spec.algebra import all_of, both, either, floor_to_block, implies, minimum, negate
from draftproof.spec.recurrent import Recurrent, RecurrentRules, num_certain_tokens
from draftproof.spec.recurrent_events import (
    Append,
    CopyDone,
    Dispatch,
    EndTurn,
    Evict,
    Fail,
    Leave,
    MakePrivate,
    NextTurn,
    OtherHits,
    OtherReleases,
    Publish,
    Settle,
    Start,
)
from draftproof.spec.recurrent_ghosts import RecurrentState, Role, is_free

Conditions = dict[str, bool]
Decisions = Mapping[str, Callable[..., Any]]
"""The decisions of `draftproof.impl.recurrent`, by name."""


def _start(state: RecurrentState, rules: RecurrentRules, event: Start, role: Role) -> Conditions:
    recurrent, ghosts, block = state
    is_hit_block = both(role.slot == 0, event.num_hit_tokens > 0)
    return {
        "holds_no_state": recurrent.holds_state == 0,
        "hit_leaves_a_token": both(
            event.num_hit_tokens >= 0, event.num_hit_tokens <= ghosts.num_known_tokens - 1
        ),
        "checkpoint_leaves_a_token": both(
            event.num_checkpoint_tokens >= 0, event.num_checkpoint_tokens <= ghosts.num_known_tokens - 1
        ),
        "one_role": both(
            role.boundary == 0, both(role.slot >= -1, role.slot <= rules.num_speculative_tokens)
        ),
        "fresh_blocks_are_free": implies(both(role.slot >= 0, negate(is_hit_block)), is_free(block)),
        # A hit returns the block that was published for the position that is asked for.
        "hit_block_has_the_key": implies(is_hit_block, block.key == event.num_hit_tokens),
    }


def _make_private(state: RecurrentState, rules: RecurrentRules, event: MakePrivate, role: Role) -> Conditions:
    recurrent, _, block = state
    return {
        "slot_is_published": recurrent.running_key > 0,
        "copies_or_withdraws": either(event.copies == 0, event.copies == 1),
        "one_role": all_of(
            role.boundary == 0,
            either(role.slot == -1, role.slot == recurrent.state_slot),
            implies(role.slot >= 0, both(event.copies == 1, is_free(block))),
        ),
    }


def _dispatch(state: RecurrentState, rules: RecurrentRules, event: Dispatch, role: Role) -> Conditions:
    recurrent, ghosts, block = state
    certain, known = num_certain_tokens(recurrent), ghosts.num_known_tokens
    one_token = event.num_new_tokens - event.num_drafts == 1
    return {
        "holds_state": recurrent.holds_state == 1,
        "no_stop": recurrent.num_trimmed_tokens == 0,
        "known_tokens": event.num_tokens == known,
        # Publication is asked after every dispatch and output: what stands on a boundary may not be passed.
        "was_offered": either(
            recurrent.num_in_flight_drafts > 0, ghosts.num_offered_tokens >= minimum(certain, known)
        ),
        "drafts_within_limit": both(event.num_drafts >= 0, event.num_drafts <= rules.num_speculative_tokens),
        "at_least_one_token": event.num_new_tokens - event.num_drafts >= 1,
        "accepted_are_drafts": both(event.num_accepted >= 0, event.num_accepted <= event.num_drafts),
        "prefill_is_of_known_tokens": either(
            one_token, both(event.num_drafts == 0, certain + event.num_new_tokens <= known)
        ),
        "drafts_follow_all_known_tokens": implies(event.num_drafts > 0, certain + 1 >= known),
        "prefill_does_not_follow_drafts": either(
            one_token,
            both(recurrent.num_in_flight_drafts == 0, recurrent.num_reserved_tokens <= certain),
        ),
        "one_role": both(
            role.slot == -1,
            either(
                role.boundary == 0,
                all_of(
                    role.boundary > 0,
                    role.boundary == floor_to_block(role.boundary, rules.block_size),
                    is_free(block),
                ),
            ),
        ),
    }


def _publish(state: RecurrentState, rules: RecurrentRules, event: Publish, role: Role) -> Conditions:
    limit = event.num_registrable_tokens
    return {
        "holds_state": state.recurrent.holds_state == 1,
        "known": both(limit >= 0, limit <= state.ghosts.num_known_tokens),
    }


def _settle(state: RecurrentState, rules: RecurrentRules, event: Settle, role: Role) -> Conditions:
    return {
        "holds_state": state.recurrent.holds_state == 1,
        "no_stop": state.recurrent.num_trimmed_tokens == 0,
        "accepted_are_drafts": both(event.num_accepted >= 0, event.num_accepted <= event.num_drafts),
        "kept_were_generated": both(event.num_kept >= 0, event.num_kept <= event.num_accepted + 1),
        "a_chunk_verifies_nothing": implies(event.num_kept == 0, event.num_drafts == 0),
    }


def _holds_state(state: RecurrentState, rules: RecurrentRules, event: Any, role: Role) -> Conditions:
    return {"holds_state": state.recurrent.holds_state == 1}


def _fail(state: RecurrentState, rules: RecurrentRules, event: Fail, role: Role) -> Conditions:
    return _holds_state(state, rules, event, role) | {
        "was_dispatched": both(event.failed_step >= 1, event.failed_step <= state.ghosts.step)
    }


def _append(state: RecurrentState, rules: RecurrentRules, event: Append, role: Role) -> Conditions:
    return {
        "at_least_one": event.num_tokens >= 1,
        "holds_no_state": state.recurrent.holds_state == 0,
        "replaces_at_most_one": either(event.num_replaced == 0, event.num_replaced == 1),
    }


def _end_turn(state: RecurrentState, rules: RecurrentRules, event: EndTurn, role: Role) -> Conditions:
    known = state.ghosts.num_known_tokens
    return {
        "holds_state": state.recurrent.holds_state == 1,
        # The next chunk replaces the last known token: nothing that contains it is published.
        "everything_that_stays_was_offered": state.ghosts.num_offered_tokens == known - 1,
    }


def _next_turn(state: RecurrentState, rules: RecurrentRules, event: NextTurn, role: Role) -> Conditions:
    recurrent, known = state.recurrent, state.ghosts.num_known_tokens
    return {
        "holds_state": recurrent.holds_state == 1,
        "between_turns": all_of(
            recurrent.num_in_flight_tokens == 0,
            recurrent.num_trimmed_tokens == 0,
            recurrent.num_state_tokens == known,
        ),
        "at_least_one": event.num_tokens >= 1,
        "checkpoint_leaves_a_token": both(
            event.num_checkpoint_tokens >= 0,
            event.num_checkpoint_tokens <= known + event.num_tokens - 1,
        ),
    }


def num_settled_states(state: RecurrentState, num_replaced: int) -> int:
    """Positions whose states returned steps have computed, of tokens that stay."""
    recurrent = state.recurrent
    returned = recurrent.num_state_tokens + recurrent.num_trimmed_tokens
    return minimum(returned, state.ghosts.num_known_tokens - num_replaced)


def _leave(state: RecurrentState, rules: RecurrentRules, event: Leave, role: Role) -> Conditions:
    settled = num_settled_states(state, event.num_replaced)
    return {
        "holds_state": state.recurrent.holds_state == 1,
        "replaces_at_most_one": either(event.num_replaced == 0, event.num_replaced == 1),
        "everything_settled_was_offered": state.ghosts.num_offered_tokens >= settled,
    }


def _other_hits(state: RecurrentState, rules: RecurrentRules, event: OtherHits, role: Role) -> Conditions:
    return {"is_published": state.block.key > 0}


def _other_releases(
    state: RecurrentState, rules: RecurrentRules, event: OtherReleases, role: Role
) -> Conditions:
    return {"has_another_owner": state.block.num_other_owners > 0}


def _copy_done(state: RecurrentState, rules: RecurrentRules, event: CopyDone, role: Role) -> Conditions:
    return {"copy_is_pending": state.block.num_pending_copies > 0}


def _evict(state: RecurrentState, rules: RecurrentRules, event: Evict, role: Role) -> Conditions:
    block = state.block
    return {
        "nobody_owns_it": all_of(
            block.slot == -1,
            block.boundary == 0,
            block.num_other_owners == 0,
            block.num_pending_copies == 0,
        )
    }


def _nothing(state: RecurrentState, rules: RecurrentRules, event: Any, role: Role) -> Conditions:
    return {}


Guard = Callable[[RecurrentState, RecurrentRules, Any, Role], Conditions]

RECURRENT_CONTROL: dict[str, Guard] = {
    "start": _start,
    "make_private": _make_private,
    "dispatch": _dispatch,
    "publish": _publish,
    "settle": _settle,
    "end_turn": _end_turn,
    "next_turn": _next_turn,
    "leave": _leave,
    "fail": _fail,
    "append": _append,
    "next_step": _nothing,
    "other_hits": _other_hits,
    "other_releases": _other_releases,
    "copy_done": _copy_done,
    "evict": _evict,
}


def _settle_facts(state: RecurrentState, rules: RecurrentRules, event: Settle, role: Role) -> Conditions:
    recurrent, ghosts, _ = state
    num_left = recurrent.num_in_flight_tokens - event.num_returned
    drafts_left = recurrent.num_in_flight_drafts - event.num_drafts
    accepted_left = ghosts.num_in_flight_accepted - event.num_accepted
    consumed = recurrent.num_state_tokens + event.num_returned - event.num_drafts
    return {
        "head_as_dispatched": all_of(
            event.num_returned - event.num_drafts >= 1, event.num_drafts >= 0, num_left >= 0
        ),
        "rest_as_dispatched": all_of(drafts_left >= 0, accepted_left >= 0, accepted_left <= drafts_left),
        "every_step_has_a_token_beside_its_drafts": either(
            both(num_left == 0, drafts_left == 0), num_left - drafts_left >= 1
        ),
        "last_step_left_the_state": both(
            implies(num_left == 0, ghosts.device_slot == event.num_accepted),
            implies(both(num_left > 0, drafts_left == 0), ghosts.device_slot == 0),
        ),
        "a_sample_follows_all_that_is_known": implies(
            event.num_kept >= 1, consumed == ghosts.num_known_tokens
        ),
        "a_chunk_is_of_known_tokens": implies(event.num_kept == 0, consumed <= ghosts.num_known_tokens),
    }


def _publish_facts(state: RecurrentState, rules: RecurrentRules, event: Publish, role: Role) -> Conditions:
    return {"dispatched": event.num_registrable_tokens <= num_certain_tokens(state.recurrent)}


def _end_turn_facts(state: RecurrentState, rules: RecurrentRules, event: EndTurn, role: Role) -> Conditions:
    recurrent, known = state.recurrent, state.ghosts.num_known_tokens
    return {
        "all_known_but_one_consumed": both(recurrent.num_state_tokens == known - 1, known >= 2),
    }


def recurrent_facts(
    name: str, state: RecurrentState, rules: RecurrentRules, event: Any, role: Role
) -> Conditions:
    """What the queue of steps in flight, and the ledger, imply about an event."""
    facts: dict[str, Guard] = {
        "settle": _settle_facts,
        "publish": _publish_facts,
        "end_turn": _end_turn_facts,
    }
    return facts.get(name, _nothing)(state, rules, event, role)


def host_conditions(
    name: str,
    state: RecurrentState,
    rules: RecurrentRules,
    event: Any,
    role: Role,
    after: Recurrent,
    decisions: Decisions,
) -> Conditions:
    """What the host makes sure of by asking the running decisions, and by acting on a transition's result."""
    recurrent, ghosts, block = state
    if name == "start":
        is_hit_block = both(role.slot == 0, event.num_hit_tokens > 0)
        return {"may_hit": implies(is_hit_block, decisions["may_hit"](block.key_step, ghosts.step))}
    if name == "make_private":
        withdraws = both(event.copies == 0, block.slot == recurrent.state_slot)
        return {"may_withdraw": implies(withdraws, decisions["may_withdraw"](1 + block.num_other_owners))}
    if name == "dispatch":
        first = decisions["first_unreserved"](recurrent, rules)
        is_set_aside = both(role.boundary > first, role.boundary <= after.num_reserved_tokens)
        return {
            "slot_is_private": negate(decisions["copy_needed"](recurrent)),
            "targets_are_set_aside": either(role.boundary == 0, is_set_aside),
        }
    if name == "end_turn":
        return {"state_survives": decisions["state_survives_turn"](recurrent)}
    return {}

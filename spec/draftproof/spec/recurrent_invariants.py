"""What holds of a recurrent state, its truth, and any one block, in every reachable state?"""

from __future__ import annotations

from draftproof.spec.algebra import all_of, both, either, floor_to_block, implies
from draftproof.spec.recurrent import (
    RecurrentRules,
    last_boundary,
    num_certain_tokens,
    num_possible_tokens,
)
from draftproof.spec.recurrent_ghosts import RecurrentState, num_device_tokens


def recurrent_invariants(state: RecurrentState, rules: RecurrentRules) -> dict[str, bool]:
    """The named invariants of a state."""
    return _of_the_request(state, rules) | _of_the_block(state, rules)


def _of_the_request(state: RecurrentState, rules: RecurrentRules) -> dict[str, bool]:
    recurrent, ghosts, _ = state
    num_live, num_drafts = recurrent.num_in_flight_tokens, recurrent.num_in_flight_drafts
    trimmed, key = recurrent.num_trimmed_tokens, recurrent.running_key
    return {
        "no_negative_count": all_of(
            recurrent.num_state_tokens >= 0,
            num_live >= 0,
            num_drafts >= 0,
            trimmed >= 0,
            recurrent.state_slot >= 0,
            recurrent.num_reserved_tokens >= 0,
            recurrent.num_published_tokens >= 0,
            key >= 0,
            recurrent.num_checkpoint_tokens >= 0,
            ghosts.num_known_tokens >= 1,
            ghosts.num_offered_tokens >= 0,
            ghosts.device_slot >= 0,
            ghosts.step >= 1,
        ),
        "state_is_held_or_not": either(
            recurrent.holds_state == 1,
            all_of(
                recurrent.holds_state == 0,
                recurrent.num_state_tokens == 0,
                num_live == 0,
                num_drafts == 0,
                trimmed == 0,
                recurrent.num_published_tokens == 0,
                key == 0,
                recurrent.num_reserved_tokens == 0,
            ),
        ),
        "every_step_has_a_token_beside_its_drafts": either(
            both(num_live == 0, num_drafts == 0), num_live - num_drafts >= 1
        ),
        "accepted_are_drafts": both(
            ghosts.num_in_flight_accepted >= 0, ghosts.num_in_flight_accepted <= num_drafts
        ),
        "slot_is_known_when_all_returned": implies(
            num_live == 0, ghosts.device_slot == recurrent.state_slot + trimmed
        ),
        "device_knows_the_slot_meanwhile": implies(
            num_live > 0, ghosts.num_last_accepted == ghosts.device_slot
        ),
        "slot_is_the_first_meanwhile": implies(num_live > 0, recurrent.state_slot == 0),
        "slot_is_the_first_without_drafts": implies(
            both(num_live > 0, num_drafts == 0), ghosts.device_slot == 0
        ),
        "slot_within_working_slots": ghosts.device_slot <= rules.num_speculative_tokens,
        "published_is_offered": recurrent.num_published_tokens <= ghosts.num_offered_tokens,
        "offered_is_known_and_certain": both(
            ghosts.num_offered_tokens <= ghosts.num_known_tokens,
            ghosts.num_offered_tokens <= num_certain_tokens(recurrent),
        ),
        "key_is_where_the_state_is": implies(
            key > 0,
            all_of(
                key == num_certain_tokens(recurrent),
                num_drafts == 0,
                trimmed == 0,
                key <= recurrent.num_published_tokens,
            ),
        ),
        "reserved_is_a_boundary": recurrent.num_reserved_tokens
        == floor_to_block(recurrent.num_reserved_tokens, rules.block_size),
        "reserved_beyond_what_is_known": implies(
            either(num_possible_tokens(recurrent) > ghosts.num_known_tokens, trimmed > 0),
            num_possible_tokens(recurrent) - recurrent.num_reserved_tokens < rules.block_size,
        ),
        "trim_follows_all_known_tokens": implies(
            trimmed > 0, recurrent.num_state_tokens == ghosts.num_known_tokens - 1
        ),
        "drafts_follow_all_known_tokens": implies(
            num_drafts > 0, num_certain_tokens(recurrent) >= ghosts.num_known_tokens
        ),
        "offered_is_published": last_boundary(
            ghosts.num_offered_tokens, recurrent.num_checkpoint_tokens, rules
        )
        <= recurrent.num_published_tokens,
        "checkpoint_is_in_the_prompt": implies(
            recurrent.holds_state == 1, recurrent.num_checkpoint_tokens <= ghosts.num_known_tokens - 1
        ),
    }


def _of_the_block(state: RecurrentState, rules: RecurrentRules) -> dict[str, bool]:
    recurrent, ghosts, block = state
    end = num_device_tokens(state)
    in_use = both(block.slot == recurrent.state_slot, recurrent.running_key > 0)
    return {
        "published_holds_its_key": implies(block.key > 0, block.holds == block.key),
        "slots_hold_successive_states": implies(
            both(block.slot >= 0, block.slot <= ghosts.device_slot),
            block.holds == end - ghosts.device_slot + block.slot,
        ),
        "key_is_of_the_slot_in_use": implies(in_use, block.key == recurrent.running_key),
        "other_slots_are_not_published": implies(
            both(block.slot >= 0, block.key > 0),
            both(block.slot == recurrent.state_slot, recurrent.running_key == block.key),
        ),
        "owned_and_unpublished_is_private": implies(
            both(either(block.slot >= 0, block.boundary > 0), block.key == 0), block.num_other_owners == 0
        ),
        "one_role": all_of(
            block.slot >= -1,
            block.slot <= rules.num_speculative_tokens,
            block.boundary >= 0,
            either(block.slot == -1, block.boundary == 0),
            implies(recurrent.holds_state == 0, both(block.slot == -1, block.boundary == 0)),
        ),
        "target_is_for_a_boundary": both(
            block.boundary == floor_to_block(block.boundary, rules.block_size),
            block.boundary <= recurrent.num_reserved_tokens,
        ),
        "crossed_target_holds_its_boundary": implies(
            both(block.boundary > 0, block.boundary <= end), block.holds == block.boundary
        ),
        "offered_target_is_published": implies(
            both(block.boundary > 0, block.boundary <= recurrent.num_published_tokens),
            block.key == block.boundary,
        ),
        "unoffered_target_is_not_published": implies(
            block.boundary > recurrent.num_published_tokens, block.key == 0
        ),
        "published_after_it_was_written": both(
            block.written_in_step <= ghosts.step,
            implies(
                block.key > 0, both(block.written_in_step <= block.key_step, block.key_step <= ghosts.step)
            ),
        ),
        "counts_are_not_negative": all_of(
            block.num_other_owners >= 0, block.num_pending_copies >= 0, block.key >= 0
        ),
        "key_is_a_known_position": block.key <= ghosts.num_known_tokens,
    }

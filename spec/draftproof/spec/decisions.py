"""Decisions: the numbers a scheduler computes from a ledger without changing it, and what they must obey.

How many tokens to schedule, how many slots to hold, what a look-up may hit, what to count. A decision
is a pure branch-free function `(ledger, rules, *inputs)` in `draftproof.impl.decisions`; here is what the
caller guarantees about the inputs (`ASSUMPTIONS`) and the relation the result must satisfy (`RELATIONS`).
Relations may use ghosts; decisions never see them. All counts are tokens unless said.

A relation says what a result is for, not how it is computed. Where there is nothing behind the number but
a convention (`slots_to_admit`, `seats_free`) the docstring calls it a definition: its proof says that the
code computes what is written here, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftproof.spec.algebra import all_of, any_of, both, either, floor_to_block, implies, minimum, negate
from draftproof.spec.decision_inputs import (
    DECISIONS,
    CheckpointToKeep,
    CountAdmission,
    CountOutput,
    DraftBuffer,
    DraftsAllowed,
    HashesToKeep,
    KnownLookahead,
    LookupHit,
    MayRelease,
    Metrics,
    SeatsFree,
    SlotsToAdmit,
    SlotsToReserve,
    TokensBeforeLookahead,
    TokensToKeep,
    TokensToSchedule,
    WindowToPrune,
    WindowToSave,
)
from draftproof.spec.ghosts import State
from draftproof.spec.guards import num_schedulable, schedulable
from draftproof.spec.ledger import PAUSED, RUNNING, Rules

Conditions = dict[str, bool]


def _metrics_hold(metrics: Metrics) -> bool:
    return all_of(
        metrics.num_admissions >= 0,
        metrics.num_external_tokens >= 0,
        metrics.num_external_tokens <= metrics.num_cached_tokens,
        metrics.num_verified_steps >= 0,
        metrics.num_drafts_accepted >= 0,
        metrics.num_drafts_accepted <= metrics.num_drafts_verified,
        metrics.num_emitted_tokens >= metrics.num_drafts_accepted,
    )


def assume_tokens_to_schedule(state: State, rules: Rules, asked: TokensToSchedule) -> Conditions:
    return {
        "schedulable": schedulable(state, rules),
        "limits": all_of(asked.token_budget >= 0, asked.chunk_alignment >= 1, asked.num_awaited_outputs >= 0),
    }


def tokens_to_schedule(state: State, rules: Rules, asked: TokensToSchedule, chosen: int) -> Conditions:
    ledger = state.ledger
    end = ledger.num_computed_tokens + chosen
    room = asked.max_model_len - 1 - ledger.num_computed_tokens
    at_limit = ledger.num_tokens + asked.num_awaited_outputs >= asked.max_num_tokens
    return {
        "within_budget": both(chosen >= 0, chosen <= asked.token_budget),
        "within_wanted": either(chosen == 0, chosen <= num_schedulable(ledger)),
        "within_model_length": either(chosen == 0, end <= asked.max_model_len - 1),
        "chunk_is_aligned": any_of(
            chosen == 0,
            end >= ledger.num_tokens,
            end == floor_to_block(end, asked.chunk_alignment),
        ),
        # Every awaited output brings at least one token: then no further step is needed.
        "nothing_past_the_limit": implies(at_limit, chosen == 0),
        # Short of that, drafts in flight may all be rejected: the request must not be passed over.
        "never_passed_over": implies(
            all_of(
                negate(at_limit),
                num_schedulable(ledger) >= 1,
                asked.token_budget >= asked.chunk_alignment,
                room >= asked.chunk_alignment,
            ),
            chosen >= 1,
        ),
        "as_much_as_allowed": implies(
            both(negate(at_limit), chosen >= 1),
            any_of(
                chosen == num_schedulable(ledger),
                chosen == asked.token_budget,
                chosen == room,
                both(
                    end < ledger.num_tokens,
                    minimum(asked.token_budget, room) - chosen < asked.chunk_alignment,
                ),
            ),
        ),
    }


def assume_tokens_before_lookahead(state: State, rules: Rules, asked: TokensBeforeLookahead) -> Conditions:
    return {
        "offered": asked.num_new_tokens >= 0,
        "lookahead": asked.num_prefill_lookahead_tokens >= 0,
    }


def tokens_before_lookahead(
    state: State, rules: Rules, asked: TokensBeforeLookahead, chosen: int
) -> Conditions:
    """Known tokens are left for all of the drafter's look-ahead, or none at all; of such sizes the largest.
    Together with the alignment of chunks: `draftproof.spec.chunks`."""
    offered, lookahead = asked.num_new_tokens, asked.num_prefill_lookahead_tokens
    num_to_compute = state.ledger.num_tokens - state.ledger.num_computed_tokens
    return {
        "within_offered": both(chosen >= 0, chosen <= offered),
        "leaves_none_or_the_lookahead": any_of(
            chosen == 0, num_to_compute - chosen <= 0, num_to_compute - chosen >= lookahead
        ),
        # Every larger size leaves something, and less than the look-ahead.
        "as_many_as_allowed": either(
            chosen == offered, both(num_to_compute > offered, num_to_compute - (chosen + 1) < lookahead)
        ),
        # A request that waits for an offer of A tokens, or of all it still needs, does not wait for ever.
        "never_passed_over": implies(
            both(offered >= 1, either(offered >= lookahead, offered >= num_to_compute)), chosen >= 1
        ),
    }


def assume_drafts_allowed(state: State, rules: Rules, asked: DraftsAllowed) -> Conditions:
    return {"known_fits": state.ledger.num_tokens <= asked.max_model_len}


def drafts_allowed(state: State, rules: Rules, asked: DraftsAllowed, chosen: int) -> Conditions:
    return {
        "within_limit": both(chosen >= 0, chosen <= rules.num_speculative_tokens),
        "within_model_length": state.ledger.num_tokens + chosen <= asked.max_model_len,
        "as_many_as_allowed": either(
            chosen == rules.num_speculative_tokens,
            state.ledger.num_tokens + chosen == asked.max_model_len,
        ),
    }


def assume_tokens_to_keep(state: State, rules: Rules, asked: TokensToKeep) -> Conditions:
    return {
        "something_generated": asked.num_generated >= 1,
        "stop_index": both(asked.stop_index >= 0, asked.stop_index <= asked.num_generated),
        "room_is_left": state.ledger.num_tokens < asked.max_num_tokens,
    }


def tokens_to_keep(state: State, rules: Rules, asked: TokensToKeep, chosen: int) -> Conditions:
    room = asked.max_num_tokens - state.ledger.num_tokens
    return {
        "were_generated": both(chosen >= 1, chosen <= asked.num_generated),
        "nothing_after_a_stop": chosen <= asked.stop_index + 1,
        "within_the_limit": chosen <= room,
        # The visible end is the smallest index at which any rule fires.
        "as_many_as_allowed": any_of(
            chosen == asked.num_generated, chosen == asked.stop_index + 1, chosen == room
        ),
    }


def num_tokens_dispatched(state: State) -> int:
    """Where the present life's steps end, told by what has returned and what has not: W + G + Q - q.

    Of a running request that has not stopped. The step that completes the prompt is in G and, with its
    sample, in Q; it writes its tokens once.
    """
    ghosts = state.ghosts
    return (
        ghosts.num_settled_tokens
        + ghosts.num_prefill_in_flight
        + ghosts.num_awaited_samples
        - ghosts.completes_prompt
    )


def assume_slots_to_reserve(state: State, rules: Rules, asked: SlotsToReserve) -> Conditions:
    return {
        "dispatched": both(state.ledger.status == RUNNING, state.ledger.stop_pending == 0),
        "lookahead": asked.num_lookahead_tokens >= 0,
    }


def slots_to_reserve(state: State, rules: Rules, asked: SlotsToReserve, chosen: int) -> Conditions:
    """What has returned, all that is on its way, and the drafter's look-ahead; no more. That the device
    writes nowhere else is T10, which is about the running decision too (`draftproof.proofs.decisions`)."""
    needed = num_tokens_dispatched(state) + asked.num_lookahead_tokens
    return {"covers_every_write": chosen >= needed, "reserves_no_more": chosen <= needed}


def assume_slots_to_admit(state: State, rules: Rules, asked: SlotsToAdmit) -> Conditions:
    return {"lookahead": asked.num_lookahead_tokens >= 0}


def slots_to_admit(state: State, rules: Rules, asked: SlotsToAdmit, chosen: int) -> Conditions:
    """A definition: a request starts once all it knows fits. A resumed one then reaches new text before it
    can be preempted again for lack of blocks."""
    return {
        "all_known_fit": chosen >= state.ledger.num_tokens + asked.num_lookahead_tokens,
        "reserves_no_more": chosen <= state.ledger.num_tokens + asked.num_lookahead_tokens,
    }


def assume_window_to_prune(state: State, rules: Rules, asked: WindowToPrune) -> Conditions:
    return {"running": state.ledger.status == RUNNING, "window": asked.window >= 1}


def window_to_prune(state: State, rules: Rules, asked: WindowToPrune, chosen: int) -> Conditions:
    """The oldest step in flight starts at W and reads the window below. The last known position is written
    by the next step, or after a stop by the next turn: it is never pruned, settled or not."""
    settled, last = state.ghosts.num_settled_tokens, state.ledger.num_tokens - 1
    return {
        "whole_blocks": chosen == floor_to_block(chosen, rules.block_size),
        "nothing_still_read": either(chosen == 0, chosen <= settled - asked.window + 1),
        "within_frontier": both(chosen >= 0, chosen <= last),
        "nothing_kept_in_vain": minimum(settled, last) - asked.window + 1 - chosen < rules.block_size,
    }


def assume_may_release(state: State, rules: Rules, asked: MayRelease) -> Conditions:
    return {"transfers": asked.num_pending_transfers >= 0}


def may_release(state: State, rules: Rules, asked: MayRelease, chosen: bool) -> Conditions:
    """No step in flight, of any life, and no transfer still reads or writes the blocks. A running
    request's own steps are told by the ghosts; in any other state all that is in flight is stale."""
    ledger, ghosts = state
    own = both(
        ledger.status == RUNNING,
        either(ghosts.num_prefill_in_flight > 0, ghosts.num_awaited_samples > 0),
    )
    in_use = any_of(own, ledger.num_stale_tokens > 0, asked.num_pending_transfers > 0)
    return {
        "not_while_in_use": implies(chosen, negate(in_use)),
        "as_soon_as_idle": implies(negate(in_use), chosen),
    }


def assume_lookup_hit(state: State, rules: Rules, asked: LookupHit) -> Conditions:
    return {
        "matching_is_whole_blocks": both(
            asked.num_matching_tokens >= 0,
            asked.num_matching_tokens == floor_to_block(asked.num_matching_tokens, rules.block_size),
        )
    }


def lookup_hit(state: State, rules: Rules, asked: LookupHit, chosen: int) -> Conditions:
    """At most N - 1, whole blocks; a drafter that needs the block after a hit gives one block back."""
    given_back = chosen + rules.block_size
    return {
        "whole_blocks": both(chosen >= 0, chosen == floor_to_block(chosen, rules.block_size)),
        "leaves_a_token": chosen <= state.ledger.num_tokens - 1,
        "was_found": chosen <= asked.num_matching_tokens,
        "gives_a_block_back": implies(
            both(asked.drops_block, chosen > 0),
            both(given_back <= asked.num_matching_tokens, given_back <= state.ledger.num_tokens - 1),
        ),
        "nothing_left_out": any_of(
            both(negate(asked.drops_block), chosen == asked.num_matching_tokens),
            both(negate(asked.drops_block), state.ledger.num_tokens - 1 - chosen < rules.block_size),
            both(asked.drops_block, asked.num_matching_tokens - given_back <= 0),
            both(asked.drops_block, state.ledger.num_tokens - 1 - given_back < rules.block_size),
        ),
    }


def assume_checkpoint_to_keep(state: State, rules: Rules, asked: CheckpointToKeep) -> Conditions:
    return {}


def checkpoint_to_keep(state: State, rules: Rules, asked: CheckpointToKeep, chosen: int) -> Conditions:
    """The last boundary a longer look-up can hit; without a drafter's drop, also a repeat of the prompt."""
    num_prompt = state.ledger.num_prompt_tokens
    return {
        "on_a_boundary": both(chosen >= 0, chosen == floor_to_block(chosen, rules.block_size)),
        "reachable": either(
            chosen == 0,
            both(
                implies(asked.drops_block, chosen <= num_prompt - rules.block_size),
                implies(negate(asked.drops_block), chosen <= num_prompt - 1),
            ),
        ),
        "the_last_such": both(
            implies(asked.drops_block, num_prompt - rules.block_size - chosen < rules.block_size),
            implies(negate(asked.drops_block), num_prompt - 1 - chosen < rules.block_size),
        ),
    }


def assume_window_to_save(state: State, rules: Rules, asked: WindowToSave) -> Conditions:
    return {
        "boundary_is_whole_blocks": both(
            asked.num_boundary_tokens >= 0,
            asked.num_boundary_tokens == floor_to_block(asked.num_boundary_tokens, rules.block_size),
        )
    }


def window_to_save(state: State, rules: Rules, asked: WindowToSave, chosen: int) -> Conditions:
    """A look-up gives one block back under the drop rule, so that block must have been stored too."""
    return {
        "lookup_reaches_boundary": implies(
            asked.drops_block, chosen - rules.block_size >= asked.num_boundary_tokens
        ),
        "boundary_is_stored": chosen >= asked.num_boundary_tokens,
        "stores_no_more": chosen <= asked.num_boundary_tokens + rules.block_size,
        "no_extra_without_drop": implies(negate(asked.drops_block), chosen == asked.num_boundary_tokens),
    }


def assume_hashes_to_keep(state: State, rules: Rules, asked: HashesToKeep) -> Conditions:
    return {"between_turns": state.ledger.status == PAUSED}


def hashes_to_keep(state: State, rules: Rules, asked: HashesToKeep, chosen: int) -> Conditions:
    """The fold keeps N - 1 tokens: exactly their whole blocks keep their hashes."""
    return {
        "whole_blocks": both(chosen >= 0, chosen == floor_to_block(chosen, rules.block_size)),
        "of_kept_tokens": chosen <= state.ledger.num_tokens - 1,
        "all_of_them": state.ledger.num_tokens - 1 - chosen < rules.block_size,
    }


def assume_known_lookahead(state: State, rules: Rules, asked: KnownLookahead) -> Conditions:
    return {
        "within_known": both(asked.num_end_tokens >= 0, asked.num_end_tokens <= state.ledger.num_tokens),
        "lookahead": asked.num_lookahead_tokens >= 0,
    }


def known_lookahead(state: State, rules: Rules, asked: KnownLookahead, chosen: int) -> Conditions:
    """A drafter at a chunk's edge reads known tokens wherever there are any, prompt or output."""
    return {
        "are_known": both(chosen >= 0, asked.num_end_tokens + chosen <= state.ledger.num_tokens),
        "within_lookahead": chosen <= asked.num_lookahead_tokens,
        "none_left_out": either(
            chosen == asked.num_lookahead_tokens, asked.num_end_tokens + chosen == state.ledger.num_tokens
        ),
    }


def assume_draft_buffer(state: State, rules: Rules, asked: DraftBuffer) -> Conditions:
    return {"sizes": both(asked.max_num_batched_tokens >= 1, asked.max_num_seqs >= 1)}


def draft_buffer(state: State, rules: Rules, asked: DraftBuffer, chosen: int) -> Conditions:
    """A draft model takes one token more per request than the target; a parallel drafter 1 + K each."""
    one_more_each = asked.max_num_batched_tokens + asked.max_num_seqs
    in_parallel = asked.max_num_seqs * (1 + rules.num_speculative_tokens)
    return {
        "holds_the_target_batch": chosen >= one_more_each,
        "holds_parallel_drafts": chosen >= in_parallel,
        "no_larger": either(chosen == one_more_each, chosen == in_parallel),
    }


def assume_seats_free(state: State, rules: Rules, asked: SeatsFree) -> Conditions:
    return {
        "sizes": all_of(
            asked.num_scheduled_requests >= 0,
            asked.num_scheduled_requests <= asked.num_resident_requests,
            asked.num_scheduled_requests <= asked.max_num_seqs,
        )
    }


def seats_free(state: State, rules: Rules, asked: SeatsFree, chosen: int) -> Conditions:
    """A definition: the limit is on requests scheduled this step. One that only awaits output takes no
    seat, so the residents do not occur."""
    return {
        "within_limit": asked.num_scheduled_requests + chosen <= asked.max_num_seqs,
        "all_seats": asked.num_scheduled_requests + chosen >= asked.max_num_seqs,
    }


def assume_count_admission(state: State, rules: Rules, asked: CountAdmission) -> Conditions:
    return {
        "metrics": _metrics_hold(asked.metrics),
        "cached_is_prompt": asked.metrics.num_cached_tokens <= state.ledger.num_prompt_tokens,
        "hit": all_of(
            asked.num_hit_tokens >= 0,
            asked.num_external_tokens >= 0,
            asked.num_external_tokens <= asked.num_hit_tokens,
        ),
    }


def count_admission(state: State, rules: Rules, asked: CountAdmission, counted: Metrics) -> Conditions:
    old = asked.metrics
    return {
        "admitted": counted.num_admissions == old.num_admissions + 1,
        "order": all_of(
            counted.num_external_tokens >= 0,
            counted.num_external_tokens <= counted.num_cached_tokens,
            counted.num_cached_tokens <= state.ledger.num_prompt_tokens,
        ),
        "counted_once": implies(
            old.num_admissions > 0,
            both(
                counted.num_cached_tokens == old.num_cached_tokens,
                counted.num_external_tokens == old.num_external_tokens,
            ),
        ),
        "first_hit_is_counted": implies(
            old.num_admissions == 0,
            both(
                counted.num_cached_tokens == minimum(asked.num_hit_tokens, state.ledger.num_prompt_tokens),
                counted.num_external_tokens
                == minimum(asked.num_external_tokens, state.ledger.num_prompt_tokens),
            ),
        ),
        "rest_unchanged": all_of(
            counted.num_verified_steps == old.num_verified_steps,
            counted.num_drafts_verified == old.num_drafts_verified,
            counted.num_drafts_accepted == old.num_drafts_accepted,
            counted.num_emitted_tokens == old.num_emitted_tokens,
        ),
    }


def assume_count_output(state: State, rules: Rules, asked: CountOutput) -> Conditions:
    return {
        "metrics": _metrics_hold(asked.metrics),
        "step": all_of(
            asked.num_drafts >= 0,
            asked.num_accepted >= 0,
            asked.num_accepted <= asked.num_drafts,
            asked.num_kept >= 1,
            asked.num_kept <= asked.num_accepted + 1,
        ),
    }


def count_output(state: State, rules: Rules, asked: CountOutput, counted: Metrics) -> Conditions:
    """Steps that verified nothing do not enter the acceptance figures; trimmed tokens were not emitted."""
    old = asked.metrics
    verified = asked.num_drafts > 0
    return {
        "denominator": counted.num_drafts_verified == old.num_drafts_verified + asked.num_drafts,
        "steps": implies(verified, counted.num_verified_steps == old.num_verified_steps + 1),
        "no_step_without_drafts": implies(
            negate(verified), counted.num_verified_steps == old.num_verified_steps
        ),
        "emitted_is_delivered": implies(
            verified, counted.num_emitted_tokens == old.num_emitted_tokens + asked.num_kept
        ),
        "nothing_emitted_by_verification": implies(
            negate(verified), counted.num_emitted_tokens == old.num_emitted_tokens
        ),
        "accepted_and_kept": counted.num_drafts_accepted
        == old.num_drafts_accepted + minimum(asked.num_accepted, asked.num_kept),
        "order": _metrics_hold(counted),
        "rest_unchanged": all_of(
            counted.num_admissions == old.num_admissions,
            counted.num_cached_tokens == old.num_cached_tokens,
            counted.num_external_tokens == old.num_external_tokens,
        ),
    }


Relation = Callable[[State, Rules, Any, Any], Conditions]
Assumption = Callable[[State, Rules, Any], Conditions]

ASSUMPTIONS: dict[str, Assumption] = {name: globals()[f"assume_{name}"] for name in DECISIONS}
"""What the caller of each decision guarantees."""
RELATIONS: dict[str, Relation] = {name: globals()[name] for name in DECISIONS}
"""What each decision's result must satisfy."""

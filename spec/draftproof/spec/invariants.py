"""What holds in every reachable state. Each invariant is named, and dropping any one breaks a proof.

An invariant alone says little: a transition that does nothing keeps them all. `draftproof.spec.effects`
says what each transition must change; `draftproof.spec.theorems` says what follows.
"""

from __future__ import annotations

from draftproof.spec.algebra import all_of, both, either, floor_to_block, implies, minimum, negate, where
from draftproof.spec.ghosts import State
from draftproof.spec.guards import is_flag
from draftproof.spec.ledger import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING, Ledger, Rules


def num_live_in_flight(ledger: Ledger) -> int:
    """In-flight tokens of the present life: F - S."""
    return ledger.num_in_flight_tokens - ledger.num_stale_tokens


def frontier(state: State) -> int:
    """C - Q: the position the next known token will be written at."""
    return state.ledger.num_computed_tokens - state.ghosts.num_awaited_samples


def invariants(state: State, rules: Rules) -> dict[str, bool]:
    """The named invariants of a state."""
    ledger, ghosts = state
    unfinished = ledger.status != FINISHED
    num_live = num_live_in_flight(ledger)
    stopped_trimmed = minimum(ledger.num_trimmed_tokens, 1)
    return {
        "no_negative_counter": all_of(
            ledger.num_computed_tokens >= 0,
            ledger.num_stale_tokens >= 0,
            ledger.num_draft_tokens >= 0,
            ledger.num_registered_tokens >= 0,
            ledger.num_prompt_tokens >= 1,
            ghosts.num_awaited_samples >= 0,
            ghosts.num_prefill_in_flight >= 0,
        ),
        "drafts_within_limit": ledger.num_draft_tokens <= rules.num_speculative_tokens,
        "prompt_is_known": ledger.num_prompt_tokens <= ledger.num_tokens,
        "known_status": both(ledger.status >= WAITING, ledger.status <= FINISHED),
        "completing_step_is_in_flight": both(
            is_flag(ghosts.completes_prompt),
            implies(
                ghosts.completes_prompt == 1,
                both(ghosts.num_prefill_in_flight >= 1, ghosts.num_awaited_samples >= 1),
            ),
        ),
        "placeholders_are_awaited": ledger.num_output_placeholders
        == where(rules.asynchronous, ghosts.num_awaited_samples, 0),
        # A finished request keeps its last P, Q and G, although what was in flight is nobody's any more.
        "in_flight_is_prefill_and_samples": implies(
            unfinished,
            num_live == ghosts.num_prefill_in_flight + ghosts.num_awaited_samples - ghosts.completes_prompt,
        ),
        "frontier_below_known": frontier(state) <= ledger.num_tokens - 1,
        "frontier_exact_when_sampling": implies(
            ghosts.num_awaited_samples > 0, frontier(state) == ledger.num_tokens - 1
        ),
        "registered_is_whole_blocks": ledger.num_registered_tokens
        == floor_to_block(ledger.num_registered_tokens, rules.block_size),
        "one_completing_sample_when_synchronous": implies(
            both(negate(rules.asynchronous), ghosts.completes_prompt == 1),
            ghosts.num_awaited_samples == 1,
        ),
        "no_drafts_before_decode": implies(
            ledger.num_computed_tokens < ledger.num_tokens - 1, ledger.num_draft_tokens == 0
        ),
        "settled_is_computed_less_live": implies(
            unfinished,
            ghosts.num_settled_tokens == ledger.num_computed_tokens - num_live + stopped_trimmed,
        ),
        "valid_is_known_or_computed": implies(
            unfinished,
            ghosts.num_valid_tokens
            == where(
                ghosts.num_awaited_samples > 0,
                ledger.num_tokens,
                ledger.num_computed_tokens + stopped_trimmed,
            ),
        ),
        "trim_awaits_its_stop": both(
            ledger.num_trimmed_tokens >= 0,
            implies(
                ledger.num_trimmed_tokens > 0,
                both(ledger.stop_pending == 1, ledger.status == RUNNING),
            ),
        ),
        "stop_pending_shape": both(
            is_flag(ledger.stop_pending),
            implies(
                ledger.stop_pending == 1,
                all_of(
                    ledger.num_tokens >= 2,
                    ledger.num_registered_tokens <= ledger.num_tokens - 1,
                    either(
                        all_of(
                            ledger.status == RUNNING,
                            ledger.num_stale_tokens == 0,
                            ghosts.num_prefill_in_flight == 0,
                            frontier(state) == ledger.num_tokens - 1,
                            implies(negate(rules.asynchronous), ghosts.num_awaited_samples == 0),
                        ),
                        ledger.status == PREEMPTED,
                    ),
                ),
            ),
        ),
        "registered_is_valid": ledger.num_registered_tokens <= ghosts.num_valid_tokens,
        "settled_is_valid": both(
            ghosts.num_settled_tokens <= ghosts.num_valid_tokens,
            ghosts.num_valid_tokens <= ledger.num_tokens,
        ),
        "nothing_live_unless_running": implies(
            ledger.status != RUNNING,
            both(ledger.num_draft_tokens == 0, num_live == 0),
        ),
        "preempted_has_no_kv": implies(ledger.status == PREEMPTED, ledger.num_computed_tokens == 0),
        "paused_keeps_all_but_one": implies(
            ledger.status == PAUSED,
            either(
                ledger.num_computed_tokens == 0,
                ledger.num_computed_tokens == ledger.num_tokens - 1,
            ),
        ),
        # What a session keeps between turns was published when the turn ended: taking it away loses nothing.
        "kept_kv_is_published": implies(
            either(ledger.status == PAUSED, ledger.status == WAITING),
            ledger.num_computed_tokens - rules.registration_fence - ledger.num_registered_tokens
            < rules.block_size,
        ),
        "late_output_is_delivered_while_preempted": implies(
            both(ledger.num_stale_tokens > 0, negate(ledger.drop_stale)), ledger.status == PREEMPTED
        ),
    }

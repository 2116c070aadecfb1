"""When an event may happen. Each guard is a set of named conditions; all of them must hold.

Two kinds are kept apart. *Control* conditions speak about status, stop, what is in flight and the
event's own sizes: the host or the queue sees to them. *Queue facts* are ledger equalities that hold
because steps return in order, exactly as dispatched; they are derived from the exact queue of steps in
flight (refinement R1), never assumed on their own. The search for fault traces uses the exact queue
and the control conditions only, or a guard would hide the very states that a fault produces.

Some control conditions read counters all the same. `head_is_live`, `head_is_stale`, `head_is_prefill` and
`sample_awaited` only say of which life and kind the step at the head is; R1 derives them from the queue.
The others are choices a host makes by its counters, so a wrong counter makes it choose wrongly, as in
life: `draft` is asked for once all known tokens but one count as computed, a look-up is made for a request
that counts nothing as computed, late output that will be delivered is waited for before `admit`, and blocks
are taken from a session that does not run only if it counts something as computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftproof.spec.algebra import all_of, both, either, floor_to_block, implies, negate
from draftproof.spec.events import (
    Abort,
    Admit,
    ChunkOutput,
    Draft,
    EndTurn,
    Finish,
    Fold,
    Output,
    Preempt,
    Schedule,
    StaleOutput,
)
from draftproof.spec.ghosts import State
from draftproof.spec.ledger import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING, Ledger, Rules

Conditions = dict[str, bool]


def num_schedulable(ledger: Ledger) -> int:
    """Tokens a step could still take: known ones and drafts, plus positions already in flight, less C."""
    return (
        ledger.num_tokens
        + ledger.num_draft_tokens
        + ledger.num_output_placeholders
        - ledger.num_computed_tokens
    )


def schedulable(state: State, rules: Rules) -> bool:
    """A running request without a stop; synchronously, a sample in flight must return first."""
    ledger, ghosts = state
    return all_of(
        ledger.status == RUNNING,
        ledger.stop_pending == 0,
        implies(negate(rules.asynchronous), ghosts.num_awaited_samples == 0),
    )


def is_flag(value: int) -> bool:
    """0 or 1."""
    return either(value == 0, value == 1)


def admit(state: State, rules: Rules, event: Admit) -> Conditions:
    ledger = state.ledger
    hit = event.num_hit_tokens
    return {
        "no_stop_pending": ledger.stop_pending == 0,
        "waiting_or_preempted": either(ledger.status == WAITING, ledger.status == PREEMPTED),
        # Late output that will be delivered changes N: it must arrive before the new life begins.
        "late_output_dropped_or_delivered": either(ledger.num_stale_tokens == 0, ledger.drop_stale),
        "hit_only_from_zero": implies(ledger.num_computed_tokens > 0, hit == 0),
        # The last token is recomputed for its logits.
        "hit_leaves_a_token": both(hit >= 0, hit <= ledger.num_tokens - 1),
        "hit_is_whole_blocks": hit == floor_to_block(hit, rules.block_size),
    }


def schedule(state: State, rules: Rules, event: Schedule) -> Conditions:
    return {
        "schedulable": schedulable(state, rules),
        "at_least_one": event.num_new_tokens >= 1,
        "at_most_wanted": event.num_new_tokens <= num_schedulable(state.ledger),
    }


def draft(state: State, rules: Rules, event: Draft) -> Conditions:
    ledger, ghosts = state
    return {
        "running": both(ledger.status == RUNNING, ledger.stop_pending == 0),
        "nothing_in_flight": both(ghosts.num_awaited_samples == 0, ghosts.num_prefill_in_flight == 0),
        "all_known_but_one_computed": ledger.num_computed_tokens >= ledger.num_tokens - 1,
        "within_limit": both(event.num_drafts >= 0, event.num_drafts <= rules.num_speculative_tokens),
    }


def chunk_output(state: State, rules: Rules, event: ChunkOutput) -> Conditions:
    ledger, ghosts = state
    return {
        "running": both(ledger.status == RUNNING, ledger.stop_pending == 0),
        "head_is_live": ledger.num_stale_tokens == 0,
        "head_is_prefill": ghosts.num_prefill_in_flight > 0,
        "at_least_one": event.num_returned >= 1,
    }


def output(state: State, rules: Rules, event: Output) -> Conditions:
    ledger, ghosts = state
    return {
        "running": both(ledger.status == RUNNING, ledger.stop_pending == 0),
        "head_is_live": ledger.num_stale_tokens == 0,
        "sample_awaited": ghosts.num_awaited_samples > 0,
        "accepted_are_drafts": all_of(
            event.num_drafts >= 0, event.num_accepted >= 0, event.num_accepted <= event.num_drafts
        ),
        "kept_were_generated": both(event.num_kept >= 1, event.num_kept <= event.num_accepted + 1),
        "only_a_stop_trims": both(
            is_flag(event.stopped), implies(event.num_kept < event.num_accepted + 1, event.stopped == 1)
        ),
    }


def preempt(state: State, rules: Rules, event: Preempt) -> Conditions:
    ledger = state.ledger
    # A session between turns, or one that waits for its next turn to start, has blocks only if C says so.
    kept_kv = both(either(ledger.status == PAUSED, ledger.status == WAITING), ledger.num_computed_tokens > 0)
    return {
        "no_stop_pending": ledger.stop_pending == 0,
        "holds_kv": either(ledger.status == RUNNING, kept_kv),
    }


def stale_output(state: State, rules: Rules, event: StaleOutput) -> Conditions:
    ledger = state.ledger
    return {
        "no_stop_pending": ledger.stop_pending == 0,
        "head_is_stale": ledger.num_stale_tokens > 0,
        "at_least_one": event.num_returned >= 1,
        "kept_were_generated": both(event.num_kept >= 0, event.num_kept <= rules.num_speculative_tokens + 1),
        "stop_needs_a_delivered_token": both(
            is_flag(event.stopped),
            implies(event.stopped == 1, both(event.num_kept >= 1, negate(ledger.drop_stale))),
        ),
    }


def end_turn(state: State, rules: Rules, event: EndTurn) -> Conditions:
    return {"stop_pending": state.ledger.stop_pending == 1}


def fold(state: State, rules: Rules, event: Fold) -> Conditions:
    return {
        "paused": state.ledger.status == PAUSED,
        "chunk_is_not_empty": event.num_chunk_tokens >= 1,
    }


def finish(state: State, rules: Rules, event: Finish) -> Conditions:
    return {"stop_pending": state.ledger.stop_pending == 1}


def abort(state: State, rules: Rules, event: Abort) -> Conditions:
    ledger = state.ledger
    return {
        "no_stop_pending": ledger.stop_pending == 0,
        "not_finished": ledger.status != FINISHED,
    }


def _no_facts(state: State, rules: Rules, event: Any) -> Conditions:
    return {}


def _draft_facts(state: State, rules: Rules, event: Draft) -> Conditions:
    ledger = state.ledger
    return {"frontier_is_exact": ledger.num_computed_tokens == ledger.num_tokens - 1}


def _chunk_output_facts(state: State, rules: Rules, event: ChunkOutput) -> Conditions:
    ghosts = state.ghosts
    return {
        "returned_was_prefill": event.num_returned <= ghosts.num_prefill_in_flight,
        "completing_step_returns_last": implies(
            ghosts.completes_prompt == 1, event.num_returned < ghosts.num_prefill_in_flight
        ),
    }


def _output_facts(state: State, rules: Rules, event: Output) -> Conditions:
    ghosts = state.ghosts
    completes = both(ghosts.completes_prompt == 1, ghosts.num_prefill_in_flight > 0)
    return {
        "completing_step_as_dispatched": implies(
            completes, both(event.num_returned == ghosts.num_prefill_in_flight, event.num_drafts == 0)
        ),
        "decode_step_as_dispatched": implies(
            negate(completes),
            all_of(
                ghosts.num_prefill_in_flight == 0,
                event.num_returned == 1 + event.num_drafts,
                event.num_returned <= ghosts.num_awaited_samples,
            ),
        ),
        "one_sampling_step_when_synchronous": implies(
            both(negate(completes), negate(rules.asynchronous)),
            event.num_returned == ghosts.num_awaited_samples,
        ),
    }


def _stale_output_facts(state: State, rules: Rules, event: StaleOutput) -> Conditions:
    return {"returned_was_stale": event.num_returned <= state.ledger.num_stale_tokens}


Guard = Callable[[State, Rules, Any], Conditions]

CONTROL: dict[str, Guard] = {
    "admit": admit,
    "schedule": schedule,
    "draft": draft,
    "chunk_output": chunk_output,
    "output": output,
    "preempt": preempt,
    "stale_output": stale_output,
    "end_turn": end_turn,
    "fold": fold,
    "finish": finish,
    "abort": abort,
}

QUEUE_FACTS: dict[str, Guard] = {
    "draft": _draft_facts,
    "chunk_output": _chunk_output_facts,
    "output": _output_facts,
    "stale_output": _stale_output_facts,
}
"""Transitions without an entry need no fact about the queue."""


def conditions(name: str, state: State, rules: Rules, event: Any) -> Conditions:
    """Every condition of the transition `name`, control and queue facts together."""
    facts = QUEUE_FACTS.get(name, _no_facts)
    return {**CONTROL[name](state, rules, event), **facts(state, rules, event)}

"""What each transition changes, and what it leaves alone: relations on before, event and after.

Stated from the outside (where the frontier is, what is live, what is settled), not as copies of the
code's expressions. Together with the frame (`CHANGES`: every other field is the same) they are
complete: two afters that satisfy them agree on every counter, which is itself proved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftproof.spec.algebra import all_of, both, either, floor_to_block, implies, minimum, negate, where
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
from draftproof.spec.invariants import frontier, num_live_in_flight
from draftproof.spec.ledger import FINISHED, PAUSED, PREEMPTED, RUNNING, WAITING, Ledger, Rules

Conditions = dict[str, bool]


def publishes(old: int, new: int, num_tokens: int, rules: Rules) -> bool:
    """Going from `old` to `new` registered tokens publishes exactly the whole blocks of the first
    `num_tokens`, less the drafter's fence: never fewer than before, nothing left out, nothing beyond."""
    reach = num_tokens - rules.registration_fence
    return all_of(
        new == floor_to_block(new, rules.block_size),
        new >= old,
        reach - new < rules.block_size,
        either(new == old, new <= reach),
    )


CHANGES: dict[str, frozenset[str]] = {
    "admit": frozenset({"status", "num_computed_tokens", "num_registered_tokens"}),
    "schedule": frozenset(
        {
            "num_computed_tokens",
            "num_in_flight_tokens",
            "num_output_placeholders",
            "num_draft_tokens",
            "num_registered_tokens",
        }
    ),
    "draft": frozenset({"num_draft_tokens"}),
    "chunk_output": frozenset({"num_in_flight_tokens"}),
    "output": frozenset(
        {
            "num_tokens",
            "num_computed_tokens",
            "num_output_placeholders",
            "num_in_flight_tokens",
            "num_trimmed_tokens",
            "stop_pending",
            "num_registered_tokens",
        }
    ),
    "preempt": frozenset(
        {
            "status",
            "num_computed_tokens",
            "num_output_placeholders",
            "num_draft_tokens",
            "num_registered_tokens",
            "num_stale_tokens",
            "num_registered_at_preemption",
            "drop_stale",
        }
    ),
    "stale_output": frozenset({"num_in_flight_tokens", "num_stale_tokens", "num_tokens", "stop_pending"}),
    "end_turn": frozenset(
        {
            "status",
            "num_computed_tokens",
            "num_output_placeholders",
            "num_draft_tokens",
            "num_trimmed_tokens",
            "stop_pending",
            "num_stale_tokens",
            "drop_stale",
            "num_registered_tokens",
        }
    ),
    "fold": frozenset({"status", "num_tokens", "num_prompt_tokens"}),
    "finish": frozenset(
        {
            "status",
            "num_draft_tokens",
            "num_trimmed_tokens",
            "stop_pending",
            "num_stale_tokens",
            "drop_stale",
            "num_registered_tokens",
        }
    ),
    "abort": frozenset(
        {"status", "num_draft_tokens", "num_stale_tokens", "drop_stale", "num_registered_tokens"}
    ),
}


def admit(before: State, rules: Rules, event: Admit, after: State) -> Conditions:
    old, new = before.ledger, after.ledger
    return {
        "running": new.status == RUNNING,
        "hit_counts_as_computed": implies(
            old.num_computed_tokens == 0,
            both(
                new.num_computed_tokens == event.num_hit_tokens,
                new.num_registered_tokens == event.num_hit_tokens,
            ),
        ),
        "kept_kv_is_kept": implies(
            old.num_computed_tokens > 0,
            both(
                new.num_computed_tokens == old.num_computed_tokens,
                new.num_registered_tokens == old.num_registered_tokens,
            ),
        ),
    }


def schedule(before: State, rules: Rules, event: Schedule, after: State) -> Conditions:
    old, new = before.ledger, after.ledger
    return {
        "in_flight": num_live_in_flight(new) == num_live_in_flight(old) + event.num_new_tokens,
        "frontier": frontier(after) == minimum(frontier(before) + event.num_new_tokens, old.num_tokens - 1),
        "placeholders_are_awaited": new.num_output_placeholders
        == where(rules.asynchronous, after.ghosts.num_awaited_samples, 0),
        "drafts_reserved": new.num_draft_tokens
        == where(
            both(
                rules.asynchronous,
                after.ghosts.num_awaited_samples > before.ghosts.num_awaited_samples,
            ),
            rules.num_speculative_tokens,
            0,
        ),
        "published": publishes(
            old.num_registered_tokens,
            new.num_registered_tokens,
            # What is valid once the enqueued steps have run: only they and later steps can read it.
            after.ghosts.num_valid_tokens,
            rules,
        ),
    }


def draft(before: State, rules: Rules, event: Draft, after: State) -> Conditions:
    return {"drafts_noted": after.ledger.num_draft_tokens == event.num_drafts}


def chunk_output(before: State, rules: Rules, event: ChunkOutput, after: State) -> Conditions:
    return {
        "returned": num_live_in_flight(before.ledger) == num_live_in_flight(after.ledger) + event.num_returned
    }


def output(before: State, rules: Rules, event: Output, after: State) -> Conditions:
    old, new = before.ledger, after.ledger
    return {
        "known": new.num_tokens == old.num_tokens + event.num_kept,
        "frontier": frontier(after) == frontier(before) + event.num_kept,
        "returned": num_live_in_flight(old) == num_live_in_flight(new) + event.num_returned,
        "placeholders_are_awaited": new.num_output_placeholders
        == where(rules.asynchronous, after.ghosts.num_awaited_samples, 0),
        "trimmed": new.num_trimmed_tokens + event.num_kept == event.num_accepted + 1,
        "stop_noted": new.stop_pending == event.stopped,
        "published": publishes(
            old.num_registered_tokens,
            new.num_registered_tokens,
            # Synchronously nothing is published here: the next schedule does it.
            where(rules.asynchronous, frontier(after), old.num_registered_tokens),
            rules,
        ),
    }


def preempt(before: State, rules: Rules, event: Preempt, after: State) -> Conditions:
    old, new = before.ledger, after.ledger
    dropped_before = both(old.num_stale_tokens > 0, old.drop_stale)
    return {
        # A session between turns goes on waiting for its next chunk.
        "preempted_or_still_paused": new.status == where(old.status == PAUSED, PAUSED, PREEMPTED),
        "starts_over": all_of(
            new.num_computed_tokens == 0,
            new.num_output_placeholders == 0,
            new.num_draft_tokens == 0,
            new.num_registered_tokens == 0,
        ),
        "nothing_live": new.num_stale_tokens == new.num_in_flight_tokens,
        "drop_as_told": implies(event.drop, new.drop_stale),
        "dropped_stays_dropped": implies(dropped_before, new.drop_stale),
        "dropped_only_then": implies(
            both(negate(event.drop), negate(dropped_before)), negate(new.drop_stale)
        ),
        "published": publishes(
            old.num_registered_tokens,
            new.num_registered_at_preemption,
            before.ghosts.num_settled_tokens,
            rules,
        ),
    }


def stale_output(before: State, rules: Rules, event: StaleOutput, after: State) -> Conditions:
    old, new = before.ledger, after.ledger
    return {
        "returned": new.num_in_flight_tokens == old.num_in_flight_tokens - event.num_returned,
        "live_untouched": num_live_in_flight(new) == num_live_in_flight(old),
        "dropped": implies(old.drop_stale, new.num_tokens == old.num_tokens),
        "delivered": implies(negate(old.drop_stale), new.num_tokens == old.num_tokens + event.num_kept),
        "stop_noted": new.stop_pending == event.stopped,
    }


def end_turn(before: State, rules: Rules, event: EndTurn, after: State) -> Conditions:
    old, new = before.ledger, after.ledger
    return {
        "paused": new.status == PAUSED,
        "nothing_awaited": both(new.num_output_placeholders == 0, new.num_draft_tokens == 0),
        "stop_handled": both(new.num_trimmed_tokens == 0, new.stop_pending == 0),
        "nothing_live": new.num_stale_tokens == new.num_in_flight_tokens,
        "late_output_dropped": new.drop_stale,
        "all_but_the_last_computed": new.num_computed_tokens
        == where(old.status == RUNNING, old.num_tokens - 1, 0),
        "published": publishes(
            old.num_registered_tokens, new.num_registered_tokens, new.num_computed_tokens, rules
        ),
    }


def fold(before: State, rules: Rules, event: Fold, after: State) -> Conditions:
    old, new = before.ledger, after.ledger
    return {
        "waiting": new.status == WAITING,
        "kept": new.num_tokens - event.num_chunk_tokens == old.num_tokens - 1,
        "all_is_prompt": new.num_prompt_tokens == new.num_tokens,
    }


def finish(before: State, rules: Rules, event: Finish, after: State) -> Conditions:
    old, new = before.ledger, after.ledger
    return {
        "finished": new.status == FINISHED,
        "stop_handled": all_of(new.num_draft_tokens == 0, new.num_trimmed_tokens == 0, new.stop_pending == 0),
        "nothing_live": new.num_stale_tokens == new.num_in_flight_tokens,
        "late_output_dropped": new.drop_stale,
        "published": publishes(
            old.num_registered_tokens,
            new.num_registered_tokens,
            where(old.status == RUNNING, before.ghosts.num_settled_tokens, old.num_registered_tokens),
            rules,
        ),
    }


def abort(before: State, rules: Rules, event: Abort, after: State) -> Conditions:
    old, new = before.ledger, after.ledger
    return {
        "finished": new.status == FINISHED,
        "no_drafts": new.num_draft_tokens == 0,
        "nothing_live": new.num_stale_tokens == new.num_in_flight_tokens,
        "late_output_dropped": new.drop_stale,
        "published": publishes(
            old.num_registered_tokens,
            new.num_registered_tokens,
            where(old.status == RUNNING, before.ghosts.num_settled_tokens, old.num_registered_tokens),
            rules,
        ),
    }


Effect = Callable[[State, Rules, Any, State], Conditions]

EFFECTS: dict[str, Effect] = {
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


def frame(name: str, before: Ledger, after: Ledger) -> Conditions:
    """Every field that the transition `name` may not change is the same."""
    return {
        f"{field}_unchanged": getattr(after, field) == getattr(before, field)
        for field in Ledger._fields
        if field not in CHANGES[name]
    }


def effects(name: str, before: State, rules: Rules, event: Any, after: State) -> Conditions:
    """All effects of the transition `name`, and its frame."""
    return {
        **EFFECTS[name](before, rules, event, after),
        **frame(name, before.ledger, after.ledger),
    }

"""The recurrent state of hybrid models: transitions and decisions, written once, branch-free.

What the integers mean is in `draftproof.spec.recurrent`. A scheduler keeps one `Recurrent` beside a row's
ledger, calls the transition of each event, and acts on the difference: `publish` says which blocks become
findable, `dispatch` up to where target blocks must be set aside, `copy_needed` whether the row must first
move to a private copy. Like the accounting these functions are proved, compiled and run from one source;
a transition assumes its guard (`draftproof.spec.recurrent_events`) and never clamps. All counts are tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftproof.spec.algebra import all_of, both, floor_to_block, maximum, minimum, negate, where
from draftproof.spec.ledger import Ledger
from draftproof.spec.recurrent import (
    Recurrent,
    RecurrentRules,
    is_boundary,
    last_boundary,
    num_certain_tokens,
    num_possible_tokens,
)

# ---- transitions: (recurrent, rules, *event) -> recurrent


def start(
    recurrent: Recurrent, rules: RecurrentRules, num_hit_tokens: int, num_checkpoint_tokens: int
) -> Recurrent:
    """A life begins on the state that a look-up found, or on the empty state in a fresh block.

    The block that was hit is published and may have other owners: it is read, never written, so the row
    moves to a private copy before its first step (vLLM #57908).
    """
    return Recurrent(
        holds_state=1,
        num_state_tokens=num_hit_tokens,
        num_in_flight_tokens=0,
        num_in_flight_drafts=0,
        num_trimmed_tokens=0,
        state_slot=0,
        num_reserved_tokens=0,
        num_published_tokens=num_hit_tokens,
        running_key=num_hit_tokens,
        num_checkpoint_tokens=num_checkpoint_tokens,
    )


def make_private(recurrent: Recurrent, rules: RecurrentRules) -> Recurrent:
    """The working slot in use is the row's own again: it moved to a copy, or its key was withdrawn."""
    return Recurrent(
        holds_state=recurrent.holds_state,
        num_state_tokens=recurrent.num_state_tokens,
        num_in_flight_tokens=recurrent.num_in_flight_tokens,
        num_in_flight_drafts=recurrent.num_in_flight_drafts,
        num_trimmed_tokens=recurrent.num_trimmed_tokens,
        state_slot=recurrent.state_slot,
        num_reserved_tokens=recurrent.num_reserved_tokens,
        num_published_tokens=recurrent.num_published_tokens,
        running_key=0,
        num_checkpoint_tokens=recurrent.num_checkpoint_tokens,
    )


def dispatch(
    recurrent: Recurrent, rules: RecurrentRules, num_new_tokens: int, num_drafts: int, num_tokens: int
) -> Recurrent:
    """A step goes out. If it may end beyond the `num_tokens` known ones, with drafts or by running ahead,
    the state cannot be published before the next step overwrites it: every boundary that may be crossed
    needs a target block (vLLM #57605). Those are the ones above `first_unreserved` of the record before,
    up to `num_reserved_tokens` of the result."""
    num_reachable = num_possible_tokens(recurrent) + num_new_tokens
    return Recurrent(
        holds_state=recurrent.holds_state,
        num_state_tokens=recurrent.num_state_tokens,
        num_in_flight_tokens=recurrent.num_in_flight_tokens + num_new_tokens,
        num_in_flight_drafts=recurrent.num_in_flight_drafts + num_drafts,
        num_trimmed_tokens=recurrent.num_trimmed_tokens,
        state_slot=0,
        num_reserved_tokens=where(
            num_reachable > num_tokens,
            maximum(recurrent.num_reserved_tokens, floor_to_block(num_reachable, rules.block_size)),
            recurrent.num_reserved_tokens,
        ),
        num_published_tokens=recurrent.num_published_tokens,
        running_key=recurrent.running_key,
        num_checkpoint_tokens=recurrent.num_checkpoint_tokens,
    )


def publish(recurrent: Recurrent, rules: RecurrentRules, num_registrable_tokens: int) -> Recurrent:
    """Everything kept up to `num_registrable_tokens` becomes findable.

    Two things: each target block of a boundary above the old `num_published_tokens` and not above the new
    one; and the working slot in use, if `running_key` has become positive. The slot is published only at
    the position at which the last dispatched step leaves it: an earlier boundary is not in it any more, and
    one that was published before has its own block (vLLM #54979). It is asked while that step is in flight,
    too, or a run-ahead step would overwrite the state before anyone could find it. With drafts in flight
    that position is beyond what is known, so the limit excludes it.
    """
    end = num_possible_tokens(recurrent)
    slot_is_published = all_of(
        end <= num_registrable_tokens,
        end > recurrent.num_published_tokens,
        end > recurrent.num_reserved_tokens,
        is_boundary(end, recurrent.num_checkpoint_tokens, rules),
    )
    return Recurrent(
        holds_state=recurrent.holds_state,
        num_state_tokens=recurrent.num_state_tokens,
        num_in_flight_tokens=recurrent.num_in_flight_tokens,
        num_in_flight_drafts=recurrent.num_in_flight_drafts,
        num_trimmed_tokens=recurrent.num_trimmed_tokens,
        state_slot=recurrent.state_slot,
        num_reserved_tokens=recurrent.num_reserved_tokens,
        num_published_tokens=maximum(
            recurrent.num_published_tokens,
            last_boundary(num_registrable_tokens, recurrent.num_checkpoint_tokens, rules),
        ),
        running_key=where(slot_is_published, end, recurrent.running_key),
        num_checkpoint_tokens=recurrent.num_checkpoint_tokens,
    )


def settle(
    recurrent: Recurrent,
    rules: RecurrentRules,
    num_returned: int,
    num_drafts: int,
    num_accepted: int,
    num_kept: int,
) -> Recurrent:
    """The oldest step returned. The state is that of the last token kept that has been consumed: all kept
    ones but the last, which the next step consumes (`num_kept` is 0 for a chunk that sampled nothing)."""
    num_consumed = maximum(num_kept - 1, 0)
    num_left = recurrent.num_in_flight_tokens - num_returned
    return Recurrent(
        holds_state=recurrent.holds_state,
        num_state_tokens=recurrent.num_state_tokens + (num_returned - num_drafts) + num_consumed,
        num_in_flight_tokens=num_left,
        num_in_flight_drafts=recurrent.num_in_flight_drafts - num_drafts,
        num_trimmed_tokens=num_accepted - num_consumed,
        state_slot=where(num_left == 0, num_consumed, 0),
        num_reserved_tokens=recurrent.num_reserved_tokens,
        num_published_tokens=recurrent.num_published_tokens,
        running_key=recurrent.running_key,
        num_checkpoint_tokens=recurrent.num_checkpoint_tokens,
    )


def end_turn(recurrent: Recurrent, rules: RecurrentRules) -> Recurrent:
    """A session waits for its next chunk and keeps its state; the target blocks ahead are given back."""
    return Recurrent(
        holds_state=recurrent.holds_state,
        num_state_tokens=recurrent.num_state_tokens,
        num_in_flight_tokens=recurrent.num_in_flight_tokens,
        num_in_flight_drafts=recurrent.num_in_flight_drafts,
        num_trimmed_tokens=0,
        state_slot=recurrent.state_slot,
        num_reserved_tokens=0,
        num_published_tokens=recurrent.num_published_tokens,
        running_key=recurrent.running_key,
        num_checkpoint_tokens=0,
    )


def next_turn(recurrent: Recurrent, rules: RecurrentRules, num_checkpoint_tokens: int) -> Recurrent:
    """The session goes on from the state it kept; a checkpoint that lies behind it is none."""
    return Recurrent(
        holds_state=recurrent.holds_state,
        num_state_tokens=recurrent.num_state_tokens,
        num_in_flight_tokens=recurrent.num_in_flight_tokens,
        num_in_flight_drafts=recurrent.num_in_flight_drafts,
        num_trimmed_tokens=recurrent.num_trimmed_tokens,
        state_slot=recurrent.state_slot,
        num_reserved_tokens=recurrent.num_reserved_tokens,
        num_published_tokens=recurrent.num_published_tokens,
        running_key=recurrent.running_key,
        num_checkpoint_tokens=where(
            num_checkpoint_tokens > recurrent.num_state_tokens, num_checkpoint_tokens, 0
        ),
    )


def leave(recurrent: Recurrent, rules: RecurrentRules) -> Recurrent:
    """Preempted, finished, aborted, or given up: the row holds no state any more."""
    return Recurrent(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


TRANSITIONS: dict[str, Callable[..., Recurrent]] = {
    "start": start,
    "make_private": make_private,
    "dispatch": dispatch,
    "publish": publish,
    "settle": settle,
    "end_turn": end_turn,
    "next_turn": next_turn,
    "leave": leave,
}

# ---- decisions


def copy_needed(recurrent: Recurrent) -> bool:
    """Whether the row must move to a private copy, or withdraw the key, before it dispatches a step."""
    return recurrent.running_key > 0


def may_withdraw(num_owners: int) -> bool:
    """Whether the key may be withdrawn instead of copying: nobody else has the block."""
    return num_owners == 1


def first_unreserved(recurrent: Recurrent, rules: RecurrentRules) -> int:
    """Boundaries above this one and not above the next `num_reserved_tokens` need a target block."""
    certain = floor_to_block(num_certain_tokens(recurrent), rules.block_size)
    return maximum(recurrent.num_reserved_tokens, certain)


def slot_to_read(recurrent: Recurrent, num_last_accepted: int) -> int:
    """The working slot that the next step starts from, with or without drafts of its own (vLLM #56531).

    With a step in flight only the device knows: the slot is what its last step accepted.
    """
    return where(recurrent.num_in_flight_tokens == 0, recurrent.state_slot, num_last_accepted)


def state_survives_turn(recurrent: Recurrent) -> bool:
    """Whether the state of the turn's last position still exists when the turn ends: a step in flight has
    overwritten it, and the next turn must start from the prefix cache."""
    return recurrent.num_in_flight_tokens == 0


def may_hit(published_in_step: int, step: int) -> bool:
    """Whether a published state may be hit in a step: recurrent layers cannot read it in the step that
    writes it (vLLM #29387)."""
    return published_in_step < step


def must_withdraw(published_in_step: int, failed_step: int) -> bool:
    """Whether a failed step takes a publication with it: all those made since it was dispatched."""
    return published_in_step >= failed_step


def chunk_to_schedule(
    num_start_tokens: int,
    num_wanted: int,
    num_tokens: int,
    num_checkpoint_tokens: int,
    rules: RecurrentRules,
) -> int:
    """Of a prefill chunk of `num_wanted` tokens, how many to compute so that it ends on a boundary.

    It never runs past the prompt's checkpoint, and ends between two boundaries only where all known tokens
    end, for a resumed request too (vLLM #33706). 0: no boundary within reach of the budget.
    """
    end = num_start_tokens + num_wanted
    crosses_checkpoint = both(num_start_tokens < num_checkpoint_tokens, num_checkpoint_tokens < end)
    inner = where(crosses_checkpoint, num_checkpoint_tokens, last_boundary(end, num_checkpoint_tokens, rules))
    stop = where(both(end >= num_tokens, negate(crosses_checkpoint)), end, inner)
    return maximum(stop - num_start_tokens, 0)


def registrable_in_service(ledger: Ledger) -> int:
    """Up to where the states of a running request may be published: known, and dispatched.

    Asked after each dispatch and after each output that does not stop. No fence is kept back: the target's
    recurrent layers do not look ahead, and a look-up is never longer than what attention has.
    """
    return minimum(ledger.num_computed_tokens, ledger.num_tokens)


def registrable_at_exit(ledger: Ledger) -> int:
    """The same before a running request finishes, is preempted or aborted: known, and returned."""
    num_live = ledger.num_in_flight_tokens - ledger.num_stale_tokens
    returned = ledger.num_computed_tokens + ledger.num_trimmed_tokens - num_live
    return minimum(maximum(returned, 0), ledger.num_tokens)


def registrable_at_turn_end(ledger: Ledger) -> int:
    """The same before a running session's turn ends: the next chunk replaces the last known token."""
    return ledger.num_tokens - 1


DECISIONS: dict[str, Callable[..., Any]] = {
    "copy_needed": copy_needed,
    "may_withdraw": may_withdraw,
    "first_unreserved": first_unreserved,
    "slot_to_read": slot_to_read,
    "state_survives_turn": state_survives_turn,
    "may_hit": may_hit,
    "must_withdraw": must_withdraw,
    "chunk_to_schedule": chunk_to_schedule,
    "registrable_in_service": registrable_in_service,
    "registrable_at_exit": registrable_at_exit,
    "registrable_at_turn_end": registrable_at_turn_end,
}

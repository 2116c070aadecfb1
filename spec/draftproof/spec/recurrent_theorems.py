"""The theorems M1 to M4 about recurrent state: what each says, and its claims about single events.

A claim speaks about one event and one block, whichever. What the decisions must obey by themselves
(`chunk_to_schedule` and the limits taken from the ledger) is in `recurrent_decisions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from draftproof.spec.algebra import all_of, both, either, floor_to_block, implies
from draftproof.spec.meanings import Theorem
from draftproof.spec.recurrent import RecurrentRules, is_boundary, num_certain_tokens, num_possible_tokens
from draftproof.spec.recurrent_events import RECURRENT_EVENTS
from draftproof.spec.recurrent_ghosts import RecurrentState, num_device_tokens
from draftproof.spec.recurrent_guards import Decisions, num_settled_states

RECURRENT_THEOREMS: dict[str, Theorem] = {
    "M1": Theorem(
        "a published state is never written",
        "No dispatched step writes a block that can be found, or that another request holds: the row moves "
        "to a private copy first, or as the only owner withdraws the key. What is published for a position "
        "holds exactly that state as long as it can be found.",
        "vLLM #57908, #51766",
    ),
    "M2": Theorem(
        "a hit is exactly the state at its end",
        "A look-up returns a state that consumed exactly as many tokens as the hit counts, written in an "
        "earlier step; a prefill chunk that others follow ends on a boundary.",
        "vLLM #29387, #33706",
    ),
    "M3": Theorem(
        "after a rejection the state is that of the last accepted position",
        "Once a step has returned, the slot in use holds the state of all kept tokens but the last; the next "
        "step reads the slot that holds the position it starts at, whether it has drafts or not.",
        "vLLM #56531, #45100",
    ),
    "M4": Theorem(
        "published once, where it will stay, and at the first chance",
        "A settled boundary is not attached to a working slot that a step in flight has moved on; every "
        "boundary that is kept is published when it is first asked for, also in flight and also beyond what "
        "was published before; and every boundary that drafts may cross has a block to be kept in.",
        "vLLM #54979, #57605",
    ),
}


class RecurrentClaim(NamedTuple):
    """A claim about some events: (before, rules, event, after, decisions) to a truth value."""

    theorem: str
    name: str
    events: tuple[str, ...]
    predicate: Callable[[RecurrentState, RecurrentRules, Any, RecurrentState, Decisions], bool]


def _step_ends(before: RecurrentState, event: Any) -> tuple[int, int]:
    """The first and the last position whose state a dispatched step computes of this sequence."""
    first = num_device_tokens(before) + event.num_new_tokens - event.num_drafts
    return first, first + event.num_accepted


def written_blocks_are_private(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """A block that the step writes is not published, and nobody else holds it."""
    block, end = before.block, num_device_tokens(before)
    _, last = _step_ends(before, event)
    written = either(
        both(block.slot >= 0, block.slot <= event.num_drafts),
        both(block.boundary > end, block.boundary <= last),
    )
    return implies(written, both(block.key == 0, block.num_other_owners == 0))


def published_state_is_kept(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """A block that can be found after the event holds the state it is found for."""
    return implies(after.block.key > 0, after.block.holds == after.block.key)


def others_keep_what_they_hold(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """While another request holds a block, what is in it does not change."""
    return implies(
        both(before.block.num_other_owners > 0, after.block.num_other_owners > 0),
        after.block.holds == before.block.holds,
    )


def hit_is_exact(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """The block that is hit holds the position of the hit, and was written in an earlier step."""
    return implies(
        both(after.block.slot == 0, event.num_hit_tokens > 0),
        all_of(
            after.block.holds == event.num_hit_tokens,
            after.recurrent.num_state_tokens == event.num_hit_tokens,
            after.block.written_in_step < after.ghosts.step,
        ),
    )


def hit_is_not_refused_for_long(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """In the step after it was published, a state may be hit."""
    return implies(after.block.key > 0, decisions["may_hit"](after.block.key_step, after.ghosts.step))


def state_is_last_accepted(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """With everything returned, the slot in use holds the state of all known tokens but the last sampled."""
    recurrent, ghosts, block = after
    return implies(
        recurrent.num_in_flight_tokens == 0,
        both(
            implies(block.slot == recurrent.state_slot, block.holds == recurrent.num_state_tokens),
            implies(event.num_kept > 0, recurrent.num_state_tokens == ghosts.num_known_tokens - 1),
        ),
    )


def step_reads_its_start(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """The slot that the step reads holds the position at which the device goes on."""
    recurrent, ghosts, block = before
    slot = decisions["slot_to_read"](recurrent, ghosts.num_last_accepted)
    return implies(block.slot == slot, block.holds == num_device_tokens(before))


def turn_goes_on_where_it_ended(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """The next turn reads the state of the turn's tokens but the last."""
    recurrent, ghosts, block = after
    slot = decisions["slot_to_read"](recurrent, ghosts.num_last_accepted)
    return both(
        num_device_tokens(after) == ghosts.num_known_tokens,
        implies(block.slot == slot, block.holds == ghosts.num_known_tokens),
    )


def state_is_kept_when_it_can_be(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """With everything returned, a turn that ends now would keep its state."""
    recurrent = after.recurrent
    return implies(recurrent.num_in_flight_tokens == 0, decisions["state_survives_turn"](recurrent))


def not_attached_where_it_is_not(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """A working slot is published only for the position at which the last dispatched step leaves it."""
    return implies(
        all_of(before.block.slot >= 0, before.block.key == 0, after.block.key > 0),
        both(
            after.block.key == num_device_tokens(before),
            before.block.slot == before.ghosts.device_slot,
        ),
    )


def first_publication_happens(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """A boundary above what was published, and within the limit, is published if a block holds it."""
    recurrent, ghosts, block = before
    end, limit = num_possible_tokens(recurrent), event.num_registrable_tokens
    is_target = both(block.boundary > recurrent.num_published_tokens, block.boundary <= limit)
    stands_on_it = all_of(
        block.slot == ghosts.device_slot,
        recurrent.num_in_flight_drafts == 0,
        recurrent.num_trimmed_tokens == 0,
        is_boundary(end, recurrent.num_checkpoint_tokens, rules),
        end > recurrent.num_published_tokens,
        end > recurrent.num_reserved_tokens,
        end <= limit,
    )
    return both(
        implies(is_target, after.block.key == block.boundary), implies(stands_on_it, after.block.key == end)
    )


def nothing_settled_is_lost(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """When the row leaves or its turn ends, every settled state that was kept can be found."""
    num_replaced = getattr(event, "num_replaced", 1)
    block, settled = before.block, num_settled_states(before, num_replaced)
    return implies(
        both(block.boundary > 0, block.boundary <= settled),
        both(block.key == block.boundary, after.block.key > 0),
    )


def nothing_is_overwritten_unpublished(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """When a step moves the state on from a boundary, it was published, or a target holds it."""
    recurrent, end = before.recurrent, num_device_tokens(before)
    return implies(
        is_boundary(end, recurrent.num_checkpoint_tokens, rules),
        either(end <= recurrent.num_published_tokens, end <= recurrent.num_reserved_tokens),
    )


def crossed_boundary_has_a_block(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """Whatever is accepted of the drafts, a boundary that the step crosses is one that has a target."""
    _, last = _step_ends(before, event)
    return implies(
        last > event.num_tokens,
        floor_to_block(last, rules.block_size) <= after.recurrent.num_reserved_tokens,
    )


def new_boundaries_get_blocks(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """The boundaries that are set aside start behind those that were, and behind what is certain."""
    recurrent, size = before.recurrent, rules.block_size
    first = decisions["first_unreserved"](recurrent, rules)
    passed = floor_to_block(num_certain_tokens(recurrent), size)
    return all_of(
        first == floor_to_block(first, size),
        first >= recurrent.num_reserved_tokens,
        first >= passed,
        either(first == recurrent.num_reserved_tokens, first == passed),
    )


def crossed_boundary_is_kept(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """A target whose boundary the step crosses holds it, exactly."""
    end, block = num_device_tokens(before), after.block
    _, last = _step_ends(before, event)
    return implies(all_of(block.boundary > end, block.boundary <= last), block.holds == block.boundary)


def copy_is_asked_when_needed(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """The row is asked to leave its slot exactly if the block there can be found."""
    recurrent, block = after.recurrent, after.block
    needed = decisions["copy_needed"](recurrent)
    in_use = both(recurrent.holds_state == 1, block.slot == recurrent.state_slot)
    published = block.key > 0
    return implies(in_use, both(implies(published, needed), implies(needed, published)))


def sole_owner_may_withdraw(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """Nobody else holds the block: then no copy is needed."""
    num_others = before.block.num_other_owners
    return implies(num_others == 0, decisions["may_withdraw"](1 + num_others))


def failed_work_is_not_found(
    before: RecurrentState, rules: RecurrentRules, event: Any, after: RecurrentState, decisions: Decisions
) -> bool:
    """Nothing that a failed step wrote can be found; what was published before it still can."""
    old, new = before.block, after.block
    written = old.written_in_step >= event.failed_step
    return both(
        implies(written, new.key == 0),
        implies(both(old.key > 0, old.key_step < event.failed_step), new.key == old.key),
    )


_ALL = tuple(RECURRENT_EVENTS)

RECURRENT_CLAIMS: tuple[RecurrentClaim, ...] = (
    RecurrentClaim("M1", "written_blocks_are_private", ("dispatch",), written_blocks_are_private),
    RecurrentClaim("M1", "published_state_is_kept", _ALL, published_state_is_kept),
    RecurrentClaim("M1", "others_keep_what_they_hold", ("dispatch", "make_private", "publish", "settle"),
                   others_keep_what_they_hold),
    RecurrentClaim("M1", "copy_is_asked_when_needed", _ALL, copy_is_asked_when_needed),
    RecurrentClaim("M1", "sole_owner_may_withdraw", ("make_private",), sole_owner_may_withdraw),
    RecurrentClaim("M1", "failed_work_is_not_found", ("fail",), failed_work_is_not_found),
    RecurrentClaim("M2", "hit_is_exact", ("start",), hit_is_exact),
    RecurrentClaim("M2", "hit_is_not_refused_for_long", ("next_step",), hit_is_not_refused_for_long),
    RecurrentClaim("M3", "state_is_last_accepted", ("settle",), state_is_last_accepted),
    RecurrentClaim("M3", "state_is_kept_when_it_can_be", ("start", "settle"), state_is_kept_when_it_can_be),
    RecurrentClaim("M3", "step_reads_its_start", ("dispatch",), step_reads_its_start),
    RecurrentClaim("M3", "turn_goes_on_where_it_ended", ("end_turn",), turn_goes_on_where_it_ended),
    RecurrentClaim("M4", "not_attached_where_it_is_not", ("publish",), not_attached_where_it_is_not),
    RecurrentClaim("M4", "first_publication_happens", ("publish",), first_publication_happens),
    RecurrentClaim("M4", "nothing_settled_is_lost", ("leave", "end_turn"), nothing_settled_is_lost),
    RecurrentClaim("M4", "nothing_is_overwritten_unpublished", ("dispatch",),
                   nothing_is_overwritten_unpublished),
    RecurrentClaim("M4", "crossed_boundary_has_a_block", ("dispatch",), crossed_boundary_has_a_block),
    RecurrentClaim("M4", "new_boundaries_get_blocks", ("dispatch",), new_boundaries_get_blocks),
    RecurrentClaim("M4", "crossed_boundary_is_kept", ("dispatch",), crossed_boundary_is_kept),
)  # fmt: skip

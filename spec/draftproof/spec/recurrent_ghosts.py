"""What is really in the blocks? The truth beside a `Recurrent` record, and about one watched block.

The proofs follow one arbitrary block of the pool (`StateBlock`); what holds for it holds for every block,
and no quantifier is needed. Its `holds` is a position of the request's own sequence: the block will hold the
state after so many of the device's tokens once all dispatched steps have run, in the order of the stream.
Ghosts are updated from the event and other ghosts, never from the record under test; the exceptions are what
the scheduler does to a block *because* of the record: the key it attaches or withdraws, and which working
slot it moves. Where an event gives the watched block a new place, `Role` says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from draftproof.spec.algebra import all_of, any_of, both, maximum, where
from draftproof.spec.recurrent import NO_STATE, Recurrent, num_certain_tokens


class RecurrentGhosts(NamedTuple):
    """What only the specification knows of the request and of time."""

    num_known_tokens: int
    """N: prompt and committed output."""
    num_in_flight_accepted: int
    """Of the drafts in flight, how many the device accepts."""
    device_slot: int
    """The working slot in which the state is once all dispatched steps have run."""
    num_last_accepted: int
    """What the device accepted last, in whichever turn or life: its own idea of that slot."""
    num_offered_tokens: int
    """The highest position up to which publication was asked in this life."""
    step: int
    """The scheduler's present step, from 1."""


class StateBlock(NamedTuple):
    """One block, whichever."""

    slot: int
    """The working slot of the request that it is; -1 if none."""
    boundary: int
    """The boundary that it is set aside for; 0 if none."""
    holds: int
    """Position of the state in it; 0 for the empty state, or none of this sequence."""
    written_in_step: int
    key: int
    """Position that it is published for; 0 if it cannot be found."""
    key_step: int
    """The step in which it was published."""
    num_other_owners: int
    """Other requests that hold it."""
    num_pending_copies: int
    """Copies from or to it that have not run; each holds a reference."""


class RecurrentState(NamedTuple):
    """The record, and the truth."""

    recurrent: Recurrent
    ghosts: RecurrentGhosts
    block: StateBlock


class Role(NamedTuple):
    """Whether the watched block is the one that an event takes: as a working slot, or for a boundary."""

    slot: int = -1
    boundary: int = 0


NO_ROLE = Role()


def num_device_tokens(state: RecurrentState) -> int:
    """Position of the device's state once all dispatched steps have run."""
    return num_certain_tokens(state.recurrent) + state.ghosts.num_in_flight_accepted


def is_free(block: StateBlock) -> bool:
    """Nobody owns the block and it cannot be found: it may be taken."""
    return all_of(
        block.slot == -1,
        block.boundary == 0,
        block.key == 0,
        block.num_other_owners == 0,
        block.num_pending_copies == 0,
    )


def initial_recurrent_state(num_known_tokens: int) -> RecurrentState:
    """A request that has just arrived, and a block that nobody has used."""
    return RecurrentState(
        NO_STATE, RecurrentGhosts(num_known_tokens, 0, 0, 0, 0, 1), StateBlock(-1, 0, 0, 0, 0, 0, 0, 0)
    )


# ---- the request


def _start(state: RecurrentState, event: Any) -> RecurrentGhosts:
    return state.ghosts._replace(
        num_in_flight_accepted=0, device_slot=0, num_offered_tokens=event.num_hit_tokens
    )


def _dispatch(state: RecurrentState, event: Any) -> RecurrentGhosts:
    ghosts = state.ghosts
    return ghosts._replace(
        num_in_flight_accepted=ghosts.num_in_flight_accepted + event.num_accepted,
        device_slot=event.num_accepted,
        num_last_accepted=event.num_accepted,
    )


def _publish(state: RecurrentState, event: Any) -> RecurrentGhosts:
    ghosts = state.ghosts
    offered = maximum(ghosts.num_offered_tokens, event.num_registrable_tokens)
    return ghosts._replace(num_offered_tokens=offered)


def _settle(state: RecurrentState, event: Any) -> RecurrentGhosts:
    ghosts = state.ghosts
    return ghosts._replace(
        num_known_tokens=ghosts.num_known_tokens + event.num_kept,
        num_in_flight_accepted=ghosts.num_in_flight_accepted - event.num_accepted,
    )


def _end_turn(state: RecurrentState, event: Any) -> RecurrentGhosts:
    """The next chunk rewrites the last known token, so it does not count any more; the device continues from
    the slot in which the state of the position before it is."""
    ghosts, trimmed = state.ghosts, state.recurrent.num_trimmed_tokens
    return ghosts._replace(
        num_known_tokens=ghosts.num_known_tokens - 1, device_slot=ghosts.device_slot - trimmed
    )


def _next_turn(state: RecurrentState, event: Any) -> RecurrentGhosts:
    ghosts = state.ghosts
    return ghosts._replace(num_known_tokens=ghosts.num_known_tokens + event.num_tokens)


def _leave(state: RecurrentState, event: Any) -> RecurrentGhosts:
    return state.ghosts._replace(num_in_flight_accepted=0, device_slot=0, num_offered_tokens=0)


def _append(state: RecurrentState, event: Any) -> RecurrentGhosts:
    ghosts = state.ghosts
    return ghosts._replace(num_known_tokens=ghosts.num_known_tokens - event.num_replaced + event.num_tokens)


def _next_step(state: RecurrentState, event: Any) -> RecurrentGhosts:
    return state.ghosts._replace(step=state.ghosts.step + 1)


_GHOSTS: dict[str, Callable[[RecurrentState, Any], RecurrentGhosts]] = {
    "start": _start,
    "dispatch": _dispatch,
    "publish": _publish,
    "settle": _settle,
    "end_turn": _end_turn,
    "next_turn": _next_turn,
    "leave": _leave,
    "fail": _leave,
    "append": _append,
    "next_step": _next_step,
}


def ghosts_after(name: str, state: RecurrentState, event: Any) -> RecurrentGhosts:
    """The request's ghosts after an event."""
    return _GHOSTS[name](state, event) if name in _GHOSTS else state.ghosts


# ---- the watched block


def _block_start(state: RecurrentState, event: Any, role: Role, after: Recurrent) -> StateBlock:
    """A fresh block is empty; a hit one stays as it is."""
    block = state.block
    fresh = both(role.slot >= 0, any_of(role.slot > 0, event.num_hit_tokens == 0))
    return block._replace(
        slot=where(role.slot >= 0, role.slot, block.slot),
        holds=where(fresh, 0, block.holds),
        written_in_step=where(fresh, state.ghosts.step, block.written_in_step),
    )


def _block_make_private(state: RecurrentState, event: Any, role: Role, after: Recurrent) -> StateBlock:
    """The published block goes its own way, the copy takes its place and holds what was in the slot."""
    recurrent, ghosts, block = state
    is_copy = role.slot >= 0
    is_left = both(event.copies == 1, block.slot == recurrent.state_slot)
    is_withdrawn = both(event.copies == 0, block.slot == recurrent.state_slot)
    copied = num_device_tokens(state) - ghosts.device_slot + recurrent.state_slot
    return block._replace(
        slot=where(is_copy, role.slot, where(is_left, -1, block.slot)),
        holds=where(is_copy, copied, block.holds),
        written_in_step=where(is_copy, ghosts.step, block.written_in_step),
        key=where(is_withdrawn, 0, block.key),
        num_pending_copies=block.num_pending_copies + where(any_of(is_copy, is_left), 1, 0),
    )


def _block_dispatch(state: RecurrentState, event: Any, role: Role, after: Recurrent) -> StateBlock:
    """Slot i gets the state after i drafts, of this sequence only if they are accepted; a boundary that is
    crossed is copied to its target as soon as the device knows."""
    block = state.block
    end = num_device_tokens(state)
    first = end + event.num_new_tokens - event.num_drafts
    boundary = where(role.boundary > 0, role.boundary, block.boundary)
    is_slot = both(block.slot >= 0, block.slot <= event.num_drafts)
    is_crossed = all_of(boundary > end, boundary >= first, boundary <= first + event.num_accepted)
    in_slot = where(block.slot <= event.num_accepted, first + block.slot, 0)
    return block._replace(
        boundary=boundary,
        holds=where(is_slot, in_slot, where(is_crossed, boundary, block.holds)),
        written_in_step=where(any_of(is_slot, is_crossed), state.ghosts.step, block.written_in_step),
    )


def _block_publish(state: RecurrentState, event: Any, role: Role, after: Recurrent) -> StateBlock:
    """What the scheduler attaches keys to, on the transition's word."""
    recurrent, ghosts, block = state
    as_target = all_of(
        block.boundary > recurrent.num_published_tokens, block.boundary <= after.num_published_tokens
    )
    as_slot = all_of(recurrent.running_key == 0, after.running_key > 0, block.slot == recurrent.state_slot)
    return block._replace(
        key=where(as_target, block.boundary, where(as_slot, after.running_key, block.key)),
        key_step=where(any_of(as_target, as_slot), ghosts.step, block.key_step),
    )


def _without_tokens(block: StateBlock, num_kept_tokens: int) -> StateBlock:
    """States that contain tokens which are replaced belong to another sequence from now on."""
    return block._replace(
        holds=where(block.holds <= num_kept_tokens, block.holds, 0),
        key=where(block.key <= num_kept_tokens, block.key, 0),
    )


def _block_end_turn(state: RecurrentState, event: Any, role: Role, after: Recurrent) -> StateBlock:
    """Targets are given back; the last known token will be replaced."""
    return _without_tokens(state.block, state.ghosts.num_known_tokens - 1)._replace(boundary=0)


def _block_append(state: RecurrentState, event: Any, role: Role, after: Recurrent) -> StateBlock:
    return _without_tokens(state.block, state.ghosts.num_known_tokens - event.num_replaced)


def _block_leave(state: RecurrentState, event: Any, role: Role, after: Recurrent) -> StateBlock:
    """The device's tokens that the host does not know are no part of the next life."""
    return _without_tokens(state.block, state.ghosts.num_known_tokens)._replace(slot=-1, boundary=0)


def _block_other_hits(state: RecurrentState, event: Any, role: Role, after: Recurrent) -> StateBlock:
    return state.block._replace(num_other_owners=state.block.num_other_owners + 1)


def _block_other_releases(state: RecurrentState, event: Any, role: Role, after: Recurrent) -> StateBlock:
    return state.block._replace(num_other_owners=state.block.num_other_owners - 1)


def _block_copy_done(state: RecurrentState, event: Any, role: Role, after: Recurrent) -> StateBlock:
    return state.block._replace(num_pending_copies=state.block.num_pending_copies - 1)


def _block_evict(state: RecurrentState, event: Any, role: Role, after: Recurrent) -> StateBlock:
    return state.block._replace(key=0, holds=0)


_BLOCKS: dict[str, Callable[[RecurrentState, Any, Role, Recurrent], StateBlock]] = {
    "start": _block_start,
    "make_private": _block_make_private,
    "dispatch": _block_dispatch,
    "publish": _block_publish,
    "end_turn": _block_end_turn,
    "leave": _block_leave,
    "append": _block_append,
    "other_hits": _block_other_hits,
    "other_releases": _block_other_releases,
    "copy_done": _block_copy_done,
    "evict": _block_evict,
}


def block_after(
    name: str,
    state: RecurrentState,
    event: Any,
    role: Role,
    after: Recurrent,
    must_withdraw: Callable[[Any, Any], Any],
) -> StateBlock:
    """The watched block after an event; `must_withdraw` is the running decision that a failed step asks."""
    if name == "fail":
        block = _block_leave(state, event, role, after)
        return block._replace(
            holds=where(block.written_in_step >= event.failed_step, 0, block.holds),
            key=where(must_withdraw(block.key_step, event.failed_step), 0, block.key),
        )
    return _BLOCKS[name](state, event, role, after) if name in _BLOCKS else state.block

"""What holds of owners and of the free list in every state of the pool?

Each invariant is named, and holds for any index of the kinds that it lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from draftproof.spec.algebra import all_of, both, either, implies
from draftproof.spec.pool import PoolState, is_block, is_free, is_in_free_list


class Invariant(NamedTuple):
    """A predicate of a state and some indices, each a block, node, sentinel, handle, position or offset."""

    theorem: str
    indices: tuple[str, ...]
    meaning: str
    predicate: Callable[..., Any]


Predicate = Callable[..., Any]


def named_into(table: dict[str, Invariant]) -> Callable[..., Callable[[Predicate], Predicate]]:
    """A decorator (theorem, *kinds of index) that enters a predicate into the table under its own name."""

    def entry(theorem: str, *indices: str) -> Callable[[Predicate], Predicate]:
        def register(predicate: Predicate) -> Predicate:
            assert predicate.__doc__ is not None
            table[predicate.__name__] = Invariant(theorem, indices, predicate.__doc__, predicate)
            return predicate

        return register

    return entry


FREE_LIST_INVARIANTS: dict[str, Invariant] = {}
_invariant = named_into(FREE_LIST_INVARIANTS)


@_invariant("P1", "block")
def null_block_stays_out(state: PoolState, block: int) -> bool:
    """The null block has no owner and is never published, and no block has a negative number of owners."""
    ref_count = state.pool.ref_count
    return all_of(
        ref_count[0] == 0,
        state.pool.next_in_chain[0] == 0,
        implies(is_block(state, block), ref_count[block] >= 0),
    )


@_invariant("P2", "handle")
def owner_is_counted(state: PoolState, handle: int) -> bool:
    """Every handle is one of its block's counted owners."""
    ghosts = state.ghosts
    block, position = ghosts.handle_block[handle], ghosts.handle_position[handle]
    return implies(
        block != 0,
        all_of(
            is_block(state, block),
            position >= 0,
            position < state.pool.ref_count[block],
            ghosts.handle_at[block, position] == handle,
        ),
    )


@_invariant("P2", "block", "position")
def count_is_owned(state: PoolState, block: int, position: int) -> bool:
    """Every counted owner of a block is a handle: with `owner_is_counted`, counts are numbers of owners."""
    ghosts = state.ghosts
    handle = ghosts.handle_at[block, position]
    return implies(
        all_of(is_block(state, block), position >= 0, position < state.pool.ref_count[block]),
        both(ghosts.handle_block[handle] == block, ghosts.handle_position[handle] == position),
    )


@_invariant("P1", "block")
def free_is_counted(state: PoolState, block: int) -> bool:
    """Every free block has a number of its own below `num_free_blocks`."""
    position = state.ghosts.free_position[block]
    return implies(
        is_free(state, block),
        all_of(
            position >= 0,
            position < state.pool.num_free_blocks[0],
            state.ghosts.free_at[position] == block,
        ),
    )


@_invariant("P1", "position")
def counted_is_free(state: PoolState, position: int) -> bool:
    """Every number below `num_free_blocks` is a free block's: the count is that of the free blocks."""
    block = state.ghosts.free_at[position]
    return implies(
        both(position >= 0, position < state.pool.num_free_blocks[0]),
        both(is_free(state, block), state.ghosts.free_position[block] == position),
    )


@_invariant("P1")
def free_count_is_not_negative(state: PoolState) -> bool:
    """`num_free_blocks` is not negative, and stamps were given out in order."""
    return both(
        state.pool.num_free_blocks[0] >= 0, state.ghosts.lowest_stamp[0] <= state.ghosts.highest_stamp[0]
    )


@_invariant("P1", "block")
def free_list_is_a_ring(state: PoolState, block: int) -> bool:
    """The neighbours of a node of the free list are nodes of it, and point back."""
    pool = state.pool
    following, previous = pool.next_free[block], pool.previous_free[block]
    return implies(
        is_in_free_list(state, block),
        all_of(
            is_in_free_list(state, following),
            is_in_free_list(state, previous),
            pool.previous_free[following] == block,
            pool.next_free[previous] == block,
        ),
    )


@_invariant("memory", "block")
def links_are_in_range(state: PoolState, block: int) -> bool:
    """Links can be followed without leaving the arrays, also the stale ones of blocks in no list."""
    pool, sizes = state.pool, state.sizes
    last_node = sizes.num_blocks + sizes.num_chains
    return implies(
        either(block == 0, is_block(state, block)),
        all_of(
            both(pool.next_free[block] >= 0, pool.next_free[block] <= sizes.num_blocks),
            both(pool.previous_free[block] >= 0, pool.previous_free[block] <= sizes.num_blocks),
            both(pool.next_in_chain[block] >= 0, pool.next_in_chain[block] <= last_node),
            both(pool.previous_in_chain[block] >= 0, pool.previous_in_chain[block] <= last_node),
        ),
    )


@_invariant("P7", "block", "block")
def stamps_differ(state: PoolState, block: int, other: int) -> bool:
    """No two free blocks have the same stamp."""
    stamp = state.ghosts.freed_stamp
    return implies(
        all_of(is_free(state, block), is_free(state, other), stamp[block] == stamp[other]), block == other
    )


@_invariant("P7", "block")
def stamps_are_bounded(state: PoolState, block: int) -> bool:
    """The stamps of free blocks lie between the lowest and the highest given out."""
    ghosts = state.ghosts
    stamp = ghosts.freed_stamp[block]
    return implies(
        is_free(state, block), both(stamp >= ghosts.lowest_stamp[0], stamp <= ghosts.highest_stamp[0])
    )


@_invariant("P7", "block")
def stamps_ascend(state: PoolState, block: int) -> bool:
    """Along the free list stamps ascend."""
    stamp, following = state.ghosts.freed_stamp, state.pool.next_free[block]
    return implies(both(is_free(state, block), following != 0), stamp[block] < stamp[following])


@_invariant("P7", "block", "block")
def no_stamp_is_skipped(state: PoolState, block: int, other: int) -> bool:
    """A free block with a higher stamp is reached by following the list."""
    stamp, following = state.ghosts.freed_stamp, state.pool.next_free[block]
    return implies(
        all_of(is_free(state, block), is_free(state, other), stamp[block] < stamp[other]),
        both(following != 0, stamp[following] <= stamp[other]),
    )


@_invariant("P7", "block")
def free_list_has_ends(state: PoolState, block: int) -> bool:
    """The free list starts with the lowest stamp and ends with the highest."""
    stamp = state.ghosts.freed_stamp
    first, last = state.pool.next_free[0], state.pool.previous_free[0]
    return implies(
        is_free(state, block),
        all_of(first != 0, stamp[first] <= stamp[block], last != 0, stamp[block] <= stamp[last]),
    )

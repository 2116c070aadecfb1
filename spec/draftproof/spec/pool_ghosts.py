"""How do the pool's ghosts move? Each function follows one thing that happened, in place.

They are called right after the pool's own arrays have changed. What a proof may rely on (the order in which
blocks were freed, what was published as what) is taken from the call, never from the order that the code's
links happen to have.
"""

from __future__ import annotations

from draftproof.spec.algebra import both, negate, where
from draftproof.spec.pool import PoolState, put


def gained_owner(state: PoolState, handle: int, block: int, condition: bool) -> None:
    """The handle now owns the block, as its last owner."""
    ghosts = state.ghosts
    position = state.pool.ref_count[block] - 1
    put(ghosts.handle_block, handle, block, condition)
    put(ghosts.handle_position, handle, position, condition)
    put(ghosts.handle_at, (block, position), handle, condition)


def lost_owner(state: PoolState, handle: int, block: int, condition: bool) -> None:
    """The handle owns nothing any more; the block's last owner takes its number."""
    ghosts = state.ghosts
    last = ghosts.handle_at[block, state.pool.ref_count[block]]
    position = ghosts.handle_position[handle]
    put(ghosts.handle_at, (block, position), last, condition)
    put(ghosts.handle_position, last, position, condition)
    put(ghosts.handle_block, handle, 0, condition)


def left_free_list(state: PoolState, block: int, condition: bool) -> None:
    """The block is free no longer; the last-numbered free block takes its number."""
    ghosts = state.ghosts
    last = ghosts.free_at[state.pool.num_free_blocks[0]]
    position = ghosts.free_position[block]
    put(ghosts.free_at, position, last, condition)
    put(ghosts.free_position, last, position, condition)


def joined_free_list(state: PoolState, block: int, was_published: bool, condition: bool) -> None:
    """The block is free. Published, it is the last to be reused; otherwise nobody can hit it: the first."""
    ghosts = state.ghosts
    position = state.pool.num_free_blocks[0] - 1
    put(ghosts.free_at, position, block, condition)
    put(ghosts.free_position, block, position, condition)
    above, below = ghosts.highest_stamp[0] + 1, ghosts.lowest_stamp[0] - 1
    put(ghosts.freed_stamp, block, where(was_published, above, below), condition)
    put(ghosts.highest_stamp, 0, above, both(condition, was_published))
    put(ghosts.lowest_stamp, 0, below, both(condition, negate(was_published)))


def was_published_as(
    state: PoolState, block: int, parent: tuple[int, int], content: int, condition: bool
) -> None:
    """The block stands for this content after this parent, and is the latest publication."""
    ghosts = state.ghosts
    number = ghosts.num_publications[0] + 1
    put(ghosts.num_publications, 0, number, condition)
    put(ghosts.serial, block, number, condition)
    put(ghosts.parent_first, block, parent[0], condition)
    put(ghosts.parent_second, block, parent[1], condition)
    put(ghosts.content, block, content, condition)

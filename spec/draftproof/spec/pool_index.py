"""What holds of the prefix index and of the content of blocks in every state of the pool?"""

from __future__ import annotations

from draftproof.spec.algebra import all_of, both, implies
from draftproof.spec.pool import (
    PoolState,
    chain_of,
    is_block,
    is_in_a_chain,
    is_published,
    is_sentinel,
)
from draftproof.spec.pool_free_list import Invariant, named_into

INDEX_INVARIANTS: dict[str, Invariant] = {}
_invariant = named_into(INDEX_INVARIANTS)


@_invariant("P4", "node")
def chains_are_rings(state: PoolState, node: int) -> bool:
    """The neighbours of a node of a chain are nodes of the same chain, and point back."""
    pool = state.pool
    following, previous = pool.next_in_chain[node], pool.previous_in_chain[node]
    return implies(
        is_in_a_chain(state, node),
        all_of(
            is_in_a_chain(state, following),
            is_in_a_chain(state, previous),
            pool.previous_in_chain[following] == node,
            pool.next_in_chain[previous] == node,
            chain_of(state, following) == chain_of(state, node),
            chain_of(state, previous) == chain_of(state, node),
        ),
    )


@_invariant("P4")
def publications_are_counted(state: PoolState) -> bool:
    """The number of publications is not negative."""
    return state.ghosts.num_publications[0] >= 0  # type: ignore[no-any-return]


@_invariant("P4", "block")
def serials_are_bounded(state: PoolState, block: int) -> bool:
    """A published block's serial lies between 1 and the number of publications."""
    serial = state.ghosts.serial[block]
    return implies(is_published(state, block), both(serial > 0, serial <= state.ghosts.num_publications[0]))


@_invariant("P4", "block", "block")
def serials_differ(state: PoolState, block: int, other: int) -> bool:
    """No two published blocks have the same serial."""
    serial = state.ghosts.serial
    return implies(
        all_of(is_published(state, block), is_published(state, other), serial[block] == serial[other]),
        block == other,
    )


@_invariant("P4", "block")
def serials_descend(state: PoolState, block: int) -> bool:
    """Along a chain serials descend: a look-up ends."""
    serial, following = state.ghosts.serial, state.pool.next_in_chain[block]
    return implies(
        both(is_published(state, block), is_block(state, following)), serial[block] > serial[following]
    )


@_invariant("P4", "block", "block")
def no_serial_is_skipped(state: PoolState, block: int, other: int) -> bool:
    """An older block of the same chain is reached by following the chain."""
    serial, following = state.ghosts.serial, state.pool.next_in_chain[block]
    return implies(
        all_of(
            is_published(state, block),
            is_published(state, other),
            chain_of(state, block) == chain_of(state, other),
            serial[block] > serial[other],
        ),
        both(is_published(state, following), serial[following] >= serial[other]),
    )


@_invariant("P4", "sentinel", "block")
def chain_starts_with_the_newest(state: PoolState, sentinel: int, block: int) -> bool:
    """A published block is reached from the sentinel of its chain."""
    serial, first = state.ghosts.serial, state.pool.next_in_chain[sentinel]
    return implies(
        all_of(
            is_sentinel(state, sentinel),
            is_published(state, block),
            chain_of(state, block) == sentinel,
        ),
        both(is_published(state, first), serial[first] >= serial[block]),
    )


@_invariant("memory", "block")
def rows_hold_their_tokens(state: PoolState, block: int) -> bool:
    """A block holds between 0 and B tokens."""
    count = state.pool.num_tokens[block]
    return implies(is_block(state, block), both(count >= 0, count <= state.sizes.block_size))


@_invariant("P3", "block")
def digest_is_of_the_content(state: PoolState, block: int) -> bool:
    """A published block has the length and the digest of what it was published as."""
    pool, ghosts, contents = state.pool, state.ghosts, state.contents
    content = ghosts.content[block]
    parent = ghosts.parent_first[block], ghosts.parent_second[block]
    return implies(
        is_published(state, block),
        all_of(
            pool.num_tokens[block] == contents.length(content),
            pool.digest_first[block] == contents.digest_first(*parent, content),
            pool.digest_second[block] == contents.digest_second(*parent, content),
        ),
    )


@_invariant("P3", "block", "offset")
def tokens_are_of_the_content(state: PoolState, block: int, offset: int) -> bool:
    """A published block holds the tokens of what it was published as."""
    return implies(
        all_of(is_published(state, block), offset >= 0, offset < state.pool.num_tokens[block]),
        state.pool.token_ids[block, offset] == state.contents.token(state.ghosts.content[block], offset),
    )

"""What is in the pool of KV blocks, and what does it mean? The arrays, the ghosts, and a few words.

Blocks are numbered 1 to `num_blocks`; block 0 is the null block: it is never handed out and serves as the
sentinel of the free list. Two kinds of circular lists run through the blocks: the free list (least recently
used first) and the chains of the prefix index, one for each value of the low bits of a digest. The sentinel
of a chain is a node above the blocks. A block is *published* exactly if it is linked into a chain.

The ghosts exist only in proofs and tests: who owns a block, in which order blocks were freed and published,
and which content a block was published as. A *handle* is one owner's claim to one block (an entry of a
request's block table); a *stamp* orders the free blocks; a *serial* orders publications. What must hold of
all this is in `pool_invariants` and `pool_effects`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from draftproof.spec.algebra import both, either, where


class Pool(NamedTuple):
    """The arrays. With n blocks, c chains and B tokens a block: int64[n + 1] unless said otherwise."""

    ref_count: Any
    """Owners of the block (vLLM's `ref_cnt`)."""
    previous_free: Any
    next_free: Any
    num_free_blocks: Any
    """int64[1]"""
    previous_in_chain: Any
    """int64[n + 1 + c]"""
    next_in_chain: Any
    """int64[n + 1 + c]; 0 for a block that is not published."""
    digest_first: Any
    """First word of the digest that the block was published under."""
    digest_second: Any
    num_tokens: Any
    """Tokens written to the block so far, at most B."""
    token_ids: Any
    """int32[n + 1, B]; of a row the first `num_tokens` count."""


class Ghosts(NamedTuple):
    """What only the specification knows. Arrays over handles, blocks and positions."""

    handle_block: Any
    """The block that a handle owns; 0 for none."""
    handle_position: Any
    """Which of its block's owners a handle is, from 0."""
    handle_at: Any
    """[block, position]: the inverse of the two above."""
    free_position: Any
    """A number for each free block, from 0."""
    free_at: Any
    """The inverse of `free_position`."""
    freed_stamp: Any
    """Of two free blocks the one with the lower stamp must be reused first."""
    lowest_stamp: Any
    highest_stamp: Any
    serial: Any
    """When the block was published, counted in publications."""
    num_publications: Any
    parent_first: Any
    """The parent's digest at publication."""
    parent_second: Any
    content: Any
    """The token sequence that the block was published as, as an identity."""


class Sizes(NamedTuple):
    """All at least 1."""

    num_blocks: Any
    num_chains: Any
    block_size: Any


class Contents(NamedTuple):
    """Token sequences by identity, and the digest of one after a parent's. Pure functions."""

    length: Callable[[Any], Any]
    token: Callable[[Any, Any], Any]
    digest_first: Callable[[Any, Any, Any], Any]
    """Of the parent's first and second word and the content."""
    digest_second: Callable[[Any, Any, Any], Any]
    chain: Callable[[Any], Any]
    """The chain of a first word, 0 to num_chains - 1."""


class PoolState(NamedTuple):
    """A pool with its ghosts."""

    pool: Pool
    ghosts: Ghosts
    sizes: Sizes
    contents: Contents


def put(array: Any, index: Any, value: Any, condition: bool) -> None:
    """A guarded write: the only conditional effect there is. Reads and writes the cell in either case."""
    array[index] = where(condition, value, array[index])


def is_block(state: PoolState, block: int) -> bool:
    """A block that can be handed out: not the null block."""
    return both(block >= 1, block <= state.sizes.num_blocks)


def is_free(state: PoolState, block: int) -> bool:
    """A block without owner. It may still be published, and be hit."""
    return both(is_block(state, block), state.pool.ref_count[block] == 0)


def is_published(state: PoolState, block: int) -> bool:
    """A block that a look-up may return."""
    return both(is_block(state, block), state.pool.next_in_chain[block] != 0)


def is_sentinel(state: PoolState, node: int) -> bool:
    """The fixed node of a chain."""
    num_blocks, num_chains, _ = state.sizes
    return both(node > num_blocks, node <= num_blocks + num_chains)


def is_in_free_list(state: PoolState, block: int) -> bool:
    """A node of the free list: a free block, or 0, its sentinel."""
    return either(block == 0, is_free(state, block))


def is_in_a_chain(state: PoolState, node: int) -> bool:
    """A node of the index: a published block, or a sentinel."""
    return either(is_sentinel(state, node), is_published(state, node))


def sentinel_of(state: PoolState, first_word: int) -> int:
    """The sentinel of the chain for a digest's first word."""
    return state.sizes.num_blocks + 1 + state.contents.chain(first_word)  # type: ignore[no-any-return]


def chain_of(state: PoolState, node: int) -> int:
    """The sentinel of the chain that a node must be in: a block's by its digest."""
    return where(node > state.sizes.num_blocks, node, sentinel_of(state, state.pool.digest_first[node]))


def is_writable(state: PoolState, block: int) -> bool:
    """One owner and not published: nobody else can read the block, now or later."""
    return both(state.pool.ref_count[block] == 1, state.pool.next_in_chain[block] == 0)

"""The pool of KV blocks and its prefix index: seven primitives and one search. Proven, compiled and run.

The arrays are `draftproof.spec.pool.Pool`: a circular free list (least recently used first, sentinel 0)
and circular chains of published blocks (sentinels above the blocks). Every primitive is free of loops and
branches: its `condition` guards each write (`put`), so the same source runs interpreted on numpy arrays,
compiled, and on symbolic arrays. All reads and writes stay within the arrays whether the condition holds
or not; compiled code has no bounds checks. The only loops are `row_equal`, `row_copy` and `look_up`.

A published block is identified by a keyed 128-bit digest of its tokens and all before them, and a hit also
compares the block's own tokens. Duplicates stay published: if one copy is evicted, the other still serves.
Arguments and results called `block` are block numbers; counts are tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import draftproof.impl.carrier_numpy  # noqa: F401 - makes `where` work on whole columns, for `new_pool`
from draftproof.spec.algebra import both, negate, where
from draftproof.spec.pool import Pool, put


def row_equal(token_ids: Any, block: int, tokens: Any, num_tokens: int) -> bool:
    """Whether the block's first `num_tokens` tokens are those given."""
    equal = True
    for offset in range(num_tokens):
        equal = both(equal, token_ids[block, offset] == tokens[offset])
    return equal


def row_copy(token_ids: Any, target: int, source: int, num_tokens: int, condition: bool) -> None:
    """Copy the first `num_tokens` tokens of one block to another."""
    for offset in range(num_tokens):
        put(token_ids, (target, offset), token_ids[source, offset], condition)


def low_bits(word: int, count: int) -> int:
    """A number from 0 to count - 1, evenly spread if `count` is a power of two (as `new_pool` requires)."""
    return word & (count - 1)


def unlink(previous: Any, following: Any, node: int, condition: bool) -> None:
    """Take a node out of its ring; its own links become stale."""
    before, after = previous[node], following[node]
    put(following, before, after, condition)
    put(previous, after, before, condition)


def link(previous: Any, following: Any, before: int, node: int, condition: bool) -> None:
    """Put a node into a ring, after the node `before`."""
    after = following[before]
    put(following, before, node, condition)
    put(previous, node, before, condition)
    put(following, node, after, condition)
    put(previous, after, node, condition)


def published(pool: Pool, block: int) -> bool:
    """Whether a look-up may return the block."""
    return pool.next_in_chain[block] != 0  # type: ignore[no-any-return]


def writable(pool: Pool, block: int) -> bool:
    """Whether nobody but its owner can read the block: one owner, and not published."""
    return both(pool.ref_count[block] == 1, pool.next_in_chain[block] == 0)


def sentinel(pool: Pool, digest_first: int) -> int:
    """The fixed node of the chain for a digest."""
    num_nodes = pool.ref_count.shape[0]
    chain = low_bits(digest_first, pool.next_in_chain.shape[0] - num_nodes)
    return num_nodes + chain  # type: ignore[no-any-return]


def withdraw(pool: Pool, block: int, condition: bool) -> None:
    """Take a block out of the index; its owners, content and place in the free list stay.

    Eviction does it, and a failed step for every block computed from its KV, whoever owns it by now,
    before anything is released. Of a block that is not published it does nothing.
    """
    out = both(condition, published(pool, block))
    unlink(pool.previous_in_chain, pool.next_in_chain, block, out)
    put(pool.next_in_chain, block, 0, out)


def publish(pool: Pool, block: int, digest_first: int, digest_second: int, condition: bool) -> None:
    """Make a block findable, newest first in its chain. Of a published block it does nothing.

    No look-up is needed before: several blocks may be published under one digest.
    """
    new = both(condition, negate(published(pool, block)))
    put(pool.digest_first, block, digest_first, new)
    put(pool.digest_second, block, digest_second, new)
    link(pool.previous_in_chain, pool.next_in_chain, sentinel(pool, digest_first), block, new)


def take(pool: Pool, condition: bool) -> int:
    """The least recently used free block, evicted and empty, with one owner; 0 when none is free."""
    block = where(condition, pool.next_free[0], 0)
    found = block != 0
    withdraw(pool, block, found)
    unlink(pool.previous_free, pool.next_free, block, found)
    put(pool.ref_count, block, 1, found)
    put(pool.num_tokens, block, 0, found)
    pool.num_free_blocks[0] = pool.num_free_blocks[0] - where(found, 1, 0)
    return block


def acquire(pool: Pool, block: int, condition: bool) -> None:
    """One owner more, after a look-up: a block without owners leaves the free list."""
    was_free = both(condition, pool.ref_count[block] == 0)
    unlink(pool.previous_free, pool.next_free, block, was_free)
    pool.num_free_blocks[0] = pool.num_free_blocks[0] - where(was_free, 1, 0)
    put(pool.ref_count, block, pool.ref_count[block] + 1, condition)


def release(pool: Pool, block: int, condition: bool) -> None:
    """One owner less. Without owners a published block is reused last, any other first.

    A request releases its blocks from the last to the first, so that tails are evicted before heads.
    """
    put(pool.ref_count, block, pool.ref_count[block] - 1, condition)
    freed = both(condition, pool.ref_count[block] == 0)
    before = where(published(pool, block), pool.previous_free[0], 0)
    link(pool.previous_free, pool.next_free, before, block, freed)
    pool.num_free_blocks[0] = pool.num_free_blocks[0] + where(freed, 1, 0)


def append(pool: Pool, block: int, token: int, condition: bool) -> None:
    """Write one token behind those in a writable block with room for it."""
    put(pool.token_ids, (block, pool.num_tokens[block]), token, condition)
    put(pool.num_tokens, block, pool.num_tokens[block] + 1, condition)


def own_copy(pool: Pool, block: int, num_kept: int, condition: bool) -> int:
    """Copy on write: a writable block with the first `num_kept` tokens; 0 when no block is free.

    A writable block is returned as it is. Otherwise the caller's claim moves to the copy.
    """
    shared = both(condition, negate(writable(pool, block)))
    copy = take(pool, shared)
    copied = copy != 0
    row_copy(pool.token_ids, copy, block, num_kept, copied)
    put(pool.num_tokens, copy, num_kept, copied)
    release(pool, block, copied)
    return where(shared, copy, block)


def matches(
    pool: Pool, block: int, digest_first: int, digest_second: int, tokens: Any, num_tokens: int
) -> bool:
    """Whether a block holds exactly these tokens under this digest."""
    same_digest = both(pool.digest_first[block] == digest_first, pool.digest_second[block] == digest_second)
    same_length = pool.num_tokens[block] == num_tokens
    return both(both(same_digest, same_length), row_equal(pool.token_ids, block, tokens, num_tokens))


def goes_on(
    pool: Pool, node: int, digest_first: int, digest_second: int, tokens: Any, num_tokens: int
) -> bool:
    """Whether the search must look at the next node: this one is a block that does not match."""
    is_block = node < pool.ref_count.shape[0]
    block = where(is_block, node, 0)  # `both` always evaluates both sides: never read beyond the blocks
    return both(is_block, negate(matches(pool, block, digest_first, digest_second, tokens, num_tokens)))


def look_up(pool: Pool, digest_first: int, digest_second: int, tokens: Any, num_tokens: int) -> int:
    """A published block with this digest and exactly these tokens, any of several; 0 when there is none."""
    node = pool.next_in_chain[sentinel(pool, digest_first)]
    while goes_on(pool, node, digest_first, digest_second, tokens, num_tokens):
        node = pool.next_in_chain[node]
    return where(node < pool.ref_count.shape[0], node, 0)


def initial_previous_free(block: int, num_blocks: int) -> int:
    """In a new pool all blocks are free, in their order."""
    return where(block == 0, num_blocks, block - 1)


def initial_next_free(block: int, num_blocks: int) -> int:
    """In a new pool all blocks are free, in their order."""
    return where(block == num_blocks, 0, block + 1)


def initial_in_chain(node: int, num_blocks: int) -> int:
    """In a new pool no block is in a chain, and every sentinel is alone."""
    return where(node <= num_blocks, 0, node)


def new_pool(num_blocks: int, num_chains: int, block_size: int) -> Pool:
    """A pool in which every block is free. `num_chains` is a power of two, about as many as blocks."""
    if num_blocks < 1 or block_size < 1:
        raise ValueError(f"a pool has at least one block of one token, got {num_blocks} of {block_size}")
    if num_chains < 1 or num_chains & (num_chains - 1) != 0:
        raise ValueError(f"the number of chains is a power of two, got {num_chains}")
    blocks: Any = np.arange(num_blocks + 1, dtype=np.int64)
    nodes: Any = np.arange(num_blocks + 1 + num_chains, dtype=np.int64)
    return Pool(
        ref_count=np.zeros(num_blocks + 1, np.int64),
        previous_free=initial_previous_free(blocks, num_blocks),
        next_free=initial_next_free(blocks, num_blocks),
        num_free_blocks=np.array([num_blocks], np.int64),
        previous_in_chain=initial_in_chain(nodes, num_blocks),
        next_in_chain=initial_in_chain(nodes, num_blocks),
        digest_first=np.zeros(num_blocks + 1, np.int64),
        digest_second=np.zeros(num_blocks + 1, np.int64),
        num_tokens=np.zeros(num_blocks + 1, np.int64),
        token_ids=np.zeros((num_blocks + 1, block_size), np.int32),
    )

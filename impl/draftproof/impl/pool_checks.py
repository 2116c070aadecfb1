"""Is a pool in order? One sweep over all its arrays, for debug mode and for exhaustive exploration.

The sweep knows nothing of the proofs: it walks the lists, counts, and compares with the number of owners
that the caller knows of. It is plain code with loops and branches; Numba compiles it as it is.
"""

from __future__ import annotations

from typing import Any

from draftproof.impl.pool import published, sentinel
from draftproof.spec.pool import Pool

PROBLEMS = (
    "nothing",
    "a reference count is not the number of owners",
    "the count of free blocks is wrong",
    "the free list holds a block that is not free",
    "the links of the free list do not point back",
    "the free list does not hold all free blocks",
    "a chain holds a block that is not published there",
    "the links of a chain do not point back",
    "a published block is in no chain",
    "the null block is in use",
    "a block holds more tokens than fit",
)
"""What `problem_of` can find, by number."""


def problem_of(pool: Pool, num_owners: Any) -> int:
    """The number of the first problem found, 0 for none. `num_owners` is int64[num_blocks + 1], by block."""
    num_blocks = pool.ref_count.shape[0] - 1
    if num_owners[0] != 0 or pool.ref_count[0] != 0 or pool.next_in_chain[0] != 0:
        return 9
    num_free = 0
    num_published = 0
    for block in range(1, num_blocks + 1):
        if pool.ref_count[block] != num_owners[block]:
            return 1
        if pool.num_tokens[block] < 0 or pool.num_tokens[block] > pool.token_ids.shape[1]:
            return 10
        num_free += num_owners[block] == 0
        num_published += published(pool, block)
    if pool.num_free_blocks[0] != num_free:
        return 2
    found = _free_list_problem(pool, num_free)
    if found != 0:
        return found
    return _chain_problem(pool, num_published)


def _free_list_problem(pool: Pool, num_free: int) -> int:
    """Walk the free list once around."""
    previous = 0
    block = pool.next_free[0]
    met = 0
    while block != 0:
        if block < 0 or block >= pool.ref_count.shape[0] or pool.ref_count[block] != 0:
            return 3
        if pool.previous_free[block] != previous or met == num_free:
            return 4
        met += 1
        previous = block
        block = pool.next_free[block]
    if pool.previous_free[0] != previous:
        return 4
    return 0 if met == num_free else 5


def _chain_problem(pool: Pool, num_published: int) -> int:
    """Walk every chain once around."""
    num_blocks = pool.ref_count.shape[0] - 1
    met = 0
    for start in range(num_blocks + 1, pool.next_in_chain.shape[0]):
        previous = start
        node = pool.next_in_chain[start]
        while node != start:
            if node < 1 or node > num_blocks or not published(pool, node):
                return 6
            if sentinel(pool, pool.digest_first[node]) != start:
                return 6
            if pool.previous_in_chain[node] != previous or met == num_published:
                return 7
            met += 1
            previous = node
            node = pool.next_in_chain[node]
        if pool.previous_in_chain[start] != previous:
            return 7
    return 0 if met == num_published else 8

"""Faults of the primitives in what should be counted otherwise, and in content that should stay."""

from __future__ import annotations

from draftproof.proofs.pool_mutant import PoolMutant, one_change

_COUNT = "pool.num_free_blocks[0] = pool.num_free_blocks[0]"
_MARK = "put(pool.next_in_chain, block, 0, out)"
_LINK = "link(pool.previous_free, pool.next_free, before, block, freed)"
_SECOND = "put(pool.digest_second, block, digest_second, new)"
_OWNER = "put(pool.ref_count, block, pool.ref_count[block] + 1, condition)"

COUNT_MUTANTS: tuple[PoolMutant, ...] = (
    one_change(
        "taken_block_is_counted_as_free",
        "take",
        "effect/free_blocks_after_take",
        "where(found, 1, 0)",
        "0",
    ),
    one_change(
        "acquire_counts_a_held_block",
        "acquire",
        "effect/free_blocks_after_acquire",
        "where(was_free, 1, 0)",
        "where(condition, 1, 0)",
    ),
    one_change(
        "release_counts_every_call",
        "release",
        "effect/free_blocks_after_release",
        "where(freed, 1, 0)",
        "where(condition, 1, 0)",
    ),
    one_change(
        "copy_is_counted_twice",
        "own_copy",
        "effect/free_blocks_after_own_copy",
        "release(pool, block, copied)",
        f"release(pool, block, copied); {_COUNT} - where(copied, 1, 0)",
    ),
    one_change(
        "acquired_block_is_emptied",
        "acquire",
        "effect/content_is_left_alone",
        _OWNER,
        f"{_OWNER}; put(pool.num_tokens, block, 0, was_free)",
    ),
    one_change(
        "released_block_is_emptied",
        "release",
        "effect/content_is_left_alone",
        _LINK,
        f"{_LINK}; put(pool.num_tokens, block, 0, freed)",
    ),
    one_change(
        "published_block_loses_its_first_token",
        "publish",
        "effect/content_is_left_alone",
        _SECOND,
        f"{_SECOND}; put(pool.token_ids, (block, 0), 0, new)",
    ),
    one_change(
        "withdrawn_block_loses_its_first_token",
        "withdraw",
        "effect/content_is_left_alone",
        _MARK,
        f"{_MARK}; put(pool.token_ids, (block, 0), 0, out)",
    ),
    one_change(
        "writable_block_is_copied_too",
        "own_copy",
        "effect/copies_only_what_is_shared",
        "both(condition, negate(writable(pool, block)))",
        "condition",
    ),
)

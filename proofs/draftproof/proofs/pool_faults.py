"""Faults of the pool's primitives: one change of the running source, and the claim that must notice it."""

from __future__ import annotations

from draftproof.proofs.pool_mutant import PoolMutant, one_change

_EVICTS_TWIN = """following = pool.next_in_chain[block]
    twin = where(following < pool.ref_count.shape[0], following, 0)
    same_first = pool.digest_first[twin] == pool.digest_first[block]
    same = both(same_first, pool.digest_second[twin] == pool.digest_second[block])
    withdraw(pool, twin, both(both(found, twin != 0), same))
    withdraw(pool, block, found)"""

_REFUSES_DUPLICATE = """first = pool.next_in_chain[sentinel(pool, digest_first)]
    newest = where(first < pool.ref_count.shape[0], first, 0)
    new = both(both(condition, negate(published(pool, block))), pool.digest_first[newest] != digest_first)"""

_UNLINK_CHAIN = "unlink(pool.previous_in_chain, pool.next_in_chain, block, out)"
_UNLINK_FREE = "unlink(pool.previous_free, pool.next_free, block, {})"
_MARK = "put(pool.next_in_chain, block, 0, out)"

PRIMITIVE_MUTANTS: tuple[PoolMutant, ...] = (
    one_change(
        "taken_block_stays_published",
        "take",
        "effect/index_after_take",
        "withdraw(pool, block, found)",
        "pass",
    ),
    one_change(
        "duplicate_disappears_with_its_twin",
        "take",
        "effect/evicted_without_owners",
        "withdraw(pool, block, found)",
        _EVICTS_TWIN,
    ),
    one_change(
        "taken_block_stays_free",
        "take",
        "invariant/free_list_is_a_ring",
        _UNLINK_FREE.format("found"),
        "pass",
    ),
    one_change(
        "most_recent_is_taken",
        "take",
        "effect/takes_the_least_recent",
        "pool.next_free[0]",
        "pool.previous_free[0]",
    ),
    one_change(
        "count_falls_when_none_is_free", "take", "effect/nothing_happens_unasked", "where(found, 1, 0)", "1"
    ),
    one_change(
        "taken_block_is_not_empty",
        "take",
        "effect/takes_the_least_recent",
        "put(pool.num_tokens, block, 0, found)",
        "pass",
    ),
    one_change(
        "taken_block_has_no_owner",
        "take",
        "effect/owners_after_take",
        "put(pool.ref_count, block, 1, found)",
        "pass",
    ),
    one_change(
        "withdrawn_block_stays_linked", "withdraw", "invariant/chains_are_rings", _UNLINK_CHAIN, "pass"
    ),
    one_change("unlinked_block_stays_marked", "withdraw", "effect/withdrawn_is_writable", _MARK, "pass"),
    one_change(
        "withdrawn_block_loses_owners",
        "withdraw",
        "effect/free_list_is_left_alone",
        _MARK,
        f"{_MARK}; put(pool.ref_count, block, 0, out)",
    ),
    one_change(
        "unpublished_block_is_withdrawn",
        "withdraw",
        "invariant/chains_are_rings",
        "both(condition, published(pool, block))",
        "condition",
    ),
    one_change(
        "withdrawn_block_is_freed_again",
        "withdraw",
        "invariant/free_list_is_a_ring",
        _MARK,
        f"{_MARK}; link(pool.previous_free, pool.next_free, 0, block, both(out, pool.ref_count[block] == 0))",
    ),
    one_change(
        "acquire_at_the_wrong_count",
        "acquire",
        "invariant/free_is_counted",
        "pool.ref_count[block] == 0",
        "pool.ref_count[block] == 1",
    ),
    one_change(
        "acquired_block_stays_free",
        "acquire",
        "invariant/free_list_is_a_ring",
        _UNLINK_FREE.format("was_free"),
        "pass",
    ),
    one_change(
        "acquire_does_not_count_free", "acquire", "invariant/counted_is_free", "where(was_free, 1, 0)", "0"
    ),
    one_change(
        "acquire_adds_no_owner",
        "acquire",
        "invariant/owner_is_counted",
        "pool.ref_count[block] + 1",
        "pool.ref_count[block]",
    ),
    one_change(
        "freed_with_an_owner_left",
        "release",
        "invariant/counted_is_free",
        "pool.ref_count[block] == 0",
        "pool.ref_count[block] <= 1",
    ),
    one_change(
        "release_keeps_the_owner",
        "release",
        "invariant/count_is_owned",
        "pool.ref_count[block] - 1",
        "pool.ref_count[block]",
    ),
    one_change(
        "released_block_is_not_linked",
        "release",
        "invariant/free_list_is_a_ring",
        "link(pool.previous_free, pool.next_free, before, block, freed)",
        "pass",
    ),
    one_change(
        "unpublished_block_is_kept_longest",
        "release",
        "effect/freed_goes_to_its_end",
        "where(published(pool, block), pool.previous_free[0], 0)",
        "pool.previous_free[0]",
    ),
    one_change(
        "published_block_is_reused_first",
        "release",
        "effect/freed_goes_to_its_end",
        "where(published(pool, block), pool.previous_free[0], 0)",
        "0",
    ),
    one_change(
        "link_forgets_the_way_back",
        "release",
        "invariant/free_list_is_a_ring",
        "put(previous, after, node, condition)",
        "pass",
        "link",
    ),
    one_change(
        "unlink_forgets_the_way_back",
        "take",
        "invariant/chains_are_rings",
        "put(previous, after, before, condition)",
        "pass",
        "unlink",
    ),
    one_change(
        "published_again_in_place",
        "publish",
        "effect/published_is_immutable",
        "both(condition, negate(published(pool, block)))",
        "condition",
    ),
    one_change(
        "published_in_another_chain",
        "publish",
        "invariant/chain_starts_with_the_newest",
        "sentinel(pool, digest_first)",
        "sentinel(pool, digest_second)",
    ),
    one_change(
        "second_word_is_not_stored",
        "publish",
        "effect/published_under_its_digest",
        "put(pool.digest_second, block, digest_second, new)",
        "pass",
    ),
    one_change(
        "duplicate_is_refused",
        "publish",
        "effect/index_after_publish",
        "new = both(condition, negate(published(pool, block)))",
        _REFUSES_DUPLICATE,
    ),
    one_change(
        "token_overwrites_the_last",
        "append",
        "effect/held_content_is_kept",
        "(block, pool.num_tokens[block])",
        "(block, where(pool.num_tokens[block] > 0, pool.num_tokens[block] - 1, 0))",
    ),
    one_change(
        "token_is_not_counted",
        "append",
        "effect/token_is_appended",
        "pool.num_tokens[block] + 1",
        "pool.num_tokens[block]",
    ),
    one_change(
        "old_claim_is_kept",
        "own_copy",
        "effect/owners_after_own_copy",
        "release(pool, block, copied)",
        "pass",
    ),
    one_change(
        "claim_is_lost_without_a_copy",
        "own_copy",
        "effect/handle_moves",
        "release(pool, block, copied)",
        "release(pool, block, shared)",
    ),
    one_change(
        "content_is_not_copied",
        "own_copy",
        "effect/copy_is_private_and_equal",
        "row_copy(pool.token_ids, copy, block, num_kept, copied)",
        "pass",
    ),
    one_change(
        "copy_has_no_length",
        "own_copy",
        "effect/copy_is_private_and_equal",
        "put(pool.num_tokens, copy, num_kept, copied)",
        "pass",
    ),
    one_change(
        "published_block_is_not_copied",
        "own_copy",
        "effect/copy_is_private_and_equal",
        "negate(writable(pool, block))",
        "pool.ref_count[block] != 1",
    ),
    one_change(
        "shared_block_is_not_copied",
        "own_copy",
        "effect/copy_is_private_and_equal",
        "negate(writable(pool, block))",
        "published(pool, block)",
    ),
    one_change(
        "copied_block_loses_its_length",
        "own_copy",
        "effect/lengths_stay",
        "release(pool, block, copied)",
        "release(pool, block, copied); put(pool.num_tokens, block, 0, copied)",
    ),
    one_change(
        "chain_beyond_the_last",
        "publish",
        "in_bounds/next_in_chain",
        "num_nodes + chain",
        "num_nodes + chain + 1",
        "sentinel",
    ),
    one_change(
        "token_written_one_further",
        "append",
        "in_bounds/token_ids",
        "(block, pool.num_tokens[block])",
        "(block, pool.num_tokens[block] + 1)",
    ),
)

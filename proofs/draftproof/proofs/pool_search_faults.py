"""Faults of the look-up and of the small pieces: the row loops, low bits, predicates, a new pool."""

from __future__ import annotations

from draftproof.proofs.pool_mutant import Change, PoolMutant, one_change

_STOPS_AT_FIRST = (
    Change(
        "goes_on",
        "negate(matches(pool, block, digest_first, digest_second, tokens, num_tokens))",
        "negate(both(pool.digest_first[block] == digest_first, pool.digest_second[block] == digest_second))",
    ),
    Change(
        "look_up",
        "return where(node < pool.ref_count.shape[0], node, 0)",
        "block = where(node < pool.ref_count.shape[0], node, 0)\n"
        "    found = matches(pool, block, digest_first, digest_second, tokens, num_tokens)\n"
        "    return where(both(node < pool.ref_count.shape[0], found), node, 0)",
    ),
)

PIECE_MUTANTS: tuple[PoolMutant, ...] = (
    one_change(
        "shared_block_is_called_writable",
        "predicates",
        "writable",
        "both(pool.ref_count[block] == 1, pool.next_in_chain[block] == 0)",
        "pool.next_in_chain[block] == 0",
        "writable",
    ),
    one_change(
        "published_block_is_called_writable",
        "predicates",
        "writable",
        "both(pool.ref_count[block] == 1, pool.next_in_chain[block] == 0)",
        "pool.ref_count[block] == 1",
        "writable",
    ),
    one_change(
        "free_block_is_called_unpublished",
        "predicates",
        "published",
        "pool.next_in_chain[block] != 0",
        "both(pool.ref_count[block] != 0, pool.next_in_chain[block] != 0)",
        "published",
    ),
    PoolMutant("first_match_of_digest_ends_the_search", "look_up", "complete", _STOPS_AT_FIRST),
    one_change(
        "tokens_are_not_compared",
        "look_up",
        "sound",
        "row_equal(pool.token_ids, block, tokens, num_tokens)",
        "True",
        "matches",
    ),
    one_change(
        "one_word_is_compared",
        "look_up",
        "same_ancestors",
        "pool.digest_second[block] == digest_second",
        "True",
        "matches",
    ),
    one_change(
        "length_is_not_compared",
        "look_up",
        "sound",
        "pool.num_tokens[block] == num_tokens",
        "True",
        "matches",
    ),
    one_change(
        "digest_is_not_compared",
        "look_up",
        "same_ancestors",
        "both(both(same_digest, same_length),",
        "both(same_length,",
        "matches",
    ),
    one_change(
        "sentinel_is_returned",
        "look_up",
        "sound",
        "return where(node < pool.ref_count.shape[0], node, 0)",
        "return node",
    ),
    one_change(
        "search_starts_at_the_oldest",
        "look_up",
        "starts",
        "pool.next_in_chain[sentinel(pool, digest_first)]",
        "pool.previous_in_chain[sentinel(pool, digest_first)]",
    ),
    one_change(
        "search_in_another_chain",
        "look_up",
        "starts",
        "low_bits(digest_first,",
        "low_bits(digest_first + 1,",
        "sentinel",
    ),
    one_change(
        "chain_without_end", "look_up", "descends", "both(is_block, negate(", "both(True, negate(", "goes_on"
    ),
    one_change("any_equal_token_suffices", "row_equal", "round", "both(equal,", "either(equal,"),
    one_change("rows_never_agree", "row_equal", "starts", "equal = True", "equal = False"),
    one_change("first_token_is_compared_only", "row_equal", "round", "tokens[offset]", "tokens[0]"),
    one_change(
        "last_token_is_not_compared", "row_equal", "ends", "range(num_tokens)", "range(num_tokens - 1)"
    ),
    one_change(
        "row_is_copied_to_itself",
        "row_copy",
        "round",
        "token_ids[source, offset]",
        "token_ids[target, offset]",
    ),
    one_change("last_token_is_not_copied", "row_copy", "ends", "range(num_tokens)", "range(num_tokens - 1)"),
    one_change(
        "row_is_copied_one_further", "row_copy", "in_bounds", "(target, offset)", "(target, offset + 1)"
    ),
    one_change("row_is_always_copied", "row_copy", "round", "condition)", "True)", "row_copy"),
    one_change("low_bits_may_reach_the_count", "low_bits", "in_range", "count - 1", "count"),
    one_change(
        "new_list_is_no_ring",
        "new_pool",
        "invariant/free_list_is_a_ring",
        "where(block == num_blocks, 0, block + 1)",
        "block + 1",
        "initial_next_free",
    ),
    one_change(
        "new_blocks_are_published",
        "new_pool",
        "invariant/chain_starts_with_the_newest",
        "where(node <= num_blocks, 0, node)",
        "node",
        "initial_in_chain",
    ),
)

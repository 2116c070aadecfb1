"""Faults of the primitives as the bodies of loops: what a loop would no longer achieve with them."""

from __future__ import annotations

from draftproof.proofs.pool_mutant import Change, PoolMutant

_MARK = "put(pool.next_in_chain, block, 0, out)"
_LINK = "link(pool.previous_free, pool.next_free, before, block, freed)"
_END = "where(published(pool, block), pool.previous_free[0], 0)"
_UNLINK = "unlink(pool.previous_free, pool.next_free, block, was_free)"

_EVICTS_TWIN = """following = pool.next_in_chain[block]
    twin = where(following < pool.ref_count.shape[0], following, 0)
    withdraw(pool, twin, both(found, twin != 0))
    withdraw(pool, block, found)"""


def _in(function: str, loop: str, name: str, claim: str, before: str, after: str) -> PoolMutant:
    return PoolMutant(name, loop, claim, (Change(function, before, after),))


LOOP_MUTANTS: tuple[PoolMutant, ...] = (
    _in(
        "withdraw",
        "withdraw_all",
        "listed_block_is_still_found",
        "round/listed_are_gone",
        _MARK,
        "pass",
    ),
    _in(
        "withdraw",
        "withdraw_all",
        "listed_block_goes_with_its_neighbour",
        "round/listed_are_gone",
        _MARK,
        f"after = pool.next_in_chain[block]; {_MARK}; put(pool.next_in_chain, after, 0, out)",
    ),
    _in(
        "withdraw",
        "withdraw_all",
        "listed_block_loses_its_owner",
        "round/rest_is_left_alone",
        _MARK,
        f"{_MARK}; put(pool.ref_count, block, pool.ref_count[block] - 1, out)",
    ),
    _in(
        "withdraw",
        "withdraw_all",
        "listed_block_is_emptied",
        "round/rest_is_left_alone",
        _MARK,
        f"{_MARK}; put(pool.num_tokens, block, 0, out)",
    ),
    _in(
        "withdraw",
        "withdraw_all",
        "listed_block_is_counted_as_free",
        "round/rest_is_left_alone",
        _MARK,
        f"{_MARK}; pool.num_free_blocks[0] = pool.num_free_blocks[0] + where(out, 1, 0)",
    ),
    _in(
        "release",
        "release_all",
        "released_block_is_withdrawn",
        "round/freed_wait",
        _LINK,
        f"{_LINK}; withdraw(pool, block, freed)",
    ),
    _in("release", "release_all", "head_is_reused_before_its_tail", "two_blocks", _END, "0"),
    _in(
        "take",
        "release_all",
        "head_is_evicted_before_its_tail",
        "tail_is_evicted_first",
        "pool.next_free[0]",
        "pool.previous_free[0]",
    ),
    _in("acquire", "hits", "acquired_block_can_be_taken", "acquired_is_not_taken", _UNLINK, "pass"),
    _in(
        "acquire",
        "hits",
        "acquired_block_has_no_owner_yet",
        "acquire_keeps_hits",
        "put(pool.ref_count, block, pool.ref_count[block] + 1, condition)",
        "pass",
    ),
    _in(
        "take",
        "hits",
        "take_evicts_the_neighbour_too",
        "take_keeps_hits",
        "withdraw(pool, block, found)",
        _EVICTS_TWIN,
    ),
)

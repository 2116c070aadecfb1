"""What does each primitive of the pool do to owners and to the free list, and what not? P1, P2 and P7.

An effect speaks about one arbitrary block, before and after a call. The order of the free list is that of
the stamps (`pool_ghosts`); with the invariants it determines every link.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftproof.spec.algebra import all_of, any_of, both, either, implies, negate, where
from draftproof.spec.pool import PoolState, is_block, is_free, is_published, is_writable
from draftproof.spec.pool_calls import PRIMITIVES, Call
from draftproof.spec.pool_content_effects import Effect, entered_into, made_a_copy

LIST_EFFECTS: dict[str, Effect] = {}
_effect = entered_into(LIST_EFFECTS)


@_effect("P1", "free_list", "publish", "withdraw", "append")
def free_list_is_left_alone(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """Owners, free list and count of free blocks stay as they are."""
    return all_of(
        *[
            getattr(before.pool, field)[block] == getattr(after.pool, field)[block]
            for field in ("ref_count", "previous_free", "next_free")
        ],
        before.pool.num_free_blocks[0] == after.pool.num_free_blocks[0],
    )


def _count_effect(primitive: str, gained: Callable[[Call], Any], lost: Callable[[Call], Any]) -> None:
    """State whose reference count a primitive changes, and what that does to the number of free blocks."""

    def owners(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> Any:
        more = where(gained(call) == block, 1, 0)
        fewer = where(lost(call) == block, 1, 0)
        return implies(
            is_block(before, block),
            after.pool.ref_count[block] == before.pool.ref_count[block] + more - fewer,
        )

    def free_blocks(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> Any:
        owners_before = before.pool.ref_count
        left = both(gained(call) != 0, owners_before[gained(call)] == 0)
        joined = both(lost(call) != 0, owners_before[lost(call)] == 1)
        change = where(joined, 1, 0) - where(left, 1, 0)
        return after.pool.num_free_blocks[0] == before.pool.num_free_blocks[0] + change

    meaning = "The block gained has one owner more, the block given up one less, all others as many."
    LIST_EFFECTS[f"owners_after_{primitive}"] = Effect("P2", "free_list", (primitive,), meaning, owners)
    meaning = "A block that gets its first owner is one free block less, one that loses its last one more."
    LIST_EFFECTS[f"free_blocks_after_{primitive}"] = Effect(
        "P1", "free_list", (primitive,), meaning, free_blocks
    )


_count_effect("take", lambda call: call.result, lambda call: 0)
_count_effect("acquire", lambda call: where(call.condition, call.block, 0), lambda call: 0)
_count_effect("release", lambda call: 0, lambda call: where(call.condition, call.block, 0))
_count_effect(
    "own_copy",
    lambda call: where(made_a_copy(call), call.result, 0),
    lambda call: where(made_a_copy(call), call.block, 0),
)


@_effect("P2", "owners", "release", "publish", "append", "own_copy")
def owned_has_an_owner(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """The block that the caller's handle owns is counted: releasing it cannot free it twice."""
    return before.pool.ref_count[call.block] >= 1  # type: ignore[no-any-return]


@_effect("P2", "owners", "own_copy")
def handle_moves(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """The claim moves to the copy; without a copy it stays where it was."""
    owns = after.ghosts.handle_block
    moved = both(owns[call.handle] == 0, owns[call.new_handle] == call.result)
    stayed = owns[call.handle] == call.block
    return all_of(
        implies(made_a_copy(call), moved),
        implies(call.result == call.block, stayed),
        implies(call.result == 0, both(stayed, owns[call.new_handle] == 0)),
    )


@_effect("P7", "free_list", "take")
def takes_the_least_recent(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """The block taken is the free one with the lowest stamp, and is empty; 0 only when none is free."""
    stamp = before.ghosts.freed_stamp
    result = call.result
    return all_of(
        implies(
            result != 0,
            all_of(
                is_free(before, result),
                after.pool.ref_count[result] == 1,
                after.pool.num_tokens[result] == 0,
                implies(is_free(before, block), stamp[result] <= stamp[block]),
            ),
        ),
        implies(both(result == 0, call.condition), negate(is_free(before, block))),
    )


@_effect("P7", "free_list", "own_copy")
def copies_only_what_is_shared(
    before: PoolState, after: PoolState, call: Call, block: int, offset: int
) -> bool:
    """A writable block is returned as it is, else a copy in the free block with the lowest stamp, if any."""
    stamp = before.ghosts.freed_stamp
    result = call.result
    stays = either(negate(call.condition), is_writable(before, call.block))
    return all_of(
        implies(stays, result == call.block),
        implies(both(negate(stays), result == 0), negate(is_free(before, block))),
        implies(
            both(negate(stays), result != 0),
            both(is_free(before, result), implies(is_free(before, block), stamp[result] <= stamp[block])),
        ),
    )


@_effect("P7", "free_list", "release")
def freed_goes_to_its_end(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """A published block is reused after all that were free, any other before; those keep their order.

    So a request that releases its blocks from the last to the first has its tail evicted before its head.
    """
    pool, stamp = after.pool, after.ghosts.freed_stamp
    freed = both(call.condition, before.pool.ref_count[call.block] == 1)
    hot, other = is_published(before, call.block), is_free(before, block)
    return all_of(
        implies(both(freed, hot), pool.previous_free[0] == call.block),
        implies(both(freed, negate(hot)), pool.next_free[0] == call.block),
        implies(all_of(freed, hot, other), stamp[block] < stamp[call.block]),
        implies(all_of(freed, negate(hot), other), stamp[call.block] < stamp[block]),
        implies(other, before.ghosts.freed_stamp[block] == stamp[block]),
    )


@_effect("P1", "free_list", *PRIMITIVES)
def nothing_happens_unasked(before: PoolState, after: PoolState, call: Call, node: int, offset: int) -> bool:
    """With a false condition every array stays as it was."""
    fields = [field for field in before.pool._fields if field not in ("token_ids", "num_free_blocks")]
    return any_of(
        call.condition,
        all_of(
            before.pool.num_free_blocks[0] == after.pool.num_free_blocks[0],
            before.pool.token_ids[node, offset] == after.pool.token_ids[node, offset],
            *[getattr(before.pool, field)[node] == getattr(after.pool, field)[node] for field in fields],
        ),
    )

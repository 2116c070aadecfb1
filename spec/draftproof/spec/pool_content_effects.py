"""What does each primitive of the pool do to the index and to the content of blocks, and what not? P3 to P6.

An effect speaks about one arbitrary block and one arbitrary offset in its row, before and after a call.
Rows are never compared as a whole: cells at or above `num_tokens` are stale and may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from draftproof.spec.algebra import all_of, both, either, implies, negate
from draftproof.spec.pool import PoolState, is_block, is_published, is_writable
from draftproof.spec.pool_calls import PRIMITIVES, Call


class Effect(NamedTuple):
    """A relation (before, after, call, block, offset) of some primitives, and the layer its proof uses."""

    theorem: str
    layer: str
    primitives: tuple[str, ...]
    meaning: str
    predicate: Callable[[PoolState, PoolState, Call, Any, Any], Any]


def entered_into(table: dict[str, Effect]) -> Callable[..., Callable[[Any], Any]]:
    """A decorator (theorem, layer, *primitives) that enters a predicate into the table under its own name."""

    def entry(theorem: str, layer: str, *primitives: str) -> Callable[[Any], Any]:
        def register(predicate: Any) -> Any:
            table[predicate.__name__] = Effect(theorem, layer, primitives, predicate.__doc__, predicate)
            return predicate

        return register

    return entry


CONTENT_EFFECTS: dict[str, Effect] = {}
_effect = entered_into(CONTENT_EFFECTS)


def made_a_copy(call: Call) -> bool:
    """`own_copy` really made a copy."""
    return both(call.result != 0, call.result != call.block)


@_effect("P3", "content", *PRIMITIVES)
def published_is_immutable(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """A block that stays published keeps its tokens, digest, parent and serial."""
    return implies(
        all_of(
            is_published(before, block),
            is_published(after, block),
            offset >= 0,
            offset < before.sizes.block_size,
        ),
        all_of(
            *[
                getattr(before.ghosts, field)[block] == getattr(after.ghosts, field)[block]
                for field in ("serial", "parent_first", "parent_second", "content")
            ],
            *[
                getattr(before.pool, field)[block] == getattr(after.pool, field)[block]
                for field in ("digest_first", "digest_second", "num_tokens")
            ],
            before.pool.token_ids[block, offset] == after.pool.token_ids[block, offset],
        ),
    )


@_effect("P7", "index", *(name for name in PRIMITIVES if name != "withdraw"))
def evicted_without_owners(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """A block leaves the index only while it has no owner."""
    return implies(
        both(is_published(before, block), negate(is_published(after, block))),
        before.pool.ref_count[block] == 0,
    )


@_effect("P5", "content", *PRIMITIVES)
def held_content_is_kept(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """What is in a held block stays; `append` writes behind it in the block it was asked to write."""
    return implies(
        all_of(
            is_block(before, block),
            before.pool.ref_count[block] > 0,
            after.pool.ref_count[block] > 0,
            offset >= 0,
            offset < before.pool.num_tokens[block],
        ),
        before.pool.token_ids[block, offset] == after.pool.token_ids[block, offset],
    )


def _index_effect(primitive: str, gone: Callable[[Call, Any], Any], came: Callable[[Call, Any], Any]) -> None:
    """State which blocks a primitive takes out of the index and which it puts there."""

    def predicate(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> Any:
        stayed = both(is_published(before, block), negate(gone(call, block)))
        return implies(
            is_block(before, block), is_published(after, block) == either(stayed, came(call, block))
        )

    meaning = "Published after: what was, less the block taken or withdrawn, and the one asked for."
    CONTENT_EFFECTS[f"index_after_{primitive}"] = Effect("P4", "index", (primitive,), meaning, predicate)


def _asked_block(call: Call, block: int) -> bool:
    return both(call.condition, block == call.block)


def _no_block(call: Call, block: int) -> bool:
    return False


_index_effect("take", lambda call, block: block == call.result, _no_block)
_index_effect("acquire", _no_block, _no_block)
_index_effect("release", _no_block, _no_block)
_index_effect("publish", _no_block, _asked_block)
_index_effect("withdraw", _asked_block, _no_block)
_index_effect("append", _no_block, _no_block)
_index_effect("own_copy", lambda call, block: both(made_a_copy(call), block == call.result), _no_block)


@_effect("P5", "owners", "append")
def writer_is_sole_owner(before: PoolState, after: PoolState, call: Call, handle: int, offset: int) -> bool:
    """Any handle to the block written is the writer's."""
    return implies(before.ghosts.handle_block[handle] == call.block, handle == call.handle)


@_effect("P5", "content", "own_copy")
def copy_is_private_and_equal(
    before: PoolState, after: PoolState, call: Call, block: int, offset: int
) -> bool:
    """The block returned is writable; a copy holds exactly the kept tokens."""
    result = call.result
    return implies(
        both(call.condition, result != 0),
        all_of(
            is_writable(after, result),
            implies(result != call.block, after.pool.num_tokens[result] == call.num_kept),
            implies(
                both(offset >= 0, offset < call.num_kept),
                after.pool.token_ids[result, offset] == before.pool.token_ids[call.block, offset],
            ),
        ),
    )


@_effect("P5", "content", "append")
def token_is_appended(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """The token follows those that were there."""
    count = before.pool.num_tokens[call.block]
    return implies(
        call.condition,
        both(
            after.pool.token_ids[call.block, count] == call.token,
            after.pool.num_tokens[call.block] == count + 1,
        ),
    )


@_effect("P5", "content", "acquire", "release", "publish", "withdraw")
def content_is_left_alone(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """Every block keeps its number of tokens and every token."""
    return both(
        before.pool.num_tokens[block] == after.pool.num_tokens[block],
        implies(
            both(offset >= 0, offset < before.sizes.block_size),
            before.pool.token_ids[block, offset] == after.pool.token_ids[block, offset],
        ),
    )


@_effect("P5", "content", "take", "own_copy")
def lengths_stay(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """Only a block that was free changes its number of tokens."""
    return implies(
        both(is_block(before, block), before.pool.ref_count[block] != 0),
        before.pool.num_tokens[block] == after.pool.num_tokens[block],
    )


@_effect("P5", "content", "append")
def other_lengths_stay(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """Only the block appended to changes its number of tokens."""
    return either(block == call.block, before.pool.num_tokens[block] == after.pool.num_tokens[block])


@_effect("P6", "index", "withdraw")
def withdrawn_is_writable(before: PoolState, after: PoolState, call: Call, block: int, offset: int) -> bool:
    """A withdrawn block with one owner may be written again."""
    return implies(
        both(call.condition, before.pool.ref_count[call.block] == 1), is_writable(after, call.block)
    )


@_effect("P6", "content", "publish")
def published_under_its_digest(
    before: PoolState, after: PoolState, call: Call, block: int, offset: int
) -> bool:
    """The digest is stored as given, duplicates included."""
    return implies(
        both(call.condition, before.pool.next_in_chain[call.block] == 0),
        both(
            after.pool.digest_first[call.block] == call.digest_first,
            after.pool.digest_second[call.block] == call.digest_second,
        ),
    )

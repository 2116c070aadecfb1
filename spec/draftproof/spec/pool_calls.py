"""What may be asked of the pool? The primitives' arguments, and what a caller must see to.

A requirement mentions owners (handles), never an order or a place in a list: a caller cannot know those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from draftproof.spec.algebra import all_of, both, implies
from draftproof.spec.pool import PoolState, is_block, is_writable


class Call(NamedTuple):
    """The arguments of any primitive, with the ghosts among them; each primitive reads the ones it knows."""

    handle: Any
    """Whose claim changes."""
    new_handle: Any
    """Of a copy: the claim to the copy."""
    block: Any
    token: Any
    num_kept: Any
    digest_first: Any
    digest_second: Any
    parent_first: Any
    parent_second: Any
    content: Any
    condition: Any
    """False makes every primitive a no-operation: the guard that replaces `if`."""
    result: Any
    """What the primitive returned: a block, or 0."""


Facts = dict[str, Any]


def _handle_is_unused(state: PoolState, call: Call) -> Facts:
    return {"handle_is_unused": state.ghosts.handle_block[call.handle] == 0}


def _block_exists(state: PoolState, call: Call) -> Facts:
    return {"block_exists": is_block(state, call.block)}


def _handle_owns_block(state: PoolState, call: Call) -> Facts:
    owns = state.ghosts.handle_block[call.handle] == call.block
    return _block_exists(state, call) | {"handle_owns_block": owns}


def _take(state: PoolState, call: Call, offset: int) -> Facts:
    return _handle_is_unused(state, call)


def _acquire(state: PoolState, call: Call, offset: int) -> Facts:
    return _handle_is_unused(state, call) | _block_exists(state, call)


def _release(state: PoolState, call: Call, offset: int) -> Facts:
    return _handle_owns_block(state, call)


def _publish(state: PoolState, call: Call, offset: int) -> Facts:
    pool, contents = state.pool, state.contents
    parent = call.parent_first, call.parent_second
    return _handle_owns_block(state, call) | {
        "length_is_of_the_content": pool.num_tokens[call.block] == contents.length(call.content),
        "digest_is_of_the_content": both(
            call.digest_first == contents.digest_first(*parent, call.content),
            call.digest_second == contents.digest_second(*parent, call.content),
        ),
        "tokens_are_of_the_content": implies(
            both(offset >= 0, offset < pool.num_tokens[call.block]),
            pool.token_ids[call.block, offset] == contents.token(call.content, offset),
        ),
    }


def _withdraw(state: PoolState, call: Call, offset: int) -> Facts:
    # Held or free, whoever asks: a failed step withdraws blocks of other requests too.
    return _block_exists(state, call)


def _append(state: PoolState, call: Call, offset: int) -> Facts:
    return _handle_owns_block(state, call) | {
        "block_is_writable": is_writable(state, call.block),
        "block_has_room": state.pool.num_tokens[call.block] < state.sizes.block_size,
    }


def _own_copy(state: PoolState, call: Call, offset: int) -> Facts:
    return _handle_owns_block(state, call) | {
        "new_handle_is_unused": both(
            state.ghosts.handle_block[call.new_handle] == 0, call.handle != call.new_handle
        ),
        "kept_tokens_are_there": all_of(
            call.num_kept >= 0, call.num_kept <= state.pool.num_tokens[call.block]
        ),
    }


REQUIREMENTS: dict[str, Callable[[PoolState, Call, Any], Facts]] = {
    "take": _take,
    "acquire": _acquire,
    "release": _release,
    "publish": _publish,
    "withdraw": _withdraw,
    "append": _append,
    "own_copy": _own_copy,
}
"""By primitive, of (state, call, offset); a fact that mentions the offset is required for every offset."""

PRIMITIVES = tuple(REQUIREMENTS)

"""What can happen to a tiny pool, and is everybody's KV right afterwards? The moves of `pool_explorer`.

A state is a pool, the block table of each request (`table`, `lengths`), the content that each request has
in each of its blocks (`text`), and the ghost of the device: `kv`, the identity of the tokens that a block's
KV was computed from, ancestors included. Contents and identities are numbers in base 7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

from draftproof.impl.compiled_pool import compiled_pool

TOKENS = 2
"""Tokens in a block."""
BASE = 7
"""Contents of a block: none, one of two single tokens, one of four pairs. Identities count in this base."""

TAKE, LOOK_UP, RELEASE, PUBLISH, APPEND, COPY, WITHDRAW = 0, 1, 7, 8, 9, 11, 13
"""The first number of each kind of move; the difference to it is what is looked up, appended, kept, ..."""


def fast(function: Callable[..., Any]) -> Any:
    """The function, compiled."""
    return numba.njit(function)


class Functions(NamedTuple):
    """What is explored: by default the compiled functions of the pool."""

    take: Any
    acquire: Any
    release: Any
    publish: Any
    withdraw: Any
    append: Any
    own_copy: Any
    writable: Any
    look_up: Any


def running_functions() -> Functions:
    """The compiled pool."""
    return Functions(*[compiled_pool(name) for name in Functions._fields])


@fast
def with_token(content: int, token: int) -> int:
    """The content with one token more."""
    return 1 + token if content == 0 else 2 + content + 2 * token


@fast
def cut_to(content: int, kept: int) -> int:
    """The first `kept` tokens of a content."""
    if kept == 0:
        return 0
    if kept == 1 and content >= 3:
        return 1 + (content - 3) % 2
    return content


@fast
def prefix_of(text: Any, request: int, length: int) -> int:
    """The identity of a request's first `length` blocks."""
    identity = 0
    for place in range(length):
        identity = BASE * identity + text[request, place]
    return identity


@fast
def digest_of(identity: int, injective: bool) -> tuple[int, int]:
    if injective:
        return identity, 3 * identity % 32
    return identity & 1, 0


@fast
def may_be_returned(pool: Any, block: int, first: int, second: int, tokens: Any, count: int) -> bool:
    """A published block that a look-up may return, in the specification's words."""
    if pool.next_in_chain[block] == 0 or pool.num_tokens[block] != count:
        return False
    if pool.digest_first[block] != first or pool.digest_second[block] != second:
        return False
    equal = True
    for offset in range(count):
        equal = equal and pool.token_ids[block, offset] == tokens[offset]
    return equal


@fast
def content_of(pool: Any, block: int) -> int:
    """The content that a block's arrays say it has."""
    content = 0
    for offset in range(pool.num_tokens[block]):
        content = with_token(content, pool.token_ids[block, offset])
    return content


@fast
def has_its_own(pool: Any, table: Any, lengths: Any, text: Any) -> bool:
    """Every block of every request has the request's own tokens in the pool's arrays."""
    for request in range(table.shape[0]):
        for place in range(lengths[request]):
            if content_of(pool, table[request, place]) != text[request, place]:
                return False
    return True


@fast
def is_as_published(pool: Any, kv: Any, injective: bool) -> bool:
    """Every published block holds the KV and the tokens that its digest stands for."""
    for block in range(1, pool.ref_count.shape[0]):
        if pool.next_in_chain[block] != 0:
            first, second = digest_of(kv[block], injective)
            if injective and (pool.digest_first[block] != first or pool.digest_second[block] != second):
                return False
            if content_of(pool, block) != kv[block] % BASE:
                return False
    return True


@fast
def reads_its_own(table: Any, lengths: Any, text: Any, kv: Any, injective: bool) -> bool:
    """Every block of every request holds the KV of the request's own tokens there."""
    for request in range(table.shape[0]):
        for place in range(lengths[request]):
            held = kv[table[request, place]]
            expected = prefix_of(text, request, place + 1)
            if held % BASE != expected % BASE or (injective and held != expected):
                return False
    return True


def move_function(code: Functions) -> Any:
    take, acquire, release, publish = code.take, code.acquire, code.release, code.publish
    withdraw, append, own_copy = code.withdraw, code.append, code.own_copy
    writable, look_up = code.writable, code.look_up

    @fast
    def full_and_published(pool: Any, block: int) -> Any:
        return pool.next_in_chain[block] != 0 and pool.num_tokens[block] == TOKENS

    @fast
    def looked_up(
        pool: Any, table: Any, lengths: Any, text: Any, request: int, content: int, injective: bool
    ) -> Any:
        length = lengths[request]
        if length == table.shape[1] or (length and not full_and_published(pool, table[request, length - 1])):
            return 0
        tokens = np.zeros(TOKENS, np.int32)
        count = 1 if content <= 2 else 2
        tokens[0] = (content - 1) & 1
        tokens[1] = (content - 3) >> 1
        first, second = digest_of(BASE * prefix_of(text, request, length) + content, injective)
        expected = False
        for block in range(1, pool.ref_count.shape[0]):
            expected = expected or may_be_returned(pool, block, first, second, tokens, count)
        block = look_up(pool, first, second, tokens, count)
        if (block != 0) != expected or (
            block and not may_be_returned(pool, block, first, second, tokens, count)
        ):
            return -2
        if block == 0:
            return 0
        acquire(pool, block, True)
        table[request, length] = block
        text[request, length] = content
        lengths[request] += 1
        return 1

    @fast
    def taken(pool: Any, table: Any, lengths: Any, text: Any, kv: Any, request: int) -> int:
        length = lengths[request]
        if length == table.shape[1]:
            return 0
        any_free = False
        for block in range(1, pool.ref_count.shape[0]):
            any_free = any_free or pool.ref_count[block] == 0
        block = take(pool, True)
        if (block != 0) != any_free:
            return -1
        if block == 0:
            return 0
        table[request, length] = block
        text[request, length] = 0
        kv[block] = BASE * prefix_of(text, request, length)
        lengths[request] += 1
        return 1

    @fast
    def move(
        pool: Any, table: Any, lengths: Any, text: Any, kv: Any, request: int, number: int, injective: bool
    ) -> Any:
        """Make a move: 1 if made, 0 if not possible here, negative if something was wrong."""
        if number == TAKE:
            return taken(pool, table, lengths, text, kv, request)
        if number < RELEASE:
            return looked_up(pool, table, lengths, text, request, number - LOOK_UP + 1, injective)
        if number >= WITHDRAW:
            block = number - WITHDRAW + 1
            if request or pool.next_in_chain[block] == 0:
                return 0
            withdraw(pool, block, True)
            return 1
        last = lengths[request] - 1
        if last < 0:
            return 0
        block = table[request, last]
        if number == RELEASE:
            release(pool, block, True)
            lengths[request] -= 1
            return 1
        if number == PUBLISH:
            whole = last == 0 or full_and_published(pool, table[request, last - 1])
            if pool.num_tokens[block] == 0 or pool.next_in_chain[block] != 0 or not whole:
                return 0
            first, second = digest_of(prefix_of(text, request, last + 1), injective)
            publish(pool, block, first, second, True)
            return 1
        if number < COPY:
            if not writable(pool, block) or pool.num_tokens[block] == TOKENS:
                return 0
            token = number - APPEND
            append(pool, block, token, True)
            kv[block] = BASE * (kv[block] // BASE) + with_token(kv[block] % BASE, token)
            text[request, last] = with_token(text[request, last], token)
            return 1
        if writable(pool, block):
            return 0
        kept = min(number - COPY, pool.num_tokens[block])
        copy = own_copy(pool, block, kept, True)
        if copy == 0:
            return 0
        kv[copy] = BASE * (kv[block] // BASE) + cut_to(kv[block] % BASE, kept)
        table[request, last] = copy
        text[request, last] = cut_to(text[request, last], kept)
        return 1

    return move

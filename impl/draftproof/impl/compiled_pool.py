"""Numba as a carrier of the pool and of the digest: the very functions, compiled to machine code.

The helpers become overloads of themselves, and each primitive is compiled from its own source. No array
access is checked, except in the middle mode: that all of them are in bounds is proved
(`draftproof.proofs.pool_proof`). What takes a pool and numbers is kept on disk
(`draftproof.impl.code_cache`); what also takes tokens is compiled for the kind of array that comes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import overload

import draftproof.impl.compiled  # noqa: F401 - registers the algebra
from draftproof.impl import code_cache, digest, pool, pool_checks
from draftproof.spec import pool as pool_specification

PRIMITIVES = ("take", "acquire", "release", "publish", "withdraw", "append", "own_copy")
FUNCTIONS = (*PRIMITIVES, "writable", "published", "look_up", "matches")

_POOL = pool.new_pool(1, 1, 1)
EXAMPLES: dict[str, tuple[Any, ...]] = {
    "take": (_POOL, True),
    "acquire": (_POOL, 1, True),
    "release": (_POOL, 1, True),
    "publish": (_POOL, 1, 1, 1, True),
    "withdraw": (_POOL, 1, True),
    "append": (_POOL, 1, 1, True),
    "own_copy": (_POOL, 1, 1, True),
    "writable": (_POOL, 1),
    "published": (_POOL, 1),
}
"""Arguments, for their types."""

overload(digest.unsigned)(lambda value: lambda value: np.uint64(value))  # noqa: PLW0108 - compiled from its text
overload(digest.signed)(lambda value: lambda value: np.int64(value))  # noqa: PLW0108

# Registered in the order in which they call each other.
for _helper in (
    pool_specification.put,
    pool.row_equal,
    pool.row_copy,
    pool.low_bits,
    pool.unlink,
    pool.link,
    pool.published,
    pool.writable,
    pool.sentinel,
    pool.withdraw,
    pool.publish,
    pool.take,
    pool.acquire,
    pool.release,
    pool.append,
    pool.own_copy,
    pool.matches,
    pool.goes_on,
    pool.look_up,
    pool_checks._free_list_problem,
    pool_checks._chain_problem,
    digest.rotated,
    digest.sip_round,
    digest.absorbed,
    digest.finalised,
    digest.block_digest,
):
    code_cache.register(_helper)


@functools.cache
def compiled_pool(name: str) -> Callable[..., Any]:
    """The pool's function `name`, compiled; takes and changes the same arrays as the interpreted one.

    Raises KeyError for any other name.
    """
    if name not in FUNCTIONS:
        raise KeyError(f"{name} is none of {', '.join(FUNCTIONS)}")
    return code_cache.compile(getattr(pool, name), *EXAMPLES.get(name, ()))  # type: ignore[no-any-return]


@functools.cache
def compiled_digest() -> Callable[..., tuple[int, int]]:
    """`block_digest`, compiled: int64 words, tokens an integer array."""
    return code_cache.compile(digest.block_digest)  # type: ignore[no-any-return]


@functools.cache
def compiled_check() -> Callable[[Any, Any], int]:
    """`problem_of`, compiled: pool and owners by block to the number of a problem."""
    return code_cache.compile(pool_checks.problem_of)  # type: ignore[no-any-return]

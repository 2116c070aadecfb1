"""Numba as a carrier of the pool and of the digest: the very functions, compiled to machine code.

The helpers become overloads of themselves, and each primitive is compiled from its own source. No array
access is checked: that all of them are in bounds is proved (`draftproof.proofs.pool_proof`).
Nothing is cached on disk, for the reason given in `draftproof.impl.compiled`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.extending import overload, register_jitable

import draftproof.impl.compiled  # noqa: F401 - registers the algebra
from draftproof.impl import digest, pool, pool_checks
from draftproof.spec import pool as pool_specification

PRIMITIVES = ("take", "acquire", "release", "publish", "withdraw", "append", "own_copy")
FUNCTIONS = (*PRIMITIVES, "writable", "published", "look_up", "matches")

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
    register_jitable(_helper)


@functools.cache
def compiled_pool(name: str) -> Callable[..., Any]:
    """The pool's function `name`, compiled; takes and changes the same arrays as the interpreted one."""
    if name not in FUNCTIONS:
        raise KeyError(f"{name} is none of {', '.join(FUNCTIONS)}")
    return numba.njit(getattr(pool, name))  # type: ignore[no-any-return]


@functools.cache
def compiled_digest() -> Callable[..., tuple[int, int]]:
    """`block_digest`, compiled: int64 words, tokens an integer array."""
    return numba.njit(digest.block_digest)  # type: ignore[no-any-return]


@functools.cache
def compiled_check() -> Callable[[Any, Any], int]:
    """`problem_of`, compiled: pool and owners by block to the number of a problem."""
    return numba.njit(pool_checks.problem_of)  # type: ignore[no-any-return]

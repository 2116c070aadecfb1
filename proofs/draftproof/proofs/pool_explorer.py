"""Does every request read its own tokens' KV? All states of tiny pools, on the compiled functions.

Breadth-first from a new pool: requests take, look up, append, publish, copy and release blocks in any
order, and anybody withdraws any block at any time. Blocks have two tokens of value 0 or 1; partial blocks
may be published. With each block goes a ghost of the device: *which KV it holds*, as the identity of the
tokens it was computed from, ancestors included. After every move each request's blocks must hold the KV of
that request's own tokens, the pool's arrays must say the same, the pool must be in order, and what became
findable or was lost must be as asked.

`injective` digests tell all prefixes apart. Colliding ones map everything to two values, so that only the
comparison of tokens protects a hit; then a block's own tokens are checked, not its ancestors.
This is exploration, not proof: its bounds are the arguments of `explore`.
"""

from __future__ import annotations

import functools
import time
from typing import Any, NamedTuple

import numpy as np

from draftproof.impl.compiled_pool import compiled_check
from draftproof.impl.pool import new_pool
from draftproof.impl.pool_checks import PROBLEMS
from draftproof.proofs.pool_moves import (
    COPY,
    PUBLISH,
    TAKE,
    TOKENS,
    WITHDRAW,
    Functions,
    fast,
    has_its_own,
    is_as_published,
    move_function,
    reads_its_own,
    running_functions,
)

COMPLAINTS = {
    -1: "a block was taken though none is free, or none though one is",
    -2: "a look-up missed a published block, or returned one that does not match",
    -3: "a block left or entered the index unasked",
    -4: "a request reads KV of tokens that are not its own",
    -5: "a block's tokens are not those that its request has there",
    -6: "a published block is not what its digest says",
}
CHUNK = 4096


class Explored(NamedTuple):
    """What an exploration found."""

    states: int
    moves: int
    depth: int
    complete: bool
    """Whether no state is left to visit; otherwise the limit on states was reached."""
    complaint: str
    """Empty if nothing was wrong; else the first complaint, with its move and depth."""
    seconds: float


@fast
def _load(row: Any, arrays: Any, token_ids: Any, tables: Any) -> None:
    place = 0
    for array in arrays:
        for index in range(array.shape[0]):
            array[index] = row[place]
            place += 1
    for block in range(token_ids.shape[0]):
        for offset in range(TOKENS):
            token_ids[block, offset] = row[place]
            place += 1
    for table in tables:
        for request in range(table.shape[0]):
            for column in range(table.shape[1]):
                table[request, column] = row[place]
                place += 1


@fast
def _store(row: Any, pool: Any, lengths: Any, kv: Any, arrays: Any, tables: Any) -> None:
    """Write the state, with everything that nobody can read set to 0, so that equal states look equal."""
    for block in range(pool.ref_count.shape[0]):
        if pool.ref_count[block] > 0:
            pool.previous_free[block] = 0
            pool.next_free[block] = 0
        if pool.next_in_chain[block] == 0:
            pool.digest_first[block] = 0
            pool.digest_second[block] = 0
            pool.previous_in_chain[block] = 0
            if pool.ref_count[block] == 0:
                pool.num_tokens[block] = 0
                kv[block] = 0
        for offset in range(pool.num_tokens[block], TOKENS):
            pool.token_ids[block, offset] = 0
    for table in tables:
        for request in range(table.shape[0]):
            for column in range(lengths[request], table.shape[1]):
                table[request, column] = 0
    place = 0
    for array in arrays:
        for index in range(array.shape[0]):
            row[place] = array[index]
            place += 1
    for block in range(pool.ref_count.shape[0]):
        for offset in range(TOKENS):
            row[place] = pool.token_ids[block, offset]
            place += 1
    for table in tables:
        for request in range(table.shape[0]):
            for column in range(table.shape[1]):
                row[place] = table[request, column]
                place += 1


@functools.cache
def _expander(code: Functions) -> Any:
    """The compiled loop over states, requests and moves."""
    move, problem_of = move_function(code), compiled_check()

    @fast
    def expand(
        rows: Any, out: Any, pool: Any, lengths: Any, kv: Any, table: Any, text: Any, injective: bool
    ) -> Any:
        arrays = (
            pool.ref_count, pool.previous_free, pool.next_free, pool.num_free_blocks, pool.previous_in_chain,
            pool.next_in_chain, pool.digest_first, pool.digest_second, pool.num_tokens, lengths, kv,
        )  # fmt: skip
        tables = (table, text)
        num_blocks = pool.ref_count.shape[0] - 1
        owners = np.zeros(num_blocks + 1, np.int64)
        count = 0
        for index in range(rows.shape[0]):
            for request in range(table.shape[0]):
                for number in range(WITHDRAW + num_blocks):
                    _load(rows[index], arrays, pool.token_ids, tables)
                    before = pool.next_in_chain[: num_blocks + 1] != 0
                    first_free = pool.next_free[0]
                    made = move(pool, table, lengths, text, kv, request, number, injective)
                    if made < 0:
                        return made * 100 - number
                    if made == 0:
                        continue
                    evicts = number == TAKE or COPY <= number < WITHDRAW
                    came = 0
                    for block in range(1, num_blocks + 1):
                        now = pool.next_in_chain[block] != 0
                        asked = number == WITHDRAW + block - 1 or (evicts and block == first_free)
                        if before[block] and not now and not asked:
                            return -300 - number
                        came += now and not before[block]
                    if came != (number == PUBLISH):
                        return -300 - number
                    if not reads_its_own(table, lengths, text, kv, injective):
                        return -400 - number
                    if not has_its_own(pool, table, lengths, text):
                        return -500 - number
                    if not is_as_published(pool, kv, injective):
                        return -600 - number
                    owners[:] = 0
                    for holder in range(table.shape[0]):
                        for place in range(lengths[holder]):
                            owners[table[holder, place]] += 1
                    problem = problem_of(pool, owners)
                    if problem != 0:
                        return -1000 * problem - number
                    _store(out[count], pool, lengths, kv, arrays, tables)
                    count += 1
        return count

    return expand


def _complaint(code: int, depth: int) -> str:
    """A negative answer of the compiled loop in words."""
    kind, number = divmod(-code, 100)
    what = PROBLEMS[kind // 10] if kind >= 10 else COMPLAINTS[-kind]
    return f"{what} (move {number}, depth {depth})"


def explore(
    num_blocks: int,
    num_chains: int,
    num_requests: int,
    max_blocks: int,
    injective: bool = True,
    max_states: int = 1_000_000,
    code: Functions | None = None,
) -> Explored:
    """Visit every state of a pool with that many requests of at most `max_blocks` (1 or 2) blocks each.

    Raises ValueError for more blocks a request: their identities would not fit the states' int8.
    """
    if not 1 <= max_blocks <= 2:
        raise ValueError(f"a request has one or two blocks here, got {max_blocks}")
    expand = _expander(running_functions() if code is None else code)
    pool = new_pool(num_blocks, num_chains, TOKENS)
    lengths, kv = np.zeros(num_requests, np.int64), np.zeros(num_blocks + 1, np.int64)
    table = np.zeros((num_requests, max_blocks), np.int64)
    text = np.zeros((num_requests, max_blocks), np.int64)
    singles = [array for array in pool if array.ndim == 1] + [lengths, kv]
    start = np.concatenate([*singles, pool.token_ids.ravel(), table.ravel(), text.ravel()]).astype(np.int8)
    frontier = start.reshape(1, -1)
    width = frontier.shape[1]
    # Room for one chunk of states and all their moves.
    out = np.zeros((CHUNK * num_requests * (WITHDRAW + num_blocks), width), np.int8)
    seen, moves, depth, began = {start.tobytes()}, 0, 0, time.perf_counter()
    while len(frontier):
        depth += 1
        new: list[bytes] = []
        for first in range(0, len(frontier), CHUNK):
            count = expand(frontier[first : first + CHUNK], out, pool, lengths, kv, table, text, injective)
            if count < 0:
                seconds = time.perf_counter() - began
                return Explored(len(seen), moves, depth, False, _complaint(count, depth), seconds)
            moves += count
            reached = out[:count].tobytes()
            for place in range(0, count * width, width):
                state = reached[place : place + width]
                if state not in seen:
                    seen.add(state)
                    new.append(state)
            if len(seen) >= max_states:
                return Explored(len(seen), moves, depth, False, "", time.perf_counter() - began)
        frontier = np.frombuffer(b"".join(new), np.int8).reshape(-1, width)
    return Explored(len(seen), moves, depth, True, "", time.perf_counter() - began)

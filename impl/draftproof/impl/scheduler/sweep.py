"""Is everything where it must be? One sweep over a scheduler's queues, tables, pool, contents and digests.

The sweep trusts nothing that the scheduler keeps track of: it counts each block's owners from the tables of
all rows, walks every list, and computes every digest from the tokens. It is plain code with loops and
branches: Numba compiles it as it is, and debug mode interprets it, row by row and block by block. What it
finds is a number and a place; the words are in `problems`, the counters are checked in `counter_checks`.
"""

from __future__ import annotations

from typing import Any

from draftproof.impl.digest import block_digest
from draftproof.impl.ledger_table import (
    NUM_COMPUTED_TOKENS,
    NUM_IN_FLIGHT_TOKENS,
    NUM_REGISTERED_TOKENS,
    NUM_STALE_TOKENS,
    NUM_TOKENS,
    STATUS,
)
from draftproof.impl.pool import published
from draftproof.impl.pool_checks import problem_of
from draftproof.impl.scheduler.config import RECURRENT, SLIDING_WINDOW
from draftproof.impl.scheduler.layout import State
from draftproof.impl.scheduler.prefix_cache import copy_tokens, group_word
from draftproof.impl.scheduler.queue_sweep import FINE, IDLE, Found, queues_problem
from draftproof.spec.ledger import FINISHED, RUNNING

(
    TABLE_LENGTH,
    TABLE_ENTRY,
    NULL_BLOCK,
    HELD_TWICE,
    HELD_WITHOUT_KV,
    TOO_FEW_BLOCKS,
    REFERENCE_COUNT,
    UNKNOWN_TOKEN,
    HASHED_TOO_FAR,
    DIGEST,
    CONTENT_BEYOND_KNOWN,
    CONTENT_TOKENS,
    CONTENT_DIGEST,
    REGISTERED_NOT_HELD,
    REGISTERED_NOT_WRITTEN,
    PUBLISHED_TOO_FAR,
    PUBLISHED_EMPTY,
) = range(20, 37)
"""What a sweep can find beside the problems of queues; from `POOL` on those of `pool_checks` follow."""
POOL = 100
FREE_LIST_ENTRY, FREE_LIST_LINKS, FREE_LIST_INCOMPLETE, CHAIN_ENTRY, CHAIN_LINKS = range(3, 8)
"""Of the problems of `pool_checks`, those that are also found otherwise."""


def sweep(state: State, num_owners: Any, holders: Any, places: Any, window: Any) -> Found:
    """The first problem found. `num_owners`, int64[num_blocks + 1]: how many ends of copies in flight each
    block is; afterwards the number of its owners. Scratch: `holders`, int64[num_blocks + 1], `places`,
    int64[rows], afterwards where each row is, and `window`, int64[tokens of a block]."""
    found = queues_problem(state, places)
    if found[0] != FINE:
        return found
    for block in range(num_owners.shape[0]):
        holders[block] = -1
    for row in range(state.settings.num_rows):
        found = holding_problem(state, row, holders, row)
        if found[0] != FINE:
            return found
        count_owners(state, row, num_owners)
    for block in range(1, num_owners.shape[0]):
        found = block_problem(state, block, num_owners[block])
        if found[0] != FINE:
            return found
    for row in range(state.settings.num_rows):
        found = row_problem(state, row, places[row], window)
        if found[0] != FINE:
            return found
    number = problem_of(state.pool, num_owners)
    return (POOL + number if number != 0 else FINE), -1, -1


def holding_problem(state: State, row: int, holders: Any, stamp: int) -> Found:
    """Whether a row's tables are lists of blocks, none twice. `stamp`: what no block's holder is yet."""
    tables = state.tables
    for group in range(state.settings.num_groups):
        count = tables.num_blocks[group, row]
        if count < 0 or count > state.settings.max_blocks:
            return TABLE_LENGTH, row, -1
        for index in range(count):
            block = tables.block_ids[group, row, index]
            if block < 0 or block > state.settings.num_blocks:
                return TABLE_ENTRY, row, block
            if block == 0:
                if not may_be_null(state, row, group, index):
                    return NULL_BLOCK, row, -1
                continue
            if holders[block] == stamp:
                return HELD_TWICE, row, block
            holders[block] = stamp
    return FINE, -1, -1


def may_be_null(state: State, row: int, group: int, index: int) -> bool:
    """Whether nothing reads the row's block any more: a sliding window has left it behind for good."""
    groups, ledgers = state.groups, state.requests.ledgers
    if groups.kind[group] == SLIDING_WINDOW:
        num_live = ledgers[NUM_IN_FLIGHT_TOKENS, row] - ledgers[NUM_STALE_TOKENS, row]
        settled = ledgers[NUM_COMPUTED_TOKENS, row] - num_live
        return (index + 1) * groups.block_size[group] <= settled - groups.window[group] + 1  # type: ignore[no-any-return]
    return groups.kind[group] == RECURRENT  # type: ignore[no-any-return]


def count_owners(state: State, row: int, num_owners: Any) -> None:
    """Every entry of the row's tables is an owner."""
    for group in range(state.settings.num_groups):
        for index in range(state.tables.num_blocks[group, row]):
            num_owners[state.tables.block_ids[group, row, index]] += 1
    num_owners[0] = 0  # nobody owns the null block


def block_problem(state: State, block: int, num_owners: int) -> Found:
    """A block by itself."""
    if state.pool.ref_count[block] != num_owners:
        return REFERENCE_COUNT, -1, block
    if published(state.pool, block) and state.pool.num_tokens[block] == 0:
        return PUBLISHED_EMPTY, -1, block
    return FINE, -1, -1


def row_problem(state: State, row: int, place: int, window: Any) -> Found:
    """Everything of one row but its queue and its counters."""
    if place == IDLE:
        return FINE, -1, -1
    number = tokens_problem(state, row)
    if number == FINE:
        number = digest_problem(state, row, 0, window)
    if number == FINE:
        number = capacity_problem(state, row)
    if number != FINE:
        return number, row, -1
    for group in range(state.settings.num_groups):
        for index in range(state.tables.num_blocks[group, row]):
            number = content_problem(state, row, group, index)
            if number != FINE:
                return number, row, state.tables.block_ids[group, row, index]
    return FINE, -1, -1


def tokens_problem(state: State, row: int) -> int:
    """Whether all known tokens are in the vocabulary, and no more is hashed than is known."""
    requests, settings = state.requests, state.settings
    num_tokens = requests.ledgers[NUM_TOKENS, row]
    if num_tokens < 1 or num_tokens > settings.max_model_len:
        return UNKNOWN_TOKEN
    for index in range(num_tokens):
        if requests.token_ids[row, index] < 0 or requests.token_ids[row, index] >= settings.vocab_size:
            return UNKNOWN_TOKEN
    return hashed_problem(state, row)


def hashed_problem(state: State, row: int) -> int:
    """Whether only digests of known tokens are kept."""
    settings, num_hashed = state.settings, state.requests.num_hashed_blocks[row]
    covered = num_hashed * settings.hash_block_size + settings.num_hash_lookahead_tokens
    if num_hashed < 0 or (num_hashed > 0 and covered > state.requests.ledgers[NUM_TOKENS, row]):
        return HASHED_TOO_FAR
    return FINE


def digest_problem(state: State, row: int, start: int, window: Any) -> int:
    """Whether the row's digests, from the hash block `start` on, are those computed from its tokens."""
    requests, settings = state.requests, state.settings
    size, covered = settings.hash_block_size, settings.hash_block_size + settings.num_hash_lookahead_tokens
    first, second = requests.salt_first[row], requests.salt_second[row]
    if start > 0:
        first, second = requests.digest_first[row, start - 1], requests.digest_second[row, start - 1]
    for index in range(start, requests.num_hashed_blocks[row]):
        copy_tokens(requests.token_ids, row, index * size, window, covered)
        first, second = block_digest(settings.key_first, settings.key_second, first, second, window, covered)
        if requests.digest_first[row, index] != first or requests.digest_second[row, index] != second:
            return DIGEST
    return FINE


def capacity_problem(state: State, row: int) -> int:
    """Whether a row holds blocks for all it counts as computed and what its drafter writes (T10), and none if
    it counts nothing."""
    ledgers, settings = state.requests.ledgers, state.settings
    num_computed, status = ledgers[NUM_COMPUTED_TOKENS, row], ledgers[STATUS, row]
    gave_back = num_computed == 0 or (status == FINISHED and settings.release_at_once != 0)
    num_slots = num_computed + (settings.num_lookahead_tokens if status == RUNNING else 0)
    for group in range(settings.num_groups):
        num_blocks, size = state.tables.num_blocks[group, row], state.groups.block_size[group]
        if gave_back and num_blocks > 0:
            return HELD_WITHOUT_KV
        if gave_back or state.groups.kind[group] == RECURRENT:
            continue
        if num_blocks * size < min(num_slots, settings.max_model_len):
            return TOO_FEW_BLOCKS
        if settings.caching != 0 and num_blocks < ledgers[NUM_REGISTERED_TOKENS, row] // size:
            return REGISTERED_NOT_HELD
    return FINE


def content_problem(state: State, row: int, group: int, index: int) -> int:
    """Whether a block that the row holds is published as far as its ledger says, and no further, and holds
    the row's own tokens under their digest. Blocks that were withdrawn keep their content."""
    pool, settings = state.pool, state.settings
    block = state.tables.block_ids[group, row, index]
    if block == 0 or settings.caching == 0 or state.groups.kind[group] == RECURRENT:
        return FINE
    end = (index + 1) * state.groups.block_size[group]
    is_registered = end <= state.requests.ledgers[NUM_REGISTERED_TOKENS, row]
    if published(pool, block) and not is_registered:
        return PUBLISHED_TOO_FAR
    if pool.num_tokens[block] == 0:
        return REGISTERED_NOT_WRITTEN if is_registered else FINE
    return written_problem(state, row, group, index)


def written_problem(state: State, row: int, group: int, index: int) -> int:
    """Whether a block that was published once holds the row's own tokens under their digest."""
    requests, pool, settings = state.requests, state.pool, state.settings
    block, size = state.tables.block_ids[group, row, index], state.groups.block_size[group]
    covered = size + settings.num_hash_lookahead_tokens
    if index * size + covered > requests.ledgers[NUM_TOKENS, row]:
        return CONTENT_BEYOND_KNOWN
    if pool.num_tokens[block] != covered:
        return CONTENT_TOKENS
    for offset in range(covered):
        if pool.token_ids[block, offset] != requests.token_ids[row, index * size + offset]:
            return CONTENT_TOKENS
    last = (index + 1) * state.groups.num_hashes[group] - 1
    if last < requests.num_hashed_blocks[row]:
        second = group_word(requests.digest_second[row, last], group)
        if (
            pool.digest_first[block] != requests.digest_first[row, last]
            or pool.digest_second[block] != second
        ):
            return CONTENT_DIGEST
    return FINE

"""Which KV can a request take over, and which of its own may others find? Digests, look-up, publication.

A sequence is known by the digests of its prefixes: one for each hash block of `hash_block_size` tokens,
chained, so that equal digests mean equal tokens from the first on. With `lookahead="hash"` a digest covers
the tokens that the drafter read behind the block, too. Digests are derived: they are computed when needed
and forgotten where a fold cuts. A block of the pool holds its tokens, and a hit compares them.

How far a row is published is the ledger's word (`num_registered_tokens`, T3, T4, T12); how much of what is
found may be used is `lookup_hit`'s (T13). Nothing here counts tokens by itself.
"""

from __future__ import annotations

from typing import Any

from draftproof.impl.decisions import lookup_hit
from draftproof.impl.digest import block_digest
from draftproof.impl.pool import look_up, publish, published
from draftproof.impl.recurrent import may_hit
from draftproof.impl.scheduler.config import FULL_ATTENTION, RECURRENT, SLIDING_WINDOW
from draftproof.impl.scheduler.kv_notes import note_stored
from draftproof.impl.scheduler.layout import NUM_DISPATCHED, RecurrentRows, State, wide
from draftproof.spec.ledger import Ledger
from draftproof.spec.pool import put


def copy_tokens(token_ids: Any, row: int, first: int, window: Any, count: int) -> None:
    """The row's tokens from `first` on into the window."""
    for offset in range(count):
        window[offset] = token_ids[row, first + offset]


def hash_row(state: State, row: int, num_tokens: int) -> None:
    """Compute the digests of the row's hash blocks that `num_tokens` known tokens determine."""
    settings, requests = state.settings, state.requests
    size, covered = settings.hash_block_size, settings.hash_block_size + settings.num_hash_lookahead_tokens
    index = requests.num_hashed_blocks[row]
    while index * size + covered <= num_tokens:
        first, second = requests.salt_first[row], requests.salt_second[row]
        if index > 0:
            first, second = requests.digest_first[row, index - 1], requests.digest_second[row, index - 1]
        copy_tokens(requests.token_ids, row, index * size, state.window, covered)
        first, second = block_digest(
            settings.key_first, settings.key_second, first, second, state.window, covered
        )
        requests.digest_first[row, index] = first
        requests.digest_second[row, index] = second
        index += 1
    requests.num_hashed_blocks[row] = index


def group_word(second: int, group: int) -> int:
    """The digest's second word in a group: blocks of different groups are never taken for each other."""
    return second ^ group


def find(state: State, row: int, group: int, index: int) -> int:
    """A published block of the group with the row's tokens of its block `index`; 0 when there is none."""
    requests = state.requests
    size = state.groups.block_size[group]
    last = (index + 1) * state.groups.num_hashes[group] - 1
    covered = size + state.settings.num_hash_lookahead_tokens
    copy_tokens(requests.token_ids, row, index * size, state.window, covered)
    return look_up(
        state.pool,
        requests.digest_first[row, last],
        group_word(requests.digest_second[row, last], group),
        state.window,
        covered,
    )


def run_of_full_attention(state: State, row: int, group: int, num_tokens: int) -> int:
    """How many leading tokens, in whole blocks up to `num_tokens`, have all their blocks in the cache.

    The blocks found are written to the row's table.
    """
    size = state.groups.block_size[group]
    num_blocks = int(num_tokens // size)
    for index in range(num_blocks):
        block = find(state, row, group, index)
        if block == 0:
            return int(index * size)
        state.tables.block_ids[group, row, index] = block
    return int(num_blocks * size)


def has_window(state: State, row: int, group: int, num_tokens: int) -> bool:
    """Whether the sliding window before the token behind `num_tokens` is in the cache; found blocks are
    written to the row's table, and null blocks before them."""
    size = state.groups.block_size[group]
    first = max(num_tokens - state.groups.window[group] + 1, 0) // size
    for index in range(num_tokens // size - 1, first - 1, -1):
        block = find(state, row, group, index)
        if block == 0:
            return False
        state.tables.block_ids[group, row, index] = block
    for index in range(first):
        state.tables.block_ids[group, row, index] = 0
    return True


def find_state(state: State, rows: RecurrentRows, row: int, group: int, num_tokens: int, step: int) -> int:
    """A block with the state after the row's first `num_tokens`, a multiple of the hash block, that may be
    hit in this step; 0 when there is none. The row's digests up to there are known."""
    requests, size = state.requests, state.settings.hash_block_size
    last = num_tokens // size - 1
    copy_tokens(requests.token_ids, row, num_tokens - size, state.window, size)
    first, second = requests.digest_first[row, last], requests.digest_second[row, last]
    block = look_up(state.pool, first, group_word(second, group), state.window, size)
    if block != 0 and not may_hit(rows.published_in_step[block], step):
        return 0
    return block


def has_states(state: State, rows: RecurrentRows, row: int, num_tokens: int, step: int) -> bool:
    """Whether every recurrent group has the state after the row's first `num_tokens` (M2); the blocks found
    are written to the row's first working slots."""
    for group in range(state.settings.num_groups):
        if state.groups.kind[group] == RECURRENT:
            block = find_state(state, rows, row, group, num_tokens, step)
            if block == 0:
                return False
            state.tables.block_ids[group, row, 0] = block
    return True


def all_have(state: State, rows: RecurrentRows | None, row: int, num_tokens: int) -> bool:
    """Whether the groups that do not need every block have what a hit of `num_tokens` needs."""
    for group in range(state.settings.num_groups):
        if state.groups.kind[group] == SLIDING_WINDOW and not has_window(state, row, group, num_tokens):
            return False
    if rows is None:
        return True
    return has_states(state, rows, row, num_tokens, int(state.counts[NUM_DISPATCHED]))


def look_up_row(state: State, row: int, ledger: Ledger) -> int:
    """How many of the request's tokens are taken over from the cache; their blocks are in its table.

    The run that all groups of full attention have, less what the drafter needs computed anew, shortened
    until the other groups have their part too. Nobody owns the blocks yet: the caller acquires all of them
    before it takes any.
    """
    settings, size = state.settings, state.rules.block_size
    if settings.caching == 0:
        return 0
    hash_row(state, row, ledger.num_tokens)
    # A digest with look-ahead exists only once the tokens behind its block are known.
    num_matching = max(ledger.num_tokens - max(settings.num_hash_lookahead_tokens, 1), 0)
    for group in range(settings.num_groups):
        if state.groups.kind[group] == FULL_ATTENTION:
            num_matching = run_of_full_attention(state, row, group, num_matching)
    num_matching = num_matching // size * size
    num_hit_tokens = lookup_hit(ledger, state.rules, num_matching, settings.drops_block != 0)
    while num_hit_tokens > 0 and not all_have(state, state.recurrent, row, num_hit_tokens):
        num_matching -= size
        num_hit_tokens = lookup_hit(ledger, state.rules, num_matching, settings.drops_block != 0)
    return num_hit_tokens


def fill_block(state: State, row: int, group: int, index: int) -> bool:
    """Write the row's tokens into one of its blocks, and compute their digest; false if there is nothing to
    publish."""
    requests, pool = state.requests, state.pool
    block = wide(state.tables.block_ids[group, row, index])
    if block == 0 or published(pool, block):
        return False
    size = state.groups.block_size[group]
    covered = size + state.settings.num_hash_lookahead_tokens
    hash_row(state, row, index * size + covered)
    if pool.num_tokens[block] == 0:
        # What so many `append`s do, with one write of the count.
        for offset in range(covered):
            put(pool.token_ids, (block, offset), requests.token_ids[row, index * size + offset], True)
        put(pool.num_tokens, block, covered, True)
    return True


def publish_block(state: State, row: int, group: int, index: int) -> int:
    """Make a filled block of the row findable; returns it, or 0 if it was published before: two rows may
    hold the same one."""
    requests, pool = state.requests, state.pool
    block = wide(state.tables.block_ids[group, row, index])
    if published(pool, block):
        return 0
    last = (index + 1) * state.groups.num_hashes[group] - 1
    first = requests.digest_first[row, last]
    second = group_word(requests.digest_second[row, last], group)
    note_stored(state, row, group, index, first, second)
    publish(pool, block, first, second, True)
    return block


def publish_row(state: State, row: int, num_before: int, num_registered: int) -> None:
    """Publish what the ledger newly counts as registered: from `num_before` tokens to `num_registered`."""
    if state.settings.caching == 0:
        return
    for group in range(state.settings.num_groups):
        if state.groups.kind[group] == RECURRENT:
            continue
        size = state.groups.block_size[group]
        for index in range(num_before // size, num_registered // size):
            if fill_block(state, row, group, index):
                publish_block(state, row, group, index)

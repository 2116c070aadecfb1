"""Which changes of the prefix cache are told to routers? What becomes findable, and what is found no more.

Routers know content, not blocks: of several copies with one digest only the first is told as stored, and
only the last as removed. Without a stream (`num_kv_events` is 0) nothing is noted and nothing looked up.
"""

from __future__ import annotations

from draftproof.impl.pool import published, sentinel
from draftproof.impl.scheduler.kv_events import CLEARED, REMOVED, STORED, note, note_tokens
from draftproof.impl.scheduler.layout import State, wide


def is_findable(state: State, first: int, second: int) -> bool:
    """Whether some published block has this digest."""
    pool = state.pool
    node = pool.next_in_chain[sentinel(pool, first)]
    while node < pool.ref_count.shape[0]:
        if pool.digest_first[node] == first and pool.digest_second[node] == second:
            return True
        node = pool.next_in_chain[node]
    return False


def note_stored(state: State, row: int, group: int, index: int, first: int, second: int) -> None:
    """Block `index` of the row is about to be published under this digest."""
    if state.settings.num_kv_events == 0 or is_findable(state, first, second):
        return
    requests, size = state.requests, state.groups.block_size[group]
    parent_first, parent_second = 0, 0  # a salt is no block that a router could know
    if index > 0:
        last = index * state.groups.num_hashes[group] - 1
        parent_first, parent_second = requests.digest_first[row, last], requests.digest_second[row, last]
        parent_second = parent_second ^ group
    block = wide(state.tables.block_ids[group, row, index])
    note(state.kv_events, STORED, block, first, second, parent_first, parent_second, group)
    note_tokens(state.kv_events, requests.token_ids, row, index * size, size)


def note_state_stored(
    state: State, row: int, group: int, block: int, num_tokens: int, first: int, second: int
) -> None:
    """The recurrent state after the row's first `num_tokens` is about to be published.

    It is told as a block of the last hash block's tokens, whose parent need not be there.
    """
    if state.settings.num_kv_events == 0 or is_findable(state, first, second):
        return
    requests, size = state.requests, state.settings.hash_block_size
    parent_first, parent_second = 0, 0
    if num_tokens > size:
        last = num_tokens // size - 2
        parent_first, parent_second = requests.digest_first[row, last], requests.digest_second[row, last]
        parent_second = parent_second ^ group
    note(state.kv_events, STORED, block, first, second, parent_first, parent_second, group)
    note_tokens(state.kv_events, requests.token_ids, row, num_tokens - size, size)


def note_withdrawn(state: State, block: int) -> None:
    """A published block has just been withdrawn or evicted, its digest still at hand."""
    pool = state.pool
    first, second = pool.digest_first[block], pool.digest_second[block]
    if state.settings.num_kv_events != 0 and not is_findable(state, first, second):
        note(state.kv_events, REMOVED, block, first, second, 0, 0, 0)


def note_cleared(state: State) -> None:
    """The whole cache is emptied."""
    if state.settings.num_kv_events != 0:
        note(state.kv_events, CLEARED, 0, 0, 0, 0, 0, 0)


def was_published(state: State) -> int:
    """The block that the next `take` evicts, 0 if it evicts none."""
    block = state.pool.next_free[0]
    return block if published(state.pool, block) else 0

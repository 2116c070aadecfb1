"""Are the free blocks in the order in which they are to be evicted? The list before a call and after it (P7).

Least recently used goes first: blocks that were free all along keep their order, published ones that were
freed meanwhile come behind them, and what nobody can find goes before. A request's blocks are freed from the
last to the first, so that its tail is evicted before its head.
"""

from __future__ import annotations

from draftproof.impl.scheduler.config import FULL_ATTENTION
from draftproof.impl.scheduler.layout import State
from draftproof.impl.scheduler.ownership import Ownership
from draftproof.impl.scheduler.problems import BY_NUMBER, EVICTION_ORDER, Problem
from draftproof.impl.scheduler.snapshot import published_blocks
from draftproof.impl.scheduler.sweep import FREE_LIST_ENTRY, FREE_LIST_INCOMPLETE, FREE_LIST_LINKS, POOL

NOT_FOUND, FREE_ALL_ALONG, FREED = range(3)
"""The parts of a free list in their order: freed and not published; free before, too; freed and published."""


def order_of(state: State) -> list[int]:
    """The free blocks, the first to be taken first; cut off where the list does not end."""
    following = state.pool.next_free.tolist()
    found: list[int] = []
    block = following[0]
    while 0 < block < len(following) and len(found) < len(following):
        found.append(block)
        block = following[block]
    return found


def order_problem(now: State, before: State, ownership: Ownership, is_reset: bool) -> Problem | None:
    """What is wrong with the free list after a call. A reset withdraws what it has freed: then nothing can be
    said of the order."""
    if (before.pool.next_free == now.pool.next_free).all():
        return None
    order = order_of(now)
    if len(order) != now.pool.num_free_blocks[0] or len(set(order)) != len(order):
        return Problem(BY_NUMBER[POOL + FREE_LIST_INCOMPLETE])
    ref_count, back = now.pool.ref_count.tolist(), now.pool.previous_free.tolist()
    for previous, block in zip([0, *order], [*order, 0], strict=True):
        if back[block] != previous:
            return Problem(BY_NUMBER[POOL + FREE_LIST_LINKS], -1, block)
        if block != 0 and ref_count[block] != 0:
            return Problem(BY_NUMBER[POOL + FREE_LIST_ENTRY], -1, block)
    return None if is_reset else eviction_problem(now, before, order, ownership)


def eviction_problem(now: State, before: State, order: list[int], ownership: Ownership) -> Problem | None:
    """Whether each part of the list stands where it belongs, and the old ones in their old order."""
    was_held = (before.pool.ref_count != 0).tolist()
    was_published, is_published = published_blocks(before).tolist(), published_blocks(now).tolist()
    place_before = {block: place for place, block in enumerate(order_of(before))}
    part, place = NOT_FOUND, -1
    last_index: dict[tuple[int, int], int] = {}
    for block in order:
        if was_held[block]:
            own = FREED if is_published[block] else NOT_FOUND
        elif was_published[block] and is_published[block]:
            own = FREE_ALL_ALONG
        else:
            continue  # never used, or taken and freed again meanwhile: it may be anywhere in front
        if own < part or (own == FREE_ALL_ALONG and place_before[block] < place):
            return Problem(EVICTION_ORDER, -1, block)
        part = own
        place = place_before.get(block, place)
        if own == FREED and not is_behind_its_tail(now, ownership, block, last_index):
            return Problem(EVICTION_ORDER, -1, block)
    return None


def is_behind_its_tail(
    now: State, ownership: Ownership, block: int, last_index: dict[tuple[int, int], int]
) -> bool:
    """Whether a freed block comes behind those that stood after it in its one owner's table.

    A sliding window gives its first blocks back, then perhaps, in the same call, all others.
    """
    owners = ownership.before(block)
    if len(owners) != 1:
        return True
    row, group, index = next(iter(owners))
    is_right = now.groups.kind[group] != FULL_ATTENTION or index <= last_index.get((row, group), index)
    last_index[row, group] = index
    return bool(is_right)

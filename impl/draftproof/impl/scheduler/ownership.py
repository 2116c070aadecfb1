"""Who owns which block, and who did before the last call? By name: row, group, and place in its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from draftproof.impl.scheduler.batch import NUM_COPIES
from draftproof.impl.scheduler.counter_checks import batches_in_flight
from draftproof.impl.scheduler.layout import State

if TYPE_CHECKING:
    from draftproof.impl.scheduler.scheduler import Scheduler


class Owner(NamedTuple):
    """One entry of a block table."""

    row: int
    group: int
    place: int
    """Which of the row's blocks in that group."""


def num_copy_ends(scheduler: Scheduler) -> Any:
    """int64[num_blocks + 1]: how many ends of copies each block is, of recurrent states that steps in flight
    start from. Each is an owner until the step has been settled."""
    ends = np.zeros(scheduler.settings.num_blocks + 1, np.int64)
    for batch in batches_in_flight(scheduler):
        np.add.at(ends, batch.copies[:, : batch.counts[NUM_COPIES]].ravel(), 1)
    return ends


def held_blocks(state: State, row: int) -> list[list[int]]:
    """For each group, the blocks that a row holds."""
    ids, counts = state.tables.block_ids, state.tables.num_blocks[:, row].tolist()
    return [ids[group, row, : max(count, 0)].tolist() for group, count in enumerate(counts)]


class Ownership:
    """Kept up to date from the tables of the rows that were touched, not from what the pool counts."""

    def __init__(self, num_blocks: int) -> None:
        self.owners: list[set[Owner]] = [set() for _ in range(num_blocks + 1)]
        self._held: dict[int, list[list[int]]] = {}
        """By row: for each group its blocks."""
        self._before: dict[int, frozenset[Owner]] = {}
        """Of the blocks that won or lost an owner in the last call: those they had before."""

    def begin(self) -> None:
        """A call is over: what follows is compared with what is now."""
        self._before.clear()

    def changed(self) -> set[int]:
        """The blocks that won or lost an owner."""
        return set(self._before)

    def before(self, block: int) -> frozenset[Owner]:
        """Who owned the block before the call."""
        return self._before.get(block) or frozenset(() if block in self._before else self.owners[block])

    def update(self, state: State, row: int) -> list[Owner]:
        """Note what a row holds now; returns its entries that are new."""
        held = held_blocks(state, row)
        renewed = []
        for group, (old, new) in enumerate(zip(self._held.get(row, [[] for _ in held]), held, strict=True)):
            for index in range(max(len(old), len(new))):
                was = old[index] if index < len(old) else 0
                now = new[index] if index < len(new) else 0
                if was != now:
                    owner = Owner(row, group, index)
                    self._move(owner, was, now)
                    renewed += [owner] if now != 0 else []
        self._held[row] = held
        return renewed

    def _move(self, owner: Owner, was: int, now: int) -> None:
        """The entry names another block; 0, the null block, is owned by nobody."""
        for block in (was, now):
            if block != 0:
                self._before.setdefault(block, frozenset(self.owners[block]))
        self.owners[was].discard(owner)
        if now != 0:
            self.owners[now].add(owner)
